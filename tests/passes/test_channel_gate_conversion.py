"""A gate of one number a channel becomes an image of that number, where convolutions stand around it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import ortopt
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.tables import keeps

PASS = "channel_gate_conversion"


def weights(name: str, outputs: int, inputs: int) -> str:
    numbers = ",".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(outputs * inputs))
    return f"float[{outputs},{inputs},1,1] {name} = {{{numbers}}}"


def model(
    between: str = "m = Mul (h, g)",
    *,
    image: str = "2,16,3,5",
    gate: str = "g = Sigmoid (e)",
    activation: str = "h = Relu (c)",
    end: str = "y = Conv (m, w)",
) -> str:
    """An image that a convolution computes, gated by what a convolution makes of its means."""
    batch, _, height, width = image.split(",")
    return f"""main (float[{image}] x) => (float[{batch},16,{height},{width}] y)
        <{weights("w", 16, 16)}> {{
            c = Conv (x, w) {activation} p = GlobalAveragePool (h) e = Conv (p, w) {gate} {between} {end}
        }}"""


OPS = {"Conv": 3, "Relu": 1, "GlobalAveragePool": 1, "Sigmoid": 1, "Resize": 1, "Mul": 1}
REWRITTEN = {
    "the image first": (model(), OPS),
    "the gate first": (model("m = Mul (g, h)"), OPS),
    "a batch of any size": (model(image="N,16,3,5"), OPS),
    "a HardSigmoid": (model(gate="g = HardSigmoid (e)"), OPS | {"Sigmoid": 0, "HardSigmoid": 1}),
    "one row": (model(image="1,16,1,4"), OPS),
    "a SiLU before": (model(activation="s = Sigmoid (c) h = Mul (c, s)"), OPS | {"Relu": 0, "Sigmoid": 2, "Mul": 2}),
    "ONNX Runtime's own activation": (
        model(activation="h = com.microsoft.QuickGelu <alpha = 1.0> (c)"),
        OPS | {"Relu": 0, "com.microsoft::QuickGelu": 1},
    ),
    "a fused convolution before": (
        model(gate='g = com.microsoft.FusedConv <activation = "Sigmoid"> (p, w)').replace("e = Conv (p, w)", ""),
        OPS | {"Conv": 2, "Sigmoid": 0, "com.microsoft::FusedConv": 1},
    ),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewrites(case: str) -> None:
    text, ops = REWRITTEN[case]
    check_rewrites(PASS, text, ops={op: count for op, count in ops.items() if count})


@pytest.mark.parametrize("opset", [11, 12])
def test_opset_before_an_optional_region_of_interest(opset: int) -> None:
    check_rewrites(PASS, model(), ops=OPS, opset=opset)


def test_opset_without_a_copying_resize() -> None:
    check_keeps(PASS, model(), None, opset=10)


def test_the_file_declares_the_product_and_a_second_run_too(tmp_path: Path) -> None:
    """ONNX Runtime infers nothing of the batch behind a Resize: sums that follow would leave the blocked layout."""
    again = parse(model(image="N,16,3,5"))
    for name in ("first.onnx", "second.onnx"):
        ortopt.optimize(again, passes=PASS, verify=False).save(tmp_path / name)
        again = tmp_path / name
        declared = {value.name: value.type.tensor_type.shape.dim for value in onnx.load(again).graph.value_info}
        assert len(declared) == 2
        assert "m" in declared
        for dims in declared.values():
            assert dims[0].dim_param == "N"
            assert [dim.dim_value for dim in dims][1:] == [16, 3, 5]


KEPT = {
    "a dimension is not fixed": model(image="2,16,H,5"),
    "the image is a point": model(image="2,16,1,1"),
    "neither operand is one number a channel": model("m = Mul (h, c)"),
    "no convolution in blocks reads it": model(end="y = Neg (m)"),
    "an operand is not in the blocked layout": model(gate="f = Exp (e) g = Sigmoid (f)"),
    "the gate is not one number for each channel": model("r = ReduceMax <keepdims = 1> (g, a) m = Mul (h, r)").replace(
        "> {", ", int64[1] a = {1}> {"
    ),
}


test_keeps = keeps(PASS, KEPT, opset=18)


GROUPS = weights("v", 16, 8)
"""Two groups of eight channels: the kernel in blocks of 16 does not compute them."""


@pytest.mark.parametrize(
    ("grouped", "because"),
    [("c", "an operand is not in the blocked layout"), ("y", "no convolution in blocks reads it")],
)
def test_keeps_beside_groups_that_fill_no_blocks(grouped: str, because: str) -> None:
    text = model().replace(" <float", f" <{GROUPS}, float", 1)
    source = "x" if grouped == "c" else "m"
    text = text.replace(f"{grouped} = Conv ({source}, w)", f"{grouped} = Conv <group = 2> ({source}, v)")
    assert "group" in text
    check_keeps(PASS, text, because, opset=18)
