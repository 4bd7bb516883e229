"""The network that fine-tuning starts from: a shipped bundle, a bundle folder or a run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightjar_alerts.models.bundle import MANIFEST, PRETRAINED
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.zoo import build, transfer
from nightjar_alerts.training.export.weights import read_network
from nightjar_alerts.training.fit.checkpoints import CONFIG, load_network
from nightjar_alerts.training.recipes.schema import Recipe

STATISTICS: dict[str, Any] = {
    "d_statistics": 64, "lag_statistics": True, "period_statistics": True, "period_search": "fitted",
}  # fmt: skip
"""Statistics branch of a network that has none."""
TREE_STATISTICS: dict[str, Any] = {"shape_statistics": True, "fold_statistics": True}
"""Further statistics for trees, which the branch ignores."""
HEADS: dict[str, Any] = {"head_width": 128, "head_copies": 4, "head_dropout": 0.3, "dropout": 0.0}
"""New heads."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A trained classifier and its recipe; ``name`` is how it was requested."""

    network: AstroMoE
    recipe: Recipe
    name: str

    @property
    def branches(self) -> AstroMoE:
        """A copy of the network without heads and statistics."""
        changes = {"d_statistics": 0, "lag_statistics": False, "period_statistics": False} | dict.fromkeys(
            TREE_STATISTICS, False
        )
        branches = build(self.network.config.model_copy(update=changes))
        assert isinstance(branches, AstroMoE)
        transfer(self.network.state_dict(), branches)
        return branches.eval()

    def with_heads(self, classes: int) -> tuple[AstroMoE, tuple[str, ...]]:
        """Return the network with new heads, and the names of the tensors that it took over."""
        network = build(self.with_classes(classes, **HEADS))
        assert isinstance(network, AstroMoE)
        return network, transfer(self.network.state_dict(), network)

    def with_classes(self, classes: int, **changes: Any) -> Any:
        """Return the configuration of the network for other classes, with all statistics."""
        config = self.network.config
        statistics = {} if self.network.statistics is not None else STATISTICS
        update = {"n_classes": classes, **statistics, **TREE_STATISTICS, **changes}
        return config.model_validate(config.model_dump() | update)


def find_backbone(name: str | Path) -> Backbone:
    """Return a trained Astro-MoE by the name of a shipped bundle, or by the folder of a bundle or run.

    Raises
    ------
    ValueError
        If there is none, or it is no classifier that can be fine-tuned.
    """
    path = Path(name)
    if not path.exists() and (versions := sorted(PRETRAINED.glob(f"{name}/*"), key=_version)):
        path = versions[-1]
    if (path / MANIFEST).is_file():
        network, recipe = read_network(path)
    elif (path / CONFIG).is_file():
        network, config = load_network(path)
        recipe = config.recipe
    else:
        shipped = ", ".join(sorted(folder.name for folder in PRETRAINED.iterdir() if folder.is_dir()))
        raise ValueError(f"{name} is neither a shipped bundle ({shipped}) nor the folder of a bundle or of a run")
    if not isinstance(network, AstroMoE) or recipe.task != "classify":
        raise ValueError(
            f"{name} holds a network of {recipe.network.architecture} for the task {recipe.task}; fine-tuning starts "
            "from an Astro-MoE that classifies, such as astro-moe-elasticc"
        )
    return Backbone(network.eval(), recipe, str(name))


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in path.name.split(".") if part.isdecimal())
