"""Rules of a topic: what is known beforehand about its messages.

Five envelopes are in use: Confluent framing with a schema registry (Rubin), Avro containers (ZTF, ALeRCE, Pitt-Google),
bare records of an agreed schema (ELAsTiCC), bare records whose whole schema is the message's key (Fink), and JSON
(Lasair, hop).
"""

from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator


class Envelope(StrEnum):
    """Ways in which the bytes of a message hold an alert."""

    AUTO = "auto"
    CONFLUENT = "confluent"
    CONTAINER = "container"
    BARE = "bare"
    KEY = "key"
    JSON = "json"


class TopicRule(BaseModel):
    """Facts about the messages of a topic that are known beforehand."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    envelope: Envelope = Envelope.AUTO
    schema_name: str | None = None

    @model_validator(mode="after")
    def _bare_needs_a_schema(self) -> Self:
        if (self.envelope is Envelope.BARE) != (self.schema_name is not None):
            raise ValueError("the envelope `bare`, and no other, needs a schema_name such as elasticc/0.9.1")
        return self


ANYTHING = TopicRule()


def rule_for(topic: str, rules: Mapping[str, TopicRule]) -> TopicRule:
    """Return the first rule whose pattern (``ztf_*``) fits the topic."""
    return next((rule for pattern, rule in rules.items() if fnmatchcase(topic, pattern)), ANYTHING)
