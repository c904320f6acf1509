"""A stage of convolutions of a long signal is computed in rows of images, the overlapping pieces of the signal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from ortopt.graph.detached import new_nodes
from ortopt.options import Options
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites
from ortopt.transformers.lowering.onnxruntime_cpu._signal_stages import Halo
from ortopt.transformers.lowering.onnxruntime_cpu.signal_rows_conversion import Cuts, computed_cuts, fixed_cuts
from tests.passes.tables import keeps

PASS = "signal_rows_conversion"


def weights(name: str, outputs: int = 32, inputs: int = 32, kernel: int = 15, step: int = 3) -> str:
    numbers = ",".join(str(0.03125 * ((step * place) % 7 - 3)) for place in range(outputs * inputs * kernel))
    return f"float[{outputs},{inputs},{kernel}] {name} = {{{numbers}}}"


def per_channel(name: str, channels: int = 32) -> str:
    return f"float[{channels}] {name} = {{" + ",".join(str(place % 5 - 2) for place in range(channels)) + "}"


CHAIN = """
    c = Conv <pads = [7, 7]> (x, v, b)
    d = LeakyRelu <alpha = 0.1> (c)
    e = Conv <pads = [7, 7]> (d, w)
    f = Conv <pads = [7, 7]> (e, v, b)
    y = Conv <pads = [7, 7]> (f, w, b)
"""
RESIDUALS = """
    c = Conv <pads = [7, 7]> (x, v, b)
    d = Relu (c)
    e = Conv <pads = [7, 7]> (d, w)
    f = Add (e, x)
    g = LeakyRelu (f)
    h = Conv <pads = [14, 14], dilations = [2]> (g, v)
    i = Conv <pads = [7, 7]> (h, w)
    y = Add (i, f)
"""
BRANCHES = """
    r = LeakyRelu (x)
    c = Conv <pads = [7, 7]> (r, v, b)
    d = Conv <pads = [7, 7]> (c, w)
    e = Add (d, x)
    f = Conv <pads = [14, 14], dilations = [2]> (r, v, b)
    g = Conv <pads = [7, 7]> (f, v)
    h = Sum (e, g, x)
    y = Div (h, three)
"""


def model(
    nodes: str = CHAIN,
    *more: str,
    length: str = "6001",
    batch: str = "1",
    results: str = "y",
    kernel: int = 15,
    channels: int = 32,
) -> str:
    """Convolutions; their weights are computed, so that they are short to write."""
    outputs = ", ".join(f"float[{batch},D,M] {result}" for result in results.split())
    sizes = channels, channels, kernel
    declared = ", ".join([weights("v", *sizes), weights("w", *sizes, step=5), per_channel("b", channels), *more])
    return f"main (float[{batch},{channels},{length}] x) => ({outputs}) <{declared}> {{ {nodes} }}"


def of(result: ir.Model, *ops: str) -> list[int]:
    """The ranks of what some ops read."""
    return [len(node.inputs[0].shape or ()) for node in result.graph if node.inputs[0] and node.op_type in ops]


SCALED = CHAIN.replace("e = Conv <pads = [7, 7]> (d", "j = Mul (d, s) k = Sub (one, j) e = Conv <pads = [7, 7]> (k")
REWRITTEN = {
    "a chain": model(),
    "a length that eight divides": model(length="8000"),
    "several signals, perhaps": model(batch="N"),
    "padding before more than behind": model(CHAIN.replace("[7, 7]", "[14, 0]")),
    "padding behind alone": model(CHAIN.replace("[7, 7]", "[0, 14]")),
    "dilations": model(CHAIN.replace("[7, 7]", "[14, 14], dilations = [2]"), length="9999"),
    "an even kernel": model(CHAIN.replace("[7, 7]", "[7, 8], kernel_shape = [16]"), kernel=16),
    "residuals": model(RESIDUALS),
    "branches that are summed": model(BRANCHES, "float three = {3.0}"),
    "constants of channels": model(SCALED, per_channel("s").replace("[32]", "[32,1]"), "float[1] one = {1.0}"),
    "an activation of ONNX Runtime's own": model(CHAIN.replace("LeakyRelu", "com.microsoft.QuickGelu")),
    "a convolution with its activation": model(
        CHAIN.replace("c = Conv <", 'c = com.microsoft.FusedConv <activation = "Relu", ')
    ),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewrites(case: str) -> None:
    result = check_rewrites(PASS, REWRITTEN[case])
    assert of(result, "Conv", "FusedConv") == [4] * 4
    assert len(of(result, "Unsqueeze")) == len(of(result, "Squeeze")) == 1


def test_a_chain_in_eight_pieces() -> None:
    ops = {"Unsqueeze": 1, "Slice": 16, "Concat": 2, "Conv": 4, "LeakyRelu": 1, "Squeeze": 1}
    check_rewrites(PASS, model(), ops=ops)


def test_little_work_in_two_pieces() -> None:
    """Two threads divide it, more have little to do."""
    ops = {"Unsqueeze": 1, "Slice": 4, "Concat": 2, "Conv": 4, "LeakyRelu": 1, "Squeeze": 1}
    check_rewrites(PASS, model(length="1001", channels=16), ops=ops)


def test_several_results_are_joined() -> None:
    text = model(CHAIN.replace("y = ", "z = Abs (e) y = "), results="y e z", length="60001", kernel=31)
    result = check_rewrites(PASS, text.replace("[7, 7]", "[15, 15]"))
    assert len(of(result, "Squeeze")) == 2
    assert of(result, "Abs") == [3]
    assert [value.name for value in result.graph.outputs] == ["y", "e", "z"]


def test_what_is_elementwise_at_the_ends_stays_outside() -> None:
    text = model("a = Abs (x)" + CHAIN.replace("(x,", "(a,").replace("y = ", "g = ") + "y = Relu (g)")
    assert of(check_rewrites(PASS, text), "Abs", "Relu") == [3, 3]


FRAMES = "r = Reshape (x, t) " + CHAIN.replace("(x,", "(r,")
SHAPE = "int64[3] t = {1, 32, -1}"


@pytest.mark.parametrize("frames", [1, 2, 3, 10, 33])
def test_a_length_that_is_known_when_the_model_runs(frames: int) -> None:
    image = np.random.default_rng(frames).standard_normal((1, 32, frames, 256), np.float32)
    result = check_rewrites(PASS, model(FRAMES, SHAPE, length="F,256"), inputs={"x": image})
    assert of(result, "Conv") == [4] * 4


KEPT = {
    "the rank is not 3": model(CHAIN.replace("[7, 7]", "[7, 7, 0, 0]"), length="6001,1")
    .replace("32,15]", "32,15,1]").replace("D,M", "D,M,K"),
    "it is for single precision only": model().replace("float[", "double["),
    "the signals of a batch are divided": model(batch="2"),
    "the signals are empty": model(length="0"),
    "its halo is too large": model("y = Conv <pads = [2800, 2800], dilations = [400]> (x, v)"),
    "the halo of the stage is too large": model(CHAIN.replace("[7, 7]", "[350, 350], dilations = [50]")),
    "it is cut and joined for little": model("c = Conv <pads = [7, 7]> (x, v) y = Conv <pads = [7, 7]> (c, w)"),
    "divided among too few threads": model(length="1000"),
    "its kernel runs on several threads": model("c = Conv (x, m) d = Conv (c, m) e = Conv (d, m) y = Conv (e, m)",
                                                weights("m", kernel=1)),
    "most of its kernels run on several threads": model(
        "c = Conv <pads = [7, 7]> (x, v) d = Conv (c, m) y = Conv (d, n)",
        weights("m", 512, 32, 1), weights("n", 32, 512, 1)),
    "it does not keep the length": model(CHAIN.replace("[7, 7]", "[6, 7]")),
    "its padding cuts away": model(CHAIN.replace("[7, 7]", "[15, -1]")),
    "it has strides": model(CHAIN.replace("[7, 7]", "[7, 7], strides = [2]")),
    "it has groups": model("y = Conv <pads = [7, 7], group = 2> (x, g)", weights("g", 32, 16)),
    "its padding is not written out": model(CHAIN.replace("pads = [7, 7]", 'auto_pad = "SAME_UPPER"')),
    "the channels fill no blocks": model("y = Conv <pads = [7, 7]> (x, o)", weights("o", 8)),
    "it adds another value": model("y = com.microsoft.FusedConv <pads = [7, 7]> (x, v, b, x)"),
    "it is not a constant": "main (float[1,32,6001] x, float[32,32,15] v) => (float[1,32,M] y) "
    "{ y = Conv <pads = [7, 7]> (x, v) }",
    "": (model(), {"target": "onnx"}),
    "the result runs with one thread": (model(), {"options": Options(for_threads=1)}),
    "are those of older opsets": (model(), {"opset": 12}),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


@pytest.mark.parametrize(("rows", "halo"), [(8, Halo(60, 60)), (4, Halo(7, 0)), (2, Halo(3, 9)), (2, Halo(5, 1))])
def test_pieces_hold_what_their_results_depend_on(rows: int, halo: Halo) -> None:
    for length in (*range(1, 150), 1000, 1001):
        _check(fixed_bounds(fixed_cuts(length, halo, rows)), length, halo)


@pytest.mark.parametrize(("rows", "halo"), [(8, Halo(60, 60)), (4, Halo(7, 0)), (2, Halo(3, 9))])
def test_pieces_that_are_computed_are_the_same(rows: int, halo: Halo) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 1, "L"]))
    cuts = computed_cuts(x, halo, rows)
    bounds = [bound for pair in zip(cuts.taken, cuts.kept, strict=True) for both in pair for bound in both]
    session = ort.InferenceSession(to_bytes(_model(x, bounds)))
    for length in (*range(1, 100), 1000, 1001):
        found = [list(map(int, bound)) for bound in session.run(None, {"x": np.zeros((1, 1, length), np.float32)})]
        computed = [found[place : place + 4] for place in range(0, 4 * rows, 4)]
        assert computed == fixed_bounds(fixed_cuts(length, halo, rows))


def _model(x: ir.Value, results: Sequence[ir.Value]) -> ir.Model:
    """A model of new nodes and constants."""
    nodes = new_nodes(results)
    constants = {value: None for node in nodes for value in node.inputs if value is not None and value.const_value}
    outputs = {value: None for node in nodes for value in node.outputs}
    for place, value in enumerate((*constants, *outputs)):
        value.name = f"v{place}"
    for value in results:
        value.type = ir.TensorType(ir.DataType.INT64)
    graph = ir.Graph([x], results, nodes=nodes, initializers=list(constants), opset_imports={"": 17})
    return ir.Model(graph, ir_version=8)


Bounds = list[list[list[int]]]
"""For each piece, what is taken: where it begins and ends; and what is kept of it: rows and columns of both."""


def fixed_bounds(cuts: Cuts) -> Bounds:
    return [[numbers(bound) for bound in (*taken, *kept)] for taken, kept in zip(cuts.taken, cuts.kept, strict=True)]


def numbers(value: ir.Value) -> list[int]:
    assert value.const_value is not None
    return [int(number) for number in value.const_value.numpy()]


def _check(bounds: Bounds, length: int, halo: Halo) -> None:
    """Each piece but those at the ends of the signal is longer than what is kept by the halo, all are equally long."""
    assert len({stop[0] - start[0] for start, stop, _, _ in bounds}) == 1
    done = 0
    for row, ((start,), (stop,), first, last) in enumerate(bounds):
        assert (first[0], last[0]) == (row, row + 1)
        assert 0 <= start <= stop <= length
        assert start + first[1] == done
        done = start + last[1]
        if last[1] > first[1]:
            assert first[1] >= halo.before or start == 0
            assert stop - start - last[1] >= halo.behind or stop == length
    assert done == length
