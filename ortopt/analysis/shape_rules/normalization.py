"""Normalizations, of the standard and of com.microsoft."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import Call, axis_of, rule
from ortopt.semantics.domains import MICROSOFT

FLOAT = ir.DataType.FLOAT


@rule("BatchNormalization")
def batch_normalization(call: Call) -> None:
    """As the input; what training returns besides has the shape and type of the statistics."""
    call.same(0, 0)
    for index in range(1, call.output_count()):
        call.same(index, min(index + 2, 4) if call.version >= 14 else 3)


@rule("LayerNormalization")
def layer_normalization(call: Call) -> None:
    """As the input; mean and inverse deviation have 1 from the axis on."""
    _with_statistics(call, 1)


@rule("SimplifiedLayerNormalization")
def simplified_layer_normalization(call: Call) -> None:
    """As LayerNormalization without a mean; ORT registers it in the standard domain."""
    _with_statistics(call, 1)


def _with_statistics(call: Call, first: int) -> None:
    call.same(0, 0)
    if call.output_count() <= first:
        return
    statistics = ir.DataType(call.attribute("stash_type", 1))
    for index in range(first, call.output_count()):
        call.set(index, statistics)
    dims = call.dims(0)
    axis = axis_of(call.attribute("axis", -1), len(dims))
    for index in range(first, call.output_count()):
        call.set(index, statistics, dims[:axis] + (1,) * (len(dims) - axis))


@rule("LayerNormalization", "SimplifiedLayerNormalization", domain=MICROSOFT)
def contrib_layer_normalization(call: Call) -> None:
    """As the standard op."""
    _with_statistics(call, 1)


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(call: Call) -> None:
    """As the input; mean and inverse deviation have 1 at the end; the fourth output is the sum."""
    call.same(0, 0)
    call.same(3, 0)
    for index in (1, 2):
        call.set(index, FLOAT)
    dims = call.dims(0)
    for index in (1, 2):
        call.set(index, FLOAT, (*dims[:-1], 1))


@rule("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
def group_norm(call: Call) -> None:
    """As the input; the skipping one returns the sum too."""
    call.same(0, 0)
    call.same(1, 0)


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(call: Call) -> None:
    """[batch, sequence, hidden], the mask's row sums, the embeddings' sum."""
    dtype = call.dtype(2)
    call.set(0, dtype)
    call.set(1, ir.DataType.INT32)
    call.set(2, dtype)
    batch, sequence = call.dims(0)
    hidden = call.dims(2)[-1]
    call.set(0, dtype, (batch, sequence, hidden))
    call.set(1, ir.DataType.INT32, (batch,))
    call.set(2, dtype, (batch, sequence, hidden))
