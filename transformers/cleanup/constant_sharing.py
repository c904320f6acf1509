"""Equal constants are stored once: files shrink, and nodes that differed only in copies of a constant become equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import CancellationToken
from ortopt.graph import scope
from ortopt.onnx_ir_internals import attributes_of, first_use, get_meta, initializers_of
from ortopt.options import TransformerLevel
from ortopt.serialization.mapped_tensors import MappedTensor
from ortopt.transformer import Context, GraphTransformer

SAMPLE_BYTES = 64
"""So many bytes from the start, the middle and the end of large constants are compared before anything else."""


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
        changed = False
        token = context.cancellation
        stack: list[tuple[_Frame, Iterator[ir.Value | ir.Graph]]] = [(_Frame(graph, token), _walk(graph, token))]
        table = _Table()
        while stack:
            frame, walk = stack[-1]
            item = next(walk, None)
            if item is None:
                table.leave(frame)
                stack.pop()
            elif isinstance(item, ir.Value):
                equal = table.first_equal(item, frame)
                changed |= equal is not None and _share(item, equal, frame, context)
            else:
                stack.append((_Frame(item, token), _walk(item, token)))
        return changed


def _walk(graph: ir.Graph, token: CancellationToken) -> Iterator[ir.Value | ir.Graph]:
    """The constants of a graph in order, and the graphs nested in it at the positions of their nodes."""
    yield from token.checked(tuple(initializers_of(graph).values()))
    for node in token.checked(tuple(token.checked(graph))):
        if node.op_type == "Constant" and not node.domain:
            yield node.outputs[0]
        elif attributes_of(node):
            yield from semantics.subgraphs(node)


class _Frame:
    """A graph that is being walked.

    Args:
        graph: The graph.
        token: Cancellation token.

    Attributes:
        keys: What was entered into the table for its constants.
        annotated: The names that its quantization annotations refer to.
    """

    def __init__(self, graph: ir.Graph, token: CancellationToken) -> None:
        self.keys: list[tuple[object, ...]] = []
        self._graph = graph
        self._token = token
        self._annotated: frozenset[str] | None = None

    @property
    def annotated(self) -> frozenset[str]:
        """Asked only where there is a constant to share."""
        if self._annotated is None:
            self._annotated = semantics.quantization_parameters(self._graph, self._token)
        return self._annotated


class _Entry:
    """A constant whose content is read only as far as comparisons need it."""

    def __init__(self, value: ir.Value, tensor: ir.TensorProtocol, frame: _Frame) -> None:
        self.value = value
        self.frame = frame
        self._tensor = tensor
        self._sample: bytes | None = None
        self._digest: bytes | None = None

    @property
    def sample(self) -> bytes:
        """Some of the bytes."""
        if self._sample is None:
            data = _data(self._tensor)
            middle = len(data) // 2
            if len(data) <= 3 * SAMPLE_BYTES:
                self._sample = bytes(data)
            else:
                parts = (data[:SAMPLE_BYTES], data[middle : middle + SAMPLE_BYTES], data[-SAMPLE_BYTES:])
                self._sample = b"".join(bytes(part) for part in parts)
        return self._sample

    @property
    def digest(self) -> bytes:
        """A cryptographic hash of all bytes; a few bytes themselves."""
        if self._digest is None:
            data = _data(self._tensor)
            is_whole = len(data) <= 3 * SAMPLE_BYTES
            self._digest = self.sample if is_whole else hashlib.blake2b(data, digest_size=32).digest()
        return self._digest


class _Table:
    """The constants in scope, by dtype and shape, then by a sample of the content, then by all of it."""

    def __init__(self) -> None:
        self._entries: dict[tuple[object, ...], _Entry] = {}

    def first_equal(self, value: ir.Value, frame: _Frame) -> ir.Value | None:
        """The first constant in scope that equals a constant; None if there is none, and the constant is entered."""
        tensor = semantics.constant_tensor(value)
        if tensor is None:
            return None
        # to ask for the class of what is of another takes long
        if type(tensor) not in _READABLE and isinstance(tensor, ir.LazyTensor):
            return None  # it is computed when the model is saved, and only then
        entry = _Entry(value, tensor, frame)
        key: tuple[object, ...] = (tensor.dtype, tuple(tensor.shape))
        first = self._entries.get(key)
        if first is None:
            self._enter(key, entry)
            return None
        self._enter((*key, first.sample), first)
        second = self._entries.get((*key, entry.sample))
        if second is None:
            self._enter((*key, entry.sample), entry)
            return None
        key = (*key, entry.sample)
        self._enter((*key, second.digest), second)
        third = self._entries.get((*key, entry.digest))
        if third is None:
            self._enter((*key, entry.digest), entry)
            return None
        return third.value

    def _enter(self, key: tuple[object, ...], entry: _Entry) -> None:
        if key not in self._entries:
            self._entries[key] = entry
            entry.frame.keys.append(key)

    def leave(self, frame: _Frame) -> None:
        """Forget the constants of a graph."""
        for key in frame.keys:
            del self._entries[key]


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


def _share(value: ir.Value, keeper: ir.Value, frame: _Frame, context: Context) -> bool:
    """Replace a constant by an equal one."""
    use = first_use(value)
    if use is None or keeper is value:
        return False
    reason = _reason_against(value, keeper, frame)
    if reason is not None:
        context.refuse(use.node, reason)
        return False
    return context.substitute({value: keeper}, before=use.node, why=f"{value.name} equals {keeper.name}")


def _reason_against(value: ir.Value, keeper: ir.Value, frame: _Frame) -> str | None:
    if value.is_graph_output():
        return f"the constant {value.name} is a graph output"
    if value.name in frame.annotated:
        return f"a quantization annotation refers to {value.name}"
    annotation = semantics.QUANTIZATION_KEY
    if get_meta(value, annotation) != get_meta(keeper, annotation):
        return f"the constants {value.name} and {keeper.name} are quantized differently"
    return None
