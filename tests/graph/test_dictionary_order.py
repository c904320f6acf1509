"""What is taken out of a dictionary comes back to where it was, whatever came and went meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ortopt.graph.undo_log import DictionaryOrder


@pytest.mark.parametrize("seed", range(60))
def test_every_earlier_order_comes_back(seed: int) -> None:
    rng, order = random.Random(seed), DictionaryOrder()
    entries: dict[int, int] = {key: key for key in range(rng.randint(0, 6))}
    undo: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    orders = [list(entries)]

    def put(key: int) -> None:
        entries[key] = key
        order.record_insertion(entries, key)
        undo.append((unput, (key,)))

    def unput(key: int) -> None:
        del entries[key]
        order.undo_insertion(entries, key)

    def take(key: int) -> None:
        length = order.before_removal(entries)
        del entries[key]
        undo.append((untake, (key, length)))

    def untake(key: int, length: int) -> None:
        entries[key] = key
        order.undo_removal(entries, length)

    for _ in range(60):
        if orders[1:] and rng.random() < 0.2:  # back to any earlier state, and on from there
            version = rng.randrange(len(orders))
            while len(undo) > version:
                function, arguments = undo.pop()
                function(*arguments)
            order.restore()
            del orders[version + 1 :]
            assert list(entries) == orders[version]
            continue
        key = rng.randrange(8)
        (take if key in entries else put)(key)
        orders.append(list(entries))
