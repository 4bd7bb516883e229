"""The subcommands of ``python -m training sky`` that make a bundle for the real sky.

python -m training train sky-body --data first.json --pretrained runs/unpacked
python -m training train sky-body-views --data mixture.json --pretrained runs/sky-body-0
python -m training sky ask runs/tables --mixture mixture.json --data DATA
python -m training sky tell runs/tables --body runs/sky-body-views-0
python -m training sky heads runs/tables --body runs/sky-body-views-0 --out runs/sky-heads-0
python -m training sky boost runs/tables --out runs/trees.npz
python -m training sky ship runs/sky-heads-0 build/astro-moe-elasticc --tables runs/tables --trees runs/trees.npz
"""

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliImplicitFlag, CliPositionalArg

SkyRecipe = Literal["sky-heads", "sky-heads-ztf"]


class _Step(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=False, extra="forbid")


class Ask(_Step):
    """Draw the light curves that heads are fitted and scored on from a mixture, and strangers of no known class."""

    tables: CliPositionalArg[Path] = Field(description="folder to write")
    mixture: Path = Field(description="JSON file that names the data files and their shares")
    data: Path = Field(description="folder with real/ and the other sets, for objects of no known class")
    cache: Path | None = Field(default=None, description="folder that keeps what was read from one call to the next")
    train: int = Field(default=100_000, ge=1, description="light curves to fit on")
    validation: int = Field(default=15_000, ge=1, description="light curves to choose and to calibrate on")
    seed: int = Field(default=0, ge=0, description="the same seed gives the same light curves")
    recipe: SkyRecipe = Field(default="sky-heads", description="how light curves are shown; sky-heads-ztf: as ZTF has")
    whole: CliImplicitFlag[bool] = Field(default=False, description="show all points of each, and none degraded")

    def cli_cmd(self) -> None:
        """Draw."""
        from training.sky.load import load_sky
        from training.sky.told import ask_all, shown_whole

        sky, recipe = load_sky(self.data, self.cache), _recipe(self.recipe)
        recipe = shown_whole(recipe) if self.whole else recipe
        ask_all(self.mixture, sky, recipe, (self.train, self.validation), self.tables, self.seed)


class Tell(_Step):
    """Work out statistics of the light curves of a folder, and what a body says of them."""

    tables: CliPositionalArg[Path] = Field(description="folder of `ask`")
    body: Path | None = Field(default=None, description="run folder of `train`; without it statistics alone")
    what: Literal["everything", "embeddings"] = Field(default="everything", description="statistics need no body")

    def cli_cmd(self) -> None:
        """Tell."""
        from training.recipes.astro_moe import sky_heads
        from training.sky.heads import load_body
        from training.sky.told import tell_embeddings, tell_statistics

        if self.what == "everything":
            tell_statistics(sky_heads(), self.tables)
        if self.body is not None:
            tell_embeddings(load_body(self.body)[0], self.tables)


class Heads(_Step):
    """Fit heads to the light curves of a folder; print the scores of the validation light curves as JSON."""

    tables: CliPositionalArg[Path] = Field(description="folder of `ask` and `tell`")
    body: Path = Field(description="run folder whose branches told of them")
    out: Path = Field(description="run folder to write")
    more: list[Path] = Field(default=[], description="further folders to fit on, told of by the same body; repeatable")
    steps: int = Field(default=2_500, ge=1, description="of 1,024 light curves")
    seed: int = Field(default=0, ge=0, description="of weights and draws")
    recipe: SkyRecipe = Field(default="sky-heads", description="of the heads, as for `ask`")
    trees: CliImplicitFlag[bool] = Field(default=False, description="let heads learn from boosted trees as well")
    go_on: CliImplicitFlag[bool] = Field(
        default=False, description="from the heads that the body's run holds, with a fifth of the rate"
    )

    def cli_cmd(self) -> None:
        """Fit."""
        from training.sky.heads import HeadsConfig
        from training.sky.told import fit_run

        recipe, config = _recipe(self.recipe).model_copy(update={"seed": self.seed}), HeadsConfig(steps=self.steps)
        if self.go_on:
            config = config._replace(rate=config.rate / 5, go_on=True)
        _print(fit_run([self.tables, *self.more], self.body, self.out, recipe, config, trees=self.trees))


class Boost(_Step):
    """Fit boosted trees to the same light curves, for `ship`; print their scores of the validation light curves."""

    tables: CliPositionalArg[Path] = Field(description="folder of `ask` and `tell`")
    out: Path = Field(description="npz file to write")
    more: list[Path] = Field(default=[], description="further folders to fit on, told of by the same body; repeatable")
    rounds: int = Field(default=140, ge=1, description="of boosting, a tree of each class in every one")
    rate: float = Field(
        default=0.08, gt=0, le=1, description="of learning: what each round adds; few objects want less"
    )
    leaves: int = Field(default=24, ge=2, description="of a tree, at most")
    share: float = Field(default=0.15, gt=0, le=1, description="of the numbers that each tree may look at")
    rows: float = Field(default=0.7, gt=0, le=1, description="share of the light curves that each round looks at")
    weights: list[float] = Field(default=[], description="of a light curve of each folder, in order; default: 1")
    statistics: CliImplicitFlag[bool] = Field(default=False, description="look at the statistics alone, no embedding")
    seed: int = Field(default=0, ge=0, description="of draws")

    def cli_cmd(self) -> None:
        """Fit."""
        from training.sky.told import fit_trees

        changes = {"learning_rate": self.rate, "num_leaves": self.leaves, "feature_fraction": self.share}
        changes["bagging_fraction"] = self.rows
        folders = [self.tables, *self.more]
        told = fit_trees(
            folders,
            self.out,
            seed=self.seed,
            rounds=self.rounds,
            weights=self.weights,
            statistics=self.statistics,
            **changes,
        )
        _print(told)


class Ship(_Step):
    """Calibrate fitted heads, fit their sets and their novelty, and export all of it as a bundle."""

    run: CliPositionalArg[Path] = Field(description="run folder of `heads`")
    out: CliPositionalArg[Path] = Field(description="bundle folder to write; must not hold anything")
    tables: Path = Field(description="folder of `ask` and `tell` that the heads were fitted on")
    more: list[Path] = Field(default=[], description="further folders, for fitting and validation; repeatable")
    trees: Path | None = Field(default=None, description="npz file of `boost`, to answer beside the heads")
    about: Path | None = Field(default=None, description="JSON file with sources and licences, for the manifest")
    name: str = Field(default="astro-moe-elasticc", description="of the bundle")
    version: str = Field(default="2.3.0", description="semantic version of the bundle")

    def cli_cmd(self) -> None:
        """Export."""
        from training.sky.shipping import ship

        about: dict[str, Any] = {} if self.about is None else json.loads(self.about.read_text(encoding="utf-8"))
        bundle = ship(
            self.run,
            self.tables,
            self.out,
            name=self.name,
            version=self.version,
            about=about,
            trees=self.trees,
            more=self.more,
        )
        _print({"bundle": str(bundle.path), "sha256": bundle.sha256})


class SkyCard(_Step):
    """Write the model card of a bundle of `ship`, with the table of `measure` when there is one."""

    bundle: CliPositionalArg[Path] = Field(description="bundle folder; its manifest is hashed anew")
    report: Path | None = Field(default=None, description="JSON file of `measure` or `six`")

    def cli_cmd(self) -> None:
        """Write the card and print the bundle's new hash."""
        from training.sky.card import write_sky_card

        report = None if self.report is None else json.loads(self.report.read_text(encoding="utf-8"))
        _print({"bundle": str(self.bundle), "sha256": write_sky_card(self.bundle, report).sha256})


def _recipe(name: SkyRecipe) -> Any:
    from training.recipes.catalogue import RECIPES

    return RECIPES[name]()


def _print(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
