"""Class shares that a client may name in place of those a bundle was calibrated for, with where they come from.

Shares are of *objects* that a survey finds, not of alerts: an object sends many alerts or few, according to its class.
They are relative, and a class that a map leaves out has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

UNIFORM: Final = "uniform"
LSST_ALERTS: Final = "lsst-alerts"
ZTF_BRIGHT: Final = "ztf-bright"


@dataclass(frozen=True, slots=True)
class Rates:
    """Relative class shares by class name, and their source."""

    shares: Mapping[str, float]
    source: str


_PLASTICC: Final = {
    "Ia": 1_659_831, "II": 1_000_150, "Ib/c": 175_094, "Iax": 63_664, "91bg": 40_193, "SLSN": 35_782, "TDE": 13_555,
    "CART": 9_680, "ILOT": 1_702, "PISN": 1_172, "KN": 133, "AGN": 101_424, "RR Lyrae": 197_155,
    "M-dwarf Flare": 93_494, "EB": 96_572, "uLens": 1_303 + 533,
}  # fmt: skip
# Chen et al. 2020 list 46,393 RR Lyrae (ab and c), 1,620 Cepheids (both types) and 16,709 Delta Scuti stars; the types
# that the Transient Name Server has for supernovae of ZTF are 132 IIb beside 415 Ib, Ic, Ic-BL and Ib/c.
_BESIDE_PLASTICC: Final = {
    "Cepheid": 197_155 * 1_620 / 46_393,
    "Delta Scuti": 197_155 * 16_709 / 46_393,
    "SN-like/Other": 175_094 * 132 / 415,
    "Dwarf Novae": 35_000,
}

_LSST_20: Final = Rates(
    {**_PLASTICC, **_BESIDE_PLASTICC},
    "objects of the PLAsTiCC test set, three simulated years of LSST (Kessler et al. 2019, PASP 131, 094501); Cepheids "
    "and Delta Scuti stars by their number beside RR Lyrae in ZTF (Chen et al. 2020, ApJS 249, 18), IIb "
    "(SN-like/Other) by theirs beside Ib/c among typed supernovae of ZTF, dwarf novae assumed to be 1 % of all",
)
_TYPED: Final = (
    "types on the Transient Name Server of 8,748 supernovae with alerts of ZTF, mostly brighter than 19 mag, which the "
    "Bright Transient Survey made complete to 18.5 mag (Perley et al. 2020, ApJ 904, 35)"
)
_ZTF_20: Final = Rates(
    {"Ia": 5_991 + 193 + 50 + 13, "II": 1_230 + 110 + 234, "Ib/c": 415, "SN-like/Other": 132, "91bg": 51, "Iax": 25,
     "SLSN": 109 + 68, "TDE": 8_748 * 30 / 4_000},
    f"{_TYPED}; tidal disruption events by the 30 beside almost 4,000 supernovae of its first phase (Hammerstein et "
    "al. 2023, ApJ 942, 9); active galaxies and variable stars, which that survey leaves out, have no share",
)  # fmt: skip
_ZTF_6: Final = Rates(
    {"Ia": 5_991 + 193 + 50 + 13 + 51, "II": 1_230 + 110 + 132, "Ibc": 415, "IIn": 234, "SLSN-I": 109, "SLSN-II": 68},
    _TYPED,
)

NAMED: Final[Mapping[str, tuple[Rates, ...]]] = {LSST_ALERTS: (_LSST_20,), ZTF_BRIGHT: (_ZTF_20, _ZTF_6)}


def rates(name: str, classes: Sequence[str]) -> Rates | None:
    """Return the shares of that name for a set of classes, None where there are none."""
    if name == UNIFORM:
        return Rates(dict.fromkeys(classes, 1.0), "equal shares")
    class_set = set(classes)
    return next((one for one in NAMED.get(name, ()) if one.shares.keys() <= class_set), None)


def class_shares(name: str, classes: Sequence[str]) -> dict[str, float] | None:
    """Return the class shares of that name, summing to 1 over all ``classes``, None where there are none."""
    rates_of_name = rates(name, classes)
    if rates_of_name is None:
        return None
    total = sum(rates_of_name.shares.values())
    return {label: rates_of_name.shares.get(label, 0.0) / total for label in classes}
