"""Pieces of a page that needs nothing else: no scripts, no fonts, no network; pictures are inside.

On a phone the page keeps its width: tables and drawings scroll sideways within it, at a size that can be read.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 1160px; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .4rem; padding-top: .6rem; border-top: 1px solid #ddd; }
p { max-width: 75ch; } .about, figcaption { color: #444; font-size: .92rem; } code { font-size: .9em; }
.about { overflow-wrap: anywhere; } a { color: #0064a0; }
nav { font-size: .92rem; margin: 1rem 0; } nav a { display: inline-block; margin: .15rem 1rem .15rem 0; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; margin: 1.2rem 0; }
.numbers div { border: 1px solid #ddd; border-radius: 6px; padding: .6rem 1rem; }
.numbers b { display: block; font-size: 1.45rem; font-weight: 600; white-space: nowrap; }
.numbers small { font-size: .9rem; font-weight: 400; } .numbers span { color: #444; font-size: .87rem; }
.wide { overflow-x: auto; } details { margin: .8rem 0; } summary { cursor: pointer; }
table { border-collapse: collapse; font-size: .86rem; margin: .8rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .45rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; }
th:first-child, td:first-child { text-align: left; font-weight: 400; }
thead th, thead th:first-child { font-weight: 600; white-space: normal; border-bottom: 2px solid #bbb;
  vertical-align: bottom; }
tbody tr:nth-child(even) { background: #f7f8fa; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
@media (max-width: 760px) { .wide img { max-width: none; width: 760px; } }
@media print { h2 { break-after: avoid; } figure, table { break-inside: avoid; } nav { display: none; } }
"""


def document(title: str, head: str, sections: Mapping[str, str]) -> str:
    """The whole page; ``head`` and the sections are HTML already, the title and the names of sections are not."""
    links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in sections)
    body = "".join(f'<h2 id="{_anchor(name)}">{escape(name)}</h2>{part}' for name, part in sections.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1>{head}<nav>{links}</nav>{body}</body></html>\n"
    )


def figure(drawn: Figure, caption: str, kind: str = "svg") -> str:
    """A drawing inside the page; many marks are smaller as PNG, everything else is sharp as SVG."""
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "nightjar"}):  # the same report gives the same bytes
        drawn.savefig(stream, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    mime = "image/svg+xml" if kind == "svg" else "image/png"
    source = f"data:{mime};base64,{base64.b64encode(stream.getvalue()).decode()}"
    words = escape(caption)
    return (
        f'<figure><div class="wide"><img src="{source}" alt="{words}"></div><figcaption>{words}</figcaption></figure>'
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table, the first cell of every row its heading; cells are HTML already."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def details(summary: str, content: str) -> str:
    """Content that is opened on request."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def about(words: str) -> str:
    """A paragraph of explanation, HTML already."""
    return f'<p class="about">{words}</p>'


def value(score: Mapping[str, Any], digits: int = 3) -> str:
    """Mean ± spread; an en dash where nothing was measured."""
    if score["mean"] is None:
        return "–"
    mean = f"{score['mean']:.{digits}f}"
    return mean if score["spread"] is None else f"{mean} ± {score['spread']:.{digits}f}"


def tiles(numbers: Iterable[tuple[Mapping[str, Any], int, str]]) -> str:
    """The few numbers to look at first: score, digits and label of each."""
    boxes = []
    for score, digits, label in numbers:
        mean, _, spread = value(score, digits).partition(" ± ")
        small = f" <small>± {spread}</small>" if spread else ""
        boxes.append(f"<div><b>{mean}{small}</b><span>{escape(label)}</span></div>")
    return f'<div class="numbers">{"".join(boxes)}</div>'


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
