"""Bundle: a folder with an exported model and everything needed to serve it.

It contains ``model.onnx`` (all weights and calibration), ``manifest.json`` (description, provenance and the sha256 of
every file), ``golden.npz`` (example inputs with the expected outputs) and ``CARD.md``. A bundle is served only if its
hashes match and the execution provider in use reproduces the golden outputs. It contains no pickles and refers to no
files outside the folder. The optional ``model.cuda.onnx`` is the same model, using only operators with CUDA kernels.

A graph takes some of the inputs of :meth:`models.lightcurve.RaggedBatch.padded`; it takes ``metadata`` if and only if
the manifest lists metadata columns. Its outputs are ``probabilities`` [batch, classes], calibrated, and ``embedding``
[batch, embedding_dim]; with a ``novelty`` in the manifest also ``novelty`` [batch]. The graph of a mixture of experts
also returns its expert loads and :data:`ROUTING_OUTPUTS`.
"""

import hashlib
import json
import re
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nightjar_alerts.models.follow_up import FollowUp
from nightjar_alerts.models.lightcurve import Limits
from nightjar_alerts.models.metadata import Context
from nightjar_alerts.models.photometry import BANDS, BandMap, FluxUnit
from nightjar_alerts.models.posterior import Domain, Novelty, PredictionSets
from nightjar_alerts.models.taxonomy import Taxonomy

if TYPE_CHECKING:  # the base install reads bundles without onnxruntime
    import onnxruntime as ort

    from nightjar_alerts.models.runtime import Provider

PRETRAINED = Path(__file__).parent / "pretrained"
DEFAULT_BUNDLE = PRETRAINED / "astro-moe-elasticc" / "3.1.1"
GOLDEN_TOLERANCE = 1e-4
MODEL, MANIFEST, GOLDEN, CARD = "model.onnx", "manifest.json", "golden.npz", "CARD.md"
CUDA_MODEL = "model.cuda.onnx"

ROUTING_OUTPUTS = ("experts_by_band", "router_entropy")
"""Optional outputs for the layers whose router sees the observations: the number of times that observations of a band
were routed to each expert [batch, layers, bands, experts], and the mean router entropy in nats [batch, layers]."""

SLUG = r"^[a-z0-9][a-z0-9-]*$"
VERSION = r"^\d+\.\d+\.\d+$"
_REDSHIFTS = {"z_final", "hostgal_zspec", "hostgal_zphot"}

MAX_MANIFEST_BYTES = 4 << 20
"""Maximum size of a manifest. Parsing JSON can take twenty-five times its size in memory."""
MAX_FILE_BYTES = 2 << 30
"""Maximum size of a bundle's file; protobuf messages, and so graphs, are limited to 2 GiB."""
MAX_GOLDEN_BYTES = 256 << 20
"""Maximum size of all golden vectors after decompression."""
GOLDEN_SECONDS = 30.0
"""Time limit of the run on the golden inputs, which might never end in an unverified graph."""

Task = Literal["classification"]
CalibrationMethod = Literal["none", "temperature", "temperature_by_length"]

LARGEST_TEMPERATURE = 20.0  # temperatures by length are clipped to [1 / 20, 20], as during the fit


class BundleError(Exception):
    """Bundle that must not be served: missing, modified, malformed or numerically different."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Calibration(_Frozen):
    """Calibration of the probabilities: softmax(logits / temperature), inside the graph.

    Attributes
    ----------
    temperature : for all light curves; with ``temperature_by_length``, the best single temperature, which is not used.
    coefficients : of ``temperature_by_length``: temperature = exp(sum over k of coefficients[k] * ln(n)**k) with n the
        number of observations that the network sees, clipped to [1 / :data:`LARGEST_TEMPERATURE`,
        :data:`LARGEST_TEMPERATURE`].
    lengths : smallest and largest n of the fit; n is clipped to this range.
    ece, split : expected calibration error after the fit, and the split used for both the fit and the measurement.
    """

    method: CalibrationMethod
    temperature: float = Field(gt=0)
    coefficients: tuple[float, ...] = ()
    lengths: tuple[int, int] | None = None
    ece: float | None = None
    split: str | None = None

    @model_validator(mode="after")
    def _fits_the_method(self) -> Self:
        by_length = self.method == "temperature_by_length"
        if bool(self.coefficients) != by_length or (self.lengths is not None) != by_length:
            raise ValueError("a temperature by length has coefficients and lengths, another calibration neither")
        return self

    def temperatures(self, length_B: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the temperatures of light curves with ``length_B`` observations, float64 (B,)."""
        if self.lengths is None:
            return np.full(len(length_B), self.temperature)
        log_length_B = np.log(np.clip(length_B, *self.lengths).astype(np.float64))
        log_temperature_B = np.polynomial.polynomial.polyval(log_length_B, self.coefficients)
        return np.asarray(np.exp(np.clip(log_temperature_B, -np.log(LARGEST_TEMPERATURE), np.log(LARGEST_TEMPERATURE))))


class Ensemble(_Frozen):
    """Boosted trees inside the graph: log p = w log p(trees) + (1 - w) log p(network) + a constant, before calibration.

    Attributes
    ----------
    trees, nodes, depth : number of trees, number of their nodes including leaves, and depth of the deepest tree.
    coefficients : of the log odds of the trees' weight w: constant, coefficient of ln(n) with n the number of
        observations that the network sees, and term added if the redshift is known.
    lengths : smallest and largest n of the fit; n is clipped to this range.
    split : split on which the coefficients were fitted ("none": fixed weights); the trees were fitted on other objects.
    """

    trees: int = Field(ge=1)
    nodes: int = Field(ge=1)
    depth: int = Field(ge=1)
    coefficients: tuple[float, float, float]
    lengths: tuple[int, int]
    split: str

    def weights(self, length_B: NDArray[np.integer], has_redshift_B: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the weights of the trees for light curves with ``length_B`` observations, float64 (B,)."""
        constant, per_length, redshift = self.coefficients
        log_length_B = np.log(np.clip(length_B, *self.lengths).astype(np.float64))
        odds_B = constant + per_length * log_length_B + redshift * has_redshift_B
        return np.asarray(0.5 + 0.5 * np.tanh(0.5 * odds_B))


class TensorSpec(_Frozen):
    """Graph input or output; dynamic axes are strings."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Parameters(_Frozen):
    """Number of parameters: in total, and active for one token."""

    total: int
    active: int


class AssumedPrior(_Frozen):
    """Class shares that the graph's probabilities and the thresholds of the sets assume; ``shares`` has all classes."""

    name: str = Field(pattern=SLUG)
    shares: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    source: str


class MeasuredPrior(_Frozen):
    """Class shares that a client may select by name, and the performance of prediction sets under them.

    Attributes
    ----------
    shares : relative weight of each class, 0 for classes left out; None for those of :mod:`models.taxonomy`.
    coverage : fraction of sets that contain the true class, by nominal coverage ("0.9").
    mean_size : mean number of classes in a set of the default coverage.
    prediction_sets : thresholds fitted under these shares; None for the bundle's own.
    """

    shares: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    source: str = ""
    coverage: dict[str, float] = {}
    mean_size: float | None = None
    measured_on: str
    prediction_sets: PredictionSets | None = None


Fraction = Annotated[float, Field(ge=0, le=1)]
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles in :class:`InputStatistics`."""
Quantiles = Annotated[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], Field(min_length=5, max_length=5)]


class _Distribution(_Frozen):
    """Distribution of light curves. Quantiles are over light curves, at the levels :data:`QUANTILES`.

    Attributes
    ----------
    light_curves : number of light curves.
    error_ratio : median flux error over the largest absolute flux.
    points_per_band : number of observations in each band, 0 where there is none.
    missing_bands, missing_metadata : fraction of light curves without an observation in a band, and without a value of
        a metadata column.
    classes : fraction of each class.
    """

    light_curves: int = Field(ge=1)
    error_ratio: Quantiles
    points_per_band: dict[str, Quantiles]
    missing_bands: dict[str, Fraction]
    missing_metadata: dict[str, Fraction]
    classes: dict[str, Fraction]

    @model_validator(mode="after")
    def _is_distribution(self) -> Self:
        own = (value for value in vars(self).values() if isinstance(value, tuple))
        for quantiles in (*own, *self.points_per_band.values()):
            if list(quantiles) != sorted(quantiles):
                raise ValueError("quantiles must not fall")
        if abs(sum(self.classes.values()) - 1) > 1e-3:
            raise ValueError("the fractions of the classes must sum to 1")
        return self


class InputStatistics(_Distribution):
    """Distribution of the training light curves, as the network sees them.

    Attributes
    ----------
    largest_flux : largest absolute flux, nJy.
    """

    largest_flux: Quantiles


class SurveyStatistics(_Distribution):
    """Distribution of the training light curves of one survey, as the survey sends them (:mod:`models.drift`).

    Metadata columns and classes that no light curve has are left out.

    Attributes
    ----------
    flux_error : median flux error, nJy.
    lowest_flux : lowest flux divided by the largest absolute flux, for light curves with at least
        :data:`models.drift.MIN_POINTS` points; None if there are few of them.
    """

    flux_error: Quantiles
    lowest_flux: tuple[float, float, float, float, float] | None = None


class Manifest(_Frozen):
    """Manifest of a bundle: description of the model and of its inputs and outputs.

    Attributes
    ----------
    bands, band_indices, band_groups : bands that the network knows, the integer of each, and the filters used as
        substitutes for them (:class:`models.photometry.BandMap`).
    domain : light curves on which the quality was measured; None if not stated.
    prior, priors : class shares that the probabilities assume, and others that requests may select by name.
    ensemble : boosted trees whose probabilities are combined with the network's, in the same graph.
    follow_up : purity and completeness of lists of each class, by name of the class shares.
    context : evidence that the network has already learned to use (:class:`models.metadata.Context`).
    input_statistics : distribution of the training light curves; None if not stated.
    survey_statistics : distribution of the training light curves of each survey, by survey name as in requests.
    """

    format_version: Literal[1, 2] = 1
    name: str = Field(pattern=SLUG)
    version: str = Field(pattern=VERSION)
    architecture: str
    task: Task = "classification"
    taxonomy: Taxonomy
    bands: tuple[str, ...] = Field(default=BANDS, min_length=1)
    band_indices: tuple[int, ...] | None = None
    band_groups: dict[str, str] = {}
    domain: Domain | None = None
    prior: AssumedPrior | None = None
    priors: dict[Annotated[str, Field(pattern=SLUG)], MeasuredPrior] = {}
    context: Context | None = None
    flux_unit: FluxUnit
    limits: Limits
    metadata_columns: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    embedding_dim: int = Field(ge=1)
    parameters: Parameters
    ensemble: Ensemble | None = None
    calibration: Calibration = Calibration(method="none", temperature=1.0)
    novelty: Novelty | None = None
    prediction_sets: PredictionSets | None = None
    follow_up: dict[Annotated[str, Field(pattern=SLUG)], FollowUp] = {}
    recipe: dict[str, Any]
    data: dict[str, Any]
    input_statistics: InputStatistics | None = None
    survey_statistics: dict[Annotated[str, Field(pattern=SLUG)], SurveyStatistics] = {}
    metrics: dict[str, Any]
    opset: int
    created: str
    files: dict[str, str]

    @model_validator(mode="after")
    def _bands_fit(self) -> Self:
        self.band_map  # noqa: B018  # raises ValueError
        if self.domain is not None and not set(self.domain.bands) <= set(self.bands):
            raise ValueError("the domain's bands must be among the bundle's")
        return self

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        names = set(self.taxonomy.names)
        if self.prior is not None and self.prior.shares.keys() != names:
            raise ValueError("the prior needs a share for every class, and for nothing else")
        for name, prior in self.priors.items():
            if prior.shares is not None and not (prior.shares.keys() <= names and any(prior.shares.values())):
                raise ValueError(f"the prior {name} needs shares of known classes, one of them above zero")
        if self.context is not None and not set(self.context.galactic or ()) <= names:
            raise ValueError("galactic classes must be classes of the taxonomy")
        return self

    @model_validator(mode="after")
    def _follow_up_fits(self) -> Self:
        for name, lists in self.follow_up.items():
            if lists.classes.keys() != set(self.taxonomy.names):
                raise ValueError(f"follow_up.{name} must name every class of the taxonomy, and nothing else")
        return self

    @model_validator(mode="after")
    def _statistics_fit(self) -> Self:
        given: dict[str, _Distribution] = {
            f"survey_statistics.{name}": statistics for name, statistics in self.survey_statistics.items()
        }
        if self.input_statistics is not None:
            given["input_statistics"] = self.input_statistics
        for field, statistics in given.items():
            for name, found, expected in (
                ("points_per_band", statistics.points_per_band, self.bands),
                ("missing_bands", statistics.missing_bands, self.bands),
                ("missing_metadata", statistics.missing_metadata, self.metadata_columns),
                ("classes", statistics.classes, self.taxonomy.names),
            ):
                is_partial = isinstance(statistics, SurveyStatistics) and expected is not self.bands
                if found.keys() - set(expected) or (not is_partial and len(found) < len(expected)):
                    which = "only" if is_partial else "exactly"
                    raise ValueError(f"{field}.{name} must name {which} what the manifest does")
        return self

    @cached_property
    def band_map(self) -> BandMap:
        """Map from the filters of light curves to the network's bands."""
        return BandMap(self.bands, self.band_indices, self.band_groups)

    @property
    def assumed_shares(self) -> dict[str, float]:
        """Class shares that the probabilities assume, summing to 1.

        Without a prior these are the shares of the training set, or equal ones if the counts are not stated.
        """
        names = self.classes.names
        counts = self.data.get("classes")
        shares: dict[str, float] = dict.fromkeys(names, 1.0)
        if self.prior is not None:
            shares = self.prior.shares
        elif isinstance(counts, dict) and all(_is_count(counts.get(name)) for name in names):
            shares = {name: float(counts[name]) for name in names}
        total = sum(shares.values())
        return {name: shares[name] / total for name in names}

    @property
    def assumed_context(self) -> Context:
        """Context; if not stated, a network with a redshift among its metadata columns counts as having learned it."""
        if self.context is not None:
            return self.context
        return Context(learned=("redshift",) if _REDSHIFTS & set(self.metadata_columns) else ())

    @property
    def classes(self) -> Taxonomy:
        """The taxonomy."""
        return self.taxonomy


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Bundle:
    """Bundle whose files match their hashes. ``sha256`` is that of the manifest, which lists all the others."""

    path: Path
    manifest: Manifest
    sha256: str

    @property
    def model(self) -> Path:
        """Path of the graph."""
        return self.path / MODEL

    def graph(self, provider: "Provider") -> Path:
        """Return the path of the graph for an execution provider, which is a specific one if the bundle has it."""
        return self.path / (CUDA_MODEL if provider == "cuda" and CUDA_MODEL in self.manifest.files else MODEL)


def sha256_of(path: Path) -> str:
    """Return the hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_bundle(path: Path) -> Bundle:
    """Read a manifest and verify the sha256 of every file it names.

    Raises
    ------
    BundleError
        If the manifest is missing or malformed, a file is missing or modified, or a name points outside the folder.
    """
    try:
        manifest = Manifest.model_validate_json(read_manifest(path))
    except (OSError, ValidationError) as error:
        raise BundleError(f"{path}: no readable manifest: {error}") from error
    for required in (MODEL, GOLDEN):
        if required not in manifest.files:
            raise BundleError(f"{path}: the manifest does not list {required}")
    for name, expected in manifest.files.items():
        _verify_file(path, name, expected)
    return Bundle(path, manifest, sha256_of(path / MANIFEST))


def read_manifest(path: Path) -> bytes:
    """Return the text of a bundle's manifest. Raises OSError if it is not a regular file or is too large."""
    _check_plain(path / MANIFEST, MAX_MANIFEST_BYTES)
    return (path / MANIFEST).read_bytes()


def _check_plain(file: Path, most: int) -> None:
    """Raise OSError if a file is not regular (a pipe or device may be endless) or has more than ``most`` bytes."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{file.name} is no plain file")
    if status.st_size > most:
        raise OSError(f"{file.name} has more than {most} bytes")


def _verify_file(folder: Path, name: str, expected: str) -> None:
    if Path(name).name != name:
        raise BundleError(f"{folder}: {name!r} is not a plain file name")
    try:
        _check_plain(folder / name, MAX_FILE_BYTES)
        actual = sha256_of(folder / name)
    except OSError as error:
        raise BundleError(f"{folder}: cannot read {name}: {error}") from error
    if actual != expected:
        raise BundleError(f"{folder}: {name} has sha256 {actual[:12]}..., the manifest says {expected[:12]}...")


def pretrained_bundles() -> dict[str, Path]:
    """Return the newest version of each bundle that is part of the package, by name."""
    manifests = sorted(PRETRAINED.glob(f"*/*/{MANIFEST}"), key=lambda path: version_key(path.parent.name))
    return {path.parts[-3]: path.parent for path in manifests}


def write_manifest(path: Path, manifest: Manifest) -> Bundle:
    """Write ``manifest.json`` with the hashes of all other files in the folder, and load the bundle."""
    files = {file.name: sha256_of(file) for file in sorted(path.iterdir()) if file.name != MANIFEST}
    complete = manifest.model_copy(update={"files": files})
    text = json.dumps(complete.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    text = re.sub(r"\[\n[-+\d\s.,e[\]]*\]", lambda numbers: "".join(numbers[0].split()), text)  # each on one line
    (path / MANIFEST).write_text(text, encoding="utf-8")
    return load_bundle(path)


def read_golden(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the golden inputs and outputs of a bundle, by tensor name. Raises BundleError for an invalid archive."""
    try:
        with (path / GOLDEN).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if sum(member.file_size for member in arrays.zip.infolist()) > MAX_GOLDEN_BYTES:
                raise ValueError(f"they have more than {MAX_GOLDEN_BYTES} bytes")
            inputs = {key.removeprefix("in/"): arrays[key] for key in arrays.files if key.startswith("in/")}
            outputs = {key.removeprefix("out/"): arrays[key] for key in arrays.files if key.startswith("out/")}
    except Exception as error:  # archive, compression and array headers raise unrelated exceptions
        raise BundleError(f"{path}: {GOLDEN} holds no golden vectors: {error}") from error
    return inputs, outputs


def write_golden(path: Path, inputs: dict[str, NDArray[Any]], outputs: dict[str, NDArray[Any]]) -> None:
    """Write golden vectors; the inverse of :func:`read_golden`."""
    arrays = {f"in/{name}": value for name, value in inputs.items()}
    arrays |= {f"out/{name}": value for name, value in outputs.items()}
    np.savez_compressed(path / GOLDEN, allow_pickle=False, **arrays)


_EMPTY: NDArray[Any] = np.empty(0)


def verify_golden(bundle: Bundle, session: "ort.InferenceSession") -> float:
    """Check that a session reproduces the golden outputs.

    Returns
    -------
    The largest :func:`difference` over all outputs.

    Raises
    ------
    BundleError
        If an output is missing, has another shape, is not finite or differs by more than ``GOLDEN_TOLERANCE``, or if
        the golden vectors lack an output of the graph.
    """
    from nightjar_alerts.models.runtime import run_within

    inputs, expected = read_golden(bundle.path)
    if missing := {node.name for node in session.get_outputs() if not expected.get(node.name, _EMPTY).size}:
        raise BundleError(f"{bundle.path}: {GOLDEN} holds nothing of {', '.join(sorted(missing))}")
    try:
        actual = run_within(GOLDEN_SECONDS, session, inputs)
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise BundleError(f"{bundle.path}: the golden inputs do not run: {error}") from error
    differences = [0.0]
    for name, value in expected.items():
        if name not in actual or actual[name].shape != value.shape:
            raise BundleError(f"{bundle.path}: output {name} is missing or has another shape")
        differences.append(difference(actual[name], value))
    worst = float(np.max(differences))  # unlike max(), it lets a NaN through
    if not worst <= GOLDEN_TOLERANCE:  # a NaN must fail too
        raise BundleError(f"{bundle.path}: golden outputs differ by {worst:.2e} (allowed {GOLDEN_TOLERANCE:.0e})")
    return worst


def difference(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference between two outputs [batch, ...] of a graph; NaN if any value is NaN.

    The difference is absolute, except in float rows with a value beyond 1: there it is relative to the largest value of
    the row, because the precision of float32 is relative.
    """
    distance = np.abs(actual.astype(np.float64) - expected)
    if expected.size and np.issubdtype(expected.dtype, np.floating):
        largest = np.abs(expected).max(axis=tuple(range(1, expected.ndim)), keepdims=True)
        distance /= np.maximum(1.0, largest)
    return float(distance.max(initial=0.0))


def version_key(version: str) -> tuple[int, ...]:
    """Return the sort key of a version."""
    return tuple(map(int, version.split(".")))
