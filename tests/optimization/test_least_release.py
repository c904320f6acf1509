"""Results for the oldest ONNX Runtime that is asked for: what it reads, and what cannot be met."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from ortopt import VerificationError, optimize
from ortopt.analysis import releases
from ortopt.api import make_options, new_optimization
from ortopt.serialization.opset_imports import METADATA_FROM_IR
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse

pytestmark = pytest.mark.usefixtures("models_run_here")

MODEL = "main (float[2,3] x) => (float[2,3] y) { i = Identity (x) y = Relu (i) }"


@pytest.mark.parametrize(("least", "opset", "version"), [("1.17", 17, 9), ("1.18", 17, 10), ("1.18", 21, 10)])
def test_the_ir_version_is_lowered_where_nothing_needs_it(least: str, opset: int, version: int) -> None:
    result = optimize(parse(MODEL, opset), min_onnxruntime=least, verify=False)
    assert result.model.ir_version == version


def test_element_types_need_their_ir_version() -> None:
    text = "main (uint4[4] x, float s) => (float[4] y) { y = DequantizeLinear (x, s) }"
    assert releases.needed_ir_version(parse(text, 21)) == 10
    assert releases.needed_ir_version(parse(MODEL, 17)) == 8


def test_a_model_of_an_ir_version_that_is_not_read_here_is_verified(tmp_path: Path) -> None:
    proto = onnx.load_from_string(to_bytes(parse(MODEL, 17)))
    proto.ir_version = releases.newest_ir(releases.installed()) + 1
    path = tmp_path / "new.onnx"
    onnx.save(proto, path)
    result = optimize(path)
    assert result.verified
    assert result.model.ir_version == METADATA_FROM_IR


def test_what_cannot_be_met_is_a_warning_with_the_node() -> None:
    text = """main (float[2,3,4] x, float[2,1,3,3] b) => (float[2,3,4] y) {
        [attend] y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, "", "", b) }"""
    with pytest.warns(UserWarning, match=r"1\.20 cannot be met: this form of com\.microsoft::MultiHeadAttention needs"):
        optimize(parse(text), min_onnxruntime="1.20", verify=False)
    with pytest.warns(UserWarning, match=r"1\.17 cannot be met: opset 21 needs ONNX Runtime 1\.18"):
        optimize(parse(MODEL, 21), min_onnxruntime="1.17", verify=False)


def test_it_is_an_error_where_a_result_must_be_what_was_asked_for() -> None:
    run = new_optimization(parse(MODEL, 21), make_options(min_onnxruntime="1.17"))
    with pytest.raises(VerificationError, match="cannot be met"):
        run.run(require_verified=True)
