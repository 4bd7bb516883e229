"""The page of settings, from the fields of the settings classes."""

from collections.abc import Iterable

from pydantic.fields import FieldInfo

from service.settings import ENV_PREFIX, ClientSettings, Settings, StreamSettings, shown_default

HEAD = """# Settings

<!-- Written by `python -m deploy.pages`; a test fails when it is stale. Change the fields in service/settings.py. -->

Every setting is an environment variable. The settings of the service are also options of `nightjar serve`, those of
the service and the worker options of `nightjar worker`: `NIGHTJAR_MAX_PACKETS=10` is `--max-packets 10`. A variable
that begins with `NIGHTJAR_` and names no setting is reported at the start. `python -m service settings` prints them.
"""


def page(_: str = "") -> str:
    """Return the text of docs/settings.md."""
    service = Settings.model_fields
    worker = {name: field for name, field in StreamSettings.model_fields.items() if name not in service}
    sections = (
        ("The service", "", service),
        (
            "The stream worker",
            "The worker obeys the settings of the service too, those of its HTTP side excepted.",
            worker,
        ),
        ("Commands that ask a service", "", ClientSettings.model_fields),
    )
    return HEAD + "".join(_section(title, text, fields.items()) for title, text, fields in sections)


def _section(title: str, text: str, fields: Iterable[tuple[str, FieldInfo]]) -> str:
    rows = "".join(
        f"| `{ENV_PREFIX}{name.upper()}` | {shown_default(field.default)} | {_cell(field.description or '')} |\n"
        for name, field in fields
    )
    introduction = f"{text}\n\n" if text else ""
    return f"\n## {title}\n\n{introduction}| setting | default | meaning |\n|---|---|---|\n{rows}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
