"""The fast version of the fuser's procedure gives the very partition of the slow one."""

import pytest

from ortopt.partition import lazy_tensor_policy
from ortopt.partition.dag import Dag
from tests.partition import oracle
from tests.partition.dags import SHAPES, draw

LIMITS = (3, 8, 128)
SEEDS = 5000 // len(SHAPES)


@pytest.mark.parametrize("shape", SHAPES)
def test_row_b_literal_policy_gives_the_identical_partition(shape: str) -> None:
    for seed in range(SEEDS):
        dag = draw(shape, seed)
        for limit in LIMITS:
            found = lazy_tensor_policy.clusters(dag, limit=limit)
            assert set(map(frozenset, found)) == oracle.clusters(dag, limit), (shape, seed, limit)


def test_the_list_survives_a_thousand_moves_to_one_place() -> None:
    order = lazy_tensor_policy._Order(3)
    for _ in range(1000):
        order.remove(0)
        order.insert_after([0], 1)
        order.remove(0)
        order.insert_before(0, 1)
    assert order.label[0] < order.label[1] < order.label[2]
    assert [order.last(), order.before(2), order.before(1), order.before(0)] == [2, 1, 0, None]


@pytest.mark.parametrize("count", [0, 1])
def test_the_smallest_graphs(count: int) -> None:
    dag = Dag([()] * count, [(0,)] * count, frozenset(), [1] * count)
    assert lazy_tensor_policy.clusters(dag, limit=128) == [[0]] * count
