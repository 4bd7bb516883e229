"""Pretraining of ASTROMER on Catalina magnitudes, one positional encoding at a time.

Legend: B windows, L observations of the longest.
"""

import sys
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from models.astromer import AstromerConfig, AstromerPretraining
from models.lightcurve import Int64
from models.network import Reconstruction
from training.data.batches import Batch
from training.data.masking import MaskingConfig, draw_masking
from training.experiments.catalina import Catalina, Curves, Sample, draw_sample, read_catalina, training_windows
from training.experiments.encodings import N_FOLDS, STEPS, Encodings
from training.experiments.results import Record, machine, write_record
from training.experiments.runs import Identity, epochs, minutes
from training.fit.checkpoints import load_best, read_log
from training.fit.loop import Step, Task, fit
from training.fit.reconstruct import MaskedBatch, reconstruction_loss, reconstruction_scores
from training.recipes.schema import FitConfig, OptimiserConfig, ScheduleConfig, ValidationConfig

MASKING = MaskingConfig(probed=0.5, hidden=0.6, random=0.2, same=0.2)
CONVERGED = 1.02  # of the best validation RMSE
WARMUP = 200
HELD_OUT = 0.05  # of the unlabelled objects for validation, and as many for the reported scores


class Pretrained(NamedTuple):
    """A pretrained network with its best weights, and the data and sample that it came from."""

    network: AstromerPretraining
    data: Catalina
    sample: Sample


class Parts(NamedTuple):
    """Unlabelled objects: to train on, to decide when to stop, to report on."""

    train: Int64
    validation: Int64
    test: Int64


class MagnitudeReconstruction(Task):
    """Masked reconstruction of magnitudes: the root of the mean over windows of each window's error, as ASTROMER's."""

    def __init__(self, data: Catalina, parts: Parts, window: int, batch: int, seed: int) -> None:
        self.data, self.parts, self.window, self.batch, self.seed = data, parts, window, batch, seed
        self.validation = self.held_out(parts.validation)

    def batches(self, step: int) -> Generator[MaskedBatch, None, None]:
        """Shuffled epochs; window and masks of an object are drawn anew each time."""
        drawn = epochs(len(self.parts.train), self.batch, self.seed, step)
        for number, indices in enumerate(drawn, start=step):
            yield self._draw(self.parts.train[indices], np.random.default_rng((self.seed, number)))

    def loss(self, network: nn.Module, batch: MaskedBatch) -> Step:
        """Error of the probed observations, mag."""
        output: Reconstruction = network(*batch.curves.inputs_of(network), batch.masking)
        return Step(reconstruction_loss(output, batch.masking.probed_BL, "rmse"), {})

    def score(self, network: nn.Module) -> dict[str, float]:
        """RMSE (mag) and R2 on the validation windows."""
        return reconstruction_scores(network, self.validation)

    def held_out(self, indices: Int64) -> list[MaskedBatch]:
        """One masked window of each object, the same for every encoding."""
        rng = np.random.default_rng(0)
        return [self._draw(part, rng) for part in np.array_split(indices, max(1, len(indices) // self.batch))]

    def _draw(self, indices: Int64, rng: np.random.Generator) -> MaskedBatch:
        curves = training_windows(self.data, indices, self.window, rng)
        return MaskedBatch(to_batch(curves), draw_masking(curves.mask_BL, MASKING, rng))


def to_batch(curves: Curves) -> Batch:
    """Windows as network inputs, magnitudes in the place of fluxes; one band."""
    tensors = [torch.from_numpy(array) for array in curves]
    mag_BL, mag_err_BL, time_BL, mask_BL, label_B = tensors
    band_BL = torch.zeros(mask_BL.shape, dtype=torch.int64)
    return Batch(mag_BL, mag_err_BL, time_BL, band_BL, mask_BL, torch.zeros(len(label_B), 0), label_B)


def network_config(options: Encodings) -> AstromerConfig:
    """Configuration of the network: magnitudes as they are, centred per window, the branch's frequencies."""
    return AstromerConfig(
        value="linear",
        time_encoding=options.encoding,
        pe_base=1000.0,
        pe_exponent=1.0,
        window=options.window,
        d_model=options.d_model,
        n_heads=options.n_heads,
        n_blocks=options.n_blocks,
        d_ff=options.d_ff,
        dropout=0.0,
        modulation_init_std=0.125,  # 1 / sqrt(64 harmonics): factors of about 1
    )


def split_unlabelled(unlabelled: Int64) -> Parts:
    """Cut the unlabelled objects at random, the same way for every seed."""
    order = np.random.default_rng(0).permutation(unlabelled)
    held_out = max(1, round(HELD_OUT * len(order)))
    return Parts(order[2 * held_out :], np.sort(order[:held_out]), np.sort(order[held_out : 2 * held_out]))


def fit_config(options: Encodings) -> FitConfig:
    """Adam at a constant rate after a warm-up; patience ends the run."""
    schedule = ScheduleConfig(
        steps=options.steps or STEPS, warmup_steps=WARMUP, shape="constant", patience=options.patience
    )
    return FitConfig(
        name=f"{options.experiment} {options.encoding}",
        schedule=schedule,
        optimiser=OptimiserConfig(lr=options.lr),
        validation=ValidationConfig(every=options.every, log_every=max(1, min(50, options.every // 2))),
        seed=options.seed,
        threads=options.threads,
        device=options.device,
    )


def pretrain(options: Encodings) -> Pretrained | None:
    """Pretrain or resume, write the record of the reconstruction; None when ``max_minutes`` ended the run."""
    data = read_catalina(options.data)
    sample = draw_sample(data.label, options.per_class, N_FOLDS, seed=0)
    task = MagnitudeReconstruction(
        data, split_unlabelled(sample.unlabelled), options.window, options.batch, options.seed
    )
    torch.manual_seed(options.seed)
    network, config = AstromerPretraining(network_config(options)), fit_config(options)
    folder = run_folder(options)
    identity = Identity(variant=options.encoding, settings=options.settings(), fit=config)
    result = fit(network, task, config, folder, identity, max_minutes=options.max_minutes)
    if not result.finished:
        sys.stdout.write(f"stopped at step {result.step}: run the same command again to go on\n")
        return None
    network.load_state_dict(load_best(folder))
    write_record(_record(options, network.eval(), task, folder, result.step), options.records)
    return Pretrained(network, data, sample)


def run_folder(options: Encodings) -> Path:
    """Where the pretraining keeps its checkpoints."""
    return options.runs / options.experiment / f"{options.encoding}-{options.d_model}-{options.seed}"


def converged(log: list[dict[str, float]]) -> int:
    """First step at which the validation RMSE was within 2 % of the best of the run."""
    curve = [(int(line["step"]), line["validation_rmse"]) for line in log if "validation_rmse" in line]
    best = min(rmse for _, rmse in curve)
    return next(step for step, rmse in curve if rmse <= CONVERGED * best)


def _record(options: Encodings, network: nn.Module, task: MagnitudeReconstruction, folder: Path, steps: int) -> Record:
    with torch.inference_mode():
        scores = reconstruction_scores(network, task.held_out(task.parts.test))
    budget = options.steps or STEPS  # the record's steps: patience ends encodings at different ones
    passes = options.batch / len(task.parts.train)
    return Record(
        experiment=options.experiment,
        variant=f"{options.encoding}-reconstruction",
        seed=options.seed,
        metrics={
            "RMSE (mag)": scores["rmse"],
            "R2": scores["r2"],
            "epochs to converge": converged(read_log(folder)) * passes,
            "epochs done": steps * passes,
        },
        settings=options.settings(),
        command=options.command(),
        steps=budget,
        published_steps=budget,
        minutes=minutes(folder, steps),
        machine=machine(options.device),
        threads=options.threads,
    )
