"""The forms of the nodes that passes make, and on which releases of ONNX Runtime each has been run.

A form is what kernels tell apart: the op and its version, the types of its inputs, those that are left out, the outputs
that are used, and its attributes; of ONNX Runtime's own ops and of young ones also which dimensions are 1, as kernels
of theirs broadcast in ways of their own. ``python -m tools.probe_forms`` keeps in ``produced-forms.json`` what came of
each form on each release. A test of a pass fails where it makes a form that has not been run, or was wrong, on a
release that the result is said to run on (`ortopt.analysis.releases.requirement`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir

from ortopt.analysis import kernels, releases
from ortopt.graph.facts import dims_of
from ortopt.serialization.load import load

PATH: Final = Path(__file__).with_name("produced-forms.json")

RIGHT: Final = "r"
WRONG: Final = "x"
REWRITTEN: Final = "l"
"""Right as it is written, and not as the release rewrites it at load, which it does not do to the original."""

LIKE_THE_ORIGINAL: Final = "o"
"""What a form is part of is not right, and neither is the model that a pass was given: of the form it says nothing."""
NOT_RUN: Final = "."

_YOUNG: Final = 20
"""Ops that came, or came anew, with this opset of ai.onnx: the oldest releases that are probed do not have them all."""

_CONTROL: Final = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def form_of(node: ir.Node, opset: int) -> str:
    """The form of a node, as text.

    Args:
        node: A node whose values have types.
        opset: The opset of its domain.
    """
    schema = kernels.schema(node.domain, node.op_type, opset)
    since = opset if schema is None else schema.since
    shaped = bool(node.domain) or since >= _YOUNG
    inputs = ", ".join(_value(value, shaped=shaped) for value in node.inputs)
    used = "".join("-" if value.name == "" else "+" for value in node.outputs)
    attributes = sorted(
        f"{attribute.name}={_attribute(attribute)}"
        for attribute in node.attributes.values()
        if attribute.type not in _CONTROL
    )
    return " ".join([f"{node.domain or 'ai.onnx'}::{node.op_type}-{since}", f"({inputs})", used, *attributes])


def _value(value: ir.Value | None, *, shaped: bool) -> str:
    if value is None:
        return "-"
    dtype = "?" if value.dtype is None else value.dtype.name.lower()
    dims = dims_of(value) if shaped else None
    return dtype if dims is None else f"{dtype}[{','.join(map(_dim, dims))}]"


def _dim(dim: Any) -> str:
    """0 and 1 as they are, another size as n, an open one as ?."""
    return "?" if not isinstance(dim, int) else str(dim) if dim < 2 else "n"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return "@"
    if attribute.type == ir.AttributeType.STRING:
        return attribute.as_string()
    if attribute.type == ir.AttributeType.INT:
        return str(attribute.as_int()) if attribute.as_int() in (0, 1) or attribute.name in _CODES else "n"
    return attribute.type.name.lower()


_CODES: Final = frozenset({"to", "dtype", "bits", "stash_type", "softmax_precision", "qk_matmul_output_mode"})
"""Attributes whose numbers are names of types and kinds, no sizes."""


def produced(before: ir.Model, after: ir.Model) -> frozenset[str]:
    """The forms of the nodes of a result that its original does not have.

    Args:
        before: The original.
        after: The result; its values have types.
    """
    old = {_identity(node) for node, _ in _nodes(before)}
    return frozenset(form_of(node, opset) for node, opset in _nodes(after) if _identity(node) not in old)


def _nodes(model: ir.Model) -> Iterator[tuple[ir.Node, int]]:
    """The nodes that kernels run, each with the opset of its domain."""
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for body in bodies:
        for node in body.all_nodes():
            if node.op_identifier() not in model.functions:
                yield node, body.opset_imports.get(node.domain, 1)


def _identity(node: ir.Node) -> tuple[Any, ...]:
    values = (*node.inputs, None, *node.outputs)
    return (node.domain, node.op_type, *(None if value is None else value.name for value in values))


@functools.cache
def table() -> Mapping[str, str]:
    """What came of each form on each release of `probed`, a letter for each."""
    forms: dict[str, str] = _data()["forms"]
    return forms


@functools.cache
def probed() -> tuple[str, ...]:
    """The releases that forms were run on, from the oldest on."""
    return tuple(_data()["releases"])


@functools.cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return data


def faults(before: ir.Model, after: ir.Model) -> list[str]:
    """What is not known to be right of the forms that a pass has made, on releases that its result should run on.

    Args:
        before: The original.
        after: The result; its values have types.
    """
    forms = produced(before, after)
    allowed = meant(needed(after), probed()) if forms else range(0)
    told: dict[str, list[str]] = {}
    for form in sorted(forms):
        letters = table().get(form, NOT_RUN * len(probed()))
        for place in allowed:
            if letters[place] in _TOLD:
                told.setdefault(f"{form}: {_TOLD[letters[place]]}", []).append(probed()[place])
    return [f"{what} on ONNX Runtime {', '.join(where)}" for what, where in told.items()]


_TOLD: Final = {
    NOT_RUN: "it has not been run",
    WRONG: "it is wrong",
    REWRITTEN: "it is wrong, as it is rewritten at load,",
}


def needed(model: ir.Model) -> str | None:
    """The first release that a model is said to run on, with the IR version that it needs; None if that is left open.

    Args:
        model: The model; its values have types.
    """
    given = model.ir_version
    model.ir_version = min(given, releases.needed_ir_version(model))
    needed = releases.requirement(model)
    model.ir_version = given
    return needed.with_nothing or needed.onnxruntime  # of nothing, too, as results of open sizes are run


def meant(first: str | None, versions: Sequence[str]) -> range:
    """Where the releases stand that a model is said to run on.

    Args:
        first: The first of them, as `needed` says it.
        versions: Releases, from the oldest on.
    """
    if first is None:  # ops of others: nothing is said
        return range(0)
    old = sum(releases.parse_release(version) < releases.parse_release(first) for version in versions)
    return range(old, len(versions))


def checked(verify: Callable[..., Any], see: Callable[[ir.Model, ir.Model, Any], None]) -> Callable[..., Any]:
    """`ortopt.testing`'s comparison of a pass's result with its original, which shows both to another function, too.

    Args:
        verify: The comparison.
        see: Is given the original, the result, and the inputs or None.
    """

    def both(original: ir.Model, result: ir.Model, **more: Any) -> Any:
        outcome = verify(original, result, **more)
        if outcome.status == "verified":
            see(load(original), result, more.get("inputs"))
        return outcome

    return both
