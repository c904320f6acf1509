"""What is known of a model's inputs: their types and dimensions, and what the graph uses their integers for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis.dimensions import is_symbol
from ortopt.graph import symbolic
from ortopt.semantics.op_traits import BROADCASTING, BROADCASTING_ONE_WAY, SHAPE_QUERIES

_KEPT_BY: Final = frozenset(
    {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Flatten", "Slice", "Gather", "Tile"}
    | {"Concat", "Split", "Clip", "Where", "Add"}
)
_STEPS: Final = 200  # how far from an input its consumers are looked at
_COMPARED: Final = {"Equal": 0, "Greater": 1, "GreaterOrEqual": 0, "Less": -1, "LessOrEqual": 0}  # beyond the constant
_SIZED_BY_THE_FIRST: Final = frozenset(
    {"Range", "ConstantOfShape", "Loop", "If", "Scan", "AffineGrid", "BlackmanWindow", "HammingWindow", "HannWindow"}
    | {"MelWeightMatrix", "SequenceMap"}
)
_ALL_ARE_DATA: Final = (
    (BROADCASTING - {"BitShift", "Div", "Mod"})  # whose second operand is no free number: 0 or a large one may fail
    | BROADCASTING_ONE_WAY
    | {"Clip", "Concat", "Einsum", "Gather", "GatherElements", "GatherND", "Gemm", "MatMul", "MatMulInteger"}
    | {"ScatterElements", "ScatterND"}
)
"""Ops none of whose inputs says how large something is."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One input of a model.

    Attributes:
        name: Its name.
        type: Its type.
        dims: Its dimensions.
        denotations: What each stands for, as far as the model says it.
        below: The size of the smallest table that its integers are indices into.
        sizes: Whether its integers may be sizes, counts or positions of something.
        satisfying: An integer for which a condition holds that compares the input with a constant; for inputs of one
            element only, where a branch may hang on it.
    """

    name: str
    type: ir.TypeProtocol | None
    dims: list[symbolic.Dim]
    denotations: list[str | None]
    below: int | None
    satisfying: int | None
    sizes: bool

    @property
    def is_single(self) -> bool:
        """Whether it has one element, whatever is drawn."""
        return all(dim == 1 for dim in self.dims)

    @property
    def is_bool(self) -> bool:
        """Whether it is a tensor of bools."""
        return isinstance(self.type, ir.TensorType) and self.type.dtype == ir.DataType.BOOL

    @classmethod
    def of(cls, value: ir.Value, shape: Sequence[int | None] | None = None) -> ModelInput:
        """An input of a graph.

        Args:
            value: The input.
            shape: Sizes that it has whatever it declares, but for symbols; None for those that it declares.
        """
        below, satisfying = _integers(value)
        dims, denotations = _dims(value), _denotations(value)
        if shape is not None and value.shape is None:
            dims, denotations = [2 if size is None else size for size in shape], [None] * len(shape)
        elif shape is not None:
            dims = [dim if size is None or is_symbol(dim) else size for dim, size in zip(dims, shape, strict=True)]
        return cls(value.name or "", value.type, dims, denotations, below, satisfying, _sizes_something(value))


def _dims(value: ir.Value) -> list[symbolic.Dim]:
    if value.shape is None:
        return [2, 3]
    return [symbolic.canonical(dim if isinstance(dim, int) else dim.value) for dim in value.shape]


def _denotations(value: ir.Value) -> list[str | None]:
    if value.shape is None:
        return [None, None]
    return [value.shape.get_denotation(axis) for axis in range(len(value.shape))]


def _integers(value: ir.Value) -> tuple[int | None, int | None]:
    """The size of the smallest table that an input's integers index, and an integer that satisfies a condition on them.

    Either is None where there is none.
    """
    smallest: int | None = None
    satisfying: int | None = None
    seen: set[ir.Value] = {value}
    pending = [value]
    while pending and len(seen) < _STEPS:
        current = pending.pop()
        for node, index in current.uses():
            table = _indexed(node, index)
            if table is not None:
                smallest = table if smallest is None else min(smallest, table)
            if satisfying is None:
                satisfying = _satisfying(node, index)
            if node.op_type in _KEPT_BY and not (node.op_type == "Gather" and index == 1):
                fresh = [output for output in node.outputs if output not in seen]
                seen.update(fresh)
                pending.extend(fresh)
    return smallest, satisfying


def _sizes_something(value: ir.Value) -> bool:
    """Whether an input's integers may be sizes, counts or positions of something: conservative."""
    if value.type is None or not value.type.dtype.is_integer():
        return False
    assert isinstance(value.graph, ir.Graph)
    outputs = set(value.graph.outputs)
    seen: set[ir.Value] = {value}
    pending = [value]
    while pending:
        current = pending.pop()
        of_a_body = current.is_graph_output() and current not in outputs  # which may tell how often something is done
        if len(seen) > _STEPS or of_a_body:
            return True
        for node, index in current.uses():
            if node.domain or any(True for _ in semantics.subgraphs(node)) or node.op_type in _SIZED_BY_THE_FIRST:
                return True
            if index > 0 and node.op_type not in _ALL_ARE_DATA:
                return True
            if node.op_type not in SHAPE_QUERIES:
                fresh = [output for output in node.outputs if output not in seen]
                seen.update(fresh)
                pending.extend(fresh)
    return False


def _satisfying(node: ir.Node, index: int) -> int | None:
    """An integer for which a comparison of input ``index`` with a constant holds."""
    beyond = _COMPARED.get(node.op_type)
    if beyond is None or node.domain or len(node.inputs) != 2:
        return None
    other = node.inputs[1 - index]
    tensor = None if other is None else semantics.constant_tensor(other)
    if tensor is None or tensor.size != 1 or not tensor.dtype.is_integer():
        return None
    return int(tensor.numpy().item()) + (beyond if index == 0 else -beyond)


def _indexed(node: ir.Node, index: int) -> int | None:
    """The size of the axis that input ``index`` of a node chooses from."""
    if node.op_type not in ("Gather", "GatherElements") or index != 1 or node.inputs[0] is None:
        return None
    table = node.inputs[0]
    shape = table.const_value.shape if table.const_value is not None else table.shape
    if shape is None:
        return None
    axis: int = node.attributes.get_int("axis", 0)
    dims = list(shape)
    dim = dims[axis] if -len(dims) <= axis < len(dims) else None
    return dim if isinstance(dim, int) and dim > 0 else None


def is_undefined_without_elements(node: ir.Node) -> bool:
    """Whether ONNX Runtime cannot be asked what a node gives for inputs without elements.

    What a Reshape infers beside a 0 under ``allowzero`` is undefined, and ONNX Runtime does infer something; version
    1.31 forgets negative axes of reductions that drop their axes, and its LSTM and GRU end the process.
    """
    if node.domain:
        return False
    if node.op_type in ("GRU", "LSTM"):
        return True
    if node.op_type == "Reshape":
        return _integer(node, "allowzero", 0) != 0 and _may_be_negative(node)
    if node.op_type.startswith("Reduce") and _integer(node, "keepdims", 1) != 1:
        axes = node.attributes.get("axes")
        if axes is None:
            return _may_be_negative(node)
        return axes.is_ref() or any(axis < 0 for axis in axes.as_ints())
    return False


def _integer(node: ir.Node, name: str, default: int) -> int | None:
    """An integer attribute; None if a function's caller decides it."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return None if attribute.is_ref() else attribute.as_int()


def _may_be_negative(node: ir.Node) -> bool:
    """Whether a node's second input may hold negative numbers."""
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return False
    numbers = semantics.constant_tensor(node.inputs[1])
    return numbers is None or bool((numbers.numpy() < 0).any())
