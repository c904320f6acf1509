"""A convolution whose channels are split becomes one for each part."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "conv_split_decomposition"


def weights(name: str, outputs: int, inputs: int) -> str:
    numbers = ",".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(outputs * inputs))
    return f"float[{outputs},{inputs},1,1] {name} = {{{numbers}}}"


def model(
    between: str = "a = Relu (c)",
    *,
    conv: str = "c = Conv (x, w, b)",
    split: str = "s, t = Split <axis = 1> (a, sizes)",
    sizes: tuple[int, ...] = (16, 32),
    end: str = "y = Conv (s, v) z = Neg (t)",
    outputs: int = 48,
    more: str = "",
    dtype: str = "float",
) -> str:
    """A convolution, its activation, and two parts of it."""
    offsets = ",".join(str(place - 7) for place in range(outputs))
    constants = (
        f"{weights('w', outputs, 4)}, float[{outputs}] b = {{{offsets}}}, {weights('v', 2, sizes[0])}, "
        f"int64[{len(sizes)}] sizes = {{{','.join(map(str, sizes))}}}"
    ).replace("float", dtype)
    return f"""main ({dtype}[N,4,3,W] x) => ({dtype}[A,B,C,D] y, {dtype}[E,F,G,H] z{more})
        <{constants}> {{ {conv} {between} {split} {end} }}"""


PARTS = {"Conv": 3, "Relu": 2, "Neg": 1}
REWRITTEN = {
    "an activation": (model(), PARTS),
    "no activation": (model("a = Identity (c)").replace("a = Identity (c)", "").replace("(a, s", "(c, s"), {"Conv": 3}),
    "ONNX Runtime's own activation": (
        model("a = com.microsoft.QuickGelu <alpha = 1.0> (c)"),
        {"Conv": 3, "com.microsoft::QuickGelu": 2},
    ),
    "two activations": (model("d = Relu (c) a = Tanh (d)"), PARTS | {"Tanh": 2}),
    "three parts": (
        model(split="s, t, u = Split <axis = 1> (a, sizes)", sizes=(16, 16, 16), end="y = Conv (s, v) z = Add (t, u)"),
        {"Conv": 4, "Relu": 3, "Add": 1},
    ),
    "a negative axis": (model(split="s, t = Split <axis = -3> (a, sizes)"), PARTS),
    "a fused convolution": (
        model("", conv='a = com.microsoft.FusedConv <activation = "Relu"> (x, w, b)'),
        {"com.microsoft::FusedConv": 2, "Conv": 1},
    ),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewrites(case: str) -> None:
    text, ops = REWRITTEN[case]
    check_rewrites(PASS, text, ops=ops | {"Split": 0})


def test_without_a_bias() -> None:
    text = f"""main (float[N,4,3,W] x) => (float[A,B,C,D] y, float[E,F,G,H] z)
        <{weights("w", 32, 4)}, {weights("v", 2, 16)}> {{
            c = Conv (x, w) s, t = Split <axis = 1, num_outputs = 2> (c) y = Conv (s, v) z = Neg (t) }}"""
    check_rewrites(PASS, text, ops={"Conv": 3, "Neg": 1}, opset=18)


def test_what_joins_the_whole_joins_the_parts() -> None:
    text = model(end="y = Conv (s, v) z = Concat <axis = 1> (a, y, t)")
    check_rewrites(PASS, text, ops={"Conv": 3, "Relu": 2, "Concat": 2})


def test_what_joins_the_whole_before_it_is_split() -> None:
    text = model(
        split="k = Concat <axis = -3> (a, x) s, t = Split <axis = 1> (a, sizes)", end="y = Conv (s, v) z = Neg (k)"
    )
    check_rewrites(PASS, text, ops={"Conv": 3, "Relu": 2, "Concat": 2, "Neg": 1})


KEPT = {
    "it splits no channels of an image": model(split="s, t = Split <axis = 3> (a, sizes)", sizes=(2, 3)).replace(
        "y = Conv (s, v)", "y = Neg (s)"
    ).replace(f", {weights('v', 2, 2)}", "").replace("N,4,3,W", "N,4,3,5"),
    "for single precision only": model(dtype="double"),
    "the parts are no whole blocks": model(sizes=(24, 24)),
    "no convolution reads a part": model(end="y = Abs (s) z = Neg (t)").replace(f", {weights('v', 2, 16)}", ""),
    "what is split is used elsewhere": model(end="y = Conv (s, v) z = Exp (a)").replace("s, t =", "s, t ="),
    "the activation's operand is used elsewhere": model(
        end="y = Conv (s, v) z = Exp (t) o = Neg (c)", more=", float[I,J,K,L] o"
    ),
    "the convolution has groups": model(conv="c = Conv <group = 2> (x, w, b)").replace(
        "float[N,4,3,W] x", "float[N,8,3,W] x"
    ),
    "no convolution comes before": model("a = Exp (c)"),
    "keeps what is an output": ("what is split is used elsewhere", model(more=", float[I,J,K,L] a")),
    "it serves ONNX Runtime": (model(), {"target": "onnx"}),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def test_keeps_what_is_joined_along_another_axis() -> None:
    text = model(end="y = Conv (s, v) z = Concat <axis = 0> (a, a)")
    check_keeps(PASS, text, "what is split is used elsewhere")
