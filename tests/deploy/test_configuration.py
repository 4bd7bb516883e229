"""Deployment files: linted, validated against their schemas and consistent with each other and with the settings.

No image is built or started: `make containers` does that (tests/containers).
"""

import re
import shutil
import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightjar_alerts.service.settings import ALL_FIELDS, Settings
from support.dashboard import DASHBOARDS

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def passes(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dockerfile_is_clean() -> None:
    for_tests = (ROOT / "tests" / "containers").glob("*.Dockerfile")
    passes(BIN / "hadolint", "deploy/Dockerfile", "deploy/nginx.Dockerfile", *for_tests)


def test_compose_file_follows_the_specification() -> None:
    passes(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml")


def test_nightly_workflow_follows_the_schema_and_runs_every_part_of_the_makefile() -> None:
    path = ".github/workflows/nightly.yml"
    passes(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", path)
    parts = re.search(r"^NIGHTLY := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert parts is not None
    job = yaml.safe_load((ROOT / path).read_text())["jobs"]["nightly"]
    assert job["strategy"]["matrix"]["part"] == parts[1].split()


@pytest.mark.skipif(
    shutil.which("docker-compose") is None, reason="needs docker-compose (apt-get install docker-compose)"
)
def test_compose_file_is_valid_for_compose_1_29() -> None:
    """Debian 12's version, which does not know newer keys such as `name` and `dockerfile_inline`."""
    passes("docker-compose", "--file", "docker-compose.yml", "config", "--quiet")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (apt-get install prometheus)")
def test_prometheus_accepts_its_configuration() -> None:
    passes("promtool", "check", "config", "deploy/prometheus/prometheus.yml")


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_gives_up_what_it_does_not_need(name: str) -> None:
    container = SERVICES[name]
    assert container["read_only"] is True
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert set(container["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert container["pids_limit"] > 0


def test_a_stop_outlasts_the_services_drain() -> None:
    fields = Settings.model_fields
    drain = timedelta(seconds=fields["drain_delay"].default + fields["drain_timeout"].default)
    grace = timedelta(seconds=int(SERVICES["service"]["stop_grace_period"].removesuffix("s")))
    assert grace > drain


def test_every_setting_named_in_a_file_exists() -> None:
    text = (ROOT / "docker-compose.yml").read_text() + (ROOT / "deploy" / "Dockerfile").read_text()
    named = set(re.findall(r"\bNIGHTJAR_[A-Z_]+", text))
    assert named <= {f"NIGHTJAR_{name.upper()}" for name in ALL_FIELDS}


def test_grafana_finds_its_dashboards_where_compose_mounts_them() -> None:
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/nightjar.yml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    assert f"./deploy/grafana/dashboards:{folder}:ro" in SERVICES["grafana"]["volumes"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / "deploy" / "grafana" / "dashboards" / Path(home).relative_to(folder)).is_file()


GRAFANA_PROVIDER = {"name", "orgId", "type", "folder", "folderUid", "disableDeletion", "updateIntervalSeconds"} | {
    "allowUiUpdates",
    "options",
}
GRAFANA_SOURCE = {"name", "type", "access", "orgId", "uid", "url", "user", "database", "basicAuth", "basicAuthUser"} | {
    "withCredentials",
    "isDefault",
    "jsonData",
    "secureJsonData",
    "version",
    "editable",
}


def test_grafana_provisioning_has_documented_fields_only() -> None:
    """Grafana publishes no schema; these are the fields of its page on provisioning. It was never run here."""
    folder = ROOT / "deploy" / "grafana" / "provisioning"
    dashboards = yaml.safe_load((folder / "dashboards" / "nightjar.yml").read_text())
    sources = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())
    assert (dashboards["apiVersion"], sources["apiVersion"]) == (1, 1)
    for provider in dashboards["providers"]:
        assert set(provider) <= GRAFANA_PROVIDER
        assert set(provider["options"]) <= {"path", "foldersFromFilesStructure"}
    for source in sources["datasources"]:
        assert set(source) <= GRAFANA_SOURCE
        assert {"uid", "url", "type", "access"} <= set(source)


def test_grafana_serves_the_pages_that_panels_link_to() -> None:
    assert "./docs:/usr/share/grafana/public/nightjar:ro" in SERVICES["grafana"]["volumes"]
    for dashboard in DASHBOARDS.values():
        (docs,) = (each for each in dashboard["templating"]["list"] if each["name"] == "docs")
        assert docs["query"] == docs["current"]["value"] == "/public/nightjar"


def test_prometheus_scrapes_the_service_by_its_name_and_port() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"service:{Settings.model_fields['port'].default}"]
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]


def test_only_containers_that_talk_share_a_network() -> None:
    """Redis has no password: only what takes alerts from it reaches it. Prometheus reaches who is scraped."""
    networks = {name: set(service["networks"]) for name, service in COMPOSE["services"].items()}
    assert networks["redis"] & networks["worker"]
    assert not networks["redis"] & (networks["service"] | networks["prometheus"] | networks["grafana"])
    assert networks["prometheus"] & networks["service"]
    assert networks["prometheus"] & networks["worker"]
    assert networks["prometheus"] & networks["grafana"]
    assert not networks["grafana"] & networks["service"]


def test_ports_are_published_on_loopback_only() -> None:
    """The image, which has no keys, listens on every interface only where it is told that anybody may ask."""
    for service in COMPOSE["services"].values():
        assert all(
            str(port).startswith(("127.0.0.1:", "${PROXY_ADDRESS:-127.0.0.1}:")) for port in service.get("ports", ())
        )
    assert COMPOSE["services"]["service"]["environment"]["NIGHTJAR_ALLOW_ANONYMOUS"] == "true"
    assert "NIGHTJAR_ALLOW_ANONYMOUS=" not in (ROOT / "deploy" / "Dockerfile").read_text().partition("\nFROM")[2]


def test_image_context_contains_what_the_build_reads() -> None:
    """A file that is missing in .dockerignore breaks the build of the image."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    copied = {source for line in lines for source in line.split() if source != "."}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    linked = {path.resolve().name for path in (ROOT / "src" / "nightjar_alerts").iterdir() if path.is_symlink()}
    read = {"pyproject.toml", "hatch_build.py", "src", project["readme"], *project["license-files"], *linked}
    assert copied | read <= allowed
    assert all((ROOT / name).exists() for name in allowed)
