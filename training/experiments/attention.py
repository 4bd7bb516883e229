"""Costs of the kinds of attention and their distance from exact attention, by length.

    python -m training experiment attention                                  # 1 thread of a CPU
    python -m training experiment attention --device cuda --bfloat16 true    # a GPU

One layer on random, unpadded tokens, the same number of tokens at every length. Per length, all kinds are timed in
turn, round after round, and a ratio to exact is taken within its round, so that a busy machine slows both sides.

Notable:

- *error* is the root mean square difference of the layer's output from exact attention's over that of exact
  attention's, for scores with a standard deviation of 1 and of 4. What counts as exact: for ``grouped_query`` the layer
  whose key and value heads it averages (how such a layer is made from a trained one); for ``reformer`` attention with
  the same shared keys to all tokens; for the others the layer with the same weights;
- random tokens share nothing that a projection or a hash could exploit, and ``linformer`` is measured before training:
  read its error, and ``grouped_query``'s, as that of replacing a trained layer without training;
- *forward* is inference, *step* is training, forward and backward. Memory is the peak of the tensors made on the way,
  beyond weights and input: what the allocator says on a GPU, and live tensors on a CPU (not the scratch space inside an
  operator).

Each kind writes a record; the table goes to standard output.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from training.common import markdown_table
from training.experiments.records import RECORDS, Record, machine, number, write_record

COLUMNS = {  # metric -> its column
    "error_1": "error, s.d. 1",
    "error_4": "error, s.d. 4",
    "forward_ms": "forward ms",
    "forward_ratio": "of exact",
    "step_ms": "step ms",
    "step_ratio": "of exact",
    "forward_mb": "forward MB",
    "step_mb": "step MB",
}


class AttentionExperiment(BaseModel):
    """Measure error, time and memory of every kind of attention by length."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lengths: list[int] = Field(default=[65, 128, 256, 512, 1024, 2048, 4096], description="tokens of a row")
    tokens: int = Field(default=16384, ge=1, description="tokens of a batch")
    width: int = Field(default=192, description="of the layer")
    n_heads: int = Field(default=4, description="of the layer")
    rounds: int = Field(default=5, ge=1, description="timings of each kind; medians are reported")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where to run")
    bfloat16: bool = Field(default=False, description="time under automatic mixed precision; errors stay float32")
    threads: int = Field(default=1, ge=1, description="torch threads")
    seed: int = Field(default=0, ge=0, description="of weights, draws and tokens")
    records: Path = Field(default=RECORDS, description="folder of the JSON records")

    def report(self, measure: Callable[["AttentionExperiment"], dict[str, dict[int, dict[str, float]]]]) -> None:
        """Measure, write the records and print the table."""
        start = perf_counter()
        costs = measure(self)
        minutes = (perf_counter() - start) / 60
        for kind, metrics in costs.items():
            write_record(self._record(kind, metrics, minutes), self.records)
        sys.stdout.write(f"{machine(self.device)}, {self._precision()}, {self.tokens} tokens\n\n{table(costs)}")

    def _precision(self) -> str:
        return f"{'bfloat16' if self.bfloat16 else 'float32'}, {self.threads} thread{'s' * (self.threads > 1)}"

    def _record(self, kind: str, metrics: dict[int, dict[str, float]], minutes: float) -> Record:
        settings = self.model_dump(mode="json", exclude={"records"})
        return Record(
            experiment="attention",
            variant=f"{kind}-{self.device}{'-bfloat16' * self.bfloat16}",
            seed=self.seed,
            metrics={f"{name}_L{length}": row[name] for length, row in metrics.items() for name in COLUMNS},
            settings=settings,
            command=" ".join(["python -m training experiment attention", *self._options()]),
            steps=0,
            published_steps=0,
            minutes=minutes,
            machine=machine(self.device),
            threads=self.threads,
        )

    def _options(self) -> list[str]:
        changed = self.model_dump(mode="json", exclude={"records"}, exclude_defaults=True)
        if "lengths" in changed:
            changed["lengths"] = ",".join(map(str, self.lengths))
        return [f"--{name.replace('_', '-')} {str(value).lower()}" for name, value in changed.items()]


def table(costs: dict[str, dict[int, dict[str, float]]]) -> str:
    """Markdown table of kind -> length -> metrics, grouped by length."""
    lengths = next(iter(costs.values()))
    rows = [
        (str(length), kind, *(number(by_length[length][name], 3) for name in COLUMNS))
        for length in lengths
        for kind, by_length in costs.items()
    ]
    return markdown_table(("L", "kind", *COLUMNS.values()), rows) + "\n"
