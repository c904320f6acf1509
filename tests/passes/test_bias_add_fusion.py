"""(x + bias) + residual becomes BiasAdd, on CUDA."""

import pytest

from ortopt.options import Fusions, Options
from ortopt.testing import check_keeps, check_rewrites

PASS = "bias_add_fusion"
CUDA = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"), fusions=Fusions.ALL)


def model(nodes: str = "t = Add (x, b) y = Add (t, s)", **more: str) -> str:
    kind, x = more.get("kind", "float"), more.get("x", "2,7,32")
    return f"""main ({kind}[{x}] x, {kind}[{more.get("b", "32")}] b, {kind}[{more.get("s", x)}] s)
        => ({kind}[{more.get("out", x)}] y{more.get("also", "")}) {{ {nodes} }}"""


@pytest.mark.parametrize("first", ["Add (x, b)", "Add (b, x)"])
@pytest.mark.parametrize("second", ["Add (t, s)", "Add (s, t)"])
@pytest.mark.parametrize("kind", ["float", "float16"])
def test_fuses(first: str, second: str, kind: str) -> None:
    text = model(f"t = {first} y = {second}", kind=kind)
    check_rewrites(PASS, text, "y = com.microsoft.BiasAdd (x, b, s)", options=CUDA, numbers=False)


KEPT = {
    "two dimensions": ("the rank is not 3", model(x="7,32")),
    "four dimensions": ("the rank is not 3", model(x="2,4,7,32")),
    "a bias of another shape": ("it is no bias of the last dimension", model(b="7,1")),
    "a residual that repeats": ("the residual has another shape", model(s="1,7,32", out="2,7,32")),
    "a dimension that may be 0": ("a dimension may be 0", model(x="N,7,32")),
    "one sum": ("no operand comes from Add", model("t = Mul (x, b) y = Add (t, s)")),
    "the sum is needed": ("Add's result is used elsewhere", model(also=", float[2,7,32] t")),
    "double": ("no provider has a kernel of BiasAdd for double", model(kind="double")),
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    because, text = KEPT[case]
    check_keeps(PASS, text, because if case != "double" else None, options=CUDA)
