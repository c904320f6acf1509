"""Equal constants are stored once: files shrink, and nodes that differed only in copies of a constant become equal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from operator import attrgetter

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import CancellationToken
from ortopt.graph import scope
from ortopt.graph.nested_walk import NestedWalk
from ortopt.onnx_ir_internals import attributes_of, first_use, get_meta, initializers_of
from ortopt.options import TransformerLevel
from ortopt.serialization.mapped_tensors import MappedTensor
from ortopt.transformer import Context, GraphTransformer

SAMPLE_BYTES = 64
"""So many bytes from the start, the middle and the end of large constants are compared before anything else."""


AT_ONCE = 16
"""So many equal constants go into one rewrite, which takes little longer than one of a single constant. A run can be
stopped between two rewrites only, so they are not many."""

_READABLE = (MappedTensor, ir.Tensor)


class ConstantSharing(GraphTransformer):
    """Equal constants → one constant."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL4)
    level_independent = True
    after = ("group_fusion",)
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Share the constants of a graph and of those nested in it, which may use the outer ones."""
        if scope.of(graph).parent is not None:
            return False  # the outermost graph's turn did it
        token = context.cancellation
        constants: NestedWalk[ir.Value, _Entry] = NestedWalk(graph, partial(_items, token=token))
        # asked only where there is a constant to share
        annotated = cache(partial(semantics.quantization_parameters, token=token))
        shared: dict[ir.Value, dict[ir.Value, ir.Node]] = {}  # the first use of each that equals a constant
        for value in constants:
            keeper = _first_equal(value, constants)
            use = None if keeper is None else first_use(value)
            if keeper is None or keeper is value or use is None:
                continue
            reason = _reason_against(value, keeper, annotated)
            if reason is None:
                shared.setdefault(keeper, {})[value] = use.node
            else:
                context.refuse(use.node, reason)
        changed = False
        for keeper, uses in shared.items():
            equal = list(uses)
            for start in range(0, len(equal), AT_ONCE):
                some = equal[start : start + AT_ONCE]
                nodes = tuple(dict.fromkeys(uses[value] for value in some))
                why = ", ".join(str(value.name) for value in some) + f": equal to {keeper.name}"
                changed |= context.substitute(dict.fromkeys(some, keeper), before=nodes[0], nodes=nodes, why=why)
        return changed


def _items(graph: ir.Graph, token: CancellationToken) -> Iterator[ir.Value | ir.Graph]:
    """The constants of a graph in order, and the graphs nested in it at the positions of their nodes."""
    yield from token.checked(tuple(initializers_of(graph).values()))
    for node in token.checked(tuple(token.checked(graph))):
        if node.op_type == "Constant" and not node.domain:
            yield node.outputs[0]
        elif attributes_of(node):
            yield from semantics.subgraphs(node)


class _Entry:
    """A constant whose content is read only as far as comparisons need it."""

    def __init__(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        self.value = value
        self.graph = value.graph
        self._tensor = tensor

    @cached_property
    def sample(self) -> bytes:
        """Some of the bytes."""
        data = _data(self._tensor)
        middle = len(data) // 2
        if len(data) <= 3 * SAMPLE_BYTES:
            return bytes(data)
        parts = (data[:SAMPLE_BYTES], data[middle : middle + SAMPLE_BYTES], data[-SAMPLE_BYTES:])
        return b"".join(bytes(part) for part in parts)

    @cached_property
    def digest(self) -> bytes:
        """A cryptographic hash of all bytes; a few bytes themselves."""
        data = _data(self._tensor)
        is_whole = len(data) <= 3 * SAMPLE_BYTES
        return self.sample if is_whole else hashlib.blake2b(data, digest_size=32).digest()


def _first_equal(value: ir.Value, constants: NestedWalk[ir.Value, _Entry]) -> ir.Value | None:
    """The first constant in scope that equals a constant; None if there is none, and the constant is entered.

    They are found by dtype and shape, then by a sample of the content, then by all of it.
    """
    tensor = semantics.constant_tensor(value)
    if tensor is None:
        return None
    # to ask for the class of what is of another takes long
    if type(tensor) not in _READABLE and isinstance(tensor, ir.LazyTensor):
        return None  # it is computed when the model is saved, and only then
    entry = _Entry(value, tensor)
    key: tuple[object, ...] = (tensor.dtype, tuple(tensor.shape))
    for detail in (attrgetter("sample"), attrgetter("digest")):
        first = constants.visible.get(key)
        if first is None:
            break
        closer = (*key, detail(first))
        if closer not in constants.visible:
            constants.enter(closer, first, first.graph)
        key = (*key, detail(entry))
    equal = constants.visible.get(key)
    if equal is None:
        constants.enter(key, entry, entry.graph)
        return None
    return equal.value


def _data(tensor: ir.TensorProtocol) -> memoryview:
    """The bytes of a tensor, without a copy where it can be; those of strings with their lengths."""
    if tensor.dtype == ir.DataType.STRING:
        strings = semantics.strings_of(tensor).reshape(-1).tolist()
        return memoryview(b"".join(len(item).to_bytes(8, "little") + item for item in strings))
    if type(tensor) is not ir.Tensor and isinstance(tensor, MappedTensor):
        return tensor.raw.view()
    if tensor.dtype.bitwidth < 8 or not tensor.size:
        return memoryview(tensor.tobytes())
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data


def _reason_against(
    value: ir.Value, keeper: ir.Value, annotated: Callable[[ir.Graph | None], frozenset[str]]
) -> str | None:
    if value.is_graph_output():
        return f"the constant {value.name} is a graph output"
    if value.name in annotated(value.graph):
        return f"a quantization annotation refers to {value.name}"
    annotation = semantics.QUANTIZATION_KEY
    if get_meta(value, annotation) != get_meta(keeper, annotation):
        return f"the constants {value.name} and {keeper.name} are quantized differently"
    return None
