"""Gelu(x + bias) becomes BiasGelu(x, bias)."""

import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "bias_gelu_fusion"
GELU = "y = com.microsoft.Gelu (t)"
FUSED = "y = com.microsoft.BiasGelu (x, b)"


def model(
    body: str = f"t = Add (x, b) {GELU}",
    *,
    x: str = "N,3,8",
    b: str = "8",
    y: str = "N,3,8",
    out: str = "",
    dtype: str = "float",
) -> str:
    return f"main ({dtype}[{x}] x, {dtype}[{b}] b) => ({dtype}[{y}] y{out}) {{ {body} }}"


@pytest.mark.parametrize("add", ["Add (x, b)", "Add (b, x)"])
@pytest.mark.parametrize("x", ["N,3,8", "N,8", "2,N,3,8", "N,0,8", "N,8,8"])
def test_fuses(add: str, x: str) -> None:
    check_rewrites(PASS, model(f"t = {add} {GELU}", x=x, y=x), FUSED)


@pytest.mark.parametrize("approximate", ["", '<approximate = "none">'])
def test_the_standard_op(approximate: str) -> None:
    check_rewrites(PASS, model(f"t = Add (x, b) y = Gelu {approximate} (t)"), FUSED, opset=20)


def test_the_tanh_form() -> None:
    fast = "y = com.microsoft.FastGelu (x, b)"
    check_rewrites(PASS, model('t = Add (x, b) y = Gelu <approximate = "tanh"> (t)'), fast, opset=20)
    check_rewrites(PASS, model("t = Add (x, b) y = com.microsoft.FastGelu (t)"), fast)


def test_one_dimension() -> None:
    check_rewrites(PASS, model(x="8", y="8"), FUSED)


def test_a_symbolic_last_dimension() -> None:
    check_rewrites(PASS, model(x="N,M", b="M", y="N,M"), FUSED)


NO_ROW = "no operand is a row of the last dimension"
KEPT = {
    "a scalar": (NO_ROW, model().replace("float[8] b", "float b")),
    "one element": (NO_ROW, model(b="1")),
    "more dimensions": (NO_ROW, model(b="3,8")),
    "a column": (NO_ROW, model(b="3,1")),
    "the row widens x": (NO_ROW, model(x="N,3,1")),
    "another symbol": (NO_ROW, model(x="N,M", b="K", y="N,M")),
    "an unknown shape": ("the shape is unknown", model(x="", y="").replace("[]", "[]")),
    "no sum": ("no Add comes before", model(f"t = Mul (x, b) {GELU}")),
    "the sum is a graph output": ("Add's result is used elsewhere", model(out=", float[N,3,8] t")),
    "the sum is used elsewhere": (
        "Add's result is used elsewhere",
        model(f"t = Add (x, b) z = Neg (t) {GELU}", out=", float[N,3,8] z"),
    ),
    "a bias is there": ("it has a bias", model("t = Add (x, b) y = com.microsoft.FastGelu (t, b)")),
}


test_keeps = keeps(PASS, KEPT)


def test_keeps_for_other_runtimes() -> None:
    text = model("t = Add (x, b) y = Gelu (t)")
    check_keeps(PASS, text, "no op of the ONNX specification", target="onnx", opset=20)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double"])
def test_types_that_another_provider_has_kernels_for(dtype: str) -> None:
    options = Options(providers=("CUDAExecutionProvider",))
    check_rewrites(PASS, model(dtype=dtype), FUSED, options=options, numbers=False)


def test_keeps_what_is_faster_apart() -> None:
    because = "on the CPU, BiasGelu is 1.23× slower to 1.11× faster than Add and Gelu; --fusions all takes it anyway"
    for x in ("N,3,8", "2,8"):
        check_keeps(PASS, model(x=x, y=x), because, options=Options())
    check_rewrites(PASS, model(x="1,1,8", y="1,1,8"), FUSED, options=Options())
