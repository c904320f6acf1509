"""A copy of a quantized model that rounds nothing: its quantizers keep the fractions.

What is rounded hides small mistakes: a quantized model moves by percents where the last place of a number decides
between two steps. Without rounding it is as smooth as any other, and an original and its result can be compared as
closely. In the copy, a tensor of integers that comes from a quantizer is one of floats, in the same units, within the
same bounds; ops that compute with such integers become the float ops that they stand for
(`ortopt.verification.unrounded_ops`), and ops that only move elements stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import onnx
import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import facts, scope
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import BITWISE, SHAPE_QUERIES
from ortopt.serialization.load import load
from ortopt.verification.quantizers import is_blockwise, round_biases, rounds
from ortopt.verification.unrounded_ops import FORMULAS, Formula, NoFormulaError

_OF_INTEGERS: Final = BITWISE | {"Div", "Mod"}
"""Ops that do something else with integers than with floats."""


def unrounded(model: ir.Model, token: CancellationToken = NEVER, *, biases_as_integers: bool = False) -> ir.Model:
    """A copy that rounds nothing.

    Args:
        model: The model.
        token: Cancellation token.
        biases_as_integers: Whether constant biases of floats beside quantized operands become what the integer kernels
            take for them, which have biases of 32 bits.

    Raises:
        NoFormulaError: An op that takes or gives quantized integers has no such copy; the message names it.
    """
    copy = load(model, token)
    infer_model(copy, token)
    for function in copy.functions.values():
        for graph in scope.below(function.graph):
            for node in graph:
                if rounds(node):
                    raise NoFormulaError(node)
    if biases_as_integers:
        round_biases(copy, token)
    _Unrounding(copy, token).graph(copy.graph)
    return copy


class _Unrounding:
    """Rewrites one copy.

    Args:
        model: The copy; its types and shapes are inferred.
        token: Cancellation token.
    """

    def __init__(self, model: ir.Model, token: CancellationToken) -> None:
        self._opset = model.opset_imports.get("", 1)
        self._functions = model.functions
        self._token = token
        self._floats: set[ir.Value] = set()
        self._constants: set[ir.Value] = set()

    def graph(self, graph: ir.Graph) -> None:
        """Rewrite a graph, and what is nested in it."""
        for node in self._token.checked(tuple(graph)):
            for inner in semantics.subgraphs(node):
                self.graph(inner)
                if any(value in self._floats for value in inner.outputs):
                    raise NoFormulaError(node)
            self._node(node)

    def _node(self, node: ir.Node) -> None:
        if self._may_be_folded(node):
            self._constants.update(node.outputs)
            return  # what is folded is rounded
        key = node.domain, node.op_type
        takes = [number for number, value in enumerate(node.inputs) if value is not None and value in self._floats]
        if is_blockwise(node):
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 1)
        elif key in FORMULAS and (takes or rounds(node) or key in _ALWAYS):
            formula = Formula(node, self._opset, self._floats)
            self._become_floats(FORMULAS[key](formula))
        elif rounds(node):
            raise NoFormulaError(node)
        elif takes and (node.domain or node.op_type not in SHAPE_QUERIES):
            self._move(node, takes)

    def _may_be_folded(self, node: ir.Node) -> bool:
        """Whether what a node computes depends on no input of the model, through any number of nodes."""
        if any(semantics.subgraphs(node)) or not all(map(self._is_constant, node.inputs)):
            return False
        return not semantics.is_random(node, self._functions)

    def _is_constant(self, value: ir.Value | None) -> bool:
        if value is None or value.const_value is not None or value in self._constants:
            return True
        known = facts.contents(value)
        return known is not None and all(isinstance(element, int) for element in known)

    def _become_floats(self, values: Iterator[ir.Value] | tuple[ir.Value, ...]) -> None:
        for value in values:
            self._floats.add(value)
            value.type = ir.TensorType(ir.DataType.FLOAT)

    def _move(self, node: ir.Node, takes: list[int]) -> None:
        """An op that takes integers and floats alike."""
        if node.domain or node.op_type in _OF_INTEGERS or (node.domain, node.op_type, "") in self._functions:
            raise NoFormulaError(node)
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opset, "")
        except onnx.defs.SchemaError:
            raise NoFormulaError(node) from None
        names = {_parameter(schema.inputs, number) for number in takes}
        allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
        if len(names) != 1 or "tensor(float)" not in allowed.get(name := names.pop(), ()):
            raise NoFormulaError(node)
        formula = Formula(node, self._opset, self._floats)
        for number, value in enumerate(node.inputs):
            if value is not None and number not in takes and _parameter(schema.inputs, number) == name:
                node.replace_input_with(number, formula.floats(value))
        self._become_floats(
            tuple(value for number, value in enumerate(node.outputs) if _parameter(schema.outputs, number) == name)
        )


_ALWAYS: Final = frozenset(
    {
        ("", "MatMulInteger"),
        ("", "ConvInteger"),
        (MICROSOFT, "MatMulIntegerToFloat"),
        (MICROSOFT, "QAttention"),
    }
)
"""Ops whose result would be of integers, or of other numbers, where no operand is."""


def _parameter(formals: object, number: int) -> str:
    """The type parameter of an input or an output; the last may stand for many."""
    assert isinstance(formals, list | tuple)
    return str(formals[min(number, len(formals) - 1)].type_str) if formals else ""
