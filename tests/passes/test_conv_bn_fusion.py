"""BatchNormalization after a convolution goes into its weights; the numbers stay."""

import numpy as np
import onnx_ir as ir

from ortopt.testing import check_rewrites, parse

PASS = "conv_bn_fusion"


def constants(*tensors: tuple[str, str, tuple[int, ...]], seed: int = 0) -> str:
    """Random positive initializers in text."""
    random = np.random.default_rng(seed)
    return ", ".join(
        f"{dtype}[{','.join(map(str, shape))}] {name} = {{{', '.join(f'{n:.4f}' for n in random.uniform(0.5, 2, shape).flat)}}}"  # noqa: E501 -- one text
        for name, dtype, shape in tensors
    )


def batch_norm(channels: int) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    return tuple((name, "float", (channels,)) for name in ("g", "b", "m", "v"))


def test_shared_weights_are_copied() -> None:
    weights = constants(("w", "float", (2, 2, 1, 1)), *batch_norm(2))
    model = check_rewrites(
        PASS,
        before=f"""main (float[1,2,3,3] x) => (float[1,2,3,3] y, float[1,2,3,3] z) <{weights}> {{
            a = Conv (x, w) y = BatchNormalization (a, g, b, m, v) z = Conv (x, w) }}""",
        ops={"Conv": 2, "BatchNormalization": 0},
    )
    assert len(model.graph.initializers) == 3  # w, and the new weights and bias


def test_float16_is_computed_in_float64_and_rounded_once() -> None:
    model = parse("""main (float16[1,1,2] x) => (float16[1,1,2] y)
        <float16[1,1,1] w = {15360}, float16[1] g = {15361}, float16[1] b = {0}, float16[1] m = {0},
         float16[1] v = {15363}> { a = Conv (x, w) y = BatchNormalization <epsilon = 0.0> (a, g, b, m, v) }""")
    model = check_rewrites(PASS, before=model, ops={"Conv": 1}, numbers=False)  # there is no float16 Conv on the CPU
    (node,) = model.graph
    weight = node.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    assert weight.dtype == ir.DataType.FLOAT16
    expected = np.float16((1 + 2**-10) / np.sqrt(1 + 3 * 2**-10))
    assert weight.const_value.numpy().reshape(-1)[0] == expected


def test_double_keeps_all_its_digits() -> None:
    model = check_rewrites(
        PASS,
        before="""main (double[1,1,2] x) => (double[1,1,2] y) <double[1,1,1] w = {0.1}, double[1] k = {0.7},
            double[1] g = {0.3}, double[1] b = {0.2}, double[1] m = {0.9}, double[1] v = {1.7}> {
            a = Conv (x, w, k) y = BatchNormalization <epsilon = 0.5> (a, g, b, m, v) }""",
        ops={"Conv": 1, "BatchNormalization": 0},
        numbers=False,  # there is no double Conv on the CPU
    )
    (node,) = model.graph
    weight, bias = (value.const_value.numpy().item() for value in node.inputs[1:])
    scale = 0.3 / np.sqrt(1.7 + 0.5)
    np.testing.assert_allclose([weight, bias], [0.1 * scale, (0.7 - 0.9) * scale + 0.2], rtol=4e-16)
