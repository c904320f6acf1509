"""A newer opset is imported where it has an op for what is spelled out, every node stays exact, and it may be."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from ortopt import optimize
from ortopt.instrumentation.explanation import Explanation
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse

PASS = "opset_conversion"
TAIL = "v = ReduceMean <axes = [-1]> (q) w = Add (v, eps) r = Sqrt (w)"
LAYER_NORM = f"""m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Mul (d, d) {TAIL} u = Div (d, r)
    t = Mul (u, s)"""
RMS_NORM = f"q = Mul (x, x) {TAIL} u = Div (x, r) t = Mul (s, u)"


def model(body: str, rest: str = "y = Relu (t)") -> str:
    return f"main (float[N,8] x, float[8] s) => (float[N,8] y) <float eps = {{0.00001}}> {{ {body} {rest} }}"


def opset_of(data: bytes) -> int:
    return next(one.version for one in onnx.load_from_string(data).opset_import if not one.domain)


@pytest.mark.parametrize(
    ("body", "have", "wanted", "op"),
    [
        (LAYER_NORM, 11, 17, "LayerNormalization"),
        (LAYER_NORM, 13, 17, "LayerNormalization"),
        (LAYER_NORM, 17, 17, "LayerNormalization"),
        (RMS_NORM, 13, 23, "RMSNormalization"),
        (RMS_NORM, 17, 23, "RMSNormalization"),
    ],
)
def test_the_opset_is_raised_for_the_op(body: str, have: int, wanted: int, op: str) -> None:
    result = optimize(parse(model(body), opset=have), level=2)
    assert result.verified
    assert op in result.summary.after.ops
    data = to_bytes(result.model)
    assert opset_of(data) == wanted
    onnx.checker.check_model(data)
    assert result.summary.requires.any_runtime


@pytest.mark.parametrize(("opset", "wanted"), [(None, 17), (20, 20), ("latest", 23)])
def test_the_target_onnx_keeps_the_opset_unless_another_is_asked_for(opset: Any, wanted: int) -> None:
    given = parse(model(RMS_NORM), opset=17)
    result = optimize(given, level=2, target="onnx", opset=opset, min_onnxruntime="1.23")
    assert result.verified
    assert opset_of(to_bytes(result.model)) == wanted
    assert ("RMSNormalization" in result.summary.after.ops) == (wanted == 23)


def test_at_level_1_nothing_is_raised() -> None:
    result = optimize(parse(model(RMS_NORM), opset=17), level=1, verify=False)
    assert opset_of(to_bytes(result.model)) == 17
    assert "RMSNormalization" not in result.summary.after.ops


def test_an_op_that_is_not_wanted_raises_nothing() -> None:
    explanation = Explanation([PASS])
    result = optimize(parse(model(RMS_NORM), opset=17), fusions="none", verify=False, observers=[explanation])
    assert opset_of(to_bytes(result.model)) == 17
    assert "--fusions none takes no such op" in explanation.refusals[0].reason


def test_what_nothing_asks_for_is_not_raised() -> None:
    result = optimize(parse(model("t = Mul (x, s)"), opset=13), verify=False)
    assert opset_of(to_bytes(result.model)) == 13


def test_forms_that_moved_are_changed() -> None:
    rest = """p = ReduceMax <axes = [1], keepdims = 1> (t) a, b = Split <axis = 1> (t) c = Concat <axis = 1> (b, a)
        y = Add (c, p)"""
    result = optimize(parse(model(RMS_NORM, rest), opset=13), level=2)
    assert result.verified
    assert opset_of(to_bytes(result.model)) == 23
    (split,) = (node for node in result.model.graph if node.op_type == "Split")
    assert split.attributes["num_outputs"].as_int() == 2
    onnx.checker.check_model(to_bytes(result.model))


@pytest.mark.parametrize(
    ("have", "rest", "fits"),
    [
        (11, "y = Softmax <axis = 1> (t)", True),
        (12, "y = Softmax (t)", True),
        (12, "y = Softmax <axis = 0> (t)", False),
    ],
)
def test_the_older_softmax_is_raised_over_the_last_axis_only(have: int, rest: str, fits: bool) -> None:
    result = optimize(parse(model(LAYER_NORM, rest), opset=have), level=2)
    assert result.verified
    assert opset_of(to_bytes(result.model)) == (17 if fits else have)
    assert ("LayerNormalization" in result.summary.after.ops) is fits


IMAGE = """main (float[1,2,5,5] i, float[N,8] x, float[8] s) => (float[N,8] y, {kind} z)
    <float eps = {{0.00001}}> {{ {body} y = Relu (t) z = {op} }}"""
KEPT = [
    ("AveragePool <kernel_shape = [2,2], strides = [2,2], ceil_mode = 1> (i)", {}, "its meaning changed at opset 19"),
    ("Relu (i)", {"min_onnxruntime": "1.22"}, "ONNX Runtime 1.22 does not read it, 1.23 does"),
    ("RandomUniformLike <seed = 1.0> (i)", {}, "CPUExecutionProvider has no kernel of RandomUniformLike in opset 23"),
    ("Relu (i)", {"opset": 18}, "opset 18 was asked for"),
]


@pytest.mark.parametrize(("op", "options", "because"), KEPT)
def test_where_it_is_not_exact_or_not_allowed_the_pattern_stays(
    op: str, options: dict[str, object], because: str
) -> None:
    explanation = Explanation()
    text = IMAGE.format(body=RMS_NORM, op=op, kind="float[1,2,a,b]")
    result = optimize(parse(text, opset=17), level=2, observers=[explanation], **options)  # type: ignore[arg-type]
    assert result.verified
    assert "Sqrt" in result.summary.after.ops
    assert any(because in refusal.reason for refusal in explanation.refusals if refusal.transformer == PASS)


@pytest.mark.parametrize(
    ("body", "op"), [(LAYER_NORM, "LayerNormalization"), (RMS_NORM, "SimplifiedLayerNormalization")]
)
def test_onnx_runtimes_private_op_is_emitted_where_the_caller_asks(body: str, op: str) -> None:
    settings = {"layer_norm_fusion": {"private_op": True}, "rms_norm_fusion": {"private_op": True}}
    result = optimize(parse(model(body), opset=13), level=2, settings=settings, disable=[PASS])
    assert result.verified
    assert op in result.summary.after.ops
    assert result.summary.requires.only_onnxruntime == (f"ai.onnx::{op}",)


def test_the_opset_stays_where_a_release_is_slow_with_an_op_of_the_newer_one() -> None:
    """ONNX Runtime 1.23 and 1.24 neither fuse a Conv of opset 22 nor lay it out in blocks."""
    body = f"{RMS_NORM} u4 = Unsqueeze (t, ax) k4 = Unsqueeze (u4, ax) y = Conv (k4, w1)"
    text = f"""main (float[2,8] x, float[8] s) => (float[1,1,2,8] y) <float eps = {{0.00001}}, int64[1] ax = {{0}},
        float[1,1,1,1] w1 = {{2.0}}> {{ {body} }}"""
    for release, wanted in (("1.23", 17), ("1.24", 17), ("1.27", 23), (None, 23)):
        listener = Explanation()
        result = optimize(parse(text, opset=17), level=2, min_onnxruntime=release, observers=[listener])
        assert result.verified
        assert opset_of(to_bytes(result.model)) == wanted, release
        reasons = [one.reason for one in listener.refusals if one.transformer == PASS]
        assert (wanted == 23) == (not any("Conv of opset 22 is" in reason for reason in reasons)), reasons
