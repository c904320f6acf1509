"""What ONNX Runtime runs is accepted; what nothing can run is in tests/serialization/refused/."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from ortopt.serialization.checks.signatures import signature
from ortopt.serialization.load import load
from tests.whole_models.unverified import check_levels, session

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "f": 1]> '
UNARY = "main (float[2,3] x) => (float[a,b] y) {{ {} }}"
IF = "main (bool c, float[2] x) => (float[2] y) {{ y = If (c) <then_branch = {}, else_branch = {}> }}"
PLAIN = "b () => (float[2] u) { u = Abs (x) }"
LOOP = """main (int64 n, bool c, float[2] x) => (float[2] y) {
    y = Loop (n, c, x) <body = b (int64 i, bool ci, float[2] v)
    => (bool co, float[2] vo) { co = Identity (ci) vo = Neg (v) }> }"""
SCAN = """main (float[2] s, float[3,2] x) => (float[2] y, float[p,q] z) { y, z = Scan <num_scan_inputs = 1, body =
    b (float[2] a, float[2] e) => (float[2] so, float[2] k) { so = Add (a, e) k = Neg (so) }> (s, x) }"""
CALL = (
    'main (float[2] x) => (float[2] y) {{ y = f.F (x{}) }} <domain: "f", opset_import: ["": 17]> F (x) => (y) {{ {} }}'
)


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def changed(text: str, change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    made = parsed(text)
    change(made)
    return made


RUN: dict[str, onnx.ModelProto] = {
    "optional operands left out": parsed(UNARY.format("y = Clip (x, , )")),
    "a note of a tool": changed(
        UNARY.format("y = Softmax <axis = 1> (x)"), lambda made: setattr(made.graph.node[0].attribute[0], "name", "__a")
    ),
    "a Constant with a note": parsed(UNARY.format("w = Constant <value_float = 1.0, note = 1> () y = Add (x, w)")),
    "a Constant of two values": parsed(
        UNARY.format("w = Constant <value_float = 1.0, value_int = 1> () y = Add (x, w)")
    ),
    "a Constant declared otherwise": parsed(
        "main (float[2] x) => (float[2] y, int64[1] w) { w = Constant <value_floats = [1.0]> () y = Add (x, w) }"
    ),
    "an input returned as another type": changed(
        "main (float[2] x) => (float[2] x) { }",
        lambda made: setattr(made.graph.output[0].type.tensor_type, "elem_type", 7),
    ),
    "an output declared in another shape": parsed("main (float[2,3] x) => (float[7] y) { y = Relu (x) }"),
    "an output without a type": changed(
        UNARY.format("y = Relu (x)"), lambda made: made.graph.output[0].ClearField("type")
    ),
    "an initializer declared otherwise": changed(
        "main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }",
        lambda made: made.graph.value_info.append(helper.make_tensor_value_info("w", 7, [2])),
    ),
    "branches of different ranks": parsed(
        IF.format("b () => (float[2,1] u) { k = Constant <value_ints = [2, 1]> () u = Reshape (x, k) }", PLAIN)
    ),
    "a dimension that is named": parsed("main (float[2,N] x) => (float[] y) { a = Transpose (x) y = MatMul (x, a) }"),
    "a call with an attribute that the function does not have": changed(
        CALL.format("", "y = Neg (x)"), lambda made: made.graph.node[0].attribute.add(name="k", i=1, type=2)
    ),
    "attributes of the model's opset in a function": changed(
        CALL.format("", "y = ReduceSum <axes = [0]> (x)").replace('"": 17, "com', '"": 12, "com'),
        lambda made: setattr(made.opset_import[0], "version", 12),
    ),
    "an op before its opset": changed(
        "main (float[2,3] x, float[3] w) => (float[a,b] y) { y = LayerNormalization (x, w) }",
        lambda made: setattr(made.opset_import[0], "version", 16),
    ),
    "powers of other types": parsed("main (float[2] x, int64[2] w) => (float[2] y) { y = Pow (x, w) }"),
}
FEEDS = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}


@pytest.mark.parametrize("name", RUN)
def test_what_runs_is_accepted(name: str) -> None:
    model = RUN[name]
    feeds = {
        one.name: np.ones([size if isinstance(size, int) else 2 for size in one.shape], FEEDS[one.type])
        for one in session(model).get_inputs()
    }
    check_levels(model, feeds)


UNKNOWN = (
    "main (float[2] x) => (float[2] y) { y = NoSuchOperator <a = 1> (x, x) }",
    "main (float[2] x) => (float[2] y) { y = com.microsoft.NoSuchOperator (x, x) }",
    "main (float[2] x) => (int64[2] y) { y = f.Unknown (x) }",
)


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known_is_welcome(text: str) -> None:
    assert load(parsed(text))


def test_opsets_of_the_future_are_welcome() -> None:
    made = parsed(UNARY.format("y = Relu (x, x)"))
    made.opset_import[0].version = 1000
    assert load(made)
    assert signature("", "Relu", 1000) is None


def test_an_old_scan_has_lengths_before_its_states() -> None:
    text = SCAN.replace("(float[2] s, float[3,2] x)", "(float[1,2] s, float[1,3,2] x)").replace(
        "> (s, x)", "> (, s, x)"
    )
    made = parsed(text)
    made.opset_import[0].version = 8
    assert load(made)
