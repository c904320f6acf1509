"""Paths from integers to discrete steps: where they begin, what they go through, where they end."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.analysis.exactness import Exactness
from ortopt.graph.match import Refusal
from ortopt.options import Options
from ortopt.testing import parse
from ortopt.workspace import Workspace


def step_behind(text: str, name: str = "v") -> str:
    """The step behind the value of this name, or nothing."""
    workspace = Workspace(parse(text), Options())
    return step_of(workspace, name, workspace.exactness)


def step_of(workspace: Workspace, name: str, exactness: Exactness) -> str:
    for graph in workspace.edit.index.graphs():
        for node in graph:
            if any(value.name == name for value in node.outputs):
                found = exactness.step_behind([node])
                return "" if found is None else found[1]
    raise Refusal(f"no value is called {name}")


BEGINNINGS = {
    "an integer": ("x = Cast <to = 1> (i)", True),
    "a mask": ("b = Cast <to = 9> (i) x = Cast <to = 1> (b)", True),
    "a shape": ("s = Shape (f) x = Cast <to = 1> (s)", True),
    "an index": ("p = ArgMax <axis = 0> (f) x = Cast <to = 1> (p)", True),
    "one of two": ("w = Cast <to = 1> (i) x = Add (f, w)", True),
    "an op of which nothing is known": ("x = my.op (i)", True),
    "a float": ("x = Identity (f)", False),
    "an integer that is constant": ("x = Cast <to = 1> (k)", False),
    "a quantized value": ("x = DequantizeLinear (q, c, zero)", False),
    "a sum": ("w = Cast <to = 1> (i) x = ReduceSum (w)", False),
    "a product of matrices": ("w = Cast <to = 1> (i) x = MatMul (w, f)", False),
    "a transcendental function": ("w = Cast <to = 1> (i) x = Exp (w)", False),
    "a choice": ("x = Gather (f, i)", False),
}

STEPS = {
    **{op: (f"y = {op} (v)", True) for op in ("Floor", "Ceil", "Round", "Sign")},
    "an integer": ("y = Cast <to = 6> (v)", True),
    "a boolean": ("y = Cast <to = 9> (v)", True),
    "text": ("y = Cast <to = 8> (v)", True),
    "a comparison": ("y = Less (v, f)", True),
    "a remainder": ("y = Mod <fmod = 1> (v, c)", True),
    "the largest": ("y = ArgMax <axis = 0> (v)", True),
    "the place of the largest": ("z, y = TopK <axis = 0> (v, one)", True),
    "a threshold": ("y = Shrink <lambd = 0.5> (v)", True),
    "distinct values": ("y = Unique (v)", True),
    "a size": ("m = Squeeze (v) y = Resize (f, , m)", True),
    "a number of elements": ("m = ReduceMax <keepdims = 0> (v) y = Range (m, c, c)", True),
    "through others": (
        "a = Abs (v) t = Concat <axis = 0> (a, f) r = Reshape (t, minus) u = Max (r, c) y = Floor (u)",
        True,
    ),
    "a root": ("a = Abs (v) r = Sqrt (a) y = Cast <to = 7> (r)", True),
    "an op of which nothing is known": ("y = my.op (v)", True),
    "a result": ("y = Neg (v)", False),
    "a quotient of few": ("m = Softsign (v) y = Floor (m)", True),
    "half of the bits": ("y = Cast <to = 10> (v)", False),
    "the largest itself": ("y, z = TopK <axis = 0> (v, one)", False),
    "a shape": ("y = Shape (v)", False),
    "a question for NaN": ("y = IsNaN (v)", False),
    "a quantized value": ("y = QuantizeLinear (v, c, zero)", False),
    "a sum": ("m = ReduceMean (v) y = Floor (m)", False),
    "a product of matrices": ("m = MatMul (v, f) y = Floor (m)", False),
    "a transcendental function": ("m = Tanh (v) y = Floor (m)", False),
}

HEAD = """<ir_version: 10, opset_import: ["" : 17, "my" : 1]>
    main (int32[N] i, float[N] f, uint8[N] q) => (OUT)
    <float c = {2.0}, int64[2] k = {1, 2}, int64[1] one = {1}, int64[1] minus = {-1}, uint8 zero = {0}>"""


def text(body: str, output: str = "y") -> str:
    return f"{HEAD.replace('OUT', output)} {{ {body} }}"


@pytest.mark.parametrize("begins", BEGINNINGS)
def test_where_a_path_begins(begins: str) -> None:
    body, on_a_path = BEGINNINGS[begins]
    assert step_behind(text(f"{body} v = Mul (x, c) y = Floor (v)")) == ("Floor" if on_a_path else "")


@pytest.mark.parametrize("steps", STEPS)
def test_where_a_path_ends(steps: str) -> None:
    body, on_a_path = STEPS[steps]
    found = step_behind(text(f"x = Cast <to = 1> (i) v = Mul (x, c) {body}"))
    assert bool(found) is on_a_path, found


CROSSED = {
    "a branch": """y = If (b) <then_branch = g () => (int64[N] p) { p = Cast <to = 7> (v) },
        else_branch = h () => (int64[N] r) { s = Neg (v) r = Cast <to = 7> (s) }>""",
    "out of a branch": """w = If (b) <then_branch = g () => (float[N] p) { p = Neg (v) },
        else_branch = h () => (float[N] r) { r = Abs (v) }> y = Cast <to = 7> (w)""",
    "a loop's state": """w = Loop (n, b, v) <body = g (int64 t, bool e, float[N] s) => (bool o, float[N] r) {
        r = Neg (s) o = Identity (e) }> y = Cast <to = 7> (w)""",
    "a loop's next round": """u, w = Loop (n, b, v, f) <body = g (int64 t, bool e, float[N] s, float[N] z)
        => (bool o, float[N] z2, float[N] r) { z2 = Identity (z) r = Neg (s) o = Identity (e) }>
        y = Cast <to = 7> (w)""",
    "a function": "w = own.half (v) y = Cast <to = 7> (w)",
    "a step in a function": "y = own.whole (v)",
}


@pytest.mark.parametrize("what", CROSSED)
def test_paths_go_through_graphs(what: str) -> None:
    model = f"""<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        main (int32[N] i, float[N] f, bool b, int64 n) => (int64[N] y) <float c = {{2.0}}> {{
            x = Cast <to = 1> (i) v = Mul (x, c) {CROSSED[what]} }}
        <domain: "own", opset_import: ["" : 17]> half (a) => (r) {{ t = Abs (a) r = Neg (t) }}
        <domain: "own", opset_import: ["" : 17]> whole (a) => (r) {{ t = Abs (a) r = Cast <to = 7> (t) }}"""
    assert step_behind(model) == "Cast"


def test_only_the_function_that_is_called_with_integers() -> None:
    model = """<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        main (int32[N] i, float[N] f) => (int64[N] y, int64[N] z) {
            x = Cast <to = 1> (i) a = own.one (x) b = own.two (f) y = Cast <to = 7> (a) z = Cast <to = 7> (b) }
        <domain: "own", opset_import: ["" : 17]> one (p) => (r) { v = Neg (p) r = Abs (v) }
        <domain: "own", opset_import: ["" : 17]> two (p) => (r) { w = Neg (p) r = Abs (w) }"""
    assert step_behind(model, "v") == "Cast"
    assert step_behind(model, "w") == ""


def test_edits_add_to_the_paths() -> None:
    workspace = Workspace(parse(text("x = Cast <to = 1> (i) v = Mul (f, c) w = Mul (v, c) y = Floor (w)")), Options())
    exactness = workspace.exactness
    assert step_of(workspace, "w", exactness) == ""
    nodes = {node.outputs[0].name: node for node in workspace.model.graph}
    version = workspace.edit.version
    workspace.edit.set_input(nodes["v"], 0, nodes["x"].outputs[0])
    assert step_of(workspace, "v", exactness) == step_of(workspace, "w", exactness) == "Floor"
    workspace.edit.rollback(version)
    workspace.refresh()
    assert step_of(workspace, "w", workspace.exactness) == ""


def test_a_step_that_comes_later() -> None:
    workspace = Workspace(parse(text("x = Cast <to = 1> (i) v = Mul (x, c) y = Neg (v)")), Options())
    exactness = workspace.exactness
    assert step_of(workspace, "v", exactness) == ""
    (*_, last) = workspace.model.graph
    floor = ir.node("Floor", [last.inputs[0]])
    workspace.edit.replace({last.outputs[0]: floor.outputs[0]}, before=last)
    assert step_of(workspace, "v", exactness) == "Floor"
