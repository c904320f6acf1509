"""Where parts are joined behind an op: what it gives of the parts, joined there, is what it gives of the whole."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ortopt.framework.workspace import Workspace
from ortopt.graph.match import Refusal
from ortopt.options import Options
from ortopt.patterns.parallel_parts import axis_behind
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse

SIZES = (1, 0, 3)
MIDDLE = "main (float[2,N,3] x) => (float[A,B,C] y)"
FIRST = "main (float[N,1,3] x) => (float[A,B] y)"
INDICES = "main (int64[N] x) => (float[A,B,C] y)"


def behind(text: str, axis: int, other: int | None = None) -> int:
    """The axis behind the node of a model whose first input is a part along an axis."""
    workspace = Workspace(parse(text), Options())
    (node,) = (node for node in workspace.model.graph if node.op_type != "Constant")
    places = [axis if value is not None and value.name == "x" else None for value in node.inputs]
    if other is not None:
        places[1] = other
    return axis_behind(node, places)


STEPS = {
    "turned": (MIDDLE, "", "y = Transpose <perm = [2, 0, 1]> (x)", 1, 2),
    "turned around": (MIDDLE, "", "y = Transpose (x)", 1, 1),
    "a function": (MIDDLE, "", "y = Relu (x)", 1, 1),
    "with a number": (MIDDLE, "float[1] c = {2}", "y = Mul (c, x)", 1, 1),
    "with itself": (MIDDLE, "", "y = Add (x, x)", 1, 1),
    "an axis dropped": (FIRST, "int64[1] a = {-2}", "y = Squeeze (x, a)", 0, 0),
    "an axis dropped before": ("main (float[1,N] x) => (float[A] y)", "int64[1] a = {0}", "y = Squeeze (x, a)", 1, 0),
    "axes more": ("main (float[N] x) => (float[A,B,C] y)", "int64[2] a = {0, -1}", "y = Unsqueeze (x, a)", 0, 1),
    "selected by": (INDICES, "float[2,5,1] t = {1,2,3,4,5,6,7,8,9,10}", "y = Gather <axis = 1> (t, x)", 0, 1),
    "selected of, before": (MIDDLE, "int64[1] i = {1}", "y = Gather <axis = 0> (x, i)", 1, 1),
    "one selected of, before": (MIDDLE.replace("[A,B,C]", "[A,B]"), "int64 i = {1}", "y = Gather (x, i)", 1, 0),
    "selected of, behind": (MIDDLE, "int64[2] i = {0, 2}", "y = Gather <axis = 2> (x, i)", 1, 1),
    "split elsewhere": (
        MIDDLE.replace("y)", "y, float[A,B,D] z)"), "int64[2] s = {1, 2}", "y, z = Split <axis = 2> (x, s)", 1, 1
    ),
    "reshaped": ("main (float[1,N,3] x) => (float[A,B] y)", "int64[2] s = {-1, 3}", "y = Reshape (x, s)", 1, 0),
    "reshaped beside a copied size": (MIDDLE, "int64[3] s = {0, -1, 3}", "y = Reshape (x, s)", 1, 1),
    "cut elsewhere": (
        MIDDLE, "int64[1] b = {1}, int64[1] e = {9}, int64[1] a = {2}", "y = Slice (x, b, e, a)", 1, 1
    ),
    "taken apart": (MIDDLE.replace("C]", "C,D]"), "int64[4] s = {2, -1, 3, 1}", "y = Reshape (x, s)", 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_the_whole_is_its_parts(name: str) -> None:
    head, constants, body, axis, expected = STEPS[name]
    text = f"{head} {f'<{constants}>' if constants else ''} {{ {body} }}"
    assert behind(text, axis) == expected
    session = ort.InferenceSession(to_bytes(parse(text)))
    declared = session.get_inputs()[0]
    shape = [dim if isinstance(dim, int) else sum(SIZES) for dim in declared.shape]
    whole = np.arange(np.prod(shape)).reshape(shape).astype(np.int64 if "int64" in declared.type else np.float32)
    results = session.run(None, {"x": whole})
    cuts = np.split(whole, np.cumsum(SIZES)[:-1], axis)
    parts = zip(*(session.run(None, {"x": np.ascontiguousarray(part)}) for part in cuts), strict=True)
    for result, given in zip(results, parts, strict=True):
        np.testing.assert_array_equal(np.concatenate(given, expected), result)


REFUSED = [
    ("it does not keep the axis", "main (float[N] x) => (float[] y)", "int64[1] a = {0}", "y = Squeeze (x, a)", 0),
    ("a dimension may be 1", "main (float[1,N] x) => (float[A] y)", "", "y = Squeeze (x)", 1),
    ("it selects of the parts", MIDDLE, "int64[1] i = {0}", "y = Gather <axis = 1> (x, i)", 1),
    ("it does not keep the axis", MIDDLE.replace("y)", "y, float[A,B,D] z)"), "int64[2] s = {1, 2}",
     "y, z = Split <axis = 1> (x, s)", 1),
    ("it does not keep the axis", MIDDLE.replace("[A,B,C]", "[A,B]"), "int64[2] s = {-1, 3}", "y = Reshape (x, s)", 1),
    ("it does not keep the axis", MIDDLE, "int64[1] b = {1}, int64[1] e = {9}, int64[1] a = {1}",
     "y = Slice (x, b, e, a)", 1),
    ("the axes come apart", MIDDLE, "int64[3] s = {2, 4, 3}", "y = Reshape (x, s)", 1),
    ("an operand is no single number", MIDDLE, "float[3] c = {1, 2, 3}", "y = Mul (c, x)", 1),
    ("an operand raises the rank", "main (float[N] x) => (float[A,B] y)", "float[1,1] c = {1}", "y = Mul (c, x)", 0),
    ("it does more than to move", MIDDLE, "", "y = Softmax (x)", 1),
    ("the op is no standard one", MIDDLE, "", "y = com.microsoft.Gelu (x)", 1),
]  # fmt: skip


@pytest.mark.parametrize(("because", "head", "constants", "body", "axis"), REFUSED)
def test_others_are_refused(because: str, head: str, constants: str, body: str, axis: int) -> None:
    with pytest.raises(Refusal, match=because):
        behind(f"{head} {f'<{constants}>' if constants else ''} {{ {body} }}", axis)


def test_two_families() -> None:
    text = "main (float[2,N] x, float[2,N] z) => (float[2,N] y) { y = Add (x, z) }"
    assert behind(text, 1, other=1) == 1
    with pytest.raises(Refusal, match="along other axes"):
        behind(text, 1, other=0)
    with pytest.raises(Refusal, match="the parts are no data of it"):
        behind("main (float[N,3] x, int64[N] i) => (float[N,3] y) { y = Gather (x, i) }", 0, other=0)
