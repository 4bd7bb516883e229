"""Export of a run on real surveys."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from nightjar_alerts.models.bundle import (
    Bundle,
    Manifest,
    load_bundle,
    write_manifest,
)
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.parts.trees import BoostedTrees
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.taxonomy import ELASTICC, taxonomy_of
from nightjar_alerts.training.confidence.fit import MEASURED_ON, FittedBundle, fit_all
from nightjar_alerts.training.data.drawn import classes_of, join_drawn, read_drawn
from nightjar_alerts.training.data.survey_readers import BAND_SUBSTITUTES
from nightjar_alerts.training.export.bundle import Release, export_bundle
from nightjar_alerts.training.export.parity import parity_tokens
from nightjar_alerts.training.export.served import Ensembled
from nightjar_alerts.training.export.survey_card import write_survey_card
from nightjar_alerts.training.fit.checkpoints import RunError, load_network
from nightjar_alerts.training.fit.trees.forest import read_forest

SMALLEST_SHARE: Final = 1e-4


FAINTEST_NJY, BRIGHTEST_NJY = 100.0, 5e7  # 26.4 and 12.2 mag


def ship(
    run: Path,
    folder: Path,
    out: Path,
    *,
    name: str,
    version: str,
    about: dict[str, Any],
    trees: Path | None = None,
    more: Sequence[Path] = (),
) -> Bundle:
    """Write a bundle of a run of ``train``: of an Astro-MoE, or of ``romae-sky``, which has no metadata and no trees.

    Parameters
    ----------
    folder : light curves and features that calibration, sets and novelty are fitted to.
    about : further provenance for the manifest: sources and their shares.
    trees : file of ``sky boost``, trees for the ensemble.
    more : further such folders.

    Raises
    ------
    RunError
        When ``out`` is not empty.
    ExportError
        When the exported graph is not the network.
    """
    if out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty; remove it or name another folder")
    network, config = load_network(run)
    assert isinstance(network, AstroMoE | RoMAE)
    folders = (folder, *more)
    light_curves = join_drawn([read_drawn(each / "validation.npz") for each in folders])
    forest = None if trees is None else read_forest(trees)
    fitted = fit_all(network, folders, config.recipe, forest)
    ensemble = Ensembled(BoostedTrees(forest), fitted.ensemble) if forest and fitted.ensemble else None
    release = Release(
        name=name,
        version=version,
        calibration=fitted.calibration,
        data={"source": "nightjar_alerts.training.sky", "classes": counts(folders), **about},
        metrics=fitted.metrics,
        taxonomy=taxonomy_of(classes_of(folder)),
        novelty=fitted.novelty,
        prediction_sets=fitted.sets,
        ensemble=ensemble,
        input_statistics=fitted.inputs,
    )
    export_bundle(network, config, parity_tokens(network, light_curves, config, ensemble), out, release)
    return _complete(out, fitted)


def counts(folders: Sequence[Path]) -> dict[str, int]:
    """Count the training light curves of each class in some folders of the same classes."""
    classes = classes_of(folders[0])
    label_N = np.concatenate([read_drawn(folder / "train.npz").label for folder in folders])
    return dict(zip(classes, np.bincount(label_N, minlength=len(classes)).tolist(), strict=True))


def _complete(out: Path, fitted: FittedBundle) -> Bundle:
    """Add to the manifest what only bundles of the second format have, then write the card."""
    contents = load_bundle(out).manifest.model_dump(mode="json")
    contents["recipe"]["data"].pop("fractions", None)  # parts came with the data
    everything = tuple(fitted.shares) == ELASTICC.names
    contents |= {
        "format_version": 2,
        "band_groups": BAND_SUBSTITUTES if everything else {},
        "prior": {
            "name": "training",
            "shares": {name: max(share, SMALLEST_SHARE) for name, share in fitted.shares.items()},
            "source": "class shares of the light curves that heads, calibration and sets were fitted to",
        },
        "priors": fitted.priors,
        "domain": _domain(contents["bands"]) if everything else None,
        "context": {"learned": ["redshift"] if contents["metadata_columns"] else []},
    }
    write_manifest(out, Manifest.model_validate_json(json.dumps(contents)))
    return write_survey_card(out)


def _domain(bands: Sequence[str]) -> dict[str, Any]:
    """Return the domain of bundles of 20 classes; those of six types have none, so they are never substitutes."""
    return {
        "bands": bands,
        "fewest_bands": 1,
        "fewest_points": 1,
        "faintest_njy": FAINTEST_NJY,
        "brightest_njy": BRIGHTEST_NJY,
        "surveys": [],
        "measured_on": MEASURED_ON,
    }
