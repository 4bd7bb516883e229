"""Architectures by name: their configurations, networks and parameter counts.

Notable: a configuration names its architecture, so a recipe, a run folder or a manifest is enough to rebuild a network.
The architecture ``python`` names a module to import, so a run folder with it must come from a trusted source.
A pretraining network uses the classifier's names for the parts that they share, so weights are transferred by name
(:func:`transfer`).
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from nightjar_alerts.models.networks.astro_moe import AstroMoE, AstroMoEConfig, AstroMoEPretraining
from nightjar_alerts.models.networks.astromer import Astromer, AstromerConfig, AstromerPretraining
from nightjar_alerts.models.networks.informer import InformerClassifier, InformerConfig, InformerForecaster
from nightjar_alerts.models.networks.parts.transformer import FeedForwardExperts, InputExperts
from nightjar_alerts.models.networks.romae import RoMAE, RoMAEConfig, RoMAEPretraining


class ParameterCounts(NamedTuple):
    """Numbers of trainable parameters; ``active`` leaves out the experts that a token is not routed to."""

    total: int
    active: int
    by_part: dict[str, int]


def count_parameters(network: nn.Module) -> ParameterCounts:
    """Count the parameters of a network and of each of its parts."""
    inactive = sum(_inactive_parameters(module) for module in network.modules())
    by_part = {name: _n_parameters(child) for name, child in network.named_children() if _n_parameters(child)}
    return ParameterCounts(_n_parameters(network), _n_parameters(network) - inactive, by_part)


def _n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _inactive_parameters(module: nn.Module) -> int:
    if not isinstance(module, FeedForwardExperts | InputExperts):
        return 0
    experts = _n_parameters(module) - _n_parameters(module.router)
    n_experts = module.router.gate.out_features
    return experts // n_experts * (n_experts - module.router.top_k)


NetworkTask = Literal["classify", "reconstruct", "forecast"]


class PythonNetworkConfig(BaseModel):
    """Classifier of a module that is not part of Nightjar; building it imports the module."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: Literal["python"] = "python"
    factory: str = Field(pattern=r"^\w+(\.\w+)*:\w+$", description="module and class, such as deep_sets:DeepSets")
    n_classes: int = Field(default=20, ge=2, description="of the data; passed to the class")
    arguments: dict[str, Any] = Field(default={}, description="further keyword arguments of the class")


NetworkConfig = Annotated[
    AstroMoEConfig | RoMAEConfig | AstromerConfig | InformerConfig | PythonNetworkConfig,
    Field(discriminator="architecture"),
]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Networks of one architecture, by task, all built from the same configuration."""

    classify: Callable[[Any], nn.Module]
    reconstruct: Callable[[Any], nn.Module] | None = None
    forecast: Callable[[Any], nn.Module] | None = None

    @property
    def tasks(self) -> tuple[NetworkTask, ...]:
        """Tasks that the architecture has a network for."""
        return tuple(task for task in get_args(NetworkTask) if getattr(self, task) is not None)


ARCHITECTURES: dict[str, Architecture] = {
    "astro-moe": Architecture(AstroMoE, reconstruct=AstroMoEPretraining),
    "romae": Architecture(RoMAE, reconstruct=RoMAEPretraining),
    "astromer": Architecture(Astromer, reconstruct=AstromerPretraining),
    "informer": Architecture(InformerClassifier, forecast=InformerForecaster),
}


def build(config: NetworkConfig, task: NetworkTask = "classify") -> nn.Module:
    """Build a network with newly initialised weights.

    Raises
    ------
    ValueError
        If the architecture has no network for the task, or a module that is not part of Nightjar has no such class.
    """
    if isinstance(config, PythonNetworkConfig):
        return _build_imported(config, task)
    make: Callable[[Any], nn.Module] | None = getattr(ARCHITECTURES[config.architecture], task)
    if make is None:
        raise ValueError(f"{config.architecture} has no network to {task}")
    return make(config)


def _build_imported(config: PythonNetworkConfig, task: NetworkTask) -> nn.Module:
    if task != "classify":
        raise ValueError(f"{config.factory} has no network to {task}")
    module, _, name = config.factory.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{config.factory}: {error}; add its folder to PYTHONPATH or install it") from error
    except AttributeError as error:
        raise ValueError(f"{config.factory}: {error}") from error
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        raise ValueError(f"{config.factory} is not a subclass of torch.nn.Module")
    return made(n_classes=config.n_classes, **config.arguments)


def transfer(weights: Mapping[str, Tensor], network: nn.Module, *, heads: bool = False) -> tuple[str, ...]:
    """Copy weights of equal name and shape into a network; return the names copied.

    Heads are copied only if ``heads``. Unlike in RoMAE's released code, the input projection is copied too.

    Raises
    ------
    ValueError
        If no weight has an equal name and shape.
    """
    own = network.state_dict()
    fitting = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    copied = {name: value for name, value in fitting.items() if heads or not name.startswith("head")}
    if not copied:
        raise ValueError("no weight of the pretrained network has the name and shape of one of this network's")
    network.load_state_dict(own | copied)
    return tuple(copied)
