"""The manifests of deploy/kubernetes: rendered by kubectl, validated strictly, and consistent with the settings.

Kinds of Kubernetes itself are validated by kubernetes-validate. It accepts every kind that it does not know, so custom
kinds are validated against the schema in their own definition (CRD), where ``NIGHTJAR_CRDS`` or the reference data have
those of KEDA, the Prometheus operator and KServe.
"""

import copy
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from nightjar_alerts.service.settings import Settings, StreamSettings, unknown_settings, unused_settings
from support.dashboard import declared, metric_names
from support.shared import SHARED

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = {"cpu": "overlays/cpu", "gpu": "overlays/gpu", "stream": "overlays/stream", "kserve": "kserve"}
VERSION = "1.32"  # of Kubernetes
KINDS = [
    "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount", "StatefulSet",
    "InferenceService", "PrometheusRule", "ScaledObject", "ServiceMonitor", "ServingRuntime", "TriggerAuthentication",
]  # fmt: skip
GROUPS_OF_KUBERNETES = {"v1", "apps/v1", "policy/v1", "networking.k8s.io/v1"}
CRDS = Path(os.environ.get("NIGHTJAR_CRDS") or (SHARED or Path("absent")) / "data" / "schemas" / "crd")

# Names of the parameters in KEDA's documentation; its definition allows any.
TRIGGERS = {
    "prometheus": {"serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues", "unsafeSsl"},
    "kafka": {
        "bootstrapServers", "consumerGroup", "topic", "lagThreshold", "activationLagThreshold", "offsetResetPolicy",
        "allowIdleConsumers", "limitToPartitionsWithLag",
    },
}  # fmt: skip

Manifest = dict[str, Any]

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@cache
def render(overlay: str) -> list[Manifest]:
    """Return the manifests of an overlay, as kubectl renders them without a cluster."""
    command = ["kubectl", "kustomize", str(FOLDER / OVERLAYS[overlay])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one_of_each_kind() -> dict[str, Manifest]:
    return {manifest["kind"]: manifest for overlay in OVERLAYS for manifest in render(overlay)}


def find(overlay: str, kind: str, name: str) -> Any:
    (found,) = (each for each in render(overlay) if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def closed(schema: Any) -> Any:
    """Return a schema that refuses fields that it does not list."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        result["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields", False))
    return result


@cache
def custom_schemas() -> dict[tuple[str, str], Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # KServe's definition has two megabytes
    definitions = [yaml.load(path.read_text(), Loader=loader) for path in sorted(CRDS.glob("*.yaml"))]
    return {
        (f"{each['spec']['group']}/{version['name']}", each["spec"]["names"]["kind"]): closed(
            version["schema"]["openAPIV3Schema"]
        )
        for each in definitions
        for version in each["spec"]["versions"]
    }


def validate(manifest: Manifest) -> None:
    """Raise an exception if a manifest has a field that its kind has not, or one of another type."""
    if manifest["apiVersion"] in GROUPS_OF_KUBERNETES:
        core = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
        core.validate(manifest, VERSION, strict=True)
        return
    if not CRDS.is_dir():
        pytest.skip(
            f"custom kinds not validated: set NIGHTJAR_CRDS to a folder with the definition of {manifest['kind']}"
        )
    schema = custom_schemas()[manifest["apiVersion"], manifest["kind"]]
    # The schemas themselves are not checked: a pattern in one of them is none for Python.
    for error in jsonschema.Draft202012Validator(schema).iter_errors(manifest):
        raise error


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_is_rendered_offline_and_pins_the_image(overlay: str) -> None:
    images = {container["image"] for manifest in render(overlay) for container in containers(manifest)}
    project = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    suffix = "-gpu" if overlay == "gpu" else ""
    assert images == {f"registry.example.org/nightjar:{project[1]}{suffix}"}


def containers(manifest: Manifest) -> list[Manifest]:
    spec = manifest.get("spec", {})
    found: list[Manifest] = spec.get("template", {}).get("spec", spec).get("containers", [])
    return found


def test_kinds_that_are_tested_are_all_that_are_rendered() -> None:
    assert set(one_of_each_kind()) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_follow_the_schema_of_their_kind(overlay: str, kind: str) -> None:
    for manifest in render(overlay):
        if manifest["kind"] == kind:
            validate(manifest)


@pytest.mark.parametrize("kind", KINDS)
def test_manifest_with_a_wrong_field_is_refused(kind: str) -> None:
    manifest = copy.deepcopy(one_of_each_kind()[kind])
    validate(manifest)
    place = manifest.get("spec", manifest)
    place["replcias"] = 1
    with pytest.raises(Exception, match="replcias"):
        validate(manifest)


@pytest.mark.parametrize("kind", KINDS)
def test_manifest_with_a_value_of_another_type_is_refused(kind: str) -> None:
    manifest = copy.deepcopy(one_of_each_kind()[kind])
    validate(manifest)
    manifest["metadata" if "spec" not in manifest else "spec"] = "text"
    with pytest.raises(Exception, match="text"):
        validate(manifest)


@pytest.mark.parametrize("overlay", ["cpu", "stream"])
def test_scaler_has_documented_parameters_only(overlay: str) -> None:
    name = {"cpu": "nightjar", "stream": "nightjar-worker"}[overlay]
    for trigger in find(overlay, "ScaledObject", name)["spec"]["triggers"]:
        assert set(trigger["metadata"]) <= TRIGGERS[trigger["type"]]


def settings_of(overlay: str, kind: str, name: str) -> dict[str, str]:
    """Return the settings that a pod gets, with a valid value for each secret."""
    (container,) = containers(find(overlay, kind, name))
    values: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        values |= find(overlay, "ConfigMap", source["configMapRef"]["name"])["data"]
    secret = '{"client": ["' + 64 * "0" + '"]}'
    return values | {each["name"]: each.get("value", secret) for each in container.get("env", ())}


PODS = [
    ("cpu", "Deployment", "nightjar", Settings),
    ("gpu", "Deployment", "nightjar", Settings),
    ("stream", "StatefulSet", "nightjar-worker", StreamSettings),
    ("kserve", "ServingRuntime", "nightjar", Settings),
]
each_container = pytest.mark.parametrize(("overlay", "kind", "name", "settings"), PODS, ids=[pod[0] for pod in PODS])
each_pod = pytest.mark.parametrize(
    ("overlay", "kind", "name", "settings"), PODS[:-1], ids=[pod[0] for pod in PODS[:-1]]
)


@each_container
def test_pod_settings_exist_and_are_used(
    overlay: str, kind: str, name: str, settings: type[Settings | StreamSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = settings_of(overlay, kind, name)
    assert unknown_settings(values) == {}
    assert unused_settings(values, settings) == []
    for variable, value in values.items():
        monkeypatch.setenv(variable, value)
    settings()


@each_pod
def test_pod_has_the_port_and_outlasts_the_drain_of_its_settings(
    overlay: str, kind: str, name: str, settings: type[Settings | StreamSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in settings_of(overlay, kind, name).items():
        monkeypatch.setenv(variable, value)
    chosen = settings()
    port, delay = (
        (chosen.port, chosen.drain_delay) if isinstance(chosen, Settings) else (chosen.worker_port, 0)
    )  # fmt: skip
    pod = find(overlay, kind, name)["spec"]["template"]["spec"]
    assert [each["containerPort"] for each in pod["containers"][0]["ports"]] == [port]
    assert pod["terminationGracePeriodSeconds"] > delay + chosen.drain_timeout


@each_pod
def test_pod_gives_up_what_it_does_not_need(overlay: str, kind: str, name: str, settings: type) -> None:
    pod = find(overlay, kind, name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert (
        f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
        in (ROOT / "deploy" / "Dockerfile").read_text()
    )
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]  # a Service `nightjar` would set NIGHTJAR_PORT


def test_service_is_scaled_before_it_rejects_requests() -> None:
    (trigger,) = find("cpu", "ScaledObject", "nightjar")["spec"]["triggers"]
    assert float(trigger["metadata"]["threshold"]) < Settings.model_fields["max_queued_seconds"].default / 2


def test_queries_of_scalers_use_metrics_that_are_declared() -> None:
    (trigger,) = find("cpu", "ScaledObject", "nightjar")["spec"]["triggers"]
    predictor = find("kserve", "InferenceService", "nightjar")["spec"]["predictor"]
    (metric,) = predictor["autoScaling"]["metrics"]
    for query in (trigger["metadata"]["query"], metric["external"]["metric"]["query"]):
        assert metric_names(query)
        assert metric_names(query) <= declared()


def test_serving_runtime_has_the_ports_and_probes_of_its_settings() -> None:
    (container,) = containers(find("kserve", "ServingRuntime", "nightjar"))
    environment = settings_of("kserve", "ServingRuntime", "nightjar")
    ports = [each["containerPort"] for each in container["ports"]]
    assert ports == [Settings.model_fields["port"].default, int(environment["NIGHTJAR_GRPC_PORT"])]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"]["port"] == ports[0]


def test_worker_is_scaled_on_the_group_and_topic_that_it_reads() -> None:
    metadata = find("stream", "ScaledObject", "nightjar-worker")["spec"]["triggers"][0]["metadata"]
    address = f"kafka://{metadata['bootstrapServers']}/{metadata['topic']}?group={metadata['consumerGroup']}"
    assert settings_of("stream", "StatefulSet", "nightjar-worker")["NIGHTJAR_SOURCE"] == address


@pytest.mark.parametrize(("overlay", "name"), [("cpu", "nightjar"), ("stream", "nightjar-worker")])
def test_everything_that_selects_pods_selects_those_of_the_workload(overlay: str, name: str) -> None:
    kind = "Deployment" if overlay == "cpu" else "StatefulSet"
    workload = find(overlay, kind, name)
    labels = workload["spec"]["template"]["metadata"]["labels"].items()
    service = find(overlay, "Service", name)
    assert service["spec"]["selector"].items() <= labels
    assert find(overlay, "PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"].items() <= labels
    for policy in (name, "nightjar-closed"):
        assert find(overlay, "NetworkPolicy", policy)["spec"]["podSelector"]["matchLabels"].items() <= labels
    monitor = find(overlay, "ServiceMonitor", name)["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    target = find(overlay, "ScaledObject", name)["spec"]["scaleTargetRef"]
    assert (target.get("kind", "Deployment"), target["name"]) == (kind, name)
