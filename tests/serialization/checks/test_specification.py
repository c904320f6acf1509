"""What is not known is accepted; what nothing can run, and what ONNX Runtime runs, is in tests/serialization/*.txt."""

from __future__ import annotations

import onnx
import pytest

from ortopt.serialization.checks.signatures import signature
from ortopt.serialization.load import load

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "f": 1]> '
UNARY = "main (float[2,3] x) => (float[a,b] y) {{ {} }}"
SCAN = """main (float[2] s, float[3,2] x) => (float[2] y, float[p,q] z) { y, z = Scan <num_scan_inputs = 1, body =
    b (float[2] a, float[2] e) => (float[2] so, float[2] k) { so = Add (a, e) k = Neg (so) }> (s, x) }"""


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


UNKNOWN = (
    "main (float[2] x) => (float[2] y) { y = NoSuchOperator <a = 1> (x, x) }",
    "main (float[2] x) => (float[2] y) { y = com.microsoft.NoSuchOperator (x, x) }",
    "main (float[2] x) => (int64[2] y) { y = f.Unknown (x) }",
)


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known_is_welcome(text: str) -> None:
    assert load(parsed(text))


def test_opsets_of_the_future_are_welcome() -> None:
    made = parsed(UNARY.format("y = Relu (x, x)"))
    made.opset_import[0].version = 1000
    assert load(made)
    assert signature("", "Relu", 1000) is None


def test_an_old_scan_has_lengths_before_its_states() -> None:
    text = SCAN.replace("(float[2] s, float[3,2] x)", "(float[1,2] s, float[1,3,2] x)").replace(
        "> (s, x)", "> (, s, x)"
    )
    made = parsed(text)
    made.opset_import[0].version = 8
    assert load(made)
