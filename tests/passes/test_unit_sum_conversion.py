"""Units of which ONNX Runtime would make slow kernels are kept apart from their quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortopt import optimize
from ortopt.options import Fusions, Options, Target
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.quantized_units import Tensor, run, unit
from tests.passes.tables import keeps
from tests.passes.test_bias_sum_conversion import loaded

PASS = "unit_sum_conversion"
SOFTMAX = unit("t = Softmax (x_x)", Tensor("8,16,16", 0.00392, 0), x=Tensor("8,16,16"))
POOL = unit(
    "t = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x_x)", Tensor("1,2,8,8"), x=Tensor("1,2,8,8")
)
KERNELS = {SOFTMAX: "QLinearSoftmax", POOL: "QLinearAveragePool"}


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_softmax(kind: str) -> None:
    check_rewrites(PASS, SOFTMAX.replace("uint8", kind), ops={"Sum": 1, "Softmax": 1})


def test_the_window_is_what_it_was() -> None:
    check_rewrites(PASS, POOL, ops={"Sum": 1, "AveragePool": 1})


@pytest.mark.parametrize("text", KERNELS, ids=KERNELS.values())
def test_onnxruntime_leaves_the_result_alone(text: str, tmp_path: Path) -> None:
    """And does what this pass keeps it from: a release that no longer does needs no such pass."""
    original = parse(text, opset=17)
    assert KERNELS[text] in loaded(original, tmp_path)
    result = optimize(original, level=3, verify=False).model
    assert "Sum" in loaded(result, tmp_path)
    assert KERNELS[text] not in loaded(result, tmp_path)
    x = {"x": np.random.default_rng(0).integers(0, 256, original.graph.inputs[0].shape.numpy(), np.uint8)}
    np.testing.assert_array_equal(run(parse(text), x)[0], run(result, x)[0])
    again = optimize(result, level=3, verify=False)
    assert again.summary.before.nodes == again.summary.after.nodes


KEPT = {
    "no DequantizeLinear comes before": SOFTMAX.replace("t = Softmax (x_x)", "u = Exp (x_x) t = Softmax (u)"),
    "no QuantizeLinear comes after": SOFTMAX.replace("t = Softmax (x_x)", "u = Softmax (x_x) t = Exp (u)"),
    "the value is used elsewhere": SOFTMAX.replace("out)", "out, float[8,16,16] t)"),
    "no kernel of these integers": SOFTMAX.replace("uint8 y_z", "int8 y_z"),
    "single precision only": """main (uint8[8,9] x, float16 s, uint8 z) => (float16[8,9] out) {
        d = DequantizeLinear (x, s, z) t = Softmax (d) y = QuantizeLinear (t, s, z)
        out = DequantizeLinear (y, s, z) }""",
}


test_keeps = keeps(PASS, KEPT, opset=19)


def test_the_table_decides() -> None:
    """A kernel of few elements is as fast as a copy more."""
    few = SOFTMAX.replace("8,16,16", "1,16,16")
    check_keeps(PASS, few, "Softmax apart from its quantization is", options=Options())
    check_rewrites(PASS, SOFTMAX, ops={"Sum": 1}, options=Options(), numbers=False)
    check_keeps(PASS, SOFTMAX, "takes no such op", options=Options(fusions=Fusions.NONE))


def test_other_runtimes() -> None:
    check_keeps(PASS, SOFTMAX, None, target=Target.ONNX)
