"""A residual and an activation behind a convolution become part of it, on the CPU, where all fusions are wanted."""

import pytest

from ortopt.options import Options
from ortopt.testing import all_fusions, check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "conv_add_activation_fusion"
ATTRIBUTES = "pads = [1,1,1,1], group = 2"


def model(end: str = "s = Add (t, z) y = Relu (s)", **more: str) -> str:
    kind, z, x = more.get("kind", "float"), more.get("z", "N,6,5,5"), more.get("x", "N,4,5,5")
    out, also = more.get("out", "N,6,5,5"), more.get("also", "")
    return f"""main ({kind}[{x}] x, {kind}[6,2,3,3] w, {kind}[6] b, {kind}[{z}] z) => ({kind}[{out}] y{also})
        {{ t = Conv <{ATTRIBUTES}> (x, w, b) {end} }}"""


def fused(activation: str = "", parameters: str = "", operands: str = "x, w, b, z") -> str:
    applied = f', activation = "{activation}"' if activation else ""
    given = f", activation_params = [{parameters}]" if parameters else ""
    return f"y = com.microsoft.FusedConv <{ATTRIBUTES}{applied}{given}> ({operands})"


@pytest.mark.parametrize("addition", ["Add (t, z)", "Add (z, t)"])
def test_fuses(addition: str) -> None:
    check_rewrites(PASS, model(f"s = {addition} y = Relu (s)"), fused("Relu"))


ACTIVATIONS = {
    "Sigmoid (s)": ("Sigmoid", ""),
    "Tanh (s)": ("Tanh", ""),
    "LeakyRelu <alpha = 0.25> (s)": ("LeakyRelu", "0.25"),
    "HardSigmoid <alpha = 0.25, beta = 0.75> (s)": ("HardSigmoid", "0.25, 0.75"),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str) -> None:
    check_rewrites(PASS, model(f"s = Add (t, z) y = {activation}"), fused(*ACTIVATIONS[activation]))


def test_without_an_activation() -> None:
    check_rewrites(PASS, model("y = Add (t, z)"), fused())


def test_another_activation_stays() -> None:
    check_rewrites(PASS, model("s = Add (t, z) y = Elu (s)"), ops={"com.microsoft::FusedConv": 1, "Elu": 1, "Add": 0})


def test_a_sum_that_is_needed() -> None:
    text = model("s = Add (t, z) y = Relu (s)", also=", float[N,6,5,5] s")
    check_rewrites(PASS, text, ops={"com.microsoft::FusedConv": 1, "Relu": 1, "Add": 0})


def test_without_a_bias() -> None:
    text = """main (float[1,2,5,5] x, float[3,2,3,3] w, float[1,3,3,3] z) => (float[1,3,3,3] y) {
        t = Conv (x, w) s = Add (t, z) y = Relu (s) }"""
    check_rewrites(PASS, text, 'y = com.microsoft.FusedConv <activation = "Relu"> (x, w, , z)')


KEPT = {
    "a residual that repeats": ("what is added has another shape", model(z="6,1,1")),
    "another batch": ("what is added has another shape", model(z="M,6,5,5")),
    "a residual that enlarges": ("what is added has another shape", model(x="1,4,5,5", z="2,6,5,5", out="2,6,5,5")),
    "no convolution": ("no operand comes from Conv", model("n = Neg (t) s = Add (n, z) y = Relu (s)")),
    "itself": ("it is added to itself", model("s = Add (t, t) y = Add (s, z)")),
    "the convolution is needed": ("Conv's result is used elsewhere", model(also=", float[N,6,5,5] t")),
    "double": ("for single precision only", model(kind="double")),
}


test_keeps = keeps(PASS, KEPT)


def test_keeps_where_it_loses() -> None:
    check_keeps(PASS, model(), "on the CPU, FusedConv with a sum is", options=Options())
    check_rewrites(PASS, model(), fused("Relu"), options=all_fusions())


def test_keeps_for_other_providers() -> None:
    options = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    check_keeps(PASS, model(), "it serves the CPU", options=options)
