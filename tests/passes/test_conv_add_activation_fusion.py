"""A residual and an activation behind a convolution become part of it, on the CPU, where all fusions are wanted."""

from ortopt.options import Options
from ortopt.testing import check_keeps

PASS = "conv_add_activation_fusion"
ATTRIBUTES = "pads = [1,1,1,1], group = 2"


def model(end: str = "s = Add (t, z) y = Relu (s)", **more: str) -> str:
    kind, z, x = more.get("kind", "float"), more.get("z", "N,6,5,5"), more.get("x", "N,4,5,5")
    out, also = more.get("out", "N,6,5,5"), more.get("also", "")
    return f"""main ({kind}[{x}] x, {kind}[6,2,3,3] w, {kind}[6] b, {kind}[{z}] z) => ({kind}[{out}] y{also})
        {{ t = Conv <{ATTRIBUTES}> (x, w, b) {end} }}"""


def test_keeps_for_other_providers() -> None:
    options = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    check_keeps(PASS, model(), "it serves the CPU", options=options)
