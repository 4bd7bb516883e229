"""Recipes: every named run is a function that returns its full configuration.

Notable:

- the three paper recipes hold the networks whose sizes the paper states: 4,640,422 (``astro-moe-pe``), 4,935,334
  (``astro-moe-tm``) and 1,525,372 (``multiband-astromer``) parameters, with its dropout 0.1, Adam at 1e-4, batches of
  256, load-balance weight 0.01 and ATAT's temporal augmentation; what the paper leaves open is ATAT's (Cabrera-Vives
  et al. 2024);
- ``default`` makes the shipped model: ``astro-moe-tm`` at two thirds of its width, sized for an hour on a CPU core, on
  views of the curves as real Rubin and ZTF alerts show them (few detections, no metadata, g and r only);
  ``default-statistics`` goes on from it for half an hour with statistics of the light curve at hand, and
  ``default-periods`` from that, for as long, with its periods;
- ``default-dense`` is its twin without experts, for comparisons of speed;
- ``default-ztf`` goes on from its weights on simulated ZTF supernovae; ``default-finetuning`` puts new heads on it for
  a few thousand real objects, ``default-finetuning-metadata`` for those that have metadata, ``default-ztf-alerts`` for
  ZTF's as alerts show them; ``default-finetuning-whole`` trains all of it on;
- ``sky-body`` and ``sky-body-views`` go on from its weights on light curves of every survey, ``sky-heads`` puts
  heads on them that see statistics beside them, ``sky-whole`` trains all of it on;
- ``debug`` runs the whole pipeline in under a minute, ``debug-<architecture>`` that of every other architecture;
- a recipe's task is to classify, to reconstruct (``...-pretraining``, whose weights ``train --pretrained`` starts from)
  or to forecast;
- a variant calls its parent and changes what differs, so a diff of two recipes is a diff of two functions.

Print one, resolved::

    python -m training describe default
"""

from collections.abc import Callable

from training.recipes import astro_moe, astromer, informer, romae
from training.recipes.schema import Recipe

_MAKERS: tuple[Callable[[], Recipe], ...] = (
    astro_moe.astro_moe_pe,
    astro_moe.astro_moe_tm,
    astro_moe.multiband_astromer,
    astro_moe.default,
    astro_moe.default_statistics,
    astro_moe.default_periods,
    astro_moe.default_dense,
    astro_moe.default_finetuning,
    astro_moe.default_finetuning_metadata,
    astro_moe.default_finetuning_whole,
    astro_moe.default_ztf_alerts,
    astro_moe.sky_body,
    astro_moe.sky_body_views,
    astro_moe.sky_heads,
    astro_moe.sky_whole,
    astro_moe.sky_heads_ztf,
    astro_moe.default_ztf,
    astro_moe.default_pe,
    astro_moe.default_multiband_astromer,
    astro_moe.multiband_astromer_finetuning,
    astro_moe.default_pretraining,
    astro_moe.debug,
    astro_moe.debug_pretraining,
    romae.romae_tiny_shallow,
    romae.romae_tiny,
    romae.romae_small,
    romae.romae_base,
    romae.romae_tiny_shallow_pretraining,
    romae.romae_tiny_pretraining,
    romae.romae_default,
    romae.debug_romae,
    romae.debug_romae_pretraining,
    astromer.astromer,
    astromer.astromer_v2,
    astromer.astromer_pretraining,
    astromer.astromer_v2_pretraining,
    astromer.debug_astromer,
    astromer.debug_astromer_pretraining,
    informer.informer,
    informer.informer_forecast,
    informer.debug_informer,
    informer.debug_informer_forecast,
)

RECIPES: dict[str, Callable[[], Recipe]] = {make().name: make for make in _MAKERS}
