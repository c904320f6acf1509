"""Products of one value with constant matrices become one wider product and a Split."""

import numpy as np
import pytest

from ortopt import registry
from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "sibling_matmul_fusion"
WEIGHTS = "float[2,3] a = {1,2,3,4,5,6}, float[2,2] b = {7,8,9,10}, float[2,1] c = {11,12}"
BODY = "p = MatMul (x, a) q = MatMul (x, b) r = MatMul (x, c) s = Relu (p) t = Tanh (q) u = Relu (r)"
MODEL = f"main (float[N,M,2] x) => (float[N,M,3] s, float[N,M,2] t, float[N,M,1] u) <{WEIGHTS}> {{ {BODY} }}"


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_joins(opset: int) -> None:
    model = check_rewrites(PASS, MODEL, ops={"MatMul": 1, "Split": 1, "Relu": 2, "Tanh": 1}, opset=opset)
    (wide,) = [value for value in model.graph.initializers.values() if len(value.const_value.shape) == 2]
    assert np.array_equal(wide.const_value.numpy(), [[1, 2, 3, 7, 8, 11], [4, 5, 6, 9, 10, 12]])


def test_in_a_loop_body_and_in_a_function() -> None:
    check_rewrites(
        PASS,
        """main (float[1,2] x, bool go) => (float[1,2] y) {
        n = Constant <value_int = 2> ()
        y = Loop <body = body (int64 i, bool c, float[1,2] s) => (bool d, float[1,2] t) {
            a = Constant <value = float[2,2] {1,2,3,4}> () b = Constant <value = float[2,2] {4,3,2,1}> ()
            d = Identity (c) p = MatMul (s, a) q = MatMul (s, b) t = Sub (p, q) }> (n, go, x) }""",
        ops={"MatMul": 1, "Split": 1},
    )
    check_rewrites(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "own" : 1]> main (float[1,2] x) => (float[1,2] y) { y = own.F (x) }
        <domain: "own", opset_import: ["" : 17]> F (s) => (t) {
            a = Constant <value = float[2,2] {1,2,3,4}> () b = Constant <value = float[2,2] {4,3,2,1}> ()
            p = MatMul (s, a) q = MatMul (s, b) t = Sub (p, q) }""",
        ops={"MatMul": 1, "Split": 1},
        options=Options(keep_functions=True),
    )


KEPT = {
    "one product": (
        "main (float[N,2] x) => (float[N,3] y) <float[2,3] a = {1,2,3,4,5,6}> { p = MatMul (x, a) y = Relu (p) }",
        "no other product",
    ),
    "a matrix that is no constant": (
        "main (float[N,2] x, float[2,3] b) => (float[N,3] y) <float[2,3] a = {1,2,3,4,5,6}>"
        "{ p = MatMul (x, a) q = MatMul (x, b) y = Add (p, q) }",
        "no other product",
    ),
    "a graph output keeps its own node": (
        "main (float[N,2] x) => (float[N,3] p, float[N,3] y) <float[2,3] a = {1,2,3,4,5,6}>"
        "{ p = MatMul (x, a) q = MatMul (x, a) y = Relu (q) }",
        "no other product",
    ),
    "integers": (
        "main (int32[N,2] x) => (int32[N,3] y) <int32[2,3] a = {1,2,3,4,5,6}, int32[2,3] b = {1,2,3,4,5,7}>"
        "{ p = MatMul (x, a) q = MatMul (x, b) y = Add (p, q) }",
        None,
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    text, because = KEPT[case]
    check_keeps(PASS, text, because)


def test_an_old_split_cannot_count_from_the_end() -> None:
    check_keeps(PASS, MODEL, "count axes from the end", opset=9)


def test_it_is_off_unless_asked_for() -> None:
    assert PASS not in {chosen.transformer.name for chosen in registry.select(Options(level=4))}
    assert run(PASS, parse(MODEL))[0]
