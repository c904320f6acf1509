"""An If with a constant condition gives way to the branch that it takes."""

import onnx_ir as ir
import pytest

from ortopt import registry
from ortopt.cancellation import CancellationToken
from ortopt.framework.workspace import Workspace
from ortopt.manager import GraphTransformerManager
from ortopt.options import Options, TransformerLevel
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse

PASS = "if_inlining"


def decided(condition: str) -> str:
    return f"""main (float[N] x) => (float[N] y) {{
        c = Constant <value = {condition}> ()
        a = Relu (x)
        b = Abs (x)
        z = If (c) <
            then_branch = t () => (float[N] u) {{ i = Neg (a) u = Exp (i) }},
            else_branch = e () => (float[N] v) {{ i = Sqrt (b) v = Tanh (i) }}
        >
        y = Floor (z)
    }}"""


@pytest.mark.parametrize("condition", ["bool {1}", "bool[1] {1}"])
def test_true(condition: str) -> None:
    model = check_rewrites(PASS, before=decided(condition), after="a = Relu (x) i = Neg (a) z = Exp (i) y = Floor (z)")
    assert "z" in {value.name for node in model.graph for value in node.outputs}  # names are kept


def test_results_that_are_outputs_initializers_and_the_same_twice() -> None:
    model = check_rewrites(
        PASS,
        before="""main (float[2] x) => (float[2] p, float[2] q, float[2] r, float[2] s) <bool c = {1}> {
            p, q, r, o = If (c) <
                then_branch = t () => (float[2] u, float[2] u, float[2] w, float[2] w)
                    <float[2] w = {3, 4}> { u = Neg (x) },
                else_branch = e () => (float[2] f, float[2] g, float[2] h, float[2] i) {
                    f = Abs (x) g = Abs (x) h = Abs (x) i = Abs (x) }
            >
            s = Add (o, x)
        }""",
        ops={"If": 0, "Neg": 1, "Abs": 0, "Add": 1, "Identity": 2},
        numbers=False,  # ONNX Runtime leaves a result that a branch names twice unwritten
    )
    assert [value.name for value in model.graph.outputs] == ["p", "q", "r", "s"]
    assert len(model.graph.initializers) == 1


def test_a_wrong_declaration_stays_and_hinders_nothing() -> None:
    text = """main (float[2] x) => (float[3] y) <bool c = {1}> {
        y = If (c) <
            then_branch = t () => (float[2] u) <float[2] w = {1, 2}> { i = Add (x, w) u = Neg (i) },
            else_branch = e () => (float[3] v) <float[3] v = {1, 2, 3}> { }
        >
    }"""
    workspace = Workspace(parse(text), Options())
    assert run_in(workspace)
    assert [node.op_type for node in workspace.model.graph] == ["Add", "Neg"]
    assert workspace.model.graph.outputs[0].shape == ir.Shape([3])


def test_rolls_back_to_the_same_bytes() -> None:
    model = parse(decided("bool {1}"))
    workspace = Workspace(model, Options())
    before, start = to_bytes(model), workspace.edit.version
    assert run_in(workspace)
    assert to_bytes(model) != before
    workspace.edit.rollback(start)
    assert to_bytes(model) == before


def run_in(workspace: Workspace) -> bool:
    manager = GraphTransformerManager()
    manager.register(registry.installed().find(PASS)())
    return manager.run(workspace, TransformerLevel.LEVEL1, CancellationToken())


def test_types_survive() -> None:
    model = check_rewrites(PASS, before=decided("bool {1}"))
    assert all(value.dtype == ir.DataType.FLOAT for node in model.graph for value in node.outputs)


NESTED = """main (float[N] x, bool c) => (float[N] y) {{
    d = Not (c)
    y = If ({outer}) <
        then_branch = t () => (float[N] u) {{
            u = If ({inner}) <
                then_branch = tt () => (float[N] p) {{ p = Neg (x) }},
                else_branch = te () => (float[N] q) {{ q = Exp (x) }}
            >
        }},
        else_branch = e () => (float[N] v) {{
            v = If ({inner}) <
                then_branch = et () => (float[N] r) {{ r = Abs (x) }},
                else_branch = ee () => (float[N] s) {{ s = Sin (x) }}
            >
        }}
    >
}}"""


@pytest.mark.parametrize(
    ("outer", "inner", "left"),
    [("c", "c", ("Neg", "Sin")), ("d", "d", ("Neg", "Sin")), ("c", "d", ("Exp", "Abs")), ("d", "c", ("Exp", "Abs"))],
)
def test_decided_by_the_if_around_it(outer: str, inner: str, left: tuple[str, str]) -> None:
    model = check_rewrites(PASS, before=NESTED.format(outer=outer, inner=inner), ops={"If": 1})
    (last,) = (node for node in model.graph if node.op_type == "If")
    assert tuple(last.attributes[name].as_graph()[0].op_type for name in ("then_branch", "else_branch")) == left
