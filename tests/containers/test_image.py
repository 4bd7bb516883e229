"""The image as a container: restrictions, start, answers, stop, and what ends it."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.containers import (
    ANONYMOUS,
    HARDENED,
    IMAGE,
    Container,
    classify,
    container,
    engine,
    needs_containers,
    published,
    status,
)
from support.edge import curve, wait_until

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = 8
GPU_IMAGE = os.environ.get("NIGHTJAR_GPU_IMAGE", "")
pytestmark = needs_containers

CONTENTS = """
import json, os
def size(folder):
    return sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names)
site = "/opt/nightjar/lib/python3.11/site-packages"
sizes = {name: size(f"{site}/{name}") for name in os.listdir(site) if os.path.isdir(f"{site}/{name}")}
sizes["nightjar_alerts/models/pretrained"] = size(f"{site}/nightjar_alerts/models/pretrained")
print(json.dumps({"environment": size("/opt/nightjar"), **sizes}))
"""
PACKAGES = """
import json, importlib.metadata as m
print(json.dumps({d.name.lower().replace("_", "-").replace(".", "-"): d.version for d in m.distributions()}))
"""


@pytest.fixture(scope="module")
def service(figures: dict[str, Any]) -> Iterator[Container]:
    started = time.monotonic()
    with container("--memory", "2g", *ANONYMOUS, *published()) as running:
        running.wait_ready()
        figures["image.start_seconds"] = round(time.monotonic() - started, 1)
        yield running


def in_image(code: str) -> Any:
    return json.loads(engine("run", "--rm", "--entrypoint", "python3", IMAGE, "-c", code))


def test_image_is_labelled_with_version_commit_and_licence(figures: dict[str, Any]) -> None:
    inspected = json.loads(engine("image", "inspect", IMAGE))[0]
    labels = {name.rpartition(".")[2]: value for name, value in (inspected["Labels"] or {}).items()}
    assert {"title", "description", "licenses", "version", "revision", "created"} <= set(labels)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert labels["revision"] == head.stdout.strip()
    figures["image.revision"] = labels["revision"][:12]
    figures["image.mb"] = round(inspected["Size"] / 1e6)


def test_image_contents_in_megabytes(figures: dict[str, Any]) -> None:
    sizes = {name: round(size / 1e6, 1) for name, size in in_image(CONTENTS).items()}
    figures |= {f"image.mb.{name}": size for name, size in sizes.items() if size >= 1}
    assert "torch" not in sizes
    assert "pip" not in sizes


def test_image_has_the_packages_of_the_bill_of_materials() -> None:
    """``make sbom`` writes it from the file with hashes."""
    pins = re.findall(r"^([\w.-]+)==([^ \\]+)", (ROOT / "deploy" / "requirements.txt").read_text(), re.MULTILINE)
    pinned = {name.lower().replace("_", "-").replace(".", "-"): version for name, version in pins}
    installed = in_image(PACKAGES)
    del installed["nightjar-alerts"]
    assert installed.items() <= pinned.items()


def test_container_has_no_rights_and_a_numeric_user(service: Container) -> None:
    assert service.run("id", "-u") == "10001"
    rights = dict(line.split(":\t") for line in service.run("cat", "/proc/1/status").splitlines() if ":\t" in line)
    assert rights["CapEff"] == rights["CapPrm"] == "0" * 16
    assert rights["NoNewPrivs"] == "1"
    assert service.run("sh", "-c", "touch /opt/nightjar/x /home/x 2>&1 | grep -c 'Read-only'", check=False) == "2"


def test_container_passes_its_health_check(service: Container) -> None:
    check = json.loads(engine("inspect", service.name))[0]["Config"]["Healthcheck"]["Test"]
    service.run(*check[1:])


def test_container_classifies(service: Container) -> None:
    answer = classify(service.port(8080), {"light_curves": [curve(60, object_id=str(number)) for number in range(64)]})
    assert [result["status"] for result in answer["results"]] == 64 * ["classified"]


def test_container_logs_json_and_runs_the_native_kernels(service: Container) -> None:
    events = [json.loads(line) for line in service.log().splitlines()]
    kernels = [event for event in events if event["event"] == "kernels"]
    assert kernels
    assert all("Statistics" in json.dumps(event) for event in kernels)
    assert "ready" in [event["event"] for event in events]


def test_container_sigterm_answers_every_request_in_flight(figures: dict[str, Any]) -> None:
    curves = [curve(100 + number, object_id=str(number)) for number in range(80)]
    with container("--memory", "2g", "--env", "NIGHTJAR_MAX_QUEUED_SECONDS=600", *ANONYMOUS, *published()) as running:
        running.wait_ready()
        port = running.port(8080)
        with ThreadPoolExecutor(REQUESTS) as clients:
            answers = [clients.submit(classify, port, {"light_curves": curves}) for _ in range(REQUESTS)]
            time.sleep(0.3)
            started = time.monotonic()
            engine("kill", "--signal", "TERM", running.name)
            wait_until(lambda: status(port, "/readyz") == 503)
            done = [len(answer.result()["results"]) for answer in answers]
        assert done == REQUESTS * [len(curves)]
        assert running.wait() == 0
        figures["image.stop_seconds_with_requests_in_flight"] = round(time.monotonic() - started, 1)


def test_container_with_a_full_tmpfs_goes_on() -> None:
    hardened = [each if each != "/tmp" else "/tmp:size=1m" for each in HARDENED]
    with container("--memory", "2g", *ANONYMOUS, *published(), hardened=hardened) as running:
        running.wait_ready()
        running.run("sh", "-c", "cat /dev/zero > /tmp/full", check=False)
        assert classify(running.port(8080), curve())["results"][0]["status"] == "classified"
        assert status(running.port(8080), "/readyz") == 200


def test_container_without_a_tmpfs_ends_and_says_why() -> None:
    hardened = [each for each in HARDENED if each not in {"--tmpfs", "/tmp"}]
    with container("--memory", "2g", *ANONYMOUS, "--read-only-tmpfs=false", hardened=hardened) as running:
        assert running.wait() == 1
        assert "No usable temporary directory" in running.log()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("NIGHTJAR_MAX_CURVES=many", "NIGHTJAR_MAX_CURVES"),
        ("NIGHTJAR_BUNDLE=/none", "/none"),
        ("NIGHTJAR_PROVIDER=cuda", "cuda"),
        ("NIGHTJAR_ALLOW_ANONYMOUS=false", "NIGHTJAR_ALLOW_ANONYMOUS"),
    ],
)
def test_container_with_a_wrong_setting_ends_and_names_it(setting: str, sentence: str) -> None:
    with container("--memory", "2g", *ANONYMOUS, "--env", setting) as running:
        assert running.wait() in {1, 2}
        assert sentence.lower() in running.log().lower()


def away(dead_letters: str) -> list[str]:
    """Settings of a worker whose Redis does not answer."""
    redis = "redis://127.0.0.1:9"
    settings = {"SOURCE": f"{redis}/alerts", "SINK": f"{redis}/results", "DEAD_LETTERS": dead_letters}
    return [part for name, value in settings.items() for part in ("--env", f"NIGHTJAR_{name}={value}")]


def test_worker_container_whose_redis_is_away_waits_and_stops_with_status_0() -> None:
    with container("--memory", "2g", *away("file:/tmp/dead/"), *published(8081), command=["worker"]) as running:
        wait_until(lambda: status(running.port(8081), "/healthz") == 200)
        wait_until(lambda: "operation failed, retrying" in running.log())
        assert status(running.port(8081), "/readyz") == 503
        engine("kill", "--signal", "TERM", running.name)
        assert running.wait() == 0


def test_worker_container_that_cannot_write_dead_letters_ends_and_says_why(tmp_path: Path) -> None:
    volume = ("--volume", f"{tmp_path}:/dead:ro")
    with container("--memory", "2g", *volume, *away("file:/dead/"), command=["worker"]) as running:
        assert running.wait() == 1
        assert "NIGHTJAR_DEAD_LETTERS=file:/dead/: the folder /dead cannot be written" in running.log()


@pytest.mark.skipif(not GPU_IMAGE, reason="NIGHTJAR_GPU_IMAGE names no image that was built with DEVICE=gpu")
def test_gpu_image_without_a_gpu_ends_and_does_not_run_on_the_cpu(figures: dict[str, Any]) -> None:
    figures["image.gpu_mb"] = round(json.loads(engine("image", "inspect", GPU_IMAGE))[0]["Size"] / 1e6)
    setting = ("--env", "NIGHTJAR_PROVIDER=cuda")
    with container("--memory", "2g", *ANONYMOUS, *setting, image=GPU_IMAGE) as running:
        assert running.wait() == 1
        assert "asked for CUDAExecutionProvider, the session runs on CPUExecutionProvider" in running.log()


def test_container_with_too_little_memory_is_killed_and_restarted_as_often_as_allowed(figures: dict[str, Any]) -> None:
    """The limit of memory is also that of memory and swap, so that nothing is paged out instead."""
    limit = ("--memory", "96m", "--memory-swap", "96m", "--restart", "on-failure:2")
    with container(*limit, *ANONYMOUS) as running:
        wait_until(lambda: restarts(running) == 2 and running.state["ExitCode"] == 137)  # killed by the kernel
        time.sleep(2)
        assert restarts(running) == 2
        assert not running.state["Running"]
        figures["image.mb_too_small"] = 96


def restarts(running: Container) -> int:
    return int(json.loads(engine("inspect", running.name))[0]["RestartCount"])


def test_container_memory_after_a_batch(service: Container, figures: dict[str, Any]) -> None:
    classify(service.port(8080), {"light_curves": [curve(60, object_id=str(n)) for n in range(1000)]})
    peak = [line for line in service.run("cat", "/proc/1/status").splitlines() if line.startswith("VmHWM")]
    figures["image.peak_memory_mb"] = round(int(peak[0].split()[1]) * 1024 / 1e6)
