"""Class names, class ids and the hierarchy above them.

Class ids belong to a bundle, never to the code that reads it: surveys renumber (ELAsTiCC-1 used 111, ELAsTiCC-2 uses
2222 for a Type Ia supernova), so a manifest carries its own ``Taxonomy`` and every reply is written from that one.
``ELASTICC`` is the 20-class grouping of the ELAsTiCC training set used by ATAT and Astro-MoE, with ELAsTiCC-2 ids;
``ZTF_SUPERNOVAE`` and ``MALLORN`` group the spectroscopic types of two labelled sets. Their classes have the ELAsTiCC
ids where they mean the same; a class that divides one of those has its id and a further digit, as that numbering does
from level to level, and one that joins several has the id of the group above.
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TaxonClass(BaseModel):
    """One leaf: its name, its numeric id and the names of its ancestors from the root down."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    id: int
    path: tuple[str, ...] = ()


class Taxonomy(BaseModel):
    """An ordered set of leaf classes; the order is that of the network's logits."""

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
            When the number of probabilities differs from the number of classes.
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
    """Return the taxonomy with these classes in this order; for any other list a flat one, with ids from 1.

    Raises
    ------
    ValueError
        For fewer than two names, or a name given twice.
    """
    for taxonomy in TAXONOMIES:
        if taxonomy.names == tuple(names):
            return taxonomy
    classes = tuple(TaxonClass(name=name, id=number) for number, name in enumerate(names, start=1))
    return Taxonomy(name="of-the-training-set", version="1", classes=classes)
