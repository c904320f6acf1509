"""A run on a result finds nothing left to do, and writes the same bytes: models whose results once were not done."""

import onnx
import pytest

from ortopt import optimize
from ortopt.graph.save import to_bytes

MODELS = {
    "the input of a Concat becomes better known by a Reshape that goes": """
        main (float[S,S] x, float[4,4] a, float[4,4] b) => (float[P,S] y, float[Q,R] z)
            <float[2,2] t, int64[1] k = {-1}> {
            t = Transpose <perm = [1, 0]> (x) m = MatMul (a, b) c = Concat <axis = -1> (m, t, x)
            s = Shape <end = 2, start = 1> (t) n = Concat <axis = 0> (k, s) z = Reshape (t, n)
            d = Add (c, c) y = Transpose <perm = [1, 0]> (d) }""",
    "the input of a Gather is better known than what it was computed from": """
        main (double[2,1] x) => (double[A,1] y, double[1,B] z) <double[1,1] c = {-1.261}, int64[1] i = {0}> {
            a = Add (x, c) y = Transpose <perm = [0, 1]> (a) g = Gather <axis = 1> (y, i)
            z = Transpose <perm = [1, 0]> (g) }""",
    "two equal values of which one is an output that declares less": """
        main (float[N,2,4,4] x) => (float[A,2,4,4] y, float[B,2,4,4] z)
            <int64[1] k = {0}, int64[1] two = {2}, int64[1] four = {4}> {
            a = Mul (x, x) y = Mul (x, x) s = Shape (a) n = Gather <axis = 0> (s, k)
            f = Shape <end = 3, start = 2> (a) e = Concat <axis = 0> (n, two, f, four) z = Expand (y, e) }""",
    "the constant of a CastLike is known late": """
        main (int64[B,S] x, int64 start) => (int64[N] y) <float one = {1.0}> {
            s = Shape <end = 2, start = 1> (x) n = Squeeze (s) a = Abs (one) d = CastLike (a, n)
            y = Range (start, n, d) }""",
    "types are told in a nested graph only": """
        main (float[N,6] x) => (float[M,6] y) <int64 three = {3}> {
            y = Loop (three, "", x) <body = b (int64 i, bool c, float[K,6] v) => (bool d, float[L,6] w)
                <float[N,6] s> { s = Softmax <axis = 0> (v) d = Identity (c) w = Sin (s) }> }""",
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("level", "target"), [(1, "onnx"), (3, "ort"), (4, "ort")])
def test_a_second_run_changes_nothing(model: str, level: int, target: str) -> None:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {MODELS[model]}')
    proto.graph.value_info.add(name="unused").type.tensor_type.elem_type = 1  # types are told
    made = to_bytes(optimize(proto, level=level, target=target, verify=False).model)  # type: ignore[arg-type]
    again = optimize(made, level=level, target=target, verify=False)  # type: ignore[arg-type]
    assert [one.transformer for one in again.summary.passes] == []
    assert to_bytes(again.model) == made
