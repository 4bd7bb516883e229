"""The native kernels alone in a graph of one operator, and valid and invalid light curves to run them on.

Run on a library built with sanitizers, which end the process at the first error::

    LD_PRELOAD="libasan.so libubsan.so" PYTHONPATH=tests:. python -m support.native LIBRARY
"""

import sys
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from nightjar_alerts.models.native import DOMAIN
from nightjar_alerts.models.networks.statistics.curve_statistics import lag_statistics, statistics
from nightjar_alerts.models.networks.statistics.fold_statistics import fold_statistics
from nightjar_alerts.models.networks.statistics.period_statistics import period_statistics
from nightjar_alerts.models.networks.statistics.points import Statistics, points
from nightjar_alerts.models.networks.statistics.shape_statistics import shape_statistics
from nightjar_alerts.models.runtime import session_options
from nightjar_alerts.training.export.functions import STATISTICS, VERSION

BANDS: Final = 6
INPUTS: Final = ("flux", "flux_err", "time", "band", "mask", "redshift")
ATTRIBUTES: Final = {"bands": BANDS, "lags": 1, "periods": 2, "shapes": 2}
_KINDS: Final = {"band": TensorProto.INT64, "mask": TensorProto.BOOL}

Curves = dict[str, NDArray[Any]]


def graph(**attributes: int) -> bytes:
    """Return a graph of the operator alone, which only runs where there is a kernel for it."""
    call = helper.make_node(STATISTICS, INPUTS, ["value", "known"], domain=DOMAIN)
    merged = ATTRIBUTES | attributes
    call.attribute.extend(helper.make_attribute(name, value) for name, value in merged.items())
    given = [helper.make_tensor_value_info(name, _KINDS.get(name, TensorProto.FLOAT), None) for name in INPUTS]
    outputs = [
        helper.make_tensor_value_info("value", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("known", TensorProto.BOOL, None),
    ]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, VERSION)]
    model = helper.make_model(helper.make_graph([call], "alone", given, outputs), opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def alone(library: Path, **attributes: int) -> ort.InferenceSession:
    """Open a session of the operator alone."""
    return ort.InferenceSession(graph(**attributes), session_options(library), providers=["CPUExecutionProvider"])


def written_out(curves: Curves, dtype: torch.dtype, periods: int = 2) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Values and which are known, as the network works them out in a precision."""
    tensors = {name: torch.from_numpy(value) for name, value in curves.items()}
    single = {name: value.to(dtype) if value.is_floating_point() else value for name, value in tensors.items()}
    flux, flux_err, time, band, mask = (single[name] for name in INPUTS[:5])
    seen = points(flux, flux_err, time, band, mask, BANDS)
    groups: list[Statistics] = [statistics(seen, single["redshift"]), lag_statistics(seen)]
    if periods:
        groups.append(period_statistics(seen, "fitted" if periods == 2 else "summed"))
    groups += [shape_statistics(seen, single["redshift"]), fold_statistics(seen)]
    value_BK, mask_BK = (torch.cat(parts, dim=1).numpy() for parts in zip(*groups, strict=True))
    return value_BK, mask_BK


def drawn(seed: int) -> Curves:
    """Draw light curves such as a service may be sent, from one point in one band to hundreds in any order."""
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 5)), int(rng.choice([1, 2, 3, 5, 9, 17, 33, 64, 130]))
    time = rng.uniform(0, 10 ** rng.uniform(-1, 3.6), shape)
    if rng.random() < 0.7:
        time.sort(axis=1)
    if rng.random() < 0.3:
        time = np.round(time)  # many at once
    if rng.random() < 0.1:
        time[:] = time[:, :1]
    level, wide = 10 ** rng.uniform(-1, 5), rng.uniform(0.1, 3)  # narrower, and rounding would be part of the scatter
    flux = level * rng.normal(1, wide, shape)
    if rng.random() < 0.3:
        flux += level * np.sin(time * rng.uniform(0.1, 30))
    flux_err = level * 10 ** rng.uniform(-2, 1, shape)
    band = rng.integers(0, BANDS, shape) if rng.random() < 0.8 else np.full(shape, int(rng.integers(0, BANDS)))
    mask = rng.random(shape) < rng.choice([0.2, 0.5, 0.9, 1.0, 1.0])
    redshift = rng.choice([np.nan, -1.0, 0.0, 1e-5, 0.5, 3.0], shape[0])
    return curves_of(flux, flux_err, time, band, mask, redshift)


def unsound(seed: int) -> Curves:
    """Draw what nobody should send: values of any size and none, bands that there are not, rows of padding."""
    rng, curves = np.random.default_rng(seed), drawn(seed)
    shape = curves["flux"].shape
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-38, 1e30, -3e38])
    for name in ("flux", "flux_err", "time"):
        curves[name] = np.where(rng.random(shape) < 0.3, rng.choice(odd, shape), curves[name]).astype(np.float32)
    curves["band"] = np.where(rng.random(shape) < 0.3, rng.integers(-(2**62), 2**62, shape), curves["band"])
    curves["mask"] &= np.asarray(rng.random((shape[0], 1)) < 0.8)
    curves["redshift"] = rng.choice(odd, shape[0]).astype(np.float32)
    return curves


def curves_of(flux: Any, flux_err: Any, time: Any, band: Any, mask: Any, redshift: Any) -> Curves:
    """Put light curves together, padding holding nonsense, in the types that a graph takes."""
    given = {"flux": flux, "flux_err": flux_err, "time": time}
    curves = {name: np.where(mask, value, np.nan).astype(np.float32) for name, value in given.items()}
    rest = {"band": np.where(mask, band, -7), "mask": mask, "redshift": np.asarray(redshift, dtype=np.float32)}
    return {name: np.ascontiguousarray(value) for name, value in (curves | rest).items()}


def try_all(library: Path, rounds: int) -> None:
    """Run every form of the operator on light curves of every kind."""
    for periods, lags, shapes in product((0, 1, 2), (0, 1), (0, 1, 2)):
        session = alone(library, periods=periods, lags=lags, shapes=shapes)
        for seed in range(rounds):
            for draw in (drawn, unsound):
                session.run(None, draw(seed))


if __name__ == "__main__":
    try_all(Path(sys.argv[1]), rounds=60)
