"""Commands of ``nightjar-train makers``: tools that made and measured the shipped models.

A bundle trained on many surveys is made by::

    nightjar-train makers reobserve --data DATA --out build/views.npz
    nightjar-train fit surveys --data mixture.json --pretrained runs/unpacked
    nightjar-train makers draw runs/drawn --mixture mixture.json --data DATA --recipe surveys-bands
    nightjar-train makers features runs/drawn --run runs/surveys-0
    nightjar-train makers trees runs/drawn --statistics --out runs/trees.npz
    nightjar-train export runs/surveys-0 build/bundle --drawn runs/drawn --trees runs/trees.npz
    nightjar-train makers drift build/bundle --data DATA --report build/drift.json
"""

import argparse
import json
import sys
from pathlib import Path

from nightjar_alerts.training.options import (
    Commands,
    add_command,
    add_pretrained,
    add_recipe,
    at_least,
    chosen_recipe,
    chosen_weights,
    means_of,
    named_recipe,
    print_json,
    progress,
    share,
    write_json,
)

SURVEY_RECIPES = ("surveys-heads", "surveys-bands", "ztf-types")
FEATURES = ("summary", "light-curve", "union")


def add_makers(commands: Commands) -> None:
    """Add the group."""
    text = "tools that made and measured the shipped models; `makers --help` lists them"
    group = commands.add_parser("makers", help=text, description=text[0].upper() + text[1:] + ".")
    tools = group.add_subparsers(metavar="TOOL", required=True)
    _add_reobserve(tools)
    _add_draw(tools)
    _add_features(tools)
    _add_trees(tools)
    _add_ztf_types(tools)
    _add_drift(tools)
    _add_follow_up(tools)
    _add_incomplete(tools)
    _add_baseline(tools)
    _add_crossvalidate(tools)
    _add_throughput(tools)
    _add_unpack(tools)
    _add_export_again(tools)
    _add_cuda(tools)


def _add_surveys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, required=True,
        help="folder with real/, ztf_sn/, elasticc_objects/, mallorn/ ...; absent sets are skipped",
    )  # fmt: skip
    parser.add_argument("--cache", type=Path, help="folder that caches the sets between calls")


def _add_reobserve(tools: Commands) -> None:
    parser = add_command(
        tools,
        "reobserve",
        _reobserve,
        "re-observe objects with the visits, bands and errors of other surveys",
    )
    _add_surveys(parser)
    parser.add_argument("--out", type=Path, required=True, help="npz file to write")
    parser.add_argument(
        "--part", choices=("train", "valid", "test"), default="train", help="part of the objects and of the cadences"
    )
    parser.add_argument("--number", type=at_least(1), default=10_000, help="approximate number of re-observed objects")
    parser.add_argument("--seed", type=at_least(0), default=0, help="random seed of the views")
    parser.add_argument(
        "--through", action="append", default=[], help="survey whose cadences are used; repeatable; default: all"
    )
    parser.add_argument("--classes", action="append", default=[], help="class to include; repeatable; default: all")
    parser.add_argument(
        "--copies", type=at_least(0), default=0, help="objects made from every published fit below real/templates"
    )


def _reobserve(options: argparse.Namespace) -> None:
    """Fit the objects, re-observe them and print the number by class."""
    import numpy as np

    from nightjar_alerts.models.taxonomy import ELASTICC
    from nightjar_alerts.training.data.reobserve.views import views_of
    from nightjar_alerts.training.data.sample import write_sample
    from nightjar_alerts.training.data.surveys import load_surveys

    views = views_of(
        load_surveys(options.data, options.cache),
        options.part,
        options.number,
        seed=options.seed,
        data=options.data,
        through=options.through,
        classes=options.classes,
        copies=options.copies,
    )
    write_sample(views, options.out)
    counts = np.bincount(views.label, minlength=len(ELASTICC.names)).tolist()
    by_class = dict(zip(ELASTICC.names, counts, strict=True))
    print_json({"views": len(views), "points": len(views.mjd), "classes": by_class})


def _add_draw(tools: Commands) -> None:
    parser = add_command(
        tools, "draw", _draw, "draw light curves of a mixture for trees and calibration, and outliers of no known class"
    )
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--mixture", type=Path, required=True, help="JSON file of data files and their shares")
    _add_surveys(parser)
    parser.add_argument("--train", type=at_least(1), default=100_000, help="number of light curves to fit on")
    parser.add_argument(
        "--validation", type=at_least(1), default=15_000, help="number of light curves for selection and calibration"
    )
    parser.add_argument("--seed", type=at_least(0), default=0, help="random seed of the draws")
    parser.add_argument(
        "--recipe", choices=SURVEY_RECIPES, default=SURVEY_RECIPES[0], help="recipe whose augmentation is used"
    )
    parser.add_argument("--whole", action="store_true", help="keep all points; no degradation")
    parser.add_argument(
        "--perturbed", type=share, default=0.0,
        help="share of the complete light curves that is perturbed within their errors",
    )  # fmt: skip


def _draw(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.data.folders import untruncated, write_samples
    from nightjar_alerts.training.data.surveys import load_surveys

    sample, recipe = load_surveys(options.data, options.cache), named_recipe(options.recipe)
    recipe = untruncated(recipe) if options.whole else recipe
    augmentation = recipe.augmentation.model_copy(update={"perturbed": options.perturbed})
    recipe = recipe.model_copy(update={"augmentation": augmentation})
    numbers = options.train, options.validation
    write_samples(options.mixture, sample, recipe, numbers, options.folder, options.seed)


def _add_features(tools: Commands) -> None:
    parser = add_command(tools, "features", _features, "compute statistics and embeddings of drawn light curves")
    parser.add_argument("folder", type=Path, help="folder of `draw`")
    parser.add_argument("--run", type=Path, help="run folder of `fit` for the embeddings; default: statistics only")
    parser.add_argument(
        "--what", choices=("everything", "embeddings"), default="everything", help="statistics do not depend on the run"
    )


def _features(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.fit.heads import write_features
    from nightjar_alerts.training.recipes.astro_moe import surveys_heads

    statistics = surveys_heads() if options.what == "everything" else None
    write_features(options.folder, statistics, options.run)


def _add_trees(tools: Commands) -> None:
    parser = add_command(tools, "trees", _trees, "fit boosted trees to drawn light curves, and print their scores")
    parser.add_argument("folders", type=Path, nargs="+", help="folders of `draw` and `features`, of the same run")
    parser.add_argument("--out", type=Path, required=True, help="npz file to write, for `export --trees`")
    parser.add_argument("--rounds", type=at_least(1), default=140, help="boosting rounds, with one tree per class each")
    parser.add_argument("--statistics", action="store_true", help="use statistics only, no embedding")
    parser.add_argument("--start", type=Path, help="bundle whose trees boosting continues from; default: none")
    parser.add_argument("--kept", type=at_least(1), default=170, help="boosting rounds of that bundle to keep")
    parser.add_argument("--seed", type=at_least(0), default=0, help="random seed of boosting")


def _trees(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.fit.trees.forest import fit_bundled_trees

    scores = fit_bundled_trees(
        options.folders,
        options.out,
        seed=options.seed,
        rounds=options.rounds,
        statistics=options.statistics,
        start=None if options.start is None else (options.start, options.kept),
    )
    print_json(scores)


def _add_ztf_types(tools: Commands) -> None:
    parser = add_command(
        tools, "ztf-types", _ztf_types, "map a network of 20 classes to ZTF's six types of supernovae and fit trees"
    )
    parser.add_argument("run", type=Path, help="run folder of `fit`, or an unpacked bundle")
    parser.add_argument("out", type=Path, help="folder to write: run/, drawn/ and trees.npz, for `export`")
    _add_surveys(parser)
    parser.add_argument("--seed", type=at_least(0), default=11, help="random seed of the drawn light curves")
    parser.add_argument("--folds", type=Path, help="JSON file for scores of a cross-validation; default: none")


def _ztf_types(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.data.surveys import load_surveys
    from nightjar_alerts.training.fit.train import with_classes
    from nightjar_alerts.training.fit.ztf_types import NUMBER, draw_ztf_types, prepare
    from nightjar_alerts.training.recipes.astro_moe import ztf_types
    from nightjar_alerts.training.score.report import rounded
    from nightjar_alerts.training.score.ztf_types import folds

    sample, recipe = load_surveys(options.data, options.cache), with_classes(ztf_types(), len(NUMBER))
    drawn = draw_ztf_types(sample, options.run, recipe, seed=options.seed)
    prepare(sample, drawn, options.run, recipe, options.out, seed=0)
    if options.folds is not None:
        write_json(options.folds, rounded(folds(drawn)), indent=None)


def _add_drift(tools: Commands) -> None:
    parser = add_command(
        tools, "drift", _drift, "store input statistics of each survey in a bundle, and measure its drift checks"
    )
    parser.add_argument("bundle", type=Path, help="bundle folder; its manifest is rewritten")
    _add_surveys(parser)
    parser.add_argument("--report", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--part", choices=("valid", "test"), default="test", help="part to measure on; valid: for model selection"
    )


def _drift(options: argparse.Namespace) -> None:
    """Store the statistics, measure the checks and print the tables in Markdown."""
    from nightjar_alerts.training.data.surveys import load_surveys
    from nightjar_alerts.training.score.drift import add_statistics, drift_page, measure_drift

    sample = load_surveys(options.data, options.cache)
    add_statistics(options.bundle, sample)
    report = measure_drift(options.bundle, sample, options.part)
    write_json(options.report, report, indent=None)
    sys.stdout.write(drift_page(report))


def _add_follow_up(tools: Commands) -> None:
    text = "measure purity and completeness of lists of each class, and store them in a bundle"
    parser = add_command(tools, "follow-up", _follow_up, text)
    parser.add_argument("bundle", type=Path, help="bundle folder; its manifest is rewritten, but not with --surveys")
    _add_surveys(parser)
    text = "folder like real/ with sets that were not used in training: compare the purity there with the stated one"
    parser.add_argument("--surveys", type=Path, help=text)
    parser.add_argument("--purity", type=share, default=0.8, help="stated purity that is compared")


def _follow_up(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.data.surveys import load_surveys
    from nightjar_alerts.training.score.follow_up import add_follow_up, compare_purity

    sample = load_surveys(options.data, options.cache)
    if options.surveys is not None:
        print_json(compare_purity(options.bundle, sample, options.surveys, options.purity))
        return
    bundle = add_follow_up(options.bundle, sample)
    print_json(
        {name: {one: lists.purest(one) for one in lists.classes} for name, lists in bundle.manifest.follow_up.items()}
    )


def _add_incomplete(tools: Commands) -> None:
    parser = add_command(
        tools, "incomplete", _incomplete, "score bundles by bands, by detections and days, and on further surveys"
    )
    parser.add_argument("bundles", type=Path, nargs="+", help="bundle folders to score")
    _add_surveys(parser)
    parser.add_argument("--report", type=Path, required=True, help="JSON file to write; other bundles in it are kept")
    parser.add_argument("--surveys", type=Path, help="folder like real/ with sets that were not used in training")
    parser.add_argument(
        "--part", choices=("valid", "test"), default="test", help="part to score; valid: for model selection"
    )


def _incomplete(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.data.surveys import load_surveys
    from nightjar_alerts.training.score.incomplete import measure_incomplete

    sample = load_surveys(options.data, options.cache)
    reports = json.loads(options.report.read_text(encoding="utf-8")) if options.report.exists() else {}
    for path in options.bundles:
        name, report = measure_incomplete(path, sample, options.surveys, options.part)
        reports[name] = report
        write_json(options.report, reports, indent=None)


def _add_baseline(tools: Commands) -> None:
    parser = add_command(
        tools, "baseline", _baseline, "train trees on features of the same objects as a recipe, and score them"
    )
    parser.add_argument("--data", type=Path, required=True, help="Parquet file of `simulate`")
    parser.add_argument("--report", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--classifier", choices=("boosted", "forest"), default="boosted", help="boosted trees or a random forest"
    )
    parser.add_argument(
        "--features",
        choices=FEATURES,
        default="union",
        help="built-in features, those of `light-curve`, or both",
    )
    parser.add_argument("--recipe", default="default", help="recipe whose split, limits and augmentation to use")
    parser.add_argument("--seed", type=at_least(0), default=0, help="seed of sampling and trees")
    parser.add_argument("--examples", type=at_least(100), default=60_000, help="number of training examples")
    parser.add_argument("--split", choices=("train", "validation", "test"), default="test", help="part to score")
    parser.add_argument("--objects", type=at_least(1), help="score a sample of this size; default: all")


def _baseline(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.score.baseline import baseline

    report = baseline(
        named_recipe(options.recipe).model_copy(update={"seed": options.seed}),
        options.data,
        classifier=options.classifier,
        feature_set=options.features,
        examples=options.examples,
        split=options.split,
        objects=options.objects,
    )
    write_json(options.report, report)
    print_json(means_of(report))


def _add_crossvalidate(tools: Commands) -> None:
    parser = add_command(
        tools, "crossvalidate", _crossvalidate, "train a recipe, and trees, on every fold of a real data set; resumable"
    )
    add_recipe(parser, "seed", "steps")
    parser.add_argument("--data", type=Path, required=True, help="Parquet file of `import`")
    parser.add_argument("--report", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--runs", type=Path, help="folder for the runs; default: runs/<recipe>-folds")
    parser.add_argument("--folds", type=at_least(2), default=5, help="number of folds of the objects")
    add_pretrained(parser)
    parser.add_argument("--no-network", action="store_true", help="train the trees only, no network")
    parser.add_argument("--no-trees", action="store_true", help="train the network only, no trees")
    parser.add_argument(
        "--trees", choices=("boosted", "forest"), action="append", help="trees to train; repeatable; default: both"
    )
    parser.add_argument("--features", choices=FEATURES, default="union", help="features of the trees")


def _crossvalidate(options: argparse.Namespace) -> None:
    """Train missing folds, score, write the report and print its table."""
    from nightjar_alerts.training.score.folds import crossvalidate, table

    recipe = chosen_recipe(options)
    runs = None if options.no_network else options.runs or Path("runs") / f"{recipe.name}-folds"
    report = crossvalidate(
        recipe,
        options.data,
        runs,
        folds=options.folds,
        pretrained=chosen_weights(options),
        trees=[] if options.no_trees else options.trees or ["boosted", "forest"],
        features=options.features,
    )
    write_json(options.report, report, indent=2)
    sys.stdout.write(table(report) + "\n")


def _add_throughput(tools: Commands) -> None:
    parser = add_command(
        tools, "throughput", _throughput, "measure training throughput in light curves per second, packed and padded"
    )
    add_recipe(parser, "threads", "device")
    parser.add_argument("--data", type=Path, required=True, help="Parquet file of `simulate`")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="number of pairs of timings")


def _throughput(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.fit.throughput import throughput

    print_json(throughput(chosen_recipe(options), options.data, options.rounds, progress))


def _add_unpack(tools: Commands) -> None:
    parser = add_command(tools, "unpack", _unpack, "read the weights of a bundle into a run folder, for `fit`")
    parser.add_argument("bundle", type=Path, help="folder of a classifier's bundle")
    parser.add_argument("out", type=Path, help="run folder to write")


def _unpack(options: argparse.Namespace) -> None:
    from nightjar_alerts.training.export.weights import unpack

    print_json({"run": str(unpack(options.bundle, options.out))})


def _add_export_again(tools: Commands) -> None:
    parser = add_command(
        tools, "export-again", _export_again, "export the weights of a bundle again and compare the golden outputs"
    )
    parser.add_argument("bundle", type=Path, help="folder of a classifier's bundle")
    parser.add_argument("out", type=Path, help="bundle folder to write; must not exist")


def _export_again(options: argparse.Namespace) -> None:
    """Export; print the nodes of both graphs and the largest difference of golden outputs."""
    from nightjar_alerts.training.export.weights import export_again

    print_json(export_again(options.bundle, options.out))


def _add_cuda(tools: Commands) -> None:
    parser = add_command(tools, "cuda", _cuda, "copy a bundle and add a graph for CUDA, for GPUs")
    parser.add_argument("bundle", type=Path, help="folder of a bundle")
    parser.add_argument("out", type=Path, help="bundle folder to write; must not exist")


def _cuda(options: argparse.Namespace) -> None:
    """Add the graph and print its number of nodes; fail if a node has no CUDA kernel."""
    from nightjar_alerts.training.export.cuda import add_cuda

    print_json(add_cuda(options.bundle, options.out))
