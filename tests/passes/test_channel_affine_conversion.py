"""Constants that scale and shift an image between convolutions are a normalization, which stays in blocks."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from ortopt import testing
from ortopt.serialization.save import save
from ortopt.testing import check_keeps, check_rewrites

PASS = "channel_affine_conversion"
WEIGHTS = ", ".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(256))
KERNEL = ", ".join(str(0.125 * (place % 5 - 2)) for place in range(16 * 9))
CONSTANTS = {
    "w": f"float[16,16,1,1] w = {{{WEIGHTS}}}",
    "k": f"float[16,1,3,3] k = {{{KERNEL}}}",
    "s": "float[1] s = {0.75}",
    "t": "float[1] t = {-0.5}",
    "c": f"float[16,1,1] c = {{{', '.join(str(place / 4 - 1) for place in range(16))}}}",
    "zero": "float zero = {0}",
    "f": "float[5] f = {1, 2, 3, 4, 5}",
}
END = "y = Conv <group = 16, pads = [1,1,1,1]> (m, k)"


def model(between: str, *, head: str = "float[1,16,6,5] x", end: str = END) -> str:
    nodes = f"a = Conv (x, w) r = HardSwish (a) {between} {end}"
    used = ", ".join(text for name, text in CONSTANTS.items() if re.search(rf"[(,] ?{name}\b", nodes))
    return f"main ({head}) => (float[A,B,C,D] y) <{used}> {{ {nodes} }}"


OPS = {"Conv": 2, "HardSwish": 1, "BatchNormalization": 1}
CONVERTED = {
    "product and sum": "p = Mul (s, r) m = Add (p, t)",
    "sum and product": "p = Add (r, t) m = Mul (p, s)",
    "sum": "m = Add (r, t)",
    "difference": "m = Sub (r, t)",
    "quotient": "m = Div (r, s)",
    "product": "m = Mul (r, s)",
    "numbers for each channel": "p = Mul (r, c) m = Add (c, p)",
}


@pytest.mark.parametrize("case", CONVERTED)
def test_converts(case: str) -> None:
    check_rewrites(PASS, model(CONVERTED[case]), ops=OPS)


def test_converts_where_sizes_are_free() -> None:
    check_rewrites(PASS, model("p = Mul (s, r) m = Add (p, t)", head="float[N,16,H,W] x"), ops=OPS)


def test_a_chain_of_candidates() -> None:
    """Each alone would stay between reorders; all together stay in blocks."""
    between = "p = Mul (s, r) q = Add (p, t) u = Sigmoid (q) v = Mul (c, u) m = Add (v, t)"
    check_rewrites(PASS, model(between), ops={"Conv": 2, "HardSwish": 1, "BatchNormalization": 2, "Sigmoid": 1})


def test_what_onnxruntime_makes_of_it(tmp_path: Path) -> None:
    """The image stays in blocks from the first convolution to the last."""
    import onnxruntime

    changed, _ = testing.run(PASS, read := testing.parse(model("p = Mul (s, r) m = Add (p, t)"), opset=18))
    assert changed
    save(read, tmp_path / "m.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), options, ["CPUExecutionProvider"])
    ops = [node.op_type for node in onnx.load(tmp_path / "loaded.onnx").graph.node]
    if "ReorderInput" not in ops:
        pytest.skip("this processor has no blocked layout")
    assert sorted(ops) == ["Conv", "Conv", "Conv", "ReorderInput", "ReorderOutput"]


BOTH = "p = Mul (s, r) m = Add (p, t)"
SCALED = "p = Mul (x, c) m = Add (p, c)"
ALONE = f"main (float[N,16,H,W] x) => (float[A,B,C,D] y) <{CONSTANTS['c']}> {{ {SCALED} y = Erf (m) }}"


def test_one_kernel_for_two_outside_of_blocks() -> None:
    check_rewrites(PASS, ALONE, ops={"BatchNormalization": 1, "Mul": 0, "Add": 0})
    check_rewrites(PASS, model(BOTH, end="y = Erf (m)"), ops={"BatchNormalization": 1, "Mul": 0, "Add": 0})


def relu(more: str = "", outputs: str = "", activation: str = "Relu") -> str:
    constants = f"{CONSTANTS['c']}, {CONSTANTS['k']}"
    return f"""main (float[N,16,6,5] x) => (float[A,B,C,D] y{outputs}) <{constants}> {{
        {SCALED} i = {activation} (m) y = Conv <group = 16, pads = [1,1,1,1]> (i, k) {more} }}"""


def test_blocks_begin_before_a_relu() -> None:
    """The convolution of single channels takes the activation into it, and the next one reads blocks."""
    check_rewrites(PASS, relu(), ops={"Conv": 2, "Relu": 1, "BatchNormalization": 0, "Mul": 0, "Add": 0})


@pytest.mark.parametrize(
    "text",
    [
        relu("z = Erf (i)", ", float[A,B,C,D] z"),
        relu(outputs=", float[A,B,C,D] i"),
        relu("z = Erf (m)", ", float[A,B,C,D] z"),
        relu(activation="Erf"),
    ],
    ids=["another reader", "a result of the graph", "the scaled image is read, too", "another activation"],
)
def test_no_blocks_begin(text: str) -> None:
    check_rewrites(PASS, text, ops={"Conv": 1, "BatchNormalization": 1, "Mul": 0, "Add": 0})


KEPT = {
    "would not stay in the blocked layout": model("q = Erf (r) m = Add (q, t)"),
    "no reader in blocks": model("m = Mul (s, r)", end="y = Erf (m)"),
    "no operand is a constant": model("m = Add (r, a)"),
    "it is not one number a channel": model("m = Add (r, f)"),
    "the constant comes first": model("m = Sub (t, r)"),
    "it divides by 0": model("m = Div (r, zero)"),
}  # fmt: skip


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    reason = "would not stay in the blocked layout" if because == "no reader in blocks" else because
    check_keeps(PASS, KEPT[because], reason)


def test_other_runtimes_and_old_opsets() -> None:
    check_keeps(PASS, model(BOTH), None, target="onnx")
    relu = model(BOTH).replace("HardSwish", "Relu")
    check_keeps(PASS, relu, "the opset is too old", opset=8)
