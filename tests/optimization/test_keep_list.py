"""The search for what must stay in float32: one culprit alone, several, an error that adds up, and what cannot help."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest

from ortopt.optimization.half_precision_conversion import KeepListSearch


def overflowing(culprits: Collection[int]):
    def error(kept: Collection[int]) -> float:
        return 1e-3 if set(culprits) <= set(kept) else math.inf

    return error


def test_nothing_is_kept_where_the_error_is_small() -> None:
    found = KeepListSearch(lambda _: 5e-3, range(100), 1e-2).run()
    assert (found.nodes, found.before, found.after, found.probes) == ((), 5e-3, 5e-3, 1)


@pytest.mark.parametrize("culprit", [0, 1, 41, 98, 99])
def test_one_culprit_is_kept_alone(culprit: int) -> None:
    found = KeepListSearch(overflowing({culprit}), range(100), 1e-2).run()
    assert found.nodes == (culprit,)
    assert found.before == math.inf
    assert found.after == 1e-3
    assert found.probes <= 12


def test_several_culprits_are_kept_and_nothing_else() -> None:
    found = KeepListSearch(overflowing({3, 40, 77}), range(100), 1e-2).run()
    assert found.nodes == (3, 40, 77)


def test_many_culprits_take_few_probes() -> None:
    found = KeepListSearch(overflowing(range(0, 300, 2)), range(300), 1e-2).run()
    assert set(range(0, 300, 2)) <= set(found.nodes)
    assert found.after == 1e-3
    assert found.probes <= 110


def test_an_error_that_adds_up_keeps_about_what_is_needed() -> None:
    found = KeepListSearch(lambda kept: 1e-4 * (200 - len(set(kept))), range(200), 1e-2).run()
    assert found.after <= 1e-2
    assert 100 <= len(found.nodes) <= 150


def test_a_node_that_costs_more_than_the_others_goes_first() -> None:
    found = KeepListSearch(
        lambda kept: 1e-5 * (100 - len(set(kept))) + (5e-2 if 30 not in kept else 0), range(100), 1e-2
    )
    assert found.run().nodes == (30,)


def test_nothing_is_kept_where_that_does_not_help() -> None:
    found = KeepListSearch(lambda _: math.inf, range(10), 1e-2).run()
    assert (found.nodes, found.after, found.probes) == ((), math.inf, 2)


def test_what_is_left_of_the_probes_ends_with_a_result_that_is_good() -> None:
    found = KeepListSearch(overflowing(range(0, 300, 2)), range(300), 1e-2, max_probes=12).run()
    assert found.after == 1e-3
    assert found.probes <= 24
