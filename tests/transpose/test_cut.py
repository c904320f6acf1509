"""The cut against networkx."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from ortopt.transpose.cut import UNBOUNDED, Network


@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_cheapest_and_the_smallest(seed: int) -> None:
    draw = random.Random(seed)
    network, oracle = Network(), nx.DiGraph()
    count = draw.randrange(2, 14)
    for _ in range(count - 2):
        network.vertex()
    oracle.add_nodes_from(range(count))
    for _ in range(3 * count):
        tail, head = draw.sample(range(count), 2)
        cost = draw.choice((1, 2, 3, 5, 8))
        network.arc(tail, head, cost)
        before = oracle.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        oracle.add_edge(tail, head, capacity=before + cost)
    side = network.source_side()
    value, _ = nx.minimum_cut(oracle, Network.SOURCE, Network.SINK)
    paid = sum(data["capacity"] for tail, head, data in oracle.edges(data=True) if tail in side and head not in side)
    assert paid == value
    assert Network.SOURCE in side
    assert Network.SINK not in side


def test_what_is_unbounded_is_never_cut() -> None:
    network = Network()
    a, b = network.vertex(), network.vertex()
    network.arc(Network.SOURCE, a, 5)
    network.arc(a, b, UNBOUNDED)
    network.arc(b, Network.SINK, 7)
    assert network.source_side() == {Network.SOURCE}
