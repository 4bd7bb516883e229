"""Names of objects and files, which anybody may have chosen, made safe for terminals, spreadsheets and file names."""

import re
import unicodedata
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from nightjar_alerts.models.common import without_surrogates

MAX_FILE_NAME: Final = 120
"""Maximum number of bytes of a file name before its suffix and what makes it unique."""
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, line separators, marks without a width or of the direction of text, and unpaired surrogates."""
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", re.IGNORECASE)
"""Names of devices in Windows."""
_FORMULA: Final = re.compile(r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
"""Full-width signs are formulas in some languages of Excel."""


def printable(text: str) -> str:
    """Return text in which characters that a terminal would obey, and marks that nobody sees, are escaped."""
    return text if text.isascii() and text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def spreadsheet_text(text: str) -> str:
    """Return the text of a cell; one that a spreadsheet would run as a formula gets an apostrophe in front.

    Numbers are unchanged, such as ``-1.5``.
    """
    if not _FORMULA.match(text):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def file_name(text: str, taken: Mapping[str, str]) -> str:
    """Return a name, without suffix, for a file about an object.

    Parameters
    ----------
    taken : object of each name in use, as :func:`file_key` returns it. A further file about an object gets a number.
        Objects whose names differ only in what a file name cannot have, or in what some file systems ignore, get
        different names.
    """
    name = re.sub(r"[^\w.+-]+", "_", unicodedata.normalize("NFC", text)).lstrip("._-").rstrip("._")
    if _RESERVED.match(name) or not name:
        name = f"object_{name}".rstrip("_")
    base = name.encode()[:MAX_FILE_NAME].decode(errors="ignore")
    if base != name or taken.get(file_key(base), text) != text:
        base = f"{base}_{sha256(without_surrogates(text).encode()).hexdigest()[:8]}"
    name, number = base, 1
    while file_key(name) in taken:
        number += 1
        name = f"{base}_{number}"
    return name


def file_key(name: str) -> str:
    """Return what is equal for file names that some file systems take for the same."""
    return unicodedata.normalize("NFKC", name).casefold()
