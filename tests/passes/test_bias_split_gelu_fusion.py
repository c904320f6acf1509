"""left · Gelu(right) of a split sum becomes BiasSplitGelu, on CUDA."""

import pytest

from ortopt.options import Fusions, Options
from ortopt.testing import check_rewrites

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
