"""Result of one alert, and the key under which it is published."""

from dataclasses import dataclass

from models.alerts.packet import Packet
from models.bundle import Bundle
from models.lightcurve import LightCurve
from service.dataplane import Outcome
from service.registry.live import Lease
from service.stream.messages import Message


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """An alert with its outcome, classified or abstained.

    Attributes
    ----------
    number : of the alert in its message; a container may hold several.
    received_ms : when the message came, milliseconds since 1970.
    prior : name of the class shares that the answer assumes where the model has them; empty for the model's own.
    """

    message: Message
    number: int
    packet: Packet
    outcome: Outcome
    lease: Lease[LightCurve]
    received_ms: int
    prior: str = ""

    @property
    def bundle(self) -> Bundle:
        """Model that answered."""
        return self.lease.bundle

    @property
    def key(self) -> str:
        """Topic, alert and model: the same for every delivery, another for every model version.

        The topic is part of it because ELAsTiCC sends one alert id with two lengths of history, on two topics.
        """
        manifest = self.bundle.manifest
        alert = self.packet.alert_id or f"{self.message.place}+{self.number}"
        return f"{self.message.topic}/{alert}/{manifest.name}-{manifest.version}"
