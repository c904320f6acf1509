"""An activation behind a convolution becomes part of it, on the CPU."""

import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

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


LARGEST = "3.4028234663852886e38"
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


CLIPS = {
    "Clip (t, low, high)": "-0.5, 0.25",
    "Clip (t, low)": f"-0.5, {LARGEST}",
    "Clip (t, , high)": f"-{LARGEST}, 0.25",
    "Clip (t)": f"-{LARGEST}, {LARGEST}",
    "Clip (t, low, low)": "-0.5, -0.5",
}


@pytest.mark.parametrize("clip", CLIPS)
def test_clips(clip: str) -> None:
    used = [f"float {name} = {{{number}}}" for name, number in (("low", -0.5), ("high", 0.25)) if name in clip]
    constants = f"<{', '.join(used)}>" if used else ""
    check_rewrites(PASS, model(f"y = {clip}", constants=constants), fused("Clip", CLIPS[clip]))


@pytest.mark.parametrize(
    ("attributes", "parameters"),
    [("<min = 0.0, max = 0.5>", "0.0, 0.5"), ("<min = 0.0>", f"0.0, {LARGEST}"), ("", f"-{LARGEST}, {LARGEST}")],
)
def test_clips_with_attributes(attributes: str, parameters: str) -> None:
    check_rewrites(PASS, model(f"y = Clip {attributes} (t)"), fused("Clip", parameters), opset=10)


def test_without_a_bias_and_without_attributes() -> None:
    text = """main (float[1,2,5,5] x, float[3,2,3,3] w) => (float[1,3,3,3] y) { t = Conv (x, w) y = Relu (t) }"""
    check_rewrites(PASS, text, fused("Relu", attributes="", inputs="x, w"))


@pytest.mark.parametrize("size", ["5", "5,5,5"])
def test_other_ranks(size: str) -> None:
    kernel, result = size.replace("5", "3"), size.replace("5", "3")
    text = f"""main (float[2,2,{size}] x, float[3,2,{kernel}] w) => (float[2,3,{result}] y) {{
        t = Conv (x, w) y = Tanh (t) }}"""
    check_rewrites(PASS, text, fused("Tanh", attributes="", inputs="x, w"))


def test_automatic_padding_is_kept() -> None:
    text = """main (float[1,2,5,5] x, float[3,2,2,2] w) => (float[1,3,5,5] y) {
        t = Conv <auto_pad = "SAME_UPPER"> (x, w) y = Relu (t) }"""
    check_rewrites(PASS, text, fused("Relu", attributes=', auto_pad = "SAME_UPPER"', inputs="x, w"))


FUNCTION = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
    main (float[1,2,5,5] x, float[3,2,3,3] w) => (float[1,3,3,3] y) {{ y = local.Block <a = 0.5, g = 1> (x, w) }}
    <opset_import: ["" : 17], domain: "local"> Block <a, g> (x, w) => (y) {{
        t = Conv {conv} (x, w) y = LeakyRelu {leaky} (t) }}"""


@pytest.mark.parametrize(
    ("conv", "leaky", "name"),
    [("<group: int = @g>", "", "group"), ("", "<alpha: float = @a>", "alpha")],
)
def test_keeps_what_the_caller_decides(conv: str, leaky: str, name: str) -> None:
    check_keeps(PASS, FUNCTION.format(conv=conv, leaky=leaky), f"the function's caller decides {name}")


KEPT = {
    "no convolution": (
        "no Conv comes before",
        "main (float[1,2,5,5] x, float[2,3,3,3] w) => (float[1,3,7,7] y) { t = ConvTranspose (x, w) y = Relu (t) }",
    ),
    "another activation": (None, model("y = Elu (t)")),
    "the result is used elsewhere": (
        "Conv's result is used elsewhere",
        model("y = Relu (t) z = Neg (t)", out=", float[N,6,5,5] z"),
    ),
    "the result is a graph output": ("Conv's result is used elsewhere", model(out=", float[N,6,5,5] t")),
    "a bound that is computed": (
        "not a constant",
        model("low = Neg (l) y = Clip (t, low)", more=", float l"),
    ),
    "a bound that can be overridden": (
        "not a constant",
        model("y = Clip (t, low)", more=", float low", constants="<float low = {0.5}>"),
    ),
    "bounds out of order": (
        "the bounds are out of order",
        model("y = Clip (t, low, high)", constants="<float low = {0.5}, float high = {-0.5}>"),
    ),
    "double": ("for single precision only", model(dtype="double")),
    "half": ("for single precision only", model(dtype="float16")),
    "for other runtimes": ("no op of the ONNX specification", model(), {"target": "onnx"}),
}


test_keeps = keeps(PASS, KEPT)


def test_keeps_for_other_providers() -> None:
    options = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    check_keeps(PASS, model(), "it serves the CPU", options=options)


UNIT = """main (uint8[1,2,5,5] q) => ({out}) <float s = {{0.1}}, int8[3,2,1,1] v = {{1, 2, 3, 4, 5, 6}}> {{
    x = DequantizeLinear (q, s) w = DequantizeLinear (v, s) t = Conv (x, w) a = {activation} (t) {end} }}"""


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_keeps_what_a_quantized_kernel_can_do(activation: str) -> None:
    text = UNIT.format(out="uint8[1,3,5,5] y", activation=activation, end="y = QuantizeLinear (a, s)")
    check_keeps(PASS, text, "a quantized kernel can do all of it")


@pytest.mark.parametrize(
    ("activation", "out", "end"),
    [
        ("Sigmoid", "uint8[1,3,5,5] y", "y = QuantizeLinear (a, s)"),
        ("Relu", "float[1,3,5,5] y", "y = Identity (a)"),
        ("Relu", "uint8[1,3,5,5] y, float[1,3,5,5] a", "y = QuantizeLinear (a, s)"),
    ],
)
def test_units_that_no_quantized_kernel_stands_for(activation: str, out: str, end: str) -> None:
    text = UNIT.format(out=out, activation=activation, end=end)
    check_rewrites(PASS, text, ops={activation: 0, "Conv": 0, "com.microsoft::FusedConv": 1})
