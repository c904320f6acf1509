"""Views between groups are views: no session, no copy, ONNX Runtime's sizes and errors."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.runtime.planning.graph_planner import ZeroCopyReshape
from ortopt.runtime.values.tensors import to_ort
from tests.releases import since
from tests.runtime.models import HEADER, Twice, floats, session
from tests.runtime.side_by_side import bound, check, quiet, value

GROUP = '<domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p) => (r) { r = Neg (p) }'

VIEWS = {
    "Reshape (a, s) int64[2] s = {3, -1}": (2, 3, 4),
    "Reshape (a, s) int64[3] s = {0, 0, -1}": (2, 3, 4, 5),
    "Reshape (a, s) int64[1] s = {-1}": (),
    "Reshape (a, s) int64[0] s = {}": (1, 1),
    "Reshape (a, s) int64[3] s = {0, 5, 2}": (0, 10),
    "Flatten (a) int64 s = {0}": (2, 3, 4),
    "Flatten <axis = 0> (a) int64 s = {0}": (2, 3),
    "Flatten <axis = -1> (a) int64 s = {0}": (2, 3, 4),
    "Squeeze (a, s) int64[2] s = {0, -1}": (1, 3, 1),
    "Unsqueeze (a, s) int64[2] s = {0, -1}": (2, 3),
    "Unsqueeze (a, s) int64[2] s = {3, 1}": (2, 3),
    "Identity (a) int64 s = {0}": (2, 3),
}


def text_of(view: str, rank: int, after: str = "y = my.Twice (v)") -> str:
    call, constant = view.split(") int64", 1)
    dims = ",".join(f"D{i}" for i in range(rank))
    x = f"float[{dims}] x" if rank else "float x"
    return f"""{HEADER} main ({x}) => (float[] y) <int64{constant}> {{
        a = ortopt.group.group_0 (x) v = {call}) {after} }} {GROUP}"""


@pytest.mark.parametrize("view", VIEWS)
def test_sizes_are_onnx_runtimes(view: str) -> None:
    shape = VIEWS[view]
    text = text_of(view, len(shape))
    mine = check(text, {"x": np.asarray(floats(*shape), np.float32)}, host_ops=[Twice])
    assert mine.statistics.compiles == 2  # the group and the host


@since(1, 21, "DLPack, by which an array is not copied")
def test_a_view_is_not_copied() -> None:
    given = to_ort(floats(3, 4))
    (made,) = ZeroCopyReshape(np.ravel, lambda values, options: pytest.fail("a session ran"))([given], None)
    assert made.shape() == [12]
    assert made.data_ptr() == given.data_ptr()


@pytest.mark.parametrize("view", ["Reshape (a, s) int64[1] s = {5}", "Squeeze (a, s) int64[1] s = {0}"])
def test_errors_are_onnx_runtimes(view: str) -> None:
    mine = session(text_of(view, 2), host_ops=[Twice], sess_options=quiet())
    with pytest.raises(Exception, match=r"ONNXRuntimeError|Non-zero status"):
        mine.run(None, {"x": floats(2, 3)})


def test_a_view_of_an_input_is_not_handed_out() -> None:
    text = f"""{HEADER} main (float[N,4] x) => (float[M] y, float[N,4] z) <int64[1] s = {{-1}}> {{
        y = Reshape (x, s) z = my.Twice (x) }}"""
    mine = session(text, host_ops=[Twice])
    x = np.ones((2, 4), np.float32)
    mine.run(None, {"x": x})[0][:] = 7
    (found,) = mine.run_with_ort_values(["y"], {"x": value(x)})
    assert found.data_ptr() != x.ctypes.data
    bound(mine, {"x": value(x)}, ["y"]).copy_outputs_to_cpu()[0][:] = 7
    assert x.tolist() == [[1] * 4] * 2
