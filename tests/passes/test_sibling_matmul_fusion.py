"""Products of one value with constant matrices become one wider product and a Split."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import optimize
from ortopt.options import Options
from ortopt.patterns.parallel_parts import MERGED
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.tables import keeps

PASS = "sibling_matmul_fusion"
TAKEN = Options(force_forms=(str(MERGED),))
WEIGHTS = "float[2,3] a = {1,2,3,4,5,6}, float[2,2] b = {7,8,9,10}, float[2,1] c = {11,12}"
BODY = "p = MatMul (x, a) q = MatMul (x, b) r = MatMul (x, c) s = Relu (p) t = Tanh (q) u = Relu (r)"
MODEL = f"main (float[N,M,2] x) => (float[N,M,3] s, float[N,M,2] t, float[N,M,1] u) <{WEIGHTS}> {{ {BODY} }}"


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_joins(opset: int) -> None:
    model = check_rewrites(PASS, MODEL, ops={"MatMul": 1, "Split": 1, "Relu": 2, "Tanh": 1}, opset=opset, options=TAKEN)
    (wide,) = [value for value in model.graph.initializers.values() if len(value.const_value.shape) == 2]
    assert np.array_equal(wide.const_value.numpy(), [[1, 2, 3, 7, 8, 11], [4, 5, 6, 9, 10, 12]])


KEPT = {
    "one product": (
        "no other product",
        "main (float[N,2] x) => (float[N,3] y) <float[2,3] a = {1,2,3,4,5,6}> { p = MatMul (x, a) y = Relu (p) }",
    ),
    "a matrix that is no constant": (
        "no other product",
        "main (float[N,2] x, float[2,3] b) => (float[N,3] y) <float[2,3] a = {1,2,3,4,5,6}>"
        "{ p = MatMul (x, a) q = MatMul (x, b) y = Add (p, q) }",
    ),
    "a graph output keeps its own node": (
        "no other product",
        "main (float[N,2] x) => (float[N,3] p, float[N,3] y) <float[2,3] a = {1,2,3,4,5,6}>"
        "{ p = MatMul (x, a) q = MatMul (x, a) y = Relu (q) }",
    ),
    "a matrix that something else needs": (
        "used elsewhere",
        "main (float[N,2] x) => (float[N,3] y, float[3,2] z)"
        "<float[2,3] a = {1,2,3,4,5,6}, float[2,3] b = {1,2,3,4,5,7}>"
        "{ p = MatMul (x, a) q = MatMul (x, b) y = Add (p, q) z = Transpose (a) }",
    ),
    "integers": (
        None,
        "main (int32[N,2] x) => (int32[N,3] y) <int32[2,3] a = {1,2,3,4,5,6}, int32[2,3] b = {1,2,3,4,5,7}>"
        "{ p = MatMul (x, a) q = MatMul (x, b) y = Add (p, q) }",
    ),
}


test_keeps = keeps(PASS, KEPT, options=TAKEN)


def test_an_old_split_cannot_count_from_the_end() -> None:
    check_keeps(PASS, MODEL, "count axes from the end", opset=9, options=TAKEN)


def three(rows: str, columns: int, *widths: int, element: str = "float") -> str:
    """Products of one value, each matrix of one number."""
    names = [f"p{number}" for number in range(len(widths))]
    weights = ", ".join(
        f"{element}[{columns},{width}] w{number} = {{{','.join([str(number)] * (columns * width))}}}"
        for number, width in enumerate(widths)
    )
    results = ", ".join(f"{element}[{rows},{width}] y{number}" for number, width in enumerate(widths))
    products = " ".join(f"{name} = MatMul (x, w{number})" for number, name in enumerate(names))
    used = " ".join(f"y{number} = Relu ({name})" for number, name in enumerate(names))
    return f"main ({element}[{rows},{columns}] x) => ({results}) <{weights}> {{ {products} {used} }}"


def products(model: ir.Model) -> int:
    """Products in a model, those in groups included."""
    graphs = (model.graph, *model.functions.values())
    return sum(node.op_type == "MatMul" for graph in graphs for node in graph)


SLOWER = "merged with siblings is"
JOINED = {
    "one row": ("1", 256, (256, 256, 256), None),
    "one row in three dimensions, parts of different sizes": ("1,1", 256, (512, 128, 128), None),
    "more parts": ("1", 256, (192, 192, 192, 192), None),
    "two rows": ("2", 256, (256, 256, 256), SLOWER),
    "sixteen rows": ("16", 256, (256, 256, 256), SLOWER),
    "rows in two dimensions": ("2,1", 256, (256, 256, 256), SLOWER),
    "a batch of any size, which is expected to be one": ("N", 256, (256, 256, 256), None),
    "positions of any number": ("1,S", 256, (256, 256, 256), SLOWER),
    "few columns": ("1", 64, (256, 256, 256), SLOWER),
    "few results": ("1", 256, (64, 64, 64), SLOWER),
    "two parts": ("1", 256, (384, 384), "the graph would not get smaller"),
}


@pytest.mark.parametrize("case", JOINED)
def test_the_table_of_costs_says_where_it_pays(case: str) -> None:
    rows, columns, widths, because = JOINED[case]
    text = three(rows, columns, *widths)
    if because is None:
        check_rewrites(PASS, text, ops={"MatMul": 1, "Split": 1}, options=Options())
    else:
        check_keeps(PASS, text, because, options=Options())
        check_rewrites(PASS, text, ops={"MatMul": 1, "Split": 1}, options=TAKEN)


def test_expected_sizes_decide() -> None:
    text = three("1,S", 256, 256, 256, 256)
    check_rewrites(PASS, text, ops={"MatMul": 1, "Split": 1}, options=Options(dim_hints={"S": (1, 1)}))
    check_keeps(PASS, text, SLOWER, options=Options(dim_hints={"S": (1, 2)}))


@pytest.mark.parametrize("element", ["float16", "double"])
def test_other_precisions_are_not_measured(element: str) -> None:
    text = three("1", 256, 256, 256, 256, element=element)
    check_keeps(PASS, text, "for single precision only", options=Options())
    check_rewrites(PASS, text, ops={"MatMul": 1, "Split": 1}, options=TAKEN)


def test_nobody_has_measured_other_providers() -> None:
    options = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    check_keeps(PASS, three("1", 256, 256, 256, 256), "nobody has measured", options=options)


def test_a_run_joins_and_what_was_taken_by_name_stays_joined() -> None:
    model = optimize(parse(three("1", 256, 256, 256, 256)), level=4, verify=False).model
    assert products(model) == 1
    several = three("16", 256, 256, 256, 256)
    assert products(optimize(parse(several), level=4, verify=False).model) == 3
    taken = optimize(
        parse(several), level=4, force_forms=[str(MERGED)], verify=False
    )  # no pass of level 3 takes it apart
    assert products(taken.model) == 1
    assert taken.summary.bound_reached == ()
