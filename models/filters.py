"""Names that surveys, brokers and archives give to filters, such as ``Johnson V``, ``g-ZTF``, ``sdssr`` or ``zg``."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from nightjar_alerts.models.photometry import FILTERS, NAMES

MAX_LENGTH: Final = 40
"""Maximum length of names that :func:`remedy_for` looks up; longer ones would fill the cache."""


def _by_word(words_by_meaning: Mapping[str, str]) -> dict[str, str]:
    return {word: meaning for meaning, words in words_by_meaning.items() for word in words.split()}


_SURVEYS: Final = _by_word(
    {
        "ugrizyw": "ztf ztfcam p48 sdss sloan ps ps1 p1 panstarrs panstarrs1 gpc1 gpc2 lsst lsstcam lsstcomcam comcam "
        "rubin elasticc plasticc mallorn des decam megacam megacampsf hsc suprimecam goto skymapper yse snls legacy "
        "dl ml blackgem meerlicht bg",
        "UBVRI": "johnson bessell bessel bessellx cousins kron landolt",
        "co": "atlas atl",
        "Gaia": "gaia gaiadr2 gaiadr3 gaiaedr3 dr2 dr3 edr3",
        "other": "swift uvot kait nickel smarts csp ctio lco lcogt sinistro spectral p60 sedm cfht kepler keplercam "
        "standard generic asassn asas ogle catalina crts css eros macho hipparcos",
        "": "las cumbres observatory survey filter band mag stdmag ab vega prime natural system new old the a cam ii "
        "iii iv hp gaiax",
    }
)
"""Words that are not the filter itself: surveys, instruments and systems, with their filters, whose names are then not
case-sensitive; and words to ignore."""

_ALIASES: Final = _by_word(
    {
        "u": "up su",
        "g": "gp zg sg",
        "r": "rp zr sr",
        "i": "ip zi si",
        "z": "zp zs sz",
        "c": "cyan",
        "o": "orange",
        "w": "wide",
        "BP": "bp gbp",
        "RP": "grp",
        "U": "ux",
        "B": "b tb",
        "V": "v tg vis visual",
        "R": "rc tr",
        "I": "ic",
        "C": "clear unfiltered nofilter open white cv cr vcss",
    }
)
"""Other names of a filter, in lower case."""
_GAIA: Final = _by_word({"G": "g", "BP": "bp b gbp", "RP": "rp r grp"})
_PREFIX: Final = re.compile(
    f"({'|'.join(sorted((word for word, letters in _SURVEYS.items() if letters and len(word) > 2), key=len)[::-1])})"
    "[a-z]{1,3}"
)
"""A survey and its filter in one word."""


@lru_cache(maxsize=4096)
def known_filter(name: str) -> str | None:
    """Return the filter of :data:`models.photometry.FILTERS` that a name stands for, None if it is unknown."""
    name = name.strip().replace("′", "'").replace("’", "'").rstrip("'*")
    if name in NAMES:
        return FILTERS[NAMES[name]]
    words = [word for word in re.split(r"[^A-Za-z0-9]+", name) if word and not re.fullmatch(r"c?\d+", word)]
    surveys = {_SURVEYS[word.lower()] for word in words if word.lower() in _SURVEYS}
    rest = [word for word in words if word.lower() not in _SURVEYS]
    written = rest[0] if len(set(rest)) == 1 else "".join(rest)  # R_c is Rc
    if match := _PREFIX.fullmatch(written.lower()):
        surveys.add(_SURVEYS[match[1]])
        written = written[len(match[1]) :]
    lower = written.lower()
    if "Gaia" in surveys:
        return _GAIA.get(lower)
    for letters in surveys & {"ugrizyw", "UBVRI", "co"}:
        written = next((letter for letter in letters if letter.lower() == lower), written)
    return FILTERS[NAMES[written]] if written in NAMES else _ALIASES.get(lower)


def remedy_for(name: object) -> str:
    """Return the remedy for an unknown filter name, as text for an error message."""
    meant = known_filter(name) if isinstance(name, str) and len(name) <= MAX_LENGTH else None
    return f"send it as {meant}" if meant else f"known bands are {', '.join(FILTERS)}; describe others in filters"
