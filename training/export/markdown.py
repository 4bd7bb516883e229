"""Tables of a card."""

from collections.abc import Iterable


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table, the first column to the left and numbers to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
