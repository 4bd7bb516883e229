"""A bundle is trusted only when its hashes and its golden outputs hold."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest

from nightjar_alerts.models.bundle import (
    DEFAULT_BUNDLE,
    GOLDEN,
    MANIFEST,
    MAX_FILE_BYTES,
    MAX_GOLDEN_BYTES,
    MAX_MANIFEST_BYTES,
    MODEL,
    Bundle,
    BundleError,
    Manifest,
    difference,
    load_bundle,
    read_golden,
    sha256_of,
    verify_golden,
    write_golden,
    write_manifest,
)
from nightjar_alerts.models.runtime import ProviderError, open_session, run


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))


def test_a_sound_bundle_loads_and_reproduces_its_golden_outputs(tiny_bundle: Path) -> None:
    bundle = load_bundle(tiny_bundle)
    assert bundle.sha256 == sha256_of(tiny_bundle / "manifest.json")
    assert verify_golden(bundle, open_session(bundle.model)) <= 1e-5
    assert {spec.name for spec in bundle.manifest.inputs} == set(read_golden(tiny_bundle)[0])
    assert {spec.name for spec in bundle.manifest.outputs} == set(read_golden(tiny_bundle)[1])


def _flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / "model.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.onnx").write_bytes(content)


def _edit_manifest(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _put(folder: Path, name: str, make: Callable[[Path], object]) -> None:
    (folder / name).unlink()
    make(folder / name)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_flip_a_byte, "model.onnx has sha256"),
        (lambda folder: (folder / "golden.npz").unlink(), "cannot read golden.npz"),
        (lambda folder: (folder / "manifest.json").unlink(), "no readable manifest"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "no readable manifest"),
        (lambda folder: (folder / "manifest.json").write_bytes(b" " * (MAX_MANIFEST_BYTES + 1)), "more than"),
        (lambda folder: _put(folder, MANIFEST, os.mkfifo), "manifest.json is no plain file"),
        (lambda folder: _put(folder, GOLDEN, os.mkfifo), "golden.npz is no plain file"),
        (lambda folder: _put(folder, GOLDEN, lambda path: path.symlink_to("/dev/zero")), "golden.npz is no plain file"),
        (lambda folder: os.truncate(folder / MODEL, MAX_FILE_BYTES + 1), "model.onnx has more than"),
        (lambda folder: _edit_manifest(folder, lambda m: m.update(surprise=1)), "no readable manifest"),
        (lambda folder: _edit_manifest(folder, lambda m: m.update(files={})), "does not list model.onnx"),
        (
            lambda folder: _edit_manifest(folder, lambda m: m["files"].update({"../x": "0"})),  # type: ignore[attr-defined]  # files are a dict
            "not a plain file name",
        ),
    ],
)
def test_a_damaged_bundle_is_refused(copy: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(copy)
    with pytest.raises(BundleError, match=message):
        load_bundle(copy)


def _rehash(folder: Path) -> Bundle:
    """Make an altered folder a bundle whose hashes hold."""
    return write_manifest(folder, Manifest.model_validate_json((folder / "manifest.json").read_bytes()))


def test_write_manifest_has_arrays_of_numbers_on_one_line_and_texts_as_they_are(copy: Path) -> None:
    data = {"text": "[\n 1,\n 2 ]", "numbers": [[1, -2e-09], [0.5]], "names": ["a", "b"]}
    written = write_manifest(copy, changed(copy, {"data": data}))
    assert written.manifest.data == data
    assert '"numbers": [[1,-2e-09],[0.5]]' in (copy / MANIFEST).read_text()


@pytest.mark.parametrize("wrong", [1e-3, np.nan])
def test_other_numbers_than_the_golden_ones_are_refused(copy: Path, wrong: float) -> None:
    inputs, outputs = read_golden(copy)
    outputs["probabilities"][0, 0] += wrong
    write_golden(copy, inputs, outputs)
    bundle = _rehash(copy)
    with pytest.raises(BundleError, match="golden outputs differ"):
        verify_golden(bundle, open_session(bundle.model))


@pytest.mark.parametrize(
    ("actual", "expected", "largest"),
    [
        ([[0.5, 0.5]], [[0.5, 0.4999]], 1e-4),  # probabilities: absolute
        ([[1e5, 10.0]], [[1e5, 11.0]], 1e-5),  # fluxes: relative to the largest of the row
        ([[1e5, 10.0], [1.0, 10.0]], [[1e5, 10.0], [1.0, 11.0]], 1 / 11),
        ([[1.0, np.nan]], [[1.0, 2.0]], np.nan),
        ([], [], 0.0),
    ],
)
def test_outputs_are_compared_on_the_scale_of_their_values(actual: object, expected: object, largest: float) -> None:
    a, b = (np.array(values, dtype=np.float32) for values in (actual, expected))
    assert difference(a, b) == pytest.approx(largest, rel=1e-3, nan_ok=True)


def test_counts_are_compared_exactly() -> None:
    assert difference(np.array([[40_001, 7]]), np.array([[40_000, 7]])) == 1


def test_missing_outputs_and_inputs_are_refused(copy: Path) -> None:
    inputs, outputs = read_golden(copy)
    write_golden(copy, inputs, outputs | {"novelty": np.zeros(3, np.float32)})
    bundle = _rehash(copy)
    with pytest.raises(BundleError, match="output novelty is missing"):
        verify_golden(bundle, open_session(bundle.model))
    write_golden(copy, {name: value for name, value in inputs.items() if name != "flux"}, outputs)
    bundle = _rehash(copy)
    with pytest.raises(BundleError, match="do not run"):
        verify_golden(bundle, open_session(bundle.model))


@pytest.mark.parametrize("spoil", [lambda value: None, lambda value: value[:0]], ids=["absent", "of no light curve"])
def test_vectors_that_say_nothing_of_an_output_are_refused(copy: Path, spoil: Callable[[Any], Any]) -> None:
    inputs, outputs = read_golden(copy)
    kept = {name: value if name != "probabilities" else spoil(value) for name, value in outputs.items()}
    write_golden(copy, inputs, {name: value for name, value in kept.items() if value is not None})
    bundle = _rehash(copy)
    with pytest.raises(BundleError, match="holds nothing of probabilities"):
        verify_golden(bundle, open_session(bundle.model))


def test_vectors_that_are_a_bomb_are_refused_before_they_are_unpacked(copy: Path) -> None:
    with ZipFile(copy / GOLDEN, "w", ZIP_DEFLATED) as archive, archive.open("in/flux.npy", "w") as member:
        for _ in range(MAX_GOLDEN_BYTES >> 24):
            member.write(bytes(1 << 24))
        member.write(b"!")
    with pytest.raises(BundleError, match="more than"):
        read_golden(copy)


def test_an_absent_provider_is_an_error_not_a_fallback(tiny_bundle: Path) -> None:
    with pytest.raises(ProviderError, match="CUDAExecutionProvider"):
        open_session(tiny_bundle / "model.onnx", provider="cuda")


def test_probabilities_sum_to_one_and_batch_mates_do_not_matter(tiny_bundle: Path) -> None:
    session = open_session(tiny_bundle / "model.onnx")
    inputs, _ = read_golden(tiny_bundle)
    together = run(session, inputs)
    np.testing.assert_allclose(together["probabilities"].sum(1), 1.0, atol=1e-5)
    for row in range(len(inputs["flux"])):
        length = int(inputs["mask"][row].sum())
        alone = run(
            session, {n: v[row : row + 1] if n == "metadata" else v[row : row + 1, :length] for n, v in inputs.items()}
        )
        for name in ("probabilities", "embedding"):
            np.testing.assert_allclose(alone[name][0], together[name][row], atol=2e-5)


def test_the_shipped_bundle_is_a_classifier() -> None:
    manifest = load_bundle(DEFAULT_BUNDLE).manifest
    assert manifest.task == "classification"
    assert manifest.classes.names[0] == "AGN"


def changed(folder: Path, changes: dict[str, object]) -> Manifest:
    document = json.loads((folder / "manifest.json").read_text())
    return Manifest.model_validate_json(json.dumps(document | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"taxonomy": None}, "taxonomy\\n  Input should be an object"),
        ({"embedding_dim": 0}, "greater than or equal to 1"),
        ({"task": "forecast"}, "'classification'"),
        ({"bands": []}, "at least 1 item"),
        ({"bands": ["g", "q"]}, "different ones of u, g, r, i, z, Y"),
        ({"bands": ["g", "g"]}, "different ones of"),
    ],
)
def test_manifest_with_a_wrong_field_raises(tiny_bundle: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changed(tiny_bundle, changes)


def statistics(manifest: Manifest) -> dict[str, Any]:
    """Input statistics that fit a manifest."""
    classes = manifest.taxonomy.names
    return {
        "light_curves": 10,
        "largest_flux": [100, 200, 300, 400, 500],
        "error_ratio": [0.01, 0.02, 0.03, 0.04, 0.05],
        "points_per_band": {name: [0, 1, 2, 3, 4] for name in manifest.bands},
        "missing_bands": dict.fromkeys(manifest.bands, 0.5),
        "missing_metadata": dict.fromkeys(manifest.metadata_columns, 0.9),
        "classes": dict.fromkeys(classes, 1 / len(classes)),
    }


def test_manifest_with_input_statistics_loads(copy: Path) -> None:
    manifest = load_bundle(copy).manifest
    write_manifest(copy, changed(copy, {"input_statistics": statistics(manifest)}))
    loaded = load_bundle(copy).manifest.input_statistics
    assert loaded is not None
    assert loaded.largest_flux == (100, 200, 300, 400, 500)


def survey_statistics(manifest: Manifest) -> dict[str, Any]:
    """Statistics of a survey that fit a manifest; metadata columns and classes may be left out."""
    common = {name: value for name, value in statistics(manifest).items() if name != "largest_flux"}
    partial = {"missing_metadata": {}, "classes": {manifest.taxonomy.names[0]: 1.0}}
    return common | partial | {"flux_error": [1, 2, 3, 4, 5], "lowest_flux": [-1, -0.5, 0, 0.5, 1]}


def test_manifest_with_survey_statistics_loads(copy: Path) -> None:
    manifest = load_bundle(copy).manifest
    write_manifest(copy, changed(copy, {"survey_statistics": {"ztf": survey_statistics(manifest)}}))
    assert load_bundle(copy).manifest.survey_statistics["ztf"].flux_error == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lowest_flux": [1, 0, 0, 0, 0]}, "quantiles must not fall"),
        ({"missing_metadata": {"redshift": 0.5}}, r"survey_statistics\.ztf\.missing_metadata must name only"),
        ({"missing_bands": {}}, r"survey_statistics\.ztf\.missing_bands must name exactly"),
        ({"flux_error": [1, 2]}, "at least 5 items"),
    ],
)
def test_manifest_with_wrong_survey_statistics_raises(
    tiny_bundle: Path, changes: dict[str, object], message: str
) -> None:
    manifest = load_bundle(tiny_bundle).manifest
    with pytest.raises(ValueError, match=message):
        changed(tiny_bundle, {"survey_statistics": {"ztf": survey_statistics(manifest) | changes}})


def test_manifest_without_input_statistics_loads(copy: Path) -> None:
    document = json.loads((copy / "manifest.json").read_text())
    document.pop("input_statistics", None)
    assert Manifest.model_validate_json(json.dumps(document)).input_statistics is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"light_curves": 0}, "greater than or equal to 1"),
        ({"largest_flux": [1, 2, 3]}, "at least 5 items"),
        ({"largest_flux": [5, 4, 3, 2, 1]}, "quantiles must not fall"),
        ({"error_ratio": [-1, 0, 1, 2, 3]}, "greater than or equal to 0"),
        ({"missing_bands": {"g": 0.5}}, "missing_bands must name exactly"),
        ({"missing_metadata": {"redshift": 0.5}}, "missing_metadata must name exactly"),
        ({"points_per_band": {}}, "points_per_band must name exactly"),
        ({"classes": {"Ia": 1.0}}, "classes must name exactly"),
        ({"classes": {"Ia": 0.5}}, "must sum to 1"),
        ({"mean_flux": 5}, "Extra inputs"),
    ],
)
def test_manifest_with_wrong_input_statistics_raises(
    tiny_bundle: Path, changes: dict[str, object], message: str
) -> None:
    manifest = load_bundle(tiny_bundle).manifest
    with pytest.raises(ValueError, match=message):
        changed(tiny_bundle, {"input_statistics": statistics(manifest) | changes})
