"""Which arguments of a node may be of 16 bits: by its op's schema, and by the kernels of the providers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx
import onnx_ir as ir

from ortopt.analysis import kernels
from ortopt.analysis.kernels import CPU, CUDA, Schema, Support
from ortopt.half_precision.formats import FLOAT16, Format

_SINGLE: Final = "tensor(float)"

_READ_AS_SINGLE: Final = {("", "Resize"): frozenset({"T2"}), ("", "Dropout"): frozenset({"T1"})}
"""Type constraints that allow 16 bits where ONNX Runtime's kernels read float32 all the same."""

_RECURRENT: Final = frozenset({"RNN", "GRU", "LSTM"})
"""Ops that stay in float32 where the CPU runs them.

It computes them in float32 all the same, and ONNX Runtime 1.31 has ended its process where it optimized one of 16 bits.
"""

_COMPLETE: Final = (Support.KERNEL, Support.EXPANDED)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Positions of a node's arguments that become 16-bit ones together.

    Attributes:
        inputs: Positions of inputs.
        outputs: Positions of outputs.
    """

    inputs: frozenset[int]
    outputs: frozenset[int]


def is_single(value: ir.Value | None) -> bool:
    """Whether a value is a tensor of float32."""
    return value is not None and isinstance(value.type, ir.TensorType) and value.type.dtype == ir.DataType.FLOAT


def half_arguments(node: ir.Node, opset: int, form: Format, providers: Sequence[str]) -> Arguments | None:
    """The arguments of a node that can be of 16 bits; None where no provider that is meant has such a kernel.

    Whatever the op's type constraints let be of 16 bits becomes so; where there is no kernel for all of it, the
    arguments that share the result's type alone.

    Args:
        node: The node; types are inferred.
        opset: The opset of its domain.
        form: The format.
        providers: The providers of the run.
    """
    if _is_for_cpu(node, providers):
        return None
    schema = kernels.schema(node.domain, node.op_type, opset)
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.type is not None]
    if schema is None or not all(isinstance(value.type, ir.TensorType) for value in values):
        return None  # a sequence of tensors cannot be cast
    floats = [
        _constraints(schema.inputs, [is_single(value) for value in node.inputs]),
        _constraints(schema.outputs, [is_single(value) and value.name != "" for value in node.outputs]),
    ]
    convertible = _convertible(node, schema, floats, form)
    if not convertible:
        return None
    main = next((name for names in reversed(floats) for name in names.values() if name in convertible), "")
    for chosen in dict.fromkeys((convertible, frozenset({main}))):
        arguments = Arguments(*(frozenset(at for at, name in names.items() if name in chosen) for names in floats))
        if _has_kernels(node, opset, arguments, form, providers):
            return arguments
    return None


def reason_against(node: ir.Node, opset: int, form: Format, providers: Sequence[str]) -> str:
    """Why a node has no arguments of 16 bits, in words; see `half_arguments`."""
    schema = kernels.schema(node.domain, node.op_type, opset)
    if schema is None:
        return "its op is not known"
    if not _has(schema, form):
        name = form.dtype.name.lower()
        newest = onnx.defs.onnx_opset_version()
        newer = (at for at in range(opset + 1, newest + 1) if _has(kernels.schema(node.domain, node.op_type, at), form))
        first = None if node.domain else next(newer, None)
        return f"the op has no {name}" if first is None else f"the op has {name} from opset {first} on"
    if _is_for_cpu(node, providers):
        return "ONNX Runtime's CPU provider may crash when it loads one of 16 bits"
    return "no provider that is meant has a kernel of 16 bits for it"


def _is_for_cpu(node: ir.Node, providers: Sequence[str]) -> bool:
    """Whether a node is a recurrent layer that the CPU runs."""
    return node.domain == "" and node.op_type in _RECURRENT and CUDA not in providers


def _has(schema: Schema | None, form: Format) -> bool:
    return schema is not None and any(form.type_text in types for types in schema.constraints.values())


def _constraints(formals: Sequence[tuple[str, str]], single: Sequence[bool]) -> dict[int, str]:
    """The type constraint of each argument that is of float32."""
    return {at: formals[min(at, len(formals) - 1)][1] for at, is_one in enumerate(single) if is_one and formals}


def _convertible(node: ir.Node, schema: Schema, floats: Sequence[Mapping[int, str]], form: Format) -> frozenset[str]:
    """The constraints that allow the format, and that the inputs decide about: no attribute."""
    read = {name for _, name in schema.inputs}
    kept = _READ_AS_SINGLE.get((node.domain, node.op_type), frozenset())
    names = {name for used in floats for name in used.values()}
    return frozenset(
        name
        for name in names
        if name in read and name not in kept and form.type_text in schema.constraints.get(name, ())
    )


def _has_kernels(node: ir.Node, opset: int, arguments: Arguments, form: Format, providers: Sequence[str]) -> bool:
    inputs = _types(node.inputs, arguments.inputs, form)
    outputs = _types(node.outputs, arguments.outputs, form)
    ask = functools.partial(kernels.support_of, node=node, opset=opset, inputs=inputs, outputs=outputs)
    if ask(CUDA) not in _COMPLETE:
        return False
    # The CPU computes float16 in float32 between casts; of bfloat16 it has next to nothing, and nothing is cast.
    return CUDA in providers or form is not FLOAT16 or ask(CPU) is not None


def _types(values: Iterable[ir.Value | None], half: frozenset[int], form: Format) -> list[str | None]:
    types: list[str | None] = []
    for at, value in enumerate(values):
        if value is None or value.name == "":
            types.append(None)
        elif at in half:
            types.append(form.type_text)
        else:
            types.append("?" if value.type is None else kernels.type_string(value.type))
    return types
