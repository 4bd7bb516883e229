"""Summary of a run of ``nightjar classify``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from nightjar_alerts.alerts.files import exit_status
from nightjar_alerts.core.result import Status
from nightjar_alerts.inputs import UnreadFile
from nightjar_alerts.results import Result, summary_of

SHOWN: Final = 10
"""Maximum number of files that the summary lists."""

Warnings = dict[str, tuple[int, str, str]]
"""Number of light curves with a warning, text and name of the first one, by reason."""


def add_warnings(warnings: Warnings, name: str, result: Result) -> None:
    """Count the warnings of a result; ``name`` is used for an object without an id."""
    for warning in result.warnings:
        first = (0, warning.detail, result.object_id or name)
        count, detail, first_name = warnings.get(warning.reason, first)
        warnings[warning.reason] = (count + 1, detail, first_name)


def warning_lines(warnings: Warnings, total: int) -> list[str]:
    """Return a line for each warning of ``total`` light curves."""
    return [
        f"warning: {count:,} of {total:,} ({name}{', ...' if count > 1 else ''}): {detail}"
        for count, detail, name in warnings.values()
    ]


@dataclass(slots=True)
class RunReport:
    """Summary of a run.

    Attributes
    ----------
    inputs : number of inputs so far, including unreadable ones.
    counts : number of results by status and reason.
    unread : number of files, or parts of files, that could not be read; ``shown`` has the first ones and reasons.
    others : number of files of another kind; ``other_names`` has the first of them.
    empty : folders without files.
    other_filters : number of observations that the model could not use, by filter.
    """

    inputs: int = 0
    counts: Counter[tuple[Status, str]] = field(default_factory=Counter)
    unread: int = 0
    shown: list[tuple[str, str]] = field(default_factory=list)
    others: int = 0
    other_names: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    warnings: Warnings = field(default_factory=dict)
    other_filters: Counter[str] = field(default_factory=Counter)

    def add_results(self, name: str, results: Sequence[Result]) -> None:
        """Count the results of an input; ``name`` is used for objects without an id."""
        self.counts.update((result.status, result.reason) for result in results)
        for result in results:
            self.other_filters.update(result.other_filters)
            add_warnings(self.warnings, name, result)

    def add_unread(self, item: UnreadFile) -> None:
        """Count a file that was not read."""
        if item.is_other:
            self.others += 1
            self.other_names += [item.name][: SHOWN - len(self.other_names)]
        else:
            self.unread += 1
            self.shown += [(item.name, item.detail)][: SHOWN - len(self.shown)]

    @property
    def read(self) -> int:
        """Number of light curves that were classified or abstained."""
        return sum(count for (status, _), count in self.counts.items() if status in ("classified", "abstained"))

    @property
    def status(self) -> int:
        """Exit status of the command."""
        return exit_status(self.read, self.counts.total() - self.read + self.unread, self.others)

    def lines(self) -> list[str]:
        """Return the lines of the summary: results by status and reason, warnings, and unread files with reasons."""
        total = self.counts.total()
        lines = [f"{total:,} light curve{'' if total == 1 else 's'}: {summary_of(self.counts)}"]
        lines += warning_lines(self.warnings, total)
        if self.other_filters:
            counts = ", ".join(f"{count:,} in {name}" for name, count in self.other_filters.most_common())
            lines.append(f"observations not used because of their filter: {counts}")
        lines += [f"not read: {name}: {detail}" for name, detail in self.shown]
        if self.unread > len(self.shown):
            lines.append(f"not read: {self.unread - len(self.shown):,} more")
        if self.others:
            more = ", ..." if self.others > len(self.other_names) else ""
            files = "file" if self.others == 1 else "files"
            lines.append(f"no light curves in {self.others:,} other {files}: {', '.join(self.other_names)}{more}")
        return [*lines, *(f"no files in {path}" for path in self.empty)]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        counts = [[*key, count] for key, count in self.counts.items()]
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"counts": counts}

    def update(self, values: Mapping[str, Any]) -> None:
        """Restore the report of an interrupted run."""
        for name, value in values.items():
            setattr(self, name, value)
        self.other_filters = Counter(self.other_filters)
        self.counts = Counter({(status, reason): count for status, reason, count in values["counts"]})
        self.shown = [(name, detail) for name, detail in values["shown"]]
        self.warnings = {reason: (count, text, name) for reason, (count, text, name) in values["warnings"].items()}
