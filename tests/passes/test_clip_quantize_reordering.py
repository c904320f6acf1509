"""Integers are cut off instead of the numbers of a quantized op, which then has its kernel."""

import numpy as np
import pytest

from ortopt import optimize
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse
from tests.passes.quantized_units import Tensor, drawn, run, unit

PASS = "clip_quantize_reordering"
A = Tensor("3,50", 0.031, 123)
Y = Tensor("3,50", 0.0427, 128)
BOUNDS = "float low = {-0.2989}, float high = {1.708}, "


def model(clip: str = "t = Relu (u)", op: str = "u = Add (a_x, a_x)", y: Tensor = Y, more: str = "") -> str:
    return unit(f"{op} {clip}", y, more, a=A)


@pytest.mark.parametrize(
    ("clip", "y", "least", "greatest"),
    [
        ("t = Relu (u)", Y, 128, 255),
        ("t = Relu (u)", Y._replace(zero=28), 28, 255),
        ("t = Clip (u, low, high)", Y, 121, 168),
        ("t = Clip (u, low)", Y, 121, 255),
        ("t = Clip (u, , high)", Y, 0, 168),
    ],
)
def test_bits_stay(clip: str, y: Tensor, least: int, greatest: int) -> None:
    more = "".join(f"{part}, " for part in BOUNDS.split(", ") if part and part.split()[1] in clip)
    text = model(clip, y=y, more=more)
    feeds = {"a": drawn(next(iter(parse(text).graph.inputs)), 1)}
    result = check_rewrites(PASS, text, ops={"Relu": 0, "Clip": 1}, inputs=feeds)
    (clipped,) = (node for node in result.graph if node.op_type == "Clip")
    assert [value.const_value.numpy().item() for value in clipped.inputs[1:]] == [least, greatest]  # type: ignore[union-attr]
    np.testing.assert_array_equal(run(parse(text), feeds)[0], run(result, feeds)[0])


def test_the_op_gets_its_kernel() -> None:
    made = optimize(to_bytes(parse(model())), verify=False).model
    assert [node.op_type for node in made.graph] == ["QLinearAdd", "Clip", "DequantizeLinear"]
