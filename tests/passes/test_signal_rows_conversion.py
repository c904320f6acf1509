"""A stage of convolutions of a long signal is computed in rows of images, the overlapping pieces of the signal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from ortopt.graph.detached import new_nodes
from ortopt.options import Options
from ortopt.serialization.save import to_bytes
from ortopt.transformers.lowering.onnxruntime_cpu._signal_stages import Halo
from ortopt.transformers.lowering.onnxruntime_cpu.signal_rows_conversion import Cuts, computed_cuts, fixed_cuts
from tests.passes import example_files
from tests.passes.sessions import passed


@pytest.mark.parametrize(
    ("title", "ops", "ranks"),
    [
        ("rows of images / residuals", ("Conv", "Add"), [4] * 6),
        ("several results are joined", ("Abs",), [3]),
        ("what is elementwise at the ends stays outside", ("Abs", "Relu"), [3, 3]),
    ],
)
def test_what_works_on_images(title: str, ops: tuple[str, ...], ranks: list[int]) -> None:
    after = passed("signal_rows_conversion", example_files.text("signal_rows_conversion", title), options=Options())
    read = [node.inputs[0] for node in after.graph if node.op_type in ops]
    assert [len(value.shape or ()) for value in read if value is not None] == ranks


@pytest.mark.parametrize(("rows", "halo"), [(8, Halo(60, 60)), (4, Halo(7, 0)), (2, Halo(3, 9)), (2, Halo(5, 1))])
def test_pieces_hold_what_their_results_depend_on(rows: int, halo: Halo) -> None:
    for length in (*range(1, 150), 1000, 1001):
        _check(fixed_bounds(fixed_cuts(length, halo, rows)), length, halo)


@pytest.mark.parametrize(("rows", "halo"), [(8, Halo(60, 60)), (4, Halo(7, 0)), (2, Halo(3, 9))])
def test_pieces_that_are_computed_are_the_same(rows: int, halo: Halo) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 1, "L"]))
    cuts = computed_cuts(x, halo, rows)
    bounds = [bound for pair in zip(cuts.taken, cuts.kept, strict=True) for both in pair for bound in both]
    session = ort.InferenceSession(to_bytes(_model(x, bounds)))
    for length in (*range(1, 100), 1000, 1001):
        found = [list(map(int, bound)) for bound in session.run(None, {"x": np.zeros((1, 1, length), np.float32)})]
        computed = [found[place : place + 4] for place in range(0, 4 * rows, 4)]
        assert computed == fixed_bounds(fixed_cuts(length, halo, rows))


def _model(x: ir.Value, results: Sequence[ir.Value]) -> ir.Model:
    """A model of new nodes and constants."""
    nodes = new_nodes(results)
    constants = {value: None for node in nodes for value in node.inputs if value is not None and value.const_value}
    outputs = {value: None for node in nodes for value in node.outputs}
    for place, value in enumerate((*constants, *outputs)):
        value.name = f"v{place}"
    for value in results:
        value.type = ir.TensorType(ir.DataType.INT64)
    graph = ir.Graph([x], results, nodes=nodes, initializers=list(constants), opset_imports={"": 17})
    return ir.Model(graph, ir_version=8)


Bounds = list[list[list[int]]]
"""For each piece, what is taken: where it begins and ends; and what is kept of it: rows and columns of both."""


def fixed_bounds(cuts: Cuts) -> Bounds:
    return [[numbers(bound) for bound in (*taken, *kept)] for taken, kept in zip(cuts.taken, cuts.kept, strict=True)]


def numbers(value: ir.Value) -> list[int]:
    assert value.const_value is not None
    return [int(number) for number in value.const_value.numpy()]


def _check(bounds: Bounds, length: int, halo: Halo) -> None:
    """Each piece but those at the ends of the signal is longer than what is kept by the halo, all are equally long."""
    assert len({stop[0] - start[0] for start, stop, _, _ in bounds}) == 1
    done = 0
    for row, ((start,), (stop,), first, last) in enumerate(bounds):
        assert (first[0], last[0]) == (row, row + 1)
        assert 0 <= start <= stop <= length
        assert start + first[1] == done
        done = start + last[1]
        if last[1] > first[1]:
            assert first[1] >= halo.before or start == 0
            assert stop - start - last[1] >= halo.behind or stop == length
    assert done == length
