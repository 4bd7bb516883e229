"""The archives, and what each extra makes usable in an environment that has nothing else."""

import ast
import os
import re
import struct
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from nightjar_alerts.models.native import GLIBC, LEVELS
from support.once import common_folder, made_once

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "service" / "samples"
WHEEL = "nightjar_alerts-0.1.0-py3-none-manylinux_2_28_{}.whl"
AARCH64 = 183  # e_machine of ELF files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="wheels with native kernels are built on Linux"),
]


def run(*command: str | Path, cwd: Path = ROOT, status: int = 0, **environment: str) -> str:
    """Run a command without this environment's settings; return its output."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("NIGHTJAR_", "PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def uv(*arguments: str | Path) -> str:
    """Run uv. It takes torch from pip's local wheels where there are any, else the build without CUDA."""
    options: list[str] = []
    if arguments[:2] == ("pip", "install"):
        command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
        links = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        options = ["--find-links", *links] if links else ["--torch-backend", "cpu"]
    return run(sys.executable, "-m", "uv", *arguments, *options)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel of this machine's architecture, built from the sdist as `python -m build` does."""

    def build(folder: Path) -> None:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)

    (built,) = made_once(common_folder(tmp_path_factory) / "dist", build).glob("*.whl")
    return built


def environment(folder: Path, *requirements: str) -> Path:
    """Make an environment with the requirements, in the versions that the project is tested with; return its folder."""
    uv("venv", "--quiet", "--python", sys.executable, folder)
    constraints = ROOT / "deploy" / "constraints.txt"
    uv("pip", "install", "--quiet", "--python", folder / "bin/python", "--constraint", constraints, *requirements)
    return folder


@pytest.fixture(scope="session")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Environment with the base install."""
    return made_once(common_folder(tmp_path_factory) / "base", lambda folder: environment(folder, str(wheel)))


def test_wheel_installed_adds_one_import_name(base: Path, tmp_path: Path) -> None:
    code = "from importlib.metadata import files; print({path.parts[0] for path in files('nightjar-alerts')})"
    names = ast.literal_eval(run(base / "bin/python", "-c", code, cwd=tmp_path))
    assert names == {"nightjar_alerts", "nightjar_alerts-0.1.0.dist-info", ".."}
    assert {path.name for path in base.glob("bin/nightjar*")} == {"nightjar", "nightjar-train"}


def test_base_install_beside_a_project_with_models_and_service_leaves_them_alone(base: Path, tmp_path: Path) -> None:
    for name in ("models", "service"):
        (tmp_path / "project" / name).mkdir(parents=True)
        (tmp_path / "project" / name / "__init__.py").write_text("OWNER = 'the project'\n")
    code = "import models, service, nightjar_alerts.alerts.envelopes; print(models.OWNER, service.OWNER)"
    assert run(base / "bin/python", "-c", code, cwd=tmp_path / "project").strip() == "the project the project"
    for name in ("models", "service", "training"):
        assert f"No module named '{name}'" in run(base / "bin/python", "-c", f"import {name}", cwd=tmp_path, status=1)


def test_wheel_has_libraries_of_every_level_and_their_platform_tag(wheel: Path) -> None:
    machine = os.uname().machine
    assert wheel.name == WHEEL.format(machine)
    with zipfile.ZipFile(wheel) as archive:
        libraries = [Path(name).name for name in archive.namelist() if name.endswith(".so")]
    assert len(libraries) == len(LEVELS[machine])
    for level in LEVELS[machine]:
        assert any(name.startswith(f"{level.name}-") for name in libraries)
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel).replace("\n", " ")
    found = re.search(r'consistent with the following platform tag: "manylinux_2_(\d+)_', shown)
    assert found, shown
    assert int(found[1]) <= int(GLIBC.removeprefix("2."))


def test_wheel_has_the_files_of_the_web_page(wheel: Path) -> None:
    """The wheel is built from the sdist, which therefore has them as well."""
    page = ROOT / "service" / "http" / "page"
    files = {f"nightjar_alerts/{path.relative_to(ROOT)}" for path in page.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        assert {*files, "nightjar_alerts/py.typed"} <= set(archive.namelist())


def test_wheel_for_aarch64_is_cross_compiled(tmp_path: Path) -> None:
    """No machine has run these libraries: only their architecture is checked."""
    run(
        sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, ROOT,
        NIGHTJAR_BUILD_MACHINE="aarch64",
    )  # fmt: skip
    with zipfile.ZipFile(tmp_path / WHEEL.format("aarch64")) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".so")]
        (architecture,) = struct.unpack_from("<H", archive.read(name), 18)
    assert architecture == AARCH64


READ = """
import pkgutil
from importlib import import_module
from pathlib import Path
import nightjar_alerts
from nightjar_alerts import models
for module in pkgutil.walk_packages(models.__path__, "nightjar_alerts.models."):
    if not module.name.startswith(("nightjar_alerts.models.networks", "nightjar_alerts.models.runtime")):
        import_module(module.name)
samples = Path(nightjar_alerts.__file__).parent / "service" / "samples"
packets = [outcome for path in samples.glob("*.avro") for outcome in nightjar_alerts.read_packet(path.read_bytes())]
assert len(packets) == 12 and all(isinstance(packet, nightjar_alerts.Packet) for packet in packets), packets
curve = nightjar_alerts.LightCurve.from_columns([60000.0, 60001.0], [10.0, 20.0], [1.0, 1.0], ["g", "r"])
assert len(curve) == 2
print(nightjar_alerts.__version__)
"""


def test_base_install_reads_packets_without_web_packages(base: Path, tmp_path: Path) -> None:
    assert run(base / "bin/python", "-c", READ, cwd=tmp_path).strip() == "0.1.0"
    names = {line.split("==")[0] for line in uv("pip", "freeze", "--python", base / "bin/python").splitlines()}
    assert not names & {"fastapi", "starlette", "uvicorn", "prometheus-client", "pydantic-settings", "redis", "torch"}
    assert "classify FILE..." in run(base / "bin/nightjar", "--help", cwd=tmp_path)
    assert "nightjar-alerts[onnxruntime]" in run(base / "bin/nightjar", "classify", SAMPLES, cwd=tmp_path, status=1)
    assert "nightjar-alerts[cpu]" in run(base / "bin/nightjar", "serve", cwd=tmp_path, status=1)
    assert "nightjar-alerts[train]" in run(base / "bin/nightjar-train", "--help", cwd=tmp_path, status=1)


CLASSIFY = """
import sys
from nightjar_alerts import Classifier

days = [60000.0 + 2 * day for day in range(20)]
flux = [100.0 + 10 * day for day in range(20)]
result = Classifier(native="on").classify(mjd=days, flux=flux, flux_err=[5.0] * 20, band=["g", "r"] * 10)
assert result.status == "classified", result
assert abs(sum(result.probabilities.values()) - 1) < 1e-5
loaded = sys.modules.keys() & {"fastapi", "starlette", "uvicorn", "prometheus_client", "redis", "confluent_kafka"}
assert not loaded, loaded
"""


def test_extra_onnxruntime_alone_classifies_in_process(wheel: Path, tmp_path: Path) -> None:
    venv = environment(tmp_path / "venv", f"{wheel}[onnxruntime]")
    run(venv / "bin/python", "-c", CLASSIFY, cwd=tmp_path)
    rows = ["object_id,mjd,band,flux_njy,flux_err_njy", "A,60000,g,900,30", "A,60003,r,1500,30"]
    (tmp_path / "table.csv").write_text("\n".join(rows))
    printed = run(
        venv / "bin/nightjar", "classify", "table.csv", "-o", "out.csv", "--flux-kind", "difference", "--plot", "p",
        cwd=tmp_path,
    )  # fmt: skip
    assert "1 light curve: 1 classified" in printed
    assert (tmp_path / "out.csv").read_text().startswith("object_id,class,confidence")
    assert (tmp_path / "p" / "A.svg").exists()
    assert "nightjar-alerts[client]" in run(
        venv / "bin/nightjar", "classify", "table.csv", "--url", "http://127.0.0.1:9", cwd=tmp_path, status=1
    )


PROVIDED = {
    "serve": "fastapi, uvicorn, prometheus_client, redis",
    "client": "nightjar_alerts.client",
    "stream": "confluent_kafka",
    "arrow": "pyarrow",
    "tables": "astropy.table, pandas, pyarrow.parquet",
    "otel": "opentelemetry.sdk.trace, opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "dev": "pytest, hypothesis, mypy, build, uv",
}


@pytest.mark.parametrize("extra", PROVIDED)
def test_extra_alone_imports_its_packages_and_names_what_else_a_service_needs(
    extra: str, wheel: Path, tmp_path: Path
) -> None:
    venv = environment(tmp_path / "venv", f"{wheel}[{extra}]")
    run(venv / "bin/python", "-c", f"import {PROVIDED[extra]}", cwd=tmp_path)
    run(venv / "bin/python", "-c", READ, cwd=tmp_path)
    assert "nightjar-alerts[cpu]" in run(venv / "bin/nightjar", "worker", cwd=tmp_path, status=1)


def test_extra_cpu_alone_checks_a_bundle_with_native_kernels(wheel: Path, tmp_path: Path) -> None:
    venv = environment(tmp_path / "venv", f"{wheel}[cpu]")
    assert "Statistics" in run(venv / "bin/nightjar", "check", cwd=tmp_path)
    assert "Statistics" not in run(venv / "bin/nightjar", "check", "--native", "off", cwd=tmp_path)


def test_requirements_with_hashes_satisfy_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """The image and `make demo` install these, and then the package without its dependencies."""
    venv = tmp_path / "venv"
    uv("venv", "--quiet", "--python", sys.executable, venv)
    python: list[str | Path] = ["--quiet", "--python", venv / "bin/python"]
    uv("pip", "install", *python, "--require-hashes", "--requirement", ROOT / "deploy" / "requirements.txt")
    uv("pip", "install", *python, "--no-deps", wheel)
    assert "compatible" in uv("pip", "check", "--python", venv / "bin/python")
    assert run(venv / "bin/nightjar", "--version", cwd=tmp_path).strip() == "nightjar 0.1.0"


def test_requirements_of_the_build_have_hashes_and_its_requirements(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    uv("venv", "--quiet", "--python", sys.executable, venv)
    python: list[str | Path] = ["--python", venv / "bin/python"]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    uv("pip", "install", *python, "--require-hashes", "--requirement", ROOT / "deploy" / "build-requirements.txt")
    assert "Would make no changes" in uv("pip", "install", *python, "--dry-run", *build)


def test_extra_train_alone_describes_a_recipe(wheel: Path, tmp_path: Path) -> None:
    venv = environment(tmp_path / "venv", f"{wheel}[train]")
    described = tomllib.loads(run(venv / "bin/nightjar-train", "describe", "default", cwd=tmp_path))
    assert described["name"] == "default"


def test_extra_gpu_resolves_to_one_onnxruntime(wheel: Path, tmp_path: Path) -> None:
    """Resolved and not installed: the CUDA libraries have gigabytes."""
    venv = tmp_path / "venv"
    uv("venv", "--quiet", "--python", sys.executable, venv)
    resolved = uv("pip", "install", "--dry-run", "--python", venv / "bin/python", f"{wheel}[gpu]")
    names = {line.split("==")[0].strip(" +") for line in resolved.splitlines() if "==" in line}
    assert {"onnxruntime-gpu", "fastapi"} <= names
    assert "onnxruntime" not in names
