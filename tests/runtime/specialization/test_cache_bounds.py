"""What does not fit into the cache of versions is not made again and again: compiles are counted over many calls."""

from __future__ import annotations

import math
import random
import warnings
from typing import Any

import pytest
from numpy.testing import assert_array_equal

from ortopt.runtime import session_factory
from ortopt.runtime.execution.cache import Cache
from tests.runtime.models import HEADER, floats, session

GROUPS = 5


def chain(**options: Any) -> Any:
    """A session of some groups in a row, each of which negates."""
    names = ["x", *(f"v{i}" for i in range(1, GROUPS)), "y"]
    calls = " ".join(f"{names[i + 1]} = ortopt.group.group_{i} ({names[i]})" for i in range(GROUPS))
    bodies = "".join(
        f'<domain: "ortopt.group", opset_import: ["" : 17]> group_{i} (p) => (r) {{ s = Tanh (p) r = Neg (p) }}'
        for i in range(GROUPS)
    )
    return session(f"{HEADER} main (float[N,4] x) => (float[N,4] y) {{ {calls} }} {bodies}", **options)


def call(mine: Any, rows: int = 2) -> None:
    x = floats(rows, 4)
    assert_array_equal(mine.run(None, {"x": x})[0], -x if GROUPS % 2 else x)


def call_often(mine: Any, times: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(times):
            call(mine)


@pytest.mark.parametrize("after", [1, 2, 5])
def test_as_many_versions_are_kept_as_one_call_needs(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    monkeypatch.setattr(session_factory, "DEFAULT_ENTRIES", 2)
    mine = chain(specialize_after=after)
    for _ in range(20):
        call(mine)
    found = mine.statistics
    assert (found.specializations, found.evictions, found.fallbacks) == (GROUPS, 0, 0)
    assert found.specialized_runs == GROUPS * (21 - after)


@pytest.mark.parametrize("limits", [{"cache_entries": 3}, {"cache_bytes": 3 << 18}], ids=str)
def test_where_one_call_needs_more_than_the_cache_may_hold_the_others_run_without(limits: dict[str, int]) -> None:
    mine = chain(specialize_after=2, **limits)
    call(mine)
    with pytest.warns(RuntimeWarning, match="not all groups are specialised: the cache is full") as told:
        call(mine)
    assert len(told) == 1
    for _ in range(30):
        call(mine)
    found = mine.statistics
    assert (found.specializations, found.evictions) == (3, 0)
    assert found.specialized_runs == 3 * 31


@pytest.mark.parametrize("limits", [{"cache_entries": 3}, {"cache_bytes": 3 << 18}], ids=str)
def test_versions_made_at_first_sight_are_not_made_again_while_the_others_are_in_use(limits: dict[str, int]) -> None:
    mine = chain(specialize_after=1, **limits)
    call_often(mine, 2)
    first = mine.statistics.specializations
    assert first == GROUPS  # the first call could not know
    call_often(mine, 100)
    assert mine.statistics.specializations == first


def test_sizes_that_change_at_random_are_compiled_ever_more_rarely() -> None:
    mine = chain(specialize_after=1, cache_entries=GROUPS)
    chosen = random.Random(0)
    changes, last = 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(256):
            rows = chosen.choice([1, 1, 1, 2, 2])
            changes += rows != last
            call(mine, rows)
            last = rows
    assert changes > 100
    assert mine.statistics.specializations <= 2 * GROUPS * (1 + math.log(256, 4))


def test_sizes_that_are_no_longer_used_give_way() -> None:
    mine = chain(specialize_after=2, cache_entries=GROUPS)
    for rows in (1, 2, 1, 2):
        for _ in range(20):
            call(mine, rows)
        last = [sizes for group in mine._session.context.groups for sizes, _ in group.specializations()]
        assert {sizes[0][1] for sizes in last} == {rows}
        assert len(last) == GROUPS
    assert mine.statistics.evictions == 3 * GROUPS


def test_what_is_in_use_is_not_dropped_for_something_new() -> None:
    cache: Cache[int] = Cache(2, 100)
    since = cache.clock
    assert cache.admits(1000, since)  # alone
    for key in (1, 2):
        cache.get_or_make(key, lambda key=key: (key, 10))  # type: ignore[misc]
    assert not cache.admits(10, since)
    since = cache.clock
    assert cache.admits(10, since)
    cache.get(1)
    assert cache.admits(10, since)  # 2 goes
    assert not cache.admits(95, since)  # both would go
    cache.get_or_make(2, lambda: (0, 0))
    assert not cache.admits(10, since)
    cache.max_entries = 3
    assert cache.admits(80, since)
    assert not cache.admits(81, since)
