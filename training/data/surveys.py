"""Load all labelled sets of a data folder as one sample, split by object, with a cache.

Rows with a common name, alias or stated match in another set form a group. A hash of its smallest name selects the
part, so the split does not change when sets without new names are added. Prefixes "SN" and "AT" are ignored.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from nightjar_alerts.training.data.sample import PARTS, Sample, SurveyObject, collect, read_sample, write_sample
from nightjar_alerts.training.data.survey_readers import (
    CONFLICTS,
    EVALUATION_ONLY,
    read_catalina,
    read_elasticc,
    read_mallorn,
    read_real,
    read_rubin,
    read_ztf_periodic,
    read_ztf_supernovae,
)

VERSION: Final = 1
"""Version of the sample and of the rules that fill it; a cache of another version is not read."""

SALT: Final = "nightjar-sky-1:"
"""Part of the hash: another text would move objects between the parts of the split."""
BOUNDARIES: Final = (0.70, 0.85)
"""Hash fractions at which the valid part and the test part begin."""

_PREFIXES: Final = frozenset({"ztf", "ztf?", "ztf_alerts", "osc", "kait", "cfa3", "cfa124", "csp_dr3", "loss", "slsne",
                              "manytde", "s82_rrlyrae", "ps1_rrlyrae", "gaia_alerts", "crts_mantra", "yse_dr1",
                              "ogle_ulens", "ogle_ews2025", "ogle2_ulens", "tdecat", "des3yr", "snls", "ps1md",
                              "foundation_dr1", "ztf_ia2018", "mallorn", "css", "variable_stars",
                              "vsx_eb"})  # fmt: skip


def load_surveys(data: Path, cache: Path | None = None) -> Sample:
    """Return the objects of every set below ``data``; absent sets are skipped.

    Parameters
    ----------
    data : folder with ``real/``, ``ztf_sn/``, ``elasticc_objects/``, ``mallorn/``, ``ztf_dr_periodic/`` ...
    cache : folder of the cached sample, which is written if it does not exist.

    Raises
    ------
    ValueError
        If no set is found.
    """
    stored = None if cache is None else cache / f"surveys-{VERSION}.npz"
    if stored is not None and stored.exists():
        return read_sample(stored)
    sample = assemble(read_all(data))
    if stored is not None:
        write_sample(sample, stored)
    return sample


def read_all(data: Path) -> list[SurveyObject]:
    """Return the objects of every set below ``data``. Raises ValueError if there are none."""
    objects = [
        *read_real(data / "real"),
        *read_ztf_supernovae(data / "ztf_sn", CONFLICTS),
        *read_elasticc(data / "elasticc_objects"),
        *read_mallorn(data / "mallorn"),
        *read_ztf_periodic(data / "ztf_dr_periodic"),
        *read_catalina(data / "css_south_periodic"),
        *read_rubin(data),
    ]
    if not objects:
        raise ValueError(f"{data} holds none of the sets that can be read")
    return objects


def assemble(objects: Sequence[SurveyObject]) -> Sample:
    """Group objects across surveys, drop contradictory labels, and assign each group to a part of the split.

    Sets for evaluation only are in the test part, with all other rows of their groups. If rows of a group have
    different classes, all of them lose their label.
    """
    groups = group_names([(row.object_id, *row.names) for row in objects])
    _drop_conflicts(objects, groups)
    measured = {group for row, group in zip(objects, groups, strict=True) if row.source in EVALUATION_ONLY}
    parts = [PARTS.index("test") if group in measured else part_of(group) for group in groups]
    return collect((merge_duplicates(row) for row in objects), groups, parts)


def _drop_conflicts(objects: Sequence[SurveyObject], groups: Iterable[str]) -> None:
    labels: dict[str, set[int]] = {}
    groups = list(groups)
    for row, group in zip(objects, groups, strict=True):
        if row.label >= 0:
            labels.setdefault(group, set()).add(row.label)
    for row, group in zip(objects, groups, strict=True):
        if len(labels.get(group, ())) > 1:
            row.label, row.quality = -1, "conflicting"


def normalized_name(name: str) -> str:
    """Return a name in upper case, without survey prefix, SN or AT."""
    text = name.strip().partition(":")[2] if name.strip().partition(":")[0] in _PREFIXES else name.strip()
    upper = text.upper().replace(" ", "").replace("_", "")
    return upper[2:] if upper[:2] in ("SN", "AT") and upper[2:3].isdigit() else upper


def group_names(names: Sequence[Iterable[str]]) -> list[str]:
    """Return the group of each row, named after its smallest member. Rows with any common name are in one group."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    firsts = []
    for row in names:
        members = [normalized_name(name) for name in row if name.strip()]
        for other in members[1:]:
            low, high = sorted((root(members[0]), root(other)))
            parent[high] = low
        firsts.append(members[0])
    return [root(first) for first in firsts]


def part_of(group: str) -> int:
    """Return the index into `PARTS` of a group: 70 % train, 15 % valid, 15 % test, by a hash of its name."""
    fraction = int.from_bytes(hashlib.sha256((SALT + group).encode()).digest()[:8], "big") / 2.0**64
    return sum(fraction >= boundary for boundary in BOUNDARIES)


def as_observed(sample: Sample, enough: int = 5) -> Sample:
    """Select the points of a typical request: measured fluxes, in native bands if there are enough.

    Upper limits are removed. Foreign points are removed if an object has ``enough`` native points, two of them
    detected.
    """
    measured = sample.keep_points(~sample.limit)
    native_P = ~measured.foreign
    enough_N = (measured.count(native_P) >= enough) & (measured.count(native_P & measured.detected) >= 2)
    return measured.keep_points(native_P | ~np.repeat(enough_N, measured.lengths))


def merge_duplicates(row: SurveyObject) -> SurveyObject:
    """Keep the point with the smallest error if a band has several at the same time."""
    order = np.lexsort((row.flux_err, row.band, row.mjd))
    same = (np.diff(row.mjd[order]) == 0) & (np.diff(row.band[order]) == 0)
    if same.any():
        points = np.sort(order[np.concatenate(([True], ~same))])
        for name in ("mjd", "flux", "flux_err", "band", "detected", "foreign", "wavelength", "total_flux"):
            value = getattr(row, name)
            if value is not None:
                setattr(row, name, value[points])
    return row
