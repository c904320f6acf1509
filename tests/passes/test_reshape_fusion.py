"""A computed target becomes a constant where every dimension is a number, copied, or the one that remains."""

import numpy as np
import pytest

from ortopt.semantics import constant_tensor
from ortopt.serialization.load import load
from ortopt.testing import check_keeps, check_rewrites, parse, run
from ortopt.verification.verify import verify

PASS = "reshape_fusion"
ZERO_ONE_TWO = "<int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] i2 = {2}, int64[1] k4 = {4}, int64[1] m = {-1}>"


def graph(x: str, y: str, target: str, attributes: str = "") -> str:
    constants = [text for text in ZERO_ONE_TWO[1:-1].split(", ") if text.split()[1] in target.replace(")", " ").split()]
    given = f"<{', '.join(constants)}>" if constants else ""
    return f"main (float{x} x) => (float{y} y) {given} {{ s = Shape (x) {target} y = Reshape {attributes} (x, t) }}"


B, S, D = "b = Gather ( s, i0 )", "l = Gather ( s, i1 )", "d = Gather ( s, i2 )"

FUSED = {
    "heads": ("[B,S,12]", "[b,s,h,d]", f"{B} {S} t = Concat <axis = 0> (b, l, k4 , m )", [0, 0, 4, 3]),
    "heads, numbers": ("[B,S,8]", "[b,s,h,d]", f"{B} {S} t = Concat <axis = 0> (b, l, k4 , i2 )", [0, 0, 4, 2]),
    "copied and inferred": ("[B,S,D]", "[b,r]", f"{B} t = Concat <axis = 0> (b, m )", [0, -1]),
    "flat": ("[B,S,8]", "[b,r]", f"{B} {S} {D} n = Mul (l, d) t = Concat <axis = 0> (b, n)", None),
    "three inferred": ("[B,S,D,4]", "[b,r,q]", f"{B} t = Concat <axis = 0> (b, m , k4 )", [0, -1, 4]),
    "all copied": ("[B,S,D]", "[b,s,d]", f"{B} {S} {D} t = Concat <axis = 0> (b, l, d)", [0, 0, 0]),
    "rows": ("[B,S,8]", "[r,8]", f"{B} {S} n = Mul (b, l) {D} t = Concat <axis = 0> (n, d)", [-1, 8]),
    "rows of four": ("[B,S,8]", "[r,2,4]", f"{B} {S} n = Mul (b, l) t = Concat <axis = 0> (n, i2 , k4 )", [-1, 2, 4]),
    "vector": ("[B,S,D]", "[r]", "t = ReduceProd <keepdims = 1> (s)", [-1]),
}


@pytest.mark.parametrize("kind", FUSED)
def test_fuses(kind: str) -> None:
    x, y, target, expected = FUSED[kind]
    model = check_rewrites(PASS, graph(x, y, target), ops={"Concat": 0, "Gather": 0, "Shape": 0, "ReduceProd": 0})
    (node,) = model.graph
    if expected is None:
        assert node.op_type == "Flatten"
        return
    tensor = constant_tensor(node.inputs[1])
    assert tensor is not None
    assert tensor.numpy().tolist() == expected


WITNESS = """main (float[B,S,8,4] x) => (float[b,r,q] y, float[c,e] w) <int64[1] k4 = {{4}}, int64[2] u = {{0, {}}}> {{
    s = Shape (x)
    b = Slice (s, zero, one)
    l = Slice (s, one, three)
    n = ReduceProd (l)
    t = Concat <axis = 0> (b, n, k4)
    y = Reshape (x, t)
    f = Flatten <axis = 1> (x)
    w = Reshape (f, u)
}}""".replace("<int64[1] k4", "<int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] three = {{3}}, int64[1] k4")


def test_a_model_that_fails_without_elements_anyway_tells_that_there_are_some() -> None:
    model = check_rewrites(PASS, WITNESS.format(-1), ops={"Concat": 0})
    target = next(node for node in model.graph if node.outputs[0].name == "y").inputs[1]
    tensor = constant_tensor(target)
    assert tensor is not None
    assert tensor.numpy().tolist() == [0, -1, 4]


@pytest.mark.parametrize("kind", ["heads, numbers", "all copied", "flat", "rows", "rows of four", "vector"])
def test_inputs_without_elements_give_the_same_shapes(kind: str) -> None:
    x, y, target, _ = FUSED[kind]
    model = parse(graph(x, y, target))
    original = load(model)
    assert run(PASS, model)[0]
    sizes = {"B": 0, "S": 5, "D": 3}
    dims = [sizes.get(dim) if dim in sizes else int(dim) for dim in x[1:-1].split(",")]
    outcome = verify(original, model, inputs={"x": np.zeros(dims, np.float32)})
    assert outcome.status == "verified", outcome


def test_dimensions_that_are_0() -> None:
    model = check_rewrites(
        PASS,
        """main (float[2,0] x, int64[1] n) => (float[a,b] y) <int64[1] k4 = {4}> {
            s = Shape <start = 1> (x)
            t = Concat <axis = 0> (k4, s)
            y = Reshape <allowzero = 1> (x, t)
        }""",
        inputs={"x": np.zeros((2, 0), np.float32), "n": np.array([1])},
    )
    (node,) = (node for node in model.graph if node.op_type == "Reshape")
    assert node.attributes["allowzero"].as_int() == 1
    tensor = constant_tensor(node.inputs[1])
    assert tensor is not None
    assert tensor.numpy().tolist() == [4, 0]


def test_allowzero_goes_where_dimensions_are_copied() -> None:
    model = check_rewrites(
        PASS,
        graph("[B,S,8]", "[b,s,h,d]", f"{B} {S} t = Concat <axis = 0> (b, l, k4 , i2 )", "<allowzero = 1>"),
        inputs={"x": np.zeros((0, 5, 8), np.float32)},
    )
    (node,) = model.graph
    assert "allowzero" not in node.attributes


def test_a_dimension_that_allowzero_infers_is_left_to_it() -> None:
    x, y, target, _ = FUSED["three inferred"]
    check_keeps(PASS, graph(x, y, target, "<allowzero = 1>"), "a dimension beside the one to infer may be 0")
    x, y, target, _ = FUSED["copied and inferred"]
    # [0, 0, 8] becomes [0, 8]: a Flatten would give [0, 0]
    check_keeps(PASS, graph(x, y, target, "<allowzero = 1>"), "a dimension beside the one to infer may be 0")
    model = check_rewrites(PASS, graph("[B,6,4]", y, target, "<allowzero = 1>"), ops={"Concat": 0})
    assert [node.op_type for node in model.graph] == ["Reshape"]


def test_inside_a_subgraph_and_a_function() -> None:
    model = check_rewrites(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float[B,8] x, bool c) => (float[b,p,q] y) { y = f.split (x, c) }
        <domain: "f", opset_import: ["" : 17]>
        split (x, c) => (y) {
            s = Shape <end = 1> (x)
            k = Constant <value_ints = [2, 4]> ()
            t = Concat <axis = 0> (s, k)
            y = If (c) <
                then_branch = n () => (p) { p = Reshape (x, t) },
                else_branch = e () => (q) { r = Neg (x) q = Reshape (r, t) }>
        }""",
    )
    (function,) = model.functions.values()
    node = next(node for node in function if node.op_type == "If")
    branch = node.attributes["then_branch"].as_graph()
    assert [node.op_type for node in branch] == ["Constant", "Reshape"]
    assert branch[0].attributes["value"].as_tensor().numpy().tolist() == [0, 2, 4]
