"""Raise the opset of ai.onnx in place, where that is exact: by a table of ours, through the editor.

Between two opsets an operator of the same name is the same if its newer version only takes more types, or has optional
inputs and attributes more whose defaults mean what was meant before. That is read from the schemas; the versions that
changed their meaning under the same schema are listed here. Axes that became an input move there. Everything else is
refused: `ortopt.opset_conversion.conversion` asks onnx's converter, and only on request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.kernels import official_schema
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.edit import Editor, constant
from ortopt.graph.facts import dims_of
from ortopt.semantics import GROUP_DOMAIN
from ortopt.semantics.opset_changes import (
    AXES_ARE_AN_INPUT_FROM,
    ONE_AXIS_FROM,
    REGION_IS_AN_INPUT_FROM,
    SCAN_HAS_NO_BATCH_FROM,
)

OLDEST: Final = 11
"""The oldest opset that is raised: before it, too many operators of the same form computed something else."""

_Refusal = str
_Change = Callable[[Editor, ir.Node], None]


class Step(Struct, frozen=True):
    """What raising does to one node.

    Attributes:
        node: The node.
        change: How it is changed, before the opset is another one.
    """

    node: ir.Node
    change: _Change


def plan(model: ir.Model, version: int, token: CancellationToken = NEVER) -> list[Step] | str:
    """What raising a model's opset takes; linear in its nodes.

    Args:
        model: The model; it is not changed.
        version: The opset of ai.onnx that it shall import.
        token: Cancellation token.

    Returns:
        The steps, or why it cannot be done exactly, as a clause that names the node.
    """
    steps: list[Step] = []
    for body, imports in _bodies(model):
        have = imports.get("", version)
        if have < OLDEST:
            return f"opset {have} is too old to be raised without asking"
        for graph in scope.below(body, token):
            for node in token.checked(graph):
                if node.domain or have >= version or node.op_identifier() in model.functions:
                    continue
                change = _step(node, have, version)
                if isinstance(change, str):
                    label = f"{node.op_type} {node.name!r}" if node.name else node.op_type
                    return f"{label} has no exact form in opset {version}: {change}"
                if change is not None:
                    steps.append(Step(node, change))
    return steps


def apply(edit: Editor, model: ir.Model, version: int, steps: list[Step]) -> None:
    """Do what has been planned.

    Args:
        edit: The model's editor.
        model: The model.
        version: As planned with.
        steps: From `plan`.
    """
    for step in steps:
        step.change(edit, step.node)
    for _, imports in _bodies(model):
        if imports.get("", version) < version:
            edit.set_opset(imports, "", version)
    edit.set_ir_version(max(model.ir_version, least_ir_version(version)))


def least_ir_version(version: int) -> int:
    """The IR version that an opset of ai.onnx wants."""
    opset = onnx.helper.make_opsetid("", version)
    return onnx.helper.find_min_ir_version_for([opset], ignore_unknown=True)


def _bodies(model: ir.Model) -> list[tuple[ir.Graph, dict[str, int]]]:
    functions = (function for function in model.functions.values() if function.domain != GROUP_DOMAIN)
    return [(model.graph, model.opset_imports), *((function.graph, function.opset_imports) for function in functions)]


def _step(node: ir.Node, have: int, version: int) -> _Change | _Refusal | None:
    """How a node is raised: not at all (None), by a change, or why it is not."""
    moves_axes, reason = _between(node.op_type, have, version)
    if reason:
        exact_form = _EXACT_FORMS.get(node.op_type)
        return reason if exact_form is None else exact_form(node, reason, version)
    if moves_axes:
        return _axes_to_input(node)
    guard = _GUARDS.get(node.op_type)
    return guard(node, have, version) if guard is not None else None


@functools.lru_cache(1 << 10)
def _between(op_type: str, have: int, version: int) -> tuple[bool, _Refusal]:
    """What lies between two versions of an operator.

    Returns:
        Whether its axes became an input; and the reason why the versions are not the same, empty where there is none.
    """
    old, new = (official_schema("", op_type, opset) for opset in (have, version))
    if old is None or new is None or new.deprecated:
        return False, f"ai.onnx does not define it at opset {have if old is None else version}"
    if old.since_version == new.since_version:
        return False, ""
    for opset in _MEANING_CHANGED.get(op_type, ()):
        if old.since_version < opset <= version:
            return False, f"its meaning changed at opset {opset}"
    moved = AXES_ARE_AN_INPUT_FROM.get(op_type)
    if moved is not None and old.since_version < moved <= version:
        return (True, "") if len(old.inputs) == 1 else (False, "its inputs changed")
    return False, _difference(old, new)


def _difference(old: Any, new: Any) -> str:
    """Why a newer version is not the older one and more, as far as schemas tell; empty where it is."""
    for had, has in ((old.inputs, new.inputs), (old.outputs, new.outputs)):
        if len(has) < len(had) or any(a.option != b.option for a, b in zip(had, has, strict=False)):
            return "its inputs or outputs changed"
        if any(formal.option != onnx.defs.OpSchema.FormalParameterOption.Optional for formal in has[len(had) :]):
            return "it has an input or output more"
    for name, attribute in old.attributes.items():
        other = new.attributes.get(name)
        if other is None or other.type != attribute.type:
            return f"its attribute {name!r} changed"
        if other.default_value != attribute.default_value or (other.required and not attribute.required):
            return f"the default of its attribute {name!r} changed"
    if any(attribute.required for name, attribute in new.attributes.items() if name not in old.attributes):
        return "it has a required attribute more"
    return ""


_MEANING_CHANGED: Final = {
    "AveragePool": (19,),  # how windows that reach over the end count: see _average_pool
    "BatchNormalization": (14,),  # outputs of training: see _batch_normalization
    "ConvTranspose": (11,),
    "GroupNormalization": (21,),  # scale and bias by channel, by group before
    "LpPool": (18,),  # windows that reach over the end
    "Resize": (REGION_IS_AN_INPUT_FROM["Resize"],),
    "RoiAlign": (16,),  # where pixels are, by default
    "Scan": (SCAN_HAS_NO_BATCH_FROM,),
    **{op: (opset,) for op, opset in ONE_AXIS_FROM.items()},
    "Split": (18,),  # parts of equal size need their number: see _split
}
"""Opsets at which the meaning of an operator changed, whatever its schema says."""


def _axes_to_input(node: ir.Node) -> _Change | _Refusal | None:
    attribute = node.attributes.get("axes")
    if attribute is None:
        return None
    if attribute.is_ref():
        return "'axes' is an attribute of the function"
    content = np.array(attribute.as_ints(), dtype=np.int64)

    def change(edit: Editor, node: ir.Node) -> None:
        edit.remove_attribute(node, "axes")
        edit.set_input(node, 1, constant(content))

    return change


def _average_pool(node: ir.Node, reason: str, _: int) -> _Change | _Refusal | None:
    ceil_mode = node.attributes.get("ceil_mode")
    exact = ceil_mode is None or (not ceil_mode.is_ref() and ceil_mode.as_int() == 0)
    return None if exact else reason


def _batch_normalization(node: ir.Node, reason: str, _: int) -> _Change | _Refusal | None:
    return None if sum(1 for value in node.outputs if value.name) == 1 else reason


def _split(node: ir.Node, reason: str, version: int) -> _Change | _Refusal | None:
    if "split" in node.attributes:
        return reason  # of opset 11, where the sizes are an attribute
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return None
    if version < 18:
        return None
    count = ir.AttrInt64("num_outputs", len(node.outputs))
    return lambda edit, node: edit.set_attribute(node, count)


def _softmax(node: ir.Node, reason: str, _: int) -> _Change | _Refusal | None:
    """Before opset 13 all dimensions from the axis on are one: the same only where it is the last."""
    known = None if node.inputs[0] is None else dims_of(node.inputs[0])
    attribute = node.attributes.get("axis")
    if known is None or (attribute is not None and attribute.is_ref()):
        return reason
    axis = 1 if attribute is None else attribute.as_int()
    if axis not in (-1, len(known) - 1):
        return reason
    last = ir.AttrInt64("axis", -1)
    return lambda edit, node: edit.set_attribute(node, last)


_EXACT_FORMS: Final[dict[str, Callable[[ir.Node, str, int], _Change | _Refusal | None]]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    **dict.fromkeys(ONE_AXIS_FROM, _softmax),
    "Split": _split,
}
"""Operators whose meaning changed, but not for every node: what becomes of a node, or why its form is not exact."""


def _resize(node: ir.Node, have: int, version: int) -> _Change | _Refusal | None:
    mode = node.attributes.get("coordinate_transformation_mode")
    if have < 13 <= version and mode is not None and (mode.is_ref() or mode.as_string() == "tf_half_pixel_for_nn"):
        return "its coordinate_transformation_mode does not exist any more"
    return None


_GUARDS: Final[dict[str, Callable[[ir.Node, int, int], _Change | _Refusal | None]]] = {"Resize": _resize}
"""Operators of which a value of an attribute does not exist any more."""
