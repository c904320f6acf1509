"""A quantized original and its results side by side without rounding, where the usual tolerance holds.

A copy of a quantized model that rounds nothing: its quantizers keep the fractions.

What is rounded hides small mistakes: a quantized model moves by percents where the last place of a number decides
between two steps. Without rounding it is as smooth as any other, and an original and its result can be compared as
closely. In the copy, a tensor of integers that comes from a quantizer is one of floats, in the same units, within the
same bounds; ops that compute with such integers become the float ops that they stand for
(`ortopt.verification.unrounded_ops`), and ops that only move elements stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
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
from ortopt.verification import noise
from ortopt.verification.comparison import Comparison
from ortopt.verification.input_sets import InputSet
from ortopt.verification.kernel_steps import kernel_steps
from ortopt.verification.perturbed_outputs import PerturbedCopies
from ortopt.verification.process import WorkerError
from ortopt.verification.quantizers import has_biases, is_blockwise, round_biases, rounds
from ortopt.verification.reference_outputs import ReferenceOutputs
from ortopt.verification.result_comparison import ResultComparison
from ortopt.verification.runner import ModelRunner, Source
from ortopt.verification.tolerances import tolerances
from ortopt.verification.unrounded_ops import FORMULAS, Formula, NoFormulaError
from ortopt.verification.verdict import Verification

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


class UnavailableError(Exception):
    """There is no copy without rounding, or it does not run; the message says why."""


class WithoutRounding:
    """The original without rounding, with which results without rounding are compared.

    A bias of floats beside quantized operands is rounded by the integer kernels, and by no others. So a result is right
    that agrees in either way: with such biases rounded in both models, or in none.

    Args:
        runner: Runs them.
        original: The original.
        reference: The outputs of the original as it is.
        token: Cancellation token.

    Attributes:
        differing: The input sets on which the last result differed.
    """

    def __init__(
        self, runner: ModelRunner, original: Source, reference: ReferenceOutputs, token: CancellationToken = NEVER
    ) -> None:
        self.differing: list[int] = []
        self._arguments = runner, original, reference, token
        self._ways: dict[bool, _OneWay] = {}

    def compare(self, result: Source, outputs: Collection[str] | None, sets: Collection[int] | None) -> Verification:
        """The verdict on a result without rounding.

        Args:
            result: The result as it is.
            outputs: The outputs to compare; all if None.
            sets: The input sets to compare on; all if None.

        Raises:
            UnavailableError: Nothing can be said.
        """
        first: Verification | None = None
        for rounded in (True, False):
            if rounded not in self._ways:
                self._ways[rounded] = _OneWay(*self._arguments, rounded)
            verdict = self._ways[rounded].compare(result, outputs, sets)
            self.differing = self._ways[rounded].differing
            if verdict.status != "differs" or (rounded and not self._has_biases(result)):
                return verdict
            first = first or verdict
        assert first is not None
        self.differing = self._ways[True].differing
        return first

    def _has_biases(self, result: Source) -> bool:
        _, original, _, token = self._arguments
        models = (model if isinstance(model, ir.Model) else load(model, token) for model in (original, result))
        return any(has_biases(model, token) for model in models)


class _OneWay:
    """The same, with biases rounded or not.

    Args:
        runner: See `WithoutRounding`.
        original: Likewise.
        reference: Likewise.
        token: Likewise.
        biases: Whether they are rounded.

    Attributes:
        differing: The input sets on which the last result differed.
    """

    def __init__(
        self,
        runner: ModelRunner,
        original: Source,
        reference: ReferenceOutputs,
        token: CancellationToken,
        biases: bool,
    ) -> None:
        self.differing: list[int] = []
        self._biases = biases
        self._prefix = "unrounded-" if biases else "unrounded2-"
        self._runner = runner
        self._token = token
        self._reference: ReferenceOutputs | None = None
        self._unavailable = ""
        try:
            copy = self._copy(original, "the original")
            self._reference = self._run(copy, reference)
        except UnavailableError as reason:
            self._unavailable = str(reason)
            return
        self._copies = PerturbedCopies(runner, copy, self._reference.sets, prefix=self._prefix)

    def _copy(self, model: Source, what: str) -> ir.Model:
        loaded = model if isinstance(model, ir.Model) else load(model, self._token)
        if noise.constant_bytes(loaded, self._token) > noise.LARGEST_COPY:
            raise UnavailableError(f"{what} is too large")
        try:
            return unrounded(loaded, self._token, biases_as_integers=self._biases)
        except NoFormulaError as error:
            raise UnavailableError(f"{error} of {what} has no form without rounding") from None

    def _run(self, copy: ir.Model, reference: ReferenceOutputs) -> ReferenceOutputs:
        sets: dict[int, InputSet] = {}
        try:
            with self._runner.worker(copy, f"{self._prefix}original") as worker:
                names, types = tuple(worker.names), tuple(worker.types)
                for number, input_set in reference.sets.items():
                    if not input_set.extreme:
                        target = self._runner.place(f"{self._prefix}original{number}")
                        rows = worker.run(input_set.source, target)
                        sets[number] = InputSet(
                            input_set.source, target, rows, input_set.label, worker.seconds, input_set.elements
                        )
                        sets[number].signs = input_set.signs
        except WorkerError as error:
            if not sets:
                raise UnavailableError(f"the original does not run without rounding: {error}") from None
        random, steps = reference.comparison.random, kernel_steps(copy)
        comparison = Comparison(tolerances(copy, self._token), random, steps=steps)
        return dataclasses.replace(reference, names=names, types=types, sets=sets, comparison=comparison)

    def compare(self, result: Source, outputs: Collection[str] | None, sets: Collection[int] | None) -> Verification:
        """The verdict on a result without rounding; raises `UnavailableError`."""
        if self._reference is None:
            raise UnavailableError(self._unavailable)
        copy = self._copy(result, "the result")
        reference = self._reference.only(outputs, sets)
        comparing = ResultComparison(self._runner, reference, self._copies, self._prefix)
        try:
            with self._runner.worker(copy, f"{self._prefix}loaded") as worker:
                if tuple(worker.types) != reference.types:
                    raise UnavailableError("the result has integers where the original has floats without rounding")
            verdict = comparing.verdict(copy)
        except WorkerError as error:
            raise UnavailableError(f"the result does not run without rounding: {error}") from None
        if verdict.status != "verified" and not verdict.outputs:
            raise UnavailableError(f"the result does not run without rounding: {verdict.reason}")
        self.differing = comparing.differing
        return verdict
