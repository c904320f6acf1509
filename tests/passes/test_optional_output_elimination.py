"""Optional outputs that nobody uses are left out, by position or at the end."""

import onnx
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites

PASS = "optional_output_elimination"

LSTM = """main (float[3,1,2] x) => (float[{shape}] r)
    <float[1,8,2] w = {{0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8}},
     float[1,8,2] u = {{0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8}}> {{
        y, h, c = LSTM <hidden_size = 2> (x, w, u)
        r = Tanh ({used})
    }}"""


@pytest.mark.parametrize(
    ("used", "shape", "names"), [("y", "3,1,1,2", ["y"]), ("h", "1,1,2", ["", "h"]), ("c", "1,1,2", ["", "", "c"])]
)
def test_lstm(used: str, shape: str, names: list[str]) -> None:
    model = check_rewrites(PASS, before=LSTM.format(used=used, shape=shape))
    written = onnx.load_from_string(to_bytes(model))
    assert list(written.graph.node[0].output) == names
    onnx.checker.check_model(written, full_check=True)


@pytest.mark.parametrize(
    "node",
    [
        "y, m = Dropout (x)",
        "y, a, b = LayerNormalization (x, w)",
        "y, i, j, k = Unique (x)",
        "y, i, , k = Unique (x)",
        "y, a, b = BatchNormalization (x, w, w, w, w)",
    ],
)
def test_at_the_end(node: str) -> None:
    op = node.split("= ")[1].split(maxsplit=1)[0]
    ranks = {"Unique": "[?]"}.get(op, "[1,2,2,2]")
    more = "<float[2] w = {1, 2}>" if "w" in node else ""
    model = check_rewrites(
        PASS,
        before=f"main (float[1,2,2,2] x) => (float{ranks} r) {more} {{ {node} r = Abs (y) }}",
        numbers=op not in ("BatchNormalization",),  # the specification has no such case; runtimes refuse it
    )
    assert len(model.graph[0].outputs) == 1


def test_everywhere() -> None:
    body = "{0}, {0}m = Dropout ({1})"
    check_rewrites(
        PASS,
        before=f"""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[1,2,2,2] x, bool c, int64 n) => (float[1,2,2,2] y, float[1,2,2,2] z) {{
                y = f.F (x)
                z = If (c) <
                    then_branch = t () => (float[1,2,2,2] u) {{ {body.format("u", "x")} }},
                    else_branch = e () => (float[1,2,2,2] v) {{ {body.format("v", "x")} }}
                >
            }}
            <domain: "f", opset_import: ["" : 17]>
            F (x) => (r) {{ {body.format("r", "x")} }}""",
    )


def test_the_indices_of_a_maxpool_stay_for_its_kernels_differ_beside_nan() -> None:
    check_keeps(PASS, "main (float[1,2,2,2] x) => (float[1,2,1,1] y) { y, m = MaxPool <kernel_shape = [2, 2]> (x) }")


def test_outputs_that_are_used() -> None:
    pool = "y, m = MaxPool <kernel_shape = [2, 2]> (x)"
    check_keeps(PASS, f"main (float[1,2,2,2] x) => (float[1,2,1,1] y, int64[1,2,1,1] m) {{ {pool} }}")
    check_keeps(
        PASS,
        """main (float[1,2,2,2] x, bool c) => (float[1,2,1,1] y, int64[1,2,1,1] z) {
            y, m = MaxPool <kernel_shape = [2, 2]> (x)
            z = If (c) <
                then_branch = t () => (int64[1,2,1,1] u) { u = Abs (m) },
                else_branch = e () => (int64[1,2,1,1] v) { v = Neg (m) }
            >
        }""",
    )


NORM = "main (float[1,2,2,2] x) => (float[1,2,2,2] y) <float[2] w = {{1, 2}}> {{ y, {} (x, w, w, w, w) }}"


def test_outputs_that_decide_whether_it_trains() -> None:
    before = NORM.format("a, b, c, d = BatchNormalization")
    check_keeps(PASS, before, "the number of outputs says whether it trains", opset=9)
    check_keeps(PASS, NORM.format("a, b = BatchNormalization <training_mode = 1>"), "it trains")
    dropout = "main (float[2] x) => (float[2] y) { y, m = Dropout <is_test = 0> (x) }"
    check_keeps(PASS, dropout, "a mode of its own", opset=6)


def test_outputs_that_are_not_optional() -> None:
    check_keeps(PASS, "main (float[4] x) => (float[2] y) { y, z = Split (x) }")
    check_keeps(PASS, "main (float[4] x) => (float[1] y) <int64[1] k = {1}> { y, i = TopK (x, k) }")
