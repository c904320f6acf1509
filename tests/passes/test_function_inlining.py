"""A call of a local function gives way to the function's nodes."""

import pytest

from ortopt import registry
from ortopt.cancellation import CancellationToken
from ortopt.framework.workspace import Workspace
from ortopt.manager import GraphTransformerManager
from ortopt.options import Options, TransformerLevel
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse, run

PASS = "function_inlining"
MAIN = '<ir_version: 10, opset_import: ["" : 17, "f" : 1]> main'
BODY = '<domain: "f", opset_import: ["" : 17]>'


def test_in_place_of_the_call() -> None:
    model = check_rewrites(
        PASS,
        before=f"""{MAIN} (float[N] x) => (float[N] y) {{ a = Abs (x) b = f.F (a, x) y = Neg (b) }}
            {BODY} F (p, q) => (r) {{ s = Add (p, q) r = Exp (s) }}""",
        after=f"{MAIN} (float[N] x) => (float[N] y) {{ a = Abs (x) s = Add (a, x) b = Exp (s) y = Neg (b) }}",
    )
    assert not model.functions
    assert "b" in {value.name for node in model.graph for value in node.outputs}


def test_several_calls_share_constants_and_get_names_of_their_own() -> None:
    model = check_rewrites(
        PASS,
        before=f"""{MAIN} (float[2] x) => (float[2] y) {{ t = f.F (x) u = f.F (t) y = f.F (u) }}
            {BODY} F (p) => (t) {{ w = Constant <value = float[2] {{1, 2}}> () s = Add (p, w) t = Neg (s) }}""",
        ops={"Add": 3, "Neg": 3, "Constant": 0},
    )
    assert len(model.graph.initializers) == 1
    names = [value.name for node in model.graph for value in node.outputs]
    assert len(names) == len(set(names))


def test_nested_functions_and_subgraphs() -> None:
    model = check_rewrites(
        PASS,
        before=f"""{MAIN} (float[N] x, bool c) => (float[N] y) {{
                y = If (c) <
                    then_branch = t () => (float[N] u) {{ u = f.Outer (x) }},
                    else_branch = e () => (float[N] v) {{ a = f.Inner (x) v = Abs (a) }}
                >
            }}
            <domain: "f", opset_import: ["" : 17, "f" : 1]>
            Outer (p) => (r) {{
                one = Constant <value_int = 1> ()
                yes = Constant <value = bool {{1}}> ()
                q = f.Inner (p)
                r = Loop (one, yes, q) <
                    body = b (int64 i, bool k, float[N] s) => (bool l, float[N] o) {{
                        l = Identity (k) m = f.Inner (q) o = Add (m, s) }}
                >
            }}
            {BODY} Inner (p) => (r) {{ r = Neg (p) }}""",
        ops={"Neg": 3, "Loop": 1, "Add": 1},
    )
    assert not model.functions


def test_overloads() -> None:
    text = f"""{MAIN} (float[N] x) => (float[N] y) {{ a = f.F (x) y = f.F (a) }}
        {BODY} F (p) => (r) {{ r = Neg (p) }}
        {BODY} F2 (p) => (r) {{ r = Abs (p) }}"""
    model = parse(text)
    function = model.functions.pop(("f", "F2", ""))
    function.name, function.overload = "F", "two"
    model.functions[function.identifier()] = function
    model.graph[1].overload = "two"
    model = check_rewrites(PASS, before=model, ops={"Neg": 1, "Abs": 1})
    assert [node.op_type for node in model.graph] == ["Neg", "Abs"]
    assert not model.functions


def test_the_caller_gains_the_function_s_domains() -> None:
    model = check_rewrites(
        PASS,
        before=f"""{MAIN} (float[4] x) => (float[4] y) {{ y = f.F (x) }}
            <domain: "f", opset_import: ["" : 17, "com.microsoft" : 1, "unused" : 3]>
            F (p) => (r) {{ r = com.microsoft.Gelu (p) }}""",
        ops={"com.microsoft::Gelu": 1},
    )
    assert model.opset_imports["com.microsoft"] == 1
    assert "unused" not in model.opset_imports


def test_side_effects_keep_their_order_and_happen_once() -> None:
    model = check_rewrites(
        PASS,
        before="""<ir_version: 10, opset_import: ["" : 17, "f" : 1, "impure" : 1]>
            main (float[2] x) => (float[2] y) { y = f.F (x) }
            <domain: "f", opset_import: ["" : 17, "impure" : 1]>
            F (p) => (r) { a = impure.First (p) r = RandomNormalLike (p) b = impure.Second (a) }""",
        numbers=False,
    )
    assert [node.op_type for node in model.graph] == ["First", "RandomNormalLike", "Second"]


GROUP = """<ir_version: 10, opset_import: ["" : 17, "f" : 1, "ortopt.group" : 1]>
    main (float[2] x) => (float[2] y) { y = ortopt.group.g0 (x) }
    <domain: "ortopt.group", opset_import: ["" : 17, "f" : 1]> g0 (p) => (r) { s = f.F <a = 3.0> (p) r = Neg (s) }
    <domain: "f", opset_import: ["" : 17]> F <a: float = 1.0> (p) => (r) {
        k = Constant <value_float: float = @a> () r = Mul (p, k) }"""


def test_groups_stay_and_are_inlined_inside() -> None:
    model = check_rewrites(PASS, before=GROUP, ops={"ortopt.group::g0": 1, "Mul": 2, "f::F": 0})
    (group,) = (function for function in model.functions.values() if function.domain == "ortopt.group")
    assert [node.op_type for node in group] == ["Constant", "Mul", "Neg"]


KEPT = {
    "Softmax differs between opset 12 of the function and opset 17 of the caller": f"""
        {MAIN} (float[2,3,4] x) => (float[2,3,4] y) {{ y = f.F (x) }}
        <domain: "f", opset_import: ["" : 12]> F (p) => (r) {{ r = Softmax (p) }}""",
    "op differs between": f"""
        {MAIN} (float[2] x) => (float[2] y) {{ a = f.F (x) y = other.op (a) }}
        <domain: "f", opset_import: ["other" : 2]> F (p) => (r) {{ r = other.op (p) }}""".replace(
        '"f" : 1', '"f" : 1, "other" : 1'
    ),
    "the call leaves out v": f"""
        {MAIN} (float[2] x) => (float[2] y) {{ y = f.F (x) }}
        {BODY} F <v> (p) => (r) {{ k = Constant <value_float: float = @v> () r = Mul (p, k) }}""",
    "an input left out is a result": f"""
        {MAIN} (float[2] x) => (float[2] y) {{ y, z = f.F (x) k = Neg (z) }}
        {BODY} F (p, q) => (r, q) {{ r = Neg (p) }}""",
    "functions are kept": (
        f"{MAIN} (float[2] x) => (float[2] y) {{ y = f.F (x) }} {BODY} F (p) => (r) {{ r = Neg (p) }}",
        {"options": Options(keep_functions=True)},
    ),
}


def test_a_refused_call_inside_a_function_stays_a_call() -> None:
    model = check_rewrites(
        PASS,
        before=f"""{MAIN} (float[2,3] x) => (float[2,3] y) {{ y = f.G (x) }}
            <domain: "f", opset_import: ["" : 17, "f" : 1]> G (p) => (r) {{ a = f.F (p) r = Neg (a) }}
            <domain: "f", opset_import: ["" : 12]> F (p) => (r) {{ r = Softmax (p) }}""",
    )
    assert [node.op_type for node in model.graph] == ["F", "Neg"]
    assert list(model.functions) == [("f", "F", "")]


def explosive(levels: int) -> str:
    functions = "".join(
        f'<domain: "f", opset_import: ["" : 17, "f" : 1]> F{i} (p) => (r) {{ a = f.F{i - 1} (p) r = f.F{i - 1} (a) }}\n'
        for i in range(1, levels)
    )
    return f"""{MAIN} (float[2] x) => (float[2] y) {{ y = f.F{levels - 1} (x) }}
        {functions} {BODY} F0 (p) => (r) {{ r = Neg (p) }}"""


def test_doubling_functions_do_not_explode() -> None:
    model = parse(explosive(40))
    changed, explanation = run(PASS, model)
    assert changed  # the small ones, inside of the others
    assert sum(len(function) for function in model.functions.values()) < 50_000
    assert any("multiply the nodes" in refusal.reason for refusal in explanation.refusals)


def test_a_long_chain_of_functions() -> None:
    count = 1500
    functions = "".join(
        f'<domain: "f", opset_import: ["" : 17, "f" : 1]> F{i} (p) => (r) {{ r = f.F{i - 1} (p) }}\n'
        for i in range(1, count)
    )
    check_rewrites(
        PASS,
        before=f"""{MAIN} (float[2] x) => (float[2] y) {{ y = f.F{count - 1} (x) }}
            {functions} {BODY} F0 (p) => (r) {{ r = Neg (p) }}""",
        ops={"Neg": 1},
        numbers=False,  # ONNX Runtime's own inliner takes minutes
    )


def test_ever_deeper_subgraphs_are_not_built() -> None:
    functions = "".join(
        f"""<domain: "f", opset_import: ["" : 17, "f" : 1]> F{i} (p, c) => (r) {{ r = If (c) <
            then_branch = t () => (float[2] u) {{ u = f.F{i - 1} (p, c) }},
            else_branch = e () => (float[2] v) {{ v = Neg (p) }}> }}\n"""
        for i in range(1, 60)
    )
    model = parse(
        f"""{MAIN} (float[2] x, bool c) => (float[2] y) {{ y = f.F59 (x, c) }}
        {functions} {BODY} F0 (p, c) => (r) {{ r = Neg (p) }}"""
    )
    _, explanation = run(PASS, model)
    assert any("nest graphs too deeply" in refusal.reason for refusal in explanation.refusals)
    assert load(to_bytes(model)).functions


@pytest.mark.parametrize("text", [GROUP, KEPT["an input left out is a result"]])
def test_rolls_back_to_the_same_bytes(text: str) -> None:
    workspace = Workspace(parse(text), Options())
    before, start = to_bytes(workspace.model), workspace.edit.version
    manager = GraphTransformerManager()
    manager.register(registry.installed().find(PASS)())
    manager.run(workspace, TransformerLevel.LEVEL1, CancellationToken())
    workspace.edit.rollback(start)
    assert to_bytes(workspace.model) == before
