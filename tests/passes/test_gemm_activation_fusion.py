"""An activation behind a Gemm becomes part of it, on the CPU."""

import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "gemm_activation_fusion"
GEMM = "t = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (a, b, c)"


def model(
    activation: str = "y = Relu (t)", gemm: str = GEMM, *, more: str = "", out: str = "", dtype: str = "float"
) -> str:
    return (
        f"main ({dtype}[N,4] a, {dtype}[3,4] b, {dtype}[3] c{more}) => ({dtype}[N,3] y{out}) {{ {gemm} {activation} }}"
    )


def fused(activation: str, parameters: str = "") -> str:
    return (
        f'y = com.microsoft.FusedGemm <alpha = 0.5, beta = 2.0, transB = 1, activation = "{activation}"{parameters}>'
        " (a, b, c)"
    )


ACTIVATIONS = {
    "Relu (t)": ("Relu", ""),
    "Sigmoid (t)": ("Sigmoid", ""),
    "Tanh (t)": ("Tanh", ""),
    "Softplus (t)": ("Softplus", ""),
    "Softsign (t)": ("Softsign", ""),
    "Elu (t)": ("Elu", ", activation_alpha = 1.0"),
    "Elu <alpha = 0.75> (t)": ("Elu", ", activation_alpha = 0.75"),
    "LeakyRelu (t)": ("LeakyRelu", ", activation_alpha = 0.01"),
    "LeakyRelu <alpha = -0.5> (t)": ("LeakyRelu", ", activation_alpha = -0.5"),
    "ThresholdedRelu <alpha = 0.25> (t)": ("ThresholdedRelu", ", activation_alpha = 0.25"),
    "HardSigmoid <alpha = 0.3> (t)": ("HardSigmoid", ", activation_alpha = 0.3, activation_beta = 0.5"),
    "Selu <gamma = 2.0> (t)": ("Selu", ", activation_alpha = 1.6732632, activation_gamma = 2.0"),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fuses(activation: str) -> None:
    check_rewrites(PASS, model(f"y = {activation}"), fused(*ACTIVATIONS[activation]))


def test_without_c() -> None:
    text = "main (float[2,4] a, float[4,3] b) => (float[2,3] y) { t = Gemm (a, b) y = Relu (t) }"
    check_rewrites(PASS, text, 'y = com.microsoft.FusedGemm <activation = "Relu"> (a, b)')


@pytest.mark.parametrize("shape", ["", "[1]", "[N,1]", "[1,3]", "[N,3]"])
def test_every_shape_of_c(shape: str) -> None:
    text = f"main (float[N,4] a, float[4,3] b, float{shape} c) => (float[N,3] y) {{ t = Gemm (a, b, c) y = Tanh (t) }}"
    check_rewrites(PASS, text, 'y = com.microsoft.FusedGemm <activation = "Tanh"> (a, b, c)')


FUNCTION = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
    main (float[2,4] a, float[4,3] b) => (float[2,3] y) {{ y = local.Dense <s = 0.5> (a, b) }}
    <opset_import: ["" : 17], domain: "local"> Dense <s> (a, b) => (y) {{
        t = Gemm {gemm} (a, b) y = Elu {elu} (t) }}"""


@pytest.mark.parametrize(("gemm", "elu"), [("<alpha: float = @s>", ""), ("", "<alpha: float = @s>")])
def test_keeps_what_the_caller_decides(gemm: str, elu: str) -> None:
    check_keeps(PASS, FUNCTION.format(gemm=gemm, elu=elu), "the function's caller decides alpha")


KEPT = {
    "no Gemm": (
        "no Gemm comes before",
        model(gemm="t = Add (a, a)", activation="u = Relu (t) y = Gemm <transB = 1> (u, b)"),
    ),
    "another activation": (None, model("y = HardSwish (t)")),
    "the result is used elsewhere": (
        "Gemm's result is used elsewhere",
        model("y = Relu (t) z = Neg (t)", out=", float[N,3] z"),
    ),
    "the result is a graph output": ("Gemm's result is used elsewhere", model(out=", float[N,3] t")),
    "double": ("for single precision only", model(dtype="double")),
    "half": ("for single precision only", model(dtype="float16")),
    "for other runtimes": ("no op of the ONNX specification", model(), {"target": "onnx"}),
}


test_keeps = keeps(PASS, KEPT)


def test_keeps_for_other_providers() -> None:
    options = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    check_keeps(PASS, model(), "it serves the CPU", options=options)
