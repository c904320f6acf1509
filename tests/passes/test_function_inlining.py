"""A call of a local function gives way to the function's nodes."""

from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse, run

PASS = "function_inlining"
MAIN = '<ir_version: 10, opset_import: ["" : 17, "f" : 1]> main'
BODY = '<domain: "f", opset_import: ["" : 17]>'


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
    assert [(node.op_type, node.outputs[0].name) for node in model.graph] == [("Neg", "a"), ("Abs", "y")]
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
