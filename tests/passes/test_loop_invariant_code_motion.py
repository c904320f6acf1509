"""What no iteration changes leaves its loop, if it cannot fail where the loop would not have run."""

import pytest

from ortopt.framework.workspace import Workspace
from ortopt.options import Options
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "loop_invariant_code_motion"


def loop(body: str, inputs: str = "float[2,3] a, float[3,4] b", more: str = "") -> str:
    return f"""main (float[2,4] x, int64 n, bool k, {inputs}) => (float[2,4] y) {more} {{
        y = Loop (n, , x) <body = body (int64 i, bool go, float[2,4] p) => (bool on, float[2,4] p1) {{
            on = Identity (go) {body} p1 = Add (p, r) }}>
    }}"""


@pytest.mark.parametrize(
    ("body", "moved"),
    [
        ("s = Swish (a) r = MatMul (s, b)", "Swish"),
        ("s = ReduceLogSumExp <keepdims = 1> (c) r = Add (s, p)", "ReduceLogSumExp"),
    ],
)
def test_ops_that_cannot_fail(body: str, moved: str) -> None:
    model = check_rewrites(PASS, loop(body, "float[2,3] a, float[3,4] b, float[2,4] c"), ops={"Loop": 1}, opset=24)
    assert moved in [node.op_type for node in model.graph]


def test_initializers_of_the_body_come_along() -> None:
    model = check_rewrites(
        PASS,
        before=loop("m = MatMul (a, b) r = Mul (m, w)").replace(
            "(bool on, float[2,4] p1) {", "(bool on, float[2,4] p1) <float[4] w = {1, 2, 3, 4}> {"
        ),
        ops={"Loop": 1},
    )
    assert [node.op_type for node in model.graph] == ["MatMul", "Mul", "Loop"]
    assert len(model.graph.initializers) == 1


def test_a_scan() -> None:
    model = check_rewrites(
        PASS,
        before="""main (float[2] x, float[N,2] s, float[2] k) => (float[2] y) {
            y = Scan <num_scan_inputs = 1, body = body (float[2] p, float[2] s1) => (float[2] p1) {
                e = Exp (k) t = Mul (p, e) p1 = Add (t, s1) }> (x, s)
        }""",
    )
    assert [node.op_type for node in model.graph] == ["Exp", "Scan"]


def test_out_of_loops_in_loops_at_once() -> None:
    model = check_rewrites(
        PASS,
        before="""main (float[2] x, int64 n, float[2] k) => (float[2] y) {
            y = Loop (n, , x) <body = outer (int64 i, bool go, float[2] p) => (bool on, float[2] p1) {
                on = Identity (go)
                z = Abs (p)
                p1 = Loop (n, go, p) <body = inner (int64 j, bool go2, float[2] q) => (bool on2, float[2] q1) {
                    on2 = Identity (go2)
                    e = Exp (k)
                    f = Add (e, z)
                    g = Mul (f, q)
                    q1 = Neg (g)
                }>
            }>
        }""",
    )
    assert [node.op_type for node in model.graph] == ["Exp", "Loop"]
    body = model.graph[1].attributes["body"].as_graph()
    assert [node.op_type for node in body] == ["Identity", "Abs", "Add", "Loop"]


def test_out_of_a_loop_into_the_branch_that_holds_it() -> None:
    model = check_rewrites(
        PASS,
        before="""main (float[2] x, int64 n, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] u) {
                    u = Loop (n, , x) <body = b (int64 i, bool go, float[2] p) => (bool on, float[2] p1) {
                        on = Identity (go) e = Exp (x) p1 = Add (p, e) }>
                },
                else_branch = e () => (float[2] v) { v = Neg (x) }
            >
        }""",
    )
    assert [node.op_type for node in model.graph[0].attributes["then_branch"].as_graph()] == ["Exp", "Loop"]


def test_in_a_function_constants_come_along() -> None:
    model = check_rewrites(
        PASS,
        before="""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[2] x, int64 n) => (float[2] y) { y = f.F (x, n) }
            <domain: "f", opset_import: ["" : 17]>
            F (x, n) => (y) {
                y = Loop (n, , x) <body = b (int64 i, bool go, float[2] p) => (bool on, float[2] p1) {
                    on = Identity (go)
                    two = Constant <value = float[2] {2, 3}> ()
                    e = Mul (x, two)
                    t = Add (p, two)
                    p1 = Sub (t, e)
                }>
            }""",
    )
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Constant", "Mul", "Loop"]


NAMES = """main (float[2] x, int64 n, float[2] k) => (float[2] y, float[2] z) {
    y = Loop (n, , x) <body = b1 (int64 i, bool go, float[2] p) => (bool on, float[2] p1) {
        on = Identity (go) e = Exp (k) p1 = Add (p, e) }>
    z = Loop (n, , x) <body = b2 (int64 i, bool go, float[2] p) => (bool on, float[2] p1) {
        on = Identity (go) e = Neg (k) p1 = Add (p, e) }>
}"""


def test_rolls_back_to_the_same_bytes() -> None:
    from ortopt import registry
    from ortopt.cancellation import CancellationToken
    from ortopt.manager import GraphTransformerManager
    from ortopt.options import TransformerLevel

    workspace = Workspace(parse(NAMES), Options())
    before, start = to_bytes(workspace.model), workspace.edit.version
    manager = GraphTransformerManager()
    manager.register(registry.installed().find(PASS)())
    assert manager.run(workspace, TransformerLevel.LEVEL1, CancellationToken())
    assert to_bytes(workspace.model) != before
    workspace.edit.rollback(start)
    assert to_bytes(workspace.model) == before


KEPT = {
    "an index may be out of range": ("r = Gather (a, j)", "float[5,4] a, int64[2] j", ""),
    "index may be out of range": (
        "g = Gather (a, far) r = MatMul (g, b)", "float[2,3] a, float[3,4] b", "<int64[2] far = {0, 7}>"),
    "it may divide by zero": ("d = Div (j, l) r = Cast <to = 1> (d)", "int64[2,4] j, int64[2,4] l", ""),
    "may divide by zero": (
        "d = Div (j, l) r = Cast <to = 1> (d)", "int64[2,4] j", "<int64[2,4] l = {-1,1,1,1,1,1,1,1}>"),
    "the target may not fit": ("r = Reshape (a, t)", "float[A,B] a", "<int64[2] t = {2, 4}>"),
    "the target is not known": ("r = Reshape (a, t)", "float[8] a, int64[2] t", ""),
    "the shapes may not fit": ("r = MatMul (a, b)", "float[2,K] a, float[L,4] b", ""),
    "axes: it may be no vector": ("u = Unsqueeze (a, j) r = Squeeze (u, j)", "float[2,4] a", "<int64 j = {1}>"),
    "sum: it may be no vector": ("r = ReduceSum (a, j)", "float[2,4] a", "<int64 j = {1}>"),
    "shape: it may be no vector": ("r = Reshape (a, j)", "float[4] a", "<int64 j = {4}>"),
    "target: it may be no vector": ("r = Expand (a, j)", "float[4] a", "<int64 j = {4}>"),
    "size: it may be no vector": ("c = ConstantOfShape (j) r = Add (a, c)", "float[4] a", "<int64 j = {4}>"),
    "bounds: it may be no vector": ("r = Slice (a, j, j)", "float[2,4] a", "<int64 j = {1}>"),
    "steps: it may be no vector": (
        "r = Slice (a, v, v, v, j)", "float[2,4] a", "<int64[1] v = {1}, int64 j = {1}>"),
    "it is random": ("r = RandomNormalLike (a)", "float[2,4] a", ""),
    "it holds graphs": ("""r = If (k) <then_branch = t () => (float[2,4] u) { u = Exp (a) },
        else_branch = e () => (float[2,4] v) { v = Neg (a) }>""", "float[2,4] a", ""),
    "Resize may fail": ("r = Resize (a, , w)", "float[2,4] a, float[2] w", ""),
    "it is kept beside the op": ("r = DequantizeLinear (a, w)", "int8[2,4] a, float w", ""),
    "text may not be a number": ("r = Cast <to = 1> (a)", "string[2,4] a", ""),
}  # fmt: skip


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    body, inputs, more = KEPT[because]
    check_keeps(PASS, loop(body, inputs, more), because.rpartition(": ")[2])


SAFE = {
    "Div by constants": ("d = Div (j, l) r = Cast <to = 1> (d)", "int64[2,4] j", "<int64[2,4] l = {2,1,1,1,1,1,1,1}>"),
    "Gather in range": ("r = Gather (a, j)", "float[5,4] a", "<int64[2] j = {0, -5}>"),
    "Reshape that fits": ("r = Reshape (a, j)", "float[4,2] a", "<int64[2] j = {2, 4}>"),
    "Concat": ("r = Concat <axis = 0> (a, a)", "float[1,4] a", ""),
    "Slice": ("r = Slice (a, s, t, u)", "float[9,4] a", "<int64[1] s = {1}, int64[1] t = {3}, int64[1] u = {0}>"),
    "Expand": ("r = Expand (a, t)", "float[4] a", "<int64[2] t = {2, 4}>"),
    "Gemm": ("r = Gemm <transA = 1> (a, b)", "float[3,2] a, float[3,4] b", ""),
    "Softmax": ("r = Softmax (a)", "float[2,4] a", ""),
    "ReduceMean": ("r = ReduceMean <axes = [0]> (a)", "float[3,2,4] a", ""),
    "Transpose, Unsqueeze, Squeeze": (
        "t = Transpose (a) u = Unsqueeze (t, j) r = Squeeze (u, j)", "float[4,2] a", "<int64[1] j = {1}>"),
    "Where": ("r = Where (c, a, b)", "float[2,4] a, float[4] b, bool[2,1] c", ""),
    "Clip": ("r = Clip (a, b)", "float[2,4] a, float b", ""),
    "Cast, Flatten": ("f = Flatten (a) r = Cast <to = 1> (f)", "int32[2,2,2] a", ""),
    "Shape, ConstantOfShape": ("s = Shape (a) r = ConstantOfShape (s)", "float[2,4] a", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SAFE)
def test_what_cannot_fail(name: str) -> None:
    body, inputs, more = SAFE[name]
    text = loop(body, inputs, more)
    if "keepdims" not in text:
        text = text.replace("ReduceMean <axes = [0]>", "ReduceMean <axes = [0], keepdims = 0>")
    model = parse(text)
    changed, explanation = run(PASS, model)
    assert changed, explanation.refusals
    (last,) = (node for node in model.graph if node.op_type == "Loop")
    assert [node.op_type for node in last.attributes["body"].as_graph()] == ["Identity", "Add"]
    check_rewrites(PASS, before=text)
