"""Unsqueeze goes if its list of axes is empty."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "unsqueeze_elimination"


def test_goes() -> None:
    check_rewrites(
        PASS,
        "main (float[N] x) => (float[N] y) <int64[0] a = {}> { t = Unsqueeze (x, a) y = Neg (t) }",
        after="main (float[N] x) => (float[N] y) { y = Neg (x) }",
    )


def test_below_and_in_a_function() -> None:
    body = "k = Constant <value = int64[0] {}> () a = Unsqueeze (x, k)"
    check_rewrites(
        PASS,
        f"""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (bool c, float[2,3] x) => (float[2,3] y) {{
            y = If (c) <
                then_branch = t () => (float[2,3] p) {{ {body} p = Neg (a) }},
                else_branch = e () => (float[2,3] q) {{ q = f.F (x) }}
            >
        }}
        <domain: "f", opset_import: ["" : 17]>
        F (x) => (q) {{ {body} q = Neg (a) }}""",
        ops={"Unsqueeze": 0},
    )


KEPT = [
    ("it adds axes", 17, "(float[N] x) => (float[N,1] y) <int64[1] a = {1}> { t = Unsqueeze (x, a) y = Neg (t) }"),
    ("the axes are not known", 17, "(float[N] x, int64[K] a) => (float[] y) { t = Unsqueeze (x, a) y = Neg (t) }"),
    ("it adds axes", 11, "(float[N] x) => (float[N,1] y) { t = Unsqueeze <axes = [1]> (x) y = Neg (t) }"),
]


@pytest.mark.parametrize(("because", "opset", "model"), KEPT)
def test_keeps(because: str, opset: int, model: str) -> None:
    check_keeps(PASS, f"main {model}", because, opset=opset)
