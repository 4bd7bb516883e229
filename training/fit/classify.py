"""Classification: cross-entropies of every head and the load-balance loss of the mixtures, scored by macro-F1.

Notable: the loss is ATAT's, the unweighted sum over heads (Astro-MoE has three, of which the mixed one predicts), plus
the weighted balance loss (Astro-MoE eq. 5). A mixture that stops using one of its experts keeps training and its loss
looks ordinary, so the log watches the experts.
"""

from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from models.lightcurve import Int64
from models.networks import ranks
from models.networks.network import Output
from training.data.batches import Batch, Example, collate, draw_examples, draw_weighted, stream
from training.data.dataset import Dataset
from training.fit.loop import Step, Task, to_device
from training.fit.optimise import StarvationWatch, expert_loads, expert_shares, load_range
from training.recipes.schema import Recipe
from training.score.metrics import confusion, log_loss, macro_f1

VALIDATION_DRAW = 2**32  # a pool number that no training step reaches


class Classification(Task):
    """Train a classifier on the random views of a recipe."""

    def __init__(self, recipe: Recipe, dataset: Dataset, split: dict[str, Int64]) -> None:
        self.recipe, self.dataset, self.split = recipe, dataset, split
        self.validation = draw_validation(dataset, split["validation"], recipe)
        self.watch = StarvationWatch(recipe.schedule.warmup_steps)

    def batches(self, step: int) -> Generator[Batch, None, None]:
        """Class-balanced batches of similar length."""
        return stream(self.dataset, self.split["train"], self.recipe, step)

    def loss(self, network: nn.Module, batch: Batch) -> Step:
        """Sum over heads and mixtures; logs what the line reports."""
        output: Output = network(*batch.inputs_of(network))
        loss = loss_of(output, batch.label_B, self.recipe.aux_weight)
        predicted_B = output.logits_BC.detach().argmax(1)
        log = {
            "confusion": confusion_matrix(batch.label_B, predicted_B, output.logits_BC.shape[1]),
            "curves": torch.tensor(len(batch.label_B)),
            "padding": 1 - batch.mask_BL.float().mean(),
            **expert_loads(output),
        }
        return Step(loss, log if output.aux_loss is None else log | {"aux_loss": output.aux_loss})

    def score(self, network: nn.Module) -> dict[str, float]:
        """Macro-F1 and log loss on the validation draw."""
        logits_BC = predict(network, self.validation, self.recipe.batch.size)
        probabilities_BC = torch.from_numpy(logits_BC).double().softmax(1).numpy()
        label_B = np.array([example.label for example in self.validation], dtype=np.int64)
        score = macro_f1(confusion(label_B, probabilities_BC.argmax(1), probabilities_BC.shape[1]))
        return {"score": score, "macro_f1": score, "log_loss": log_loss(probabilities_BC, label_B)}

    def line(self, step: int, means: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
        """Macro-F1 of the interval, pace, share of padding, the range of expert loads, and the experts that starve."""
        line: dict[str, Any] = {"macro_f1": macro_f1(means["confusion"]), "padding": float(means["padding"])}
        line["curves_per_second"] = float(means["curves"] / means["seconds_per_step"])
        if "aux_loss" in means:
            line["aux_loss"] = float(means["aux_loss"])
        shares = expert_shares(means)
        learning = self.recipe.optimiser.body_lr > 0  # experts that do not learn cannot be brought back
        starved = self.watch.update(step, shares) if learning else {}
        return line | {"expert_load": load_range(shares), "starved_experts": starved}


def loss_of(output: Output, label_B: Tensor, aux_weight: float) -> Tensor:
    """Sum of the heads' cross-entropies and the weighted load-balance loss; a scalar in float32."""
    heads = (*output.other_logits, output.logits_BC)
    summed = torch.stack([cross_entropy(logits_BC.float(), label_B, reduction="sum") for logits_BC in heads]).sum()
    total = ranks.mean(summed, len(label_B))
    return total if output.aux_loss is None else total + aux_weight * output.aux_loss.float()


def confusion_matrix(label_B: Tensor, predicted_B: Tensor, n_classes: int) -> Tensor:
    """Return counts [C, C] of (true, predicted), on the device of the labels."""
    counts = torch.bincount(label_B * n_classes + predicted_B, minlength=n_classes * n_classes)
    return counts.view(n_classes, n_classes)


def draw_validation(dataset: Dataset, indices: Int64, recipe: Recipe) -> list[Example]:
    """Random views of a fixed sample of validation objects, in order of length; the same ones for every call."""
    rng = np.random.default_rng((recipe.seed, VALIDATION_DRAW))
    if dataset.weight is None:
        sample = rng.permutation(indices)[: recipe.validation.objects]
    else:
        sample = draw_weighted(dataset, indices, recipe.validation.objects, recipe, rng)
    examples = draw_examples(dataset, sample, recipe.data, recipe.augmentation, rng)
    return sorted(examples, key=lambda example: len(example.tokens))


@torch.inference_mode()
def predict(network: nn.Module, examples: list[Example], batch_size: int = 64) -> NDArray[np.float32]:
    """Logits, shape (len(examples), C), in order; fastest when examples are ordered by length."""
    network.eval()
    device = next(network.parameters()).device
    parts = [examples[start : start + batch_size] for start in range(0, len(examples), batch_size)]
    batches = (to_device(collate(part), device) for part in parts)
    return np.concatenate([network(*batch.inputs_of(network)).logits_BC.float().cpu().numpy() for batch in batches])
