from __future__ import annotations

from ortopt.analysis.shapes import infer_model
from ortopt.graph import scope
from ortopt.options import Options
from ortopt.testing import parse
from ortopt.verification.kernel_steps import SIGMOID_STEP, kernel_steps


def test_a_sigmoid_may_differ_by_what_its_kernel_does() -> None:
    model = parse("""main (float[N,6] x, double[N,6] d, bool[N,6] c, int64[N,2] i) =>
            (float[N,6] moved, float[N,6] scaled, double[N,6] wide, float[N,6] same, float[N,2] best,
             float[N,6] chosen, float[N,12] beside, float[N,2] placed, float[N,1] highest, float[N,3] sharp)
        <float zero = {0}, int64[1] two = {2}> {
        s = Sigmoid (x) t = Transpose <perm = [1, 0]> (s) moved = Transpose <perm = [1, 0]> (t)
        scaled = Add (s, s) wide = Sigmoid (d) same = Identity (x)
        best, places = TopK (s, two) chosen = Where (c, s, zero) beside = Concat <axis = 1> (s, x)
        placed = GatherElements <axis = 1> (chosen, i) highest = ReduceMax <axes = [1]> (s)
        half, sharp = Split <axis = 1> (s) }""")
    infer_model(model)
    scope.attach(model, Options())
    names = ("moved", "best", "chosen", "placed", "highest", "sharp")
    assert kernel_steps(model, is_inferred=True) == dict.fromkeys(names, SIGMOID_STEP)


def test_a_part_comes_from_the_operands_that_it_is_of() -> None:
    model = parse("""main (float[1,4,N] boxes, float[1,8,N] x) =>
            (float[1,N,4] a, float[1,N,8] b, float[1,N,5] c, float[1,3,N] d)
        <int64[2] sizes = {4, 8}, int64[1] start = {3}, int64[1] end = {8}, int64[1] axis = {2},
         int64[3] few = {5, 7, 9}> {
        s = Sigmoid (x) both = Concat <axis = 1> (boxes, s) t = Transpose <perm = [0, 2, 1]> (both)
        a, b = Split <axis = 2> (t, sizes) c = Slice (t, start, end, axis) d = Gather <axis = 1> (both, few) }""")
    infer_model(model)
    scope.attach(model, Options())
    assert set(kernel_steps(model, is_inferred=True)) == {"b", "d"}
