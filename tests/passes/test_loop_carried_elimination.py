"""A state that no iteration changes is read from outside; one that only looks alike is not."""

from ortopt import optimize
from ortopt.testing import check_rewrites, parse

PASS = "loop_carried_elimination"


def test_in_a_loop_in_a_branch_and_in_a_function() -> None:
    loop = """{0} = Loop (n, , x, k) <
        body = body (int64 i, bool go, float[2] p, float[2] q) => (bool on, float[2] p1, float[2] q1) {{
            on = Identity (go)
            p1 = If (c) <
                then_branch = t () => (float[2] u) {{ u = Add (p, q) }},
                else_branch = e () => (float[2] v) {{ v = Neg (q) }}
            >
            q1 = Identity (q)
        }}>"""
    before = f"""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float[2] x, float[2] k, int64 n, bool c) => (float[2] y, float[2] z) {{
            y = f.F (x, k, n, c)
            z = If (c) <
                then_branch = tt () => (float[2] r) {{ {loop.format("r, r2")} }},
                else_branch = ee () => (float[2] o) {{ o = Abs (x) }}
            >
        }}
        <domain: "f", opset_import: ["" : 17]>
        F (x, k, n, c) => (r) {{ {loop.format("r, r2")} }}"""
    check_rewrites(PASS, before=before)
    model = optimize(parse(before), level=1, target="onnx", verify=False).model
    loops = [
        node for graph in (model.graph, model.graph[-1].attributes["then_branch"].value) for node in graph
        if node.op_type == "Loop"
    ]  # fmt: skip
    assert [len(node.inputs) for node in loops] == [3] * len(loops)


def test_a_large_weight_goes() -> None:
    entries = ", ".join(["0.001"] * 257 * 256)
    text = f"""main (float[1,257] x, int64 n) => (float[1,256] y) <float[257,256] k = {{{entries}}}, float[1,256] zero = {{{", ".join(["0"] * 256)}}}> {{
        y, c = Loop (n, , zero, k) <
            body = body (int64 i, bool go, float[1,256] p, float[257,256] w)
                => (bool on, float[1,256] p1, float[257,256] w1) {{
                on = Identity (go) q = MatMul (x, w) p1 = Add (p, q) w1 = Identity (w) }} > }}"""  # noqa: E501
    check_rewrites(PASS, text, ops={"Loop": 1})
