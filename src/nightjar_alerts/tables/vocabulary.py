"""Names that surveys, brokers and archives give to columns, units and tables."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from nightjar_alerts.models.filters import known_filter
from nightjar_alerts.models.metadata import KNOWN_COLUMNS
from nightjar_alerts.models.photometry import SourceUnit
from nightjar_alerts.tables.options import FluxKind


def plain(name: str) -> str:
    """Return a column's name in small letters and digits only, without a unit in brackets."""
    without_unit = re.sub(r"[\[(][^\])]*([\])])?", lambda match: "" if match[1] else match[0], name)
    return re.sub(r"[^a-z0-9]", "", without_unit.lower())


def last_part(name: str) -> str:
    """Return the field of a dotted name, and the name itself without a prefix such as ``i:`` or ``lc_``."""
    field = re.split(r"(?<!\d)\.|\.(?!\d)|:", name)[-1]  # the point of JD-2450000.5 separates nothing
    return re.sub(r"^(?:lc|lightcurve|phot|photometry|obs|det)_(?=.)", "", field)


_NAMES: Final = {
    "object_id": """objectid diaobjectid objid oid snid sn snname object objectname name objname event eventname
        sourceid gaiasourceid source target targetname targetid starname star starid id objectidmps iauname tnsname
        transient transientname transientid ztfid ztfname atlasid matchid masterid numericid inputid asassnname
        asassnid ssobjectid psid hipid hip cid lcid lightcurveid uid internalname designation locusid group groupid
        supernova galaxy host objet objeto nom nombre""",
    "time": """mjd midpointmjdtai midpointmjd midpointtai expmidptmjd mjdtai mjdmid midmjd mjdobs obsmjd expmjd
        mjdmean meanmjd hmjd bmjd mjdutc mjdstart startmjd timemjd obstimemjd mjddays modifiedjuliandate jd hjd bjd
        bjdtdb bjdtcb jdtcb jdmid midjd jdobs obsjd juliandate julianday rjd rhjd tjd btjd bkjd time times obstime
        timeobs
        timeofobservation obsdate dateobs obsdatetime datetime dateutc utdate utcdate utc ut isot date timestamp
        observationtime observationdate observedat obsutc epoch t timebjd timejd timehjd timeutc timetai timetdb tobs
        day days nightmjd gtransittime transittime unixtime year decimalyear""",
    "band": """band filter filt flt filtername bandname passband fid filterid filtercode filters filterkey
        physicalfilter bandpass passbandname photometricband photband color colour fltr bands f instfilter
        instrumentfilter bandid lsstband obsband obsfilter filterused filterletter passbandid bandnumber filtre bande
        filtro banda""",
    "flux": """psfdiffflux forcediffimflux diffflux fluxdiff differenceflux difflux psdiffflux fdiff psfflux psflux
        psfluxdiff fluxcal ujy forcedujy fluxujy fluxmicrojy fluxmicrojansky microjy microjansky njy fluxnjy nanojy
        fluxnanojy fluxmjy mjy fluxjy flux fluxes fluxpsf forcedflux forcedpsfflux psfforcedflux fnu fluxdensity
        fluxab calflux calibratedflux fluxcalibrated dcflux fp flx scienceflux totflux totalflux fluxtot fluxtotal
        apflux fluxap apertureflux pdcsapflux sapflux rate counts gtransitflux""",
    "mag": """magpsf mag magnitude mags magnitudes psfmag magap apmag m magab abmag vegamag magvega diffmag magdiff
        unforcedmag forcedmag averagemag avgmag meanmag magmean calmag magcal magcalibrated magcorr magpsfcorr dcmag
        brightness magauto magbest maginst stdmag magstd gaiamag gmagabs mag0=mag1=mag2=mag3=mag4 gtransitmag value""",
    "limit": """diffmaglim limitingmag limitingmagnitude limitmag limmag maglim maglimit limit upperlimitmag mag5sig
        5sigmamaglim maglim5sig 3sigmaglim fivesigmadepth m5 limflux limitingflux depth maglimit5sigma
        limitingmag5sigma threshold uppermag lim""",
    "upper_limit": """upperlimit isupperlimit islimit upplim uplim ul upper uplimit isul limitflag nondetection
        isnondetection fainterthan isfainterthan upperlim unforcedmagstatus""",
    "detected": "detected detectedbool isdetected detection isdetection det photflagdetect photflag",
    "sign": "isdiffpos ispositive fluxsign",
    "snr": "snr sn signaltonoise forcediffimsnr fluxsnr fluxovererror fluxoverror s2n",
    "zero_point": "zp zpdiff zeropoint magzp zpab zpt zptmag fluxzp zeropt abzp",
    "flux_unit": """fluxunit unit units fluxunits photunit fluxunitname valueunit valueunits magunit
        brightnessunit""",
    "mag_system": "magsys magsystem zpsys system photsystem photometricsystem magnitudesystem",
}
RANKS: Final[Mapping[str, Mapping[str, int]]] = {
    role: {name: rank for rank, equal in enumerate(names.split()) for name in equal.split("=")}
    for role, names in _NAMES.items()
}
"""Plain names of each role of a column; the smaller the number, the more it is preferred. Of equal ones, the first
column counts."""
STRONG_BANDS: Final = frozenset(list(RANKS["band"])[:11])
"""Names of a column of filters even where no value is a known filter."""
STRONG_IDS: Final = frozenset({"objectid", "diaobjectid", "snid", "objid", "oid", "gaiasourceid", "event"})
"""Names of objects even where every row has another one."""
NOT_OBJECTS: Final = re.compile(
    r"(tel|inst|obs|cam|site|station|survey|quality|qual|flag|type|class|comment|remark|note|ref|bib|system|field|prog|"
    r"author|image|file|exp|night|visit|reduc|pipe|source|catalog|status|unit|filter|band|valid|digit|software|method)"
)
"""Columns of text that are not names of objects."""
RIGHT_ASCENSIONS: Final = frozenset({"ra", "raj2000", "radeg", "rightascension"})
DECLINATIONS: Final = frozenset({"dec", "decl", "dej2000", "decdeg", "declination"})
POSITIONS: Final = RIGHT_ASCENSIONS | DECLINATIONS
COUNTS: Final = frozenset({"counts", "rate", "sapflux", "pdcsapflux"})
"""Names of fluxes in units of an instrument, which only a zero point turns into a physical unit."""
TOTAL: Final = frozenset(
    {"scienceflux", "totflux", "totalflux", "fluxtot", "fluxtotal", "magpsfcorr", "magcorr"}
    | {"psdirectflux", "directflux", "psfdirectflux"}
)
DIFFERENCE: Final = frozenset(
    {"psfdiffflux", "forcediffimflux", "diffflux", "fluxdiff", "differenceflux", "difflux", "psdiffflux"}
    | {"magpsf", "diffmag", "magdiff", "unforcedmag", "forcedujy"}
)
"""Names of the brightness in difference images; :data:`TOTAL` are those of the whole source."""
METADATA: Final = {
    **{name.lower(): name for name in KNOWN_COLUMNS},
    "ebv": "mwebv",
    "mwebvmwe": "mwebv",
    "mw_ebv": "mwebv",
    "redshift": "zspec",
    "z_spec": "zspec",
    "specz": "zspec",
    "redshift_err": "zspec_err",
    "sgscore1": "star_score",
    "hostgal_specz": "hostgal_zspec",
    "hostgal_photoz": "hostgal_zphot",
    "hostgal_photoz_err": "hostgal_zphot_err",
}
"""Metadata by names in small letters."""
BAD_FLAGS: Final[Mapping[str, int]] = {"catflags": 1 << 15, "infobitssci": 1 << 25}
"""Bits that make a row unusable, by the documentation of ZTF's data releases and forced photometry."""
NUMBERINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "ztf": {"1": "g", "2": "r", "3": "i"},
    "lsst": {"0": "u", "1": "g", "2": "r", "3": "i", "4": "z", "5": "Y"},
    "ps1": {"1": "g", "2": "r", "3": "i", "4": "z", "5": "Y"},
}
"""Filters by number: ``fid`` of ZTF, ``passband`` of PLAsTiCC, ``filterID`` of Pan-STARRS1."""

_UNITS: Final[Mapping[str, SourceUnit]] = {
    **dict.fromkeys(("njy", "nanojy", "nanojansky", "nanojanskys"), "nJy"),
    **dict.fromkeys(("ujy", "microjy", "microjansky", "microjanskys"), "uJy"),
    **dict.fromkeys(("mjy", "millijy", "millijansky", "millijanskys"), "mJy"),
    **dict.fromkeys(("jy", "jansky", "janskys"), "Jy"),
    "fluxcal": "FLUXCAL",
}


OTHER_UNIT: Final = re.compile(
    r"erg|photon|maggy|maggie|mgy|jy|jansky|adu|\bdn\b|\bct|count|e-|electron|\bw\b|%|/", re.IGNORECASE
)
"""Part of a unit that :func:`unit_of` does not know, unlike other remarks in brackets."""
COUNTS_UNIT: Final = re.compile(r"adu|\bdn\b|\bct|count|e-|electron", re.IGNORECASE)
MILLIMAGNITUDES: Final = re.compile(r"(?<![a-z])m(illi)?mag", re.IGNORECASE)
SURE_MAGNITUDES: Final = RANKS["mag"].keys() - {"brightness", "value"}
"""Names that fluxes do not have."""


def unit_of(text: str) -> SourceUnit | None:
    """Return the unit of flux that a text names, None where it names none."""
    if text.strip() == "MJy":
        return None
    return _UNITS.get(re.sub(r"[\s_]", "", text).replace("µ", "u").replace("μ", "u").lower())


def unit_in_name(name: str) -> SourceUnit | None:
    """Return the unit of flux in a column's name (``flux [uJy]``, ``f_nu_mJy``, ``forcedujy``), None without one."""
    bracket = re.search(r"[\[(]([^\])]+)[\])]", name)
    field = last_part(name)
    ending = re.search(r"(nJy|uJy|µJy|mJy|Jy|njy|ujy|mjy|microjy|nanojy)$", field)
    parts = [bracket and bracket[1], *re.split(r"[^A-Za-zµμ]+", field), ending and ending[1]]
    return next((unit for part in parts if part and (unit := unit_of(part))), None)


class Hints(NamedTuple):
    """What is known of a table with certain columns; ``usual_kind`` counts where the values do not show the kind."""

    name: str = ""
    survey: str = ""
    band: str = ""
    unit: SourceUnit | None = None
    kind: FluxKind | Literal[""] = ""
    usual_kind: FluxKind | Literal[""] = ""
    numbers: str = ""
    mag_system: Literal["", "AB", "Vega", "mixed"] = ""
    time_offset: float | None = None


_GAIA_EPOCH_MJD: Final = 55_197.0
"""MJD of J2010.0 (JD 2455197.5), from which Gaia counts days."""
_TABLES: Final = (
    ("forcediffimflux forcediffimfluxunc zpdiff", Hints("ZTF forced photometry", "ztf", kind="difference")),
    ("magpsf sigmapsf fid", Hints("ZTF alerts", "ztf", kind="difference", numbers="ztf")),
    ("hmjd mag magerr", Hints("ZTF data release", "ztf", kind="total", numbers="ztf")),
    ("mag magerr catflags", Hints("ZTF data release", "ztf", kind="total", numbers="ztf")),
    ("mag emag fid oid", Hints("ALeRCE", "ztf", kind="difference", numbers="ztf")),
    ("ujy dujy", Hints("ATLAS forced photometry", "atlas", unit="uJy", usual_kind="difference")),
    ("hjd fwhm limit mag", Hints("ASAS-SN", "asas-sn", unit="mJy")),
    ("jd flux mag limit fwhm", Hints("ASAS-SN", "asas-sn", unit="mJy")),
    ("masterid mag magerr blend", Hints("Catalina Surveys", band="C", kind="total", mag_system="Vega")),
    ("averagemag", Hints("Gaia alerts", "gaia", band="G", usual_kind="total", mag_system="Vega")),
    (
        "transitid band time mag flux",
        Hints("Gaia epoch photometry", "gaia", kind="total", mag_system="Vega", time_offset=_GAIA_EPOCH_MJD),
    ),
    ("magnitude uncertainty observercode", Hints("AAVSO", usual_kind="total", mag_system="mixed")),
    ("name date mag merr filt mtype", Hints("AAVSO", usual_kind="total", mag_system="mixed")),
    ("hjd mag0 mer0", Hints("ASAS-3", band="V", kind="total", mag_system="Vega")),
    ("objid obstime filterid psfflux", Hints("Pan-STARRS1 detections", unit="Jy", kind="total", numbers="ps1")),
    ("objectid mjd passband flux fluxerr", Hints("PLAsTiCC", unit="FLUXCAL", kind="difference", numbers="lsst")),
    ("fluxcal fluxcalerr", Hints("SNANA", unit="FLUXCAL", kind="difference")),
    ("psfdiffflux", Hints("Rubin forced photometry", "lsst", unit="nJy", kind="difference")),
    ("midpointmjdtai psfflux", Hints("Rubin", "lsst", unit="nJy", kind="difference")),
    ("midpointtai psflux", Hints("Rubin", "lsst", unit="nJy", kind="difference")),
    ("mag5sig ujy", Hints("ATLAS forced photometry", "atlas", unit="uJy", usual_kind="difference")),
    ("mag magerr 3sigmaglim", Hints("Swift UVOT", "swift", usual_kind="difference", mag_system="Vega")),
    ("magnitude emagnitude upperlimit", Hints("Open Supernova Catalog", usual_kind="difference", mag_system="mixed")),
)
"""Plain names of the columns by which a survey's table is known."""
_MALLORN: Final = ("object_id", "Time (MJD)", "Flux", "Flux_err", "Filter")


def hints_of(header: Sequence[str], keys: set[str]) -> Hints:
    """Return what is known of a table by its columns, and by their plain names ``keys``."""
    if tuple(header) == _MALLORN:
        return Hints("MALLORN", unit="uJy", kind="difference")
    return next((hints for names, hints in _TABLES if keys.issuperset(names.split())), Hints())


_ERROR_WORDS: Final = (
    *("err", "error", "errs", "errors", "unc", "uncert", "uncertainty", "sig", "sigma", "delta", "mer", "merr"),
    *("erreur", "fehler", "errore"),
)
_ERROR_BEHIND: Final = ("std", "stderr", "rms", "er", "e")
_ERROR_ALONE: Final = frozenset({*_ERROR_WORDS, *_ERROR_BEHIND})
_UNIT_BEHIND: Final = re.compile(r"(?<=.)(njy|ujy|mjy|jy|ab|vega|mmag)$")


@lru_cache(maxsize=4096)
def stems_of_error(key: str) -> frozenset[str]:
    """Return what may remain of an error's plain name without the word for an error and the unit."""
    stems = set[str]()
    for name in (key, _UNIT_BEHIND.sub("", key)):
        stems |= {name.replace(word, "", 1) for word in _ERROR_WORDS if word in name}
        stems |= {name.removesuffix(word) for word in _ERROR_BEHIND if name.endswith(word)}
        stems |= {name[1:]} if name.startswith(("e", "d", "s")) else set()
    return frozenset(stems | {_UNIT_BEHIND.sub("", stem) for stem in stems})


def error_rank(keys: set[str], measurement: set[str], kind: str) -> int | None:
    """Return how well a column's plain names fit the error of a measurement, 0 best; None where it is no error.

    An error has the name of its measurement and a word such as ``err`` (0), that of another magnitude or flux and such
    a word (1), or that word alone (2).

    Parameters
    ----------
    measurement : plain names of the column of the measurement. kind : ``mag`` or ``flux``.
    """
    names = measurement | {_UNIT_BEHIND.sub("", name) for name in measurement}
    names |= {name.replace(kind, "") for name in names if name != kind}  # sigmapsf is the error of magpsf
    stems = set[str]().union(*map(stems_of_error, keys))
    if stems & (names - {""}):
        return 0
    if stems & {*RANKS[kind], "y", "phot", "photometric"}:
        return 1
    return 2 if keys & _ERROR_ALONE else None


_FILTER: Final = r"(?P<filter>[ugrizyUBVRIG]|BP|RP)"
_QUANTITY: Final = r"(?P<quantity>(?i:mag|err|magerr|emag|flux|fluxerr|mjd|e))"
_ONE_WORD: Final = (re.compile(f"{_FILTER}_?{_QUANTITY}"), re.compile(f"{_QUANTITY}_?{_FILTER}"))


MAX_PARTS: Final = 12
"""Maximum number of words of the name of a column of one filter."""


def filter_and_role(name: str) -> tuple[str, str] | None:
    """Return the filter and the role of a column of one filter, such as ``mag_g``, ``g_mag_err`` or ``e_V``.

    The role is ``value`` where there is only a filter, and ``err`` for an error of magnitudes or fluxes.
    """
    field = last_part(name)
    parts = [part for part in re.split(r"[_\s.:()\[\]-]+", field) if part]
    if len(parts) > MAX_PARTS:
        return None
    if len(parts) > 2 and (parts[-1].lower() in ("ab", "vega") or unit_of(parts[-1])):
        parts.pop()
    for index in sorted(range(len(parts)), key=lambda index: index + 1 < len(parts)):  # the last one first
        role = _role_beside_filter(plain("_".join(parts[:index] + parts[index + 1 :])))
        if role and (found := known_filter(parts[index])):
            return found, role
    match = next((match for pattern in _ONE_WORD if (match := pattern.fullmatch(field))), None)
    if match is None:
        return None
    return known_filter(match["filter"]) or "", _role_beside_filter(match["quantity"].lower())


def _role_beside_filter(key: str) -> str:
    if not key:
        return "value"
    if role := next((role for role in ("mag", "flux", "time", "limit") if key in RANKS[role]), ""):
        return role
    stems = stems_of_error(key)
    return next(
        (f"{kind}_err" for kind in ("mag", "flux") if stems & RANKS[kind].keys()), "err" if key in _ERROR_ALONE else ""
    )
