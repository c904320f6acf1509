"""The same model written otherwise: axes counted from the end, defaults written out, padding left to the op."""

from __future__ import annotations

import onnx
from onnx import AttributeProto, helper

from fuzzing.mutants.draft import Draft, array_of, store
from fuzzing.writer import Unsuitable

_AXES = ("axis", "axes")
_PADDED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")


def from_the_end(draft: Draft) -> None:
    """An axis is counted from the end, or from the front where it was counted from the end."""
    ranks = _ranks(draft)
    nodes = [node for node in draft.graph.node if not node.domain and node.input and ranks.get(node.input[0])]
    found = [(node, one) for node in nodes for one in node.attribute if one.name in _AXES]
    axes = [node for node in nodes if node.op_type.startswith("Reduce") or node.op_type == "Squeeze"]
    inputs = [(node, node.input[1]) for node in axes if len(node.input) > 1 and node.input[1]]
    inputs += [(node, node.input[3]) for node in nodes if node.op_type == "Slice" and len(node.input) > 3]
    if inputs and (not found or draft.draw.random() < 0.5):
        node, name = draft.one(inputs)
        tensor = draft.one([one for one in draft.constants() if one.name == name])
        array, rank = array_of(tensor).copy(), ranks[node.input[0]]
        array[...] = [_other(int(axis), rank) for axis in array.reshape(-1)]
        store(tensor, array)
        return
    node, attribute = draft.one(found)
    rank = ranks[node.input[0]]
    if attribute.type == AttributeProto.INT:
        attribute.i = _other(attribute.i, rank)
    else:
        attribute.ints[:] = [_other(axis, rank) for axis in attribute.ints]


def _other(axis: int, rank: int) -> int:
    return axis - rank if axis >= 0 else axis + rank


def _ranks(draft: Draft) -> dict[str, int]:
    try:
        typed = onnx.shape_inference.infer_shapes(draft.model)
    except Exception as error:
        raise Unsuitable from error
    values = (*typed.graph.input, *typed.graph.value_info, *typed.graph.output)
    found = {one.name: len(one.type.tensor_type.shape.dim) for one in values if one.type.tensor_type.HasField("shape")}
    return found | {one.name: len(one.dims) for one in draft.graph.initializer}


def defaults(draft: Draft) -> None:
    """An attribute that was left out is written out as its default."""
    node = draft.one([one for one in draft.nodes if not one.domain and one.op_type != "Constant"])
    try:
        schema = onnx.defs.get_schema(node.op_type, draft.opset)
    except onnx.defs.SchemaError as error:
        raise Unsuitable from error
    has = {one.name for one in node.attribute}
    known = [one for name, one in schema.attributes.items() if name not in has and one.default_value.name]
    chosen = draft.one(sorted(known, key=lambda one: one.name))
    node.attribute.append(chosen.default_value)


def left_to_the_op(draft: Draft) -> None:
    """A convolution or pool computes its padding itself."""
    node = draft.one([one for one in draft.nodes if one.op_type in _PADDED])
    kept = [one for one in node.attribute if one.name not in ("pads", "auto_pad")]
    del node.attribute[:]
    node.attribute.extend(kept)
    how = draft.draw.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    node.attribute.append(helper.make_attribute("auto_pad", how))


def told(draft: Draft) -> None:
    """The kernel's sizes, strides, dilations and padding are attributes that say what was so anyway."""
    node = draft.one([one for one in draft.nodes if one.op_type in ("Conv", "ConvTranspose")])
    weights = [one for one in draft.graph.initializer if one.name == node.input[1]]
    spatial = list(draft.one(weights).dims)[2:]
    has = {one.name for one in node.attribute}
    if "kernel_shape" not in has:
        node.attribute.append(helper.make_attribute("kernel_shape", spatial))
    for name in ("strides", "dilations"):
        if name not in has:
            node.attribute.append(helper.make_attribute(name, [1] * len(spatial)))
    if not has & {"pads", "auto_pad"}:
        node.attribute.append(helper.make_attribute("pads", [0] * (2 * len(spatial))))
