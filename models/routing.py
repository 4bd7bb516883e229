"""Which model classifies a light curve, and which one adds its subtype; the same for the service and for `Classifier`.

A light curve for which no model is named goes to

1. the model of the alias of its survey, if there is one, else of the alias ``default``; a model of supernova types
   alone does not classify a survey, but adds the type where the default's answer may be a supernova;
2. if it lies outside the domain (bands, brightness, survey) that this model's bundle states, the first model of the
   other :data:`ROUTED_ALIASES` whose bundle states a domain that includes it;
3. if there is none, no model: the reason names the model that could be requested.

A bundle without a domain accepts every light curve and is never used as a substitute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from nightjar_alerts.models.alerts.surveys import SURVEY_BY_NAME
from nightjar_alerts.models.bundle import Bundle, Manifest
from nightjar_alerts.models.lightcurve import LightCurve
from nightjar_alerts.models.taxonomy import Taxonomy

DEFAULT: Final = "default"
"""Alias of the classifier for light curves for which no model is named."""
ROUTED_ALIASES: Final = (DEFAULT, *sorted(SURVEY_BY_NAME))
"""Aliases to which light curves are routed: that of the survey if it exists, else the default."""
MIN_SUPERNOVA_PROBABILITY: Final = 0.1
"""Probability of a supernova, before priors, from which the model of supernova types classifies a light curve too."""


class HasBundle(Protocol):
    """A model that can be routed to."""

    @property
    def bundle(self) -> Bundle:
        """Bundle of the model."""


ModelT = TypeVar("ModelT", bound=HasBundle)


@dataclass(frozen=True, slots=True)
class Route(Generic[ModelT]):
    """The models of a light curve.

    Attributes
    ----------
    subtypes : model of supernova types, which also classifies the light curve if it may be a supernova.
    outside : why the light curve lies outside every domain; empty if ``model`` classifies it.
    """

    model: ModelT
    subtypes: ModelT | None = None
    outside: str = ""


def route(
    curve: LightCurve | None,
    survey: str,
    find: Callable[[str], ModelT | None],
    default: Callable[[], ModelT],
    substitute: bool = True,
) -> Route[ModelT]:
    """Choose the models of a light curve.

    Parameters
    ----------
    curve : None for what cannot be classified, which gets the model of its survey.
    survey : of the light curve, unless it states its own.
    find : returns the model of an alias, None if there is none.
    default : returns the model of the alias ``default``; called where the survey has no model of its own.
    substitute : if False, no other model answers a light curve outside the domain of the first, or adds types.
    """
    survey = (curve.survey if curve is not None else "") or survey
    model = find(survey) or default()
    subtypes: ModelT | None = None
    if _only_supernovae(model) and not _only_supernovae(usual := default()):
        model, subtypes = usual, model if substitute else None
    outside = "" if curve is None else outside_domain(curve, model.bundle.manifest)
    if curve is None or not outside:
        return Route(model, subtypes)
    for alias in ROUTED_ALIASES if substitute else ():
        other = find(alias)
        if other is None or other.bundle is model.bundle or other.bundle.manifest.domain is None:
            continue
        if not outside_domain(curve, other.bundle.manifest):
            return Route(other)
    return Route(model, subtypes, outside)


def _only_supernovae(model: HasBundle) -> bool:
    return model.bundle.manifest.classes.only_supernovae


def outside_domain(curve: LightCurve, manifest: Manifest) -> str:
    """Return why a light curve lies outside a bundle's domain; empty if it does not, or if none is stated."""
    reason = "" if manifest.domain is None else manifest.domain.outside(curve, manifest.band_map)
    name = manifest.name
    return reason and f"{name}: {reason}; name the model {name} in the request to classify it anyway"


def may_be_supernova(probabilities_C: NDArray[Any], classes: Taxonomy) -> bool:
    """Return True if the model of supernova types has to classify a light curve, too.

    Parameters
    ----------
    probabilities_C : of the first model, before priors, shape (classes,).
    """
    return float(probabilities_C[classes.supernovae].sum()) >= MIN_SUPERNOVA_PROBABILITY
