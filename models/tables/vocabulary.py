"""Names that surveys, brokers and archives give to columns and filters."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from nightjar_alerts.models.photometry import FILTERS, NAMES


def plain(name: str) -> str:
    """Return a column's name in small letters and digits only, without a unit in brackets."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"[\[(].*?[\])]", "", name).lower())


def last_part(name: str) -> str:
    """Return the field of a dotted name, and the name itself without a prefix such as ``i:`` or ``lc_``."""
    field = re.split(r"(?<!\d)\.|\.(?!\d)|:", name)[-1]  # the point of JD-2450000.5 separates nothing
    return re.sub(r"^(?:lc|lightcurve|phot|photometry|obs|det)_(?=.)", "", field)


OBJECT_ID: Final = (
    "objectid",
    "diaobjectid",
    "objid",
    "oid",
    "snid",
    "sn",
    "snname",
    "object",
    "objectname",
    "name",
    "objname",
    "event",
    "eventname",
    "sourceid",
    "gaiasourceid",
    "source",
    "target",
    "targetname",
    "targetid",
    "starname",
    "star",
    "starid",
    "id",
    "objectidmps",
    "iauname",
    "tnsname",
    "transient",
    "transientname",
    "transientid",
    "ztfid",
    "ztfname",
    "atlasid",
    "matchid",
    "masterid",
    "numericid",
    "inputid",
    "asassnname",
    "asassnid",
    "ssobjectid",
    "psid",
    "hipid",
    "hip",
    "cid",
    "lcid",
    "lightcurveid",
    "uid",
    "internalname",
    "designation",
    "locusid",
    "group",
    "groupid",
    "supernova",
    "galaxy",
    "host",
    "objet",
    "objeto",
    "nom",
    "nombre",
)
NOT_OBJECTS: Final = re.compile(
    r"(tel|inst|obs|cam|site|station|survey|quality|qual|flag|type|class|comment|remark|note|ref|bib|system|field|prog|"
    r"author|image|file|exp|night|visit|reduc|pipe|source|catalog|status|unit|filter|band|valid|digit|software|method)"
)
"""Columns of text that are not names of objects."""
TIME: Final = (
    "mjd",
    "midpointmjdtai",
    "midpointmjd",
    "midpointtai",
    "expmidptmjd",
    "mjdtai",
    "mjdmid",
    "midmjd",
    "mjdobs",
    "obsmjd",
    "expmjd",
    "mjdmean",
    "meanmjd",
    "hmjd",
    "bmjd",
    "mjdutc",
    "mjdstart",
    "startmjd",
    "timemjd",
    "obstimemjd",
    "mjddays",
    "modifiedjuliandate",
    "jd",
    "hjd",
    "bjd",
    "bjdtdb",
    "bjdtcb",
    "jdtcb",
    "jdmid",
    "midjd",
    "jdobs",
    "obsjd",
    "juliandate",
    "julianday",
    "hjd2450000",
    "hjd2400000",
    "jd2450000",
    "jd2400000",
    "jd24500005",
    "jd24000005",
    "bjd2450000",
    "bjd2457000",
    "rjd",
    "rhjd",
    "tjd",
    "btjd",
    "bkjd",
    "time",
    "times",
    "obstime",
    "timeobs",
    "timeofobservation",
    "obsdate",
    "dateobs",
    "obsdatetime",
    "datetime",
    "dateutc",
    "utdate",
    "utcdate",
    "utc",
    "ut",
    "isot",
    "date",
    "timestamp",
    "observationtime",
    "observationdate",
    "observedat",
    "obsutc",
    "epoch",
    "t",
    "timebjd",
    "timejd",
    "timehjd",
    "timeutc",
    "timetai",
    "timetdb",
    "tobs",
    "phase0time",
    "day",
    "days",
    "nightmjd",
    "gtransittime",
    "transittime",
    "unixtime",
    "year",
    "decimalyear",
)
BAND: Final = (
    "band",
    "filter",
    "filt",
    "flt",
    "filtername",
    "bandname",
    "passband",
    "fid",
    "filterid",
    "filtercode",
    "filters",
    "filterkey",
    "filtername",
    "physicalfilter",
    "bandpass",
    "passbandname",
    "photometricband",
    "photband",
    "color",
    "colour",
    "fltr",
    "bands",
    "f",
    "instfilter",
    "instrumentfilter",
    "bandid",
    "lsstband",
    "obsband",
    "obsfilter",
    "filterused",
    "filterletter",
    "passbandid",
    "bandnumber",
    "filtre",
    "bande",
    "filtro",
    "banda",
)
FLUX: Final = (
    "psfdiffflux",
    "forcediffimflux",
    "diffflux",
    "fluxdiff",
    "differenceflux",
    "difflux",
    "psdiffflux",
    "fdiff",
    "psfflux",
    "psflux",
    "psfluxdiff",
    "fluxcal",
    "ujy",
    "forcedujy",
    "fluxujy",
    "fluxmicrojy",
    "fluxmicrojansky",
    "microjy",
    "microjansky",
    "njy",
    "fluxnjy",
    "nanojy",
    "fluxnanojy",
    "fluxmjy",
    "mjy",
    "fluxjy",
    "flux",
    "fluxes",
    "fluxpsf",
    "forcedflux",
    "forcedpsfflux",
    "psfforcedflux",
    "fnu",
    "fluxdensity",
    "fluxab",
    "calflux",
    "calibratedflux",
    "fluxcalibrated",
    "dcflux",
    "fp",
    "flx",
    "scienceflux",
    "totflux",
    "totalflux",
    "fluxtot",
    "fluxtotal",
    "apflux",
    "fluxap",
    "apertureflux",
    "pdcsapflux",
    "sapflux",
    "rate",
    "counts",
    "gtransitflux",
)
COUNTS: Final = frozenset({"counts", "rate", "sapflux", "pdcsapflux"})
"""Names of fluxes in units of an instrument, which only a zero point turns into a physical unit."""
MAG: Final = (
    "magpsf",
    "mag",
    "magnitude",
    "mags",
    "magnitudes",
    "psfmag",
    "magap",
    "apmag",
    "m",
    "magab",
    "abmag",
    "vegamag",
    "magvega",
    "diffmag",
    "magdiff",
    "unforcedmag",
    "forcedmag",
    "averagemag",
    "avgmag",
    "meanmag",
    "magmean",
    "calmag",
    "magcal",
    "magcalibrated",
    "magcorr",
    "magpsfcorr",
    "dcmag",
    "brightness",
    "magauto",
    "magbest",
    "maginst",
    "stdmag",
    "magstd",
    "gaiamag",
    "gmagabs",
    "mag0",
    "mag3",
    "mag1",
    "mag2",
    "mag4",
    "gtransitmag",
    "value",
)
FLUX_ERR: Final = (
    "forcediffimfluxunc",
    "fluxerr",
    "fluxerror",
    "efflux",
    "eflux",
    "fluxunc",
    "fluxuncertainty",
    "fluxsigma",
    "sigmaflux",
    "fluxe",
    "errflux",
    "dflux",
    "fluxstd",
    "fluxes",
    "fluxcalerr",
    "dujy",
    "forcedujyerror",
    "ujyerr",
    "fluxerrujy",
    "fluxerrnjy",
    "fluxerrmjy",
    "fluxerrjy",
    "psffluxerr",
    "psfluxerr",
    "psfdifffluxerr",
    "differr",
    "fluxivar",
)
MAG_ERR: Final = (
    "sigmapsf",
    "magerr",
    "emag",
    "emagnitude",
    "magerror",
    "magnitudeerr",
    "magnitudeerror",
    "errmag",
    "dm",
    "dmag",
    "magunc",
    "maguncertainty",
    "magnitudeuncertainty",
    "magsigma",
    "sigmamag",
    "sigmag",
    "sigma",
    "merr",
    "psfmagerr",
    "magpsferr",
    "magaperr",
    "magerrs",
    "mage",
    "unforcedmagerror",
    "forcedmagerror",
    "sigmapsfcorr",
    "emagcorr",
    "mer0",
    "mer3",
    "mer1",
    "mer2",
    "mer4",
)
ANY_ERR: Final = (
    "err",
    "error",
    "errors",
    "uncertainty",
    "unc",
    "uncert",
    "sigma",
    "sig",
    "stderr",
    "std",
    "e",
    "yerr",
    "photerr",
    "photometricerror",
    "erreur",
    "fehler",
    "errore",
    "rms",
)
LIMIT: Final = (
    "diffmaglim",
    "limitingmag",
    "limitingmagnitude",
    "limitmag",
    "limmag",
    "maglim",
    "maglimit",
    "limit",
    "upperlimitmag",
    "mag5sig",
    "5sigmamaglim",
    "maglim5sig",
    "3sigmaglim",
    "fivesigmadepth",
    "m5",
    "limflux",
    "limitingflux",
    "depth",
    "maglimit5sigma",
    "limitingmag5sigma",
    "threshold",
    "uppermag",
)
UPPER_LIMIT: Final = (
    "upperlimit",
    "isupperlimit",
    "islimit",
    "upplim",
    "uplim",
    "ul",
    "upper",
    "uplimit",
    "isul",
    "limitflag",
    "nondetection",
    "isnondetection",
    "fainterthan",
    "isfainterthan",
    "upperlim",
    "unforcedmagstatus",
)
DETECTED: Final = ("detected", "detectedbool", "isdetected", "detection", "isdetection", "det", "photflagdetect")
SIGN: Final = ("isdiffpos", "ispositive", "fluxsign")
SNR: Final = ("snr", "sn", "signaltonoise", "forcediffimsnr", "fluxsnr", "fluxovererror", "fluxoverror", "s2n")
ZERO_POINT: Final = ("zp", "zpdiff", "zeropoint", "magzp", "zpab", "zpt", "zptmag", "fluxzp", "zeropt", "abzp")
FLUX_UNIT: Final = (
    "fluxunit",
    "unit",
    "units",
    "fluxunits",
    "photunit",
    "fluxunitname",
    "valueunit",
    "valueunits",
    "magunit",
    "brightnessunit",
)
MAG_SYSTEM: Final = ("magsys", "magsystem", "zpsys", "system", "photsystem", "photometricsystem", "magnitudesystem")
BAD_FLAGS: Final[Mapping[str, int]] = {"catflags": 1 << 15, "infobitssci": 1 << 25}
"""Bits that make a row unusable, by the documentation of ZTF's data releases and forced photometry."""

NUMBERINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "ztf": {"1": "g", "2": "r", "3": "i"},
    "lsst": {"0": "u", "1": "g", "2": "r", "3": "i", "4": "z", "5": "Y"},
    "ps1": {"1": "g", "2": "r", "3": "i", "4": "z", "5": "Y"},
}
"""Filters by number: ``fid`` of ZTF, ``passband`` of PLAsTiCC, ``filterID`` of Pan-STARRS1."""

_SPECIAL: Final[Mapping[str, str]] = {
    "cyan": "c",
    "orange": "o",
    "clear": "C",
    "unfiltered": "C",
    "nofilter": "C",
    "open": "C",
    "white": "C",
    "cv": "C",
    "cr": "C",
    "vcss": "C",
    "vis": "V",
    "visual": "V",
    "tg": "V",
    "tb": "B",
    "tr": "R",
    "bp": "BP",
    "gbp": "BP",
    "grp": "RP",
    "bprp": "",
    "up": "u",
    "gp": "g",
    "rp": "r",
    "ip": "i",
    "zp": "z",
    "zs": "z",
    "zg": "g",
    "zr": "r",
    "zi": "i",
    "su": "u",
    "sg": "g",
    "sr": "r",
    "si": "i",
    "sz": "z",
    "ux": "U",
    "rc": "R",
    "ic": "I",
    "wide": "w",
}
"""Names in small letters; of a name that means two filters by its case, :func:`filter_of` looks at the case first."""

_SLOAN: Final = frozenset(
    [
        "ztf",
        "ztfcam",
        "sdss",
        "sloan",
        "ps",
        "ps1",
        "p1",
        "panstarrs",
        "panstarrs1",
        "gpc1",
        "gpc2",
        "lsst",
        "lsstcam",
        "lsstcomcam",
        "comcam",
        "rubin",
        "des",
        "decam",
        "megacam",
        "hsc",
        "suprimecam",
        "p48",
        "p60",
        "sedm",
        "lco",
        "lcogt",
        "goto",
        "skymapper",
        "gaiax",
        "generic",
        "las",
        "cumbres",
        "observatory",
        "blackgem",
        "meerlicht",
        "bg",
        "ml",
        "kepler",
        "keplercam",
        "cfht",
        "elasticc",
        "plasticc",
        "yse",
        "mallorn",
        "sinistro",
        "spectral",
        "legacy",
        "survey",
        "dl",
        "snls",
    ]
)
_JOHNSON: Final = frozenset(
    [
        "johnson",
        "bessell",
        "bessel",
        "cousins",
        "kron",
        "landolt",
        "standard",
        "swift",
        "uvot",
        "kait",
        "nickel",
        "bessellx",
        "smarts",
        "csp",
        "ctio",
    ]
)
_ATLAS: Final = frozenset({"atlas", "atl"})
_GAIA: Final = frozenset({"gaia", "gaiadr2", "gaiadr3", "gaiaedr3", "dr2", "dr3", "edr3"})
_SURVEYLESS: Final = frozenset(
    [
        "filter",
        "band",
        "mag",
        "ab",
        "vega",
        "prime",
        "stdmag",
        "asassn",
        "asas",
        "ogle",
        "iii",
        "iv",
        "ii",
        "css",
        "crts",
        "catalina",
        "eros",
        "macho",
        "hipparcos",
        "hp",
        "sloan",
        "new",
        "old",
        "the",
        "a",
        "cam",
        "natural",
        "system",
    ]
)
_GLUED: Final = re.compile(
    r"^(?P<survey>ztf|sdss|sloan|ps1|panstarrs|lsst|rubin|des|decam|atlas|gaia|bessell|bessel|johnson|cousins|p48|p60|"
    r"megacam|hsc|uvot|swift|lco|standard|skymapper|keplercam|asassn|ogle|goto)(?P<letter>[a-z]{1,2})$"
)


@lru_cache(maxsize=4096)
def filter_of(name: str) -> str | None:
    """Return the one of :data:`FILTERS` that a survey's name stands for, None if it is unknown."""
    name = name.strip()
    if name in NAMES:
        return FILTERS[NAMES[name]]
    name = name.replace("′", "'").replace("’", "'").rstrip("'*")
    if name in NAMES:
        return FILTERS[NAMES[name]]
    tokens = [token for token in re.split(r"[^A-Za-z0-9]+", name) if token]
    lower = [token.lower() for token in tokens]
    surveys = {token for token in lower if token in _SLOAN | _JOHNSON | _ATLAS | _GAIA | _SURVEYLESS}
    rest = [token for token in tokens if token.lower() not in surveys]
    if len(rest) > 1 and rest[-1].isdigit():
        rest = rest[:-1]
    if len(rest) == 2 and rest[0] in ("R", "I") and rest[1] in ("c", "C"):  # R_c
        return rest[0]
    if len(set(rest)) != 1:  # nothing, or words that contradict each other
        return None
    letter = rest[0]
    if match := _GLUED.match(letter.lower()):
        surveys |= {match["survey"]}
        letter = letter[len(match["survey"]) :]
    return _letter(letter, surveys)


def _letter(letter: str, surveys: set[str]) -> str | None:
    lower = letter.lower()
    if surveys & _ATLAS and lower[:1] in ("c", "o") and lower in ("c", "o", "cyan", "orange"):
        return lower[0]
    if surveys & _GAIA:
        gaia = {"g": "G", "bp": "BP", "rp": "RP", "b": "BP", "r": "RP", "gbp": "BP", "grp": "RP"}
        return gaia.get(lower)
    if surveys & _JOHNSON and lower in ("u", "b", "v", "r", "i", "ux"):
        return (
            lower[0].upper()
            if letter.isupper() or surveys & {"bessell", "bessel", "bessellx", "johnson"}
            else (lower if lower in ("u", "r", "i") else lower.upper())
        )
    if surveys & _SLOAN and lower in ("u", "g", "r", "i", "z", "y", "w"):
        if letter.isupper() and letter in ("U", "R", "I") and not surveys & {"ztf", "lsst", "des"}:
            return letter
        return "Y" if lower == "y" else lower
    if letter in NAMES:
        return FILTERS[NAMES[letter]]
    if lower in _SPECIAL:
        return _SPECIAL[lower] or None
    if len(lower) == 1 and lower in "bv":
        return lower.upper()
    return None


UPPERCASE_SLOAN: Final = frozenset("UGRIZY")


def uppercase_sloan(names: Iterable[str]) -> bool | None:
    """Return whether capital letters stand for u g r i z y: None where they may be G of Gaia and R I of Cousins."""
    letters = set(names)
    if not letters or not letters <= UPPERCASE_SLOAN or "G" not in letters or letters == {"G"}:
        return False
    return True if "Z" in letters or "Y" in letters else None
