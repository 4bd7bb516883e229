"""Routing of light curves to models, in the service and in `Classifier`.

If a request names no model, a light curve is routed to

1. the model with the alias of its survey, if there is one, else the model ``default``. A model that knows only
   supernova types is not used for the survey; it adds the type if the default model's result may be a supernova;
2. if the light curve is outside the domain (bands, brightness, survey) of this model's bundle, the first model of the
   other :data:`ROUTED_ALIASES` whose bundle declares a domain that includes it;
3. if there is none, no model; the reason names the model that the client can request.

A bundle without a domain accepts every light curve and is never used as a substitute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from nightjar_alerts.alerts.surveys import SURVEY_BY_NAME, SURVEYS
from nightjar_alerts.models.bundle import PRETRAINED, Bundle, Manifest
from nightjar_alerts.models.lightcurve import LightCurve, no_band_message
from nightjar_alerts.models.photometry import UNKNOWN
from nightjar_alerts.models.taxonomy import Taxonomy

DEFAULT: Final = "default"
"""Alias of the model for light curves of surveys without a model."""
ROUTED_ALIASES: Final = (DEFAULT, *sorted(SURVEY_BY_NAME))
"""Aliases to which light curves are routed: the default and those of the surveys."""
SURVEY_BUNDLES: Final = {survey.name: PRETRAINED / survey.bundle for survey in SURVEYS if survey.bundle is not None}
"""Shipped bundles that classify the packets of one survey, by survey name."""
MIN_SUPERNOVA_PROBABILITY: Final = 0.1
"""Minimum probability of a supernova, before priors, for the model of supernova types to classify the light curve."""


class HasBundle(Protocol):
    """A model that can be routed to."""

    @property
    def bundle(self) -> Bundle:
        """Bundle of the model."""


ModelT = TypeVar("ModelT", bound=HasBundle)


@dataclass(frozen=True, slots=True)
class Route(Generic[ModelT]):
    """Models for a light curve.

    Attributes
    ----------
    subtypes : model of supernova types, which also classifies the light curve if it may be a supernova.
    outside : why the light curve is outside every domain; empty if ``model`` classifies it.
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
    """Choose the models for a light curve.

    Parameters
    ----------
    curve : None for input that cannot be classified, which gets the model of its survey.
    survey : of a light curve that does not state its survey.
    find : returns the model of an alias, None if there is none.
    default : returns the model of the alias ``default``; called only if needed.
    substitute : if False, do not use another model outside the first one's domain, or to add types.
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
    """Return why a light curve is outside a bundle's domain; empty if it is inside or no domain is declared."""
    name, bands = manifest.name, manifest.band_map
    reason = "" if manifest.domain is None else manifest.domain.outside(curve, bands)
    if reason and (bands.table(curve.survey)[curve.band] == UNKNOWN).all():
        return f"{name}: {no_band_message(curve, bands)}"
    return reason and f"{name}: {reason}; name the model {name} in the request to classify it anyway"


def may_be_supernova(probabilities_C: NDArray[Any], classes: Taxonomy) -> bool:
    """Return True if the model of supernova types should classify a light curve, too.

    Parameters
    ----------
    probabilities_C : of the first model, before priors, shape (classes,).
    """
    return float(probabilities_C[classes.supernovae].sum()) >= MIN_SUPERNOVA_PROBABILITY
