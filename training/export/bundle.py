"""Export a trained network as a bundle: trace, check against torch, write golden vectors, manifest and card.

Notable:

- the graph is that of ``training.export.served.ServedNetwork``; batch and length are dynamic;
- only chosen feed-forward experts are computed: ``parts.packing`` exports to one Split and a Gemm pair per expert, in
  standard operators (traced by ``training.export.graph``);
- everything that is fitted after training (``training.confidence``) is fitted first, and the manifest is complete
  before it is written (``training.export.describe``).

Run::

    nightjar-train export runs/default-0 build/astro-moe --data build/sim.parquet
    nightjar-train export runs/surveys-0 build/bundle --drawn runs/drawn --trees runs/trees.npz
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from nightjar_alerts.alerts.surveys import SURVEY_BY_NAME
from nightjar_alerts.models.bundle import MODEL, SLUG, VERSION, Bundle, write_golden, write_manifest
from nightjar_alerts.models.lightcurve import Tokens
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.parts.trees import BoostedTrees
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.posterior import Domain
from nightjar_alerts.models.runtime import open_session, run
from nightjar_alerts.models.taxonomy import taxonomy_of
from nightjar_alerts.training.confidence.fit import fit_to_dataset, fit_to_drawn
from nightjar_alerts.training.data.dataset import split_indices
from nightjar_alerts.training.data.drawn import classes_of, join_drawn, read_drawn
from nightjar_alerts.training.data.mixture import is_mixture, read_training_data
from nightjar_alerts.training.data.sample import Sample
from nightjar_alerts.training.export.card import write_card
from nightjar_alerts.training.export.describe import (
    Release,
    describe,
    drawn_provenance,
    origin_of,
    provenance,
    release_of,
)
from nightjar_alerts.training.export.domain import COMMON_BAND, domain_of_dataset, in_common_bands
from nightjar_alerts.training.export.graph import write_graph
from nightjar_alerts.training.export.parity import ExportError, check_parity, dataset_tokens, drawn_tokens
from nightjar_alerts.training.export.served import AXES, Ensembled, ServedNetwork, parity_batches
from nightjar_alerts.training.fit.checkpoints import RunConfig, RunError, fingerprint, load_network, read_log
from nightjar_alerts.training.fit.trees.forest import read_forest

OBSERVED: Final = SURVEY_BY_NAME.keys() - {"elasticc"}
"""Surveys of a domain; ELAsTiCC is simulated, to train models for another survey."""


def _silent(_: str) -> None:
    """Ignore a progress message."""


def export_run(
    run: Path,
    out: Path,
    *,
    name: str,
    version: str,
    data: Path | None = None,
    drawn: Sequence[Path] = (),
    trees: Path | None = None,
    about: dict[str, Any] | None = None,
    say: Callable[[str], None] = _silent,
) -> Bundle:
    """Fit calibration, prediction sets and novelty to a classifier's run, and export it as a bundle with a card.

    Parameters
    ----------
    data : the data file of the run, a mixture or not; its validation split is used for the fits.
    drawn : folders of drawn light curves and their features, which are used for the fits instead of ``data``.
    trees : file of boosted trees for the ensemble; needs ``drawn``.
    about : further provenance for the manifest: sources and their shares.
    say : callback for progress messages.

    Raises
    ------
    RunError
        If the run was trained on other data, is no classifier or has no validated weights, or ``out`` is not empty.
    ExportError
        If the exported graph differs from the network.
    """
    if (data is None) == (not drawn):
        raise RunError("name either the data file of the run or folders of drawn light curves")
    if out.is_file() or (out.exists() and any(out.iterdir())):
        raise RunError(f"{out} is not an empty folder; remove it or name another folder")
    if not re.search(SLUG, name):
        raise RunError(f"the name {name!r} of a bundle has small letters, digits and hyphens only, such as my-model")
    if not re.search(VERSION, version):
        raise RunError(f"the version {version!r} of a bundle has three numbers, such as 1.0.0")
    network, config = load_network(run)
    if config.recipe.task != "classify":
        raise RunError(f"only classifiers are exported: the task of {run} is {config.recipe.task}")
    named = {"name": name, "version": version}
    if data is not None:
        config, release, tokens = _of_dataset(run, network, config, data, about or {}, named, trees, say)
    else:
        release, tokens = _of_drawn(network, config, drawn, trees, about or {}, named, say)
    export_bundle(network, config, tokens, out, release, say)
    return write_card(out)


def _of_dataset(
    run: Path,
    network: nn.Module,
    config: RunConfig,
    data: Path,
    about: dict[str, Any],
    named: dict[str, str],
    trees: Path | None,
    say: Callable[[str], None],
) -> tuple[RunConfig, Release, list[Tokens]]:
    """Fit to the validation split of the data file of a run; the configuration has the bands of the bundle."""
    if trees is not None:
        raise RunError("trees need folders of drawn light curves (`makers draw`), on which their weight is fitted")
    metrics = {"validation": _validation(run)}
    dataset = read_training_data(data)
    if fingerprint(data, len(dataset)).sha256 != config.data.sha256:
        raise RunError(f"{run} was trained on other data than {data}")
    origin = provenance(dataset, config) | origin_of(data) | about
    domain = None
    if not is_mixture(data):  # the domain of many surveys is stated by `describe`
        config, domain = _own_domain(config, dataset, origin, say)
    say(f"running the network on {len(dataset)} light curves")
    confidence = fit_to_dataset(network, dataset, config.recipe)
    objects = confidence.metrics["calibration"]["objects"]
    say(f"calibration and prediction sets are fitted to {objects} validation objects")
    release = release_of(confidence, None, taxonomy_of(dataset.classes), **named, data=origin, metrics=metrics)
    return config, replace(release, domain=domain), dataset_tokens(dataset, config)


def _own_domain(
    config: RunConfig, dataset: Sample, origin: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[RunConfig, Domain]:
    """Return the configuration with the bands that the training objects have, and their domain."""
    rows = split_indices(dataset, config.recipe.data.fractions, config.recipe.data.turn)["train"]
    recipe = in_common_bands(config.recipe, dataset, rows)
    if unseen := [name for name in config.recipe.data.bands if name not in recipe.data.bands]:
        say(
            f"bands {', '.join(unseen)} are left out: fewer than {COMMON_BAND:.0%} of the training objects have points "
            "in them"
        )
    survey = str(origin["source"]).lower() if "import" in origin else ""
    domain = domain_of_dataset(dataset, rows, recipe, survey if survey in OBSERVED else "")
    return config.model_copy(update={"recipe": recipe}), domain


def _of_drawn(
    network: nn.Module,
    config: RunConfig,
    folders: Sequence[Path],
    trees: Path | None,
    about: dict[str, Any],
    named: dict[str, str],
    say: Callable[[str], None],
) -> tuple[Release, list[Tokens]]:
    """Fit to folders of drawn light curves."""
    assert isinstance(network, AstroMoE | RoMAE)
    say(f"fitting to the light curves of {', '.join(map(str, folders))}")
    forest = None if trees is None else read_forest(trees)
    confidence = fit_to_drawn(network, folders, config.recipe, forest)
    ensemble = Ensembled(BoostedTrees(forest), confidence.ensemble) if forest and confidence.ensemble else None
    taxonomy, origin = taxonomy_of(classes_of(folders[0])), drawn_provenance(folders) | about
    release = release_of(confidence, ensemble, taxonomy, **named, data=origin, metrics={})
    validation = join_drawn([read_drawn(folder / "validation.npz") for folder in folders])
    tokens, left_out = drawn_tokens(network, validation, config, ensemble)
    say(f"parity test: {len(tokens)} light curves; {left_out} are left out, in which rounding decides")
    return release, tokens


def export_bundle(
    network: nn.Module,
    config: RunConfig,
    tokens: Sequence[Tokens],
    out: Path,
    release: Release,
    say: Callable[[str], None] = _silent,
) -> tuple[Bundle, float]:
    """Write a bundle folder and check its graph against the network.

    Parameters
    ----------
    tokens : real light curves for the parity batches, enough to reach every expert; some of them, of all lengths,
        become the golden vectors.
    say : callback for progress messages.

    Returns
    -------
    The bundle and the largest absolute difference between torch and onnxruntime.

    Raises
    ------
    ExportError
        If they differ by more than 1e-4, or an expert was never reached.
    """
    out.mkdir(parents=True, exist_ok=True)
    if config.recipe.task != "classify":
        raise ExportError(f"only classifiers are exported: the task of {config.recipe.name} is {config.recipe.task}")
    served = ServedNetwork(network.eval(), release.calibration, release.novelty, release.ensemble).eval()
    batches = parity_batches(tokens)
    traced = served.arguments(batches[-1])  # several light curves and points: a size of 1 would become a constant
    with torch.no_grad():
        example = served.outputs(*traced.values())
    say("tracing the network into a graph")
    conditions = served.missing_input_outputs(), served.row_subset_modules(), served.native_kernels()
    write_graph(served, traced, AXES, list(example), out / MODEL, *conditions)
    say(f"comparing torch and onnxruntime on {len(batches)} batches")
    worst = check_parity(served, out / MODEL, batches)
    golden = {name: batches[-1][name] for name in served.arguments(batches[-1])}
    write_golden(out, golden, run(open_session(out / MODEL), golden))
    return write_manifest(out, describe(served, example, config, release)), worst


def _validation(run: Path) -> dict[str, Any]:
    """Return the log line of the exported weights: the best validation."""
    lines = [line for line in read_log(run) if "validation_score" in line]
    if not lines:
        raise RunError(f"{run} has no validation in its log; run `fit` again to resume it")
    best: dict[str, Any] = max(lines, key=lambda line: line["validation_score"])
    return best
