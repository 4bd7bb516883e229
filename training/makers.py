"""Subcommands of ``nightjar-train sky``: re-observation, bundles trained on real surveys, scores.

A bundle is made by::

    nightjar-train train sky-bands-whole --data mixture.json --pretrained runs/unpacked
    nightjar-train sky sample runs/tables --mixture mixture.json --data DATA --recipe sky-bands
    nightjar-train sky featurize runs/tables --backbone runs/sky-bands-whole-0
    nightjar-train sky boost runs/tables --statistics --out runs/trees.npz
    nightjar-train sky export runs/sky-bands-whole-0 build/bundle --tables runs/tables --trees runs/trees.npz
"""

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import CliApp, CliImplicitFlag, CliPositionalArg, CliSubCommand

SkyRecipe = Literal["sky-heads", "sky-bands", "sky-heads-ztf"]


class MakersCommand(BaseModel):
    """Base of the subcommands. The docstring of a subcommand is its help text."""

    model_config = ConfigDict(use_attribute_docstrings=False, extra="forbid")


class SurveyCommand(MakersCommand):
    """Base of the subcommands that read the sets of real surveys."""

    data: Path = Field(
        description="folder with real/, ztf_sn/, elasticc_objects/, mallorn/ ...; absent sets are skipped"
    )
    cache: Path | None = Field(default=None, description="folder that caches the sets between calls")


class Views(SurveyCommand):
    """Re-observe the objects of one part of the split with the visits, bands and errors of every survey."""

    out: Path = Field(description="npz file to write")
    part: Literal["train", "valid", "test"] = Field(default="train", description="part of the objects and the cadences")
    number: int = Field(default=10_000, ge=1, description="approximate number of re-observed objects")
    seed: int = Field(default=0, ge=0, description="random seed")
    through: list[str] = Field(default=[], description="survey whose cadences are used; repeatable; default: all")
    classes: list[str] = Field(default=[], description="class to include; repeatable; default: all")
    copies: int = Field(default=0, ge=0, description="objects made from every published fit below real/templates")

    def cli_cmd(self) -> None:
        """Fit the objects, re-observe them and print the number by class."""
        import numpy as np

        from nightjar_alerts.models.taxonomy import ELASTICC
        from nightjar_alerts.training.data.reobserve.views import views_of
        from nightjar_alerts.training.data.surveys import load_surveys

        sky = load_surveys(self.data, self.cache)
        views = views_of(
            sky,
            self.part,
            self.number,
            seed=self.seed,
            data=self.data,
            through=self.through,
            classes=self.classes,
            copies=self.copies,
        )
        views.save(self.out)
        counts = np.bincount(views.label, minlength=len(ELASTICC.names)).tolist()
        sys.stdout.write(
            f"{len(views)} views, {len(views.mjd)} points: {dict(zip(ELASTICC.names, counts, strict=True))}\n"
        )


class Sample(MakersCommand):
    """Sample light curves of a mixture for trees and calibration, and outliers of no known class."""

    tables: CliPositionalArg[Path] = Field(description="folder to write")
    mixture: Path = Field(description="JSON file that names the data files and their shares")
    data: Path = Field(description="folder with real/ and the other sets, for objects of no known class")
    cache: Path | None = Field(default=None, description="folder that caches the sets between calls")
    train: int = Field(default=100_000, ge=1, description="number of light curves to fit on")
    validation: int = Field(default=15_000, ge=1, description="number of light curves for selection and calibration")
    seed: int = Field(default=0, ge=0, description="random seed")
    recipe: SkyRecipe = Field(default="sky-heads", description="augmentation; sky-heads-ztf: as observed by ZTF")
    whole: CliImplicitFlag[bool] = Field(default=False, description="keep all points; no degradation")
    shaken: float = Field(
        default=0.0, ge=0, le=1, description="share of the complete light curves that is perturbed within their errors"
    )

    def cli_cmd(self) -> None:
        """Sample the light curves and write them."""
        from nightjar_alerts.training.data.outliers import untruncated, write_samples
        from nightjar_alerts.training.data.surveys import load_surveys

        sky, recipe = load_surveys(self.data, self.cache), _recipe(self.recipe)
        recipe = untruncated(recipe) if self.whole else recipe
        augmentation = recipe.augmentation.model_copy(update={"shaken": self.shaken})
        recipe = recipe.model_copy(update={"augmentation": augmentation})
        write_samples(self.mixture, sky, recipe, (self.train, self.validation), self.tables, self.seed)


class Featurize(MakersCommand):
    """Compute statistics and backbone embeddings of the light curves of a folder."""

    tables: CliPositionalArg[Path] = Field(description="folder of `sample`")
    backbone: Path | None = Field(default=None, description="run folder of `train`; default: statistics only")
    what: Literal["everything", "embeddings"] = Field(default="everything", description="statistics need no backbone")

    def cli_cmd(self) -> None:
        """Compute the statistics and embeddings and write them."""
        from nightjar_alerts.models.networks.romae import RoMAE
        from nightjar_alerts.training.fit.checkpoints import load_network
        from nightjar_alerts.training.fit.heads import load_backbone, write_embeddings, write_statistics
        from nightjar_alerts.training.recipes.astro_moe import sky_heads

        if self.what == "everything":
            write_statistics(sky_heads(), self.tables)
        if self.backbone is not None:
            network, _ = load_network(self.backbone)
            backbone = network if isinstance(network, RoMAE) else load_backbone(self.backbone)[0]
            write_embeddings(backbone, self.tables)


class Boost(MakersCommand):
    """Fit boosted trees to the light curves of `sample`, for `export`, and print their validation scores."""

    tables: CliPositionalArg[Path] = Field(description="folder of `sample` and `featurize`")
    out: Path = Field(description="npz file to write")
    more: list[Path] = Field(default=[], description="further folders with embeddings of the same backbone")
    rounds: int = Field(default=140, ge=1, description="boosting rounds, with one tree per class each")
    statistics: CliImplicitFlag[bool] = Field(default=False, description="use statistics only, no embedding")
    start: Path | None = Field(default=None, description="bundle whose trees boosting continues from")
    kept: int = Field(default=170, ge=1, description="boosting rounds of that bundle to keep")
    seed: int = Field(default=0, ge=0, description="random seed")

    def cli_cmd(self) -> None:
        """Fit the trees and write them."""
        from nightjar_alerts.training.fit.trees.forest import fit_trees

        scores = fit_trees(
            [self.tables, *self.more],
            self.out,
            seed=self.seed,
            rounds=self.rounds,
            statistics=self.statistics,
            start=None if self.start is None else (self.start, self.kept),
        )
        _print(scores)


class Export(MakersCommand):
    """Calibrate a network, with or without trees, fit its prediction sets and novelty, and export it as a bundle."""

    run: CliPositionalArg[Path] = Field(description="run folder of `train`")
    out: CliPositionalArg[Path] = Field(description="bundle folder to write; must be empty")
    tables: Path = Field(description="folder of `sample` and `featurize`")
    more: list[Path] = Field(default=[], description="further folders, for fitting and validation; repeatable")
    trees: Path | None = Field(default=None, description="npz file of `boost`, for the ensemble")
    about: Path | None = Field(default=None, description="JSON file with sources and licences, for the manifest")
    name: str = Field(default="astro-moe-elasticc", description="name of the bundle")
    version: str = Field(default="3.1.0", description="semantic version of the bundle")

    def cli_cmd(self) -> None:
        """Export the bundle and print its hash."""
        from nightjar_alerts.training.export.surveys import ship

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


class SkyCard(MakersCommand):
    """Write the model card of a bundle of `export`, with the scores of `measure`."""

    bundle: CliPositionalArg[Path] = Field(description="bundle folder; its manifest is rewritten")
    report: Path | None = Field(default=None, description="JSON file of `measure`, or of `fit-ztf6 --folds`")

    def cli_cmd(self) -> None:
        """Write the card and print the bundle's new hash."""
        from nightjar_alerts.training.export.survey_card import write_survey_card

        report = None if self.report is None else json.loads(self.report.read_text(encoding="utf-8"))
        _print({"bundle": str(self.bundle), "sha256": write_survey_card(self.bundle, report).sha256})


class Measure(SurveyCommand):
    """Score bundles on every set and write the table, with reports of boosted trees, to a JSON file."""

    bundles: CliPositionalArg[list[Path]] = Field(default=[], description="bundle folders, scored in the column `seen`")
    out: Path = Field(description="JSON file to write")
    views: Path | None = Field(default=None, description="npz file of `sky views` of the part; default: sampled")
    view_number: int = Field(default=6000, ge=0, description="number of views to sample without a file; 0: none")
    unseen: list[Path] = Field(default=[], description="bundles trained on none of the surveys: column `left out`")
    reports: list[Path] = Field(default=[], description="JSON files of earlier calls, whose models are added")
    simulated: list[Path] = Field(default=[], description="JSON files of `evaluate` on the simulated test set")
    part: Literal["valid", "test"] = Field(default="test", description="part to score; valid: for model selection")
    seeds: list[Path] = Field(
        default=[], description="files of `sky measure --part valid` of bundles that differ in the seed only"
    )
    looks: str = Field(default="once", description="how often the test part has been used, in words")

    def cli_cmd(self) -> None:
        """Score the bundles and write the report."""
        from nightjar_alerts.training.data.sample import read_sample
        from nightjar_alerts.training.data.surveys import load_surveys
        from nightjar_alerts.training.score.surveys import measure_all

        sky = load_surveys(self.data, self.cache)
        views = read_sample(self.views) if self.views is not None else None
        report = measure_all(
            sky,
            {"seen": self.bundles, "left out": self.unseen},
            views=views if views is not None or not self.view_number else self._sample_views(sky),
            report_files=self.reports,
            simulated=self.simulated,
            seeds=self.seeds,
            looks=self.looks,
            part=self.part,
        )
        _write(self.out, report)

    def _sample_views(self, sky: Any) -> Any:
        from nightjar_alerts.training.data.reobserve.views import views_of

        return views_of(sky, self.part, self.view_number, data=self.data)


class Partial(SurveyCommand):
    """Score bundles by bands, by detections and days, by metadata, and on surveys outside the training."""

    bundles: CliPositionalArg[list[Path]] = Field(description="bundle folders")
    out: Path = Field(description="JSON file to write; scores of other bundles in it are kept")
    surveys: Path | None = Field(default=None, description="folder like real/ with sets that were not used in training")
    part: Literal["valid", "test"] = Field(default="test", description="part to score; valid: for model selection")

    def cli_cmd(self) -> None:
        """Score the bundles and write the report."""
        from nightjar_alerts.training.data.surveys import load_surveys
        from nightjar_alerts.training.score.incomplete import measure_partial

        sky = load_surveys(self.data, self.cache)
        reports = json.loads(self.out.read_text(encoding="utf-8")) if self.out.exists() else {}
        for path in self.bundles:
            name, report = measure_partial(path, sky, self.surveys, self.part)
            _write(self.out, reports := {**reports, name: report})


class Drift(SurveyCommand):
    """Store input statistics of each survey's training light curves in a bundle, and measure its drift checks."""

    bundle: CliPositionalArg[Path] = Field(description="bundle folder; its manifest is rewritten")
    out: Path = Field(description="JSON file to write")
    part: Literal["valid", "test"] = Field(default="test", description="part to measure on; valid: for model selection")

    def cli_cmd(self) -> None:
        """Store the statistics, measure the checks and print the tables in Markdown."""
        from nightjar_alerts.training.data.surveys import load_surveys
        from nightjar_alerts.training.score.drift import add_statistics, drift_page, measure_drift

        sky = load_surveys(self.data, self.cache)
        add_statistics(self.bundle, sky)
        report = measure_drift(self.bundle, sky, self.part)
        _write(self.out, report)
        sys.stdout.write(drift_page(report))


class FitZtf6(SurveyCommand):
    """Map a network of 20 classes to ZTF's six supernova classes and fit trees, for `export`."""

    run: CliPositionalArg[Path] = Field(description="run folder of `train`, or an unpacked bundle")
    out: CliPositionalArg[Path] = Field(description="folder to write: run/, tables/ and trees.npz")
    seed: int = Field(default=11, ge=0, description="random seed of the sampled light curves")
    folds: Path | None = Field(default=None, description="JSON file for cross-validation scores; default: none")

    def cli_cmd(self) -> None:
        """Sample light curves, fit heads and trees, and write them."""
        from nightjar_alerts.training.data.surveys import load_surveys
        from nightjar_alerts.training.fit.train import with_classes
        from nightjar_alerts.training.fit.ztf_types import NUMBER, draw_ztf_types, folds, prepare
        from nightjar_alerts.training.recipes.astro_moe import sky_heads_ztf
        from nightjar_alerts.training.score.survey_scores import rounded

        sky, recipe = load_surveys(self.data, self.cache), with_classes(sky_heads_ztf(), len(NUMBER))
        drawn = draw_ztf_types(sky, self.run, recipe, seed=self.seed)
        prepare(sky, drawn, self.run, recipe, self.out, seed=0)
        if self.folds is not None:
            _write(self.folds, rounded(folds(drawn)))


class Adapt(MakersCommand):
    """Adapt the thresholds of a bundle to your survey with some of its unlabelled light curves."""

    bundle: CliPositionalArg[Path] = Field(description="bundle folder")
    out: CliPositionalArg[Path] = Field(description="bundle folder to write; must be empty")
    like: Path = Field(description="Parquet file of `import`; its labels are ignored")
    report: Path | None = Field(default=None, description="JSON file to write")
    origins: Path | None = Field(default=None, description="folder of labelled surveys; default: simulated objects")
    views: int = Field(default=4000, ge=200, description="approximate number of re-observed labelled objects")
    version: str | None = Field(default=None, description="version of the new bundle; default: the next patch")
    seed: int = Field(default=0, ge=0, description="random seed")

    def cli_cmd(self) -> None:
        """Adapt the bundle, write it and print the scores before and after."""
        from nightjar_alerts.training.export.adapt import adapt
        from nightjar_alerts.training.score.survey_scores import rounded

        adapted = adapt(
            self.bundle,
            self.like,
            self.out,
            origins=self.origins,
            number=self.views,
            version=self.version,
            seed=self.seed,
        )
        report = rounded(adapted.report)
        if self.report is not None:
            _write(self.report, report)
        sys.stdout.write(json.dumps(report, indent=1) + "\n")


class Makers(MakersCommand):
    """Real surveys: re-observation, training and scores."""

    views: CliSubCommand[Views]
    sample: CliSubCommand[Sample]
    featurize: CliSubCommand[Featurize]
    boost: CliSubCommand[Boost]
    export: CliSubCommand[Export]
    card: CliSubCommand[SkyCard]
    measure: CliSubCommand[Measure]
    partial: CliSubCommand[Partial]
    drift: CliSubCommand[Drift]
    fit_ztf6: CliSubCommand[FitZtf6]

    def cli_cmd(self) -> None:
        """Run the chosen subcommand."""
        CliApp.run_subcommand(self)


def _write(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")


def _recipe(name: SkyRecipe) -> Any:
    from nightjar_alerts.training.recipes.catalogue import RECIPES

    return RECIPES[name]()


def _print(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
