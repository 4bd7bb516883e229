"""Options of the reader, and what it reports: guesses, questions and errors."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from nightjar_alerts.models.filters import known_filter
from nightjar_alerts.models.metadata import CONTEXT_COLUMNS, KNOWN_COLUMNS, REDSHIFTS
from nightjar_alerts.models.photometry import FILTER_WIDTHS_NM, FILTERS, MagSystem, SourceUnit, nearest_band

FluxKind = Literal["difference", "total"]
TimeFormat = Literal["mjd", "jd", "iso", "unix", "unix_ms", "year"]
TableFormat = Literal["csv", "jsonl", "json", "ecsv", "fits", "votable", "parquet", "hats"]

ROLES: Final = (
    "object_id",
    "time",
    "band",
    "flux",
    "flux_err",
    "mag",
    "mag_err",
    "limit",
    "upper_limit",
    "detected",
    "sign",
    "snr",
    "zero_point",
    "flux_unit",
    "mag_system",
    "label",
    "redshift",
    "parent",
)
"""What a column can be. ``limit`` is the limiting magnitude of an observation, ``upper_limit`` a flag that its
measurement is a limit, ``sign`` the sign of a difference magnitude (ZTF's ``isdiffpos``), ``zero_point`` the AB zero
point of the flux, ``parent`` what objects share that must stay on one side of a split."""

NO_FILTER: Final = ""
"""Filter of rows that are left out on purpose."""


class TableError(ValueError):
    """The table cannot be read; the message names the file and what to do."""


class MissingExtra(TableError):
    """A library that this format needs is not installed; the message names the extra."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to a question: the value of the option, and what it means."""

    value: str
    meaning: str


class TableQuestion(TableError):
    """Two readings of the table are possible, and the caller has to choose.

    Attributes
    ----------
    question : one sentence.
    option : field of :class:`TableOptions` that answers it; ``columns.time`` is the key ``time`` of ``columns``.
    choices : possible values, empty where there is no list of them.
    """

    def __init__(self, question: str, option: str, choices: Sequence[Choice] = ()) -> None:
        self.question = question
        self.option = option
        self.choices = tuple(choices)
        listed = "; ".join(
            f"{choice.value!r}: {choice.meaning}" if choice.meaning else repr(choice.value) for choice in self.choices
        )
        super().__init__(f"{question} Set {option}" + (f" ({listed})." if listed else "."))

    def to_dict(self) -> dict[str, Any]:
        """Return the question as JSON values."""
        return {"question": self.question, "option": self.option, "choices": list(map(asdict, self.choices))}


@dataclass(frozen=True, slots=True)
class Guess:
    """One decision of the reader that the caller did not make.

    Attributes
    ----------
    option : field of :class:`TableOptions` that overrides it, as in :attr:`TableQuestion.option`.
    value : value of the option that would give the same reading.
    text : one sentence. That of an assumption, for which the table shows no reason, begins with ``assumed:``.
    """

    option: str
    value: str
    text: str

    @property
    def is_assumption(self) -> bool:
        """Whether nothing in the table shows this."""
        return "assumed: " in self.text

    def __str__(self) -> str:
        return f"{self.text} ({self.option}={self.value})" if self.value else self.text

    def to_dict(self) -> dict[str, str]:
        """Return the guess as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How to read a table. Whatever is empty is guessed from names and values.

    Attributes
    ----------
    format : format of the file, if its name does not show it.
    columns : column of each of :data:`ROLES`; an empty name means that the table has no such column. A dotted name
        reaches into a nested column (``lightcurve.mjd``).
    object_id : name of the one object in a table without a column of names.
    band : the one filter of a table without a column of filters.
    filters : filter of each name in the table: a name that :func:`models.filters.known_filter` knows, an effective
        wavelength in nm, optionally with a width (``620``, ``620/140`` or ``{"wavelength_nm": 620, "width_nm": 140}``),
        or empty to leave its rows out.
    filter_numbers : numbering of filters that are given as integers.
    time_format : ``mjd``, ``jd`` (JD, HJD, BJD), ``iso``, ``unix`` (seconds), ``unix_ms`` (milliseconds) or
        ``year`` (decimal).
    time_offset : days to add to the times to get MJD (or JD, with ``time_format="jd"``).
    flux_unit : unit of flux and its error. zero_point: AB zero point of the flux instead, mag.
    flux_kind : difference from a template, or total flux, of which the median of each filter is subtracted.
    mag_system : ``AB``, ``Vega``, or ``mixed``: Vega for U B V R I, G BP RP and unfiltered, AB for the others.
    mag_err : error of every magnitude without one, mag.
    signed_magnitudes : a negative magnitude stands for a negative flux, as in ATLAS's forced photometry.
    upper_limits : leave upper limits out, or use each as flux 0 with the limit's error.
    limit_sigma : significance of upper limits.
    bad_flags : bits of a column of flags, any of which makes a row unusable; None means those that the documentation
        of a survey names (:data:`tables.vocabulary.BAD_FLAGS`).
    minimum : smallest value of a column of a usable row, such as ``psfQfPerfect=0.9``.
    metadata : column of each metadata name (``mwebv``, ``zspec``, ``hostgal_zphot``); None means those that have such
        a name.
    object_metadata : metadata of each object by its name, besides those in columns of the table; see
        :func:`tables.read_object_metadata`.
    survey : survey of the photometry (``ztf``), which decides what stands for the model's bands.
    """

    format: TableFormat | Literal[""] = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    object_id: str = ""
    band: str = ""
    filters: Mapping[str, str | Mapping[str, float]] = field(default_factory=dict)
    filter_numbers: Literal["", "ztf", "lsst", "ps1"] = ""
    time_format: TimeFormat | Literal[""] = ""
    time_offset: float | None = None
    flux_unit: SourceUnit | Literal["", "mag"] = ""
    zero_point: float | None = None
    flux_kind: FluxKind | Literal[""] = ""
    mag_system: MagSystem | Literal["", "mixed"] = ""
    mag_err: float | None = None
    signed_magnitudes: bool | None = None
    upper_limits: Literal["drop", "use"] = "drop"
    limit_sigma: float = 5.0
    bad_flags: Mapping[str, int] | None = None
    minimum: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, str] | None = None
    object_metadata: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    survey: str = ""

    def __post_init__(self) -> None:
        """Check the values. Raises TableError naming the option."""
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if isinstance(value, str) and value not in known:
                same = [each for each in known if isinstance(each, str) and each.lower() == value.lower()]
                if len(same) == 1:  # of mJy and MJy, which are different units, only the first is known
                    value = same[0]
                    object.__setattr__(self, name, value)
            if value not in known:
                raise TableError(f"{name} is {value!r}; it must be one of {', '.join(filter(None, known))}")
        if unknown := sorted(set(self.columns) - set(ROLES)):
            raise TableError(f"columns has {unknown[0]!r}; a column can be {', '.join(ROLES)}")
        described_filter(self.band, "band")
        if not isinstance(self.filters, Mapping):
            raise TableError(f"filters is {self.filters!r}; it must be a mapping from names to filters")
        for name, meaning in self.filters.items():
            described_filter(meaning, f"filters[{name!r}]")
        for name, bits in (self.bad_flags or {}).items():
            if not isinstance(bits, int) or not -(2**63) <= bits < 2**63:
                raise TableError(f"bad_flags[{name!r}] is {bits!r}; it must be an integer of at most 64 bits")
        if self.limit_sigma <= 0:
            raise TableError("limit_sigma must be greater than zero")
        for name in (*(self.metadata or ()), *(name for row in self.object_metadata.values() for name in row)):
            if name not in KNOWN_COLUMNS:
                listed = ", ".join([*CONTEXT_COLUMNS, *REDSHIFTS[1:], "mwebv"])
                raise TableError(f"there is no metadata {name!r}; they are {listed} and others of host galaxies")

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Return the names of the options."""
        return tuple(each.name for each in fields(cls))


def _literals(kind: Any) -> list[Any]:
    """Return the values of a type that is one of some Literals."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [value for part in get_args(kind) for value in _literals(part)]


_CHOICES: Final = {name: known for name, kind in get_type_hints(TableOptions).items() if (known := _literals(kind))}


def described_filter(meaning: str | Mapping[str, float], option: str) -> str:
    """Return the filter that an option names: a known one, or the band nearest to a wavelength; empty for none.

    Raises
    ------
    TableError
        When it is neither; the message names the option.
    """
    if not meaning:
        return NO_FILTER
    if isinstance(meaning, Mapping) and {"wavelength_nm"} <= meaning.keys() <= {"wavelength_nm", "width_nm"}:
        meaning = "/".join(str(meaning[name]) for name in sorted(meaning))
    if isinstance(meaning, str) and (known := known_filter(meaning)):
        return known
    if not isinstance(meaning, str) or not re.fullmatch(r"[0-9.]+(/[0-9.]+)?", meaning):
        expected = (
            f'a wavelength in nm, such as "589" or "589/230" with the width, the same as {{"wavelength_nm": 589, '
            f'"width_nm": 230}}, or one of {", ".join(FILTERS)}'
        )
        raise TableError(f"{option} is {meaning!r}; it must be {expected}")
    wavelength, _, width = meaning.partition("/")
    narrowest, widest = FILTER_WIDTHS_NM
    try:
        if width and not narrowest <= float(width) <= widest:
            raise ValueError(f"the width must be from {narrowest:g} to {widest:g} nm")
        return nearest_band(float(wavelength))
    except ValueError as error:
        raise TableError(f"{option} is {meaning!r}: {error}") from None
