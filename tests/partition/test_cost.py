"""The default policy on numbers: no circles, the limit, few changes of color, linear time by count of steps."""

from __future__ import annotations

import networkx as nx
import pytest

from ortopt.partition import cost, lazy_tensor_policy
from ortopt.partition.dag import Dag, topological
from tests.partition.dags import SHAPES, draw


def quotient(dag: Dag, clusters: list[list[int]]) -> nx.DiGraph:
    home = {item: f"c{index}" for index, items in enumerate(clusters) for item in items}
    graph = nx.DiGraph()
    for item in range(len(dag)):
        graph.add_node(home.get(item, item))
        for other in dag.producers(item):
            if home.get(item, item) != home.get(other, other):
                graph.add_edge(home.get(other, other), home.get(item, item))
    return graph


@pytest.mark.parametrize("shape", SHAPES)
def test_clusters_are_disjoint_of_one_color_and_make_no_circle(shape: str) -> None:
    for seed in range(150):
        dag = draw(shape, seed)
        for limit in (3, 128):
            for horizontal in (False, True):
                found = cost.clusters(dag, limit=limit, horizontal=horizontal)
                flat = [item for items in found for item in items]
                assert sorted(flat) == [item for item in range(len(dag)) if dag.colors[item]]
                assert all(len({dag.colors[item] for item in items}) == 1 for items in found)
                assert nx.is_directed_acyclic_graph(quotient(dag, found))
            assert nx.is_directed_acyclic_graph(quotient(dag, lazy_tensor_policy.clusters(dag, limit=limit)))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_limit_holds_for_all_but_single_items(shape: str) -> None:
    for seed in range(150):
        dag = draw(shape, seed)
        for limit in (3, 8):
            for items in cost.clusters(dag, limit=limit):
                assert len(items) == 1 or sum(map(len, dag.arguments(items))) <= limit


@pytest.mark.parametrize("shape", SHAPES)
def test_never_more_segments_than_an_order_of_two_colors_needs(shape: str) -> None:
    """With two colors runs as long as can be are optimal; which color comes first makes a difference of one."""
    for seed in range(150):
        dag = draw(shape, seed)
        if max(dag.colors) > 1:
            continue
        assert len(cost.segments(dag)) <= min(longest_runs(dag, first) for first in (0, 1)) + (
            0 if dag.colors.count(0) in (0, len(dag)) else 1
        )


def longest_runs(dag: Dag, first: int) -> int:
    done: set[int] = set()
    color, runs = first, 0
    while len(done) < len(dag):
        before = len(done)
        while True:
            ready = [
                item
                for item in range(len(dag))
                if item not in done and dag.colors[item] == color and done.issuperset(dag.producers(item))
            ]
            if not ready:
                break
            done.update(ready)
        runs += len(done) > before
        color = 1 - color
    return runs


def test_branches_on_two_devices_run_side_by_side() -> None:
    """Four branches, each on both devices: side by side the device changes once."""
    reads, writes, colors = [], [], []
    for branch in range(4):
        reads += [(0,), (1 + 2 * branch,)]
        writes += [(1 + 2 * branch,), (2 + 2 * branch,)]
        colors += [1, 2]
    assert len(cost.segments(Dag(reads, writes, frozenset(), colors))) == 2


def test_a_piece_may_grow_beyond_the_limit_where_it_shrinks_again() -> None:
    """Ten results meet in one item: the prefix has 11 arguments before the end, the whole has two."""
    reads = [(0,)] * 10 + [tuple(range(1, 11))]
    dag = Dag(reads, [(value,) for value in range(1, 12)], frozenset({11}), [1] * 11)
    assert cost.within_limit(dag, range(11), 4) == [list(range(11))]


def fans(count: int) -> Dag:
    """Some times ten results that meet in one item, of an input and for an output of their own."""
    reads, writes, wanted = [], [], set()
    for fan in range(count):
        first = fan * 12
        reads += [(first,)] * 10 + [tuple(range(first + 1, first + 11))]
        writes += [(value,) for value in range(first + 1, first + 12)]
        wanted.add(first + 11)
    return Dag(reads, writes, frozenset(wanted), [1] * len(reads))


def test_pieces_are_cut_where_arguments_are_few_again() -> None:
    """Each fan has ten results under way, and two arguments in the end; two fans have just what a piece may have."""
    assert cost.within_limit(fans(3), range(33), 4) == [list(range(22)), list(range(22, 33))]
    assert cost.within_limit(fans(3), range(33), 6) == [list(range(33))]


@pytest.mark.parametrize("colors", [[1, 2, 1, 2], [2, 1, 2, 1]])
def test_the_color_for_which_most_changes_wait_comes_first(colors: list[int]) -> None:
    """Three items in a chain and one that is ready from the beginning: it waits for those of its color."""
    dag = Dag([(0,), (1,), (2,), (0,)], [(1,), (2,), (3,), (4,)], frozenset({3, 4}), colors)
    assert cost.segments(dag) == [[0], [1, 3], [2]]


def test_an_item_with_more_arguments_than_the_limit_stands_alone() -> None:
    dag = Dag([tuple(range(10)), (10,)], [(10,), (11,)], frozenset({11}), [1, 1])
    assert cost.within_limit(dag, [0, 1], 3) == [[0], [1]]


def test_a_topological_order_keeps_to_the_given_one() -> None:
    assert topological([[], [], [0], [1]], [5, 1, 0, 2]) == [1, 3, 0, 2]
    with pytest.raises(ValueError, match="circle"):
        topological([[1], [0]])
