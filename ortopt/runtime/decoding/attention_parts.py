"""Attention ops that keep a past, as Concats and products: what can read a buffer in which the cache stays.

Scores are computed for all query heads of a key's head at once, as more rows. ONNX's Attention gives zeros for a row
whose mask leaves nothing; MultiHeadAttention computes what Softmax computes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import optional
from ortopt.graph.refusal import Refusal, need
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM


class NewNodes:
    """Makes nodes and constants of one graph.

    Args:
        model: The model whose main graph it is.
    """

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.opset = model.opset_imports.get("", 0)
        self._imports = model.opset_imports
        taken = {value.name for node in model.graph.all_nodes() for value in node.outputs}
        self._taken = taken | {value.name for value in (*model.graph.inputs, *model.graph.initializers.values())}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._numbers = itertools.count()

    def name(self, stem: str) -> str:
        """A name that no value has."""
        while (name := f"{stem}_{next(self._numbers)}") in self._taken:
            pass
        return name

    def add(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        rank: int | None = None,
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Put a node before another one.

        Args:
            before: The other one.
            op_type: Its op.
            inputs: Its operands.
            attributes: Its attributes.
            domain: Its domain, imported if it is not.
            rank: Of its output, where that must be known.
            dtype: Of its output; None for the first operand's.

        Returns:
            Its output.
        """
        if domain:
            self._imports.setdefault(domain, 1)
        node = ir.node(op_type, inputs, dict(attributes or {}), domain=domain)
        output = node.outputs[0]
        output.name = self.name(op_type.lower())
        dtype = dtype or (None if inputs[0] is None else inputs[0].dtype)
        output.type = None if dtype is None else ir.TensorType(dtype)
        if rank is not None:
            output.shape = ir.Shape([None] * rank)
        self.graph.insert_before(before, node)
        return output

    def constant(self, content: Any, dtype: Any = np.int64) -> ir.Value:
        """An initializer, shared by all that want the same."""
        array = np.asarray(content, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            value = ir.Value(name=self.name("constant"), const_value=ir.Tensor(array))
            value.type, value.shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape(array.shape)
            self.graph.register_initializer(value)
            self._constants[key] = value
        return self._constants[key]

    def with_axes(self, before: ir.Node, op_type: str, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """A Squeeze, an Unsqueeze or a reduction that keeps its axes, in the form of the opset."""
        assert value.shape is not None
        rank = len(value.shape) + {"Unsqueeze": len(axes), "Squeeze": -len(axes)}.get(op_type, 0)
        if self.opset < AXES_ARE_AN_INPUT_FROM[op_type]:
            return self.add(before, op_type, [value], {"axes": list(axes)}, rank=rank)
        return self.add(before, op_type, [value, self.constant(list(axes))], rank=rank)

    def transpose(self, before: ir.Node, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """A Transpose; of a Transpose that nobody else uses, one of both; nothing where the order stays."""
        node = value.producer()
        if node is not None and node.domain == "" and node.op_type == "Transpose" and node.inputs[0] is not None:
            inner = node.attributes.get_ints("perm", tuple(reversed(range(len(order)))))
            order, value = [inner[axis] for axis in order], node.inputs[0]
        if list(order) == list(range(len(order))):
            return value
        return self.add(before, "Transpose", [value], {"perm": list(order)}, rank=len(order))


_FLOATS: Final = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})
_BATCH, _HEADS, _ROWS, _KEYS = range(4)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of an attention op that must be known.

    Attributes:
        heads: Of the queries.
        key_heads: Of keys and values.
        key_size: Of a head of queries and keys.
        value_size: Of a head of values.
    """

    heads: int
    key_heads: int
    key_size: int
    value_size: int

    @property
    def group(self) -> int:
        """Query heads of each key head."""
        return self.heads // self.key_heads


@dataclass(frozen=True, slots=True)
class _Mask:
    """A mask as it is added to scores.

    Attributes:
        added: What is added.
        empty: Which rows it leaves nothing; None where that does not matter.
    """

    added: ir.Value
    empty: ir.Value | None


class AttentionParts:
    """Takes the attention ops of one model apart.

    Args:
        nodes: Makes nodes of its graph.
    """

    def __init__(self, nodes: NewNodes) -> None:
        self._nodes = nodes
        self._masks: dict[tuple[ir.Value, int, int, bool], _Mask] = {}

    def take_apart(self, node: ir.Node) -> None:
        """Replace an attention op by a Concat each for keys and values, products and a Softmax.

        Raises:
            Refusal: It does something else besides.
        """
        is_standard = node.domain == ""
        past = (optional(node, 4), optional(node, 5)) if is_standard else (optional(node, 6), optional(node, 7))
        if past == (None, None):
            past = (node.inputs[1], node.inputs[2])
        sizes = self._sizes(node, past, is_standard=is_standard)
        _check(node, is_standard=is_standard)
        mask_value = optional(node, 3 if is_standard else 5)
        mask = None if mask_value is None else self._mask(node, mask_value, sizes, guarded=is_standard)
        queries = self._split(node, node.inputs[0], sizes.heads)
        if sizes.group > 1:
            shape = self._nodes.constant([0, sizes.key_heads, -1, sizes.key_size])
            queries = self._nodes.add(node, "Reshape", [queries, shape], rank=4)
        keys, values = (self._appended(node, old, new, sizes) for old, new in zip(past, node.inputs[1:3], strict=True))
        scale = node.attributes.get_float("scale", 0.0) or 1 / math.sqrt(sizes.key_size)
        product = {"transB": 1, "alpha": float(scale)}
        scores = self._nodes.add(node, "FusedMatMul", [queries, keys], product, domain=MICROSOFT, rank=4)
        if mask is not None:
            scores = self._nodes.add(node, "Add", [scores, mask.added], rank=4)
        weights = self._nodes.add(node, "Softmax", [scores], {"axis": -1}, rank=4)
        result = self._nodes.add(node, "MatMul", [weights, values], rank=4)
        result = self._joined(node, result, sizes, None if mask is None else mask.empty)
        for old, new in zip(node.outputs, (result, keys, values), strict=False):
            if old.name:
                _replace(old, new)
        node.graph.remove(node, safe=True)  # type: ignore[union-attr]

    def _sizes(self, node: ir.Node, past: tuple[ir.Value | None, ...], *, is_standard: bool) -> _Sizes:
        """The sizes; refuses where one is unknown."""
        found = []
        for value in past:
            shape = _shape(value, f"{node.op_type} needs keys and values, of rank 4")
            heads, size = shape[1], shape[-1]
            if len(shape) == 3:
                heads = 1 if node.attributes.get_int("kv_num_heads", 0) == 1 else 0
            if not isinstance(heads, int) or not isinstance(size, int) or heads < 1 or size < 1:
                raise Refusal(f"the heads of {node.op_type} have no known sizes")
            found.append((heads, size))
        (key_heads, key_size), (value_heads, value_size) = found
        heads = self._query_heads(node, is_standard=is_standard)
        fits = value_heads == key_heads and heads % key_heads == 0
        need(fits, f"the heads of {node.op_type} do not fit together")
        return _Sizes(heads, key_heads, key_size, value_size)

    def _query_heads(self, node: ir.Node, *, is_standard: bool) -> int:
        if not is_standard:
            return node.attributes.get_int("num_heads", 0)
        shape = _shape(optional(node, 0), "the rank of Attention's queries is unknown")
        heads = shape[1] if len(shape) == 4 else node.attributes.get_int("q_num_heads", 0)
        if not isinstance(heads, int) or heads < 1:
            raise Refusal("the number of Attention's heads is unknown")
        return heads

    def _split(self, node: ir.Node, value: ir.Value | None, heads: int) -> ir.Value:
        """Queries, keys or values with their heads apart: [batch, heads, rows, size]."""
        shape = _shape(value, f"the rank of {node.op_type}'s operands is unknown")
        assert value is not None
        if len(shape) == 4:
            return value
        split = self._nodes.add(node, "Reshape", [value, self._nodes.constant([0, 0, heads, -1])], rank=4)
        turned = self._nodes.add(node, "Transpose", [split], {"perm": [0, 2, 1, 3]}, rank=4)
        turned.shape = ir.Shape([None, heads, shape[1], None])
        return turned

    def _appended(self, node: ir.Node, past: ir.Value | None, new: ir.Value | None, sizes: _Sizes) -> ir.Value:
        """Past and new keys or values; where there is no past, the op has all of them, of one head if they are 3-D."""
        if past is not new:
            return self._nodes.add(node, "Concat", [past, self._split(node, new, sizes.key_heads)], {"axis": 2}, rank=4)
        assert new is not None
        assert new.shape is not None
        return new if len(new.shape) == 4 else self._nodes.with_axes(node, "Unsqueeze", new, [1])

    def _joined(self, node: ir.Node, result: ir.Value, sizes: _Sizes, empty: ir.Value | None) -> ir.Value:
        """The result in the form of the op's own."""
        if sizes.group > 1:
            shape = self._nodes.constant([0, sizes.heads, -1, sizes.value_size])
            result = self._nodes.add(node, "Reshape", [result, shape], rank=4)
        if empty is not None:
            zero = self._nodes.constant(0, _numpy(result))
            result = self._nodes.add(node, "Where", [empty, zero, result], rank=4, dtype=zero.dtype)
        queries = optional(node, 0)
        assert queries is not None
        assert queries.shape is not None
        if len(queries.shape) == 4:
            return result
        turned = self._nodes.add(node, "Transpose", [result], {"perm": [0, 2, 1, 3]}, rank=4)
        return self._nodes.add(node, "Reshape", [turned, self._nodes.constant([0, 0, -1])], rank=3)

    def _mask(self, node: ir.Node, value: ir.Value, sizes: _Sizes, *, guarded: bool) -> _Mask:
        """A mask, made once for all layers that use it."""
        key = (value, sizes.heads, sizes.key_heads, guarded)
        if key not in self._masks:
            self._masks[key] = self._make_mask(node, value, sizes, guarded=guarded)
        return self._masks[key]

    def _make_mask(self, node: ir.Node, mask: ir.Value, sizes: _Sizes, *, guarded: bool) -> _Mask:
        nodes = self._nodes
        if mask.shape is None or not 2 <= len(mask.shape) <= 4:
            raise Refusal(f"the rank of {node.op_type}'s mask is unknown")
        heads = 1 if len(mask.shape) == 2 else mask.shape[-3]
        is_known = heads in (1, sizes.heads) or sizes.group <= 1
        need(is_known, f"the heads of {node.op_type}'s mask are unknown")
        queries = optional(node, 0)
        dtype = _numpy(queries)
        lowest = nodes.constant(np.finfo(dtype).min, dtype)
        if len(mask.shape) < 4:
            mask = nodes.with_axes(node, "Unsqueeze", mask, range(4 - len(mask.shape)))
        if mask.dtype == ir.DataType.BOOL:
            mask = nodes.add(node, "Where", [mask, nodes.constant(0, dtype), lowest], rank=4, dtype=lowest.dtype)
        elif guarded:
            mask = nodes.add(node, "Max", [mask, lowest], rank=4)
        empty = self._empty_rows(node, mask, lowest) if guarded else None
        if sizes.group > 1 and heads == 1:
            mask = nodes.add(node, "Concat", [mask] * sizes.group, {"axis": _ROWS}, rank=4)
        elif sizes.group > 1:
            shape = nodes.add(node, "Shape", [mask], dtype=ir.DataType.INT64)
            keys = nodes.add(node, "Gather", [shape, nodes.constant([_KEYS])], {"axis": 0})
            front = nodes.constant([0, sizes.key_heads, -1])
            mask = nodes.add(node, "Reshape", [mask, nodes.add(node, "Concat", [front, keys], {"axis": 0})], rank=4)
        return _Mask(mask, empty)

    def _empty_rows(self, node: ir.Node, mask: ir.Value, lowest: ir.Value) -> ir.Value:
        """The rows of a mask that leave nothing."""
        most = self._nodes.with_axes(node, "ReduceMax", mask, [-1])
        return self._nodes.add(node, "LessOrEqual", [most, lowest], dtype=ir.DataType.BOOL)


def _check(node: ir.Node, *, is_standard: bool) -> None:
    """Refuse what an attention op does besides."""
    attributes = node.attributes
    if node.inputs[0] is None or node.inputs[0].dtype not in _FLOATS:
        raise Refusal(f"{node.op_type} computes in another dtype than float")
    if is_standard:
        unknown = {
            "is_causal": attributes.get_int("is_causal", 0) != 0,
            "softcap": attributes.get_float("softcap", 0.0) != 0,
            "its scores as an output": len(node.outputs) > 3 and bool(node.outputs[3].name),
            "lengths without padding": optional(node, 6) is not None,
        }
    else:
        unknown = {
            "a bias": optional(node, 3) is not None,
            "a mask of keys": optional(node, 4) is not None,
            "a buffer of its own": len(node.inputs) > 8,
            "unidirectional": attributes.get_int("unidirectional", 0) != 0,
            "its scores as an output": len(node.outputs) > 3 and bool(node.outputs[3].name),
        }
    for what, there in unknown.items():
        need(not there, f"{node.op_type} has {what}")


def _shape(value: ir.Value | None, reason: str) -> ir.Shape:
    """The shape of a value with heads of its own, or all in one axis; refuses others."""
    if value is None or value.shape is None or len(value.shape) not in (3, 4):
        raise Refusal(reason)
    return value.shape


def _numpy(value: ir.Value | None) -> np.dtype:
    assert value is not None
    assert value.dtype is not None
    return value.dtype.numpy()


def _replace(old: ir.Value, new: ir.Value) -> None:
    """Let a value be in the place of another one, with its name where that is an output."""
    if new.shape is None or old.shape is not None:
        new.shape = old.shape
    graph_outputs = old.is_graph_output()
    name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if graph_outputs:
        old.name, new.name = f"{name}_replaced", name
