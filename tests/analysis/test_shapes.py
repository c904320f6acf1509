"""Inference as a whole: what it keeps, what it overrides, nested graphs, functions, hostile models."""

import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser

from ortopt.analysis import shapes
from ortopt.graph import facts, symbolic
from tests.analysis.truth import check, infer, infer_proto, parse, text
from tests.work import instructions


def _f(*dims: int) -> np.ndarray:
    return np.ones(dims, np.float32)


def test_symbols_travel() -> None:
    values = check(
        "t = MatMul(x, w) y = Add(t, b)",
        "float[N,8] x, float[8,M] w, float[M] b",
        {"x": _f(3, 8), "w": _f(8, 4), "b": _f(4)},
    )
    assert text(values["y"]) == "float[N,M]"


def test_names_that_are_no_identifiers_travel() -> None:
    proto = parse("y = Concat<axis=0>(x, x)", "float[N,8] x")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch size"
    assert text(infer_proto(proto)["y"]) == "float[2*`batch size`,8]"


def test_a_rank_that_doubles_with_each_node_is_given_up() -> None:
    """A Gather whose data and indices are of the same rank has a result of nearly twice that."""
    count = 60
    steps = (f"i{n} = Cast<to=7>(v{n}) v{n + 1} = Gather<axis=0>(v{n}, i{n})" for n in range(count))
    proto = parse(f"v0 = Relu(x) {' '.join(steps)} y = Identity(v{count})", "float[2,2] x")
    values = infer_proto(proto)
    assert [len(facts.dims_of(values[f"v{n}"]) or ()) for n in range(8)] == [2, 3, 5, 9, 17, 33, 0, 0]
    assert values["y"].shape is None


def test_expressions_in_files_are_expressions() -> None:
    proto = parse("y = Concat<axis=0>(x, x)", "float[N,8] x")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "1+N"
    assert text(infer_proto(proto)["y"]) == "float[2*N + 2,8]"


def test_stale_declarations_lose() -> None:
    proto = parse("t = Relu(x) y = Relu(t)", "float[N,8] x")
    proto.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT16, [1, 8, 3]))
    assert text(infer_proto(proto)["t"]) == "float[N,8]"


def test_declarations_prove_nothing_of_what_depends_on_data() -> None:
    proto = parse("t = NonZero(x) y = Identity(t)", "float[N,8] x")
    proto.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.INT64, [2, "count"]))
    values = infer_proto(proto)
    assert text(values["y"]) == "int64[2,?]"
    assert facts.claim_of(values["t"]) == (2, symbolic.symbol("count"))
    proto.graph.value_info[0].type.tensor_type.shape.dim[0].dim_value = 7
    assert facts.claim_of(infer_proto(proto)["t"]) is None  # what is proven wrong is forgotten


def test_unknown_ops_keep_their_declaration() -> None:
    proto = parse("t = local.Mystery(x) y = Relu(t)", "float[N,8] x")
    assert text(infer_proto(proto)["y"]) == "?"
    proto.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, ["N", 3]))
    assert text(infer_proto(proto)["y"]) == "float[N,3]"


def test_unknown_dimensions_are_the_same_where_they_must_be() -> None:
    values = infer("t = NonZero(x) u = Relu(x) v = Transpose<perm=[1,0]>(t) y = Add(t, t)", "float[N,8] x")
    assert symbolic.equal(shapes.dims_of(values["t"])[1], shapes.dims_of(values["v"])[0])
    other = infer("t = NonZero(x) u = NonZero(x) y = Concat<axis=0>(t, u)", "float[N,8] x")
    assert not symbolic.equal(shapes.dims_of(other["t"])[1], shapes.dims_of(other["u"])[1])


def test_inputs_of_unknown_dimensions_are_equal_to_themselves() -> None:
    proto = parse("y = Add(x, x) z = Relu(y)", "float[N,8] x")
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    values = infer_proto(proto)
    assert symbolic.same_shape(shapes.dims_of(values["x"]), shapes.dims_of(values["z"]))
    assert values["x"].shape.dims[0].value is None


def test_names_of_invented_symbols_in_a_file_mean_nothing() -> None:
    proto = parse("y = Add(x, z)", "float[N,8] x, float[N,8] z")
    for declared in proto.graph.input:
        declared.type.tensor_type.shape.dim[0].dim_param = symbolic.INVENTED + "1:x:0"
    values = infer_proto(proto)
    assert not symbolic.equal(shapes.dims_of(values["x"])[0], shapes.dims_of(values["z"])[0])


def test_the_interface_stays_and_is_known_better() -> None:
    proto = parse("y = Relu(x)", "float[N,8] x")
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", None]))
    y = infer_proto(proto)["y"]
    assert y.shape == ir.Shape(["rows", None])
    assert text(y) == "float[N,8]"
    y.shape = ir.Shape([3, 4])
    assert text(y) == "float[3,4]"


def test_a_missing_output_declaration_stays_missing_and_is_known_all_the_same() -> None:
    y = infer("y = Relu(x)", "float[N,8] x")["y"]
    assert y.dtype == ir.DataType.FLOAT
    assert y.shape is None
    assert shapes.shape_of(y) == ir.Shape(["N", 8])


def test_inferring_again_changes_nothing() -> None:
    proto = parse("t = NonZero(x) s = Shape(t) u = Reshape(x, s) y = Relu(u)", "float[N,8] x")
    model = ir.from_proto(proto)
    shapes.infer_model(model)
    first = ir.to_proto(model).SerializeToString(deterministic=True)
    shapes.infer_model(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == first


def test_an_overridable_initializer_is_no_constant() -> None:
    proto = parse("y = Reshape(x, target)", "float[N,8] x, int64[2] target")
    proto.graph.initializer.append(helper.make_tensor("target", TensorProto.INT64, [2], [-1, 4]))
    assert text(infer_proto(proto)["y"]) == "float[?,?]"
    del proto.graph.input[1]
    assert text(infer_proto(proto)["y"]) == "float[2*N,4]"


BRANCHES = """
    y = If (c) <
        then_branch = one () => (float[N,8] p) { p = Relu(x) },
        else_branch = two () => (float[N,8] q) { q = Concat<axis=0>(x, x) }>
    z = Relu(y)
"""


def test_branches_are_joined() -> None:
    feeds = {"c": np.array(True), "x": _f(3, 8)}
    assert text(check(BRANCHES, "bool c, float[N,8] x", feeds)["z"]) == "float[?,8]"
    constant = "c = Constant<value = bool {1}>()" + BRANCHES
    assert text(check(constant, "float[N,8] x", {"x": _f(3, 8)})["z"]) == "float[N,8]"


def test_branches_do_not_mix_up_invented_symbols() -> None:
    body = """
        a, b = If (c) <
            then_branch = one () => (int64[2,k] t, int64[2,k] t2) { t = NonZero(x) t2 = Identity(t) },
            else_branch = two () => (int64[2,k] t, int64[2,k] t2) { t = NonZero(w) t2 = Identity(t) }>
        z = Concat<axis=0>(a, b)
    """
    values = infer(body, "bool c, float[N,8] x, float[M,8] w")
    assert text(values["a"]) == "int64[2,?]"
    assert not symbolic.equal(shapes.dims_of(values["a"])[1], shapes.dims_of(values["b"])[1])


LOOP = """
    n = Constant<value = int64 {3}>()
    c = Constant<value = bool {1}>()
    final, grown, all = Loop (n, c, x, x) <
        body = step (int64 i, bool go, float[A,8] kept, float[B,8] more) =>
            (bool going, float[A,8] same, float[B,8] longer, float[A,8] scanned) {
            going = Identity(go)
            same = Relu(kept)
            longer = Concat<axis=0>(more, x)
            scanned = Identity(kept)
        }>
    r0 = Relu(final)
    r1 = Relu(grown)
    r2 = Relu(all)
"""


def test_loops_keep_what_no_iteration_changes() -> None:
    values = check(LOOP, "float[N,8] x", {"x": _f(2, 8)})
    assert text(values["r0"]) == "float[N,8]"
    assert text(values["r1"]) == "float[?,8]"
    assert text(values["r2"]) == "float[3,N,8]"


@pytest.mark.parametrize("declared", ["float[N,8] r", "float[q,8] r", "float[] r", "float[N,7] r"])
@pytest.mark.parametrize("trips", [0, 2])
def test_no_iteration_stacks_up_to_what_the_body_declares(declared: str, trips: int) -> None:
    body = f"""
        all = Loop(n, ) <body = step (int64 i, bool go) => (bool on, {declared}) {{ on = Identity(go) r = Relu(x) }}>
        y = Identity(all)
    """
    check(
        body.replace("(n, )", "(n, c)"),
        "float[N,8] x, int64 n, bool c",
        {"x": _f(3, 8), "n": np.array(trips), "c": np.array(True)},
    )


GROWING = """
    y, sizes = Loop (n, , x) <body = step (int64 i, bool go, float[a] state)
        => (bool on, float[b] next, int64[1] size) {
            on = Identity(go)
            inner = Relu(state)
            size = Shape(inner)
            next = Concat<axis=0>(inner, inner)
    }>
"""


@pytest.mark.parametrize("declared", ["float[a] state", "float[] state"])
def test_what_the_first_iteration_is_holds_for_no_other(declared: str) -> None:
    model = ir.from_proto(parse(GROWING.replace("float[a] state", declared), "float[3] x, int64 n"))
    shapes.infer_model(model)
    (loop,) = model.graph
    body = loop.attributes["body"].as_graph()
    inner = body.node(1).outputs[0]
    assert text(inner) == "float[?]"
    assert not any(isinstance(dim, int) for dim in shapes.contents(body.outputs[2]) or ())
    assert body.inputs[2].shape is None or not isinstance(body.inputs[2].shape[0], int)


def test_scan() -> None:
    body = """
        last, all = Scan <num_scan_inputs = 1,
            body = step (float[4] state, float[4] item) => (float[4] next, float[4] out) {
                next = Add(state, item)
                out = Identity(next)
            }> (s, x)
        y = Relu(all)
    """
    values = check(body, "float[4] s, float[T,4] x", {"s": _f(4), "x": _f(5, 4)})
    assert text(values["last"]) == "float[4]"
    assert text(values["y"]) == "float[T,4]"


FUNCTION = """
    <domain: "local", opset_import: ["" : 17]> twice (p) => (r) { r = Concat<axis=0>(p, p) }
    <domain: "local", opset_import: ["" : 17]> four (p) => (r) { q = local.twice(p) r = local.twice(q) }
    <domain: "local", opset_import: ["" : 17]> picked <axis> (p) => (r) { r = Softmax<axis: int = @axis>(p) }
    <domain: "local", opset_import: ["" : 17]> count (p) => (r) { r = NonZero(p) }
"""


def test_functions_are_inferred_for_each_call() -> None:
    values = infer(
        "a = local.twice(x) b = local.four(w) y = local.twice(b)", "float[N,8] x, float[M] w", functions=FUNCTION
    )
    assert text(values["a"]) == "float[2*N,8]"
    assert text(values["y"]) == "float[8*M]"


def test_two_calls_do_not_share_invented_symbols() -> None:
    values = infer("a = local.count(x) b = local.count(x) y = Concat<axis=0>(a, b)", "float[N,8] x", functions=FUNCTION)
    first, second = shapes.dims_of(values["a"]), shapes.dims_of(values["b"])
    assert first[0] == 2
    assert not symbolic.equal(first[1], second[1])


def test_a_body_holds_what_all_calls_agree_on() -> None:
    proto = parse(
        "a = local.twice(x) b = local.twice(w) y = Concat<axis=0>(a, b)",
        "float[N,8] x, float[M,8] w",
        functions=FUNCTION,
    )
    model = ir.from_proto(proto)
    shapes.infer_model(model)
    twice = model.functions["local", "twice", ""]
    assert text(twice.inputs[0]) == "float[?,8]"
    assert text(twice.outputs[0]) == "float[?,8]"


def test_what_one_call_is_holds_for_no_other() -> None:
    functions = '<domain: "local", opset_import: ["" : 17]> f (p) => (r) { q = Relu(p) t = Abs(q) r = Shape(t) }'
    model = ir.from_proto(
        parse("a = local.f(x) b = local.f(w) y = Add(a, b)", "float[3] x, float[5] w", functions=functions)
    )
    shapes.infer_model(model)
    function = model.functions["local", "f", ""]
    assert text(function.graph.node(1).outputs[0]) == "float[?]"
    assert not any(isinstance(dim, int) for dim in shapes.contents(function.outputs[0]) or ())


def test_recursive_functions_end() -> None:
    functions = '<domain: "local", opset_import: ["" : 17]> f (p) => (r) { q = Relu(p) r = local.f(q) }'
    assert text(infer("y = local.f(x)", "float[N] x", functions=functions)["y"]) == "?"


def test_deep_nesting() -> None:
    x = ir.val("x", dtype=ir.DataType.FLOAT, shape=ir.Shape(["N", 8]))
    condition = ir.val("c", dtype=ir.DataType.BOOL, shape=ir.Shape([]))
    node = ir.node("Relu", [x])
    for _ in range(500):
        other = ir.node("Relu", [x])
        branch = ir.Graph([], other.outputs, nodes=[other], name="else")
        inner = ir.Graph([], node.outputs, nodes=[node], name="then")
        node = ir.node("If", [condition], {"then_branch": inner, "else_branch": branch})
    root = ir.Graph([x, condition], node.outputs, nodes=[node], opset_imports={"": 17}, name="root")
    shapes.infer_model(ir.Model(root, ir_version=9))
    assert text(node.outputs[0]) == "float[N,8]"


def test_loops_in_loops_end() -> None:
    """Each level gives up one dimension: walking each body twice would take 2 ** 60 walks."""
    x = ir.val("x", dtype=ir.DataType.FLOAT, shape=ir.Shape(["N", 8]))
    n = ir.val("n", dtype=ir.DataType.INT64, shape=ir.Shape([]))
    c = ir.val("c", dtype=ir.DataType.BOOL, shape=ir.Shape([]))

    def body(inner: ir.Node | None) -> ir.Graph:
        i, go, state = (ir.val(name) for name in ("i", "go", "state"))
        same = ir.node("Identity", [go])
        nodes = [same] if inner is None else [same, inner]
        grown = ir.node("Concat", [state, x if inner is None else inner.outputs[0]], {"axis": 0})
        return ir.Graph([i, go, state], [same.outputs[0], grown.outputs[0]], nodes=[*nodes, grown], name="body")

    node = ir.node("Loop", [n, c, x], {"body": body(None)})
    for _ in range(60):
        node = ir.node("Loop", [n, c, x], {"body": body(node)})
    root = ir.Graph([x, n, c], node.outputs, nodes=[node], opset_imports={"": 17}, name="root")
    shapes.infer_model(ir.Model(root, ir_version=9))
    assert node.outputs[0].dtype == ir.DataType.FLOAT


def test_one_new_node() -> None:
    proto = parse("t = Relu(x) y = Relu(t)", "float[N,8] x")
    model = ir.from_proto(proto)
    shapes.infer_model(model)
    t = model.graph[0].outputs[0]
    node = ir.node("Concat", [t, t], {"axis": 1})
    shapes.infer_node(node)
    assert text(node.outputs[0]) == "float[N,16]"
    nonzero = ir.node("NonZero", [t])
    other = ir.node("NonZero", [t])
    shapes.infer_node(nonzero)
    shapes.infer_node(other)
    assert not symbolic.equal(shapes.dims_of(nonzero.outputs[0])[1], shapes.dims_of(other.outputs[0])[1])


def test_one_new_node_in_a_nested_graph_has_the_opset_of_the_model() -> None:
    model = ir.from_proto(parse(BRANCHES, "bool c, float[N,8] x", opset=11))
    shapes.infer_model(model)
    branch = model.graph[0].attributes["then_branch"].as_graph()
    node = ir.node("Squeeze", [model.graph.inputs[1]], {"axes": [0]})
    branch.append(node)
    shapes.infer_node(node)
    assert text(node.outputs[0]) == "float[8]"


def test_what_has_no_rule_is_asked_of_onnx() -> None:
    values = infer("t = Det(x) y = Identity(t)", "float[N,2,2] x", opset=17)
    assert values["y"].dtype == ir.DataType.FLOAT
    assert text(values["y"]) == "float[N]"


def test_sympy_and_onnx_stay_out() -> None:
    code = """
import sys, ortopt
ortopt.defer_sympy()
import onnx_ir as ir
from ortopt.analysis import shapes
x = ir.val("x", dtype=ir.DataType.FLOAT, shape=ir.Shape(["N", "M + 1"]))
nodes = [ir.node("Shape", [x])]
nodes.append(ir.node("Reshape", [x, nodes[0].outputs[0]]))
nodes.append(ir.node("Concat", [x, nodes[1].outputs[0]], {"axis": 0}))
shapes.infer_model(ir.Model(ir.Graph([x], nodes[-1].outputs, nodes=nodes, opset_imports={"": 17}), ir_version=9))
assert str(shapes.shape_of(nodes[-1].outputs[0])) == "[2*N,M + 1]"
print("sympy" in sys.modules, "onnxruntime" in sys.modules)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "False"]


def test_cost_is_linear() -> None:
    def work(count: int) -> int:
        x = ir.val("x", dtype=ir.DataType.FLOAT, shape=ir.Shape(["N", 16]))
        nodes = [ir.node("Relu", [x])]
        while len(nodes) < count:
            nodes.append(ir.node("Add", [nodes[-1].outputs[0], x]))
        model = ir.Model(ir.Graph([x], nodes[-1].outputs, nodes=nodes, opset_imports={"": 17}), ir_version=9)
        return instructions(lambda: shapes.infer_model(model))

    work(10)  # what is done once
    assert work(800) < 9 * work(100)


def test_heads_are_split_and_joined_through_shape_arithmetic() -> None:
    """The pattern of every exported transformer: all shapes come from Shape, Gather, Concat."""
    body = """
        s = Shape(x)
        zero = Constant<value = int64 {0}>()
        one = Constant<value = int64 {1}>()
        front = Constant<value = int64[1] {0}>()
        heads = Constant<value = int64[2] {2, -1}>()
        b = Gather(s, zero)
        t = Gather(s, one)
        b1 = Unsqueeze(b, front)
        t1 = Unsqueeze(t, front)
        split = Concat<axis=0>(b1, t1, heads)
        q = Reshape(x, split)
        qt = Transpose<perm=[0,2,1,3]>(q)
        kt = Transpose<perm=[0,2,3,1]>(q)
        scores = MatMul(qt, kt)
        p = Softmax(scores)
        ctx = MatMul(p, qt)
        back = Transpose<perm=[0,2,1,3]>(ctx)
        rest = Constant<value = int64[1] {-1}>()
        join = Concat<axis=0>(b1, t1, rest)
        y = Reshape(back, join)
        z = Add(y, x)
    """
    values = check(body, "float[B,T,8] x", {"x": _f(2, 5, 8)})
    assert text(values["scores"]) == "float[B,2,T,T]"
    assert text(values["y"]) == "float[B,T,8]"
    assert shapes.shape_of(values["z"]) is not None
    assert symbolic.same_shape(shapes.dims_of(values["z"]), shapes.dims_of(values["x"]))


CUT = "n = Shape<start=2>(x) a = Sub(n, four) l = Div(a, two) r = ConstantOfShape(l)"


def test_a_convolution_that_a_branch_alone_computes_bounds_nothing() -> None:
    """Where it is computed in every run, its window does: then the division does not round upwards."""
    numbers = "int64[1] four = {4}, int64[1] two = {2}"
    always = f"c = Conv (x, w) {CUT} k = ReduceSum <keepdims = 0> (c) y = Add (r, k)"
    branch = (
        f"k = If (b) <then_branch = t () => (float u) {{ c = Conv (x, w) u = ReduceSum <keepdims = 0> (c) }}, "
        f"else_branch = e () => (float v) {{ v = ReduceSum <keepdims = 0> (x) }}> {CUT} y = Add (r, k)"
    )
    shapes = []
    for body in (always, branch):
        proto = parser.parse_model(
            '<ir_version: 9, opset_import: ["": 17]> main (float[1,1,S] x, float[1,1,5] w, bool b) => (float[L] y) '
            f"<{numbers}> {{ {body} }}"
        )
        shapes.append(str(facts.dims_of(infer_proto(proto)["r"])[0]))
    assert shapes == ["S//2 - 2", "max(S//2 - 2, min((S + 1)//2 - 2, 0))"]
