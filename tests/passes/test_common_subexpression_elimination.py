"""Equal nodes become one; random, impure and merely similar ones stay, and every graph output keeps its name."""

import onnx_ir as ir
import pytest

from ortopt.manager import GraphTransformerManager
from ortopt.testing import check_keeps, check_rewrites, parse, run
from ortopt.transformers.cleanup.common_subexpression_elimination import CommonSubexpressionElimination

PASS = "common_subexpression_elimination"
XY = "main (float[N,4] x, float[N,4] z) => (float[N,4] y)"


def test_merges_whole_expressions() -> None:
    check_rewrites(
        PASS,
        f"""{XY} {{
            a = Exp (x) b = Add (a, z) c = Clip (b)
            d = Exp (x) e = Add (z, d) f = Clip (e)
            y = Mul (c, f)
        }}""",
        after="a = Exp (x) b = Add (a, z) c = Clip (b) y = Mul (c, c)",
    )


MERGED = {
    "attributes in any order": "a = LpNormalization <axis = 0, p = 1> (x) b = LpNormalization <p = 1, axis = 0> (x)",
    "inputs left out at the end": "a = Clip (x) b = Clip (x, , )",
    "commutative": "a = Mul (x, z) b = Mul (z, x)",
    "contrib": "a = com.microsoft.Gelu (x) b = com.microsoft.Gelu (x)",
}


@pytest.mark.parametrize("kind", MERGED)
def test_merges(kind: str) -> None:
    model = check_rewrites(PASS, f"{XY} {{ {MERGED[kind]} t = Sub (a, b) u = Add (t, z) y = Add (u, x) }}")
    assert len(model.graph) == 4


KEPT = {
    "attributes": "a = LeakyRelu <alpha = 0.5> (x) b = LeakyRelu <alpha = 0.25> (x)",
    "signs of zero in attributes": "a = LeakyRelu <alpha = 0.0> (x) b = LeakyRelu <alpha = -0.0> (x)",
    "order": "a = Sub (x, z) b = Sub (z, x)",
    "order of max": "a = Max (x, z) b = Max (z, x)",
    "order of three": "a = Sum (x, z, x) b = Sum (z, x, x)",
    "gaps": "lo = Constant <value_float = 1.0> () a = Clip (x, lo) b = Clip (x, , lo)",
}


@pytest.mark.parametrize("kind", KEPT)
def test_keeps(kind: str) -> None:
    check_keeps(PASS, f"{XY} {{ {KEPT[kind]} y = Mul (a, b) }}")


RANDOM = {
    "RandomNormalLike <seed = 1.0>": "two runs of it may differ",
    "Bernoulli": "two runs of it may differ",
    "mine.Thing": "may have effects",
}


@pytest.mark.parametrize("op", RANDOM)
def test_random_and_unknown_ops_stay(op: str) -> None:
    check_keeps(
        PASS,
        f"""<ir_version: 10, opset_import: ["" : 17, "mine" : 1]>
        {XY} {{ a = {op} (x) b = {op} (x) y = Mul (a, b) }}""",
        RANDOM[op],
    )


def test_functions_merge_unless_they_are_random() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float[N,4] x) => (float[N,4] y) {{ a = f.g (x) b = f.g (x) y = Mul (a, b) }}
        <domain: "f", opset_import: ["" : 17]> g (x) => (y) {{ y = {op} (x) }}"""
    check_rewrites(PASS, text.format(op="Exp"), ops={"f::g": 1})
    check_keeps(PASS, text.format(op="Bernoulli"), "two runs of it may differ")


def test_one_graph_output_gives_its_name_to_the_node_that_stays() -> None:
    model = check_rewrites(
        PASS, "main (float[4] x) => (float[4] y, float[4] z) { a = Exp (x) y = Neg (a) z = Exp (x) }", ops={"Exp": 1}
    )
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_two_graph_outputs_keep_both_names() -> None:
    check_keeps(
        PASS,
        "main (float[4] x) => (float[4] y, float[4] z) { y = Exp (x) z = Exp (x) }",
        "a graph output must keep its own name",
    )


def test_several_results() -> None:
    check_rewrites(
        PASS,
        """main (float[4] x) => (float[2] y) {
            a, b = Split <axis = 0> (x) c, d = Split <axis = 0> (x) s = Add (a, d) t = Add (c, b) y = Sub (s, t)
        }""",
        opset=13,
        ops={"Split": 1, "Add": 1},
    )


def test_another_number_of_parts_is_another_op() -> None:
    check_keeps(
        PASS,
        """main (float[6] x) => (float[2] y, float[3] z) {
            a, b, c = Split <axis = 0> (x) d, e = Split <axis = 0> (x) y = Add (a, b) z = Add (d, e)
        }""",
        opset=13,
    )


POOLS = """main (float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] z) {{
    {} = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
    {} = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
    y = Add (a, b)
    z = Neg (i)
}}"""


def test_optional_results() -> None:
    check_keeps(PASS, POOLS.format("a, i", "b"))  # its kernels with and without indices differ beside NaN
    check_keeps(
        PASS,
        """main (float[4] x) => (float[4] y, bool[4] z) {
            a = Dropout (x)
            b, i = Dropout (x)
            y = Add (a, b)
            z = Not (i)
        }""",
        "does not give all of its results",
    )


IFS = """main (float[4] x, float[4] z, bool c) => (float[4] y) {{
    k = Exp (z)
    a = If (c) <then_branch = t () => (float[4] p) {{ u = Neg (x) p = Exp (u) }},
                else_branch = e () => (float[4] q) {{ q = Abs (x) }}>
    b = If (c) <then_branch = t2 () => (float[4] r) {{ v = Neg ({0}) r = {1} (v) }},
                else_branch = e2 () => (float[4] s) {{ s = Abs (x) }}>
    t = Add (a, k)
    y = Mul (t, b)
}}"""


def test_control_flow_merges_only_with_equal_bodies_and_captures() -> None:
    check_rewrites(PASS, IFS.format("x", "Exp"), ops={"If": 1})
    check_keeps(PASS, IFS.format("z", "Exp"))
    check_keeps(PASS, IFS.format("x", "Log"))
    random = IFS.format("x", "Bernoulli").replace("p = Exp (u)", "p = Bernoulli (u)")
    check_keeps(PASS, random, "two runs of it may differ")


def test_outer_results_serve_inner_graphs_and_never_the_reverse() -> None:
    check_rewrites(
        PASS,
        """main (float[4] x, bool c) => (float[4] y) {
            a = Exp (x)
            b = If (c) <then_branch = t () => (float[4] p) { u = Exp (x) w = Neg (x) p = Add (u, w) },
                        else_branch = e () => (float[4] q) { v = Neg (x) q = Abs (v) }>
            n = Neg (x)
            s = Add (a, b)
            y = Add (s, n)
        }""",
        ops={"Exp": 1, "Neg": 3},
    )


def test_a_branch_still_returns_a_value_of_its_own() -> None:
    check_keeps(
        PASS,
        """main (float[4] x, bool c) => (float[4] y) {
            a = Exp (x)
            b = If (c) <then_branch = t () => (float[4] p) { p = Exp (x) },
                        else_branch = e () => (float[4] q) { q = Abs (x) }>
            y = Add (a, b)
        }""",
        "a graph output must keep its own name",
    )


def test_inside_a_function_attributes_of_the_caller_must_be_the_same() -> None:
    check_rewrites(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float[2,4] x) => (float[2,4] y) { y = f.g <k = 0, l = 0> (x) }
        <domain: "f", opset_import: ["" : 17]> g <k, l> (x) => (y) {
            a = Softmax <axis : int = @k> (x)
            b = Softmax <axis : int = @k> (x)
            c = Softmax <axis : int = @l> (x)
            s = Add (a, b)
            y = Add (s, c)
        }""",
        ops={"Softmax": 2},
    )


def test_nodes_that_were_alone_when_they_were_passed_are_found_in_one_run() -> None:
    depth = 30
    first = "\n".join(f"a{i} = Exp ({f'a{i - 1}' if i else 'x'})" for i in range(depth))
    second = "\n".join(f"b{i} = Exp ({f'b{i - 1}' if i else 'x'})" for i in range(depth))
    model = parse(f"main (float[4] x) => (float[4] y) {{ {first} {second} y = Add (a{depth - 1}, b{depth - 1}) }}")
    manager = GraphTransformerManager(steps=2)
    manager.register(CommonSubexpressionElimination())
    manager.apply_transformers(model, 1)
    assert len(model.graph) == depth + 1
    assert [entry.rewrites for entry in manager.history] == [depth, 0]


def test_an_equal_node_does_not_tell_an_output_its_shape() -> None:
    model = parse(
        "main (float[N,4] x) => (float[?,4] y, float[?,4] z) { y = Sigmoid (x) t = Sigmoid (x) z = Sigmoid (t) }"
    )
    assert run("common_subexpression_elimination", model)[0]
    assert model.graph.outputs[0].shape == ir.Shape([None, 4])


def test_pairs_of_quantization_stay_apart_for_other_runtimes() -> None:
    text = """main (float[4] x) => (float[4] y) <float s = {0.1}, int8 z = {3}> {
        p = QuantizeLinear (x, s, z) a = DequantizeLinear (p, s, z) b = Exp (a)
        q = QuantizeLinear (x, s, z) c = DequantizeLinear (q, s, z) d = Neg (c) y = Add (b, d) }"""
    check_keeps(PASS, text, "pairs of its own", target="onnx")
    check_rewrites(PASS, text, ops={"QuantizeLinear": 1, "DequantizeLinear": 1})
