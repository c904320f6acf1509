"""Every op that a GPU has a kernel of 16 bits for: converted, and kept; and those that must stay."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from ortopt.analysis import kernels
from ortopt.half_precision.formats import BFLOAT16, FLOAT16, Format
from ortopt.half_precision.range_rules import PRECISE, WIDE
from ortopt.half_precision.units import Units
from tests.half_precision.converting import CPU, CUDA, check_numbers, converted, dtypes, inner_casts, prepared
from tests.texts import table

X = "main (float[2,4,6] x) => (float[2,4,6] y)"
IMAGE = "main (float[1,4,6,6] x) => (float[1,4,N,M] y)"


OPS = dict(table(Path(__file__).parent / "ops.txt", "of onnx"))
CONTRIB = dict(table(Path(__file__).parent / "ops.txt", "of ONNX Runtime"))
RECURRENT = ("RNN", "GRU", "LSTM")


def filled(text: str) -> str:
    """Weights without numbers get some: ramps."""

    def ramp(found: re.Match[str]) -> str:
        dims = [int(dim) for dim in found[1].split(",")]
        count = math.prod(dims)
        numbers = ", ".join(f"{(i * 7 % 11 - 5) / 8}" for i in range(count))
        return f"float[{found[1]}] {found[2]} = {{{numbers}}}"

    head, _, rest = text.partition("=>")
    signature, start, body = rest.partition("<") if "<" in rest.partition("{")[0] or ") <" in rest else (rest, "", "")
    return f"{head}=>{signature}{start}" + re.sub(r"float\[([\d,]+)\] (\w+)(?=[,>])", ramp, body)


@pytest.mark.parametrize("op", [*OPS, *CONTRIB])
def test_an_op_with_a_kernel_computes_in_16_bits(op: str) -> None:
    text = filled({**OPS, **CONTRIB}[op])
    result = converted(text, interface_too=True, providers=CUDA if op in RECURRENT else CPU)
    assert set(dtypes(result, op)) == {"float16"}
    assert inner_casts(result) == []
    check_numbers(text, result)


@pytest.mark.parametrize("form", [FLOAT16, BFLOAT16], ids=lambda form: form.type_text)
@pytest.mark.parametrize("op", RECURRENT)
def test_recurrent_layers_stay_in_float32_on_the_cpu(op: str, form: Format) -> None:
    text = filled(OPS[op])
    assert set(dtypes(converted(text, 22, form=form, interface_too=True), op)) == {"float"}
    units = Units(prepared(text, 22), form, CPU)
    (why,) = {unit.why for unit in units.all if unit.node is not None and unit.node.op_type == op}
    assert why == "ONNX Runtime's CPU provider may crash when it loads one of 16 bits"


@pytest.mark.parametrize("op", sorted({*OPS, *CONTRIB} - {"Constant", "ConstantOfShape", "Cast"}))
def test_the_same_op_stays_in_float32_if_it_is_kept(op: str) -> None:
    text = filled({**OPS, **CONTRIB}[op])
    result = converted(text, interface_too=True, keep=(op,))
    assert set(dtypes(result, op)) == {"float"}
    check_numbers(text, result)


ROUND = {
    op: f"{X} {{ a = Abs (x) h = Softplus (a) w = {op} (h) y = Add (w, x) }}" for op in ("Exp", "Log", "Reciprocal")
}
STAYS = {
    **ROUND,
    "Pow": f"{X} <float two = {{2}}> {{ p = Pow (x, two) y = Add (p, x) }}",
    "ReduceSum": f"{X} <int64[1] a = {{2}}> {{ s = ReduceSum (x, a) y = Add (s, x) }}",
    "ReduceL2": f"{X} {{ s = ReduceL2 <axes = [2]> (x) y = Add (s, x) }}",
    "ReduceSumSquare": f"{X} {{ s = ReduceSumSquare <axes = [2]> (x) y = Add (s, x) }}",
    "CumSum": f"{X} <int64 a = {{2}}> {{ s = CumSum (x, a) y = Add (s, x) }}",
    "Sin": f"{X} {{ s = Sin (x) y = Add (s, x) }}",
    "Cos": f"{X} {{ s = Cos (x) y = Add (s, x) }}",
    "LRN": "main (float[1,4,6,6] x) => (float[1,4,6,6] y) { y = LRN <size = 3> (x) }",
    "Mul": f"{X} {{ s = Mul (x, x) y = Add (s, x) }}",
}


@pytest.mark.parametrize("op", STAYS)
def test_an_op_that_needs_range_or_precision_stays_in_float32(op: str) -> None:
    result = converted(STAYS[op], interface_too=True)
    assert set(dtypes(result, op)) == {"float"}
    check_numbers(STAYS[op], result)


@pytest.mark.parametrize(("power", "dtype"), [(0.5, "float16"), (1.0, "float16"), (3.0, "float")])
def test_a_root_is_harmless_where_a_power_is_not(power: float, dtype: str) -> None:
    text = f"{X} <float p = {{{power}}}> {{ a = Abs (x) b = Pow (a, p) y = Add (b, x) }}"
    assert dtypes(converted(text, interface_too=True), "Pow") == [dtype]


def test_what_is_wide_or_precise_is_in_the_specification() -> None:
    for op in WIDE | PRECISE:
        assert kernels.is_official("", op, 26), op


def test_an_op_without_a_kernel_stays_in_float32() -> None:
    text = f"{X} {{ d = Asinh (x) e = Hardmax (d) y = Add (e, x) }}"
    result = converted(text, interface_too=True)
    assert dtypes(result, "Hardmax") == ["float"]
    check_numbers(text, result)


def test_bfloat16_is_taken_where_there_are_kernels_of_it() -> None:
    text = filled("main (float[2,6] x) => (float[2,6] y) <float[6,6] w> { m = MatMul (x, w) y = Relu (m) }")
    result = converted(text, form=BFLOAT16)
    assert dtypes(result, "MatMul") == ["bfloat16"]
    check_numbers(text, result, form=BFLOAT16, limit=5e-2)
    image = filled(OPS["Conv"])
    assert dtypes(converted(image, form=BFLOAT16), "Conv") == ["float"]


IN_BFLOAT16 = (
    *("Add", "Cast", "Concat", "Div", "Expand", "Flatten", "Gather", "Gelu", "Gemm", "Identity", "LayerNormalization"),
    *("MatMul", "Mul", "MultiHeadAttention", "Relu", "Reshape", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze"),
    *("Sub", "Tanh", "Transpose", "Unsqueeze", "Where"),
)
"""Ops of transformers, all of which a GPU computes in bfloat16."""


@pytest.mark.parametrize("op", [*OPS, *CONTRIB])
def test_an_op_computes_in_bfloat16_if_its_kernel_does(op: str) -> None:
    result = converted(filled({**OPS, **CONTRIB}[op]), form=BFLOAT16, interface_too=True)
    (dtype,) = set(dtypes(result, op))
    assert dtype in {"bfloat16"} if op in IN_BFLOAT16 else {"bfloat16", "float"}


@pytest.mark.parametrize("op", IN_BFLOAT16)
def test_numbers_of_bfloat16(op: str) -> None:
    text = filled({**OPS, **CONTRIB}[op])
    check_numbers(text, converted(text, form=BFLOAT16), form=BFLOAT16, limit=5e-2)


def test_what_has_no_bfloat16_in_its_opset_says_so() -> None:
    model = prepared("main (float[2,4] x) => (float[2,4] y) { y = Relu (x) }", 12)
    assert [unit.why for unit in Units(model, BFLOAT16, CPU).all if unit.node is not None] == [
        "the op has bfloat16 from opset 13 on"
    ]
