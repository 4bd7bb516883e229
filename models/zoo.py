"""Every architecture under its name: what configures it, and the networks built from that configuration.

Notable: a configuration names its own architecture, so a recipe, a run folder or a manifest is enough to rebuild a
network; a pretraining network names the parts it shares with the classifier alike, so weights move by name
(:func:`transfer`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field
from torch import Tensor, nn

from models.astro_moe import AstroMoE, AstroMoEConfig
from models.astro_moe_pretraining import AstroMoEPretraining
from models.astromer import Astromer, AstromerConfig, AstromerPretraining
from models.informer import InformerClassifier, InformerConfig
from models.informer_forecast import InformerForecaster
from models.romae import RoMAE, RoMAEConfig
from models.romae_pretraining import RoMAEPretraining

NetworkTask = Literal["classify", "reconstruct", "forecast"]
NetworkConfig = Annotated[
    AstroMoEConfig | RoMAEConfig | AstromerConfig | InformerConfig, Field(discriminator="architecture")
]


@dataclass(frozen=True, slots=True)
class Architecture:
    """The networks of one architecture, by task; each is built from the same configuration."""

    classify: Callable[[Any], nn.Module]
    reconstruct: Callable[[Any], nn.Module] | None = None
    forecast: Callable[[Any], nn.Module] | None = None

    @property
    def tasks(self) -> tuple[NetworkTask, ...]:
        """What there are networks for."""
        return tuple(task for task in get_args(NetworkTask) if getattr(self, task) is not None)


ARCHITECTURES: dict[str, Architecture] = {
    "astro-moe": Architecture(AstroMoE, reconstruct=AstroMoEPretraining),
    "romae": Architecture(RoMAE, reconstruct=RoMAEPretraining),
    "astromer": Architecture(Astromer, reconstruct=AstromerPretraining),
    "informer": Architecture(InformerClassifier, forecast=InformerForecaster),
}


def build(config: NetworkConfig, task: NetworkTask = "classify") -> nn.Module:
    """Build a network with fresh weights.

    Raises
    ------
    ValueError
        When the architecture has no network for the task.
    """
    make: Callable[[Any], nn.Module] | None = getattr(ARCHITECTURES[config.architecture], task)
    if make is None:
        raise ValueError(f"{config.architecture} has no network to {task}")
    return make(config)


def transfer(weights: Mapping[str, Tensor], network: nn.Module) -> tuple[str, ...]:
    """Copy weights of equal name and shape, heads excepted, into a network; return the names copied.

    Unlike RoMAE's released code this includes the input projection.

    Raises
    ------
    ValueError
        When nothing fits.
    """
    own = network.state_dict()
    fitting = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    copied = {name: value for name, value in fitting.items() if not name.startswith("head")}
    if not copied:
        raise ValueError("no weight of the pretrained network has the name and shape of one of this network's")
    network.load_state_dict(own | copied)
    return tuple(copied)
