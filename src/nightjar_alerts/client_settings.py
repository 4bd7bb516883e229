"""Settings of ``nightjar classify`` from the environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

ENV_PREFIX: Final = "NIGHTJAR_"


class ClientSettingsError(ValueError):
    """Invalid environment variable; the message names it."""


class ClientSettings(BaseModel):
    """Defaults of the options of ``nightjar classify``; the base install reads them, without pydantic-settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(
        "", description="URL of the service for `nightjar classify`; unset: it classifies in its own process"
    )
    api_key: str = Field("", description="API key for `nightjar classify`")
    timeout: float = Field(
        60, gt=0, allow_inf_nan=False, description="timeout in seconds of a request of `nightjar classify`"
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; ``NIGHTJAR_<SETTING>_FILE`` names a file with the value, as for Docker secrets.

        Raises
        ------
        ClientSettingsError
            If a value is invalid, a file cannot be read, or a setting is given both ways.
        """
        values = {}
        for name in cls.model_fields:
            variable = f"{ENV_PREFIX}{name.upper()}"
            if (text := _text(variable, environment)) is not None:
                values[name] = text
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            variable = f"{ENV_PREFIX}{str(first['loc'][0]).upper()}"
            raise ClientSettingsError(f"{variable}: {first['msg']}") from None


def _text(variable: str, environment: Mapping[str, str]) -> str | None:
    """Return the value of a variable, or of the file that it names; None if neither is set."""
    source = f"{variable}_FILE"
    if not environment.get(source):
        return environment.get(variable)
    if variable in environment:
        raise ClientSettingsError(f"{source}: {variable} is set as well; set one of them")
    try:
        return Path(environment[source]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ClientSettingsError(f"{source}: {environment[source]} cannot be read: {reason}") from None
