"""A real bundle whose graph gets into real trouble over some light curves: see the fluxes below.

Each kind is a few nodes around a number that is 0 for every ordinary light curve. Run as a program, this serves a
network that does the worst to the process, which no graph can: ``python -m support.trouble thread|hang|lost``.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from nightjar_alerts.core.adapter import Arrays
from nightjar_alerts.models.bundle import Bundle
from nightjar_alerts.service.http import server
from nightjar_alerts.service.http.lifecycle import Service
from nightjar_alerts.service.settings import Settings
from support.edge import Network, loader
from support.graph_bundles import Nodes, classifier_bundle, sign_bundle

ENDLESS, GREEDY, STUCK = {"flux": -3e6}, {"flux": 3e6}, {"flux_err": 3e6}
"""Light curves that make the graph loop for ever; that make it ask for 4 PiB; that keep it for minutes in a single
kernel, where nothing can interrupt it. Each column has the same value throughout."""

FAILING = {"flux": -3e6}
"""A light curve that the graph of :func:`faulty_bundle` fails on."""

_BEYOND = 1e6

FATAL = 13.0
"""The flux that does the worst."""

_BOXES = 400_000


def trouble_bundle(folder: Path) -> Bundle:
    """A classifier that answers ordinary light curves as :mod:`support.graph_bundles` says."""
    nodes = [
        *_scalar("endless", "flux", "Min", -_BEYOND, 2**60),
        *_scalar("greedy", "flux", "Max", _BEYOND, 2**50),
        *_scalar("stuck", "flux_err", "Max", _BEYOND, _BOXES),
        *_loop(),
        *_allocation(),
        *_kernel(),
        helper.make_node("Sum", ["looped", "allocated", "selected"], ["trouble"]),
    ]
    return classifier_bundle(folder, trouble=nodes)


def faulty_bundle(folder: Path) -> Bundle:
    """A sign_bundle that fails on FAILING light curves and has no memory for GREEDY ones."""
    nodes = [
        *_scalar("failing", "flux", "Min", -_BEYOND, 2),
        *_scalar("greedy", "flux", "Max", _BEYOND, 2**50),
        *_number("nothing", 0.0, TensorProto.FLOAT),
        *_allocation(),
        _integers("one", [1]),
        helper.make_node("Add", ["one", "failing"], ["size"]),
        helper.make_node("Reshape", ["nothing", "size"], ["reshaped"]),  # one value does not fill a shape of three
        helper.make_node("Sum", ["allocated", "reshaped"], ["trouble"]),
    ]
    return sign_bundle(folder, nodes)


def _number(name: str, value: float, kind: int) -> Nodes:
    return [helper.make_node("Constant", [], [name], value=helper.make_tensor(name, kind, [], [value]))]


def _scalar(name: str, column: str, extreme: str, threshold: float, size: int) -> Nodes:
    """``name``: int64 [], ``size`` when the extreme of a column is beyond the threshold, else 0."""
    compare = "Less" if extreme == "Min" else "Greater"
    return [
        *_number(f"{name}_threshold", threshold, TensorProto.FLOAT),
        *_number(f"{name}_size", size, TensorProto.INT64),
        helper.make_node(f"Reduce{extreme}", [column], [f"{name}_peak"], keepdims=0),
        helper.make_node(compare, [f"{name}_peak", f"{name}_threshold"], [f"{name}_is"]),
        helper.make_node("Cast", [f"{name}_is"], [f"{name}_one"], to=TensorProto.INT64),
        helper.make_node("Mul", [f"{name}_one", f"{name}_size"], [name]),
    ]


def _loop() -> Nodes:
    """``looped``: 0, after as many turns as ``endless`` says."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go_on"], ["goes_on"]), helper.make_node("Mul", ["held", "held"], ["kept"])],
        "turn",
        [info("turn", TensorProto.INT64, []), info("go_on", TensorProto.BOOL, []), info("held", TensorProto.FLOAT, [])],
        [info("goes_on", TensorProto.BOOL, []), info("kept", TensorProto.FLOAT, [])],
    )
    return [
        *_number("nothing", 0.0, TensorProto.FLOAT),
        *_number("always", True, TensorProto.BOOL),
        helper.make_node("Loop", ["endless", "always", "nothing"], ["looped"], body=body),
    ]


def _allocation() -> Nodes:
    """``allocated``: 0, the sum of as many zeros as ``greedy`` says."""
    return [
        _integers("first", [0]),
        helper.make_node("Unsqueeze", ["greedy", "first"], ["greedy_shape"]),
        helper.make_node("ConstantOfShape", ["greedy_shape"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["allocated"], keepdims=0),
    ]


def _kernel() -> Nodes:
    """``selected``: 0; ``stuck`` boxes in a row, none of which meets another, are each compared with all before it."""
    sides = ("bottom", "left", "top", "right")
    return [
        _integers("corner_axes", [0, 2]),
        _integers("row", [1, 1, -1]),
        *_number("half", 0.5, TensorProto.FLOAT),
        *_number("no_box", 0, TensorProto.INT64),
        *_number("one_box", 1, TensorProto.INT64),
        helper.make_node("Add", ["stuck", "one_box"], ["count"]),
        helper.make_node("Range", ["no_box", "count", "one_box"], ["place"]),
        helper.make_node("Cast", ["place"], ["left"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["left", "half"], ["right"]),
        helper.make_node("Mul", ["left", "nothing"], ["bottom"]),
        helper.make_node("Add", ["bottom", "half"], ["top"]),
        *(helper.make_node("Unsqueeze", [side, "corner_axes"], [f"{side}_column"]) for side in sides),
        helper.make_node("Concat", [f"{side}_column" for side in sides], ["boxes"], axis=2),
        helper.make_node("Reshape", ["left", "row"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "count"], ["indices"]),
        helper.make_node("Cast", ["indices"], ["indices_float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["indices_float"], ["selection"], keepdims=0),
        helper.make_node("Mul", ["selection", "nothing"], ["selected"]),
    ]


def _integers(name: str, values: list[int]) -> onnx.NodeProto:
    return helper.make_node(
        "Constant", [], [name], value=helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
    )


class Lost(Network):
    """A network that fails every run after a fatal one, as a device that has gone."""

    gone = False

    def __call__(self, inputs: Arrays) -> Arrays:
        self.gone = self.gone or FATAL in inputs["flux"]
        return super().__call__(inputs if not self.gone else {})


WORST: dict[str, Callable[[], object]] = {"thread": sys.exit, "hang": lambda: time.sleep(3600), "lost": lambda: None}


def main(kind: str) -> None:
    """Serve, as the command does, a network that meets its worst when it sees a fatal flux."""
    network = Lost() if kind == "lost" else Network()
    network.on_marker[FATAL] = WORST[kind]
    vars(server)["Service"] = partial(Service, load=loader(network))
    sys.exit(server.serve(Settings(bundle=Path("echo"))))


if __name__ == "__main__":
    main(sys.argv[1])
