"""Tables as text, read with the standard library: CSV and its relatives, photometry files, SNANA's text files.

Notable:

- the delimiter (comma, tab, semicolon, bar or white space), comment lines and the line of names are found from the
  first lines; names may stand in the last comment, as in ``# MJD mag err``, or be missing;
- a row with another number of fields is left out, counted and named by its line;
- memory holds :data:`BATCH_ROWS` rows, or the rows of :data:`PORTION_BYTES` bytes where these are fewer; a line and a
  row in quotes are bounded;
- a line costs time in proportion to its length, whatever it holds: no regular expression starts again at each blank.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import numpy as np

from nightjar_alerts.tables.bounds import UnsupportedFormat
from nightjar_alerts.tables.columns import Array, Column, TableColumns, lists_of, object_column
from nightjar_alerts.tables.options import TableError
from nightjar_alerts.tables.streams import Lines, Problems, Stream
from nightjar_alerts.tables.vocabulary import error_rank, plain

BATCH_ROWS: Final = 16_384
PORTION_BYTES: Final = 4 << 20
SHORT_BYTES: Final = 64 << 10
SHORT_ROWS: Final = 64
"""Rows that are read at once, where they have less than :data:`SHORT_BYTES` on average."""
SAMPLE_CHARACTERS: Final = 1 << 16
MAX_FIELD: Final = 16 << 20
"""Characters of a field, which may hold the times of a whole light curve. Quotes that have no end are a malformed row
of this length."""
_SEPARATORS: Final = (",", "\t", ";", "|", "")
_BLANKS: Final = "  "
"""Two blanks or more, between fields that may hold one."""
_DECIMAL_COMMA: Final = re.compile(r"(?<![^;\"\s])((?:[<>]\s{0,9})?[-+]?\d*),(?=\d+(?:[eE][-+]?\d+)?\"?(?:;|\s|$))")
"""Decimal comma of a number between semicolons or blanks, as spreadsheets write it in many countries."""
_DECIMAL_POINT: Final = re.compile(r"(?:^|;)\s*[-+]?\d*\.\d+\s*(?=;|$)")

csv.field_size_limit(MAX_FIELD)


@dataclass(frozen=True)
class _Form:
    """How the lines of a text table are laid out.

    ``separator`` is empty for white space, ``skip`` the number of lines before the first row, ``prefix`` the word in
    front of every row of a SNANA file, and ``constants`` the columns with one value. ``spans`` are the first and last
    character of each field of a table of fixed width, ``units`` those of the columns. ``with_errors`` are columns that
    hold a value and its error, such as ``18.72 ± 0.10``; the errors become a column of their own. ``section`` matches
    lines between the rows that state the value of the first column of the rows below, such as ``filter B``.
    """

    names: tuple[str, ...]
    separator: str = ","
    skip: int = 0
    prefix: str = ""
    constants: Mapping[str, str] = field(default_factory=dict)
    decimal_comma: bool = False
    spans: tuple[tuple[int, int], ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    with_errors: Mapping[str, str] = field(default_factory=dict)
    section: re.Pattern[str] | None = None


class TextSource:
    """A table as text."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.name, self.stem = stream.name, stream.stem
        self.problems = Problems()
        self._is_behind_empty_line = True
        head = stream.head()
        if b"\x00" in head[:64] and stream.encoding() != "utf-16":
            raise UnsupportedFormat(f"{self.name} is not text: name its format with the option format", "binary")
        lines = head.decode(stream.encoding(), "replace")[:SAMPLE_CHARACTERS].splitlines()
        if len(lines) > 1 and len(head) > SAMPLE_CHARACTERS:
            lines.pop()  # which may be cut
        self._form = _form_of(lines, self.name)
        self.header = (*self._form.names, *self._form.constants, *self._form.with_errors.values())
        stream.bounds.check_names(self.header, self.name)
        self.units: Mapping[str, str] = {**_units_in(self.header), **self._form.units}

    @property
    def progress(self) -> float:
        """Fraction that the last pass has read."""
        return self._stream.progress

    def batches(self, names: Sequence[str] | None = None) -> Iterator[TableColumns]:
        """Yield the named columns, or all, as arrays of text, :data:`BATCH_ROWS` rows at a time."""
        self.problems = Problems()
        self._is_behind_empty_line = True
        form = self._form
        with self._stream.lines() as lines:
            for rows in self._portions(lines):
                columns = zip(form.names, zip(*rows, strict=True), strict=True) if rows else ()
                batch: TableColumns = {}
                for name, column in columns:
                    error = form.with_errors.get(name, "")
                    if names is None or name in names or error in names:
                        batch[name] = _lists_in(object_column(column))
                    if error and (names is None or name in names or error in names):
                        batch[name], batch[error] = _value_and_error(column)
                for name, text in form.constants.items():
                    if names is None or name in names:
                        batch[name] = np.full(len(rows), text, np.object_)
                if rows:
                    yield batch

    def _portions(self, lines: Lines) -> Iterator[list[list[str]]]:
        """Yield rows of the right width, about :data:`BATCH_ROWS` or :data:`PORTION_BYTES` at a time."""
        form = self._form
        content: Iterator[str] = islice(lines, form.skip, None)
        if form.decimal_comma:
            content = map(_with_decimal_points, content)
        reader: Iterator[list[str]] = map(str.split, content)
        if form.prefix:
            reader = (row[1:] if row[:1] == [form.prefix] else [] for row in reader)
        if form.section:
            reader = _in_sections(form.section, content)
        elif form.spans:
            reader = ([line[start - 1 : end].strip() for start, end in form.spans] for line in content)
        elif form.separator == _BLANKS:
            reader = (_split(line, _BLANKS) for line in content)
        elif form.separator:
            reader = csv.reader(content, delimiter=form.separator, skipinitialspace=True)
        number, is_done = form.skip, False
        while not is_done:
            rows: list[list[str]] = []
            start, step = lines.taken, 1
            lines.allow(PORTION_BYTES + MAX_FIELD + self._stream.bounds.max_line)
            try:
                while len(rows) < BATCH_ROWS and lines.taken - start <= PORTION_BYTES and not is_done:
                    wanted = len(rows) + step
                    rows.extend(islice(reader, step))
                    is_done = len(rows) < wanted
                    are_short = lines.taken - start < SHORT_BYTES * len(rows)
                    step = min(SHORT_ROWS, BATCH_ROWS - len(rows)) if are_short else 1
            except csv.Error as error:  # the rows before it have been read
                self.problems.add(str(error), f"{self.name}, line {number + len(rows) + 1}")
                number += 1
            yield self._checked(rows, number)
            number += len(rows)

    def _checked(self, rows: list[list[str]], number: int) -> list[list[str]]:
        """Leave out empty rows and, counted, rows of another width and comments behind the first row.

        ``number`` lines stand before the rows.
        """
        width = len(self._form.names)
        if all(len(row) == width and row[0][:1] not in ("", "#") for row in rows):
            self.problems.blocks += self._is_behind_empty_line and bool(rows)
            self._is_behind_empty_line &= not rows
            return rows
        good: list[list[str]] = []
        for place, row in enumerate(rows, number + 1):
            if not any(map(str.strip, row)):
                self._is_behind_empty_line = True
                continue
            if row[0].startswith("#"):
                if good or number > self._form.skip:  # it may name the object of the rows behind it
                    self.problems.add("a comment sign in front", f"{self.name}, line {place}")
                continue
            if len(row) == width or (len(row) > width and not any(row[width:])):
                self.problems.blocks += self._is_behind_empty_line
                self._is_behind_empty_line = False
                good.append(row[:width])
            else:
                self.problems.add(f"{len(row)} fields instead of {width}", f"{self.name}, line {place}")
        return good


def _in_sections(section: re.Pattern[str], content: Iterator[str]) -> Iterator[list[str]]:
    """Yield the fields of rows behind the value of their section; lines of sections and comments have none."""
    value = ""
    for line in content:
        match = section.match(line)
        value = match[1] if match else value
        fields = [] if match else line.split()
        yield [value, *fields] if fields and not fields[0].startswith("#") else []


def _lists_in(column: Array) -> Column:
    """Return a column whose texts are lists (``[1.0, 2.0]``) as lists."""
    if not all(text.startswith(("[", "(")) and text.endswith(("]", ")")) for text in column[:3]):
        return column
    rows = [[item.strip("'\"") for item in re.split(r"[,\s]+", text.strip("[]() \n")) if item] for text in column]
    return lists_of(rows)


def _value_and_error(column: Sequence[str]) -> tuple[Array, Array]:
    """Return the values and the errors of texts such as ``18.72 ± 0.10`` and ``18.72(10)``."""
    split = [_split_error(text) for text in column]
    return object_column([value for value, _ in split]), object_column([error for _, error in split])


def _split_error(text: str) -> tuple[str, str]:
    if len(text) > MAX_MEASUREMENT or not (match := _WITH_ERROR.fullmatch(text.strip())):
        return text, ""
    if match["digits"] is None:
        return match["value"], match["error"]
    decimals = len(match["value"].partition(".")[2])
    return match["value"], repr(int(match["digits"]) / 10**decimals) if "." not in match["digits"] else match["digits"]


MAX_MEASUREMENT: Final = 64
_WITH_ERROR: Final = re.compile(
    r"(?P<value>[<>]?[-+]?\d{1,20}(?:\.\d{0,20})?)\s{0,4}(?:(?:±|\+/-|\+-|\\pm)\s{0,4}(?P<error>\d{1,20}(?:\.\d{0,20})?)"
    r"|\((?P<digits>\d{1,6})\))"
)
"""A measurement with its error, also in units of its last digit."""


def _columns_with_errors(form: _Form, lines: Sequence[str]) -> dict[str, str]:
    """Return the columns whose values have errors, and the names of the columns of these."""
    if not any(_WITH_ERROR.search(line) for line in lines if len(line) < MAX_MEASUREMENT * len(form.names)):
        return {}
    rows = [row for line in lines if len(row := _split(line, form.separator)) == len(form.names)]
    found = []
    for number, name in enumerate(form.names):
        texts = [text for row in rows if (text := row[number].strip())]
        matching = sum(len(text) <= MAX_MEASUREMENT and bool(_WITH_ERROR.fullmatch(text)) for text in texts)
        if texts and matching > len(texts) / 2 and f"e_{name}" not in form.names:
            found.append(name)
    if len(found) > MAX_WITH_ERRORS:
        return {}
    keys = {name: {plain(name)} for name in form.names}
    return {
        name: f"e_{name}"
        for name in found
        if all(error_rank(keys[other], keys[name], "mag") is None for other in form.names if other != name)
    }


MAX_WITH_ERRORS: Final = 32
"""Maximum number of columns with errors in their fields, each of which is compared with all others."""


def _units_in(names: Sequence[str]) -> dict[str, str]:
    """Return the units that stand in brackets behind names."""
    found = {name: re.search(r"[\[(]([^\])]+)[\])]$", name.rstrip()) for name in names}
    return {name: match[1] for name, match in found.items() if match}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_value(text: str) -> bool:
    """Return True for what a row of data has and a line of names has not."""
    bare = text.strip().lstrip("<>")
    return (
        (bare[:1] in ("[", "(") and any(map(str.isdecimal, bare)))
        or (_is_number(bare) and bare.lower() not in ("nan", "inf", "infinity"))
        or bool(re.match(r"\d{4}[-/]\d{1,2}[-/]\d", bare))
    )


def _split(line: str, separator: str) -> list[str]:
    if not separator:
        return line.split()
    if separator == _BLANKS:
        return re.split(r"\s{2,}|\t", line.strip())
    try:
        return [text.strip() for text in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]
    except csv.Error:
        return line.split(separator)


def _form_of(lines: Sequence[str], name: str) -> _Form:
    """Find the layout of a text table from its first lines. Raises TableError."""
    if (known := next(filter(None, (read(lines) for read in _KNOWN_FORMS)), None)) is not None:
        return known
    content = [
        (place, line) for place, line in enumerate(lines) if line.strip() and not line.lstrip().startswith(("#", "\\"))
    ]
    if not content:
        raise TableError(f"{name} is empty: it has no rows")
    sample = [line for _, line in content[-60:]]
    if decimal_comma := _has_decimal_commas(sample):
        content = [(place, _with_decimal_points(line)) for place, line in content]
        sample = list(map(_with_decimal_points, sample))
    separators = _SEPARATORS if not decimal_comma else (";",) if ";" in sample[0] else ("\t", "")
    form = _with_names(lines, content, *_separator(sample, name, separators))
    if not form.separator and form.names[0] == "column 1" and any("  " in line for line in sample):
        with_blanks = _with_names(lines, content, *_separator(sample, name, (_BLANKS,)))
        form = form if with_blanks.names[0] == "column 1" else with_blanks
    return replace(form, decimal_comma=decimal_comma, with_errors=_columns_with_errors(form, sample))


def _has_decimal_commas(lines: Sequence[str]) -> bool:
    """Return True if semicolons or blanks separate the fields, and numbers have a comma instead of a point."""
    if 2 * sum(bool(_DECIMAL_COMMA.search(line)) for line in lines) < len(lines):
        return False
    if all(";" in line for line in lines):
        return not any(_DECIMAL_POINT.search(line) for line in lines)
    return all("," not in _with_decimal_points(line) and len(line.split()) > 2 for line in lines)


def _with_decimal_points(line: str) -> str:
    return _DECIMAL_COMMA.sub(r"\1.", line)


def _separator(lines: Sequence[str], name: str, separators: Sequence[str]) -> tuple[str, int]:
    """Return the separator of the rows and the number of their fields."""
    best: tuple[float, str, int] = (0.0, "", 0)
    for separator in separators:
        widths = Counter(len(_split(line, separator)) for line in lines)
        width, count = max(widths.items(), key=lambda item: (item[1], item[0]))
        share = count / len(lines)
        if width > 1 and share > best[0] + 0.2:
            best = (share, separator, width)
    if not best[2]:
        raise TableError(f"{name} is not a table: its lines have no columns that a comma, tab or space would separate")
    return best[1], best[2]


def _with_names(lines: Sequence[str], content: Sequence[tuple[int, str]], separator: str, width: int) -> _Form:
    """Return the layout with the names in the line, or the comment, before the first row, if there are any."""
    rows = ((place, _split(line, separator)) for place, line in content)
    wide = [place for place, line in content[:2] if len(_split(line, separator)) == width]
    start = next((place for place, row in rows if len(row) == width and any(map(_is_value, row))), -1)
    if start < 0:  # rows of words, behind a line of names
        start = wide[0] + 1 if wide else content[-1][0]
    units: Mapping[int, str] = {}
    for place in range(start - 1, -1, -1):
        line = lines[place].strip()
        bare = line.lstrip("#\\%! ").strip()
        if not bare or not re.sub(r"[-=+\s,;|]", "", bare):  # a rule
            continue
        if separator and not units and (units := _units_of_row(_split(lines[place].rstrip("\r\n"), separator), width)):
            continue
        for candidate in dict.fromkeys((separator, ",", "\t", "")):
            names = [text.strip("'\"") for text in _split(bare.rstrip(","), candidate)]
            if len(names) == width - 1 and bare.endswith(",") and candidate:
                names.append("")
            if len(names) == width and not any(map(_is_number, names)):
                unique = _unique([name.rstrip(",") for name in names])
                return _Form(unique, separator, start, units={unique[number]: unit for number, unit in units.items()})
        if not line.startswith(("#", "\\", "%", "!")):
            break  # a line of text that is no comment: names are not further up
    return _Form(tuple(f"column {number}" for number in range(1, width + 1)), separator, start)


def _units_of_row(row: Sequence[str], width: int) -> dict[int, str]:
    """Return the units by column of a row between names and values, such as ``(days),,(uJy)``; else nothing."""
    fields = [text.strip().strip("'\"") for text in row]
    if len(fields) != width or not any(fields) or not all(not text or _UNIT.fullmatch(text) for text in fields):
        return {}
    # Among units without brackets, those in brackets are of logarithms: vizier.cds.unistra.fr/vizier/doc/catstd-3.2.htx
    marks = "()[]" if all(text.startswith(("(", "[")) for text in fields if text) else "()"
    return {number: text.strip(marks) for number, text in enumerate(fields) if text}


_UNIT: Final = re.compile(
    r"[(\[][^()\[\]]{0,40}[)\]]|10[-+]\d{1,2}[A-Za-z]{1,9}|---?|mag|mmag|d|days?|MJD|JD|BJD|HJD|s|sec|seconds?|deg|degrees?|arcsec|[nuµμm]?Jy|"
    r"(micro|nano|milli)?jansky|adu|counts?|e-/s|electron/s|pix(el)?|[kM]?pc|AB|ABmag|Vega|none|1",
    re.IGNORECASE,
)
"""What stands in a row of units."""


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    seen: Counter[str] = Counter()
    result = []
    for number, name in enumerate(names, 1):
        name = name or f"column {number}"
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(result)


def _snana(lines: Sequence[str]) -> _Form | None:
    """Return the layout of a SNANA text file: keys of the object, then ``VARLIST:`` and rows that begin ``OBS:``.

    ``NVAR`` is the number of columns, if ``VARLIST`` has more names.
    """
    constants: dict[str, str] = {}
    number: int | None = None
    last = max((place for place, line in enumerate(lines) if line.startswith("OBS:")), default=-1)
    for place, line in enumerate(lines):
        key, _, text = line.partition(":")
        value = text.split()[0] if text.split() else ""
        if key.strip() in ("SNID", "ZP_FLUXCAL") and value:
            constants.setdefault(key.strip(), value)
        if key.strip() == "NVAR" and value.isdecimal() and len(value) < 5:
            number = int(value)
        if key.strip() in ("VARLIST", "VARNAMES") and value and place < last:
            return _Form(_unique(text.split()[:number]), "", place + 1, prefix="OBS:", constants=constants)
    return None


_FILTER_LINE: Final = re.compile(r"filter[ \t]{1,9}(\S{1,40})\s{0,99}$")
_DESIGNATION: Final = re.compile(r"#desig=[ \t]{0,9}(\S{1,40})")


def _snoopy(lines: Sequence[str]) -> _Form | None:
    """Return the layout of SNooPy's text: a line of name, redshift and position, then rows below lines of filters.

    Source: https://csp.obs.carnegiescience.edu/data/snpy/documentation/ASCII_format
    """
    if len(lines) < 2 or not _FILTER_LINE.match(lines[1]) or len(head := lines[0].split()) != 4:
        return None
    if not all(map(_is_number, head[1:])):
        return None
    constants = dict(zip(("name", "redshift", "ra", "dec"), head, strict=True))
    return _Form(("filter", "time", "mag", "mag_err"), "", 1, constants=constants, section=_FILTER_LINE)


def _asas(lines: Sequence[str]) -> _Form | None:
    """Return the layout of ASAS-3: datasets with a designation, which may be of several stars, each with a header."""
    names = next((line.lstrip("# ").split() for line in lines if re.match(r"#\s{0,20}HJD\s{1,20}MAG_0\b", line)), None)
    if names is None or not any(map(_DESIGNATION.match, lines)):
        return None
    return _Form(_unique(["designation", *names]), "", 0, section=_DESIGNATION)


_SALT_NAME: Final = re.compile(r"#\s{0,9}(?:([A-Za-z_]\w{0,40})\s{0,9}:|(end)\s{0,99}$)")
_SALT_KEYS: Final = {"SN": "name", "BAND": "band", "MAGSYS": "magsys", "Z_HELIO": "redshift", "REDSHIFT": "redshift"}


def _salt(lines: Sequence[str]) -> _Form | None:
    """Return the layout of SALT's light curves: keys behind ``@``, a line for the name of each column, and ``#end :``.

    Source: https://github.com/sncosmo/sncosmo/blob/master/sncosmo/io.py
    """
    names = [(place, match[1] or match[2]) for place, line in enumerate(lines) if (match := _SALT_NAME.match(line))]
    if len(names) < 3 or names[-1][1] != "end":
        return None
    pairs = [line[1:].split() for line in lines[: names[-1][0]] if line.startswith("@")]
    constants = {_SALT_KEYS[pair[0]]: pair[1] for pair in pairs if len(pair) == 2 and pair[0] in _SALT_KEYS}
    return _Form(_unique([name for _, name in names[:-1]]), "", names[-1][0] + 1, constants=constants)


_BYTES: Final = re.compile(
    r"\s{0,9}(?:(?P<first>\d{1,5})\s{0,3}-)?\s{0,5}(?P<last>\d{1,5})\s{1,9}[AIFEDL][\d.]{0,9}\s{1,9}(?P<unit>\S{1,40})"
    r"\s{1,20}(?P<label>\S{1,100})(?:\s(?P<explanation>.*)|$)"
)
_ZERO_OF_TIMES: Final = re.compile(r"\b[HB]?M?JD ?- ?\d{4,7}(?:\.\d{1,9})?", re.ASCII)
"""Date from which times count, in the explanation of a column."""


def _machine_readable(lines: Sequence[str]) -> _Form | None:
    """Return the layout of a machine-readable table of the AAS or the CDS: a description of bytes, and its rows."""
    start = next((place for place, line in enumerate(lines) if line.startswith("Byte-by-byte Description")), -1)
    if start < 0:
        return None
    rules = [place for place, line in enumerate(lines) if len(line) > 20 and not line.strip("-= \r\n")]
    rows = [match for line in lines[start : rules[-1] if rules else start] if (match := _BYTES.match(line))]
    if not rows or not rules:
        return None
    names = _unique([row["label"] for row in rows])
    spans = tuple((int(row["first"] or row["last"]), int(row["last"])) for row in rows)
    ends = [0, *(last for _, last in spans)]
    if any(first <= end or last < first for (first, last), end in zip(spans, ends[:-1], strict=True)):
        return None  # fields that overlap would multiply the size of a line
    units = {name: row["unit"] for name, row in zip(names, rows, strict=True) if row["unit"] != "---"}
    for name, row in zip(names, rows, strict=True):
        if zero := _ZERO_OF_TIMES.search(row["explanation"] or ""):
            units[name] = zero[0]
    return _Form(names, skip=rules[-1] + 1, spans=spans, units=units)


_KNOWN_FORMS: Final = (_snana, _machine_readable, _snoopy, _asas, _salt)
