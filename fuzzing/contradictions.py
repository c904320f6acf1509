"""Where ONNX Runtime's own kernels contradict themselves, so that two right models differ.

Seen in ONNX Runtime 1.31, each in a few lines without ortopt:

- ``ReduceMax`` and ``ReduceMin`` find other numbers beside a NaN as the reduced axis lies first or last in memory.
- ``Where`` turns -0.0 into +0.0 where it comes from its second operand, and not where it comes from the third.
- A reduction of what is empty keeps its shape if its axes are negative: ``ReduceSum([6, 0], axes=[-1])`` is [6, 0].
- Neighbours without kernels for float16 hand each other float32; a subgraph's border, or a node between, rounds it.
- ``Gather`` of strings copies the first string of each block, and leaves the others empty.

The first four can be taken out of a model without changing the rest (`tamed`); the last makes the original's results
meaningless (`is_meaningless`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import numpy as np
import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fuzzing.protos import graphs_of

_FLOATS: Final = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
_BESIDE_NAN: Final = ("ReduceMax", "ReduceMin")


KINDS: Final = frozenset({"nan", "zero", "axes", "half"})
"""What can be taken out of a model: NaN in a ReduceMax or ReduceMin, -0.0 in a Where, negative axes of a reduction,
float16 that is not rounded."""

SIGNS: Final = frozenset({"divisor"})
"""What can be taken out, too, where no pass has promised the same bits: the sign of a zero that divides, and numbers so
small that their reciprocal is infinite."""

_DIVISORS: Final = {"Div": 1, "Reciprocal": 0}


def tamed(model: ModelProto, what: Collection[str] = KINDS) -> ModelProto | None:
    """A model that computes the same, but for what ONNX Runtime contradicts itself at.

    Args:
        model: The model.
        what: Which of `KINDS` and `SIGNS`: a pass may have left out the node that contradicts itself in one of them.

    Returns:
        A copy without functions in which a ReduceMax reads 0 for NaN, a Where (and a division) +0.0 for -0.0, no axis
        of a reduction is negative, and each float16 is one; None if it has none of these.
    """
    found = False
    twin = _typed(model)
    kinds: dict[str, int] = {}
    ranks: dict[str, int] = {}
    for graph in graphs_of(twin.graph):
        infos = {one.name: one.type.tensor_type for one in (*graph.input, *graph.value_info, *graph.output)}
        ranks |= {name: len(info.shape.dim) for name, info in infos.items() if info.HasField("shape")}
        ranks |= {one.name: len(one.dims) for one in graph.initializer}
        kinds |= {name: info.elem_type for name, info in infos.items()}
        kinds |= {one.name: one.data_type for one in graph.initializer}
    for graph in graphs_of(twin.graph):
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            positions: tuple[int, ...] = ()
            if node.op_type == "Where" and "zero" in what:
                positions = (1, 2)
            elif node.op_type in _BESIDE_NAN and "nan" in what:
                positions = (0,)
            elif node.op_type in _DIVISORS and "divisor" in what:
                positions = (_DIVISORS[node.op_type],)
            node_input = node.input[0] if node.input else ""
            for i in positions:
                if kinds.get(node.input[i], 0) in _FLOATS:
                    found = True
                    graph.node.extend(_replaced(node, i, kinds[node.input[i]]))
            reduces = "axes" in what and node.op_type.startswith("Reduce") and not node.domain
            if reduces and ranks.get(node_input, 0):
                found = True
                graph.node.extend(_counted_from_the_first(node, ranks[node_input]))
            rounded = [] if "half" not in what else list(_rounded(node, kinds))
            found = found or bool(rounded)
            graph.node.extend((node, *rounded))
    return twin if found else None


def _rounded(node: NodeProto, kinds: Mapping[str, int]) -> Iterator[NodeProto]:
    """Nodes behind a node that take its float16 results as what they are.

    Identity has a kernel for them, which is used where two stand together: one between others would run in float32.
    """
    for i, name in enumerate(node.output):
        if kinds.get(name) == TensorProto.FLOAT16:
            node.output[i] = f"{name}~raw"
            yield helper.make_node("Identity", [f"{name}~raw"], [f"{name}~rounded"])
            yield helper.make_node("Identity", [f"{name}~rounded"], [name])


def _typed(model: ModelProto) -> ModelProto:
    """A copy without functions that tells the types of its values."""
    inlined = onnx.inliner.inline_local_functions(model)
    try:
        return onnx.shape_inference.infer_shapes(inlined)
    except onnx.shape_inference.InferenceError:  # of domains that it does not know
        return inlined


def _replaced(node: NodeProto, i: int, kind: int) -> Iterator[NodeProto]:
    """Nodes before a node that reads another value in the place of an operand."""
    old = node.input[i]
    new = f"{node.output[0]}~{i}"
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    zero, least = (numpy_helper.from_array(np.array(one, dtype)) for one in (0, np.finfo(dtype).tiny))
    yield helper.make_node("Constant", [], [f"{new}~zero"], value=zero)
    if node.op_type in _DIVISORS:
        yield helper.make_node("Constant", [], [f"{new}~least"], value=least)
        yield helper.make_node("Abs", [old], [f"{new}~size"])
        yield helper.make_node("Less", [f"{new}~size", f"{new}~least"], [f"{new}~small"])
        yield helper.make_node("Where", [f"{new}~small", f"{new}~zero", old], [new])
    elif node.op_type == "Where":
        yield helper.make_node("Add", [old, f"{new}~zero"], [new])
    else:
        yield helper.make_node("IsNaN", [old], [f"{new}~nan"])
        yield helper.make_node("Where", [f"{new}~nan", f"{new}~zero", old], [new])
    node.input[i] = new


def _counted_from_the_first(node: NodeProto, rank: int) -> Iterator[NodeProto]:
    """Nodes before a reduction whose axes are no longer negative."""
    for attribute in node.attribute:
        if attribute.name == "axes":
            attribute.ints[:] = [axis % rank for axis in attribute.ints]
    if len(node.input) > 1 and node.input[1]:
        new = f"{node.output[0]}~axes"
        yield helper.make_node("Constant", [], [f"{new}~rank"], value=numpy_helper.from_array(np.array(rank, np.int64)))
        yield helper.make_node("Mod", [node.input[1], f"{new}~rank"], [new])
        node.input[1] = new


def is_meaningless(model: ModelProto) -> bool:
    """Whether a model gathers strings in blocks of more than one."""
    for graph in graphs_of(_typed(model).graph):
        infos = {one.name: one.type.tensor_type for one in (*graph.input, *graph.value_info, *graph.output)}
        ranks = {name: len(info.shape.dim) for name, info in infos.items() if info.elem_type == TensorProto.STRING}
        ranks |= {one.name: len(one.dims) for one in graph.initializer if one.data_type == TensorProto.STRING}
        for node in graph.node:
            if node.op_type == "Gather" and node.input[0] in ranks:
                axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
                if axis not in (-1, ranks[node.input[0]] - 1):
                    return True
    return False
