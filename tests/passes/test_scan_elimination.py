"""A Scan over one slice is inlined; one that puts slices together again as they were is a copy."""

import pytest

from ortopt.testing import check_rewrites

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
