"""What is taken out of a dictionary comes back to where it was, whatever came and went meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ortopt.graph.places import Places


@pytest.mark.parametrize("seed", range(60))
def test_every_earlier_order_comes_back(seed: int) -> None:
    rng, places = random.Random(seed), Places()
    entries: dict[int, int] = {key: key for key in range(rng.randint(0, 6))}
    undo: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    orders = [list(entries)]

    def put(key: int) -> None:
        entries[key] = key
        places.added(entries, key)
        undo.append((unput, (key,)))

    def unput(key: int) -> None:
        del entries[key]
        places.not_added(entries, key)

    def take(key: int) -> None:
        place = places.taking(entries)
        del entries[key]
        undo.append((untake, (key, place)))

    def untake(key: int, place: int) -> None:
        entries[key] = key
        places.returned(entries, place)

    for _ in range(60):
        if orders[1:] and rng.random() < 0.2:  # back to any earlier state, and on from there
            version = rng.randrange(len(orders))
            while len(undo) > version:
                function, arguments = undo.pop()
                function(*arguments)
            places.restore()
            del orders[version + 1 :]
            assert list(entries) == orders[version]
            continue
        key = rng.randrange(8)
        (take if key in entries else put)(key)
        orders.append(list(entries))
