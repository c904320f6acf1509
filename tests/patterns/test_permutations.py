"""Orders of axes as exchanges of neighbouring groups."""

import itertools

import numpy as np
import pytest

from ortopt.patterns.permutations import Exchange, exchanges, hides_exchange, moves_elements, moves_one_axis, reduced

ORDERS = [order for count in range(1, 5) for order in itertools.permutations(range(count))]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_way_leads_to_its_order(order: tuple[int, ...]) -> None:
    ways = exchanges(order, 3)
    assert ways
    for way in ways:
        now = tuple(range(len(order)))
        for each in way:
            now = each.of(now)
        assert now == order


def test_ways_that_are_too_long() -> None:
    assert exchanges((2, 1, 0), 1) == []
    assert exchanges((1, 0), 1) == [(Exchange(0, 1, 2),)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_what_is_reduced_moves_the_same(order: tuple[int, ...]) -> None:
    for sizes in itertools.product((1, 2, 3), repeat=len(order)):
        x = np.arange(np.prod(sizes)).reshape(sizes)
        dims, inner = reduced(sizes, order)
        assert (x.reshape(dims).transpose(inner).reshape(-1) == x.transpose(order).reshape(-1)).all()
        assert all(dim != 1 for dim in dims)


@pytest.mark.parametrize(
    ("order", "one"), [((0, 1, 2), True), ((1, 2, 0), True), ((2, 0, 1), True), ((2, 1, 0), False), ((0,), True)]
)
def test_one_axis_that_moves(order: tuple[int, ...], one: bool) -> None:
    assert moves_one_axis(order) is one


def test_elements_that_move_alone() -> None:
    assert moves_elements((2, 3, 4), (2, 1, 0))
    assert moves_elements((2, 3, 4, 1), (1, 0, 2, 3)) is False  # one axis moves
    assert moves_elements((1, 3, 1, 4), (2, 3, 0, 1))  # one axis seems to stay, as those of size 1 are in the way
    assert moves_elements((2, 3, 4, 5), (2, 1, 0, 3)) is False  # five at once
    assert moves_elements((1, 1, 1, 5), (3, 2, 1, 0)) is False  # nothing moves


def test_axes_of_one_hide_an_exchange() -> None:
    assert hides_exchange((1, 8, 3, 8, 1, 32), (0, 3, 1, 2, 5, 4))
    assert not hides_exchange((8, 3, 8, 32), (2, 0, 1, 3))
    assert not hides_exchange((1, 2, 3, 4, 5), (0, 3, 4, 1, 2))
