"""left · Gelu(right) of a split sum becomes BiasSplitGelu, on CUDA."""

import pytest

from ortopt.options import Fusions, Options
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "bias_split_gelu_fusion"
CUDA = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"), fusions=Fusions.ALL)
GATE = "g = com.microsoft.Gelu (r) y = Mul (l, g)"


def model(end: str = GATE, **more: str) -> str:
    kind, x, half = more.get("kind", "float"), more.get("x", "2,7,2560"), more.get("half", "1280")
    out = more.get("out", f"2,7,{half}")
    bias, also = more.get("b", str(2 * int(half))), more.get("also", "")
    return f"""main ({kind}[{x}] x, {kind}[{bias}] b) => ({kind}[{out}] y{also})
        {{ t = Add ({more.get("operands", "x, b")}) l, r = Split <axis = {more.get("axis", "-1")}> (t) {end} }}"""


@pytest.mark.parametrize("end", [GATE, "g = com.microsoft.Gelu (r) y = Mul (g, l)"])
@pytest.mark.parametrize("operands", ["x, b", "b, x"])
@pytest.mark.parametrize("kind", ["float", "float16"])
def test_fuses(end: str, operands: str, kind: str) -> None:
    text = model(end, operands=operands, kind=kind)
    check_rewrites(PASS, text, "y = com.microsoft.BiasSplitGelu (x, b)", options=CUDA, numbers=False)


def test_the_standard_op() -> None:
    text = model("g = Gelu (r) y = Mul (l, g)").replace("Split <axis = -1>", "Split <axis = 2, num_outputs = 2>")
    check_rewrites(PASS, text, "y = com.microsoft.BiasSplitGelu (x, b)", opset=20, options=CUDA, numbers=False)


KEPT = {
    "a size without a kernel": ("there is no kernel for this size", model(x="2,7,64", half="32")),
    "two dimensions": ("not split along the last of three dimensions", model(x="7,2560", out="7,1280")),
    "another axis": (
        "not split along the last of three dimensions",
        model(x="2,7,1280", b="1280", axis="0", out="1,7,1280"),
    ),
    "the halves the other way": ("it is no gate of two halves", model("g = com.microsoft.Gelu (l) y = Mul (r, g)")),
    "another activation": (None, model("g = Sigmoid (r) y = Mul (l, g)")),
    "another product": ("no Split comes before", model("n = Neg (l) g = com.microsoft.Gelu (r) y = Mul (n, g)")),
    "a bias of another shape": ("it is no bias of the last dimension", model(b="7,1")),
    "a dimension that may be 0": ("a dimension may be 0", model(x="N,7,2560", out="N,7,1280")),
    "a half is needed": ("a half is used elsewhere", model(also=", float[2,7,1280] l")),
}


test_keeps = keeps(PASS, KEPT, options=CUDA)


def test_keeps_an_approximate_gelu() -> None:
    text = model('g = Gelu <approximate = "tanh"> (r) y = Mul (l, g)')
    text = text.replace("Split <axis = -1>", "Split <axis = 2, num_outputs = 2>")
    check_keeps(PASS, text, "the Gelu is approximate", opset=20, options=CUDA)
