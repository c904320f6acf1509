"""Questions about constants with one element."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.graph import match
from ortopt.graph.match import Refusal, splat
from ortopt.testing import parse


def constant(content: float, dtype: type, shape: tuple[int, ...] = ()) -> ir.Value:
    return ir.Value(name="c", const_value=ir.tensor(np.full(shape, content, dtype)))


def value(shape: tuple[int | None, ...] | None) -> ir.Value:
    return ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=None if shape is None else ir.Shape(shape))


@pytest.mark.parametrize(
    ("content", "dtype", "within", "holds"),
    [
        (2**0.5, np.float32, 0.0, True),
        (1.4142, np.float32, 0.0, False),
        (1.4142, np.float32, 1e-5, True),
        (1.414, np.float32, 1e-5, False),
        (1.414, np.float16, 0.0, True),
        (float(np.float32(2**0.5)), np.float64, 0.0, False),
        (float(np.float32(2**0.5)), np.float64, 1e-7, True),
        (float("nan"), np.float32, 1.0, False),
    ],
)
def test_is_scalar(content: float, dtype: type, within: float, holds: bool) -> None:
    assert match.is_scalar(constant(content, dtype), 2**0.5, within) is holds


@pytest.mark.parametrize(
    ("number", "other", "holds"),
    [
        ((), None, True),
        ((), (), True),
        ((1,), None, False),
        ((1,), (), False),
        ((1,), (0,), True),
        ((1, 1), (4,), False),
        ((1, 1), (None, 4, 5), True),
    ],
)
def test_fits(number: tuple[int, ...], other: tuple[int | None, ...] | None, holds: bool) -> None:
    assert match.keeps_rank(constant(1.0, np.float32, number), value(other)) is holds


def test_operand_scalar_keeps_the_rank() -> None:
    x = value(())
    assert match.operand_scalar(ir.node("Add", [x, constant(1.0, np.float32)]), 1.0) is x
    with pytest.raises(match.Refusal, match="raise the rank"):
        match.operand_scalar(ir.node("Add", [constant(1.0, np.float32, (1,)), x]), 1.0)
    with pytest.raises(match.Refusal, match="no operand is 1"):
        match.operand_scalar(ir.node("Add", [x, constant(2.0, np.float32)]), 1.0)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("v = ConstantOfShape (s)", 0.0),
        ("v = ConstantOfShape <value = float[1] {2.5}> (s)", 2.5),
        ("c = ConstantOfShape <value = float[1] {2.5}> (s) v = Transpose (c)", 2.5),
        ("c = ConstantOfShape <value = float[1] {2.5}> (s) t = Cast <to = 9> (s) v = Compress (c, t)", 2.5),
        ("c = ConstantOfShape <value = float[1] {2.5}> (s) v = ReverseSequence (c, s)", 2.5),
        ("v = Expand (alike, s)", 7.0),
        ("v = Expand (mixed, s)", None),
        ("v = Expand (zeros, s)", None),
        ("v = Identity (x)", None),
        ("a = Expand (alike, s) v = Concat <axis = 0> (a, a)", 7.0),
        ("a = Expand (alike, s) v = Concat <axis = 0> (a, alike)", 7.0),
        ("a = Expand (alike, s) v = Concat <axis = 0> (a, mixed)", None),
        ("a = Expand (alike, s) v = Concat <axis = 0> (a, x)", None),
    ],
)
def test_fill(body: str, expected: float | None) -> None:
    model = parse(
        f"""main (float[N] x) => (float[A] y) <float[2] alike = {{7, 7}}, float[2] mixed = {{7, 8}}, float[2] zeros = {{0, -0.0}}> {{
            s = Shape (x) {body} y = Neg (v) }}"""  # noqa: E501
    )
    value = next(value for node in model.graph for value in node.outputs if value.name == "v")
    if expected is None:
        with pytest.raises(Refusal):
            splat(value)
    else:
        assert splat(value).item() == expected
