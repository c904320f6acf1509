"""A partition of which some clusters are refused: their nodes stay where they are needed, the others become groups."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from numpy.testing import assert_array_equal
from onnx.reference import ReferenceEvaluator

from ortopt.analysis import shapes
from ortopt.graph.edit import Editor
from ortopt.partition.groups import groups_of
from ortopt.partition.partitioning import Partition, apply, partition
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.checks.structure import validate
from ortopt.testing import parse

CLUSTERS = 3
TEXT = """main (float[3,4] x) => (float[3,4] y, float[3,4] z, float[3,4] u) {
    a = Exp (x) b = Sin (a) c = Cos (b) d = Mul (c, a) n = Neg (d)
    e = Exp (n) f = Sin (e) g = Mul (f, e) h = Add (g, d) m = Neg (h)
    i = Cos (m) j = Add (i, h) k = Mul (j, i) y = Sin (k) z = Neg (g) u = Cos (n) }"""


def cut(model: ir.Model) -> Partition:
    (main,) = partition(model, PartitionOptions(deny=("Neg",)))
    assert len(main.clusters) == CLUSTERS
    assert all(len(cluster.nodes) > 2 for cluster in main.clusters)
    return main


def nodes_in_order(found: Partition) -> list[ir.Node]:
    """What becomes of the graph, groups taken apart."""
    units = [found.clusters[unit].nodes if isinstance(unit, int) else (unit,) for unit in found.order]
    return [node for nodes in units for node in nodes]


REFUSED = [set(some) for count in range(CLUSTERS + 1) for some in itertools.combinations(range(CLUSTERS), count)]


@pytest.mark.parametrize("refused", REFUSED, ids=str)
def test_the_rest_keeps_a_topological_order(refused: set[int]) -> None:
    whole = cut(parse(TEXT))
    found = whole.without(refused)
    assert [cluster for index, cluster in enumerate(whole.clusters) if index not in refused] == list(found.clusters)
    assert [unit for unit in found.order if isinstance(unit, int)] == list(range(CLUSTERS - len(refused)))
    assert [unit for unit in found.order if isinstance(unit, ir.Node)] == list(found.outside)
    inside = {node for cluster in found.clusters for node in cluster.nodes}
    assert set(found.outside) == set(found.graph) - inside
    assert nodes_in_order(found) == nodes_in_order(whole)
    known = set(found.graph.inputs)
    for node in nodes_in_order(found):
        assert known.issuperset(node.inputs)
        known.update(node.outputs)


@pytest.mark.parametrize("refused", REFUSED, ids=str)
def test_the_others_become_groups(refused: set[int]) -> None:
    model = parse(TEXT)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    expected = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    found = cut(model).without(refused)
    calls = apply(Editor(model, shapes.infer_node), found, 0)
    validate(model)
    assert [group.call for group in groups_of(model)] == calls
    assert len(calls) == CLUSTERS - len(refused)
    for right, got in zip(expected, ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x}), strict=True):
        assert_array_equal(got, right)
