"""A Scan over one slice is inlined; one that puts slices together again as they were is a copy."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "scan_elimination"


def one(attributes: str, shape: str) -> str:
    return f"""main (float[2] x, float{shape} s) => (float[2] y, float[?,?] z) {{
        y, z = Scan <num_scan_inputs = 1 {attributes},
            body = body (float[2] p, float[2] q) => (float[2] p1, float[2] q1) {{ p1 = Add (p, q) q1 = Exp (p) }}
        > (x, s)
    }}"""


@pytest.mark.parametrize("opset", [9, 11, 13, 17])
@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ("", "[1,2]"),
        (", scan_input_axes = [1], scan_output_axes = [1]", "[2,1]"),
        (", scan_input_axes = [1], scan_input_directions = [1], scan_output_directions = [1]", "[2,1]"),
    ],
)
def test_one_slice(attributes: str, shape: str, opset: int) -> None:
    ops = {"Scan": 0, "Add": 1, "Exp": 1, "Squeeze": 1, "Unsqueeze": 1}
    model = check_rewrites(PASS, before=one(attributes, shape), ops=ops, opset=opset)
    assert [value.name for value in model.graph.outputs] == ["y", "z"]


def test_a_copy() -> None:
    check_rewrites(
        PASS,
        before="""main (float[2] x, float[N,2] s, float[N,2] t) => (float[2] y, float[N,2] z) {
            y, a, b = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1], scan_output_directions = [1, 0],
                body = body (float[2] p, float[2] q, float[2] r) => (float[2] p1, float[2] q1, float[2] r1) {
                    p1 = Add (p, q) i = Identity (r) q1 = Identity (i) r1 = Identity (q) }
            > (x, s, t)
            z = Sub (a, b)
        }""",
        after="""y, a, b = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1], scan_output_directions = [1, 0],
                body = body (float[2] p, float[2] q, float[2] r) => (float[2] p1, float[2] q1, float[2] r1) {
                    p1 = Add (p, q) i = Identity (r) q1 = Identity (i) r1 = Identity (q) }
            > (x, s, t)
            z = Sub (t, s)""",
    )


def test_only_copies() -> None:
    check_rewrites(
        PASS,
        before="""main (float[N,2] s) => (float[N,2] z) {
            z = Scan <num_scan_inputs = 1, body = body (float[2] q) => (float[2] q1) { q1 = Identity (q) }> (s)
        }""",
        after="z = Identity (s)",
    )


def test_in_a_branch_and_in_a_function() -> None:
    scan = """r, r1 = Scan <num_scan_inputs = 1, body = body (float[2] p, float[2] q) => (float[2] p1, float[2] q1) {
        p1 = Add (p, q) q1 = Exp (p) }> (x, s)"""
    check_rewrites(
        PASS,
        before=f"""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[2] x, float[1,2] s, bool c) => (float[2] y, float[2] z) {{
                y = f.F (x, s)
                z = If (c) <
                    then_branch = t () => (float[2] r) {{ {scan} }},
                    else_branch = e () => (float[2] o) {{ o = Abs (x) }}
                >
            }}
            <domain: "f", opset_import: ["" : 17]>
            F (x, s) => (r) {{ {scan} }}""",
        ops={"Scan": 0, "Add": 2},
    )


@pytest.mark.parametrize(
    ("attributes", "because"),
    [
        ("", "more than one slice"),
        (", scan_output_directions = [1]", "another axis or in another direction"),
        (", scan_output_axes = [1]", "another axis or in another direction"),
        (", scan_input_directions = [1]", "another axis or in another direction"),
    ],
)
def test_keeps(attributes: str, because: str) -> None:
    returned = "Exp" if not attributes else "Identity"
    check_keeps(
        PASS,
        f"""main (float[N,2] s) => (float[?,?] z) {{
            z = Scan <num_scan_inputs = 1 {attributes}, body = body (float[2] q) => (float[2] q1) {{
                q1 = {returned} (q) }}> (s)
        }}""",
        because,
    )
