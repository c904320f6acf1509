"""Optional outputs that nobody uses are left out, by position or at the end."""

import onnx
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites

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
