"""The command line: ``nightjar serve | classify | catalog | worker | replay | dead-letters | check | demo | settings``.

``python -m nightjar_alerts.service ...`` is the same.
"""

import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Final

from nightjar_alerts.models.common import how_to_install, interruptible_imports

# The base install has none of these, and onnxruntime comes from one of two packages.
if missing := [name for name in ("fastapi", "onnxruntime", "pydantic_settings") if find_spec(name) is None]:
    sys.exit(f"nightjar: {' and '.join(missing)} not installed: {how_to_install('cpu')}; [gpu] is for CUDA GPUs")

with interruptible_imports("nightjar"):
    from pydantic import BaseModel, Field, ValidationError
    from pydantic_settings import (
        CLI_SUPPRESS,
        BaseSettings,
        CliApp,
        CliPositionalArg,
        CliSubCommand,
        SettingsConfigDict,
        SettingsError,
    )

    from nightjar_alerts.catalog_command import main as write_catalog
    from nightjar_alerts.classify_command import main as classify_files
    from nightjar_alerts.core.load import LoadedModel, Timing, check_bundle
    from nightjar_alerts.models.bundle import DEFAULT_BUNDLE, BundleError
    from nightjar_alerts.models.native import Native
    from nightjar_alerts.models.runtime import Provider, ProviderError
    from nightjar_alerts.service import SAMPLES
    from nightjar_alerts.service.grpc import GrpcError
    from nightjar_alerts.service.http.edge.counts import RedisUnavailable
    from nightjar_alerts.service.local import ServiceDied, running
    from nightjar_alerts.service.observe.tracing import TracingError
    from nightjar_alerts.service.process import VERSION
    from nightjar_alerts.service.settings import (
        Settings,
        StreamSettings,
        removed_settings,
        setting_error,
        settings_from_files,
        settings_table,
    )
    from nightjar_alerts.service.stream.addresses import AddressError
    from nightjar_alerts.service.stream.inspection import print_dead_letters


def _report(loaded: LoadedModel, timings: Sequence[Timing]) -> str:
    """Return the text about a bundle that passed its check."""
    manifest = loaded.bundle.manifest
    lines = [
        f"{manifest.name} {manifest.version}  sha256 {loaded.bundle.sha256}",
        f"{len(manifest.files)} files match their hashes",
        f"golden outputs reproduced, largest difference {loaded.golden_error:.1e}",
        f"native kernels: {', '.join(loaded.kernels) or 'none'}",
        "",
        f"{'curves':>8}{'points':>8}{'ms a run':>12}{'ms a curve':>12}",
    ]
    for timing in timings:
        milliseconds = 1000 * timing.seconds
        per_curve = milliseconds / timing.batch
        lines.append(f"{timing.batch:>8}{timing.length:>8}{milliseconds:>12.2f}{per_curve:>12.2f}")
    return "\n".join(lines)


_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")


class Serve(Settings):
    """Serve models over HTTP. --help-all lists every option."""

    def cli_cmd(self) -> None:
        """Run the command."""
        from nightjar_alerts.service.http.server import serve

        sys.exit(serve(self))


class Classify(BaseModel):
    """Classify light curves and alerts from files, in process or by a service. See nightjar classify --help."""


class Catalog(BaseModel):
    """Classify an archive partition by partition. See nightjar catalog --help."""


class Check(BaseModel):
    """Verify a bundle without serving it: hashes, golden vectors, timings."""

    bundle: CliPositionalArg[Path] = Field(DEFAULT_BUNDLE, description="folder of the bundle")
    provider: Provider = Field("cpu", description="onnxruntime execution provider")
    native: Native = Field("auto", description="native kernels: auto, on or off")

    def cli_cmd(self) -> None:
        """Run the command."""
        print(_report(*check_bundle(self.bundle, self.provider, native=self.native)))


class Demo(BaseModel):
    """Start a service, classify the sample alerts (and yours), stop it."""

    paths: CliPositionalArg[list[Path]] = Field([], description="more files, archives or folders of packets")

    def cli_cmd(self) -> None:
        """Run the command."""
        paths = [path.expanduser() for path in self.paths]  # zsh and dash do not expand the ~ of `make demo ALERTS=~/x`
        for path in paths:  # before the service starts
            if not path.exists():
                raise FileNotFoundError(f"{path} does not exist")
        started = perf_counter()
        with running(settings={"NIGHTJAR_API_KEYS": "[]", "NIGHTJAR_LOG_LEVEL": "info"}) as service:
            url = service.url
            print(f"service ready at {url} after {perf_counter() - started:.1f} s\n", flush=True)
            status = classify_files(["--url", url, "--api-key", "", *map(str, [SAMPLES, *paths])])
        print("service stopped")
        sys.exit(status)


class StreamWorker(StreamSettings):
    """Classify alerts from Kafka, Redis or files into Kafka, Redis or files. --help-all lists every option."""

    def cli_cmd(self) -> None:
        """Run the command."""
        from nightjar_alerts.service.stream.worker import work

        sys.exit(work(self))


class Replay(StreamSettings):
    """Classify what a source holds now and exit: dead letters, offset or time ranges, files. See also --help-all."""

    def cli_cmd(self) -> None:
        """Run the command."""
        from nightjar_alerts.service.stream.worker import work

        sys.exit(work(self, replay=True))


class DeadLetters(BaseModel):
    """Print dead letters: stage, reason and detail of each, and their numbers. Nothing is acknowledged or removed."""

    address: CliPositionalArg[str] = Field(
        "", description="folder, topic or stream, as file:PATH/; NIGHTJAR_DEAD_LETTERS if left out"
    )

    def cli_cmd(self) -> None:
        """Run the command."""
        sys.exit(print_dead_letters(self.address))


class ShowSettings(BaseModel):
    """Print every setting as a Markdown table."""

    def cli_cmd(self) -> None:
        """Run the command."""
        print(settings_table(), end="")


class Nightjar(BaseSettings):
    """Real-time classification of astronomical alerts. nightjar --version prints the version."""

    model_config = SettingsConfigDict(
        cli_prog_name="nightjar",
        cli_kebab_case=True,
        cli_enforce_required=True,
        cli_hide_none_type=True,
        cli_implicit_flags=True,
        cli_use_class_docs_for_groups=True,
    )

    serve: CliSubCommand[Serve]
    classify: CliSubCommand[Classify]
    catalog: CliSubCommand[Catalog]
    worker: CliSubCommand[StreamWorker]
    replay: CliSubCommand[Replay]
    dead_letters: CliSubCommand[DeadLetters] = Field(alias="dead-letters")
    check: CliSubCommand[Check]
    demo: CliSubCommand[Demo]
    settings: CliSubCommand[ShowSettings]

    def cli_cmd(self) -> None:
        """Run the subcommand."""
        CliApp.run_subcommand(self, cli_exit_on_error=False)


COMMON_OPTIONS: Final = frozenset(
    {
        "host",
        "port",
        "api_keys",
        "named_keys",
        "key_limits",
        "allow_anonymous",
        "bundle",
        "repository",
        "aliases",
        "prior",
        "provider",
        "workers",
        "max_queued_seconds",
        "admin_port",
        "log_level",
        "log_format",
        "source",
        "sink",
        "sink_format",
        "dead_letters",
        "topics",
        "registry",
        "kafka_config",
        "batch_messages",
        "worker_port",
    }
)
"""Options of ``serve``, ``worker`` and ``replay`` that ``--help`` shows; ``--help-all`` shows all."""


def _hide_rare_options() -> None:
    for command in (Serve, StreamWorker, Replay):
        for name, field in command.model_fields.items():
            if name not in COMMON_OPTIONS:
                field.metadata.append(CLI_SUPPRESS)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Expected errors print a message and exit with 1, usage errors with 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"nightjar {VERSION}")
        return
    if arguments[:1] == ["classify"]:  # has its own parser, which needs no web packages
        sys.exit(classify_files(arguments[1:]))
    if arguments[:1] == ["catalog"]:
        sys.exit(write_catalog(arguments[1:]))
    if any(_PASSWORD.search(argument) for argument in arguments):
        print(
            "nightjar: a password in an argument is shown to every user of this machine by `ps`: give the address in "
            "the environment (NIGHTJAR_SOURCE, NIGHTJAR_SINK, ...)",
            file=sys.stderr,
        )
        sys.exit(2)
    if errors := removed_settings(os.environ, arguments):
        print(*(f"nightjar: {error}" for error in errors), sep="\n", file=sys.stderr)
        sys.exit(2)
    if "--help-all" in arguments:
        arguments = ["--help" if argument == "--help-all" else argument for argument in arguments]
    else:
        _hide_rare_options()
    try:
        os.environ.update(settings_from_files(os.environ))
    except ValueError as error:
        print(f"nightjar: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        CliApp.run(Nightjar, arguments)
    except ValidationError as error:
        for invalid in error.errors():
            print(f"nightjar: {setting_error(invalid['loc'], invalid['msg'])}", file=sys.stderr)
        sys.exit(2)
    except SettingsError as error:
        print(f"nightjar: {setting_error((), str(error).removeprefix('Error: '))}", file=sys.stderr)
        sys.exit(2)
    except (
        AddressError,
        BundleError,
        ProviderError,
        ServiceDied,
        FileNotFoundError,
        TracingError,
        GrpcError,
        RedisUnavailable,
    ) as error:
        print(f"nightjar: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, as shells do


if __name__ == "__main__":
    main()
