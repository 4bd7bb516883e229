"""RoMAE as a masked autoencoder of curves: the tasks of the interpolation and the spirals experiments.

Notable: both hide points anew at each step and ask for the noisy values, as the published runs do.

Legend: N curves, B batch, L points, K values of a point, A = 1 axis of position.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightjar_alerts.models.networks.romae import TINY, TINY_SHALLOW, MaskedAutoencoder, masked_mse
from nightjar_alerts.training.experiments import interpolation, spirals
from nightjar_alerts.training.experiments.runs import ExperimentPlan, epochs, fit_config
from nightjar_alerts.training.fit.loop import StepLoss, Task

Mask = NDArray[np.bool_]
DECODERS = {"tiny": TINY, "tiny-shallow": TINY_SHALLOW}
AT_ONCE = 100  # curves of an evaluation batch


class NoisyCurves(NamedTuple):
    """A batch: noisy curves and what is hidden of them."""

    values_BLK: Tensor
    hidden_BL: Tensor


class CurveReconstruction(Task):
    """Mean squared error of the hidden points.

    Parameters
    ----------
    curve_NLK : noisy training curves.
    position_L : of the points, in the unit that the rotation is to see.
    draw_shown : from a number of curves and a generator to the points shown, [N, L].
    check : errors of a network's predictions, for the log; the score is minus the first of them.
    """

    def __init__(
        self,
        curve_NLK: NDArray[np.float64],
        position_L: NDArray[np.float64],
        draw_shown: Callable[[int, np.random.Generator], Mask],
        check: Callable[[interpolation.Predict], dict[str, float]],
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        self.curve_NLK = torch.from_numpy(curve_NLK).float()
        self.position_LA = torch.from_numpy(position_L).float()[:, None]
        self.draw_shown, self.check, self.batch_size, self.seed = draw_shown, check, batch_size, seed

    def batches(self, step: int) -> Generator[NoisyCurves, None, None]:
        """Epochs over all training curves, shuffled, masked by (seed, step)."""
        indices = epochs(len(self.curve_NLK), self.batch_size, self.seed, step)
        for number, index in enumerate(indices, start=step):
            visible_BL = self.draw_shown(len(index), np.random.default_rng((self.seed, 1, number)))
            yield NoisyCurves(self.curve_NLK[index], torch.from_numpy(~visible_BL))

    def loss(self, network: nn.Module, batch: NoisyCurves) -> StepLoss:
        """Error of the hidden points."""
        return StepLoss(masked_mse(self._reconstruct(network, batch), *batch), {})

    def score(self, network: nn.Module) -> dict[str, float]:
        """Errors on held-out curves."""
        errors = self.check(partial(self.predict, network))
        return {"score": -next(iter(errors.values())), **errors}

    def predict(self, network: nn.Module, curve_NLK: NDArray[np.float64], visible_NL: Mask) -> NDArray[np.float64]:
        """Values [N, L, K] of all points; only those of hidden points mean anything."""
        device = next(network.parameters()).device
        batch = NoisyCurves(torch.from_numpy(curve_NLK).float(), torch.from_numpy(~visible_NL))
        predictions = []
        for start in range(0, len(curve_NLK), AT_ONCE):
            part = NoisyCurves(*(tensor[start : start + AT_ONCE].to(device) for tensor in batch))
            predictions.append(self._reconstruct(network, part))
        return torch.cat(predictions).double().cpu().numpy()

    def _reconstruct(self, network: nn.Module, batch: NoisyCurves) -> Tensor:
        position_BLA = self.position_LA.to(batch.values_BLK.device).expand(len(batch.values_BLK), -1, -1)
        prediction_BLK: Tensor = network(
            batch.values_BLK, position_BLA, torch.ones_like(batch.hidden_BL), batch.hidden_BL
        )
        return prediction_BLK


def interpolation_plan(options: interpolation.Interpolation) -> ExperimentPlan:
    """Network, task and measure of synthetic interpolation."""
    torch.manual_seed(options.seed)
    grid = interpolation.GRIDS[options.grid]
    cases = interpolation.held_out_cases(grid)

    def draw_shown(n: int, rng: np.random.Generator) -> Mask:
        count_N = rng.integers(interpolation.FEWEST, options.most_observed + 1, n)
        return interpolation.draw_observed(count_N, len(grid.time_L), rng)

    task = CurveReconstruction(
        interpolation.train_curves(grid)[..., None],
        grid.time_L * options.position_scale,
        draw_shown,
        lambda predict: interpolation.over_bayes(predict, grid, cases[-1:]),
        batch_size=options.batch_size,
        seed=options.seed,
    )
    return ExperimentPlan(
        variant=options.variant(),
        network=MaskedAutoencoder(1, 1, TINY, DECODERS[options.decoder]),
        task=task,
        fit=fit_config(options, steps=interpolation.STEPS, warmup=interpolation.WARMUP, lr=options.lr, clip_norm=1.0),
        published_steps=interpolation.STEPS,
        measure=lambda network: interpolation.over_bayes(partial(task.predict, network), grid, cases),
        paper={f"MSE, {cases[-1].name}": interpolation.PAPER},
        floor=interpolation.floors(grid, cases) | {f"MSE / Bayes, {case.name}": 1.0 for case in cases},
    )


def spirals_plan(options: spirals.SpiralsExperiment) -> ExperimentPlan:
    """Network, task and measure of the spirals."""
    torch.manual_seed(options.seed)
    train, test = spirals.draw_spirals(options.protocol)
    visible_NL = spirals.draw_shown(spirals.N_TEST, options.protocol, np.random.default_rng((0, 1)))

    def check(predict: interpolation.Predict) -> dict[str, float]:
        return spirals.errors(predict(test.noisy_NL2, visible_NL), test, visible_NL, options.protocol)

    task = CurveReconstruction(
        train.noisy_NL2,
        spirals.THETA_L[: visible_NL.shape[1]],
        lambda n, rng: spirals.draw_shown(n, options.protocol, rng),
        check,
        batch_size=options.batch_size,
        seed=options.seed,
    )
    steps = spirals.EPOCHS * -(-spirals.N_TRAIN // options.batch_size)
    return ExperimentPlan(
        variant=f"{options.protocol}-{options.decoder}",
        network=MaskedAutoencoder(2, 1, TINY, DECODERS[options.decoder]),
        task=task,
        fit=fit_config(options, steps=steps, warmup=spirals.WARMUP, lr=options.lr, clip_norm=1.0),
        published_steps=steps,
        measure=lambda network: check(partial(task.predict, network)),
        paper=spirals.PAPER[options.protocol],
        floor=spirals.FLOOR[options.protocol],
    )
