"""Cost and error of the kinds of attention, by length.

    nightjar-train experiment attention                                  # 1 thread of a CPU
    nightjar-train experiment attention --device cuda --bfloat16 true    # a GPU

One layer is run on random tokens without padding, with the same number of tokens for every length. For each length all
kinds are timed in every round, and ratios to exact attention are taken within a round, so that other load of the
machine affects both.

Notable:

- *error* is the root mean square difference between the outputs of the layer and of exact attention, divided by the
  root mean square of the latter, for scores with a standard deviation of 1 and of 4. Exact attention is, for
  ``grouped_query``, the layer whose key and value heads it averages (as when converting a trained layer); for
  ``reformer`` attention to all tokens with the same shared keys; for other kinds the layer with the same weights;
- random tokens have no structure that a projection or a hash could use, and ``linformer`` is untrained, so the errors
  of ``linformer`` and ``grouped_query`` are those of replacing a trained layer without training;
- *forward* is inference, *step* is training, forward and backward. Memory is the peak of temporary tensors, without
  weights and input, as reported by the allocator of a GPU; it is not available for a CPU.

Each kind writes a record; the table is printed to standard output.

Legend: B batch, S positions, D width.
"""

import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from nightjar_alerts.models.common import markdown_table
from nightjar_alerts.models.networks.parts.attention import AttentionConfig, SelfAttention
from nightjar_alerts.models.networks.parts.attention_kernels import SELF
from nightjar_alerts.models.networks.parts.packing import Packing
from nightjar_alerts.training.experiments.runner import RECORDS, RunRecord, machine, number, write_record

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
KINDS: dict[str, dict[str, Any]] = {
    "exact": {},
    "grouped_query": {"kind": "grouped_query"},
    "probsparse": {"kind": "probsparse"},
    "probsparse-paper": {"kind": "probsparse", "sparsity": "paper"},
    "linformer": {"kind": "linformer"},
    "performer": {"kind": "performer"},
    "reformer": {"kind": "reformer"},
}
SPREADS = (1.0, 4.0)  # standard deviations of the scores
WHAT = ("forward", "step")

Metrics = dict[str, float]
Runs = dict[str, Callable[[], None]]


class AttentionExperiment(BaseModel):
    """Measure error, time and memory of every kind of attention by length."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lengths: list[int] = Field(default=[65, 128, 256, 512, 1024, 2048, 4096], description="tokens per row")
    tokens: int = Field(default=16384, ge=1, description="tokens per batch")
    width: int = Field(default=192, description="width of the layer")
    n_heads: int = Field(default=4, description="number of heads")
    rounds: int = Field(default=5, ge=1, description="number of timings of each kind; medians are reported")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="device to run on")
    bfloat16: bool = Field(default=False, description="time with automatic mixed precision; errors are in float32")
    threads: int = Field(default=1, ge=1, description="torch threads")
    seed: int = Field(default=0, ge=0, description="seed of weights, draws and tokens")
    records: Path = Field(default=RECORDS, description="folder of the JSON records")

    def command(self) -> str:
        """Return the shell command of the measurement, without options at their defaults."""
        changed = self.model_dump(mode="json", exclude={"records"}, exclude_defaults=True)
        if "lengths" in changed:
            changed["lengths"] = ",".join(map(str, self.lengths))
        options = [f"--{name.replace('_', '-')} {str(value).lower()}" for name, value in changed.items()]
        return " ".join(["nightjar-train experiment attention", *options])

    def cli_cmd(self) -> None:
        """Measure, record and print."""
        report(self)


def report(command: AttentionExperiment) -> None:
    """Measure, write the records and print the table."""
    start = perf_counter()
    costs = measure(command)
    minutes = (perf_counter() - start) / 60
    for kind, metrics in costs.items():
        write_record(_record(command, kind, metrics, minutes), command.records)
    where = f"{machine(command.device)}, {_precision(command)}, {command.tokens} tokens"
    sys.stdout.write(f"{where}\n\n{table(costs)}")


def _precision(command: AttentionExperiment) -> str:
    return f"{'bfloat16' if command.bfloat16 else 'float32'}, {command.threads} thread{'s' * (command.threads > 1)}"


def _record(command: AttentionExperiment, kind: str, metrics: dict[int, Metrics], minutes: float) -> RunRecord:
    return RunRecord(
        experiment="attention",
        variant=f"{kind}-{command.device}{'-bfloat16' * command.bfloat16}",
        seed=command.seed,
        metrics={f"{name}_L{length}": row[name] for length, row in metrics.items() for name in row},
        settings=command.model_dump(mode="json", exclude={"records"}),
        command=command.command(),
        steps=0,
        published_steps=0,
        minutes=minutes,
        machine=machine(command.device),
        threads=command.threads,
    )


def table(costs: dict[str, dict[int, dict[str, float]]]) -> str:
    """Return a Markdown table of the metrics, grouped by length."""
    lengths = next(iter(costs.values()))
    rows = [
        (
            str(length),
            kind,
            *(number(by_length[length][name], 3) if name in by_length[length] else "-" for name in COLUMNS),
        )
        for length in lengths
        for kind, by_length in costs.items()
    ]
    return markdown_table(("L", "kind", *COLUMNS.values()), rows) + "\n"


def measure(command: AttentionExperiment) -> dict[str, dict[int, Metrics]]:
    """Return the metrics by kind and length."""
    torch.set_num_threads(command.threads)
    costs: dict[str, dict[int, Metrics]] = {kind: {} for kind in KINDS}
    for length in command.lengths:
        errors = {kind: _errors(command, kind, length) for kind in KINDS}
        layers = {kind: _layer(command, kind, length, SPREADS[0]) for kind in KINDS}
        x_MD, packing = _tokens(command, length)
        runs = {kind: _runs(layer, x_MD, packing, command.bfloat16) for kind, layer in layers.items()}
        peaks = {kind: _peaks(kind_runs) if command.device == "cuda" else {} for kind, kind_runs in runs.items()}
        times = _times(runs, command.rounds, command.device)
        for kind in KINDS:
            costs[kind][length] = errors[kind] | peaks[kind] | times[kind]
    return costs


def _layer(command: AttentionExperiment, kind: str, length: int, spread: float) -> SelfAttention:
    """Return a layer with the weights of exact attention, and scores of this standard deviation."""
    torch.manual_seed(command.seed)
    config = AttentionConfig.model_validate(KINDS[kind] | {"max_length": length})
    layer = SelfAttention(command.width, command.n_heads, bias=False, config=config)
    generator = torch.Generator().manual_seed(command.seed)
    query, key, value, out = torch.randn(4, command.width, command.width, generator=generator) * command.width**-0.5
    if kind == "reformer":
        weights = [query * spread, value]  # its keys have unit length
    else:
        weights = [query * spread**0.5, _pooled(key * spread**0.5, layer), _pooled(value, layer)]
    layer.qkv.weight.data, layer.out.weight.data = torch.cat(weights), out
    return layer.to(command.device)


def _pooled(weight_DD: Tensor, layer: SelfAttention) -> Tensor:
    """Average the heads of each group (Ainslie et al. 2023, section 2.1)."""
    heads = weight_DD.view(layer.n_key_heads, -1, layer.head_width, weight_DD.shape[1])
    return heads.mean(1).flatten(0, 1)


class _AllOthers(nn.Module):
    """Limit of Reformer with attention to all tokens: exact, with a penalty for the token itself."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask_BS: Tensor, dropout: float) -> Tensor:
        bias_SS = torch.eye(mask_BS.shape[1], device=query.device) * SELF
        return F.scaled_dot_product_attention(query, key, value, bias_SS, dropout)


def _tokens(command: AttentionExperiment, length: int) -> tuple[Tensor, Packing]:
    """Return random tokens of full rows."""
    batch = max(1, command.tokens // length)
    generator = torch.Generator().manual_seed(command.seed + 1)
    x_MD = torch.randn(batch * length, command.width, generator=generator)
    mask_BS = torch.ones(batch, length, dtype=torch.bool, device=command.device)
    return x_MD.to(command.device), Packing.of(mask_BS, leading=False)


@torch.no_grad()
def _errors(command: AttentionExperiment, kind: str, length: int) -> Metrics:
    """Return the relative error of the layer's output, for each standard deviation of the scores."""
    x_MD, packing = _tokens(command, length)
    errors = {}
    for spread in SPREADS:
        layer = _layer(command, kind, length, spread).eval()
        exact = _layer(command, "reformer" if kind == "reformer" else "exact", length, spread).eval()
        if kind == "reformer":
            exact.kernel = _AllOthers()
        expected_MD = exact(x_MD, packing)
        error = (layer(x_MD, packing) - expected_MD).square().mean() / expected_MD.square().mean()
        errors[f"error_{spread:.0f}"] = float(error.sqrt())
    return errors


def _runs(layer: SelfAttention, x_MD: Tensor, packing: Packing, bfloat16: bool) -> Runs:
    """Return functions for inference and a training step of a layer."""

    def call(x_MD: Tensor) -> Tensor:
        with torch.autocast(x_MD.device.type, torch.bfloat16, enabled=bfloat16):
            mixed_MD: Tensor = layer(x_MD, packing)
        return mixed_MD

    def forward() -> None:
        layer.eval()
        with torch.no_grad():
            call(x_MD)

    def step() -> None:
        layer.train().zero_grad()
        torch.autograd.backward(call(x_MD.detach().requires_grad_()).sum())

    return {"forward": forward, "step": step}


def _times(runs: Mapping[str, Runs], rounds: int, device: str) -> dict[str, Metrics]:
    """Return median milliseconds, and median ratio to exact attention in the same round, after a warm-up round."""
    milliseconds: dict[tuple[str, str], list[float]] = {(kind, what): [] for kind in runs for what in WHAT}
    for index in range(rounds + 1):
        for kind, what in milliseconds:
            elapsed = _time(runs[kind][what], device)
            if index > 0:
                milliseconds[kind, what].append(elapsed)
    times: dict[str, Metrics] = {kind: {} for kind in runs}
    for (kind, what), elapsed_R in milliseconds.items():
        ratio_R = [other / exact for other, exact in zip(elapsed_R, milliseconds["exact", what], strict=True)]
        times[kind] |= {f"{what}_ms": statistics.median(elapsed_R), f"{what}_ratio": statistics.median(ratio_R)}
    return times


def _time(run: Callable[[], None], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1000 * (perf_counter() - start)


def _peaks(runs: Runs) -> Metrics:
    """Return the peak memory of temporary tensors, in MB (10^6 bytes), on a GPU."""
    return {f"{what}_mb": _cuda_peak(runs[what]) / 1e6 for what in WHAT}


def _cuda_peak(run: Callable[[], None]) -> int:
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
