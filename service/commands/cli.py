"""The command line: ``nightjar serve | classify | worker | replay | check | demo | settings``.

``python -m service ...`` is the same.
"""

import re
import sys
from contextlib import closing
from pathlib import Path
from time import perf_counter

from pydantic import BaseModel, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliPositionalArg,
    CliSubCommand,
    SettingsConfigDict,
    SettingsError,
)

from models.bundle import DEFAULT_BUNDLE, BundleError
from models.runtime import Provider, ProviderError
from service.commands import demo, table
from service.commands.check import check
from service.commands.client import SAMPLES, Answer, Client, ClientError, packets_in
from service.http.server import serve
from service.observe.tracer import TracingError
from service.registry.cache import RedisUnavailable
from service.settings import ENV_PREFIX, ClientSettings, Settings, StreamSettings, settings_table
from service.stream.worker import work

_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")


class Serve(Settings):
    """Serve a model over HTTP until told to stop."""

    def cli_cmd(self) -> None:
        """Run the command."""
        sys.exit(serve(self))


class Classify(ClientSettings):
    """Send alert packets to a running service and print what it makes of them."""

    paths: CliPositionalArg[list[Path]] = Field(description="files, archives (.tar.gz) or folders of .avro packets")

    def cli_cmd(self) -> None:
        """Run the command."""
        _classify(self, self.paths)


class Check(BaseModel):
    """Verify a bundle without serving it: hashes, golden vectors, timings."""

    bundle: CliPositionalArg[Path] = Field(DEFAULT_BUNDLE, description="folder of the bundle")
    provider: Provider = Field("cpu", description="onnxruntime execution provider")

    def cli_cmd(self) -> None:
        """Run the command."""
        print(table.report(check(self.bundle, self.provider)))


class Demo(BaseModel):
    """Start a service, classify the sample alerts (and yours), stop it."""

    paths: CliPositionalArg[list[Path]] = Field([], description="more files, archives or folders of packets")

    def cli_cmd(self) -> None:
        """Run the command."""
        started = perf_counter()
        with demo.service() as url:
            print(f"service ready at {url} after {perf_counter() - started:.1f} s\n")
            _classify(ClientSettings(url=url, api_key=""), [SAMPLES, *self.paths])
        print("service stopped")


class StreamWorker(StreamSettings):
    """Classify a stream of alerts: from Kafka, Redis or files to Kafka, Redis or files."""

    def cli_cmd(self) -> None:
        """Run the command."""
        sys.exit(work(self))


class Replay(StreamSettings):
    """Classify what a source holds now, and end: dead letters, a range of offsets or of times, files."""

    def cli_cmd(self) -> None:
        """Run the command."""
        sys.exit(work(self, replay=True))


class ShowSettings(BaseModel):
    """Print every setting as a Markdown table."""

    def cli_cmd(self) -> None:
        """Run the command."""
        print(settings_table(), end="")


class Nightjar(BaseSettings):
    """Real-time classification of astronomical alerts."""

    model_config = SettingsConfigDict(
        cli_prog_name="nightjar", cli_kebab_case=True, cli_enforce_required=True, cli_implicit_flags=True
    )

    serve: CliSubCommand[Serve]
    classify: CliSubCommand[Classify]
    worker: CliSubCommand[StreamWorker]
    replay: CliSubCommand[Replay]
    check: CliSubCommand[Check]
    demo: CliSubCommand[Demo]
    settings: CliSubCommand[ShowSettings]

    def cli_cmd(self) -> None:
        """Run the subcommand."""
        CliApp.run_subcommand(self)


def _classify(settings: ClientSettings, paths: list[Path]) -> None:
    answers: list[Answer] = []
    print(table.heading())
    with closing(Client(settings)) as client:
        for source, packet in packets_in(paths):
            for answer in client.classify(source, packet):
                print(table.row(answer))
                answers.append(answer)
    if not answers:
        raise ClientError(f"no packets in {', '.join(map(str, paths))}")
    print(f"\n{table.summary(answers)}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a failure that is not a bug ends with a sentence and status 1, wrong usage with 2."""
    if any(_PASSWORD.search(argument) for argument in (sys.argv[1:] if arguments is None else arguments)):
        print(
            "nightjar: a password in an argument is shown to every user of this machine by `ps`: give the address in "
            "the environment (NIGHTJAR_SOURCE, NIGHTJAR_SINK, ...)",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        CliApp.run(Nightjar, arguments)
    except ValidationError as error:
        for wrong in error.errors():
            name = [step for step in wrong["loc"] if isinstance(step, str)][-1]
            print(f"nightjar: {ENV_PREFIX}{name.upper()}: {wrong['msg']}", file=sys.stderr)
        sys.exit(2)
    except SettingsError as error:
        print(f"nightjar: {error}", file=sys.stderr)
        sys.exit(2)
    except (BundleError, ProviderError, ClientError, TracingError, RedisUnavailable) as error:
        print(f"nightjar: {error}", file=sys.stderr)
        sys.exit(1)
