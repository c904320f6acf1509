"""Another opset of ai.onnx for a model: each node whose operator changed in between is converted alone.

onnx's converter takes whole models: it loses functions, metadata and symbolic shapes on the way, does not look into
subgraphs, and copies all weights several times. Here it gets one small model of loose nodes, each distinct one once,
with typed inputs instead of weights, in a process of its own; its answers are put in the nodes' places. So subgraphs
and functions are converted too, and everything else stays the very object that it was. What it cannot do is refused.
"""

from __future__ import annotations

import functools
from typing import Final

import onnx
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.opset_conversion.converter import converted_cases, refusal
from ortopt.opset_conversion.replacement import put_in_place

_NEGATIVE_AXES_SINCE: Final = 11
"""Below, an operator that reads the same may take fewer values: the converter decides."""


def convert(model: ir.Model, version: int, token: CancellationToken = NEVER) -> ir.Model:
    """Raise, or lower where onnx knows how, the opset of ai.onnx in a model and its local functions.

    Args:
        model: The model; it is changed. Where an error is raised, no more than inferred types are.
        version: The opset version that it shall import.
        token: Cancellation token; the model may be torn then.

    Returns:
        The model. Its IR version is raised only where the opset needs a newer one.

    Raises:
        UsageError: There is no such opset, or a node cannot be converted; one line that names it.
        OptimizationCancelled: If the token was set.
    """
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= version <= newest:
        raise UsageError(f"onnx {onnx.__version__} knows the opsets 1 to {newest} of ai.onnx, not {version}")
    bodies = [(model.graph, model.opset_imports)]
    bodies += [(function.graph, function.opset_imports) for function in model.functions.values()]
    bodies = [(graph, imports) for graph, imports in bodies if imports.get("", version) != version]
    changed: dict[ir.Node, int] = {}
    fewer_types: dict[ir.Node, int] = {}
    for graph, imports in bodies:
        _sort_out(model, graph, imports[""], version, changed, fewer_types, token)
    if changed or fewer_types:
        shapes.infer_model(model, token)
    for node, have in token.checked(fewer_types.items()):
        _check_types(node, have, version)
    if changed:
        put_in_place(model, converted_cases(changed, version, token), token)
    for _, imports in bodies:
        imports[""] = version
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", version)], ignore_unknown=True)
    model.ir_version = max(model.ir_version, needed) if bodies else model.ir_version
    return model


@functools.lru_cache(1 << 12)
def _schema(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version)
    except onnx.defs.SchemaError:
        return None


@functools.lru_cache(1 << 12)
def _signature(op_type: str, version: int) -> tuple[object, ...]:
    """What a schema says of inputs, outputs and attributes, their types apart."""
    schema = _schema(op_type, version)
    assert schema is not None
    slots = tuple((formal.name, formal.option) for formal in (*schema.inputs, *schema.outputs))
    attributes = (
        (name, attribute.type, attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in sorted(schema.attributes.items())
    )
    return slots, tuple(attributes)


def _sort_out(
    model: ir.Model,
    body: ir.Graph,
    have: int,
    version: int,
    changed: dict[ir.Node, int],
    fewer_types: dict[ir.Node, int],
    token: CancellationToken,
) -> None:
    """Find the nodes, at any depth, whose operator is another one at the new version, or takes fewer types there."""
    for graph in scope.below(body, token):
        for node in token.checked(graph):
            if node.domain or (model.functions and node.op_identifier() in model.functions):
                continue
            old, new = _schema(node.op_type, have), _schema(node.op_type, version)
            if old is None or new is None:
                raise refusal(
                    node, have, version, f"ai.onnx does not have it at opset {have if old is None else version}"
                )
            if old.since_version == new.since_version:
                continue
            if node.op_type == "Constant":
                _check_constant(node, new, have, version)
            elif any(attribute.is_ref() for attribute in node.attributes.values()):
                if not _alike(node.op_type, have, version):
                    raise refusal(node, have, version, "it has an attribute of the function, and its operator changed")
                if version < have:
                    fewer_types[node] = have
            elif _NEGATIVE_AXES_SINCE <= version < have and _alike(node.op_type, have, version):
                fewer_types[node] = have
            else:
                changed[node] = have


def _alike(op_type: str, have: int, version: int) -> bool:
    """Whether an operator's versions differ in nothing but the types that they take."""
    low, high = sorted((have, version))
    return len({_signature(op_type, opset) for opset in range(low, high + 1)}) == 1


def _check_types(node: ir.Node, have: int, version: int) -> None:
    """A node whose operator took fewer types before is what it was if its own are among these."""
    schema = onnx.defs.get_schema(node.op_type, version)
    constraints = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for i, value in enumerate(values):
            formal = formals[min(i, len(formals) - 1)]
            allowed = constraints.get(formal.type_str, [formal.type_str])
            if value is None or not value.name or _spelled(value.type) in allowed:
                continue
            what = "a type that is not known" if value.type is None else f"the type {value.type}"
            raise refusal(node, have, version, f"it has {what}, and fewer are allowed there")


def _check_constant(node: ir.Node, schema: onnx.defs.OpSchema, have: int, version: int) -> None:
    """A Constant is what it was, weights and all, unless the new version cannot say it."""
    for name, attribute in node.attributes.items():
        if name not in schema.attributes:
            raise refusal(node, have, version, f"it has no attribute {name!r} there")
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            dtype = attribute.as_tensor().dtype
            if _spelled(ir.TensorType(dtype)) not in schema.type_constraints[0].allowed_type_strs:
                raise refusal(node, have, version, f"it cannot be of type {dtype.name} there")


def _spelled(kind: ir.TypeProtocol | None) -> str:
    """A type as schemas spell it."""
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        name = "seq" if isinstance(kind, ir.SequenceType) else "optional"
        return f"{name}({_spelled(kind.elem_type)})"
    return f"tensor({kind.dtype.name.lower()})" if isinstance(kind, ir.TensorType) else ""
