"""An activation behind a Gemm becomes part of it, on the CPU."""

import pytest

from ortopt.testing import check_rewrites

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
