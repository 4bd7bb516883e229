"""Write the generated pages and tables of docs/, and the dashboard.

python -m deploy.pages            write them
python -m deploy.pages --check    write nothing; exit with 1 and name the pages that are stale
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from deploy.pages import dashboard, tables
from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.service.http.edge.errors import KINDS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PROBLEMS = re.compile(r"(<!-- table: problems -->\n).*?(<!-- end of table -->)", re.DOTALL)


def problems(text: str) -> str:
    """Return docs/api.md with its table of errors made anew, from the kinds of problems that the service declares."""
    rows = [
        [str(kind.status), f"`{kind.type}`", kind.title, kind.meaning]
        for kind in sorted(KINDS.values(), key=lambda kind: kind.status)
    ]
    table = markdown_table(["status", "type", "title", "what it means"], rows)
    return PROBLEMS.sub(lambda slot: f"{slot[1]}\n{table}\n\n{slot[2]}", text)


PAGES: dict[Path, Callable[[str], str]] = {
    DOCS / "settings.md": tables.settings_page,
    DOCS / "metrics.md": tables.metrics_page,
    DOCS / "benchmarks.md": tables.benchmarks_page,
    DOCS / "batching.md": tables.batching_page,
    DOCS / "api.md": problems,
    ROOT / "deploy" / "grafana" / "dashboards" / "nightjar.json": dashboard.page,
}


def stale() -> dict[Path, str]:
    """Pages that differ from what the code says now, with the text they should have."""
    pages = {}
    for path, page in PAGES.items():
        before = path.read_text() if path.exists() else ""
        after = page(before)
        if after != before:
            pages[path] = after
    return pages


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m deploy.pages", description="Write the generated pages of docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is stale")
    check = parser.parse_args().check
    pages = stale()
    for path, text in pages.items():
        sys.stdout.write(f"{path.name}: {'stale' if check else 'written'}\n")
        if not check:
            path.write_text(text)
    sys.exit(1 if check and pages else 0)


if __name__ == "__main__":
    main()
