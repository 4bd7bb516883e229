"""Serialize results, as :mod:`service.answers.replies` describes them.

They go straight to bytes: going through the models would cost several times as much, and tests hold the two to each
other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import orjson

from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.models.lightcurve import Float64
from nightjar_alerts.models.posterior import Conclusion, CurveSummary, Posterior, Prior, PriorError
from nightjar_alerts.models.taxonomy import Taxonomy
from nightjar_alerts.service.answers.replies import FieldError
from nightjar_alerts.service.dataplane import Outcome
from nightjar_alerts.service.engine.batch import Prediction
from nightjar_alerts.service.registry.names import Role

if TYPE_CHECKING:  # the model registry needs the settings, which an in-process program does without
    from nightjar_alerts.service.registry.serving import ModelHandle, ServedModel

AskedPrior = str | Mapping[str, float] | None
"""Class shares as requests ask for them: a name, weights by class, or none."""


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


class ClassWriter:
    """Writes replies in the name of one classifier.

    Parameters
    ----------
    prior : class shares that the replies assume, a name or weights by class; those of the calibration by default.

    Raises
    ------
    PriorError
        For class shares that the model cannot use.
    """

    def __init__(self, bundle: Bundle, role: Role = "", prior: AskedPrior = None) -> None:
        taxonomy = bundle.manifest.classes
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
        errors: Sequence[FieldError] | None = None,
        embedding: bool = False,
        coverage: float | None = None,
    ) -> dict[str, Any]:
        """One result.

        Parameters
        ----------
        identity : what names the item: ``object_id`` and, for a packet, where it comes from.
        errors : values at fault in a light curve; None for a packet, whose reply has no such list.
        coverage : of the prediction set; the model's own by default.
        """
        return self.results([outcome], [identity], [errors], embedding, coverage)[0]

    def results(
        self,
        outcomes: Sequence[Outcome],
        identities: Iterable[Mapping[str, object]],
        errors: Iterable[Sequence[FieldError] | None],
        embedding: bool = False,
        coverage: float | None = None,
    ) -> list[dict[str, Any]]:
        """Return the result of each outcome, as :meth:`result` does of one."""
        concluded = iter(self._conclude([outcome for outcome in outcomes if outcome.prediction is not None], coverage))
        return [
            _failure(outcome, identity, faults)
            if outcome.prediction is None
            else self._result(outcome, identity, next(concluded), embedding)
            for outcome, identity, faults in zip(outcomes, identities, errors, strict=True)
        ]

    def _result(
        self,
        outcome: Outcome,
        identity: Mapping[str, object],
        concluded: Conclusion,
        embedding: bool,
    ) -> dict[str, Any]:
        assert outcome.prediction is not None
        values = concluded.values
        top = values.index(max(values))
        groups = {name: sum([values[place] for place in places]) for name, places in self._members_of_group.items()}
        result = {
            "status": outcome.status,
            **identity,
            "class": self.classes[top],
            "class_id": self._ids[top],
            "confidence": values[top],
            "probabilities": dict(zip(self.classes, values, strict=True)),
            "hierarchy": groups,
            **self._confidence(outcome.prediction, concluded),
            **_input_members(outcome, self.bands),
        }
        if embedding:
            result["embedding"] = outcome.prediction.outputs["embedding"]
        return result

    def probabilities(self, outcome: Outcome) -> Float64 | None:
        """Probability of every class, shape (classes,); None where the network did not answer."""
        return None if outcome.prediction is None else self._conclude([outcome])[0].probabilities

    def concluded(self, outcome: Outcome) -> Outcome:
        """Put the probabilities of the posterior in place of the graph's, float32."""
        if outcome.prediction is None:
            return outcome
        concluded = self._conclude([outcome])[0]
        if self._prior is self._posterior.default and not concluded.evidence:
            return outcome  # to the last bit what the graph said
        outputs = {**outcome.prediction.outputs, "probabilities": concluded.probabilities.astype(np.float32)}
        return replace(outcome, prediction=replace(outcome.prediction, outputs=outputs))

    def _conclude(self, outcomes: Sequence[Outcome], coverage: float | None = None) -> list[Conclusion]:
        """Conclude on outcomes that have an answer."""
        answers = [outcome.prediction.outputs for outcome in outcomes if outcome.prediction is not None]
        if not answers:
            return []
        curves = [
            CurveSummary(
                outcome.detections,
                len(outcome.points_per_band) - outcome.points_per_band.count(0),
                float(outputs["novelty"]) if "novelty" in outputs else None,
                outcome.metadata,
            )
            for outcome, outputs in zip(outcomes, answers, strict=True)
        ]
        rows = [outputs["probabilities"].tolist() for outputs in answers]
        return self._posterior.conclude_each(rows, curves, self._prior, coverage)

    def _confidence(self, prediction: Prediction, concluded: Conclusion) -> dict[str, Any]:
        """Novelty, prediction set and evidence, of a model and an object that have them."""
        members: dict[str, Any] = {}
        if "novelty" in prediction.outputs:
            members["novelty"] = float(prediction.outputs["novelty"])
        if concluded.unusual is not None:
            members["unusual"] = concluded.unusual
        if concluded.classes is not None:
            members["prediction_set"] = [self.classes[index] for index in concluded.classes]
            members["coverage"] = concluded.coverage
        if concluded.evidence:
            members["evidence"] = list(concluded.evidence)
        return members

    def write(self, results: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode a whole reply."""
        return _encode(self.provenance, results)


def each_written(
    writers: Sequence[ClassWriter],
    outcomes: Sequence[Outcome],
    identities: Sequence[Mapping[str, object]],
    errors: Sequence[Sequence[FieldError] | None],
    embedding: bool = False,
    coverage: float | None = None,
) -> list[dict[str, Any]]:
    """Return the result of each outcome in the name of its writer; those of others than the first name their model."""
    different = dict.fromkeys(writers)
    if len(different) == 1:
        return writers[0].results(outcomes, identities, errors, embedding, coverage)
    written: dict[int, dict[str, Any]] = {}
    for writer in different:
        places = [place for place, one in enumerate(writers) if one is writer]
        results = writer.results(
            [outcomes[place] for place in places],
            [identities[place] for place in places],
            [errors[place] for place in places],
            embedding,
            coverage,
        )
        if writer is not writers[0]:
            results = [result | {"model": writer.provenance} for result in results]
        written |= zip(places, results, strict=True)
    return [written[place] for place in range(len(outcomes))]


# A writer is made once for a model, a role and the name of a prior, and goes with the model.
_CLASS_WRITERS: "WeakKeyDictionary[ServedModel, dict[tuple[Role, str | None], ClassWriter]]" = WeakKeyDictionary()


def class_writer(handle: "ModelHandle", prior: AskedPrior = None) -> ClassWriter:
    """Return the writer of a classifier's results under a prior; raises PriorError as :class:`ClassWriter` does."""
    if prior is not None and not isinstance(prior, str):
        return ClassWriter(handle.bundle, handle.role, prior)
    writers = _CLASS_WRITERS.setdefault(handle.model, {})
    key = (handle.role, prior)
    if key not in writers:  # few are kept: a name that the model does not have raises here
        writers[key] = ClassWriter(handle.bundle, handle.role, prior)
    return writers[key]


def usual_writer(handle: "ModelHandle", prior: str = "") -> ClassWriter:
    """Return the writer under the operator's prior, or under the model's own where it has none of that name."""
    try:
        return class_writer(handle, prior or None)
    except PriorError:
        return class_writer(handle)


def _failure(outcome: Outcome, identity: Mapping[str, object], errors: Sequence[FieldError] | None) -> dict[str, Any]:
    failure = {"status": outcome.status, **identity, "reason": outcome.reason, "detail": outcome.detail}
    return failure if errors is None else failure | {"errors": [error.model_dump() for error in errors]}


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


def _encode(model: Mapping[str, str], results: Sequence[Mapping[str, Any]]) -> bytes:
    return orjson.dumps({"model": model, "results": results}, option=orjson.OPT_SERIALIZE_NUMPY)


def _members_of_groups(taxonomy: Taxonomy) -> dict[str, list[int]]:
    """Return the places of the classes in each group, whose probability is their sum (``Taxonomy.rollup``)."""
    in_each_class = [taxonomy.rollup(row) for row in np.eye(len(taxonomy.classes)).tolist()]
    return {
        group: [place for place, of_class in enumerate(in_each_class) if of_class[group]] for group in in_each_class[0]
    }
