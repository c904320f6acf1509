"""What things cost, roughly: how long a node takes on the host, how long a call of a group, a copy between devices.

The figures are orders of magnitude; they decide about small things only, for which they need not be better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from ortopt.analysis import kernels
from ortopt.graph import facts, scope
from ortopt.semantics import STANDARD_DOMAINS
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import RESHAPING

CALL = 10e-6
"""Seconds that the call of a group takes besides its kernels."""

ARGUMENT = 1e-6
"""Seconds that each of its arguments adds."""

SESSION = 2e-3
"""Seconds that it takes to make a group's session, on top of what its kernels need anyway."""

RUNS = 100
"""How many calls a session is made for."""

HOST_NODE = 20e-6
"""Seconds that the host's interpreter takes for a node besides its elements."""

HOST_BYTES = 1e9
"""Bytes of results that the host computes in a second, where nothing is multiplied."""

COPY = 20e-6
"""Seconds that a copy between devices takes besides its bytes."""

COPY_BYTES = 8e9
"""Bytes that a copy between devices moves in a second."""

KERNEL_BYTES = 4e9
"""Bytes of results that a kernel of the CPU provider computes in a second, where nothing is multiplied."""

_TYPICAL_DIM = 64
_UNKNOWN_BYTES = 4096
_HEAVY = frozenset(
    {
        *("MatMul", "Gemm", "Conv", "ConvTranspose", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
        *("LSTM", "GRU", "RNN", "Attention", "Einsum", "DeformConv", "RoiAlign", "DFT", "STFT", "Loop", "Scan", "If"),
        *("GridSample", "Resize", "NonMaxSuppression", "TopK", "Det", "LayerNormalization", "GroupNormalization"),
        *("InstanceNormalization", "BatchNormalization", "RMSNormalization", "RotaryEmbedding", "LRN", "Upsample"),
    }
)

_LIGHT_CONTRIB = frozenset({"BiasGelu", "BiasSplitGelu", "FastGelu", "Gelu", "QuickGelu", "BiasAdd", "BiasDropout"})
"""Ops of ONNX Runtime's own that treat each element alike."""


def is_view(node: ir.Node) -> bool:
    """Whether a node only shows the same elements in another shape: it costs nothing wherever it runs."""
    return not node.domain and node.op_type in RESHAPING


def is_heavy(node: ir.Node) -> bool:
    """Whether a node is worth a session, or a device, of its own."""
    if node.domain in STANDARD_DOMAINS:
        return node.op_type in _HEAVY
    return node.domain != MICROSOFT or node.op_type not in _LIGHT_CONTRIB


def host_can(node: ir.Node) -> bool:
    """Whether the host's interpreter knows a node's op, and those below it: it knows what the specification defines."""
    return all(
        kernels.is_official(
            member.domain, member.op_type, scope.of(scope.graph_of(member)).opset_imports.get(member.domain, 1)
        )
        for member in scope.with_nested(node)
    )


def nbytes(value: ir.Value) -> int:
    """About how large a value is; dimensions that are not known count as a typical one."""
    shape = facts.shape_of(value)
    if shape is None or value.dtype is None or not isinstance(value.type, ir.TensorType):
        return _UNKNOWN_BYTES
    bits = 64 if value.dtype == ir.DataType.STRING else value.dtype.bitwidth
    return math.prod(dim if isinstance(dim, int) else _TYPICAL_DIM for dim in shape) * bits // 8


def seconds_on_host(nodes: Iterable[ir.Node]) -> float:
    """About how long the host's interpreter takes for nodes that are not heavy."""
    return sum(HOST_NODE + sum(map(nbytes, node.outputs)) / HOST_BYTES for node in nodes if not is_view(node))


def seconds_on_cpu(nodes: Iterable[ir.Node]) -> float:
    """About how long the CPU provider takes for nodes that are not heavy."""
    return sum(sum(map(nbytes, node.outputs)) / KERNEL_BYTES for node in nodes if not is_view(node))


def seconds_of_call(arguments: int) -> float:
    """About how long a call of a group takes besides its kernels, its part of the session's making included."""
    return CALL + ARGUMENT * arguments + SESSION / RUNS


def seconds_of_copies(values: Iterable[ir.Value]) -> float:
    """About how long it takes to copy values from one device to another."""
    return sum(COPY + nbytes(value) / COPY_BYTES for value in values)
