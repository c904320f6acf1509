"""Paths from integers to discrete steps: where they begin, what they go through, where they end."""

from __future__ import annotations

from pathlib import Path

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
from tests.texts import Case, rows


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


HEAD = """<ir_version: 10, opset_import: ["" : 17, "my" : 1]>
    main (int32[N] i, float[N] f, uint8[N] q) => (OUT)
    <float c = {2.0}, int64[2] k = {1, 2}, int64[1] one = {1}, int64[1] zeros = {0}, int64[1] minus = {-1},
     uint8 zero = {0}, float one_f = {1.0}, float zero_f = {0.0}, float minus_f = {-1.0}, float half = {0.5},
     float far = {-1e9}, float[3] table = {0.0, 1.0, 2.0}, float[2] halves = {0.0, 0.5}, float[2] pair = {3.0, 4.0},
     float[2] large = {0.0, 16777216.0}, float[3] weights = {0.3, 1.0, 2.0}, float[3] ones = {1.0, 1.0, 1.0},
     float[3, 1] eye = {1.0, 0.0, 1.0}, int64[2] pair_axes = {0, 1}, float[1, 1, 2] kernel = {1.0, 3.0}>"""


def text(body: str, output: str = "y") -> str:
    return f"{HEAD.replace('OUT', output)} {{ {body} }}"


IN_GRAPHS = """<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
    main (int32[N] i, float[N] f, bool b, int64 n) => (int64[N] y) <float c = {2.0}> {
        x = Cast <to = 1> (i) v = Mul (x, c) BODY }
    <domain: "own", opset_import: ["" : 17]> half (a) => (r) { t = Abs (a) r = Neg (t) }
    <domain: "own", opset_import: ["" : 17]> whole (a) => (r) { t = Abs (a) r = Cast <to = 7> (t) }"""


@pytest.mark.parametrize(("part", "row"), rows(Path(__file__).parent / "cases" / "exactness.txt"))
def test_where_a_path_begins_and_ends(part: Case, row: list[str]) -> None:
    on_a_path, title, body = row
    match part.title:
        case "begins":
            found = step_behind(text(f"r = Exp (f) {body} v = Mul (x, c) y = Floor (v)"))
            assert found in ("", "Floor")
        case "ends":
            found = step_behind(text(f"x = Cast <to = 1> (i) v = Mul (x, c) {body}"))
        case "crosses graphs":
            found = step_behind(IN_GRAPHS.replace("BODY", body))
            assert found == "Cast"
    assert bool(found) is (on_a_path == "yes"), title


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
