"""The sparse mixture against its dense twin: the same network with one feed-forward block in place of the experts.

Both graphs run bare, one thread, turn and turn about, on batches of equal length; the ratio is taken within a round.

What a graph costs beside the one it replaces: the weights of one bundle, as it holds them and exported anew.

The bundle's weights are read back from its graph (``training.export.weights``) and traced again by the exporter of
today; both graphs answer the same light curves, one thread, turn and turn about, and every ratio is taken within a
round, of processor time. Before that their probabilities are compared on thousands of ragged light curves: a cheaper
graph with other answers would say nothing. A bundle of today may stand beside, as it is. Where there is a C++ compiler,
both run once more with native kernels (``models.native``).

Light curves a second on one core, of as many points as alerts have: a bundle beside other ways to the same answer.

All of them get the same light curves ready for the network, sorted by length and cut into batches of at most
:data:`BUDGET` padded observations, and one thread; rounds are interleaved, and time is processor time.

- ``onnxruntime``: the bundle's graph, trees included where it has some; ``one_by_one``: the same, every curve alone;
- ``int8``: the same with weights of 8-bit integers (``training.export.quantize``);
- ``torch``, ``torch_compiled``: the bundle's network, its weights read back from the graph, without trees;
- ``trees``: boosted trees on the features of ``training.score.baseline``, those of the light-curve package among them,
  worked out anew for every curve. They are fitted to noise: what an answer costs is asked, not what it is worth.

Beside them, what the trees within the bundle's graph take of a run of one light curve, by onnxruntime's own timings.

ATCAT and ATAT are published as ONNX (huggingface.co/light-curve/atcat, huggingface.co/light-curve/atat). Nothing of
that host can be fetched where this is developed, so none stands beside.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from deploy.bench.http_load import run_in_process, write_plan
from deploy.bench.report import Numbers, spread
from deploy.bench.service_process import running
from deploy.bench.wire import BATCH, packed_request
from deploy.bench.workload import columns
from nightjar_alerts.models.bundle import Manifest, load_bundle
from nightjar_alerts.models.lightcurve import LightCurve, RaggedBatch, Tokens, featurise
from nightjar_alerts.models.native import NativeError, build, find
from nightjar_alerts.models.networks.astro_moe import AstroMoE, AstroMoEConfig
from nightjar_alerts.models.networks.parts.transformer import Block, FeedForwardExperts, Routing
from nightjar_alerts.models.runtime import Provider, Run, SessionRun, open_session, run
from nightjar_alerts.training.export.cuda import add_cuda, cuda_graph
from nightjar_alerts.training.export.profile import profile_graph, random_inputs
from nightjar_alerts.training.export.quantize import as_int8, cut_by_length
from nightjar_alerts.training.export.served import ServedNetwork
from nightjar_alerts.training.export.weights import read_network, read_served, trace
from nightjar_alerts.training.score.baseline import features, package_features

Arrays = dict[str, NDArray[Any]]
REFERENCE: Final = Path("tests/assets/astro-moe-elasticc-1.2.0")  # what every later graph is measured against
TWIN_SHAPES = ((1, 50), (16, 128), (64, 32))  # curves, points
TWIN_ROUNDS = 7
SECONDS_PER_ARM = 0.5


def measure_twin(bundle: Path, twin: Path, say: Callable[[str], None]) -> Numbers:
    """Keys ``twin.ratio.bB_lL``: time of the mixture over time of the dense twin."""
    mixture, dense = load_bundle(bundle), load_bundle(twin)
    sessions = open_session(mixture.model), open_session(dense.model)
    numbers: Numbers = {}
    for size, length in TWIN_SHAPES:
        feeds = [_twin_batch(size, length, one.manifest) for one in (mixture, dense)]
        times = [[_twin_seconds(*arm) for arm in zip(sessions, feeds, strict=True)] for _ in range(TWIN_ROUNDS)]
        numbers[f"twin.ratio.b{size}_l{length}"] = spread([moe / flat for moe, flat in times])
        say(f"{size} curves of {length} points: {1e3 * times[-1][0]:.2f} ms, dense twin {1e3 * times[-1][1]:.2f} ms")
    return numbers


def _twin_batch(size: int, length: int, manifest: Manifest) -> Run:
    rng = np.random.default_rng(size * length)
    curves = [
        LightCurve.from_columns(
            60_000.0 + np.arange(length), rng.normal(0, 5_000, length), np.full(length, 300.0),
            np.arange(length) % 6, np.ones(length, dtype=bool),
        )
        for _ in range(size)
    ]  # fmt: skip
    tokens = [
        featurise(c, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.band_map) for c in curves
    ]
    return RaggedBatch.collate(tokens).padded()


def _twin_seconds(session: ort.InferenceSession, feed: Run) -> float:
    """Mean seconds of a run."""
    run(session, feed)
    runs, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS_PER_ARM:
        run(session, feed)
        runs += 1
    return elapsed / max(runs, 1)


KERNEL_SHAPES: Final = {"b16_l128_t1": (16, 128), "b16_l390_t1": (16, 390), "b1_l128_t1": (1, 128)}


def measure_kernels(config: AstroMoEConfig, say: Callable[[str], None]) -> Numbers:
    """Keys ``kernels.moe_over_dense.*`` and ``kernels.moe_over_all_experts.*``: what sparse experts cost.

    The network, its twin with one dense layer as wide as an expert, and the network with every expert computed for
    every token; untrained, on one thread, without metadata, turn and turn about.
    """
    torch.manual_seed(0)
    networks = {
        "sparse": AstroMoE(config),
        "dense": AstroMoE(config.model_copy(update={"n_experts": 0, "n_input_experts": 0})),
        "all": AstroMoE(config),
    }
    for block in networks["all"].light_curve.blocks:
        assert isinstance(block, Block)
        block.feed_forward = EveryExpert(block.feed_forward)
    with tempfile.TemporaryDirectory() as folder:
        sessions = {name: _exported(network, Path(folder) / f"{name}.onnx") for name, network in networks.items()}
    numbers: Numbers = {}
    for shape, (size, length) in KERNEL_SHAPES.items():
        inputs = random_inputs(size, length)
        times = [{name: _seconds(session, inputs) for name, session in sessions.items()} for _ in range(ROUNDS)]
        for key, other in (("dense", "dense"), ("all_experts", "all")):
            numbers[f"kernels.moe_over_{key}.{shape}"] = spread([each["sparse"] / each[other] for each in times])
        say(f"{shape}: " + ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in times[-1].items()))
    return numbers


def _exported(network: torch.nn.Module, path: Path) -> ort.InferenceSession:
    """Open the graph that a bundle would have."""
    served = ServedNetwork(network.eval())
    trace(served.eval(), path)
    return open_session(path)


class EveryExpert(torch.nn.Module):
    """A mixture that computes all of its experts for every token, as two wide products, and weighs them."""

    def __init__(self, experts: torch.nn.Module) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Routing]:
        """Weighted sum of the chosen experts, [N, D], and the routing."""
        experts = self.experts
        assert isinstance(experts, FeedForwardExperts)
        routing: Routing = experts.router(x_ND)
        gate_NE = torch.zeros_like(routing.logits_NE).scatter(1, routing.expert_NK, routing.weight_NK)
        wide_NX = x_ND @ experts.w1_EDF.transpose(0, 1).flatten(1) + experts.b1_EF.flatten()
        hidden_NEF = experts.activation(wide_NX).view(-1, *experts.b1_EF.shape) * gate_NE[..., None]
        return hidden_NEF.flatten(1) @ experts.w2_EFD.flatten(0, 1) + gate_NE @ experts.b2_ED, routing


GPU_SHAPES: Final = {"b256_l390": (256, 390), "b256_l60": (256, 60)}
GPU_CURVES: Final = 8192
GPU_BUDGET: Final = 65_536  # padded observations of a batch of the real mix
GPU_THREADS: Final = 2  # one copies while the other's run computes


def measure_gpu(bundle: Path, say: Callable[[str], None]) -> Numbers:
    """Keys ``gpu.*``: a bundle's graph for CUDA, bare and behind the service, and sparse experts over dense.

    - ``gpu.ms.*``, ``gpu.curves_per_s.*``: batches of one shape, the axes fixed when the session is opened, so that
      arithmetic on them folds away and onnxruntime refuses the session if a node would be left to the CPU;
    - ``gpu.mix_per_s``: lengths as alerts have them, in the service's own way: axes free, buffers page-locked and used
      again, the inputs of one batch copied while another runs;
    - ``gpu.moe_over_dense.*``: the network of the paper's size over its dense twin;
    - ``gpu.service_per_s``, ``gpu.service_share``: light curves a second through HTTP, and over ``gpu.mix_per_s``.

    Nothing is measured without a GPU, and nothing is made up.
    """
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        say(f"no GPU: onnxruntime has {', '.join(ort.get_available_providers())}; nothing was measured")
        return {}
    numbers: Numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "bundle"
        add_cuda(bundle, copy)
        graph = load_bundle(copy).graph("cuda")
        for shape, (size, length) in GPU_SHAPES.items():
            bound = _without_cpu(graph, {"batch": size, "length": length}, numbers, say)
            seconds = timed_runs(bound, random_inputs(size, length))
            numbers[f"gpu.ms.{shape}"] = spread([1e3 * each for each in seconds])
            numbers[f"gpu.curves_per_s.{shape}"] = spread([size / each for each in seconds])
            say(f"{shape}: {1e3 * min(seconds):.2f} ms")
        _gpu_experts(Path(folder), numbers, say)
        drawn = columns(GPU_CURVES, seed=5)
        paces = real_mix(graph, "cuda", drawn, load_bundle(bundle).manifest)
        numbers["gpu.mix_per_s"] = spread(paces)
        served = _served_per_second(copy, drawn)
        numbers["gpu.service_per_s"] = served
        numbers["gpu.service_share"] = served / float(np.median(paces))
        say(f"real mix {np.median(paces):.0f}/s, through the service {served:.0f}/s")
    return numbers


def _without_cpu(graph: Path, axes: Mapping[str, int], numbers: Numbers, say: Callable[[str], None]) -> SessionRun:
    """Open a graph with nothing left to the CPU; where onnxruntime refuses that, say why, and let it leave some.

    ``gpu.nothing_left_to_the_cpu`` is 0 if it was refused once.
    """
    key = "gpu.nothing_left_to_the_cpu"
    try:
        opened = device_run(graph, "cuda", axes)
    except Exception as error:  # onnxruntime raises a family of its own that share no base class
        say(f"something is left to the CPU: {error}")
        numbers[key] = 0
        return device_run(graph, "cuda")
    numbers.setdefault(key, 1)
    return opened


def timed_runs(bound: SessionRun, inputs: Arrays) -> list[float]:
    """Seconds of equal runs, the copies of inputs and outputs among them."""
    bound(inputs)
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        bound(inputs)
        seconds.append(time.perf_counter() - started)
    return seconds


def device_run(graph: Path, provider: Provider, axes: Mapping[str, int] | None = None) -> SessionRun:
    """Open a graph as the service does on a device, perhaps with lengths of axes that all runs have."""
    return SessionRun(open_session(graph, provider, axes=axes))


def real_mix(graph: Path, provider: Provider, drawn: Sequence[dict[str, Any]], manifest: Manifest) -> list[float]:
    """Light curves a second of several rounds, by several threads."""
    tokens = [_tokens(one, manifest) for one in drawn]
    batches = [RaggedBatch.collate(some).padded() for some in cut_by_length(tokens, GPU_BUDGET)]
    bound = device_run(graph, provider)

    paces = []
    with ThreadPoolExecutor(GPU_THREADS) as threads:
        for number in range(ROUNDS + 1):
            started = time.perf_counter()
            list(threads.map(bound, batches))
            if number:  # the first warms up
                paces.append(len(drawn) / (time.perf_counter() - started))
    return paces


def _gpu_experts(folder: Path, numbers: Numbers, say: Callable[[str], None]) -> None:
    """Key ``gpu.moe_over_dense.b256_l390``, turn and turn about."""
    torch.manual_seed(0)
    config, size, length = AstroMoEConfig(), *GPU_SHAPES["b256_l390"]
    dense = config.model_copy(update={"n_experts": 0, "n_input_experts": 0})
    runs = []
    for name, one in (("sparse", config), ("dense", dense)):
        path = folder / f"{name}.onnx"
        trace(ServedNetwork(AstroMoE(one).eval()).eval(), path)
        onnx.save(cuda_graph(onnx.load(path)), path)
        runs.append(_without_cpu(path, {"batch": size, "length": length}, numbers, say))
    inputs, ratios = random_inputs(size, length), []
    for number in range(ROUNDS + 1):
        spent = []
        for bound in runs:
            started = time.perf_counter()
            bound(inputs)
            spent.append(time.perf_counter() - started)
        if number:
            ratios.append(spent[0] / spent[1])
    say(f"experts over dense: {np.median(ratios):.2f}")
    numbers["gpu.moe_over_dense.b256_l390"] = spread(ratios)


def _served_per_second(bundle: Path, drawn: Sequence[dict[str, Any]]) -> float:
    """Light curves a second that the service answers on the GPU, posted as MessagePack, many at a time."""
    plan_of = [packed_request(drawn[first : first + BATCH]) for first in range(0, len(drawn), BATCH)]
    chosen = {"NIGHTJAR_PROVIDER": "cuda", "NIGHTJAR_CACHE_BYTES": "0"}  # the curves come twice
    with tempfile.TemporaryDirectory() as folder, running(bundle, chosen, seconds=300) as service:
        plan = Path(folder, "plan")
        write_plan(plan, plan_of)
        paces = [run_in_process(service.port, plan, clients=32)["per_second"] for _ in range(3)]
    return BATCH * float(np.median(paces[1:]))


SHAPES: Final = {"lone6": (1, 6), "lone30": (1, 30), "lone100": (1, 100), "b32_l60": (32, 60), "b8_l390": (8, 390)}
ROUNDS: Final = 9
SECONDS: Final = 0.3  # of processor time, of each graph in a round
COMPARED: Final = 10_000
NEAR: Final = 1e-5  # probabilities that count as equal


def measure(bundle: Path, shipped: Path | None, say: Callable[[str], None]) -> Numbers:
    """Keys ``lean.<shape>_vs_<version>``, ``lean.nodes``, ``lean.products_b32_l60`` and how far the answers differ;
    with ``lean.shipped_<shape>`` where another bundle stands beside, and all of it once more as ``lean.native_...``
    where kernels can be built.
    """
    kernels = _kernels(say)
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "lean.onnx"
        trace(read_served(bundle), graph)
        numbers = _beside(bundle, graph, shipped, None, say)
        if kernels is not None:
            with_kernels = _beside(bundle, graph, shipped, kernels, say)
            numbers |= {key.replace("lean.", "lean.native_"): value for key, value in with_kernels.items()}
    return numbers


def _kernels(say: Callable[[str], None]) -> Path | None:
    try:
        build()
        return find()
    except NativeError as error:
        say(f"no native kernels: {error}")
        return None


def _beside(
    bundle: Path, graph: Path, shipped: Path | None, kernels: Path | None, say: Callable[[str], None]
) -> Numbers:
    """Compare a bundle's graph as it was released with the one that is made of it today, and with what is shipped."""
    version = load_bundle(bundle).manifest.version.replace(".", "_")
    old, new = open_session(load_bundle(bundle).model), open_session(graph, kernels=kernels)
    furthest, other = differences(old, new)
    numbers: Numbers = {
        "lean.furthest": furthest,
        "lean.share_of_other_answers": other,
        "lean.nodes": nodes_run(graph, kernels),
    }
    for name, ratio in _ratios(old, new, say).items():
        numbers[f"lean.{name}_vs_{version}"] = spread(ratio)
    profile = profile_graph(graph, 32, 60, rounds=15, kernels=kernels)
    numbers["lean.products_b32_l60"] = profile["share_of_products"]
    if shipped is not None:
        today = open_session(load_bundle(shipped).model, kernels=kernels)
        for name, ratio in _ratios(old, today, say).items():
            numbers[f"lean.shipped_{name}"] = spread(ratio)
    return numbers


def nodes_run(graph: Path, kernels: Path | None = None) -> int:
    """Operations that onnxruntime runs for a light curve of 30 points, with those under conditions that hold."""
    nodes: int = profile_graph(graph, 1, 30, rounds=3, kernels=kernels)["nodes"]
    return nodes


def differences(old: ort.InferenceSession, new: ort.InferenceSession) -> tuple[float, float]:
    """Largest difference of probabilities over ragged light curves, and the share that differs by more than
    :data:`NEAR`: a tie of experts or of periods that rounding decides.
    """
    changes: list[NDArray[np.float64]] = []
    rng = np.random.default_rng(0)
    while sum(len(some) for some in changes) < COMPARED:
        size, length = int(rng.choice([1, 4, 16])), int(rng.choice([3, 12, 40, 120]))
        inputs = ragged(random_inputs(size, length, metadata=bool(rng.integers(2)), seed=len(changes)), rng)
        first, second = (_ask(session, inputs, ["probabilities"])[0] for session in (old, new))
        changes.append(np.abs(first - second).max(1))
    each = np.concatenate(changes)
    return float(each.max()), float(np.mean(each > NEAR))


def ragged(inputs: Arrays, rng: np.random.Generator) -> Arrays:
    """Cut light curves to unequal lengths; the first keeps its own. Every third has no metadata."""
    size, length = inputs["mask"].shape
    lengths = rng.integers(1, length + 1, size)
    lengths[0] = length
    mask = np.arange(length) < lengths[:, None]
    cut = {name: np.where(mask, inputs[name], 0).astype(inputs[name].dtype) for name in ("flux", "time", "band")}
    metadata = inputs["metadata"].copy()
    metadata[::3] = np.nan
    errors = np.where(mask, inputs["flux_err"], 1).astype(np.float32)
    return {**inputs, **cut, "mask": mask, "flux_err": errors, "metadata": metadata}


def _ratios(old: ort.InferenceSession, new: ort.InferenceSession, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Time of the new graph over that of the old, by shape and round; no metadata, as in alerts."""
    ratios: dict[str, list[float]] = {}
    for name, (size, length) in SHAPES.items():
        inputs = random_inputs(size, length)
        times = [[_seconds(session, inputs) for session in (old, new)] for _ in range(ROUNDS)]
        ratios[name] = [after / before for before, after in times]
        say(f"{name}: {1e3 * times[-1][0]:.2f} ms, anew {1e3 * times[-1][1]:.2f} ms")
    return ratios


def _seconds(session: ort.InferenceSession, inputs: Arrays) -> float:
    """Mean processor seconds of a run."""
    _ask(session, inputs)
    runs, started = 0, time.process_time()
    while (spent := time.process_time() - started) < SECONDS:
        _ask(session, inputs)
        runs += 1
    return spent / max(runs, 1)


def _ask(session: ort.InferenceSession, inputs: Arrays, outputs: list[str] | None = None) -> list[NDArray[Any]]:
    values: list[NDArray[Any]] = session.run(outputs, {node.name: inputs[node.name] for node in session.get_inputs()})
    return values


CURVES: Final = 384
CORE_ROUNDS: Final = 5
_OF_TREES: Final = {"us": "microseconds", "share": "share"}
LONE: Final = (1, 50)  # light curves, points
BUDGET: Final = 1024
CLASSES: Final = 20
TREES: Final = 100  # rounds of boosting, a tree for each class

Arm = Callable[[], None]


def measure_core(bundle: Path, compiled: bool, say: Callable[[str], None]) -> Numbers:
    """Keys ``core.<arm>`` in light curves a second, and ``core.int8_moves``, the most that a probability moves."""
    original = load_bundle(bundle)
    tokens = [_tokens(one, original.manifest) for one in columns(CURVES, seed=5)]
    batches = [RaggedBatch.collate(some).padded() for some in cut_by_length(tokens, BUDGET)]
    alone = [RaggedBatch.collate([one]).padded() for one in tokens]
    session = open_session(original.model)
    with tempfile.TemporaryDirectory() as folder:
        small = open_session(as_int8(original.model, Path(folder) / "int8.onnx"))
    arms: dict[str, Arm] = {
        "onnxruntime": _each_batch(session, batches),
        "one_by_one": _each_batch(session, alone),
        "int8": _each_batch(small, batches),
        "trees": _trees(tokens),
    } | _torch(bundle, batches, compiled, say)
    numbers = {f"core.{name}": spread(paces) for name, paces in _paces(arms, say).items()}
    moved = [np.abs(run(session, one)["probabilities"] - run(small, one)["probabilities"]).max() for one in batches]
    return numbers | {"core.int8_moves": float(np.max(moved))} | _trees_within(original.model)


def _trees_within(graph: Path) -> Numbers:
    """Keys ``core.trees_within_us`` and ``core.trees_within_share`` of a run of one light curve; none without trees."""
    trees = profile_graph(graph, *LONE)["operators"].get("TreeEnsemble")
    return (
        {}
        if trees is None
        else {"core.trees_within_us": trees["microseconds"], "core.trees_within_share": trees["share"]}
    )


def _tokens(one: dict[str, Any], manifest: Manifest) -> Tokens:
    curve = LightCurve.from_columns(one["mjd"], one["flux"], one["flux_err"], one["band"], metadata={})
    return featurise(curve, manifest.limits, manifest.flux_unit, manifest.metadata_columns, manifest.bands)


def _each_batch(session: ort.InferenceSession, batches: Sequence[Run]) -> Arm:
    def ask() -> None:
        for batch in batches:
            run(session, batch)

    return ask


def _trees(tokens: Sequence[Tokens]) -> Arm:
    def told() -> NDArray[np.float64]:
        return np.stack([np.concatenate([features(one), package_features(one)]) for one in tokens])

    noise = np.random.default_rng(0).normal(size=(10 * CLASSES, told().shape[1]))
    fitted = HistGradientBoostingClassifier(max_iter=TREES, early_stopping=False)
    fitted.fit(noise, np.arange(len(noise)) % CLASSES)

    def ask() -> None:
        fitted.predict_proba(told())

    return ask


def _torch(bundle: Path, batches: Sequence[Run], compiled: bool, say: Callable[[str], None]) -> dict[str, Arm]:
    """Torch as it is and, if asked for, compiled where it can be."""
    network, _ = read_network(bundle)
    names: tuple[str, ...] = network.input_names  # type: ignore[assignment]  # a module's attributes are untyped
    inputs = [[torch.from_numpy(batch[name]) for name in names] for batch in batches]

    def asked(module: Callable[..., Any]) -> Arm:
        def ask() -> None:
            with torch.inference_mode():
                for one in inputs:
                    module(*one, only_answer=True)

        return ask

    arms = {"torch": asked(network)}
    if not compiled:
        return arms
    faster = asked(torch.compile(network, dynamic=True))
    try:
        faster()
    except Exception as error:  # the compiler raises whatever its parts raise
        say(f"torch does not compile this network: {type(error).__name__}")
        return arms
    return arms | {"torch_compiled": faster}


def _paces(arms: dict[str, Arm], say: Callable[[str], None]) -> dict[str, list[float]]:
    """Light curves a second of processor time, by arm and round."""
    paces: dict[str, list[float]] = {name: [] for name in arms}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for number in range(CORE_ROUNDS + 1):
        for name, arm in arms.items():
            started = time.process_time()
            arm()
            if number:  # the first warms up
                paces[name].append(CURVES / (time.process_time() - started))
    torch.set_num_threads(threads)
    say(", ".join(f"{name} {np.median(rates):.0f}/s" for name, rates in paces.items()))
    return paces
