"""What the specification says of a node of an op: how many operands, which attributes, which types.

A few facts for each op of a model, taken from onnx's schemas when the first node of it is looked at. Ops and versions
that the schemas do not know have none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import onnx.defs
import onnx_ir as ir
from msgspec import Struct

from ortopt.errors import InvalidModelError
from ortopt.semantics.domains import ML, TRAINING
from ortopt.terminal_text import counted, quoted

_NEWEST: Final = {ML: 5, TRAINING: 1}
"""The versions of domains, but for ai.onnx, up to which the schemas are sure to be those that are meant."""

_ENDLESS: Final = 2**31 - 1
_Kind = ir.DataType | None

_SETTLED: Final = frozenset(
    kind
    for kind in ir.DataType
    if kind.name
    in {
        *("BOOL", "STRING", "FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE", "COMPLEX64", "COMPLEX128"),
        *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    }
)
"""The types that every schema knows; whether an op takes a younger one is for its runtime to say."""

ABSENT: Final = -1
"""Stands for the type of an operand that is left out."""

Kinds = tuple["ir.DataType | int | None", ...]
"""Element types of a node's inputs: None where it is not known or no tensor's, `ABSENT` where there is no input."""


class Formal(Struct, frozen=True):
    """An input or output of an op.

    Attributes:
        name: Its name in the schema.
        variable: The type variable that stands for its type, or the type.
        required: Whether it must be there.
        bound: Whether all of its values, if there are several, have the type of the variable.
    """

    name: str
    variable: str
    required: bool
    bound: bool


class Signature(Struct, frozen=True, eq=False):
    """What is known of an op in one version.

    Attributes:
        op: Its name.
        inputs: The inputs; the last one may stand for any number.
        outputs: The outputs; the last one may stand for any number.
        least_inputs: How many inputs there must be.
        most_inputs: How many there may be.
        least_outputs: How many outputs there must be.
        most_outputs: How many there may be.
        attributes: The type of each attribute.
        required: The attributes that must be there.
        types: The types that a type variable allows, by variable.
    """

    op: str
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    least_inputs: int
    most_inputs: int
    least_outputs: int
    most_outputs: int
    attributes: Mapping[str, ir.AttributeType]
    required: frozenset[str]
    types: Mapping[str, frozenset[str]]

    def check_counts(self, inputs: int, outputs: int) -> None:
        """Refuse too few or too many operands or results.

        Args:
            inputs: How many inputs a node has, those that are left out in front of others counted.
            outputs: How many outputs it has.

        Raises:
            InvalidModelError: The specification allows fewer, or asks for more.
        """
        for count, least, most, what in (
            (inputs, self.least_inputs, self.most_inputs, "input"),
            (outputs, self.least_outputs, self.most_outputs, "output"),
        ):
            if not least <= count <= most:
                wanted = (
                    str(least) if least == most else f"at least {least}" if most == _ENDLESS else f"{least} to {most}"
                )
                raise InvalidModelError(f"has {counted(count, what)} where {self.op} takes {wanted}")

    def check_attributes(self, attributes: Mapping[str, ir.Attr]) -> None:
        """Refuse attributes that the op does not have, or of another type, and required ones that are missing.

        Args:
            attributes: Those of a node.

        Raises:
            InvalidModelError: What is wrong, to be put behind a node's name.
        """
        for name, attribute in attributes.items():
            wanted = self.attributes.get(name)
            if wanted is None:
                if not name.startswith("__"):  # notes of tools, which readers skip
                    raise InvalidModelError(f"has an attribute {quoted(name)}, which {self.op} does not have")
            elif attribute.type is not wanted:
                raise InvalidModelError(
                    f"has an attribute {quoted(name)} of type {attribute.type.name} where {self.op} takes {wanted.name}"
                )
        missing = self.required.difference(attributes)
        if missing:
            raise InvalidModelError(f"has no attribute {quoted(min(missing))}, which {self.op} requires")

    def results(self, kinds: Kinds, outputs: int) -> tuple[_Kind, ...]:
        """The types of the outputs, as far as those of the inputs determine them.

        Args:
            kinds: The types of the inputs.
            outputs: How many outputs there are.

        Raises:
            InvalidModelError: A required input is left out, or inputs are of types that the op does not take.
        """
        bound: dict[str, ir.DataType] = {}
        for position, kind in enumerate(kinds):
            formal = self.inputs[min(position, len(self.inputs) - 1)]
            if kind is ABSENT:
                if formal.required:
                    raise InvalidModelError(
                        f"has no input {position} ({quoted(formal.name)}), which {self.op} requires"
                    )
                continue
            if kind is None or kind not in _SETTLED:
                continue
            assert isinstance(kind, ir.DataType)
            allowed = self.types.get(formal.variable)
            if type_name(kind) not in (allowed if allowed is not None else {formal.variable}):
                raise InvalidModelError(f"has input {position} of type {kind.name}, which {self.op} does not take")
            if formal.bound and bound.setdefault(formal.variable, kind) is not kind:
                raise InvalidModelError(
                    f"has inputs of types {bound[formal.variable].name} and {kind.name}, which must be the same"
                )
        return tuple(self._result(position, bound) for position in range(outputs))

    def _result(self, position: int, bound: Mapping[str, ir.DataType]) -> _Kind:
        formal = self.outputs[min(position, len(self.outputs) - 1)]
        if not formal.bound:
            return None
        return bound.get(formal.variable) or _only(self.types.get(formal.variable, frozenset({formal.variable})))


def _only(names: frozenset[str]) -> _Kind:
    """The element type of the one tensor type among some, or None if there are others."""
    return _TYPES.get(next(iter(names))) if len(names) == 1 else None


def type_name(kind: ir.DataType) -> str:
    """What schemas call a tensor with elements of a type."""
    return f"tensor({kind.name.lower()})"


_TYPES: Final = {type_name(kind): kind for kind in ir.DataType}


@functools.cache
def signature(domain: str, op: str, version: int) -> Signature | None:
    """What the specification says of an op, or None where it says nothing, or nothing that holds any more.

    Args:
        domain: The domain; ai.onnx is the empty string.
        op: The name of the op.
        version: The opset that is imported.
    """
    newest = _NEWEST.get(domain, 0) if domain else onnx.defs.onnx_opset_version()
    if not 1 <= version <= newest:
        return None
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    attributes: Mapping[str, Any] = schema.attributes  # the stubs leave out what enumerations have
    return Signature(
        op,
        _formals(schema.inputs),
        _formals(schema.outputs),
        schema.min_input,
        schema.max_input,
        schema.min_output,
        schema.max_output,
        {name: ir.AttributeType[attribute.type.name] for name, attribute in attributes.items()},
        frozenset(name for name, attribute in attributes.items() if attribute.required),
        {constraint.type_param_str: frozenset(constraint.allowed_type_strs) for constraint in schema.type_constraints},
    )


def _formals(formals: Sequence[onnx.defs.OpSchema.FormalParameter]) -> tuple[Formal, ...]:
    option = onnx.defs.OpSchema.FormalParameterOption
    return tuple(
        Formal(
            formal.name,
            formal.type_str,
            formal.option == option.Single,
            formal.option != option.Variadic or formal.is_homogeneous,
        )
        for formal in formals
    )
