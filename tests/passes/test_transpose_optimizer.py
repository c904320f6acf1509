"""Transposes move through ops to where they cancel, and stay where that would need as many."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import optimize
from ortopt.graph import scope
from ortopt.testing import check_keeps, check_rewrites, parse, run
from tests.transpose.numbers import check_count, check_same

PASS = "transpose_optimizer"

DOWN = "Transpose<perm = [0, 3, 1, 2]>"
BACK = "Transpose<perm = [0, 2, 3, 1]>"


@pytest.mark.parametrize(("batch", "count"), [("2", 0), ("N", 2)])
def test_a_reshape_infers_no_size_beside_a_batch_that_may_be_empty(batch: str, count: int) -> None:
    model = parse(
        f"main (float[{batch},2,S,3] x) => (float[{batch},1,2,S,3] y) <int64[3] k = {{1, 2, 3}}> {{"
        " a = Transpose<perm = [0, 1, 3, 2]> (x) n = Shape<start = 0, end = 1> (x) s = Shape<start = 2, end = 3> (x)"
        " t = Concat<axis = 0> (n, k, s) b = Reshape (a, t) y = Transpose<perm = [0, 1, 2, 4, 3]> (b) }"
    )
    run(PASS, model)
    assert sum(node.op_type == "Transpose" for node in model.graph) == count


DEAD = {
    "reads what is turned": "r = Abs (x) a = Transpose <perm = [2, 0, 1]> (r) d = Relu (a) b = Neg (a)",
    "reads what was turned": "a = Transpose <perm = [2, 0, 1]> (x) b = Neg (a) d = Relu (b)",
    "is turned back": "a = Transpose <perm = [2, 0, 1]> (x) b = Neg (a) d = Relu (b) e = Transpose (d)",
    "further up": "r = Abs (x) a = Transpose <perm = [2, 0, 1]> (r) b = Neg (a) d = Relu (b) e = Exp (d)",
}


@pytest.mark.parametrize("which", DEAD)
def test_a_dead_node_leaves_no_node_behind_that_counts_as_a_user(which: str) -> None:
    model = parse(f"main (float[2,3,4] x) => (float[2,3,4] y) {{ {DEAD[which]} y = Transpose <perm = [1, 2, 0]> (b) }}")
    assert run(PASS, model)[0]
    for graph in scope.graphs(model):
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            assert all(use.node.graph is graph for use in value.uses()), f"{value.name} has a user in no graph"


def test_a_value_used_in_both_layouts_is_transposed_once() -> None:
    check_count(
        f"main (float[2,4,5,3] x, float[6,3,1,1] w) => (float[2,4,5,3] y, float[2,4,5,3] z, float[2,6,4,5] c)"
        f" {{ a = {DOWN} (x) b = Relu (a) y = {BACK} (b) d = Tanh (b) z = {BACK} (d) c = Conv (b, w) }}",
        1,
    )


def test_between_convolutions_the_cheaper_layout_wins() -> None:
    check_count(
        f"main (float[1,3,4,4] x, float[3,3,1,1] w, float[3] s) => (float[1,3,4,4] y) {{ a = Conv (x, w) b = {BACK} (a)"
        f" c = Add (b, s) d = Relu (c) e = {DOWN} (d) f = Conv (e, w) g = {BACK} (f) h = Add (g, d) i = {DOWN} (h)"
        f" y = Conv (i, w) }}",
        0,
    )


def test_constants_are_transposed_here() -> None:
    model = check_count(
        f"main (float[1,2,2,3] x) => (float[1,2,2,3] y) <float[3,1,2] c = {{1, 2, 3, 4, 5, 6}}>"
        f" {{ a = {DOWN} (x) b = Mul (a, c) y = {BACK} (b) }}",
        0,
    )
    (tensor,) = (value.const_value for value in model.graph.initializers.values())
    assert tensor is not None
    assert tensor.numpy().tolist() == [[[1, 3, 5], [2, 4, 6]]]


def test_big_constants_are_transposed_when_they_are_written() -> None:
    model = parse(
        f"main (float[1,64,64,128] x, float[1,128,64,64] c) => (float[1,64,64,128] y)"
        f" {{ a = {DOWN} (x) b = Mul (a, c) y = {BACK} (b) }}"
    )
    (big,) = (value for value in model.graph.inputs if value.name == "c")
    model.graph.inputs.remove(big)
    big.const_value = ir.tensor(np.arange(128 * 64 * 64, dtype=np.float32).reshape(1, 128, 64, 64), name="c")
    model.graph.initializers.add(big)
    check_rewrites(PASS, model, ops={"Transpose": 0}, numbers=False)
    run(PASS, model)
    (tensor,) = (value.const_value for value in model.graph.initializers.values())
    assert isinstance(tensor, ir.LazyTensor)
    assert tensor.numpy()[0, 1, 2, 3] == 3 * 64 * 64 + 64 + 2


def test_a_constant_that_others_use_may_not_let_the_file_grow() -> None:
    model = parse(
        f"main (float[1,64,64,128] x, float[1,128,64,64] c) => (float[1,64,64,128] y, float[1,128,64,64] z)"
        f" {{ a = {DOWN} (x) b = Mul (a, c) y = {BACK} (b) z = Neg (c) }}"
    )
    (big,) = (value for value in model.graph.inputs if value.name == "c")
    model.graph.inputs.remove(big)
    big.const_value = ir.tensor(np.ones((1, 128, 64, 64), dtype=np.float32), name="c")
    model.graph.initializers.add(big)
    refused = optimize(model, level=1, only=(PASS,), max_growth=1000, verify=False).model
    assert [node.op_type for node in refused.graph].count("Transpose") == 2
    allowed = optimize(model, level=1, only=(PASS,), max_growth=3_000_000, verify=False).model
    assert [node.op_type for node in allowed.graph].count("Transpose") == 0


def test_an_overridable_operand_is_no_constant() -> None:
    model = check_count(
        f"main (float[1,4,5,3] x, float[1,3,4,5] c) => (float[1,4,5,3] y)"
        f" <float[1,3,4,5] c = {{{', '.join(['1'] * 60)}}}> {{ a = {DOWN} (x) b = Mul (a, c) y = {BACK} (b) }}",
        1,
    )
    assert [value.name for value in model.graph.inputs] == ["x", "c"]


def test_outputs_keep_their_names() -> None:
    model = check_count(
        f"main (float[1,4,5,3] x) => (float[1,3,4,5] a, float[1,3,4,5] b, float[1,4,5,3] y, float[1,4,5,3] z)"
        f" {{ a = {DOWN} (x) b = Relu (a) y = {BACK} (b) z = {BACK} (b) }}",
        2,
    )
    assert [value.name for value in model.graph.outputs] == ["a", "b", "y", "z"]


SUBGRAPH = f"""main (float[1,4,5,3] x, bool c) => (float[1,4,5,3] y, float[1,4,5,3] z) {{
    a = {DOWN} (x)
    b = Relu (a)
    y = {BACK} (b)
    z = If (c) <
        then_branch = t () => (float[1,4,5,3] p) {{ q = {BACK} (b) p = Neg (q) }},
        else_branch = e () => (float[1,4,5,3] r) {{ s = {DOWN} (x) u = Neg (s) r = {BACK} (u) }}>
}}"""


def test_subgraphs_are_borders_and_have_transposes_of_their_own() -> None:
    before = parse(SUBGRAPH)
    model = check_rewrites(PASS, SUBGRAPH)
    assert [sum(node.op_type == "Transpose" for node in graph) for graph in scope.graphs(model)] == [1, 1, 0]
    check_same(before, model)


def test_in_a_function_constants_are_nodes() -> None:
    model = check_rewrites(
        PASS,
        f"""<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        main (float[1,4,5,3] x) => (float[1,4,5,3] y) {{ y = own.block (x) }}
        <domain: "own", opset_import: ["" : 17]>
        block (x) => (y) {{
            c = Constant<value = float[3,1,1] {{1, 2, 3}}> ()
            a = {DOWN} (x) b = Mul (a, c) y = {BACK} (b) }}""",
    )
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Constant", "Mul"]


KEPT = {
    "there is nothing to cancel": (
        17,
        "no choice of layouts",
        f"main (float[1,4,5,3] x) => (float[1,3,4,5] y) {{ a = {DOWN} (x) y = Relu (a) }}",
    ),
    "a convolution has one layout": (
        17,
        "transposes do not pass Conv",
        f"main (float[1,4,5,3] x, float[3,3,1,1] w) => (float[1,4,5,3] y)"
        f" {{ a = {DOWN} (x) b = Conv (a, w) y = {BACK} (b) }}",
    ),
    "the other operand would be transposed twice": (
        17,
        "no choice of layouts",
        f"main (float[1,4,5,3] x, float[1,3,4,5] c, float[1,3,4,5] d) => (float[1,4,5,3] y)"
        f" {{ a = {DOWN} (x) b = Add (a, c) e = Add (b, d) y = {BACK} (e) }}",
    ),
    "softmax flattens": (
        12,
        "flattens before opset 13",
        f"main (float[1,4,5,3] x) => (float[1,4,5,3] y) {{ a = {DOWN} (x) b = Softmax<axis = 1> (a) y = {BACK} (b) }}",
    ),
    "softmax would leave the last axis, where its kernel is fast": (
        17,
        "Softmax would no longer be over the last axis",
        f"main (float[1,4,5,3] x) => (float[1,4,5,3] y) {{ a = {DOWN} (x) b = Softmax<axis = -1> (a) y = {BACK} (b) }}",
    ),
    "the normalized axes would move": (
        17,
        "the axes that are normalized would move",
        f"main (float[1,4,5,3] x, float[5] s) => (float[1,4,5,3] y)"
        f" {{ a = {DOWN} (x) b = LayerNormalization (a, s) y = {BACK} (b) }}",
    ),
    "interpolation has one layout": (
        17,
        "the resized axes would not be the last ones",
        f"main (float[1,4,5,3] x) => (float[1,8,10,3] y) <float[4] k = {{1, 1, 2, 2}}>"
        f' {{ a = {DOWN} (x) b = Resize<mode = "linear"> (a, , k) y = {BACK} (b) }}',
    ),
    "a reshape joins what was apart": (
        17,
        "axes that belong together would part",
        f"main (float[1,4,5,3] x) => (float[1,12,5] y) <int64[3] k = {{1, 12, 5}}>"
        f" {{ a = {DOWN} (x) b = Reshape (a, k) y = Relu (b) }}",
    ),
    "axes that a caller gives": (
        18,
        "the axes are not known",
        f"main (float[1,4,5,3] x, int64[1] k) => (float[1,u,v,w] y)"
        f" {{ a = {DOWN} (x) b = ReduceSum (a, k) y = {BACK} (b) }}",
    ),
    "a dropout that trains": (
        17,
        "its results are random",
        f"main (float[1,4,5,3] x, bool t) => (float[1,4,5,3] y) <float r = {{0.5}}>"
        f" {{ a = {DOWN} (x) b = Dropout (a, r, t) y = {BACK} (b) }}",
    ),
    "an op that nobody knows": (
        17,
        "transposes do not pass Relu",
        f"""<ir_version: 10, opset_import: ["" : 17, "own" : 1]> main (float[1,4,5,3] x) => (float[1,4,5,3] y)
        {{ a = {DOWN} (x) b = own.Relu (a) y = {BACK} (b) }}""",
    ),
    "an axis of the matrices": (
        17,
        "an axis of the matrices would move",
        "main (float[2,4,5,3] x, float[2,5,3,6] w) => (float[2,4,5,6] y)"
        " { a = Transpose<perm = [0, 2, 1, 3]> (x) v = AveragePool<kernel_shape = [1, 1]> (w) b = MatMul (a, v)"
        " y = Transpose<perm = [0, 2, 1, 3]> (b) }",
    ),
    "scales before they had an axis": (
        11,
        "scales have no axis before opset 13",
        f"main (float[1,1,5,3] x) => (uint8[1,1,5,3] y) <float[1] s = {{0.1}}, uint8[1] z = {{0}}>"
        f" {{ a = {DOWN} (x) b = QuantizeLinear (a, s, z) y = {BACK} (b) }}",
    ),
    "an opset whose ops broadcast otherwise": (
        6,
        "transposes move from opset 7 on",
        f"main (float[1,4,5,3] x) => (float[1,4,5,3] y) {{ a = {DOWN} (x) b = Neg (a) y = {BACK} (b) }}",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_keeps(name: str) -> None:
    opset, because, text = KEPT[name]
    check_keeps(PASS, text, because, opset=opset)


def test_a_quantized_matmul_stays_one() -> None:
    model = parse(
        "main (uint8[5,3] q, float[3,6] w) => (float[6,5] y) <float s = {0.1}>"
        " { x = DequantizeLinear (q, s) b = MatMul (x, w) y = Transpose (b) }"
    )
    run(PASS, model)
    assert "MatMul" in [node.op_type for node in model.graph]


def test_what_is_left_out_is_not_numbered_again() -> None:
    text = f"main (float[1,4,5,3] x) => (float[1,4,5,3] y) {{ a = {DOWN} (x) b = Relu (a) y = {BACK} (b) }}"
    model = parse(text)
    changed, explanation = run(PASS, model)
    assert changed
    assert len(explanation.rewrites) == 1


def test_the_work_is_linear() -> None:
    """Thousands of blocks, each with transposes of its own: the plans that are made grow as the nodes do."""
    assert _plans(400) <= 2.2 * _plans(200)


def _plans(blocks: int) -> int:
    from ortopt.transpose import region

    statements = ["v0 = Relu (x)"]
    for number in range(blocks):
        statements.append(f"a{number} = {DOWN} (v{number}) b{number} = Relu (a{number}) c{number} = {BACK} (b{number})")
        statements.append(f"v{number + 1} = AveragePool<kernel_shape = [1, 1]> (c{number})")
    model = parse(
        f"main (float[1,2,2,2] x) => (float[1,2,2,2] v{blocks}) {{ {' '.join(statements)} }}",
    )
    count = 0
    grow = region.Region.grow

    def counted(self: region.Region, seeds: object) -> None:
        nonlocal count
        grow(self, seeds)  # type: ignore[arg-type]
        count += len(self.plans) + 1

    region.Region.grow = counted  # type: ignore[method-assign]
    try:
        changed, _ = run(PASS, model)
    finally:
        region.Region.grow = grow  # type: ignore[method-assign]
    assert changed
    assert not any(node.op_type == "Transpose" for node in model.graph)
    return count


def test_provenance_names_what_was_there() -> None:
    model = parse(
        f"main (float[1,4,5,3] x, float[1,3,4,5] c) => (float[1,4,5,3] y)"
        f" {{ a = {DOWN} (x) b = Relu (a) d = Mul (b, c) y = {BACK} (d) }}"
    )
    for node in model.graph:
        node.name = f"old {node.op_type} of {node.outputs[0].name}"
    run(PASS, model)
    origins = {node.op_type: node.meta.get("ortopt.origin") for node in model.graph}
    assert origins["Relu"] == ("old Relu of b",)
    assert set(origins["Transpose"]) == {"old Transpose of a", "old Transpose of y"}
