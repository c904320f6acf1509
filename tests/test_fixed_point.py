"""What `optimize` makes is a fixed point: a second run on the saved result leaves every byte."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ortopt import optimize
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded
from ortopt.serialization.save import to_bytes
from tests.rules import Swap

MODELS = {
    "a constant that is folded late tells its users a shape": """<ir_version: 10, opset_import: ["" : 20]>
        main (float[2,7,256] x, int64[1] form) => (float[] y) <int64[3] target = {2, 7, 1}> {
        minus = Constant <value = int64[1] {-1}> ()
        axes = Reshape (minus, form)
        mean = ReduceMean <keepdims = 1> (x, axes)
        flat = Flatten <axis = 3> (mean)
        back = Reshape (flat, target)
        y = Sqrt (back)
    }""",
    "a folded float is an integer behind a cast": """<ir_version: 10, opset_import: ["" : 20]>
        main (int64[d2,d7] ids, int64 start) => (int64[] y) {
        size = Shape <start = 1, end = 2> (ids)
        count = Squeeze (size)
        one = Constant <value_float = 1.0> ()
        positive = Abs (one)
        step = CastLike (positive, count)
        y = Range (start, count, step)
    }""",
    "scales that are folded tell a Resize": """<ir_version: 10, opset_import: ["" : 19]>
        main (float[N,1,2,2] x) => (float[m,1,4,4] y) <float[4] low = {-1, -1, -1, -1}, float[m0,m1,m2,m3] wide> {
        scales = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()
        same = Identity (scales)
        wide = Resize <coordinate_transformation_mode = "asymmetric", mode = "linear"> (x, , same)
        y = Min (low, wide)
    }""",
    "what inference knows of a graph output is kept when another node gives it": """<ir_version: 11,
        opset_import: ["" : 22]>
        main (double[2,1] x) => (double[?,1] y, double[1,k] z) {
        c = Constant <value = double[1,1] {-1.25}> ()
        sum = Add (x, c)
        y = Transpose <perm = [0, 1]> (sum)
        first = Constant <value = int64[1] {0}> ()
        part = Gather <axis = 1> (y, first)
        z = Transpose <perm = [1, 0]> (part)
    }""",
    "equal nodes, one of them a graph output with a poor declaration": """<ir_version: 9, opset_import: ["" : 20]>
        main (float[N,2,4,4] x) => (float[k,2,4,4] y, float[?,2,4,4] z) <int64[1] two = {2}, int64[1] four = {4}> {
        a = Mul (x, x)
        y = Mul (x, x)
        s = Shape (a)
        first = Constant <value_ints = [0]> ()
        batch = Gather <axis = 0> (s, first)
        width = Shape <start = 2, end = 3> (a)
        target = Concat <axis = 0> (batch, two, width, four)
        z = Expand (y, target)
    }""",
    "a pattern below its root becomes whole late": """<ir_version: 10, opset_import: ["" : 20]>
        main (float[2,4] x) => (float[2,4] y) <float[1] three = {3}, float linear = {0.7978846},
        float cube = {0.044715}, float[1] one = {1}, float[1] half = {0.5}> {
        p = Pow (x, three)
        q = Mul (cube, p)
        r = Add (q, x)
        s = Mul (linear, r)
        t = Tanh (s)
        same = Identity (one)
        u = Add (same, t)
        v = Mul (x, half)
        y = Mul (u, v)
    }""",
    "types are stated in a nested graph only": """<ir_version: 10, opset_import: ["" : 20]>
        main (float[N,6] x, int64 n) => (float[?,6] y) <float[N,6] unused> {
        unused = Neg (x)
        y = Loop (n, , x) <body = step (int64 i, bool go, float[a,6] state) => (bool on, float[b,6] next)
            <float[6,c] turned, float[6,c] soft, float[d,6] back> {
            on = Identity (go)
            turned = Transpose <perm = [1, 0]> (state)
            soft = Softmax <axis = 1> (turned)
            back = Transpose (soft)
            next = Sin (back)
        }>
    }""",
    "a Split loses its parts in a group": """<ir_version: 10, opset_import: ["" : 20]>
        main (float[6,4] x) => (float[6,5] a, float[6,5] y, float[6,0] z) <float[4,5] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1,
        2, 3, 4, 5, 6, 7, 8, 9, 1, 2}, int64[2] sizes = {5, 0}, float[6,0] nothing = {}> {
        s = Softmax (x)
        a = MatMul (s, w)
        y, none = Split <axis = 1> (a, sizes)
        z = Concat <axis = 1> (nothing, none, none)
    }""",
    "a group that takes nothing, and is larger when it is folded": """<ir_version: 10, opset_import: ["" : 21]>
        main () => (float[4,4] y) <int8[4,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
        float scale = {0.5}> {
        y = DequantizeLinear (w, scale)
    }""",
    "the input of a Concat becomes better known by a Reshape that goes": """<ir_version: 10, opset_import: ["" : 20]>
        main (float[S,S] x, float[4,4] a, float[4,4] b) => (float[P,S] y, float[Q,R] z)
        <float[2,2] t, int64[1] k = {-1}> {
        t = Transpose <perm = [1, 0]> (x)
        m = MatMul (a, b)
        c = Concat <axis = -1> (m, t, x)
        s = Shape <end = 2, start = 1> (t)
        n = Concat <axis = 0> (k, s)
        z = Reshape (t, n)
        d = Add (c, c)
        y = Transpose <perm = [1, 0]> (d)
    }""",
    "a branch that is taken late shows a transpose": """<ir_version: 8, opset_import: ["" : 18]>
        main (float[2,4] x1, int64[2,S] x) => (int64[S,2] y, int64[1,2] z) <int64 zero = {0}, int32[1] i = {0}> {
        y = Transpose (x)
        n = Size (x1)
        c = Greater (n, zero)
        v = If (c) <then_branch = t () => (int64[2,S] p) { p = Abs (x) },
                    else_branch = e () => (int64[2,S] q) { q = Neg (x) }>
        w = Transpose (v)
        z = Gather <axis = -2> (w, i)
    }""",
    "two fusions make the same constant": """<ir_version: 9, opset_import: ["" : 20]>
        main (float[2,3,4] x, float[2,3,4] w) => (float[2,3,4] y, float[2,3,4] z) <float two = {2}, float one = {1},
            float a = {1e-5}, float b = {1e-6}, int64[1] last = {-1}> {
        p = Pow (x, two) m = ReduceMean (p, last) e = Add (m, a) s = Sqrt (e) y = Div (x, s)
        q = Pow (w, two) n = ReduceMean (q, last) f = Add (n, b) t = Sqrt (f) z = Div (w, t)
    }""",
    "the rank of a sequence's elements is known late": """<ir_version: 10, opset_import: ["" : 18]>
        main (int64 s, int64[1] form, int64[1] a, int64[1] b, int64[3] target, float[4,6] x) => (float[] y) {
        first = Constant <value = int64 {0}> ()
        two = Constant <value = int64 {2}> ()
        n = Reshape (s, form)
        t = Concat <axis = 0> (n, a, b)
        z = Reshape (x, t)
        parts = SplitToSequence <axis = 2> (z, two)
        part = SequenceAt (parts, first)
        y = Reshape (part, target)
    }""",
}
"""Each has been one that a second run changed."""


@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_second_run_changes_nothing(name: str, level: int) -> None:
    model = onnx.parser.parse_model(MODELS[name])
    target = "onnx" if level == 1 else "ort"
    once = to_bytes(optimize(model, level=level, target=target, verify=False).model)
    twice = optimize(once, level=level, target=target, verify=False)
    assert [one.transformer for one in twice.summary.passes] == []
    assert to_bytes(twice.model) == once


def test_a_rewrite_of_a_higher_level_below_an_if_lets_a_lower_one_see_the_if() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        main (float[N,4] a, float[4,3] b, bool yes) => (float[N,3] y) {
        y = If (yes) <
            then_branch = then () => (float[N,3] p) { p = Einsum <equation = "ij,jk->ik"> (a, b) },
            else_branch = else () => (float[N,3] e) { e = MatMul (a, b) }
        >
    }""")
    assert [node.op_type for node in optimize(model, level=3, verify=False).model.graph] == ["MatMul"]


IN_FUNCTIONS = {
    "what a function gives is known once its body is rewritten": """
        <ir_version: 9, opset_import: ["" : 20, "local" : 1]>
        main (float[3,N] x) => (bool mask, int64[k] size) { s = Shape (x) size = Abs (s) y, mask = local.F (x) }
        <domain: "local", opset_import: ["" : 20]>
        F (x) => (y, mask) { first = Size (x) float = Cast <to = 1> (first) y, mask = Dropout (float) }""",
    "what a function is called with is known once that is folded": """
        <ir_version: 9, opset_import: ["" : 20, "local" : 1]>
        main (float[3,N] x, float one) => (int64 y) { v, m = Dropout (one) n = Cast <to = 7> (m) y = local.F (x, n) }
        <domain: "local", opset_import: ["" : 20]>
        F (x, n) => (y) { size = Size (x) sum = Add (n, n) y = Mul (size, sum) }""",
}


@pytest.mark.parametrize("name", IN_FUNCTIONS)
def test_a_second_run_changes_nothing_where_functions_are_kept(name: str) -> None:
    model = onnx.parser.parse_model(IN_FUNCTIONS[name])
    once = optimize(model, level=3, keep_functions=True)
    assert {"shape_folding", "dropout_elimination"} <= {one.transformer for one in once.summary.passes}
    twice = optimize(to_bytes(once.model), level=3, keep_functions=True, verify=False)
    assert [one.transformer for one in twice.summary.passes] == []


class There(Swap):
    """Elu becomes Neg."""

    roots = ("Elu",)


class AndBack(Swap):
    """Neg becomes Elu."""

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Neg",)
    becomes = "Elu"


class LateConstant(Swap):
    """Elu becomes Max with the Neg of a constant."""

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Elu",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        literal = ir.node("Constant", [], {"value_floats": [1.0, 2.0]})
        return ir.node("Max", [found.value, ir.node("Neg", literal.outputs).outputs[0]])


def test_constants_of_higher_levels_are_folded_in_the_same_run() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        main (float[2] x) => (float[2] y) { y = Elu (x) }""")
    result = optimize(model, level=3, verify=False, transformers=[LateConstant()])
    assert [node.op_type for node in result.model.graph] == ["Max"]


def test_levels_that_undo_one_another_are_told() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        main (float[N] x) => (float[N] y) { y = Elu (x) }""")
    with pytest.warns(RuntimeWarning, match="all 10 rounds of levels changed the graph"):
        result = optimize(model, level=2, verify=False, transformers=[There(), AndBack()])
    assert result.summary.bound_reached == (2,)
