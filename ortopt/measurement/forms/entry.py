"""A form that can be measured: two small models that compute the same, at given sizes, one of them by that form."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from msgspec import Struct, field
from onnx import numpy_helper

from ortopt import registry
from ortopt.analysis.costs import Form
from ortopt.api import optimize
from ortopt.measurement.forms import arrays
from ortopt.opset_conversion.raising import least_ir_version
from ortopt.semantics.domains import MICROSOFT

Given: TypeAlias = Mapping[str, int]
"""Sizes by the names of the table, and others that only the models have."""

_Columns: TypeAlias = dict[str, tuple[int, ...]]

_MAX_COPIES: Final = 8
_ENOUGH_ELEMENTS: Final = 40_000
_ANY_GROWTH: Final = 1 << 30
"""Bytes that a pass may add here: a model of one node is small."""

"""From so many elements on, a single call of a kernel takes much longer than a call of a session."""

_OPERATORS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Final = {name: getattr(arrays, name) for name in arrays.__all__}


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A form that can be measured, as the files of this folder say it.

    Attributes:
        op: The op, as ``Gelu`` or ``com.microsoft::Gelu``.
        variant: How it is used, as the table of costs calls it.
        of: The op that it stands for, where texts name it as ``{of}``.
        instead_of: The nodes that it stands for, in words.
        sizes: The sizes at which it is measured, small ones first: of each name one number a case.
        draw: A function of `ortopt.measurement.forms.arrays` that is given the sizes and makes values, by name.
        values: Assignments, a line each, that make further ones (arrays, numbers, texts) of the sizes and each other.
        before: The nodes that the form stands for, as ONNX text, in which ``{name}`` is a value; their result is ``y``.
        after: The form and what it needs around it; its result is ``y``. Empty where a pass makes it.
        made_by: The pass, or passes, that make the form of `before`, whatever the table knows of it.
        inputs: The values that are inputs; other arrays are constants where a node reads them.
        result: The result's type.
        opset: The opset of ai.onnx.
        opset_after: That of `after`, where it is another one; 0 where it is not.
        repeats: Whether the result may be the input ``x`` again: the form is then repeated, as a call of a session
            takes a few microseconds by itself.
        as_loaded: Whether ONNX Runtime optimizes both when it loads them; else kernels are compared as they stand.
        cold: Whether caches are emptied before each call, as the other layers of a network empty them: for a form that
            reads more weights than what it stands for.
    """

    op: str
    variant: str = ""
    of: str = ""
    instead_of: str
    sizes: _Columns | tuple[_Columns, ...] = field(default_factory=dict)
    draw: str = ""
    values: str = ""
    before: str
    after: str = ""
    made_by: str = ""
    inputs: tuple[str, ...] = ("x",)
    result: str = "float[]"
    opset: int = 18
    opset_after: int = 0
    repeats: bool = False
    as_loaded: bool = False
    cold: bool = False

    @property
    def form(self) -> Form:
        """The form."""
        domain, _, op = self.op.rpartition("::")
        return Form(domain, op, self.variant)

    @property
    def cases(self) -> list[Given]:
        """The sizes at which it is measured."""
        tables = [self.sizes] if isinstance(self.sizes, dict) else self.sizes
        rows = (zip(table, row, strict=True) for table in tables for row in zip(*table.values(), strict=True))
        return [dict(row) for row in rows] or [{}]

    def at(self, given: Given) -> FormComparison:
        """The two ways to compute the same, at some sizes."""
        values: dict[str, Any] = {"ms": MICROSOFT, "of": self.of, **given}
        if self.draw:
            values |= _FUNCTIONS[self.draw](**given)
        for name, expression in _assignments(self.values):
            values[name] = _evaluated(expression, _FUNCTIONS | values)
        return FormComparison(self, values)


class FormComparison(Struct, frozen=True):
    """Two ways to compute the same.

    Attributes:
        entry: The form, and what it stands for.
        values: Arrays, numbers and texts by name.
    """

    entry: Entry
    values: Mapping[str, Any]

    @property
    def inputs(self) -> dict[str, arrays.Array]:
        """The inputs that there are at these sizes, by name."""
        return {name: self.values[name] for name in self.entry.inputs if name in self.values}

    def models(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """The two models: what the form stands for, and the form."""
        entry, before = self.entry, self._model(self.entry.before)
        if entry.made_by:
            return before, _rewritten(before, entry.made_by)
        return before, self._model(entry.after, entry.opset_after)

    def _model(self, text: str, opset: int = 0) -> onnx.ModelProto:
        """A model of nodes."""
        opset = opset or self.entry.opset
        signature = ", ".join(f"{_type(array)} {name}" for name, array in self.inputs.items())
        header = f'<ir_version: {least_ir_version(opset)}, opset_import: ["" : {opset}, "{MICROSOFT}" : 1]>'
        nodes = text.format_map(self.values)
        model: onnx.ModelProto = onnx.parser.parse_model(
            f"{header} g ({signature}) => ({self.entry.result} y) {{ {nodes} }}"
        )
        if self.entry.repeats:
            _repeat(model.graph, _copies(self.inputs["x"]))
        made = {name for node in model.graph.node for name in node.output}
        used = {name for node in model.graph.node for name in node.input} - made - self.inputs.keys()
        for name, value in self.values.items():
            if name in used:
                model.graph.initializer.append(numpy_helper.from_array(value, name))
        return model


def _assignments(text: str) -> Iterator[tuple[str, ast.expr]]:
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case _:
                raise ValueError(f"{ast.unparse(statement)!r} assigns nothing")


def _evaluated(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression: arithmetic, lists, and calls of functions that draw."""

    def value(part: ast.expr) -> Any:
        return _evaluated(part, names)

    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return names[node.id]
        case ast.UnaryOp(op=ast.USub()):
            return -value(node.operand)
        case ast.BinOp():
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        case ast.List():
            return [value(part) for part in node.elts]
        case ast.Call(func=ast.Name()):
            parts = [value(part.value) if isinstance(part, ast.Starred) else [value(part)] for part in node.args]
            return value(node.func)(*(item for part in parts for item in part))
    raise ValueError(f"{ast.unparse(node)!r} is nothing that values are made of")


def _rewritten(model: onnx.ModelProto, made_by: str) -> onnx.ModelProto:
    """What passes make of a model."""
    passes = made_by.split()
    wanted = {str(Form(*form)) for name in passes for form in registry.installed().find(name).weighs}
    return optimize(model, only=passes, force_forms=sorted(wanted), max_growth=_ANY_GROWTH, verify=False).to_proto()


def _copies(x: arrays.Array) -> int:
    return max(1, min(_MAX_COPIES, _ENOUGH_ELEMENTS // max(x.size, 1)))


def _repeat(graph: onnx.GraphProto, copies: int) -> None:
    """Put copies of a graph's nodes one behind the other: ``y`` of one is ``x`` of the next."""
    nodes = list(graph.node)
    inner = {name for node in nodes for name in node.output if name}
    del graph.node[:]
    last = "x"
    for number in range(copies):
        names = {name: f"{name}_{number}" for name in inner} | {"x": last}
        if number == copies - 1:
            names["y"] = "y"
        for node in nodes:
            copy = graph.node.add()
            copy.CopyFrom(node)
            copy.name = ""
            copy.input[:] = [names.get(name, name) for name in node.input]
            copy.output[:] = [names.get(name, name) for name in node.output]
        last = names["y"]


def _type(array: arrays.Array) -> str:
    name = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)).lower()
    return f"{name}[{','.join(map(str, array.shape))}]"
