"""Serializer of results: JSON documents for HTTP responses, NDJSON lines and records of a stream.

:mod:`service.answers.replies` declares the documents, and the published schemas in ``service/answers/schemas`` are
generated from it. Documents are built without these pydantic models, which would be several times slower; tests
validate them against the models.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import orjson

from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.core.errors import FieldError
from nightjar_alerts.core.items import Outcome, Prediction, Read, curve_of, packet_identity
from nightjar_alerts.models.bundle import ROUTING_OUTPUTS, Bundle
from nightjar_alerts.models.common import without_surrogates
from nightjar_alerts.models.evolution import History, stability
from nightjar_alerts.models.lightcurve import Float64, LightCurve
from nightjar_alerts.models.photometry import FILTERS
from nightjar_alerts.models.posterior import CurveSummary, Posterior, PosteriorResult, Prior, PriorError
from nightjar_alerts.models.taxonomy import Taxonomy

if TYPE_CHECKING:  # the registry imports the settings, which in-process use does not need
    from nightjar_alerts.service.registry.serving import ModelHandle

_STEP_MEMBERS = (
    "status", "class", "confidence", "probabilities", "novelty", "unusual", "prediction_set", "reason", "detail",
)  # fmt: skip

Role = Literal["", "canary"]
"""Role of a model in a response."""

RequestedPrior = str | Mapping[str, float] | None
"""Prior (class shares) of a request: a name, weights by class, or None for the default."""


def provenance(bundle: Bundle, role: Role = "") -> dict[str, str]:
    """Return the fields of :class:`service.answers.replies.Provenance`."""
    members = {"name": bundle.manifest.name, "version": bundle.manifest.version, "sha256": bundle.sha256}
    return members | {"role": role} if role else members


def classifier_provenance(bundle: Bundle, role: Role = "") -> dict[str, str]:
    """Return the fields of :class:`service.answers.replies.ClassifierProvenance`."""
    taxonomy = bundle.manifest.classes
    return provenance(bundle, role) | {
        "taxonomy": f"{taxonomy.name}/{taxonomy.version}",
        "calibration": bundle.manifest.calibration.method,
    }


SUBTYPE_CONFIDENCE: Final = ("unusual", "prediction_set", "coverage")


class ResultSerializer:
    """Serializer of the results of one model under one prior.

    Parameters
    ----------
    prior : class shares, as a name or weights by class; by default those of the calibration.
    subtypes : bundle of the supernova type model; None without one.

    Raises
    ------
    PriorError
        If the model does not support the prior.
    """

    def __init__(
        self, bundle: Bundle, role: Role = "", prior: RequestedPrior = None, subtypes: Bundle | None = None
    ) -> None:
        taxonomy = bundle.manifest.classes
        self._supernovae = frozenset(taxonomy.supernovae)
        self._subtypes = None if subtypes is None else ResultSerializer(subtypes)
        self.classes, self._ids = taxonomy.names, taxonomy.ids
        self._members_of_group = _members_of_groups(taxonomy)
        self.groups = tuple(self._members_of_group)
        self.bands = bundle.manifest.band_map.labels
        self.embedding_dim = bundle.manifest.embedding_dim
        self._posterior = Posterior(bundle.manifest)
        self._prior = self._posterior.prior(prior)
        self.provenance = classifier_provenance(bundle, role) | _prior_members(self._prior)

    def result(
        self,
        outcome: Outcome,
        identity: Mapping[str, object],
        embedding: bool = False,
    ) -> dict[str, Any]:
        """Return the document of one result, without a list of errors; parameters as :meth:`results`."""
        return self.results([outcome], [identity], [None], embedding)[0]

    def results(
        self,
        outcomes: Sequence[Outcome],
        identities: Iterable[Mapping[str, object]],
        errors: Iterable[Sequence[FieldError] | None],
        embedding: bool = False,
        coverage: float | None = None,
        experts: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the documents of several results.

        Parameters
        ----------
        identities : members that identify each item: ``object_id``, or those of :func:`packet_identity`.
        errors : invalid values of each light curve; None for a packet, whose result has no such list.
        coverage : of the prediction sets; the model's default if None.
        """
        posteriors = iter(
            self._posteriors([outcome for outcome in outcomes if outcome.prediction is not None], coverage)
        )
        return [
            failure_document(outcome, identity, item_errors)
            if outcome.prediction is None
            else self._result(outcome, identity, next(posteriors), embedding, experts)
            for outcome, identity, item_errors in zip(outcomes, identities, errors, strict=True)
        ]

    def _result(
        self,
        outcome: Outcome,
        identity: Mapping[str, object],
        posterior: PosteriorResult,
        embedding: bool,
        experts: bool,
    ) -> dict[str, Any]:
        assert outcome.prediction is not None
        values = posterior.values
        top = values.index(max(values))
        groups = {name: sum([values[index] for index in members]) for name, members in self._members_of_group.items()}
        result = {
            "status": outcome.status,
            **identity,
            "class": self.classes[top],
            "class_id": self._ids[top],
            "confidence": values[top],
            "probabilities": dict(zip(self.classes, values, strict=True)),
            "hierarchy": groups,
            **self._confidence(outcome.prediction, posterior),
            **_input_members(outcome, self.bands),
        }
        if self._subtypes and outcome.subtype and outcome.subtype.prediction and top in self._supernovae:
            result["subtype"] = self._subtypes.subtype(outcome.subtype)
        if embedding:
            result["embedding"] = outcome.prediction.outputs["embedding"]
        if experts and all(name in outcome.prediction.outputs for name in ROUTING_OUTPUTS):
            result["experts"] = self._experts(outcome.prediction)
        return result

    def _experts(self, prediction: Prediction) -> dict[str, Any]:
        """Return the fields of :class:`service.answers.replies.Experts`; bands without observations are left out."""
        counts_SGX, entropy_S = (prediction.outputs[name] for name in ROUTING_OUTPUTS)
        return {
            "layers": [
                {
                    "router_entropy": entropy,
                    "bands": {band: row for band, row in zip(self.bands, rows, strict=True) if any(row)},
                }
                for entropy, rows in zip(entropy_S.tolist(), counts_SGX.astype(int).tolist(), strict=True)
            ]
        }

    def subtype(self, outcome: Outcome) -> dict[str, Any]:
        """Return the fields of :class:`service.answers.replies.Subtype` for an outcome with a prediction."""
        assert outcome.prediction is not None
        posterior = self._posteriors([outcome])[0]
        values = posterior.values
        top = values.index(max(values))
        confidence = self._confidence(outcome.prediction, posterior)
        return {
            "class": self.classes[top],
            "class_id": self._ids[top],
            "confidence": values[top],
            "probabilities": dict(zip(self.classes, values, strict=True)),
            **{name: confidence[name] for name in SUBTYPE_CONFIDENCE if name in confidence},
            "model": self.provenance,
        }

    def probabilities(self, outcome: Outcome) -> Float64 | None:
        """Return the probability of every class, shape (classes,), or None without a prediction."""
        return None if outcome.prediction is None else self._posteriors([outcome])[0].probabilities

    def apply_prior(self, outcome: Outcome) -> Outcome:
        """Return the outcome with its probabilities under the prior, float32."""
        if outcome.prediction is None:
            return outcome
        posterior = self._posteriors([outcome])[0]
        if self._prior is self._posterior.default and not posterior.evidence:
            return outcome  # bitwise equal to the output of the network
        outputs = {**outcome.prediction.outputs, "probabilities": posterior.probabilities.astype(np.float32)}
        return replace(outcome, prediction=replace(outcome.prediction, outputs=outputs))

    def _posteriors(self, outcomes: Sequence[Outcome], coverage: float | None = None) -> list[PosteriorResult]:
        """Return the posteriors of outcomes that have a prediction."""
        predictions = [outcome.prediction.outputs for outcome in outcomes if outcome.prediction is not None]
        if not predictions:
            return []
        curves = [
            CurveSummary(
                outcome.detections,
                len(outcome.points_per_band) - outcome.points_per_band.count(0),
                float(outputs["novelty"]) if "novelty" in outputs else None,
                outcome.metadata,
            )
            for outcome, outputs in zip(outcomes, predictions, strict=True)
        ]
        rows = [outputs["probabilities"].tolist() for outputs in predictions]
        return self._posterior.apply_prior_to_each(rows, curves, self._prior, coverage)

    def _confidence(self, prediction: Prediction, posterior: PosteriorResult) -> dict[str, Any]:
        """Return novelty, prediction set and evidence, as far as the model and the object have them."""
        members: dict[str, Any] = {}
        if "novelty" in prediction.outputs:
            members["novelty"] = float(prediction.outputs["novelty"])
        if posterior.unusual is not None:
            members["unusual"] = posterior.unusual
        if posterior.classes is not None:
            members["prediction_set"] = [self.classes[index] for index in posterior.classes]
            members["coverage"] = posterior.coverage
        if posterior.evidence:
            members["evidence"] = list(posterior.evidence)
        return members

    def evolution(self, history: History, outcomes: Sequence[Outcome], coverage: float | None = None) -> dict[str, Any]:
        """Return the document of :class:`service.answers.replies.Evolution`.

        Parameters
        ----------
        outcomes : outcome of each light curve of the history.
        """
        identities: list[dict[str, object]] = [{}] * len(outcomes)
        results = self.results(outcomes, identities, [None] * len(outcomes), coverage=coverage)
        return evolution_document(history, results)

    def summary(self, history: History, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """Return the document of :class:`service.answers.replies.EvolutionSummary`; parameters as :meth:`evolution`."""
        document = self.evolution(history, outcomes)
        names = ("mjd", "detections", "class", "confidence")
        steps = [{name: step[name] for name in names} for step in document["steps"] if step["status"] == "classified"]
        rest = ("sampled", "class_changes", "last_change_mjd", "recent_variation")
        return {**{name: document[name] for name in rest}, "steps": steps}

    def stream_result(
        self, outcome: Outcome, packet: Packet, key: str, topic: str, embedding: bool = True
    ) -> dict[str, Any]:
        """Return the document of an alert from a stream: its result with key, topic, time and model."""
        result = self.result(outcome, packet_identity(packet), embedding=embedding)
        return {"key": key, "topic": topic, "mjd": packet.mjd, "model": self.provenance, **result}


def evolution_document(history: History, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document of :class:`service.answers.replies.Evolution` from the result of each step."""
    classified = [index for index, result in enumerate(results) if result["status"] == "classified"]
    changes = stability(
        [float(history.mjd[index]) for index in classified],
        [list(results[index]["probabilities"].values()) for index in classified],
    )
    return {
        "object_id": history.curves[-1].object_id,
        "detections": history.detections[-1],
        "sampled": history.sampled,
        "class_changes": changes.class_changes,
        "last_change_mjd": changes.last_change_mjd,
        "recent_variation": changes.recent_variation,
        "steps": [
            {"mjd": float(mjd), "detections": detections}
            | {name: result[name] for name in _STEP_MEMBERS if name in result}
            for mjd, detections, result in zip(history.mjd, history.detections, results, strict=True)
        ],
    }


def light_curve_members(curve: LightCurve) -> dict[str, Any]:
    """Return a light curve in the format of ``/v1/classify``; columns are arrays."""
    return {
        "object_id": curve.object_id,
        "survey": curve.survey,
        "mjd": curve.mjd,
        "flux": curve.flux,
        "flux_err": curve.flux_err,
        "band": [FILTERS[index] for index in curve.band.tolist()],
        "detected": curve.detected,
        "metadata": dict(curve.metadata),
        **({} if curve.ra is None else {"ra": curve.ra, "dec": curve.dec}),
    }


def with_light_curve(result: Mapping[str, Any], read: Read) -> Mapping[str, Any]:
    """Return a result with the light curve of its input, if there is one."""
    curve = curve_of(read)
    return result if curve is None else {**result, "light_curve": light_curve_members(curve)}


def encode_json(document: object) -> bytes:
    """Encode a document, which may contain numpy arrays, as JSON; unpaired surrogates in its texts are escaped."""
    try:
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:  # such as for a text from JSON with the escape of half a character
        return orjson.dumps(_without_surrogates(document), option=orjson.OPT_SERIALIZE_NUMPY)


def _without_surrogates(document: object) -> object:
    if isinstance(document, str):
        return without_surrogates(document)
    if isinstance(document, Mapping):
        return {_without_surrogates(name): _without_surrogates(value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [_without_surrogates(value) for value in document]
    return document


def serialize_all(
    serializers: Sequence[ResultSerializer],
    outcomes: Sequence[Outcome],
    identities: Sequence[Mapping[str, object]],
    errors: Sequence[Sequence[FieldError] | None],
    embedding: bool = False,
    coverage: float | None = None,
    experts: bool = False,
) -> list[dict[str, Any]]:
    """Return the document of each result, made by the serializer of its model.

    The response names the model of its first result; results of other models have a member ``model``.
    """
    distinct = dict.fromkeys(serializers)
    if len(distinct) == 1:
        return serializers[0].results(outcomes, identities, errors, embedding, coverage, experts)
    documents: dict[int, dict[str, Any]] = {}
    for serializer in distinct:
        indices = [index for index, other in enumerate(serializers) if other is serializer]
        results = serializer.results(
            [outcomes[index] for index in indices],
            [identities[index] for index in indices],
            [errors[index] for index in indices],
            embedding,
            coverage,
            experts,
        )
        if serializer.provenance != serializers[0].provenance:
            results = [result | {"model": serializer.provenance} for result in results]
        documents |= zip(indices, results, strict=True)
    return [documents[index] for index in range(len(outcomes))]


# Cached serializers by bundle, role, name of the prior and supernova type model; freed with the bundle.
_SERIALIZERS: WeakKeyDictionary[Bundle, dict[tuple[Role, str | None, str], ResultSerializer]] = WeakKeyDictionary()


def serializer_of(
    bundle: Bundle, prior: str | Mapping[str, Any] | None = None, subtypes: Bundle | None = None, role: Role = ""
) -> ResultSerializer:
    """Return a cached serializer of a model and a prior. Raises PriorError as :class:`ResultSerializer`."""
    if prior is not None and not isinstance(prior, str):
        return ResultSerializer(bundle, role, prior, subtypes)
    serializers = _SERIALIZERS.setdefault(bundle, {})
    key = (role, prior, "" if subtypes is None else subtypes.sha256)
    if key not in serializers:  # few, as an unknown name raises PriorError
        serializers[key] = ResultSerializer(bundle, role, prior, subtypes)
    return serializers[key]


def result_serializer(handle: "ModelHandle", prior: RequestedPrior = None) -> ResultSerializer:
    """Return the serializer of the model of a handle under a prior. Raises PriorError."""
    subtypes = None if handle.subtypes is None else handle.subtypes.bundle
    return serializer_of(handle.bundle, prior, subtypes, handle.role)


def default_serializer(handle: "ModelHandle", prior: str = "") -> ResultSerializer:
    """Return the serializer under the prior of the settings, or under the default prior if the model lacks it."""
    try:
        return result_serializer(handle, prior or None)
    except PriorError:
        return result_serializer(handle)


def failure_document(
    outcome: Outcome, identity: Mapping[str, object], errors: Sequence[FieldError] | None
) -> dict[str, Any]:
    """Return the document of an outcome without a prediction; parameters as :meth:`ResultSerializer.results`."""
    failure = {"status": outcome.status, **identity, "reason": outcome.reason, "detail": outcome.detail}
    return failure if errors is None else failure | {"errors": [msgspec.structs.asdict(error) for error in errors]}


def _input_members(outcome: Outcome, bands: Sequence[str]) -> dict[str, Any]:
    members: dict[str, Any] = {
        "points_per_band": dict(zip(bands, outcome.points_per_band, strict=True)),
        "truncated": outcome.truncated,
        "metadata_missing": outcome.missing_metadata,
    }
    if outcome.duplicates:
        members["duplicates"] = outcome.duplicates
    if outcome.other_filters:
        members["other_filters"] = dict(outcome.other_filters)
    if outcome.dropped_points:
        members["dropped_points"] = dict(outcome.dropped_points)
    return members


def _prior_members(prior: Prior) -> dict[str, str]:
    members = {"prior": prior.name, "coverage_measured_on": prior.measured_on}
    return {name: text for name, text in members.items() if text}


def _members_of_groups(taxonomy: Taxonomy) -> dict[str, list[int]]:
    """Return the indices of the classes in each group, whose probability is their sum (``Taxonomy.rollup``)."""
    rollups = [taxonomy.rollup(row) for row in np.eye(len(taxonomy.classes)).tolist()]
    return {group: [index for index, rollup in enumerate(rollups) if rollup[group]] for group in rollups[0]}
