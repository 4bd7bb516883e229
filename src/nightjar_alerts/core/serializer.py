"""Serializer of results: from the outcomes of a model to the records of :mod:`core.result`, and JSON of these."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import orjson

from nightjar_alerts.alerts.packet import Packet
from nightjar_alerts.core.errors import FieldError
from nightjar_alerts.core.items import Outcome, Prediction, Read, curve_of, packet_identity
from nightjar_alerts.core.record import Record
from nightjar_alerts.core.result import (
    UNCLASSIFIED,
    Abstained,
    Classified,
    ClassifierProvenance,
    EvolutionFields,
    EvolutionPoint,
    EvolutionStep,
    EvolutionSummary,
    ExpertLayer,
    Experts,
    Failed,
    LightCurveOut,
    Rejected,
    ResultFields,
    StreamHead,
    Subtype,
)
from nightjar_alerts.models.bundle import ROUTING_OUTPUTS, Bundle
from nightjar_alerts.models.common import without_surrogates
from nightjar_alerts.models.evolution import History, stability
from nightjar_alerts.models.lightcurve import Float64, LightCurve
from nightjar_alerts.models.photometry import FILTERS
from nightjar_alerts.models.posterior import CurveSummary, Posterior, PosteriorResult, Prior, PriorError
from nightjar_alerts.models.taxonomy import Taxonomy

if TYPE_CHECKING:  # the registry imports the settings, which in-process use does not need
    from nightjar_alerts.service.registry.serving import ModelHandle

_STEP_FIELDS: Final = (
    "class_name", "confidence", "probabilities", "novelty", "unusual", "prediction_set", "reason", "detail",
)  # fmt: skip

Role = Literal["", "canary"]
"""Role of a model in a response."""

RequestedPrior = str | Mapping[str, float] | None
"""Prior (class shares) of a request: a name, weights by class, or None for the default."""


def classifier_provenance(bundle: Bundle, role: Role = "", prior: Prior | None = None) -> ClassifierProvenance:
    """Return the provenance of the results of a bundle under a prior."""
    manifest = bundle.manifest
    return ClassifierProvenance(
        name=manifest.name,
        version=manifest.version,
        sha256=bundle.sha256,
        role=role or None,
        taxonomy=f"{manifest.classes.name}/{manifest.classes.version}",
        calibration=manifest.calibration.method,
        prior=None if prior is None else prior.name or None,
        coverage_measured_on=None if prior is None else prior.measured_on or None,
    )


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
        self._values_of_group = _values_of_groups(taxonomy)
        self.groups = tuple(self._values_of_group)
        self.bands = bundle.manifest.band_map.labels
        self.embedding_dim = bundle.manifest.embedding_dim
        self._posterior = Posterior(bundle.manifest)
        self._prior = self._posterior.prior(prior)
        self.provenance = classifier_provenance(bundle, role, self._prior)

    def result(
        self,
        outcome: Outcome,
        identity: Mapping[str, Any],
        embedding: bool = False,
    ) -> ResultFields:
        """Return one result, without a list of errors; parameters as :meth:`results`."""
        return self.results([outcome], [identity], [None], embedding)[0]

    def results(
        self,
        outcomes: Sequence[Outcome],
        identities: Iterable[Mapping[str, Any]],
        errors: Iterable[Sequence[FieldError] | None],
        embedding: bool = False,
        coverage: float | None = None,
        experts: bool = False,
    ) -> list[ResultFields]:
        """Return the results of several outcomes.

        Parameters
        ----------
        identities : fields that identify each item, as :func:`core.items.identity_of` returns them.
        errors : invalid values of each light curve; None for a packet, whose result has no such list.
        coverage : of the prediction sets; the model's default if None.
        """
        posteriors = iter(
            self._posteriors([outcome for outcome in outcomes if outcome.prediction is not None], coverage)
        )
        return [
            failure(outcome, identity, item_errors)
            if outcome.prediction is None
            else self._result(outcome, identity, next(posteriors), embedding, experts)
            for outcome, identity, item_errors in zip(outcomes, identities, errors, strict=True)
        ]

    def _result(
        self,
        outcome: Outcome,
        identity: Mapping[str, Any],
        posterior: PosteriorResult,
        embedding: bool,
        experts: bool,
    ) -> Classified:
        assert outcome.prediction is not None
        outputs, values = outcome.prediction.outputs, posterior.values
        top = values.index(max(values))
        result = Classified(
            **identity,
            class_name=self.classes[top],
            class_id=self._ids[top],
            confidence=values[top],
            probabilities=dict(zip(self.classes, values, strict=True)),
            hierarchy={name: sum(select(values)) for name, select in self._values_of_group.items()},
            novelty=float(outputs["novelty"]) if "novelty" in outputs else None,
            unusual=posterior.unusual,
            prediction_set=self._names(posterior.classes),
            coverage=posterior.coverage if posterior.classes is not None else None,
            evidence=list(posterior.evidence) or None,
            points_per_band=dict(zip(self.bands, outcome.points_per_band, strict=True)),
            truncated=outcome.truncated,
            metadata_missing=outcome.missing_metadata,
            duplicates=outcome.duplicates or None,
            other_filters=dict(outcome.other_filters) or None,
            dropped_points=dict(outcome.dropped_points) or None,
        )
        if self._subtypes and outcome.subtype and outcome.subtype.prediction and top in self._supernovae:
            result.subtype = self._subtypes.subtype(outcome.subtype)
        if embedding:
            result.embedding = outputs["embedding"]  # type: ignore[assignment]  # an array until it is encoded
        if experts and all(name in outputs for name in ROUTING_OUTPUTS):
            result.experts = self._experts(outcome.prediction)
        return result

    def _names(self, indices: Sequence[int] | None) -> list[str] | None:
        return None if indices is None else [self.classes[index] for index in indices]

    def _experts(self, prediction: Prediction) -> Experts:
        """Return the experts of a prediction; bands without observations are left out."""
        counts_SGX, entropy_S = (prediction.outputs[name] for name in ROUTING_OUTPUTS)
        return Experts(
            layers=[
                ExpertLayer(
                    router_entropy=entropy,
                    bands={band: row for band, row in zip(self.bands, rows, strict=True) if any(row)},
                )
                for entropy, rows in zip(entropy_S.tolist(), counts_SGX.astype(int).tolist(), strict=True)
            ]
        )

    def subtype(self, outcome: Outcome) -> Subtype:
        """Return the subtype of an outcome with a prediction."""
        posterior = self._posteriors([outcome])[0]
        values = posterior.values
        top = values.index(max(values))
        return Subtype(
            class_name=self.classes[top],
            class_id=self._ids[top],
            confidence=values[top],
            probabilities=dict(zip(self.classes, values, strict=True)),
            unusual=posterior.unusual,
            prediction_set=self._names(posterior.classes),
            coverage=posterior.coverage if posterior.classes is not None else None,
            model=copy(self.provenance),
        )

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

    def evolution(
        self, history: History, outcomes: Sequence[Outcome], coverage: float | None = None
    ) -> EvolutionFields:
        """Return the evolution of an object.

        Parameters
        ----------
        outcomes : outcome of each light curve of the history.
        """
        identities = [{"object_id": ""}] * len(outcomes)
        results = self.results(outcomes, identities, [None] * len(outcomes), coverage=coverage)
        return evolution_document(history, results)

    def summary(self, history: History, outcomes: Sequence[Outcome]) -> EvolutionSummary:
        """Return the summary of an evolution for a stream; parameters as :meth:`evolution`."""
        whole = self.evolution(history, outcomes)
        return EvolutionSummary(
            sampled=whole.sampled,
            class_changes=whole.class_changes,
            last_change_mjd=whole.last_change_mjd,
            recent_variation=whole.recent_variation,
            steps=[
                EvolutionPoint(
                    mjd=step.mjd, detections=step.detections, class_name=step.class_name, confidence=step.confidence
                )
                for step in whole.steps
                if step.class_name is not None and step.confidence is not None
            ],
        )

    def stream_result(
        self, outcome: Outcome, packet: Packet, key: str, topic: str, embedding: bool = True
    ) -> dict[str, Any]:
        """Return the fields of an alert's record in a stream, without its evolution."""
        head = StreamHead(key=key, topic=topic, mjd=packet.mjd, model=self.provenance)
        return head.members() | self.result(outcome, packet_identity(packet), embedding=embedding).members()


def evolution_document(history: History, results: Sequence[ResultFields]) -> EvolutionFields:
    """Return the evolution of an object from the result of each step."""
    rows = {
        float(mjd): list(result.probabilities.values())
        for mjd, result in zip(history.mjd, results, strict=True)
        if isinstance(result, Classified)
    }
    changes = stability(list(rows), list(rows.values()))
    return EvolutionFields(
        object_id=history.curves[-1].object_id,
        detections=history.detections[-1],
        sampled=history.sampled,
        class_changes=changes.class_changes,
        last_change_mjd=changes.last_change_mjd,
        recent_variation=changes.recent_variation,
        steps=[
            EvolutionStep(
                mjd=float(mjd),
                detections=detections,
                status=result.status,
                **{name: getattr(result, name) for name in _STEP_FIELDS if hasattr(result, name)},
            )
            for mjd, detections, result in zip(history.mjd, history.detections, results, strict=True)
        ],
    )


def light_curve_out(curve: LightCurve) -> LightCurveOut:
    """Return a light curve in the format of ``/v1/classify``; its columns are arrays until they are encoded.

    Total flux is returned as it was given, with the reference flux, so that both are as they were if it is sent again.
    """
    columns: dict[str, Any] = {name: getattr(curve, name) for name in ("mjd", "flux", "flux_err", "detected")}
    if (total := curve.total_flux()) is not None:  # detections are those of the difference, which is formed again
        columns |= {"flux": total, "detected": None}
        columns |= {"flux_kind": "total", "reference_flux": dict(curve.reference_flux)}
    return LightCurveOut(
        object_id=curve.object_id,
        survey=curve.survey,
        **columns,
        band=[FILTERS[index] for index in curve.band.tolist()],
        metadata=dict(curve.metadata),
        ra=curve.ra,
        dec=curve.dec,
    )


def add_light_curve(result: ResultFields, read: Read) -> None:
    """Add the light curve of its input to a result, if there is one."""
    if (curve := curve_of(read)) is not None:
        result.light_curve = light_curve_out(curve)


def _encode_other(value: object) -> msgspec.Raw:
    """Encode arrays and scalars of numpy, and subclasses of str."""
    return msgspec.Raw(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


_JSON_ENCODER = msgspec.json.Encoder(enc_hook=_encode_other)


def encode_json(document: object) -> bytes:
    """Encode a document of records and arrays as JSON; unpaired surrogates in its texts are escaped."""
    try:
        return _JSON_ENCODER.encode(document)
    except (UnicodeEncodeError, orjson.JSONEncodeError):  # a text from JSON with the escape of half a character
        return _JSON_ENCODER.encode(_without_surrogates(document))


def _without_surrogates(document: object) -> object:
    if isinstance(document, Record):
        return _without_surrogates(document.members())
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
    identities: Sequence[Mapping[str, Any]],
    errors: Sequence[Sequence[FieldError] | None],
    embedding: bool = False,
    coverage: float | None = None,
    experts: bool = False,
) -> list[ResultFields]:
    """Return each result, made by the serializer of its model.

    The response names the model of its first result; results of other models name theirs in ``model``.
    """
    distinct = dict.fromkeys(serializers)
    if len(distinct) == 1:
        return serializers[0].results(outcomes, identities, errors, embedding, coverage, experts)
    found: dict[int, ResultFields] = {}
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
            for result in results:
                result.model = serializer.provenance
        found |= zip(indices, results, strict=True)
    return [found[index] for index in range(len(outcomes))]


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


def failure(
    outcome: Outcome, identity: Mapping[str, Any], errors: Sequence[FieldError] | None
) -> Abstained | Rejected | Failed:
    """Return the result of an outcome without a prediction; parameters as :meth:`ResultSerializer.results`."""
    kind = UNCLASSIFIED[outcome.status]
    return kind(
        **identity, reason=str(outcome.reason), detail=outcome.detail, errors=None if errors is None else list(errors)
    )


def _values_of_groups(taxonomy: Taxonomy) -> dict[str, Callable[[Sequence[float]], Sequence[float]]]:
    """Return a function for each group that selects its classes; their sum is its probability (``Taxonomy.rollup``)."""
    rollups = [taxonomy.rollup(row) for row in np.eye(len(taxonomy.classes)).tolist()]
    members = {group: [index for index, rollup in enumerate(rollups) if rollup[group]] for group in rollups[0]}
    return {
        # itemgetter returns a tuple for two indices or more only
        group: itemgetter(*indices) if len(indices) > 1 else itemgetter(slice(indices[0], indices[0] + 1))
        for group, indices in members.items()
    }
