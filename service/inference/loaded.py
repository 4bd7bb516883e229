"""A bundle that is ready to serve: hashes verified, golden outputs reproduced, session open, costs measured."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, thread_time

from models.bundle import Bundle, BundleError, load_bundle, read_golden, verify_golden
from models.runtime import Provider, open_session, run
from service.inference.batching import RunGraph
from service.inference.costs import warm_up
from service.inference.scheduling import CostModel


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A verified, warm model.

    Attributes
    ----------
    run : graph inputs to graph outputs, by name; may be called from several threads at once.
    cost : predicted seconds of one run on this machine.
    golden_error : largest absolute difference from the bundle's golden outputs.
    load_seconds : time all of this took.
    """

    bundle: Bundle
    provider: Provider
    run: RunGraph
    cost: CostModel
    golden_error: float
    load_seconds: float


def load_model(path: Path, provider: Provider = "cpu", threads: int = 1) -> LoadedModel:
    """Load, verify and warm up; seconds of work, so not for the event loop.

    Raises
    ------
    BundleError
        When the bundle is missing, altered, or gives other numbers on this provider.
    ProviderError
        When the provider is not available.
    """
    started = monotonic()
    bundle = load_bundle(path)
    session = open_session(bundle.model, provider, threads)
    golden_error = verify_golden(bundle, session)
    _check_widths(bundle)
    run_graph: RunGraph = partial(run, session)
    cost = warm_up(run_graph, bundle.manifest, clock=thread_time if provider == "cpu" and threads == 1 else monotonic)
    return LoadedModel(bundle, provider, run_graph, cost, golden_error, monotonic() - started)


def _check_widths(bundle: Bundle) -> None:
    """What the graph answers must be what the manifest says, or every reply would be wrong or fail."""
    _, outputs = read_golden(bundle.path)
    promised = {"probabilities": len(bundle.manifest.taxonomy.names), "embedding": bundle.manifest.embedding_dim}
    for name, width in promised.items():
        if name not in outputs or outputs[name].shape[1:] != (width,):
            raise BundleError(f"{bundle.path}: the graph does not answer {name} of width {width}")
