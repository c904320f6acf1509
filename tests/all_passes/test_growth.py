"""Four times as much of one thing takes four times as many calls, and four times the memory: counted, not timed."""

from __future__ import annotations

import cProfile
import gc
import tracemalloc
import warnings
from collections.abc import Callable

import pytest

from benchmarks.shapes import SHAPES
from ortopt import optimize

MOST = 4.6
"""Of four times as much; what a run does whatever it is given, left aside. The square would be sixteen."""

LOGARITHM = {"transposes": 5.0}
"""Where the work is that of n log n: half of the transposes go, then half of those that are left, and so on."""

SIZES = {
    "functions": 90,
    "unused_functions": 100,
    "unused_domains": 300,
    "ifs": 60,
    "loops": 40,
    "nested": 64,
    "transposes": 100,
    "layouts": 360,
    "fan_out": 160,
    "symbols": 200,
    "counted": 150,
    "turned_back": 300,
}


def _growth(measure: Callable[[bytes, int], int], shape: str, level: int) -> float:
    """How much more is measured for four times as much."""
    make, size = SHAPES[shape], SIZES[shape]
    optimize(make(size // 4).SerializeToString(), level=level, verify=False)  # what is imported and read once
    least, some, more = (measure(make(nodes).SerializeToString(), level) for nodes in (0, size, 4 * size))
    return (more - least) / (some - least)


def _calls(source: bytes, level: int) -> int:
    profile = cProfile.Profile(subcalls=False)  # counts in C, which a function for sys.setprofile does not
    profile.runcall(optimize, source, level=level, verify=False)
    return sum(entry.callcount for entry in profile.getstats())


def _peak(source: bytes, level: int) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        optimize(source, level=level, verify=False)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_grow_with_the_graph_and_not_faster(shape: str) -> None:
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # a bound of rounds is no matter here
        assert _growth(_calls, shape, 4) < LOGARITHM.get(shape, MOST)  # level 4 runs the others, too


@pytest.mark.parametrize("shape", SHAPES)
def test_memory_grows_with_the_graph_and_not_faster(shape: str) -> None:
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        assert _growth(_peak, shape, 3) < LOGARITHM.get(shape, MOST)
