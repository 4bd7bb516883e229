"""What `podman kube play` runs of the rendered manifests: the pods of the service and of the worker, probed by hand.

Not run anywhere: Services, NetworkPolicies, budgets, monitors and scalers, which only a cluster has. A StatefulSet is
run as a Deployment, which podman knows.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightjar_alerts.service.local import free_port
from support.containers import ENGINE, IMAGE, Container, classify, engine, needs_containers, status
from support.edge import curve, wait_until

OVERLAYS = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "overlays"
KEYS = {"client": ["42ea0a2a3b1d1fe4ecbe0ad3b4f1ffbb4e5bbb9e3d4b7d4f6c6f3c35bb4cd1b2"]}
KAFKA = {"librdkafka.json": '{"security.protocol": "PLAINTEXT"}'}
pytestmark = [
    *needs_containers,
    pytest.mark.skipif(ENGINE != "podman", reason="only podman plays manifests"),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]


def rendered(overlay: str) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(OVERLAYS / overlay)], capture_output=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


@contextmanager
def played(
    overlay: str, folder: Path, keys: dict[str, list[str]], **settings: str
) -> Iterator[tuple[dict[str, Any], Container, int]]:
    """Run the workload of an overlay; yield its container as rendered and as it runs, and the port on this machine."""
    manifests = [each for each in rendered(overlay) if each["kind"] in {"ConfigMap", "Deployment", "StatefulSet"}]
    config, workload = manifests
    config["data"] |= settings
    workload["kind"] = "Deployment"
    workload["spec"].pop("serviceName", None)
    workload["spec"].pop("podManagementPolicy", None)
    spec = workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    container["image"] = IMAGE
    port = free_port()
    container["ports"][0] |= {"hostPort": port, "hostIP": "127.0.0.1"}
    path = folder / "pod.yaml"
    for volume in spec["volumes"]:
        if "secret" in volume:
            # podman 4.3 does not decode the files of a secret.
            volume["configMap"] = {"name": volume.pop("secret")["secretName"]}
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nightjar-kafka"}}
    path.write_text(yaml.safe_dump_all([head | {"data": KAFKA}, *manifests]))
    create_secret("nightjar-keys", keys)
    try:
        engine("kube", "play", str(path))
        pods = engine("ps", "--format", "{{.ID}} {{.Names}}").splitlines()
        (name,) = (line.split()[0] for line in pods if line.endswith(f"-{container['name']}"))
        yield container, Container(name), port
    finally:
        engine("kube", "down", str(path), check=False)
        engine("secret", "rm", "nightjar-keys", check=False)


def create_secret(name: str, keys: dict[str, list[str]]) -> None:
    """Create a secret, as podman 4.3 needs it for a variable."""
    data = {"named-keys": base64.b64encode(json.dumps(keys).encode()).decode()}
    command = [ENGINE, "secret", "create", name, "-"]
    subprocess.run(command, input=json.dumps(data).encode(), capture_output=True, check=True)


def answers(port: int, path: str) -> bool:
    return status(port, path) == 200


def test_service_pod_runs_with_its_config_map_secret_and_restrictions(tmp_path: Path) -> None:
    with played("cpu", tmp_path, KEYS) as (manifest, running, port):
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = manifest[name]["httpGet"]["path"]
            wait_until(partial(answers, port, path))
        assert running.run("id", "-u") == "10001"
        assert running.run("sh", "-c", "touch /opt/x 2>&1 | grep -c 'Read-only'", check=False) == "1"
        environment = running.run("env").splitlines()
        assert f"NIGHTJAR_NAMED_KEYS={json.dumps(KEYS)}" in environment
        assert running.state["Running"]
        assert status(port, "/v1/models") == 401  # the key of the secret is required


def test_service_pod_without_keys_in_its_secret_classifies(tmp_path: Path) -> None:
    with played("cpu", tmp_path, {}, NIGHTJAR_ALLOW_ANONYMOUS="true") as (_, _running, port):
        wait_until(lambda: status(port, "/readyz") == 200)
        assert classify(port, curve())["results"][0]["status"] == "classified"


def test_worker_pod_whose_broker_is_away_is_healthy_and_not_ready(tmp_path: Path) -> None:
    kafka = "kafka://127.0.0.1:9/"
    settings = {"NIGHTJAR_SOURCE": f"{kafka}alerts?group=nightjar", "NIGHTJAR_SINK": f"{kafka}classifications"}
    with played("stream", tmp_path, {}, NIGHTJAR_DEAD_LETTERS=f"{kafka}dead", **settings) as (manifest, running, port):
        wait_until(lambda: status(port, manifest["startupProbe"]["httpGet"]["path"]) == 200)
        assert status(port, manifest["livenessProbe"]["httpGet"]["path"]) == 200
        assert status(port, manifest["readinessProbe"]["httpGet"]["path"]) == 503
        assert status(port, "/metrics") == 200
        assert "PLAINTEXT" in running.run("cat", "/etc/nightjar/kafka/librdkafka.json")
