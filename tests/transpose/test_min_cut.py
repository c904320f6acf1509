"""The cut against networkx."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from ortopt.transpose import min_cut
from ortopt.transpose.min_cut import UNBOUNDED, Network


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


@pytest.mark.parametrize("seed", range(40))
def test_both_ways_choose_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long network is divided in another way, before or after some flow has been pushed through it."""
    rng = random.Random(seed)
    count = rng.randint(1, 60)
    arcs = [(Network.SOURCE, vertex, rng.randint(0, 6)) for vertex in range(2, count + 2) if rng.random() < 0.6]
    arcs += [(vertex, Network.SINK, rng.randint(0, 6)) for vertex in range(2, count + 2) if rng.random() < 0.6]
    for vertex in range(3, count + 2):
        other = vertex - 1 - rng.randint(0, min(vertex - 3, rng.choice([0, 1, 4])))
        ends = (vertex, other) if rng.random() < 0.5 else (other, vertex)
        arcs.append((*ends, rng.choice([1, 2, 3, UNBOUNDED])))

    def divided(looks: int) -> frozenset[int] | None:
        monkeypatch.setattr(min_cut, "FEW_LOOKS", looks)
        network = Network()
        for _ in range(count):
            network.vertex()
        for arc in arcs:
            network.arc(*arc)
        return network.source_side()

    by_flow = divided(1 << 40)
    assert by_flow == min_cut.source_side(arcs, Network.SOURCE, Network.SINK)
    assert by_flow == divided(0) == divided(2)


def test_a_network_that_is_nowhere_thin_is_left_alone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    vertices = range(2, 2 + 3 * min_cut.MAX_NEIGHBOURS)
    arcs = [(tail, head, 1 + (tail * head) % 5) for tail in vertices for head in vertices if tail != head]
    arcs += [(Network.SOURCE, 2, 50), (vertices[-1], Network.SINK, 50)]
    assert min_cut.source_side(arcs, Network.SOURCE, Network.SINK) is None
    monkeypatch.setattr(min_cut, "FEW_LOOKS", 0)
    monkeypatch.setattr(min_cut, "MANY_LOOKS", 0)
    network = Network()
    for _ in vertices:
        network.vertex()
    for arc in arcs:
        network.arc(*arc)
    assert network.source_side() is None
