"""An activation behind a convolution becomes part of it, on the CPU."""

import pytest

from ortopt.testing import check_rewrites

PASS = "conv_activation_fusion"
ATTRIBUTES = "pads = [1,1,1,1], strides = [2,2], dilations = [1,1], group = 2"


def model(
    activation: str = "y = Relu (t)",
    conv: str = f"t = Conv <{ATTRIBUTES}> (x, w, b)",
    *,
    constants: str = "",
    more: str = "",
    out: str = "",
    dtype: str = "float",
) -> str:
    return f"""main ({dtype}[N,4,9,9] x, {dtype}[6,2,3,3] w, {dtype}[6] b{more}) => ({dtype}[N,6,5,5] y{out})
        {constants} {{ {conv} {activation} }}"""


def fused(activation: str, parameters: str = "", attributes: str = f", {ATTRIBUTES}", inputs: str = "x, w, b") -> str:
    given = f", activation_params = [{parameters}]" if parameters else ""
    return f'y = com.microsoft.FusedConv <activation = "{activation}"{given}{attributes}> ({inputs})'


ACTIVATIONS = {
    "Relu (t)": ("Relu", ""),
    "Sigmoid (t)": ("Sigmoid", ""),
    "Tanh (t)": ("Tanh", ""),
    "LeakyRelu (t)": ("LeakyRelu", "0.01"),
    "LeakyRelu <alpha = 0.25> (t)": ("LeakyRelu", "0.25"),
    "HardSigmoid (t)": ("HardSigmoid", "0.2, 0.5"),
    "HardSigmoid <alpha = 0.25, beta = 0.75> (t)": ("HardSigmoid", "0.25, 0.75"),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fuses(activation: str) -> None:
    check_rewrites(PASS, model(f"y = {activation}"), fused(*ACTIVATIONS[activation]))
