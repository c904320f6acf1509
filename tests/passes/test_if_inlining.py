"""An If with a constant condition gives way to the branch that it takes."""

import onnx_ir as ir
import pytest

from ortopt import registry
from ortopt.cancellation import CancellationToken
from ortopt.framework.workspace import Workspace
from ortopt.manager import GraphTransformerManager
from ortopt.options import Options, TransformerLevel
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse

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


def test_false() -> None:
    check_rewrites(PASS, before=decided("bool {0}"), after="b = Abs (x) i = Sqrt (b) z = Tanh (i) y = Floor (z)")


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


def test_names_that_come_again() -> None:
    """Branches may use the names of one another, and of later nodes."""
    check_rewrites(
        PASS,
        before="""main (float[2] x, bool d) => (float[2] y) <bool c = {1}> {
            z = If (c) <
                then_branch = t1 () => (float[2] u) <float[2] w = {1, 2}> { i = Add (x, w) u = Neg (i) },
                else_branch = e1 () => (float[2] u) { u = Abs (x) }
            >
            k = If (d) <
                then_branch = t2 () => (float[2] u) <float[2] w = {3, 4}> { i = Add (z, w) u = Neg (i) },
                else_branch = e2 () => (float[2] u) { u = Abs (z) }
            >
            i = Neg (k)
            y = Abs (i)
        }""",
        ops={"If": 1, "Add": 2, "Neg": 3, "Abs": 2},
    )


def test_nested_and_below() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, int64 n, bool k) => (float[2] y) <bool yes = {1}, bool no = {0}> {
            y = Loop (n, k, x) <
                body = b (int64 i, bool c, float[2] s) => (bool d, float[2] o) {
                    d = Identity (c)
                    o = If (yes) <
                        then_branch = t () => (float[2] u) {
                            a = Neg (s)
                            u = If (no) <
                                then_branch = tt () => (float[2] p) { p = Abs (a) },
                                else_branch = te () => (float[2] q) { q = Exp (a) }
                            >
                        },
                        else_branch = e () => (float[2] v) { v = Abs (s) }
                    >
                }
            >
        }""",
        after="""main (float[2] x, int64 n, bool k) => (float[2] y) {
            y = Loop (n, k, x) <
                body = b (int64 i, bool c, float[2] s) => (bool d, float[2] o) {
                    d = Identity (c) a = Neg (s) o = Exp (a) }
            >
        }""",
    )


def test_keeps_undecided_ifs_that_it_holds() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, bool k) => (float[2] y) <bool yes = {1}> {
            y = If (yes) <
                then_branch = t () => (float[2] u) {
                    a = Neg (x)
                    u = If (k) <
                        then_branch = tt () => (float[2] p) { p = Abs (a) },
                        else_branch = te () => (float[2] q) { q = Exp (a) }
                    >
                },
                else_branch = e () => (float[2] v) { v = Abs (x) }
            >
        }""",
        after="""main (float[2] x, bool k) => (float[2] y) {
            a = Neg (x)
            y = If (k) <
                then_branch = tt () => (float[2] p) { p = Abs (a) },
                else_branch = te () => (float[2] q) { q = Exp (a) }
            >
        }""",
    )


def test_in_a_function() -> None:
    check_rewrites(
        PASS,
        before="""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[2] x) => (float[2] y) { y = f.F (x) }
            <domain: "f", opset_import: ["" : 17]>
            F (a) => (r) {
                c = Constant <value = bool {1}> ()
                r = If (c) <
                    then_branch = t () => (float[2] u) <float[2] w = {1, 2}> { u = Mul (a, w) },
                    else_branch = e () => (float[2] v) { v = Abs (a) }
                >
            }""",
        ops={"If": 0, "Mul": 1, "Abs": 0},
    )


def test_what_only_the_other_branch_used_goes_with_it() -> None:
    check_rewrites(
        PASS,
        before="""<ir_version: 10, opset_import: ["" : 17, "impure" : 1]>
            main (float[2] x) => (float[2] y) <bool c = {1}> {
            a = Abs (x)
            y = If (c) <
                then_branch = t () => (float[2] u) { u = Neg (x) },
                else_branch = e () => (float[2] v) { v = impure.Print (a) }
            >
        }""",
        ops={"If": 0, "Abs": 0, "Neg": 1, "impure::Print": 0},
        numbers=False,
    )


def test_a_side_effect_that_is_taken_stays() -> None:
    check_rewrites(
        PASS,
        before="""<ir_version: 10, opset_import: ["" : 17, "impure" : 1]>
            main (float[2] x) => (float[2] y) <bool c = {1}> {
            y = If (c) <
                then_branch = t () => (float[2] u) { n = impure.Print (x) u = Neg (x) },
                else_branch = e () => (float[2] v) { v = Abs (x) }
            >
        }""",
        ops={"If": 0, "Neg": 1, "impure::Print": 1},
        numbers=False,
    )


KEPT = {
    "it is not a constant": "(float[2] x, bool c) => (float[2] y)",
    "is not one boolean": "(float[2] x) => (float[2] y) <bool[2] c = {1, 1}>",
}


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    check_keeps(
        PASS,
        f"""main {KEPT[because]} {{
            y = If (c) <
                then_branch = t () => (float[2] u) {{ u = Neg (x) }},
                else_branch = e () => (float[2] v) {{ v = Abs (x) }}
            >
        }}""",
        because,
    )


def test_a_condition_that_may_be_overridden_is_no_constant() -> None:
    check_keeps(
        PASS,
        """main (float[2] x, bool c) => (float[2] y) <bool c = {1}> {
            y = If (c) <
                then_branch = t () => (float[2] u) { u = Neg (x) },
                else_branch = e () => (float[2] v) { v = Abs (x) }
            >
        }""",
        "it is not a constant",
    )


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


def test_decided_by_an_if_around_a_loop() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, bool c, int64 n) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] u) {
                    u = Loop (n, , x) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] o) {
                        on = Identity (go)
                        o = If (c) <
                            then_branch = tt () => (float[2] p) { p = Neg (s) },
                            else_branch = te () => (float[2] q) { q = Exp (s) }
                        >
                    }>
                },
                else_branch = e () => (float[2] v) { v = Abs (x) }
            >
        }""",
        ops={"If": 1, "Exp": 0, "Neg": 1},
    )


def test_another_condition_decides_nothing() -> None:
    check_keeps(PASS, NESTED.format(outer="c", inner="k").replace("bool c", "bool c, bool k"), "it is not a constant")
