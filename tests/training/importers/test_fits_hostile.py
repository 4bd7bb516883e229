"""FITS files with invalid headers: impossible sizes raise an error and do not exhaust memory."""

from pathlib import Path

import pytest

from nightjar_alerts.tables import TableError
from nightjar_alerts.training.importers.snana import open_table


def header(*cards: str) -> bytes:
    text = "".join(card.ljust(80) for card in (*cards, "END"))
    return text.ljust(-(-len(text) // 2880) * 2880).encode()


@pytest.mark.parametrize(
    "cards",
    [
        ("NAXIS   = 1", "NAXIS1  = -2880"),
        ("NAXIS   = -1",),
        ("NAXIS   = 2", "NAXIS1  = 99999999999999", "NAXIS2  = 9"),
        ("NAXIS   = 3", "NAXIS1  = 1000000", "NAXIS2  = 1000000", "NAXIS3  = 1000000"),
        ("NAXIS   = 1", "NAXIS1  = 1.5"),
        ("NAXIS   = 1", "NAXIS1  = T"),
        ("NAXIS   = 1",),
        ("NAXIS   = 1", "NAXIS1  = 8", "PCOUNT  = -9"),
    ],
)
def test_open_table_with_impossible_sizes_raises(cards: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "strange.fits"
    path.write_bytes(header("SIMPLE  = T", "BITPIX  = 8", *cards) + b"\0" * 2880)
    with pytest.raises(TableError), open_table(path):
        pass
