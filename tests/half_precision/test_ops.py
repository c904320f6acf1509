"""Every op that a GPU has a kernel of 16 bits for: converted, and kept; and those that must stay."""

from __future__ import annotations

import math
import re

import pytest

from ortopt.analysis import kernels
from ortopt.half_precision.formats import BFLOAT16, FLOAT16, Format
from ortopt.half_precision.range_rules import PRECISE, WIDE
from ortopt.half_precision.units import Units
from tests.half_precision.converting import CPU, CUDA, check_numbers, converted, dtypes, inner_casts, prepared

X = "main (float[2,4,6] x) => (float[2,4,6] y)"
IMAGE = "main (float[1,4,6,6] x) => (float[1,4,N,M] y)"

UNARY = "Abs Ceil Elu Erf Floor HardSigmoid HardSwish Identity LeakyRelu LogSoftmax Neg Relu Round Selu Sigmoid Sign Softmax Softplus Softsign Tanh ThresholdedRelu"  # noqa: E501

OPS = {
    **{op: f"{X} {{ y = {op} (x) }}" for op in UNARY.split()},
    "Sqrt": f"{X} {{ a = Abs (x) y = Sqrt (a) }}",
    "Shrink": f"{X} {{ y = Shrink <lambd = 0.1> (x) }}",
    "Add": f"{X} <float[6] w = {{1, 2, 3, 4, 5, 6}}> {{ y = Add (x, w) }}",
    "Sub": f"{X} <float[6] w = {{1, 2, 3, 4, 5, 6}}> {{ y = Sub (w, x) }}",
    "Mul": f"{X} <float[6] w = {{1, 2, 3, 4, 5, 6}}> {{ y = Mul (x, w) }}",
    "Div": f"{X} <float[6] w = {{1, 2, 3, 4, 5, 6}}> {{ y = Div (x, w) }}",
    "Max": f"{X} <float w = {{0.25}}> {{ y = Max (x, w) }}",
    "Min": f"{X} <float w = {{0.25}}> {{ y = Min (x, w) }}",
    "Sum": f"{X} {{ y = Sum (x, x, x) }}",
    "PRelu": f"{X} <float[1,4,1] s = {{0.5, 1, 2, 3}}> {{ y = PRelu (x, s) }}",
    "Clip": f"{X} <float low = {{-1}}, float high = {{1}}> {{ y = Clip (x, low, high) }}",
    "Where": f"{X} <bool[6] c = {{1, 0, 1, 0, 1, 0}}, float z = {{0}}> {{ y = Where (c, x, z) }}",
    "MatMul": f"{X} <float[6,6] w> {{ y = MatMul (x, w) }}",
    "Einsum": f"{X} <float[6,6] w> {{ y = Einsum <equation = \"bij,jk->bik\"> (x, w) }}",
    "Gemm": "main (float[4,6] x) => (float[4,3] y) <float[6,3] w, float[3] b> { y = Gemm (x, w, b) }",
    "Transpose": f"{X} {{ t = Transpose <perm = [0, 2, 1]> (x) y = Transpose <perm = [0, 2, 1]> (t) }}",
    "Reshape": f"{X} <int64[3] s = {{2, 4, 6}}> {{ y = Reshape (x, s) }}",
    "Flatten": "main (float[2,4,6] x) => (float[2,24] y) { y = Flatten (x) }",
    "Squeeze": "main (float[2,1,6] x) => (float[2,6] y) <int64[1] a = {1}> { y = Squeeze (x, a) }",
    "Unsqueeze": "main (float[2,6] x) => (float[2,1,6] y) <int64[1] a = {1}> { y = Unsqueeze (x, a) }",
    "Expand": "main (float[1,6] x) => (float[4,6] y) <int64[2] s = {4, 6}> { y = Expand (x, s) }",
    "Tile": "main (float[2,6] x) => (float[4,6] y) <int64[2] r = {2, 1}> { y = Tile (x, r) }",
    "Concat": "main (float[2,6] x) => (float[4,6] y) { y = Concat <axis = 0> (x, x) }",
    "Split": "main (float[4,6] x) => (float[2,6] y, float[2,6] z) { y, z = Split <axis = 0> (x) }",
    "Slice": "main (float[4,6] x) => (float[2,6] y) <int64[1] s = {0}, int64[1] e = {2}> { y = Slice (x, s, e) }",
    "Gather": "main (int64[3] i) => (float[3,6] y) <float[8,6] w> { y = Gather (w, i) }",
    "GatherElements": "main (float[4,6] x) => (float[1,2] y) <int64[1,2] i = {1, 2}> { y = GatherElements (x, i) }",
    "GatherND": "main (float[4,6] x) => (float[1,6] y) <int64[1,1] i = {1}> { y = GatherND (x, i) }",
    "ScatterND": "main (float[4,6] x, float[1,6] u) => (float[4,6] y) <int64[1,1] i = {1}> { y = ScatterND (x, i, u) }",
    "ScatterElements": """main (float[4,6] x, float[1,2] u) => (float[4,6] y) <int64[1,2] i = {1, 2}> {
        y = ScatterElements (x, i, u) }""",
    "Pad": f"{X} <int64[6] p = {{0, 0, 0, 0, 0, 0}}> {{ y = Pad (x, p) }}",
    "Trilu": "main (float[4,6] x) => (float[4,6] y) { y = Trilu <upper = 1> (x) }",
    "DepthToSpace": "main (float[1,4,6,6] x) => (float[1,1,12,12] y) { y = DepthToSpace <blocksize = 2> (x) }",
    "SpaceToDepth": "main (float[1,4,6,6] x) => (float[1,16,3,3] y) { y = SpaceToDepth <blocksize = 2> (x) }",
    "ReverseSequence": """main (float[4,6] x) => (float[4,6] y) <int64[6] l = {4, 4, 4, 4, 4, 4}> {
        y = ReverseSequence <time_axis = 0, batch_axis = 1> (x, l) }""",
    "ReduceMean": f"{X} {{ m = ReduceMean <axes = [2]> (x) y = Add (x, m) }}",
    "ReduceMax": f"{X} {{ m = ReduceMax <axes = [2]> (x) y = Add (x, m) }}",
    "ReduceMin": f"{X} {{ m = ReduceMin <axes = [2]> (x) y = Add (x, m) }}",
    "Conv": f"{IMAGE} <float[4,4,3,3] w, float[4] b> {{ y = Conv (x, w, b) }}",
    "ConvTranspose": f"{IMAGE} <float[4,4,3,3] w> {{ y = ConvTranspose (x, w) }}",
    "MaxPool": f"{IMAGE} {{ y = MaxPool <kernel_shape = [2, 2]> (x) }}",
    "AveragePool": f"{IMAGE} {{ y = AveragePool <kernel_shape = [2, 2]> (x) }}",
    "GlobalAveragePool": f"{IMAGE} {{ y = GlobalAveragePool (x) }}",
    "GlobalMaxPool": f"{IMAGE} {{ y = GlobalMaxPool (x) }}",
    "BatchNormalization": f"""{IMAGE} <float[4] s = {{1, 2, 3, 4}}, float[4] v = {{1, 2, 3, 4}}> {{
        y = BatchNormalization (x, s, s, s, v) }}""",
    "InstanceNormalization": f"{IMAGE} <float[4] s = {{1, 2, 3, 4}}> {{ y = InstanceNormalization (x, s, s) }}",
    "LayerNormalization": f"{X} <float[6] s = {{1, 2, 3, 4, 5, 6}}> {{ y = LayerNormalization (x, s) }}",
    "LSTM": """main (float[3,1,4] x) => (float[3,1,1,2] y) <float[1,8,4] w, float[1,8,2] r> {
        y, h, c = LSTM <hidden_size = 2> (x, w, r) }""",
    "GRU": """main (float[3,1,4] x) => (float[3,1,1,2] y) <float[1,6,4] w, float[1,6,2] r> {
        y, h = GRU <hidden_size = 2> (x, w, r) }""",
    "RNN": """main (float[3,1,4] x) => (float[3,1,1,2] y) <float[1,2,4] w, float[1,2,2] r> {
        y, h = RNN <hidden_size = 2> (x, w, r) }""",
    "Resize": """main (float[1,4,3,3] x) => (float[1,4,6,6] y) <float[4] s = {1, 1, 2, 2}> {
        y = Resize (x, , s) }""",
    "TopK": "main (float[4,6] x) => (float[4,2] y) <int64[1] k = {2}> { y, i = TopK (x, k) }",
    "Dropout": f"{X} {{ y, m = Dropout (x) }}",
    "ConstantOfShape": f"{X} {{ s = Shape (x) c = ConstantOfShape (s) y = Add (c, x) }}",
    "Constant": f"{X} {{ c = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]> () y = Add (x, c) }}",
    "Cast": "main (bool[4,6] b, float[4,6] x) => (float[4,6] y) { c = Cast <to = 1> (b) y = Mul (x, c) }",
    "Compress": "main (float[4,6] x) => (float[2,6] y) <bool[4] c = {1, 0, 1, 0}> { y = Compress <axis = 0> (x, c) }",
}  # fmt: skip

CONTRIB = {
    "Gelu": f"{X} {{ y = com.microsoft.Gelu (x) }}",
    "FastGelu": f"{X} {{ y = com.microsoft.FastGelu (x) }}",
    "QuickGelu": f"{X} {{ y = com.microsoft.QuickGelu (x) }}",
    "BiasGelu": f"{X} <float[6] b = {{1, 2, 3, 4, 5, 6}}> {{ y = com.microsoft.BiasGelu (x, b) }}",
    "FusedMatMul": f"{X} <float[6,6] w> {{ y = com.microsoft.FusedMatMul <transB = 1> (x, w) }}",
    "SkipLayerNormalization": f"""{X} <float[6] s = {{1, 2, 3, 4, 5, 6}}> {{
        y = com.microsoft.SkipLayerNormalization (x, x, s) }}""",
    "MultiHeadAttention": """main (float[1,4,8] q, float[1,4,8] k, float[1,4,8] v) => (float[1,4,8] y) {
        y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }""",
}


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
