"""Recipes: every named run is a function that returns its full configuration.

Notable:

- the three paper recipes hold the networks whose sizes the paper states: 4,640,422 (``astro-moe-pe``), 4,935,334
  (``astro-moe-tm``) and 1,525,372 (``multiband-astromer``) parameters, with its dropout 0.1, Adam at 1e-4, batches of
  256, load-balance weight 0.01 and ATAT's temporal augmentation; what the paper leaves open is ATAT's (Cabrera-Vives
  et al. 2024);
- ``default`` is the shipped model: ``astro-moe-tm`` at two thirds of its width, sized for an hour on a CPU core, on
  views of the curves as real Rubin and ZTF alerts show them (few detections, no metadata, g and r only);
- ``default-dense`` is its twin without experts, for comparisons of speed;
- ``debug`` runs the whole pipeline in under a minute;
- a variant calls its parent and changes what differs, so a diff of two recipes is a diff of two functions.

Print one, resolved::

    python -m training describe default
"""

from collections.abc import Callable

from training.recipes.astro_moe import (
    astro_moe_pe,
    astro_moe_tm,
    debug,
    default,
    default_dense,
    multiband_astromer,
)
from training.recipes.schema import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    "astro-moe-pe": astro_moe_pe,
    "astro-moe-tm": astro_moe_tm,
    "multiband-astromer": multiband_astromer,
    "default": default,
    "default-dense": default_dense,
    "debug": debug,
}
