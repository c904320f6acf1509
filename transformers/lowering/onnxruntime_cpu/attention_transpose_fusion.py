"""Attention can read heads side by side, as projections give them, and give them so: without a Transpose."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU, Support, support
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    FLOAT16,
    Refusal,
    dims,
    dtype,
    inputs,
    is_used,
    need,
    only_user,
    opset,
    producer,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

HEADS_FIRST: tuple[int, ...] = (0, 2, 1, 3)
PAST_VALUE = 5
SCORES = 3


class Found(Struct, frozen=True):
    """The Attention and the Transpose behind it, its operands with heads last but one, and how many heads they have."""

    nodes: tuple[ir.Node, ...]
    operands: tuple[ir.Value, ...]
    counts: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def root(self) -> ir.Node:
        """The Attention."""
        return self.nodes[0]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result with heads last but one, and the keys and values for the next step."""
        return (self.nodes[1].outputs[0], *(value for value in self.root.outputs[1:SCORES] if is_used(value)))


class AttentionTransposeFusion(RewriteRule[Found]):
    """``Transpose(Attention(Transpose(q), Transpose(k), Transpose(v), …))`` → ``Attention<num_heads>(q, k, v, …)``.

    Heads then stand side by side within each position, in operands of three dimensions. A past and the mask stay as
    they are: they have the same dimensions for both.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Attention",)
    opsets = (23, NEWEST_OPSET)
    looks_downstream = True
    providers = (CPU,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """An Attention whose three operands were transposed, and whose result is transposed back."""
        need(all(value is None for value in root.inputs[PAST_VALUE + 1 :]), "it counts its keys", root)
        need(not any(is_used(value) for value in root.outputs[SCORES:]), "its scores are asked for", root)
        need(dtype(root.outputs[0]) in {FLOAT, FLOAT16}, "its numbers are of a type that has no kernel", root)
        taken_apart = support(CPU, root, opset(root)) is Support.EXPANDED
        need(not taken_apart, "there is no kernel for its mask, and parts of it would need a batch", root)
        operands = tuple(_before(value) for value in inputs(root, 3))
        behind = only_user(root.outputs[0], "Transpose")
        need(_turns(behind), "its result is transposed in another way", behind)
        counts, sizes = zip(*(_heads(value) for value in operands), strict=True)
        need(counts[1] == counts[2], "keys and values have other numbers of heads", root)
        return Found((root, behind), operands, counts, sizes)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the Attention with heads side by side, and split its result into heads."""
        root = found.root
        query, key, value = (
            _reshaped(operand, [0, 0, count * size])
            for operand, count, size in zip(found.operands, found.counts, found.sizes, strict=True)
        )
        count, kv_count = found.counts[:2]
        attributes = ops.changed(root.attributes.values(), q_num_heads=count, kv_num_heads=kv_count)
        operands = [query, key, value, *root.inputs[3:]]
        node = ir.Node("", "Attention", operands, attributes, num_outputs=len(root.outputs))
        result = _reshaped(node.outputs[0], [0, 0, count, found.sizes[2]])
        pairs = zip(root.outputs[1:SCORES], node.outputs[1:SCORES], strict=True)
        return {found.replaced[0]: result} | {old: new for old, new in pairs if is_used(old)}


def _before(value: ir.Value) -> ir.Value:
    """An operand before its heads came first."""
    transpose = producer(value, "Transpose")
    need(_turns(transpose), "an operand is transposed in another way", transpose)
    return inputs(transpose, 1)[0]


def _turns(transpose: ir.Node) -> bool:
    return ops.Transpose(transpose).order == HEADS_FIRST


def _heads(value: ir.Value) -> tuple[int, int]:
    """How many heads an operand has, and their size."""
    count, size = dims(value, 4)[2:]
    if not isinstance(count, int) or not isinstance(size, int) or not count * size:
        raise Refusal("the number of heads, or their size, is not known", value)
    return count, size


def _reshaped(value: ir.Value, shape: list[int]) -> ir.Value:
    return ir.node("Reshape", [value, constant(shape)]).outputs[0]
