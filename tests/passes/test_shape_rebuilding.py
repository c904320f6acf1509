"""Shapes are read from what is there where that takes fewer nodes, and never where it does not."""

from ortopt.testing import check_rewrites

PASS = "shape_rebuilding"


def test_in_a_loop_and_in_a_function() -> None:
    nodes = """zero = Constant <value = int64 {{0}}> () one = Constant <value = int64 {{1}}> ()
        at0 = Constant <value = int64[1] {{0}}> () s = Shape ({0}) b = Gather (s, zero) l = Gather (s, one)
        bu = Unsqueeze (b, at0) lu = Unsqueeze (l, at0) t = Concat <axis = 0> (lu, bu) c = ConstantOfShape (t)"""
    check_rewrites(
        PASS,
        before=f"""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[B,L] x, int64 n) => (float[L,B] y, float[B,L] z) {{
                y = f.F (x)
                z = Loop (n, , x) <body = b (int64 i, bool go, float[B,L] p) => (bool on, float[B,L] p1) {{
                    on = Identity (go) {nodes.format("p")} v = Transpose (c) p1 = Add (p, v) }}>
            }}
            <domain: "f", opset_import: ["" : 17]>
            F (x) => (c) {{ {nodes.format("x")} }}""",
        ops={"Shape": 4, "Gather": 0, "Unsqueeze": 0, "Concat": 2},
    )
