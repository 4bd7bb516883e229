"""Taxonomies (class names, ids and hierarchy) and class shares.

Surveys change class ids (ELAsTiCC-1 used 111, ELAsTiCC-2 uses 2222 for a Type Ia supernova), so each manifest has its
own ``Taxonomy``, from which responses are written. ``ELASTICC`` is the 20-class grouping of the ELAsTiCC training set
used by ATAT and Astro-MoE, with ELAsTiCC-2 ids; ``ZTF_SUPERNOVAE`` and ``MALLORN`` group the spectroscopic types of two
labelled sets. Equal classes have the same ids as in ELAsTiCC. A subclass of an ELAsTiCC class has its id with another
digit appended; a class that joins several has the id of the group above.

**Class shares** that a client may select in place of those of a bundle's calibration, and their sources, are in
:func:`rates`. They are shares of the *objects* that a survey finds, not of its alerts, whose number per object depends
on the class. They are relative; classes that are left out have no share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TaxonClass(BaseModel):
    """Leaf class: its name, its numeric id and the names of its ancestors from the root down."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    id: int
    path: tuple[str, ...] = ()


SUPERNOVA_GROUPS: Final = frozenset({"SN-like", "SLSN"})


class Taxonomy(BaseModel):
    """Ordered set of leaf classes, in the order of the network's logits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: str
    classes: tuple[TaxonClass, ...] = Field(min_length=2)

    @model_validator(mode="after")
    def _unique(self) -> "Taxonomy":
        if len(set(self.names)) != len(self.classes) or len(set(self.ids)) != len(self.classes):
            raise ValueError("class names and ids must be unique")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Leaf names in the order of the logits."""
        return tuple(leaf.name for leaf in self.classes)

    @cached_property
    def supernovae(self) -> list[int]:
        """Indices of the supernova classes: those of the group ``SN-like``, and superluminous ones."""
        return [
            index for index, leaf in enumerate(self.classes) if not SUPERNOVA_GROUPS.isdisjoint((leaf.name, *leaf.path))
        ]

    @property
    def only_supernovae(self) -> bool:
        """True if every class is a type of supernova."""
        return len(self.supernovae) == len(self.classes)

    @property
    def ids(self) -> tuple[int, ...]:
        """Leaf ids in the order of the logits."""
        return tuple(leaf.id for leaf in self.classes)

    def rollup(self, probabilities: Sequence[float]) -> dict[str, float]:
        """Sum leaf probabilities into every ancestor.

        Parameters
        ----------
        probabilities : shape (classes,), in the order of :attr:`names`.

        Returns
        -------
        Ancestor name to summed probability, parents before children.

        Raises
        ------
        ValueError
            If the number of probabilities differs from the number of classes.
        """
        totals: dict[str, float] = {}
        for leaf, probability in zip(self.classes, probabilities, strict=True):
            for ancestor in leaf.path:
                totals[ancestor] = totals.get(ancestor, 0.0) + float(probability)
        return totals


_NON_RECURRING, _RECURRING = ("Variable", "Non-Recurring"), ("Variable", "Recurring")
_SN_LIKE, _FAST, _LONG = (*_NON_RECURRING, "SN-like"), (*_NON_RECURRING, "Fast"), (*_NON_RECURRING, "Long")
_PERIODIC, _NON_PERIODIC = (*_RECURRING, "Periodic"), (*_RECURRING, "Non-Periodic")

ELASTICC = Taxonomy(
    name="elasticc-20",
    version="1",
    classes=(
        TaxonClass(name="AGN", id=2332, path=_NON_PERIODIC),
        TaxonClass(name="CART", id=2245, path=_LONG),
        TaxonClass(name="Cepheid", id=2322, path=_PERIODIC),
        TaxonClass(name="Delta Scuti", id=2324, path=_PERIODIC),
        TaxonClass(name="Dwarf Novae", id=2234, path=_FAST),
        TaxonClass(name="EB", id=2325, path=_PERIODIC),
        TaxonClass(name="ILOT", id=2244, path=_LONG),
        TaxonClass(name="KN", id=2232, path=_FAST),
        TaxonClass(name="M-dwarf Flare", id=2233, path=_FAST),
        TaxonClass(name="PISN", id=2246, path=_LONG),
        TaxonClass(name="RR Lyrae", id=2323, path=_PERIODIC),
        TaxonClass(name="SLSN", id=2242, path=_LONG),
        TaxonClass(name="91bg", id=2226, path=_SN_LIKE),
        TaxonClass(name="Ia", id=2222, path=_SN_LIKE),
        TaxonClass(name="Iax", id=2225, path=_SN_LIKE),
        TaxonClass(name="Ib/c", id=2223, path=_SN_LIKE),
        TaxonClass(name="II", id=2224, path=_SN_LIKE),
        TaxonClass(name="SN-like/Other", id=2221, path=_SN_LIKE),
        TaxonClass(name="TDE", id=2243, path=_LONG),
        TaxonClass(name="uLens", id=2235, path=_FAST),
    ),
)

ZTF_SUPERNOVAE = Taxonomy(
    name="ztf-supernovae-6",
    version="1",
    classes=(
        TaxonClass(name="Ia", id=2222, path=_SN_LIKE),
        TaxonClass(name="II", id=22241, path=(*_SN_LIKE, "Hydrogen-rich")),
        TaxonClass(name="Ibc", id=2223, path=_SN_LIKE),
        TaxonClass(name="IIn", id=22242, path=(*_SN_LIKE, "Hydrogen-rich")),
        TaxonClass(name="SLSN-I", id=22421, path=(*_LONG, "SLSN")),
        TaxonClass(name="SLSN-II", id=22422, path=(*_LONG, "SLSN")),
    ),
)

MALLORN = Taxonomy(
    name="mallorn-5",
    version="1",
    classes=(
        TaxonClass(name="AGN", id=2332, path=_NON_PERIODIC),
        TaxonClass(name="Ia", id=2222, path=_SN_LIKE),
        TaxonClass(name="core-collapse", id=2220, path=_SN_LIKE),
        TaxonClass(name="TDE", id=2243, path=_LONG),
        TaxonClass(name="SLSN", id=2242, path=_LONG),
    ),
)

TAXONOMIES = (ELASTICC, ZTF_SUPERNOVAE, MALLORN)


def taxonomy_of(names: Sequence[str]) -> Taxonomy:
    """Return the known taxonomy with these classes in this order, or else a flat one with ids from 1.

    Raises
    ------
    ValueError
        For fewer than two names or duplicate names.
    """
    for taxonomy in TAXONOMIES:
        if taxonomy.names == tuple(names):
            return taxonomy
    classes = tuple(TaxonClass(name=name, id=number) for number, name in enumerate(names, start=1))
    return Taxonomy(name="of-the-training-set", version="1", classes=classes)


UNIFORM: Final = "uniform"
LSST_ALERTS: Final = "lsst-alerts"
ZTF_ALERTS: Final = "ztf-alerts"
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
# Sanchez-Saez et al. 2021, table 1: 1,718 transients, 34,713 stochastic and 87,065 periodic objects. Of these,
# 1,740 young stars, 14,076 long-period variables and 1,256 other periodic ones have no class here.
_ZTF_STREAM: Final = {
    "Ia": 1_272, "II": 328, "Ib/c": 94, "SLSN": 24, "AGN": 26_168 + 4_667 + 1_267, "Dwarf Novae": 871,
    "RR Lyrae": 32_482, "EB": 37_901, "Cepheid": 618, "Delta Scuti": 732,
}  # fmt: skip
_BESIDE_STREAM: Final = {
    "91bg": 1_272 * 51 / 6_247, "Iax": 1_272 * 25 / 6_247, "SN-like/Other": 328 * 132 / 1_574,
    "TDE": 1_718 * 30 / 4_000, "CART": 1_718 * 8 / 754, "ILOT": 8 + 8, "M-dwarf Flare": 1_229, "uLens": 60,
}  # fmt: skip
_ZTF_ALERTS_20: Final = Rates(
    {**_ZTF_STREAM, **_BESIDE_STREAM},
    "objects with at least six alerts of ZTF in a band by June 2020 whose class is known from catalogues and spectra "
    "(Sanchez-Saez et al. 2021, AJ 161, 141; cataclysmic variables as dwarf novae); 91bg, Iax and IIb (SN-like/Other) "
    "by their number beside Ia and II among typed supernovae of ZTF, TDE by the 30 beside almost 4,000 supernovae "
    "(Hammerstein et al. 2023, ApJ 942, 9), CART by the 8 beside 754 (De et al. 2020, ApJ 905, 58), 16 ILOT "
    "(Karambelkar et al. 2023, ApJ 948, 137), 1,229 M-dwarf flares (Lavrukhina et al. 2025, arXiv:2510.24655) and 60 "
    "microlensing events (Medford et al. 2023, ApJ 947, 24) of the same years; no KN, no PISN",
)

NAMED: Final[Mapping[str, tuple[Rates, ...]]] = {
    LSST_ALERTS: (_LSST_20,),
    ZTF_ALERTS: (_ZTF_ALERTS_20,),
    ZTF_BRIGHT: (_ZTF_20, _ZTF_6),
}


def rates(name: str, classes: Sequence[str]) -> Rates | None:
    """Return the named class shares for a set of classes, None if there are none."""
    if name == UNIFORM:
        return Rates(dict.fromkeys(classes, 1.0), "equal shares")
    class_set = set(classes)
    return next((one for one in NAMED.get(name, ()) if one.shares.keys() <= class_set), None)


def class_shares(name: str, classes: Sequence[str]) -> dict[str, float] | None:
    """Return the named class shares, summing to 1 over ``classes``, None if there are none."""
    rates_of_name = rates(name, classes)
    if rates_of_name is None:
        return None
    total = sum(rates_of_name.shares.values())
    return {label: rates_of_name.shares.get(label, 0.0) / total for label in classes}
