"""If, Loop and Scan whose bodies hold groups or the caller's own ops: their bodies are plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from onnxruntime.capi import onnxruntime_pybind11_state as pybind

from tests.runtime.models import HEADER, Backwards, Twice, floats, session
from tests.runtime.side_by_side import check

GROUP = '<domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p, q) => (r) { s = Add (p, q) r = Relu (s) }'

IF = f"""{HEADER} main (float[N,4] x, bool c) => (float[N,4] y) <float[4] w = {{1, 2, 3, 4}}> {{
    n = Neg (x)
    y = If (c) <then_branch = yes () => (float[N,4] a) {{ a = ortopt.group.group_0 (n, w) }},
                else_branch = no () => (float[N,4] b) {{ b = Identity (x) }}>
}} {GROUP}"""

LOOP = f"""{HEADER} main (float[2,4] x, int64 n, bool go) => (float[2,4] y, float[K,2,4] all, int64[K] trips)
    <float[4] w = {{-1, 2, -3, 4}}, float limit = {{40}}> {{
    z = Neg (x)
    y, all, trips = Loop (n, go, z) <body = body (int64 i, bool c, float[2,4] v)
        => (bool more, float[2,4] vo, float[2,4] s, int64 t) {{
            vo = ortopt.group.group_0 (v, w) s = Sub (vo, x) t = Identity (i)
            sum = ReduceSum <keepdims = 0> (vo) more = Less (sum, limit) }}>
}} {GROUP}"""

SCAN = f"""{HEADER} main (float[4] h, float[S,4] a, float[4,S] b) => (float[4] y, float[4,S] ys, float[S,4] back) {{
    y, ys, back = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
        scan_output_axes = [1, 0], scan_output_directions = [0, 1],
        body = body (float[4] s, float[4] u, float[4] v) => (float[4] so, float[4] o, float[4] p) {{
            so = ortopt.group.group_0 (s, u) o = Add (so, v) p = Neg (o) }}> (h, a, b)
}} {GROUP}"""

NESTED = f"""{HEADER} main (float[4] x, int64 n) => (float[4] y) <float[4] w = {{1, 2, 3, 4}}, bool go = {{1}}> {{
    y = Loop (n, go, x) <body = body (int64 i, bool c, float[4] v) => (bool more, float[4] vo) {{
        one = Constant <value = int64 {{1}}> () odd = BitwiseAndLike (i, one) even = Equal (odd, one)
        more = Identity (c)
        vo = If (even) <then_branch = yes () => (float[4] a) {{ a = ortopt.group.group_0 (v, x) }},
                        else_branch = no () => (float[4] b) {{ b = Sub (v, w) }}>
    }}> }} {GROUP}""".replace("BitwiseAndLike (i, one)", "Mod (i, two)").replace(
    "one = Constant", "two = Constant <value = int64 {2}> () one = Constant"
)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "then": (IF, {"x": floats(3, 4), "c": np.array(True)}),
    "else": (IF, {"x": floats(3, 4), "c": np.array(False)}),
    "loop": (LOOP, {"x": floats(2, 4), "n": np.array(3), "go": np.array(True)}),
    "loop of none": (LOOP, {"x": floats(2, 4), "n": np.array(0), "go": np.array(True)}),
    "scan": (SCAN, {"h": floats(4), "a": floats(5, 4), "b": floats(4, 5, seed=1)}),
    "nested": (NESTED, {"x": floats(4), "n": np.array(3)}),
}
"""Each kind of body, with feeds."""


def test_nothing_is_stacked_up_in_the_shape_that_is_inferred() -> None:
    """The body declares no shape."""
    text = f"""{HEADER} main (float[3,4] x, int64 n) => (float[] all) <float[4] w = {{1, 2, 3, 4}}, bool go = {{1}}> {{
        all = Loop <body = body (int64 i, bool c) => (bool d, float[] t) {{
            d = Identity (c) s = Neg (x) t = ortopt.group.group_0 (s, w) }}> (n, go) }} {GROUP}"""
    for trips in (0, 2):
        (found,) = session(text).run(None, {"x": floats(3, 4), "n": np.array(trips)})
        assert found.shape == (trips, 3, 4)


@pytest.mark.parametrize(
    "text",
    [
        """main (float[2,4] x, int64 n, bool go) => (float[2,4] y) {
            y = Loop (n, go, x) <body = body (int64 i, bool c, float[2,4] v) => (bool more, float[2,4] vo) {
                more = Identity (c) vo = ortopt.group.group_0 (v, v) }> }""",
        """main (float[2,4] x, int64 n, bool go) => (float[2,4] y) {
            y = If (go) <then_branch = a () => (float[2,4] v) { v = Identity (x) },
                         else_branch = b () => (float[2,4] u) { u = ortopt.group.group_0 (x, x) }> }""",
    ],
    ids=["loop", "if"],
)
def test_a_result_that_is_an_argument_does_not_share_its_memory(text: str) -> None:
    x = floats(2, 4)
    (y,) = session(f"{HEADER} {text} {GROUP}").run(None, {"x": x, "n": np.array(0), "go": np.array(True)})
    assert_array_equal(y, x)
    assert not np.shares_memory(y, x)


@pytest.mark.parametrize("count", [0, 1, 2, 100])
@pytest.mark.parametrize("go", [True, False])
def test_loop(count: int, go: bool) -> None:
    check(LOOP, {"x": floats(2, 4), "n": np.array(count, np.int64), "go": np.array(go)})


def test_loop_without_a_count() -> None:
    text = LOOP.replace("Loop (n, go, z)", 'Loop ("", go, z)').replace(" int64 n,", "")
    text = text.replace('Loop ("", go, z)', "Loop ( , go, z)")
    check(text, {"x": floats(2, 4), "go": np.array(True)})


@pytest.mark.parametrize("length", [1, 3])
def test_scan(length: int) -> None:
    check(SCAN, {"h": floats(4), "a": floats(length, 4), "b": floats(4, length, seed=1)})


@pytest.mark.parametrize("run_type", ["ort", "reference", "host", "debug"])
@pytest.mark.parametrize("name", CASES)
def test_every_way_to_run_them(name: str, run_type: str) -> None:
    check(*CASES[name], run_type=run_type)


def test_a_wrong_condition_is_refused() -> None:
    text = IF.replace("bool c", "bool[K] c")
    mine = session(text)
    with pytest.raises(pybind.Fail, match="a single element"):
        mine.run(None, {"x": floats(1, 4), "c": np.array([True, False])})


def test_a_group_is_compiled_once_for_all_iterations() -> None:
    mine = session(LOOP)
    mine.run(None, {"x": floats(2, 4), "n": np.array(5, np.int64), "go": np.array(True)})
    statistics = mine.statistics
    assert statistics.misses == statistics.compiles == len(mine.groups)
    assert statistics.hits > 0


def test_own_ops_in_bodies() -> None:
    text = f"""{HEADER} main (float[4] x, int64 n) => (float[4] y, float[K,4] all) <bool go = {{1}}> {{
        y, all = Loop (n, go, x) <body = body (int64 i, bool c, float[4] v) => (bool more, float[4] vo, float[4] s) {{
            more = Identity (c) vo = my.Twice (v) s = Neg (vo) }}> }}"""
    check(text, {"x": floats(4), "n": np.array(3)}, host_ops=[Twice])


def test_strings_between_groups_and_own_ops() -> None:
    text = f"""{HEADER} main (string[N] x, bool c) => (string[N] y, float[N] z) {{
        a = my.Backwards (x)
        y = If (c) <then_branch = yes () => (string[N] p) {{ p = my.Backwards (a) }},
                    else_branch = no () => (string[N] q) {{ q = Identity (a) }}>
        z = Cast <to = 1> (y) }}"""
    feed = {"x": np.array(["12", "3.5"], object), "c": np.array(False)}
    check(text, feed, expected=[["21", "5.3"], np.array([21, 5.3], np.float32)], host_ops=[Backwards])


def test_sequences_between_groups() -> None:
    text = f"""{HEADER} main (float[4] x) => (float[] y, int64 n) {{
        a = ortopt.group.group_0 (x, x) b = my.Twice (a) q = SequenceConstruct (a, b, x)
        y = my.Join (q) n = SequenceLength (q) }} {GROUP}"""

    class Join(Twice):
        def _run(self, q: Any) -> tuple[Any, ...]:
            return (np.concatenate(q),)

    Join.__name__ = "Join"
    x = np.ones(4, np.float32)
    check(text, {"x": x}, expected=[np.concatenate([2 * x, 4 * x, x]), 3], host_ops=[Twice, Join])
