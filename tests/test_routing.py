"""Which model gets a light curve outside the domain of the first one."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.posterior import Domain
from nightjar_alerts.routing import route
from support.graphs import curve, echo_manifest


@dataclass(frozen=True)
class Model:
    bundle: Bundle


def model(*bands: str) -> Model:
    """A model for light curves in these bands; without bands, one that declares no domain."""
    domain = Domain(bands=bands, fewest_points=1, measured_on="test light curves") if bands else None
    return Model(Bundle(Path("echo"), echo_manifest().model_copy(update={"domain": domain}), "0" * 64))


@pytest.mark.parametrize(("bands", "used"), [(("r",), True), (("i",), False), ((), False)], ids=str)
def test_route_outside_the_domain_uses_only_a_model_that_declares_one_with_the_light_curve(
    bands: tuple[str, ...], used: bool
) -> None:
    first, other = model("g"), model(*bands)
    chosen = route(curve(1.0), "", {"default": first, "ztf": other}.get, lambda: first)
    assert chosen.model is (other if used else first)
    assert bool(chosen.outside) is not used
