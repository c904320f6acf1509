"""Linear ops by whatever name: what is folded before or behind them changes no number; what they say of themselves."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.graph.match import Refusal, producer
from ortopt.linear.channels import affine_above
from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import Folded, Linear, biased, ending_in, linear
from ortopt.options import TransformerLevel
from ortopt.testing import check_keeps, check_rewrites, parse


def numbers(name: str, shape: str, *, seed: int = 0) -> str:
    """An initializer in text."""
    size = int(np.prod([int(dim) for dim in shape.split(",") if dim]))
    drawn = np.random.default_rng([seed, size]).uniform(0.25, 2, size)
    return f"float[{shape}] {name} = {{{', '.join(f'{number:.3f}' for number in drawn)}}}"


OPS = {
    "Conv": ("N,4,5,5", "N,6,A,B", "y = Conv <strides = [2, 1]> (x, w, b)", "6,4,2,2", "6"),
    "Conv without bias": ("N,4,5", "N,6,A", "y = Conv (x, w)", "6,4,2", "6"),
    "Conv of groups": ("N,4,5,5", "N,6,A,B", "y = Conv <group = 2> (x, w, b)", "6,2,2,2", "6"),
    "Conv of channels": ("N,4,5,5", "N,4,A,B", "y = Conv <group = 4> (x, w, b)", "4,1,2,2", "4"),
    "ConvTranspose": ("N,4,5,5", "N,6,A,B", "y = ConvTranspose (x, w, b)", "4,6,2,2", "6"),
    "ConvTranspose of groups": ("N,4,5,5", "N,6,A,B", "y = ConvTranspose <group = 2> (x, w, b)", "4,3,2,2", "6"),
    "Gemm": ("N,4", "N,6", "y = Gemm (x, w, b)", "4,6", "6"),
    "Gemm without C": ("N,4", "N,6", "y = Gemm <alpha = 0.5> (x, w)", "4,6", "6"),
    "Gemm of factors": ("N,4", "N,6", "y = Gemm <alpha = 0.5, beta = 3.0, transB = 1> (x, w, b)", "6,4", "1,6"),
    "Gemm of a number": ("N,4", "N,6", "y = Gemm <beta = 3.0> (x, w, b)", "4,6", "1"),
    "MatMul": ("N,4", "N,6", "y = MatMul (x, w)", "4,6", "6"),
    "MatMul of a stack": ("N,M,4", "N,M,6", "y = MatMul (x, w)", "4,6", "6"),
}
"""By name: shapes of input and result, the op, shapes of weights and bias."""


def kind(op: str) -> str:
    """The op of an entry of `OPS`."""
    return op.partition(" ")[0]


def has_columns(op: str) -> bool:
    """Whether its channels are columns of matrices."""
    return kind(op) in {"Gemm", "MatMul"}


def along(op: str, channels: int) -> str:
    """The shape of a constant with a number for each channel."""
    positions = OPS[op][0].count(",") - 1
    return str(channels) if has_columns(op) else ",".join([str(channels), *["1"] * positions])


class Behind(LinearFolding):
    """What scales or shifts channels, behind any linear op."""

    name = "behind"
    levels = (TransformerLevel.LEVEL1,)
    roots = ("Add", "Sub", "Mul", "Div", "Sum", "BatchNormalization")
    into = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class BehindProduct(Behind):
    """A quotient behind any linear op."""

    name = "behind_product"
    roots = ("Div",)


class Before(LinearFolding):
    """What scales or shifts channels, before any linear op."""

    name = "before"
    levels = (TransformerLevel.LEVEL1,)
    roots = ("Conv", "ConvTranspose", "Gemm", "MatMul")

    def match(self, root: ir.Node) -> Folded:
        above = affine_above(root.inputs[0], "Add", "Sub", "Mul", "Div", "BatchNormalization")
        layer = linear(root)
        return layer.fold_before(above, layer.effect_of(above))


NORM = "t = BatchNormalization <epsilon = 0.1> (r, g, e, m, v)"
CHAIN = "p = Mul (k, r) q = Add (p, k) s = Div (q, k) t = Sub (s, k)"


def model(op: str, effect: str, *, behind: bool) -> str:
    """A linear op with something that scales and shifts behind or before it."""
    given, result, node, weight, bias = OPS[op]
    channels = int((result if behind else given).split(",")[-1 if has_columns(op) else 1])
    own = [numbers("w", weight), *([numbers("b", bias)] if "b)" in node else [])]
    factors = [numbers("k", along(op, channels), seed=1)]
    norm = [numbers(name, str(channels), seed=seed) for seed, name in enumerate("gemv", 2)]
    constants = ", ".join([*own, *(norm if effect == NORM else factors)])
    if behind:
        body = node.replace("y =", "r =") + effect.replace("t =", " y =")
    else:
        body = effect.replace("r)", "x)").replace("(r,", "(x,") + node.replace("y =", " y =").replace("(x", "(t")
    return f"main (float[{given}] x) => (float[{result}] y) <{constants}> {{ {body} }}"


def one(op: str, **others: int) -> dict[str, int]:
    """The counts of ops of a result that is one linear op."""
    return {
        **dict.fromkeys(("Add", "Sub", "Mul", "Div", "BatchNormalization"), 0),
        kind(op): 1,
        **others,
    }


@pytest.mark.parametrize("effect", [CHAIN, NORM])
@pytest.mark.parametrize("op", [op for op in OPS if not op.startswith("MatMul")])
def test_what_stands_behind(op: str, effect: str) -> None:
    check_rewrites(Behind(), model(op, effect, behind=True), ops=one(op))


@pytest.mark.parametrize("op", ["MatMul", "MatMul of a stack"])
def test_what_stands_behind_a_product_is_added(op: str) -> None:
    check_rewrites(BehindProduct(), model(op, "t = Div (r, k)", behind=True), ops=one(op, Add=1))


def test_columns_that_are_not_the_channels() -> None:
    check_keeps(Behind(), model("MatMul of a stack", NORM, behind=True).replace("N,M,", "N,6,"), "are not the channels")


@pytest.mark.parametrize("effect", [CHAIN, NORM])
@pytest.mark.parametrize("op", [op for op in OPS if kind(op) in {"Conv", "Gemm"}])
def test_what_stands_before(op: str, effect: str) -> None:
    check_rewrites(Before(), model(op, effect, behind=False), ops=one(op))


@pytest.mark.parametrize("op", [op for op in OPS if op.startswith("ConvTranspose")])
def test_factors_before_a_transposed_convolution(op: str) -> None:
    check_rewrites(Before(), model(op, "t = Div (r, k)", behind=False), ops=one(op))


BEFORE = {
    "a linear layer is of columns": "(float[4,4] x) => (float[4,6] y) <float[4] k = {1, 2, 3, 4}, float[4,6] w> { t = Mul (x, k) y = Gemm <transA = 1> (t, w) }",  # noqa: E501
    "the number of channels is not fixed": "(float[N,1,3] x) => (float[N,6,A] y) <float[4,1] k = {1, 2, 3, 4}, float[6,4,2] w> { t = Mul (x, k) y = Conv (t, w) }",  # noqa: E501
    "it is not one number a channel": "(float[2,4] x) => (float[2,6] y) <float[2,1] k = {1, 2}, float[4,6] w> { t = Mul (x, k) y = MatMul (t, w) }",  # noqa: E501
    "a number is not finite": "(float[N,4] x) => (float[N,6] y) <float[4] k = {1, 0, 3, 4}, float[4,6] w> { t = Div (x, k) y = MatMul (t, w) }",  # noqa: E501
    "times larger or smaller than all that stay": "(float[N,1] x) => (float[N,1] y) <float k = {1e30}, float[1,1] w = {1e-9}> { t = Div (x, k) y = MatMul (t, w) }",  # noqa: E501
    "the weights are no matrix": "(float[N,4] x) => (float[N] y) <float k = {2}, float[4] w> { t = Mul (x, k) y = MatMul (t, w) }",  # noqa: E501
    "the groups do not divide the channels": "(float[N,4,3] x) => (float[N,6,A] y) <float k = {2}, float[6,1,2] w> { t = Mul (x, k) y = Conv <group = 4> (t, w) }",  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("because", BEFORE)
def test_keeps(because: str) -> None:
    text = f"main {BEFORE[because]}"
    shape = text.rpartition("float[")[2].partition("]")[0]
    check_keeps(Before(), text.replace(f"float[{shape}] w>", f"{numbers('w', shape)}>"), because)


def layer_of(text: str) -> Linear:
    """The linear op that gives the result of a model."""
    node = producer(parse(f"main {text}").graph.outputs[0], "Conv", "ConvTranspose", "Gemm", "MatMul", "Add")
    return biased(node) if node.op_type == "Add" else linear(node)


W = "float[2,3] w = {1, -2, 3, 4, 5, -6}"
READ = {
    "Gemm": (f"(float[N,2] x) => (float[N,3] y) <{W}> {{ y = Gemm <alpha = 2.0> (x, w) }}", (2, 3), (10, 14, 18), (12, 30)),  # noqa: E501
    "Gemm, turned": (f"(float[N,3] x) => (float[N,2] y) <{W}> {{ y = Gemm <transB = 1> (x, w) }}", (3, 2), (6, 15), (5, 7, 9)),  # noqa: E501
    "Conv": ("(float[N,4,5] x) => (float[N,2,5] y) <float[2,2,1] w = {1, -2, 3, 4}> { y = Conv <group = 2> (x, w) }", (4, 2), (3, 7), (1, 2, 3, 4)),  # noqa: E501
    "ConvTranspose": ("(float[N,2,5] x) => (float[N,4,5] y) <float[2,2,1] w = {1, -2, 3, 4}> { y = ConvTranspose <group = 2> (x, w) }", (2, 4), (1, 2, 3, 4), (3, 7)),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize(("text", "channels", "gain", "reach"), READ.values(), ids=READ)
def test_channels_and_magnitudes(
    text: str, channels: tuple[int, int], gain: tuple[int, ...], reach: tuple[int, ...]
) -> None:
    layer = layer_of(text)
    assert (layer.inputs, layer.outputs) == channels
    np.testing.assert_array_equal(layer.gain(), gain)
    np.testing.assert_array_equal(layer.reach(), reach)


def test_a_bias_keeps_its_factor() -> None:
    head = "(float[N,2] x, float[2] r) => (float[N,3] y)"
    layer = layer_of(f"{head} <{W}, float[3] c = {{1, 2, 3}}> {{ y = Gemm <alpha = 3.0, beta = 2.0> (x, w, c) }}")
    np.testing.assert_array_equal(layer.summand(), [2, 4, 6])
    np.testing.assert_array_equal(layer.bias_with(np.array([2.0, 4.0])), [1 + 27, 2 + 24, 3 - 27])
    np.testing.assert_array_equal(layer.image(np.array([2.0, 4.0])), [54, 48, -54])


ENDS = {
    "a linear layer has no bias": "y = Gemm (x, w)",
    "a linear layer is of columns": "y = Gemm <transA = 1> (x, w, c)",
    "MatMul's result is used elsewhere": "t = MatMul (x, w) y = Add (t, t)",
    "no operand comes from MatMul": "t = Gemm (x, w) y = Add (t, d)",
    "a linear layer's bias is no row": "y = Gemm (x, w, d)",
}


@pytest.mark.parametrize("because", ENDS)
def test_what_is_no_layer_of_rows(because: str) -> None:
    text = f"main (float[2,2] x) => (float[2,3] y) <{W}, float[3] c = {{1, 2, 3}}, float[1,3] d = {{1, 2, 3}}> {{ {ENDS[because]} }}"  # noqa: E501
    node = producer(parse(text).graph.outputs[0], "Gemm", "Add")
    with pytest.raises(Refusal, match=because):
        ending_in(node)
