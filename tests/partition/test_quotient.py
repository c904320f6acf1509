"""The quotient graph: its generations and its critical path, against networkx."""

from __future__ import annotations

import sys
from itertools import pairwise

import networkx as nx
import pytest

from ortopt import zoo
from ortopt.errors import UsageError
from ortopt.partition import partitioning
from ortopt.partition.quotient import Quotient, quotients
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.load import load
from ortopt.testing import parse

DIAMOND = """
main (float[2] x) => (float[2] y, float[2] x2) {
    a = Relu (x)
    b = Exp (a)
    c = Sin (a)
    d = Add (b, b)
    y = Mul (c, d)
    x2 = Identity (x)
}"""


def of(model: str, deny: str) -> list[Quotient]:
    """Those of the diamond, or of a model of the zoo, with groups between the ops that no provider is to run."""
    loaded = parse(DIAMOND) if model == "diamond" else load(zoo.cached(model))
    partitioning.group(loaded, PartitionOptions(deny=tuple(deny.split())))
    partitioning.prepare(loaded)
    return quotients(loaded)


@pytest.mark.parametrize(
    ("model", "deny"),
    [
        ("diamond", "Exp Sin Add"),
        ("diamond", ""),
        ("bert_small__ts17", "Softmax Erf Mul"),
        ("control_flow__script17", "Tanh"),
    ],
)
def test_generations_and_the_critical_path_are_those_of_networkx(model: str, deny: str) -> None:
    for quotient in of(model, deny):
        graph = quotient.as_networkx()
        assert quotient.generations() == [sorted(names) for names in nx.topological_generations(graph)]
        size = {vertex.name: vertex.nodes for vertex in quotient.vertices}
        weighted = nx.DiGraph((source, target, {"nodes": size[target]}) for source, target in graph.edges())
        path = quotient.critical_path()
        assert all(weighted.has_edge(*edge) for edge in pairwise(path))
        first = {vertex for vertex in weighted if not weighted.in_degree(vertex)}
        weighted.add_edges_from(("start", vertex, {"nodes": size[vertex]}) for vertex in first)
        assert sum(size[name] for name in path) == nx.dag_longest_path_length(weighted, weight="nodes")


def test_the_longer_arm_of_a_diamond_is_critical() -> None:
    (quotient,) = of("diamond", "Exp Sin Add")
    assert quotient.generations()[0] == ["inputs"]
    path = quotient.critical_path()
    assert "Exp" in path
    assert "Sin" not in path


def test_without_networkx_there_is_no_graph_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    (quotient,) = of("diamond", "Exp")
    with pytest.raises(UsageError, match=r"pip install 'ortopt\[networkx\]'"):
        quotient.as_networkx()
