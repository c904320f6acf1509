"""Paths from integers to discrete steps: where they begin, what they go through, where they end."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.analysis import whole_numbers
from ortopt.analysis.exactness import Exactness
from ortopt.framework.workspace import Workspace
from ortopt.graph.constants import is_constant
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal
from ortopt.options import Options
from ortopt.testing import parse


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
    "one of two": ("w = Cast <to = 1> (i) x = Add (r, w)", True),
    "an op of which nothing is known": ("x = my.op (i)", True),
    "a float input": ("x = Identity (f)", True),
    "arithmetic of inputs": ("w = Div (f, c) x = Max (w, r)", True),
    "an input of half the bits": ("w = Cast <to = 10> (f) x = Cast <to = 1> (w)", True),
    "a float": ("x = Identity (r)", False),
    "an integer that is constant": ("x = Cast <to = 1> (k)", False),
    "a sum of floats": ("x = ReduceSum (f)", False),
    "a product of matrices of floats": ("x = MatMul (f, ones)", False),
    "a mean": ("w = Cast <to = 1> (i) x = ReduceMean (w)", False),
    "a transcendental function": ("w = Cast <to = 1> (i) x = Exp (w)", False),
    "a choice of floats": ("x = Gather (r, i)", False),
    # whole numbers that were constants
    "a row of a table": ("x = Gather (table, i)", True),
    "elements of a table": ("w = Expand (i, one) x = GatherElements (table, w)", True),
    "an element of a table": ("p = Cast <to = 7> (i) w = Unsqueeze (p, one) x = GatherND (table, w)", True),
    "some of a table": ("b = Cast <to = 9> (i) x = Compress (table, b)", True),
    "a part of a table": ("p = Cast <to = 7> (i) u = Slice (p, zeros, one) x = Slice (table, zeros, u)", True),
    "a table again and again": ("s = Shape (f) x = Tile (table, s)", True),
    "one number at all places": ("s = Shape (f) x = Expand (c, s)", True),
    "a row of a table of halves": ("x = Gather (halves, i)", False),
    "a row of weights": ("x = Gather (weights, i)", False),
    "a row of numbers too large to count with": ("x = Gather (large, i)", False),
    "one of two constants": ("b = Cast <to = 9> (i) x = Where (b, c, one_f)", True),
    "a constant, or a float": ("b = Cast <to = 9> (i) x = Where (b, c, r)", True),
    "zero, or a float": ("b = Cast <to = 9> (i) x = Where (b, zero_f, r)", False),
    "a mask's -1e9, or a float": ("b = Cast <to = 9> (i) x = Where (b, far, r)", False),
    "a fraction, or a float": ("b = Cast <to = 9> (i) x = Where (b, half, r)", False),
    "a float, at least 2": ("x = Max (r, c)", True),
    "a float, at least 0": ("x = Max (r, zero_f)", False),
    "a float between 0 and 2": ("x = Clip (r, zero_f, c)", True),
    "a float with a 2 behind it": ("w = Unsqueeze (c, zeros) x = Concat <axis = 0> (r, w)", False),
    "a float with a table behind it": ("x = Concat <axis = 0> (r, table)", True),
    "a float with 2s around it": ("x = Pad (r, k, c)", True),
    "a float with zeros around it": ("x = Pad (r, k)", False),
    "a table in the place of floats": ("x = ScatterElements (r, k, pair)", True),
    "ones": ("s = Shape (f) x = ConstantOfShape <value = float[1] {1.0}> (s)", True),
    "ones of no known number": ("x = ConstantOfShape <value = float[1] {1.0}> (k)", True),
    "halves": ("s = Shape (f) x = ConstantOfShape <value = float[1] {0.5}> (s)", False),
    "zeros and ones": ("u = Unsqueeze (i, one) x = EyeLike <dtype = 1> (u)", True),
    "coins": ("x = Bernoulli (r)", True),
    "a range": ("n = ReduceMax <keepdims = 0> (r) x = Range (zero_f, n, one_f)", False),
    "a range of inputs": ("n = ReduceMax <keepdims = 0> (f) x = Range (zero_f, n, one_f)", True),
    # of quantized values
    "a quantized value": ("x = DequantizeLinear (q, c, zero)", True),
    "a quantized value without zero point": ("x = DequantizeLinear (q, one_f)", True),
    "a quantized value with a scale of its own": ("x = DequantizeLinear (q, half, zero)", False),
    # what was rounded
    **{f"a {op}": (f"x = {op} (r)", True) for op in ("Floor", "Ceil", "Round", "Sign")},
    # sums of whole numbers
    "a sum": ("w = Cast <to = 1> (i) x = ReduceSum (w)", True),
    "a sum of squares": ("w = Cast <to = 1> (i) x = ReduceSumSquare (w)", True),
    "a sum of whole numbers and of others": ("w = Cast <to = 1> (i) u = Add (w, r) x = ReduceSum (u)", False),
    "a sum of fractions": ("w = Cast <to = 1> (i) u = Div (w, c) x = ReduceSum (u)", False),
    "sums one after another": (
        "s = Shape (f) w = ConstantOfShape <value = float[1] {1.0}> (s) x = CumSum (w, one)",
        True,
    ),
    "a product with ones": ("w = Cast <to = 1> (i) x = MatMul (w, ones)", True),
    "a product with weights": ("w = Cast <to = 1> (i) x = MatMul (w, weights)", False),
    "a product with an input": ("w = Cast <to = 1> (i) x = MatMul (w, f)", False),
    "a product of two": ("w = Cast <to = 1> (i) u = Floor (r) x = MatMul (w, u)", True),
    "a product of what was made of them": (
        """w = Cast <to = 1> (i) a = Mul (w, c) s = Sub (a, one_f) b = Greater (s, c)
        u = Where (b, s, zero_f) x = MatMul (u, ones)""",
        True,
    ),
    "an Einsum": ('w = Cast <to = 1> (i) x = Einsum <equation = "k,k->"> (w, ones)', True),
    "a Gemm": ("w = Cast <to = 1> (i) m = Unsqueeze (w, zeros) x = Gemm <alpha = 2.0> (m, eye)", True),
    "a scaled Gemm": ("w = Cast <to = 1> (i) m = Unsqueeze (w, zeros) x = Gemm <alpha = 0.3> (m, eye)", False),
    "a convolution": ("w = Cast <to = 1> (i) m = Unsqueeze (w, pair_axes) x = Conv (m, kernel)", True),
    "a power": ("w = Cast <to = 1> (i) p = Pow (w, c) x = ReduceSum (p)", True),
    "a reciprocal": ("w = Cast <to = 1> (i) p = Pow (w, minus_f) x = ReduceSum (p)", False),
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
    <float c = {2.0}, int64[2] k = {1, 2}, int64[1] one = {1}, int64[1] zeros = {0}, int64[1] minus = {-1},
     uint8 zero = {0}, float one_f = {1.0}, float zero_f = {0.0}, float minus_f = {-1.0}, float half = {0.5},
     float far = {-1e9}, float[3] table = {0.0, 1.0, 2.0}, float[2] halves = {0.0, 0.5}, float[2] pair = {3.0, 4.0},
     float[2] large = {0.0, 16777216.0}, float[3] weights = {0.3, 1.0, 2.0}, float[3] ones = {1.0, 1.0, 1.0},
     float[3, 1] eye = {1.0, 0.0, 1.0}, int64[2] pair_axes = {0, 1}, float[1, 1, 2] kernel = {1.0, 3.0}>"""


def text(body: str, output: str = "y") -> str:
    return f"{HEAD.replace('OUT', output)} {{ {body} }}"


@pytest.mark.parametrize("begins", BEGINNINGS)
def test_where_a_path_begins(begins: str) -> None:
    body, on_a_path = BEGINNINGS[begins]
    assert step_behind(text(f"r = Exp (f) {body} v = Mul (x, c) y = Floor (v)")) == ("Floor" if on_a_path else "")


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
            x = Cast <to = 1> (i) a = own.one (x) y = Cast <to = 7> (a)
            r = Exp (f) b = own.two (r) z = Cast <to = 7> (b) }
        <domain: "own", opset_import: ["" : 17]> one (p) => (r) { v = Neg (p) r = Abs (v) }
        <domain: "own", opset_import: ["" : 17]> two (p) => (r) { w = Neg (p) r = Abs (w) }"""
    assert step_behind(model, "v") == "Cast"
    assert step_behind(model, "w") == ""


def test_edits_add_to_the_paths() -> None:
    body = "x = Cast <to = 1> (i) r = Exp (f) v = Mul (r, c) w = Mul (v, c) y = Floor (w)"
    workspace = Workspace(parse(text(body)), Options())
    exactness = workspace.exactness
    assert step_of(workspace, "w", exactness) == ""
    nodes = {node.outputs[0].name: node for node in workspace.model.graph}
    version = workspace.edit.version
    workspace.edit.set_input(nodes["v"], 0, nodes["x"].outputs[0])
    assert step_of(workspace, "v", exactness) == step_of(workspace, "w", exactness) == "Floor"
    workspace.edit.rollback(version)
    workspace.refresh()
    assert step_of(workspace, "w", workspace.exactness) == ""


def test_what_becomes_whole_later() -> None:
    body = "x = Cast <to = 1> (i) r = Exp (f) w = MatMul (x, r) v = Mul (w, c) y = Floor (v)"
    workspace = Workspace(parse(text(body)), Options())
    exactness = workspace.exactness
    assert step_of(workspace, "w", exactness) == ""
    nodes = {node.outputs[0].name: node for node in workspace.model.graph}
    workspace.edit.set_input(nodes["w"], 1, nodes["x"].outputs[0])
    assert step_of(workspace, "v", exactness) == step_of(workspace, "w", exactness) == "Floor"


def test_a_table_that_is_folded_later() -> None:
    body = "t = Cast <to = 1> (k) x = Gather (t, i) v = Mul (x, c) y = Floor (v)"
    workspace = Workspace(parse(text(body)), Options())
    exactness = workspace.exactness
    assert step_of(workspace, "v", exactness) == ""
    first = next(iter(workspace.model.graph))
    table = constant(np.array([1.0, 2.0], np.float32))
    workspace.edit.replace({first.outputs[0]: table}, before=first)
    assert step_of(workspace, "v", exactness) == "Floor"


WIDE = {
    "conversions": ("u{0} = Cast <to = 1> (i)", "x = Concat <axis = 0> ({1})"),
    "zeros that become numbers": (
        "u{0} = Loop (n, t, nil) <body = g{0} (int64 k, bool e, float[1] s) => (bool o, float[1] r) {{ "
        "r = Add (s, unit) o = Identity (e) }}>",
        "x = Concat <axis = 0> ({1})",
    ),
}


@pytest.mark.parametrize("wide", WIDE)
def test_operands_are_asked_once_however_many_there_are(wide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def counted(value: ir.Value | None) -> bool:
        nonlocal asked
        asked += 1
        return is_constant(value)

    monkeypatch.setattr(whole_numbers, "is_constant", counted)

    def questions(count: int) -> int:
        nonlocal asked
        each, last = WIDE[wide]
        body = " ".join(each.format(k) for k in range(count))
        joined = last.format(0, ", ".join(f"u{k}" for k in range(count)))
        model = f"""<ir_version: 10, opset_import: ["" : 17]> main (int32[N] i, int64 n, bool t) => (y)
            <float c = {{2.0}}, float[1] nil = {{0.0}}, float[1] unit = {{1.0}}>
            {{ {body} {joined} v = Mul (x, c) y = Floor (v) }}"""
        asked = 0
        assert step_behind(model) == "Floor"
        return asked

    few, many = questions(20), questions(200)
    assert 0 < many <= 11 * few


def test_large_constants_are_not_read_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    are_whole = whole_numbers._are_whole

    def noted(content: np.ndarray, bound: float) -> bool:
        sizes.append(content.size)
        return are_whole(content, bound)

    monkeypatch.setattr(whole_numbers, "_are_whole", noted)
    model = parse(text("x = Gather (table, i) v = Mul (x, c) y = Floor (v)"))
    (table,) = (value for name, value in model.graph.initializers.items() if name == "table")
    table.const_value = ir.Tensor(np.linspace(0.0, 1.0, 100_000, dtype=np.float32))
    workspace = Workspace(model, Options())
    assert step_of(workspace, "v", workspace.exactness) == ""
    assert 0 < sum(sizes) <= 64


@pytest.mark.parametrize(("kind", "bits"), [("float", 24), ("float16", 11), ("double", 53), ("bfloat16", 8)])
def test_up_to_where_a_type_holds_every_integer(kind: str, bits: int) -> None:
    for number, whole in ((2.0**bits - 1, True), (2.0**bits, False)):
        dtype = ir.DataType[kind.upper()]
        model = parse(f"""<ir_version: 10, opset_import: ["" : 17]> main (int32[N] i) => (y)
            <{kind}[2] table = {{0, 1}}, {kind} c = {{2}}> {{ x = Gather (table, i) v = Mul (x, c) y = Floor (v) }}""")
        model.graph.initializers["table"].const_value = ir.Tensor(np.array([0.0, number]).astype(dtype.numpy()))
        workspace = Workspace(model, Options())
        assert step_of(workspace, "v", workspace.exactness) == ("Floor" if whole else "")


def test_a_step_that_comes_later() -> None:
    workspace = Workspace(parse(text("x = Cast <to = 1> (i) v = Mul (x, c) y = Neg (v)")), Options())
    exactness = workspace.exactness
    assert step_of(workspace, "v", exactness) == ""
    (*_, last) = workspace.model.graph
    floor = ir.node("Floor", [last.inputs[0]])
    workspace.edit.replace({last.outputs[0]: floor.outputs[0]}, before=last)
    assert step_of(workspace, "v", exactness) == "Floor"
