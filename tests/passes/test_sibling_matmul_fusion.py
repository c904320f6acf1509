"""Products of one value with constant matrices become one wider product and a Split."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import optimize
from ortopt.options import Options
from ortopt.patterns.parallel_parts import MERGED
from ortopt.testing import check_keeps, check_rewrites, parse

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


def test_expected_sizes_decide() -> None:
    text = three("1,S", 256, 256, 256, 256)
    check_rewrites(PASS, text, ops={"MatMul": 1, "Split": 1}, options=Options(dim_hints={"S": (1, 1)}))
    check_keeps(PASS, text, SLOWER, options=Options(dim_hints={"S": (1, 2)}))


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
