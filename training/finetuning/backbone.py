"""The network that fine-tuning starts from: a shipped bundle, a bundle folder or a run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nightjar_alerts.models.bundle import load_bundle, pretrained_bundles
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.zoo import build, transfer
from nightjar_alerts.training.export.weights import initial_weights
from nightjar_alerts.training.fit.checkpoints import CONFIG, read_config
from nightjar_alerts.training.fit.train import Pretrained
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
    """A trained classifier, its recipe, and its weights with their origin."""

    network: AstroMoE
    recipe: Recipe
    pretrained: Pretrained

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

    def with_heads(self, classes: int, seed: int = 0) -> tuple[AstroMoE, tuple[str, ...]]:
        """Return the network with new, seeded heads, and the names of the tensors that it took over."""
        torch.manual_seed(seed)
        network = build(self.with_classes(classes, **HEADS))
        assert isinstance(network, AstroMoE)
        return network, transfer(self.network.state_dict(), network)

    def with_classes(self, classes: int, **changes: Any) -> Any:
        """Return the configuration of the network for other classes, with all statistics."""
        config = self.network.config
        statistics = {} if self.network.statistics is not None else STATISTICS
        update = {"n_classes": classes, **statistics, **TREE_STATISTICS, **changes}
        return config.model_validate(config.model_dump() | update)


def find_backbone(source: str) -> Backbone:
    """Return a trained Astro-MoE: a run folder, a bundle's folder or a bundle of the package by name.

    Raises
    ------
    RunError, BundleError, ValueError
        If there is none, or it is no classifier that can be fine-tuned.
    """
    pretrained = initial_weights(source)
    folder = pretrained_bundles().get(source, Path(source))
    if (folder / CONFIG).exists():
        recipe = read_config(folder).recipe
    else:
        recipe = Recipe.model_validate(load_bundle(folder).manifest.recipe)
    if recipe.network.architecture != "astro-moe" or recipe.task != "classify":
        raise ValueError(
            f"{source} has a network of {recipe.network.architecture} that can {recipe.task}; "
            "name an Astro-MoE that classifies, such as astro-moe-elasticc"
        )
    network = build(recipe.network)
    assert isinstance(network, AstroMoE)
    network.load_state_dict(pretrained.weights)
    return Backbone(network.eval(), recipe, pretrained)
