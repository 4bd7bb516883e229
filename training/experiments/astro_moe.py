"""Ablations of Astro-MoE: time encoding, experts, and pretraining.

Every arm (``--arm``) differs from the reference, ``tm`` (time modulation, experts, from scratch), in one respect, and
is trained on the same light curves and views for the same number of steps:

    tm          Astro-MoE (TM)
    pe          Astro-MoE (PE): fixed sinusoids added (eq 6), without the band
    pe-band     ``pe`` with a learned vector per band, to separate the effects of time encoding and band
    dense       every mixture replaced by one dense layer
    pe-dense    both: the paper's "Multiband-Astromer" baseline
    pretrained  ``tm`` after additional steps of masked reconstruction without labels
    trees       baseline: boosted trees (simulated) or a random forest (MALLORN) on summary features

Data:

- ``simulated``: a file of ``nightjar-train simulate``, 20 classes; the views, split and limits of the shipped model's
  recipe. Test light curves are complete, with and without metadata; pretraining uses the training light curves;
- ``mallorn``: the folder of the challenge, five classes, redshift and extinction as metadata, complete light curves;
  one of five stratified folds is held out, fold ``seed % 5``. Pretraining uses the unlabelled light curves. Objects
  that share a parent may be in different parts of the split (see ``training.importers.surveys``) in all arms.

Notable: the paper's network has a width of 192 and is trained for 400,000 steps of 256 light curves of ELAsTiCC
(``--width 192 --batch 256 --steps 400000``); with the defaults all arms take an hour on one CPU core. The best weights
are selected on an eighth of the training folds (MALLORN) or the recipe's validation split. The pretraining of a data
set is shared by all seeds.

Run::

    nightjar-train experiment astro-moe --dataset simulated --data build/sim.parquet --arm tm --seed 0
    nightjar-train experiment astro-moe --dataset mallorn --data DIR --arm pretrained --seed 3
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import StratifiedKFold, train_test_split
from torch import Tensor

from nightjar_alerts.models.lightcurve import Int64, Limits
from nightjar_alerts.models.networks.astro_moe import AstroMoE, AstroMoEConfig, AstroMoEPretraining
from nightjar_alerts.models.networks.zoo import transfer
from nightjar_alerts.models.taxonomy import ELASTICC
from nightjar_alerts.training.data.augment import LSST, AugmentationConfig, View
from nightjar_alerts.training.data.batches import Example, draw_examples, view_examples
from nightjar_alerts.training.data.dataset import read_dataset, split_indices
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.experiments.runner import ExperimentOptions, RunIdentity, RunRecord, minutes, write_record
from nightjar_alerts.training.fit.checkpoints import load_best
from nightjar_alerts.training.fit.loop import fit
from nightjar_alerts.training.fit.tasks import ClassificationTask, MaskedReconstruction, predict
from nightjar_alerts.training.fit.trees.classical import fit_trees, train_trees
from nightjar_alerts.training.fit.trees.features import matrix
from nightjar_alerts.training.importers.surveys import (
    MALLORN_CLASSES,
    read_mallorn,
    read_unlabelled_mallorn,
    to_dataset,
)
from nightjar_alerts.training.metrics import confusion, macro_f1
from nightjar_alerts.training.recipes.astro_moe import default, pretraining
from nightjar_alerts.training.recipes.schema import BatchConfig, DataConfig, Recipe, ScheduleConfig, ValidationConfig
from nightjar_alerts.training.score.predictions import labels

Arm = Literal["tm", "pe", "pe-band", "dense", "pe-dense", "pretrained", "trees"]
ARM_FOLDS = 5
ARM_STEPS = {"simulated": 1_500, "mallorn": 1_000}
ARM_PUBLISHED_STEPS = 400_000

CHANGES: dict[str, dict[str, object]] = {
    "tm": {},
    "pe": {"time_encoding": "baseline"},
    "pe-band": {"time_encoding": "baseline", "band_embedding": True},
    "dense": {"n_experts": 0, "n_input_experts": 0},
    "pe-dense": {"time_encoding": "baseline", "n_experts": 0, "n_input_experts": 0},
    "pretrained": {},
}
WHOLE_CURVES = AugmentationConfig(mta_days=(), no_metadata=0.3)
SIMULATED_VIEWS = {"macro-F1": View(), "macro-F1, no metadata": LSST}
# Augmentation without random changes, since views would leave out objects without detections.
MALLORN_VIEWS = {
    "macro-F1": AugmentationConfig(mta_days=()),
    "macro-F1, no metadata": AugmentationConfig(mta_days=(), no_metadata=1.0),
}
MALLORN_LIMITS = Limits(max_points_per_band=65, pre_trigger_days=None)
FOREST_TREES = 400

Split = dict[str, Int64]


class AstroMoEArm(ExperimentOptions):
    """Train one arm of the ablations of Astro-MoE and score it by macro-F1 on held-out objects."""

    experiment: ClassVar[str] = "astro-moe"

    seed: int = Field(default=0, ge=0, description="seed of weights and draws; for MALLORN also of the held-out fold")
    dataset: Literal["simulated", "mallorn"] = Field(description="data set")
    data: Path = Field(description="Parquet file of `simulate`, or the folder of MALLORN")
    arm: Arm = Field(description="configuration to train")
    width: int = Field(default=64, ge=8, multiple_of=8, description="width of the light-curve branch; published: 192")
    batch: int = Field(default=16, ge=2, description="light curves per step")
    lr: float = Field(default=1e-3, gt=0, description="peak learning rate")
    pretrain_steps: int = Field(default=1_000, ge=1, description="steps of masked reconstruction, for `pretrained`")
    objects: int = Field(default=2_000, ge=1, description="number of test objects of the simulated set")
    examples: int = Field(default=10_000, ge=100, description="number of training examples of the boosted trees")

    def cli_cmd(self) -> None:
        """Train, score and record."""
        run_arm(self)


@dataclass(frozen=True, slots=True, eq=False)
class ArmProblem:
    """A data set with its split, and the test examples by name of the view."""

    dataset: Sample
    split: Split
    tests: dict[str, list[Example]]


class ArmOutcome(NamedTuple):
    """Scores of an arm, its number of training steps and minutes."""

    metrics: dict[str, float]
    steps: int
    minutes: float


def run_arm(options: AstroMoEArm) -> RunRecord | None:
    """Train, score and write the record; None if ``max_minutes`` ended the training early."""
    recipe = recipe_of(options)
    problem = simulated(options, recipe) if options.dataset == "simulated" else mallorn(options, recipe)
    outcome = trees(options, recipe, problem) if options.arm == "trees" else network(options, recipe, problem)
    if outcome is None:
        sys.stdout.write("stopped: run the same command again to resume\n")
        return None
    published = 0 if options.arm == "trees" else ARM_PUBLISHED_STEPS
    variant = f"{options.dataset}-{options.arm}"
    record = options.record(variant, outcome.metrics, outcome.steps, outcome.minutes, published_steps=published)
    sys.stdout.write(f"{write_record(record, options.records)}: {record.metrics}\n")
    return record


def recipe_of(options: AstroMoEArm) -> Recipe:
    """Return the shipped model's recipe at the width, data and changes of the arm."""
    base, steps = default(), options.steps or ARM_STEPS[options.dataset]
    update = {
        "name": f"{options.dataset} {options.arm}",
        "network": network_config(options),
        "schedule": ScheduleConfig(steps=steps, warmup_steps=max(1, steps // 20)),
        "batch": BatchConfig(size=options.batch, pool=16),
        "optimizer": base.optimizer.model_copy(update={"lr": options.lr, "ema_decay": 0.99}),
        "validation": ValidationConfig(every=max(1, steps // 4), objects=1_000, log_every=max(1, steps // 20)),
        "seed": options.seed,
        "threads": options.threads,
        "device": options.device,
    }
    if options.dataset == "mallorn":
        update |= {"data": DataConfig(limits=MALLORN_LIMITS), "augmentation": WHOLE_CURVES}
    return base.model_copy(update=update)


def network_config(options: AstroMoEArm) -> AstroMoEConfig:
    """Return the shipped model's network at the width, classes and changes of the arm."""
    base, width = default().network, options.width
    classes = len(ELASTICC.names) if options.dataset == "simulated" else len(MALLORN_CLASSES)
    sizes = {"d_model": width, "d_ff": 2 * width, "d_tab": width // 2, "tab_ff": width}
    changes = {**sizes, "n_classes": classes, **CHANGES.get(options.arm, {})}
    return AstroMoEConfig.model_validate({**base.model_dump(), **changes})


def simulated(options: AstroMoEArm, recipe: Recipe) -> ArmProblem:
    """Return the simulated set; test objects are the same for every seed, with and without metadata."""
    dataset = read_dataset(options.data)
    split = split_indices(dataset, recipe.data.fractions, recipe.data.turn)
    test = np.sort(np.random.default_rng(0).permutation(split["test"])[: options.objects])
    tests = {name: _sorted(view_examples(dataset, test, recipe.data, v)) for name, v in SIMULATED_VIEWS.items()}
    return ArmProblem(dataset, split, tests)


def mallorn(options: AstroMoEArm, recipe: Recipe) -> ArmProblem:
    """Return the labelled objects of MALLORN; fold ``seed % 5`` is held out."""
    labelled = read_mallorn(options.data)
    dataset = to_dataset(labelled)
    folds = StratifiedKFold(ARM_FOLDS, shuffle=True, random_state=0).split(dataset.label, dataset.label)
    rest, test = list(folds)[options.seed % ARM_FOLDS]
    train, validation = train_test_split(rest, test_size=0.125, stratify=dataset.label[rest], random_state=0)
    rng = np.random.default_rng(0)
    tests = {name: _sorted(draw_examples(dataset, test, recipe.data, v, rng)) for name, v in MALLORN_VIEWS.items()}
    return ArmProblem(dataset, {"train": np.sort(train), "validation": np.sort(validation), "test": test}, tests)


def network(options: AstroMoEArm, recipe: Recipe, problem: ArmProblem) -> ArmOutcome | None:
    """Train a network arm and score its best weights."""
    weights = _pretrained(options, recipe, problem) if options.arm == "pretrained" else {}
    if weights is None:
        return None
    torch.manual_seed(recipe.seed)
    model = AstroMoE(network_config(options))
    model.fit_inputs(problem.dataset.metadata[problem.split["train"]])
    if weights:
        transfer(weights, model)
    steps = recipe.schedule.steps
    folder = _folder(options, f"{options.arm}-{options.seed}-{steps}")
    identity = RunIdentity(variant=options.arm, settings=options.settings(), fit=recipe)
    task = ClassificationTask(recipe, problem.dataset, problem.split)
    result = fit(model, task, recipe, folder, identity, max_minutes=options.max_minutes)
    if not result.finished:
        return None
    model.load_state_dict(load_best(folder))
    metrics = {name: _network_f1(model, examples, options.batch) for name, examples in problem.tests.items()}
    return ArmOutcome(metrics, steps, minutes(folder, steps))


def _pretrained(options: AstroMoEArm, recipe: Recipe, problem: ArmProblem) -> dict[str, Tensor] | None:
    """Return the weights after masked reconstruction, trained once for all seeds; None if it is not finished."""
    steps = options.pretrain_steps
    changes = {
        "seed": 0,
        "schedule": recipe.schedule.model_copy(update={"steps": steps, "warmup_steps": max(1, steps // 20)}),
        "validation": ValidationConfig(every=max(1, steps // 4), objects=500, log_every=max(1, steps // 20)),
    }
    recipe = pretraining(recipe).model_copy(update=changes)
    dataset, split = problem.dataset, problem.split
    if options.dataset == "mallorn":
        dataset = to_dataset(read_unlabelled_mallorn(options.data))
        split = {**split_indices(dataset, (0.95, 0.05, 0.0))}
    torch.manual_seed(0)
    model = AstroMoEPretraining(network_config(options))
    folder = _folder(options, f"pretraining-{steps}")
    identity = RunIdentity(variant="pretraining", settings={"data": str(options.data)}, fit=recipe)
    task = MaskedReconstruction(recipe, dataset, split)
    result = fit(model, task, recipe, folder, identity, max_minutes=options.max_minutes)
    return load_best(folder) if result.finished else None


def trees(options: AstroMoEArm, recipe: Recipe, problem: ArmProblem) -> ArmOutcome:
    """Score boosted trees on random views (simulated), or a random forest on complete light curves (MALLORN)."""
    started = time.monotonic()
    if options.dataset == "simulated":
        fitted = train_trees(problem.dataset, recipe, options.examples)
        metrics = {
            name: _f1(examples, fitted.predict(matrix(examples)).argmax(1), len(ELASTICC.names))
            for name, examples in problem.tests.items()
        }
    else:
        metrics = _forest(options, recipe, problem)
    return ArmOutcome(metrics, 0, (time.monotonic() - started) / 60)


def _forest(options: AstroMoEArm, recipe: Recipe, problem: ArmProblem) -> dict[str, float]:
    """Fit to every training and validation object twice, with and without metadata, and score the forest."""
    rows = np.concatenate([problem.split["train"], problem.split["validation"]])
    rng = np.random.default_rng(options.seed)
    train = [e for view in MALLORN_VIEWS.values() for e in draw_examples(problem.dataset, rows, recipe.data, view, rng)]
    forest = RandomForestClassifier(FOREST_TREES, random_state=options.seed)
    fitted = fit_trees(forest, matrix(train), labels(train), len(MALLORN_CLASSES))
    return {
        name: _f1(examples, fitted.predict(matrix(examples)).argmax(1), len(MALLORN_CLASSES))
        for name, examples in problem.tests.items()
    }


def _network_f1(model: AstroMoE, examples: list[Example], batch: int) -> float:
    logits_BC = predict(model, examples, batch)
    return _f1(examples, logits_BC.argmax(1), logits_BC.shape[1])


def _f1(examples: list[Example], predicted_B: Int64, n_classes: int) -> float:
    label_B = np.array([example.label for example in examples], dtype=np.int64)
    return macro_f1(confusion(label_B, predicted_B, n_classes))


def _sorted(examples: list[Example]) -> list[Example]:
    return sorted(examples, key=lambda example: len(example.tokens))


def _folder(options: AstroMoEArm, name: str) -> Path:
    return options.runs / options.experiment / f"{options.dataset}-{options.width}-{name}"
