"""The way from data to a bundle, run on small simulated and made-up objects; its numbers are recorded.

Every stage is a function of an empty folder that returns a JSON value. ``tests/training/referee`` has the recorded
values, which a change of structure must not change. Record again after an intended change::

    PYTHONPATH=tests python -m support.referee --record            # or --only STAGE
"""

import argparse
import hashlib
import json
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from pydantic import BaseModel

from nightjar_alerts.models.bundle import CARD, DEFAULT_BUNDLE, Bundle, read_golden
from nightjar_alerts.models.common import processor_name
from nightjar_alerts.models.networks.astro_moe import AstroMoE
from nightjar_alerts.models.networks.romae import RoMAE
from nightjar_alerts.models.networks.zoo import build
from nightjar_alerts.training.confidence import fit as fit_module
from nightjar_alerts.training.confidence.calibration import ServedSample, calibrated, fit_calibration
from nightjar_alerts.training.confidence.ensemble import equal_weights, fit_ensemble, pooled
from nightjar_alerts.training.confidence.fit import fit_to_drawn
from nightjar_alerts.training.confidence.novelty import (
    auroc_by_kind,
    fit_novelty,
    fit_outliers,
    fit_reference,
    quantiles_of,
)
from nightjar_alerts.training.confidence.sets import (
    BY_STRATUM,
    Strata,
    coverage_and_size,
    fit_sets,
    fit_sets_by_detections,
    reweighted,
)
from nightjar_alerts.training.data.drawn import read_drawn
from nightjar_alerts.training.data.folders import untruncated, write_samples
from nightjar_alerts.training.data.mixture import read_mixture
from nightjar_alerts.training.data.reobserve.views import views_of
from nightjar_alerts.training.data.sample import COLUMNS, LABELS, PARTS, Sample, SurveyObject, collect, write_sample
from nightjar_alerts.training.data.surveys import load_surveys
from nightjar_alerts.training.export import adapt as adapt_module
from nightjar_alerts.training.export import parity
from nightjar_alerts.training.export.adapt import adapt
from nightjar_alerts.training.export.bundle import export_run
from nightjar_alerts.training.export.card import read_report, write_card
from nightjar_alerts.training.fit.checkpoints import DataSource, load_network, read_log
from nightjar_alerts.training.fit.heads import (
    head_outputs,
    load_backbone,
    read_part,
    save_run,
    write_embeddings,
    write_statistics,
)
from nightjar_alerts.training.fit.train import train
from nightjar_alerts.training.fit.trees.forest import fit_bundled_trees, fit_forest, read_forest
from nightjar_alerts.training.fit.ztf_types import NUMBER, draw_ztf_types, prepare
from nightjar_alerts.training.recipes.astro_moe import debug, surveys_bands, with_network, ztf_types
from nightjar_alerts.training.recipes.catalogue import debug_romae
from nightjar_alerts.training.recipes.schema import Recipe
from nightjar_alerts.training.score.baseline import baseline
from nightjar_alerts.training.score.drift import drift_page, measure_drift, survey_statistics
from nightjar_alerts.training.score.evaluate import evaluate
from nightjar_alerts.training.score.folds import crossvalidate
from nightjar_alerts.training.score.incomplete import measure_incomplete, pattern_score
from nightjar_alerts.training.score.page import page
from nightjar_alerts.training.score.surveys import evaluate_on_surveys
from nightjar_alerts.training.score.ztf_types import folds
from nightjar_alerts.training.simulate.generate import simulate
from support.surveys import bump, pulsator, write_real
from support.toy_dataset import write_toy_dataset

RECORDED: Final = Path(__file__).parents[1] / "training" / "referee"
CLASSES: Final = ["Ia", "RR Lyrae", "SLSN", "AGN"]
STEPS: Final = 12
VOLATILE: Final = frozenset(
    {"created", "files", "sha256", "pretrained_sha256", "seconds_per_step", "curves_per_second", "time"}
)
"""Keys whose values depend on the time, the speed or the version of a library."""
Json = Any


def environment() -> dict[str, str]:
    """Return what the last digits depend on."""
    names = ("numpy", "scipy", "torch", "lightgbm", "scikit-learn", "onnxruntime", "pyarrow", "light-curve")
    return {"processor": processor_name(), "python": platform.python_version()} | {
        name: version(name) for name in names
    }


def plain(value: Any) -> Json:
    """Return a JSON value: arrays as shape, hash and mean; models and named tuples by field."""
    match value:
        case torch.Tensor():
            return plain(value.numpy())
        case np.ndarray():
            return digest(value)
        case np.generic():
            return plain(value.item())
        case BaseModel():
            return plain(value.model_dump(mode="json"))
        case Mapping():
            return {str(key): plain(part) for key, part in value.items() if key not in VOLATILE}
        case Path():
            return value.name
        case float() if value != value:
            return "nan"
    if isinstance(value, Sample):
        return {name: plain(getattr(value, name)) for name in ("offsets", *COLUMNS)}
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: plain(getattr(value, part.name)) for part in fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def digest(values: np.ndarray[Any, Any]) -> Json:
    """Describe an array by its shape, the hash of its bytes, and the mean of its finite numbers."""
    whole = np.ascontiguousarray(values)
    described: dict[str, Any] = {
        "shape": list(whole.shape),
        "sha256 of bytes": hashlib.sha256(whole.tobytes()).hexdigest()[:16],
    }
    if whole.dtype.kind in "biuf":
        known = whole[np.isfinite(whole)]
        described["mean"] = float(known.astype(np.float64).mean()) if len(known) else None
    return described


def arrays(path: Path) -> Json:
    with np.load(path, allow_pickle=False) as stored:
        return {name: digest(stored[name]) for name in sorted(stored)}


def contents(bundle: Bundle) -> Json:
    """Return the manifest, the golden outputs and the card."""
    return {
        "manifest": plain(bundle.manifest),
        "golden": [plain(dict(sorted(part.items()))) for part in read_golden(bundle.path)],
        "card": [
            line
            for line in (bundle.path / CARD).read_text(encoding="utf-8").splitlines()
            if not line.startswith(("- created", "- file"))
        ],
    }


def small(name: str = "referee", **network: object) -> Recipe:
    """Return a recipe whose network exports in seconds: experts take most of the time of an export."""
    sizes = {"n_blocks": 1, "n_experts": 0, "n_input_experts": 0, "d_model": 16, "d_ff": 32, "d_tab": 16, "tab_ff": 32}
    recipe = with_network(debug(), name, **sizes, **network)
    schedule = recipe.schedule.model_copy(update={"steps": STEPS, "warmup_steps": 2})
    validation = recipe.validation.model_copy(update={"every": STEPS // 2, "objects": 40})
    batch = recipe.batch.model_copy(update={"size": 16, "pool": 4})
    return recipe.model_copy(update={"schedule": schedule, "validation": validation, "batch": batch})


def with_statistics(n_classes: int = 20) -> Recipe:
    heads = {"d_statistics": 16, "head_width": 16, "head_copies": 2, "n_classes": n_classes}
    recipe = small("referee-statistics", **heads)
    return recipe.model_copy(update={"augmentation": surveys_bands().augmentation})


def made_objects() -> Sample:
    """Objects of five made-up sources: transients and variables, two in three for training, and some of no class."""
    rows: list[SurveyObject] = []
    for number in range(24):
        rows.append(bump(f"A{number}", source="snls", seed=number, z=0.3, bands="griz"))
        rows.append(
            bump(
                f"B{number}",
                source="ztf_sn",
                seed=100 + number,
                label=LABELS["II"],
                bands="gr",
                width=30.0,
                raw_label="SN II",
            )
        )
        rows.append(pulsator(f"P{number}", source="s82_rrlyrae", seed=number, label=LABELS["RR Lyrae"]))
        rows.append(pulsator(f"C{number}", source="css", seed=40 + number, label=LABELS["EB"], period=2.3))
    for number in range(10):
        odd = pulsator(f"O{number}", source="gaia_alerts", seed=80 + number, label=-1, raw_label="LPV")
        odd.quality = "other"
        rows.append(odd)
    parts = [0 if number % 3 else 1 + number % 2 for number in range(len(rows))]
    return collect(rows, [row.object_id for row in rows], parts)


def mixture(folder: Path) -> Path:
    simulate(folder / "sim.parquet", 20, seed=3, classes=CLASSES, workers=1, progress=False)
    write_sample(made_objects(), folder / "made.npz")
    ingredients = [{"file": "sim.parquet", "share": 0.6}, {"file": "made.npz", "share": 0.4, "one_class": 0.35}]
    (folder / "mix.json").write_text(json.dumps({"ingredients": ingredients, "classes": {"Ia": 2.0}}))
    return folder / "mix.json"


def draws(folder: Path) -> Json:
    """Mixtures, draws from them, and re-observed objects."""
    path = mixture(folder)
    dataset, recipe = read_mixture(path), with_statistics()
    write_samples(path, made_objects(), recipe, (150, 120), folder / "few", 5)
    write_samples(path, made_objects(), untruncated(recipe), (60, 50), folder / "whole", 6)
    found = {f"{part.parent.name}/{part.stem}": arrays(part) for part in sorted(folder.glob("*/*.npz"))}
    views = views_of(transients(), "train", 60, seed=2)
    return plain({"mixture": as_mixture(dataset), "folders": found, "views": views})


def as_mixture(sample: Sample) -> Json:
    """Return what was recorded of a mixture, when it had a container of its own."""
    names = ("offsets", "mjd", "flux", "flux_err", "band", "detected", "metadata", "label", "classes", "weight", "part")
    first = [sample.mjd[at][sample.detected[at]].min(initial=np.inf) for at in map(sample.points, range(len(sample)))]
    named = {name: plain(getattr(sample, name)) for name in names}
    return named | {"object_id": sample.object_id.tolist(), "trigger_mjd": digest(np.array(first)), "parent": []}


def transients() -> Sample:
    rows = [bump(f"S{i}", source="snls", seed=i, bands="griz", points=60, z=0.1) for i in range(24)]
    rows += [
        bump(f"T{i}", source="ps1md", seed=500 + i, label=16, bands="griz", points=60, width=25.0, z=0.05)
        for i in range(24)
    ]
    rows += [pulsator(f"V{i}", source="s82_rrlyrae", seed=i) for i in range(16)]
    return collect(rows, [row.object_id for row in rows])


def sample(seed: int, n: int, classes: int = 5, width: int = 8) -> ServedSample:
    """Overconfident logits and embeddings that depend on the class, two light curves of each object."""
    rng = np.random.default_rng(seed)
    object_N = np.repeat(np.arange(n // 2), 2)
    label_N = np.random.default_rng(7).integers(0, classes, n // 2)[object_N]
    detections_N = np.minimum(rng.geometric(0.12, n), 60)
    logits_NC = 3 * rng.normal(size=(n, classes))
    logits_NC[np.arange(n), label_N] += np.log1p(detections_N) * 2.5
    centre_CE = 3 * np.random.default_rng(99).normal(size=(classes, width))
    embedding_NE = centre_CE[label_N] + rng.normal(size=(n, width)) * np.geomspace(0.3, 2, width)
    logits, embeddings = logits_NC.astype(np.float32), embedding_NE.astype(np.float32)
    return ServedSample(logits, embeddings, label_N, object_N, detections_N * 3, detections_N)


def fits(folder: Path) -> Json:
    """Calibration, prediction sets, novelty, trees and their weights, fitted to random numbers."""
    training, validation = sample(1, 900), sample(2, 1400)
    calibration = fit_calibration(validation)
    p_NC = calibrated(validation.logits_NC, validation.length_N, calibration.calibration)
    columns = validation.label_N, validation.detections_N, validation.object_N
    level = fit_sets_by_detections(p_NC, validation.label_N, np.full(len(p_NC), 30), validation.object_N)
    novelty = fit_novelty(training, validation)
    reference = fit_reference(training.embedding_NE, training.label_N)
    distance_N = reference.mahalanobis(validation.embedding_NE)
    distance_Q, share_Q = quantiles_of(distance_N)
    rng = np.random.default_rng(3)
    outlier_ME = rng.normal(size=(300, 8)).astype(np.float32) * 4
    outliers = fit_outliers(
        training.embedding_NE, training.label_N, outlier_ME, validation.embedding_NE, seed=1, steps=60
    )
    kinds = np.array(["one", "two", "three"])[np.arange(300) % 3]
    areas = auroc_by_kind(training.embedding_NE, training.label_N, validation.embedding_NE, outlier_ME, kinds, seed=2)
    source_N = np.array(["a", "b", "c"])[np.minimum(rng.geometric(0.5, len(p_NC)) - 1, 2)]
    bands_N = rng.integers(1, 6, len(p_NC))
    strata = Strata(validation.detections_N, bands_N, outliers.novelty(validation.embedding_NE), source_N)
    ratio_C = np.array([0.2, 1.0, 3.0, 1.0, 0.5])
    new_NC, weight_N = reweighted(p_NC, ratio_C), ratio_C[validation.label_N]
    by_stratum = fit_sets(p_NC, validation.label_N, strata, BY_STRATUM, measured_on="made-up light curves")
    weighted = fit_sets(
        new_NC, validation.label_N, strata, BY_STRATUM, ratio_N=weight_N, measured_on="made-up light curves"
    )
    value_NF = training.embedding_NE.copy()
    value_NF[::7, 2] = np.nan
    forest = fit_forest(value_NF, training.label_N, 5, seed=3, rounds=4)
    more = fit_forest(value_NF, training.label_N, 5, seed=4, rounds=2, start=forest)
    trees_NC = (rng.normal(size=p_NC.shape).astype(np.float32) + validation.logits_NC / 2).astype(np.float32)
    has_redshift_N = rng.random(len(p_NC)) < 0.4
    blend = fit_ensemble(
        forest, trees_NC, validation.logits_NC, validation.label_N, validation.length_N, has_redshift_N
    )
    both = pooled(blend, trees_NC, validation.logits_NC, validation.length_N, has_redshift_N)
    return plain(
        {
            "calibration": calibration,
            "calibrated": p_NC,
            "sets": fit_sets_by_detections(p_NC, *columns),
            "sets of one group": level,
            "novelty": {
                "reference": reference,
                "distance_Q": distance_Q,
                "share_Q": share_Q,
                "described": novelty.described,
            },
            "novelty of validation": np.interp(distance_N, distance_Q, share_Q),
            "outliers": outliers.described,
            "outlier weights": dict(outliers.score.state_dict()),
            "novelty of outliers": outliers.novelty(outlier_ME),
            "auroc by kind": areas,
            "strata": by_stratum,
            "weighted strata": weighted,
            "coverage": coverage_and_size(by_stratum, p_NC, validation.label_N, strata),
            "weighted coverage": coverage_and_size(weighted, new_NC, validation.label_N, strata, weight_N),
            "forest": forest,
            "longer forest": more,
            "weights": blend,
            "equal weights": equal_weights(forest, validation.length_N),
            "both": both,
        }
    )


def simulated(folder: Path) -> Json:
    """A run on simulated light curves: export, scores, trees, page and card."""
    data = simulate(folder / "sim.parquet", 12, seed=4, workers=1, progress=False)
    recipe = small()
    result = train(recipe, data, folder / "run", progress=False)
    bundle = export_run(folder / "run", folder / "bundle", data=data, name="small", version="1.0.0")
    exported = contents(bundle)
    report = evaluate([bundle.path, folder / "run"], data)
    unseen = evaluate([folder / "run"], data, left_out=["KN", "AGN"])["novelty"]
    trees = baseline(recipe, data, examples=120, feature_set="summary")
    for name, one in (("report", report), ("trees", trees)):
        (folder / f"{name}.json").write_text(json.dumps(one))
    scored = write_card(bundle.path, read_report(folder / "report.json"), read_report(folder / "trees.json"))
    toy = write_toy_dataset(folder / "toy.parquet", 60)
    forest = crossvalidate(recipe, toy, None, trees=["boosted"], features="summary", folds=3)
    html = page(report, [trees])
    return plain(
        {
            "result": result,
            "log": read_log(folder / "run"),
            "exported": exported,
            "report": {**report, "embedding": digest(np.array(report["embedding"]["x"]))},
            "novelty": unseen,
            "trees": trees,
            "cross-validated trees": forest,
            "page": [len(html), html.count("<tr>"), html.count("<img")],
            "card": contents(scored)["card"],
        }
    )


def surveys(folder: Path) -> Json:
    """A run on a mixture, with trees, as a bundle; then trees that continue those of the bundle."""
    path, recipe = mixture(folder), with_statistics()
    result = train(recipe, path, folder / "run", progress=False)
    tables, whole = folder / "tables", folder / "whole"
    write_samples(path, made_objects(), recipe, (160, 240), tables, 5)
    write_samples(path, made_objects(), untruncated(recipe), (60, 60), whole, 6)
    backbone, _ = load_backbone(folder / "run")
    for one in (tables, whole):
        write_statistics(recipe, one)
        write_embeddings(backbone, one)
    network, config = load_network(folder / "run")
    assert isinstance(network, AstroMoE)
    inputs, _ = read_part([tables, whole], "validation")
    trees = folder / "trees.npz"
    scores = fit_bundled_trees([tables, whole], trees, seed=1, rounds=5, statistics=True)
    about = {"mixture": {"simulated": 0.6, "made up": 0.4}}
    bundle = export_run(
        folder / "run",
        folder / "bundle",
        name="surveys",
        version="1.0.0",
        drawn=[tables, whole],
        trees=trees,
        about=about,
    )
    longer = fit_bundled_trees([tables], folder / "more.npz", seed=2, rounds=2, statistics=True, start=(bundle.path, 3))
    without = fit_to_drawn(network, [tables], config.recipe)
    return plain(
        {
            "result": result,
            "outputs of the heads": head_outputs(network, inputs),
            "trees": [scores, read_forest(trees), longer, read_forest(folder / "more.npz")],
            "bundle": contents(bundle),
            "without trees": [without.metrics, without.prediction_sets, without.novelty.described, without.priors],
            "statistics of surveys": survey_statistics(many_of_one_survey(), bundle.manifest),
        }
    )


def romae(folder: Path) -> Json:
    """A RoMAE, which has neither metadata nor statistics."""
    path, recipe = mixture(folder), debug_romae()
    torch.manual_seed(0)
    source = DataSource(name="mix", sha256="0", objects=1)
    run = save_run(build(recipe.network), recipe, folder, source, folder / "run")
    network, _ = load_network(run)
    assert isinstance(network, RoMAE)
    write_samples(path, made_objects(), with_statistics(), (60, 60), folder / "tables", 5)
    write_statistics(small("referee-few", d_statistics=8), folder / "tables")
    write_embeddings(network, folder / "tables")
    fitted = fit_to_drawn(network, [folder / "tables"], recipe)
    return plain([fitted.calibration, fitted.novelty.described, fitted.prediction_sets, fitted.metrics, fitted.inputs])


def ztf_supernovae() -> Sample:
    rows, parts = [], []
    for i in range(60):
        kind, width = ("SN Ia", 8.0) if i % 3 else ("SN II", 30.0)
        rows.append(bump(f"ZTF{i}", source="ztf_sn", seed=i, bands="gr", width=width, raw_label=kind))
        parts.append(PARTS.index("test" if i % 2 else "train"))
    rows += [pulsator(f"RR{i}", seed=i) for i in range(3)]
    return collect(rows, [row.object_id for row in rows], [*parts, 0, 0, 0])


def types(folder: Path) -> Json:
    """Heads of 20 classes mapped to the six types of ZTF's supernovae, with trees, as a bundle."""
    data, augmentation = ztf_types().data, ztf_types().augmentation
    many, few = (
        with_statistics(classes).model_copy(update={"augmentation": augmentation, "data": data}) for classes in (20, 6)
    )
    torch.manual_seed(0)
    source = DataSource(name="mix", sha256="0", objects=1)
    run = save_run(build(many.network).eval(), many, folder, source, folder / "run")
    sky = ztf_supernovae()
    drawn = draw_ztf_types(sky, run, few, seed=1)
    report = folds(drawn, draws=(0,), seeds=(0, 1))
    prepare(sky, drawn, run, few, folder / "types", seed=0)
    made = folder / "types"
    bundle = export_run(
        made / "run", folder / "bundle", name="types", version="1.0.0",
        drawn=[made / "drawn"], trees=made / "trees.npz", about={"learned_from": "every part"},
    )  # fmt: skip
    exported = contents(bundle)
    write_card(bundle.path, report)
    forest = read_forest(made / "trees.npz")
    return plain(
        {"classes": NUMBER, "folds": report, "forest": forest, "bundle": exported, "card": contents(bundle)["card"]}
    )


def many_of_one_survey() -> Sample:
    rows = [
        bump(f"Z{i}", source="ztf_sn", seed=i, bands="gr", label=LABELS["II" if i % 4 == 0 else "Ia"])
        for i in range(210)
    ]
    return collect(rows, parts=[0 if number % 2 else 2 for number in range(len(rows))])


def scores(folder: Path) -> Json:
    """Reports of the shipped model on made-up surveys: all sets, incomplete light curves, drift."""
    rows = [bump(f"S{i}", source="snls", seed=i, z=0.3) for i in range(6)]
    rows += [bump(f"Z{i}", source="ztf_sn", seed=20 + i, label=LABELS["II" if i % 2 else "Ia"], bands="gr")
             for i in range(8)]  # fmt: skip
    rows += [pulsator(f"P{i}", source="s82_rrlyrae", seed=i, label=LABELS["RR Lyrae"]) for i in range(6)]
    odd = [pulsator(f"O{i}", source="s82_rrlyrae", seed=50 + i, label=-1) for i in range(6)]
    for row in odd:
        row.quality = "other"
    sky = collect([*rows, *odd], parts=[PARTS.index("test")] * len([*rows, *odd]))
    views = collect([bump(f"V{i}", source="des3yr", seed=60 + i, raw_label="one") for i in range(5)], parts=[2] * 5)
    report = evaluate_on_surveys(sky, {"seen": [DEFAULT_BUNDLE]}, views=views, test_evaluations=1)
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text(json.dumps(report))
    seeds = [folder / "one.json", folder / "two.json"]
    joined = evaluate_on_surveys(sky, {}, views=None, report_files=seeds[:1], seeds=seeds)
    with mock.patch("nightjar_alerts.training.score.incomplete.SUBSETS", ("g", "gr", "griz")):
        partial = measure_incomplete(DEFAULT_BUNDLE, sky)
    with mock.patch("nightjar_alerts.training.score.drift.WINDOWS", 20):
        drift = measure_drift(DEFAULT_BUNDLE, many_of_one_survey(), "test")
    path = mixture(folder)
    write_samples(path, made_objects(), with_statistics(), (160, 80), folder / "tables", 5)
    training, validation = (read_drawn(folder / "tables" / f"{part}.npz") for part in ("train", "validation"))
    return plain(
        {
            "report": report,
            "joined": joined,
            "partial": partial,
            "drift": drift,
            "drift page": drift_page(drift),
            "pattern": pattern_score(training, validation, rounds=4),
        }
    )


def adapted(folder: Path) -> Json:
    """Reports of an adaptation, from labelled and from simulated objects."""
    write_real(folder / "surveys" / "real" / "set.parquet", [
        *(bump(f"S{i}", seed=i, bands="ugrizY", points=60, z=0.1) for i in range(30)),
        *(bump(f"T{i}", seed=500 + i, label=16, bands="griz", points=60, width=25.0, z=0.05) for i in range(30)),
        *(pulsator(f"P{i}", seed=i) for i in range(30)),
    ])  # fmt: skip
    mine = write_toy_dataset(folder / "mine.parquet", 40)
    read = load_surveys(folder / "surveys")
    reports, manifests = [], []
    for name, origins in (("real", folder / "surveys"), ("simulated", None)):
        with mock.patch.object(adapt_module, "SIMULATED_PER_CLASS", 3):
            new = adapt(DEFAULT_BUNDLE, mine, folder / name, origins=origins, number=220)
        reports.append(new.report)
        manifests.append(new.bundle.manifest)
    kept = [[one.version, one.prediction_sets, one.novelty, one.data["adapted"]] for one in manifests]
    return plain({"surveys": read, "reports": reports, "manifests": kept})


STAGES: Final[Mapping[str, Callable[[Path], Json]]] = {
    "draws": draws,
    "fits": fits,
    "simulated": simulated,
    "surveys": surveys,
    "romae": romae,
    "ztf_types": types,
    "scores": scores,
    "adapted": adapted,
}


def run_stage(name: str, folder: Path) -> Json:
    """Run a stage in one thread, with few light curves in the parity test of exports."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with (
            mock.patch.multiple(parity, CURVES=60, DRAWN_CURVES=60, NOISE=60),
            mock.patch.object(fit_module, "REFERENCE_SAME_SURVEY", 500),
        ):
            return json.loads(json.dumps(STAGES[name](folder)))
    finally:
        torch.set_num_threads(threads)


def recorded(name: str) -> tuple[dict[str, str], Json]:
    """Return the environment in which a stage was recorded, and its value."""
    stored = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return stored["environment"], stored["value"]


def differences(one: Json, other: Json, exact: bool, path: str = "") -> list[str]:
    """Describe where two values differ; inexact: numbers by more than a thousandth, and hashes never."""
    if isinstance(one, dict) and isinstance(other, dict):
        lines = [f"{path}/{key}: only in one of them" for key in sorted(one.keys() ^ other.keys())]
        return lines + [
            line
            for key in one.keys() & other.keys()
            for line in differences(one[key], other[key], exact, f"{path}/{key}")
        ]
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return [f"{path}: {len(one)} entries are not {len(other)}"]
        pairs = enumerate(zip(one, other, strict=True))
        return [line for index, pair in pairs for line in differences(*pair, exact, f"{path}/{index}")]
    if not exact and (path.endswith("sha256 of bytes") or "/card/" in path or "/page/" in path):
        return []
    if not exact and isinstance(one, float) and isinstance(other, int | float):
        return [] if abs(one - other) <= 1e-3 * max(1.0, abs(one)) else [f"{path}: {one} is not {other}"]
    return [] if one == other and type(one) is type(other) else [f"{path}: {one!r} is not {other!r}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write the values instead of comparing them")
    parser.add_argument("--only", choices=STAGES, action="append", help="stage to run; repeatable; default: all")
    options = parser.parse_args()
    for name in options.only or STAGES:
        with tempfile.TemporaryDirectory() as folder:
            value = run_stage(name, Path(folder))
        if options.record:
            RECORDED.mkdir(exist_ok=True)
            text = json.dumps({"environment": environment(), "value": value}, indent=0, separators=(",", ":"))
            (RECORDED / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            print(f"{name}: recorded")  # noqa: T201  # a command
        else:
            found = differences(recorded(name)[1], value, exact=recorded(name)[0] == environment())
            print(f"{name}: {'equal' if not found else chr(10).join(found[:40])}")  # noqa: T201  # a command


if __name__ == "__main__":
    main()
