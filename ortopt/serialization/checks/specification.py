"""Nodes against the specification, as far as one look at each of them goes: whether anything can run the model.

ONNX Runtime finds all of this when it loads a model. What it runs is never refused here: unknown ops and domains, ops
in versions newer than the schemas, declared shapes that are not true. Types and shapes are followed from the inputs and
the constants, by the simplest rules only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from typing import Final

import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError
from ortopt.onnx_ir_internals import attributes_of, get_meta, initializers_of
from ortopt.semantics.op_traits import BROADCASTING, SHAPE_OF_FIRST_INPUT
from ortopt.semantics.opset_changes import BROADCASTS_FROM
from ortopt.serialization.checks.signatures import ABSENT, Signature, signature
from ortopt.serialization.checks.structure import label, visit
from ortopt.serialization.sparse_tensors import SparseTensor
from ortopt.serialization.types_of_values import FOREIGN_TYPE_KEY
from ortopt.terminal_text import counted, quoted

Known = tuple[int | None, ...]
"""Dimensions; None where it is not known."""

Shapes = MutableMapping["ir.Value | None", Known]
"""What is known of the shapes of values: those of which not even the rank is known are missing."""


def agree(first: Sequence[int | None], second: Sequence[int | None]) -> bool:
    """Whether two shapes may be the same."""
    return len(first) == len(second) and all(map(_may_equal, first, second))


def _may_equal(first: int | None, second: int | None) -> bool:
    return first is None or second is None or first == second


def _as_text(shape: Known) -> str:
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _contradiction(what: str, *shapes: Known) -> InvalidModelError:
    return InvalidModelError(f"cannot {what} shapes {' and '.join(map(_as_text, shapes))}")


def _broadcast(first: Known, second: Known) -> Known | None:
    """The shape of both together, or None if there is none."""
    dims: list[int | None] = []
    for a, b in itertools.zip_longest(reversed(first), reversed(second), fillvalue=1):
        if a == 1 or (a is None and b is not None and b != 1):
            dims.append(b)
        elif b == 1 or b is None or a == b:
            dims.append(a)
        else:
            return None
    return tuple(reversed(dims))


def _same(node: ir.Node, shapes: Shapes) -> None:
    shape = shapes.get(node.inputs[0])
    if shape is not None:
        shapes[node.outputs[0]] = shape


def _elementwise(node: ir.Node, shapes: Shapes) -> None:
    result: Known = ()
    for value in node.inputs:
        shape = shapes.get(value)
        if shape is None:
            return
        together = _broadcast(result, shape)
        if together is None:
            raise _contradiction("combine", result, shape)
        result = together
    shapes[node.outputs[0]] = result


def _matmul(node: ir.Node, shapes: Shapes) -> None:
    a, b = map(shapes.get, node.inputs)
    if a is None or b is None:
        return
    batch = _broadcast(a[:-2], b[:-2])
    if not a or not b or batch is None or not _may_equal(a[-1], b[-2] if len(b) > 1 else b[0]):
        raise _contradiction("multiply", a, b)
    shapes[node.outputs[0]] = (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _gemm(node: ir.Node, shapes: Shapes) -> None:
    a, b = map(shapes.get, node.inputs[:2])
    flipped = [_integer(node, name, 0) for name in ("transA", "transB")]
    if a is None or b is None or None in flipped:
        return
    if len(a) != 2 or len(b) != 2:
        raise _contradiction("multiply", a, b)
    rows, depth = reversed(a) if flipped[0] else a
    other, columns = reversed(b) if flipped[1] else b
    if not _may_equal(depth, other):
        raise _contradiction("multiply", a, b)
    shapes[node.outputs[0]] = (rows, columns)


def _conv(node: ir.Node, shapes: Shapes) -> None:
    x, w = map(shapes.get, node.inputs[:2])
    group = _integer(node, "group", 1)
    if x is None or w is None or group is None or group < 1:
        return
    if len(x) != len(w) or len(x) < 2:
        raise _contradiction("convolve", x, w)
    if w[1] is not None and not _may_equal(x[1], w[1] * group):
        raise _contradiction("convolve", x, w)


def _concat(node: ir.Node, shapes: Shapes) -> None:
    known = [shapes.get(value) for value in node.inputs]
    axis = _integer(node, "axis", None)
    if axis is None or any(shape is None for shape in known):
        return
    together = [shape for shape in known if shape is not None]
    first = together[0]
    for shape in together[1:]:
        if len(shape) != len(first):
            raise _contradiction("concatenate", first, shape)
    if not -len(first) <= axis < len(first):
        raise InvalidModelError(f"cannot concatenate along axis {axis} of {len(first)} dimensions")
    rest = [shape[:axis] + shape[axis + 1 :] if axis != -1 else shape[:-1] for shape in together]
    for other, shape in zip(rest[1:], together[1:], strict=True):
        if not agree(rest[0], other):
            raise _contradiction("concatenate", first, shape)


def _integer(node: ir.Node, name: str, default: int | None) -> int | None:
    """An attribute that is a number; None where it is not known."""
    attribute = attributes_of(node).get(name)
    if attribute is None:
        return default
    return None if attribute.is_ref() else attribute.as_int()


RULES: Final[Mapping[str, Callable[[ir.Node, Shapes], None]]] = {
    **dict.fromkeys(SHAPE_OF_FIRST_INPUT - {"Cast"}, _same),  # of which the attributes are looked at
    **dict.fromkeys(BROADCASTING, _elementwise),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "Concat": _concat,
}
"""By op of ai.onnx, since operands broadcast: refuses operands that contradict one another, infers the result."""


_SCANS_FROM: Final = 9
_UNSEEN: Final = Signature("", (), (), 0, 0, 0, 0, {}, frozenset(), {})
"""Stands for an op that has not been looked up yet."""

_Steps = Generator[ir.Graph]
_Kind = ir.DataType | None


def check(model: ir.Model, token: CancellationToken = NEVER) -> None:
    """Refuse a model that nothing can run; linear in its nodes.

    Args:
        model: A model that `ortopt.serialization.checks.structure.validate` accepts.
        token: Cancellation token.

    Raises:
        InvalidModelError: A node contradicts the specification, or what its inputs are; one line that names both.
    """
    _Check(model, token).run()


class _Check:
    def __init__(self, model: ir.Model, token: CancellationToken) -> None:
        self._model = model
        self._functions = model.functions
        self._checked = token.checked
        self._imports: Mapping[str, int] = model.opset_imports
        self._kinds: dict[ir.Value | None, ir.DataType | int] = {None: ABSENT}
        self._shapes: dict[ir.Value | None, Known] = {}
        self._signatures: dict[tuple[str, str], Signature | None] = {}
        self._results: dict[tuple[object, ...], tuple[_Kind, ...]] = {}
        self._called: set[ir.OperatorIdentifier] = set()

    def run(self) -> None:
        for value in self._model.graph.inputs:
            self._main_input(value)
        visit(self._graph, self._model.graph)
        faults = {identifier: self._function(function) for identifier, function in self._functions.items()}
        for identifier, fault in faults.items():
            if fault is not None and identifier in self._called:
                raise fault

    def _main_input(self, value: ir.Value) -> None:
        tensor = value.const_value
        kind = value.dtype if isinstance(value.type, ir.TensorType) else None
        if tensor is not None:
            if kind is not None and kind is not tensor.dtype:
                raise InvalidModelError(
                    f"graph input {quoted(value.name)} is of type {kind.name}, its default of {tensor.dtype.name}"
                )
            dims = tuple(tensor.shape.numpy())
            if value.shape is not None and not agree(_known(value.shape), dims):
                raise InvalidModelError(f"graph input {quoted(value.name)} and its default have different shapes")
            kind = tensor.dtype
        elif (value.type is None and get_meta(value, FOREIGN_TYPE_KEY) is None) or kind is ir.DataType.UNDEFINED:
            raise InvalidModelError(f"graph input {quoted(value.name)} has no data type")
        if kind is not None:
            self._kinds[value] = kind
            if value.shape is not None:
                self._shapes[value] = _known(value.shape)

    def _graph(self, graph: ir.Graph) -> _Steps:
        kinds, shapes = self._kinds, self._shapes
        for value in self._checked(initializers_of(graph).values()):
            tensor = value.const_value
            if tensor is not None and not value.is_graph_input():
                kinds[value] = tensor.dtype
                shapes[value] = tuple(tensor.shape.dims)  # type: ignore[arg-type]
        rules = RULES if self._imports.get("", 0) >= BROADCASTS_FROM else {}
        functions, unseen = self._functions, _UNSEEN
        signatures, results, known = self._signatures, self._results, kinds.get
        for node in self._checked(graph):
            attributes = attributes_of(node)
            if attributes:
                for held in semantics.subgraphs(node):
                    self._enter(node, held)
                    yield held
            op_type, domain = node.op_type, node.domain
            expected = signatures.get((op_type, domain), unseen)
            if expected is unseen:
                expected = signatures[op_type, domain] = self._signature(node)
            if expected is None or (functions and node.op_identifier() in functions):
                self._without_signature(node)
                continue
            inputs, outputs = node.inputs, node.outputs
            try:
                if attributes:
                    wanted = expected.attributes.get
                    for name, attribute in attributes.items():
                        if wanted(name) is not attribute.type:
                            expected.check_attributes(attributes)
                if not expected.required <= attributes.keys():
                    expected.check_attributes(attributes)
                case = (expected, len(outputs), *map(known, inputs))
                types = results.get(case)
                if types is None:
                    expected.check_counts(len(inputs), len(outputs))
                    types = results[case] = expected.results(case[2:], len(outputs))  # type: ignore[arg-type]
                for value, kind in zip(outputs, types):  # noqa: B905 -- equally many, and there are many nodes
                    if kind is None or value.type is not None or not value.name:
                        self._result(node, value, kind)
                    else:
                        kinds[value] = kind
                rule = None if domain else rules.get(op_type)
                if rule is not None:
                    rule(node, shapes)
                elif attributes:
                    self._by_attributes(node)
            except InvalidModelError as error:
                raise InvalidModelError(f"{label(node)} {error}") from None

    def _signature(self, node: ir.Node) -> Signature | None:
        if not node.op_type:
            raise InvalidModelError(f"{label(node)} has no op type")
        if node.op_type == "Constant" and not node.domain:  # readers look at its content alone
            return None
        return signature(node.domain, node.op_type, self._imports.get(node.domain, 0))

    def _result(self, node: ir.Node, value: ir.Value, kind: _Kind) -> None:
        """Remember an output's type, and compare it with the declared one."""
        if not value.name:
            if value is node.outputs[0] and len(node.outputs) == 1:
                raise InvalidModelError("has no named output")
            return
        if kind is None:
            return
        self._kinds[value] = kind
        declared = value.type
        if declared is None:
            return
        if declared.dtype is not kind or not isinstance(declared, ir.TensorType):
            name = declared.dtype.name if isinstance(declared, ir.TensorType) else type(declared).__name__
            raise InvalidModelError(f"gives {quoted(value.name)} as {kind.name}, which is declared as {name}")

    def _without_signature(self, node: ir.Node) -> None:
        """Look at a node of which the specification says nothing: Constants, calls, and what is not known."""
        if node.op_type == "Constant" and not node.domain:
            value = node.outputs[0]
            tensor = semantics.constant_content(node)
            if tensor is not None:
                self._kinds[value] = tensor.dtype
                self._shapes[value] = tuple(tensor.shape.numpy())
            elif isinstance(sparse := next(iter(node.attributes.values())).value, SparseTensor):
                self._kinds[value] = sparse.dtype
                self._shapes[value] = sparse.dims
            return
        function = self._functions.get(node.op_identifier())
        if function is None:
            return
        self._called.add(function.identifier())
        for have, most, what in (
            (len(node.inputs), len(function.inputs), "input"),
            (len(node.outputs), len(function.outputs), "output"),
        ):
            if have > most:
                raise InvalidModelError(f"{label(node)} has {counted(have, what)} where its function has {most}")

    # What attributes decide

    def _by_attributes(self, node: ir.Node) -> None:
        if node.domain:
            return
        rule = _BY_ATTRIBUTES.get(node.op_type)
        if rule is not None:
            rule(self, node)

    def cast(self, node: ir.Node) -> None:
        """The type that the attribute says."""
        attribute = node.attributes.get("to")
        if attribute is None or attribute.is_ref() or attribute.type is not ir.AttributeType.INT:
            return
        try:
            kind = ir.DataType(attribute.as_int())
        except ValueError:
            kind = ir.DataType.UNDEFINED
        if kind is ir.DataType.UNDEFINED:
            raise InvalidModelError(f"casts to the data type {attribute.as_int()}, which does not exist")
        self._result(node, node.outputs[0], kind)

    def branches(self, node: ir.Node) -> None:
        """Both branches give as many values as the node has outputs, of the same types."""
        graphs = list(semantics.subgraphs(node))
        for graph in graphs:
            if graph.inputs:
                raise InvalidModelError("has a branch with inputs, which branches do not have")
            if len(graph.outputs) != len(node.outputs):
                raise _miscounted(node, "branch", graph)
        for value, *results in zip(node.outputs, *(graph.outputs for graph in graphs), strict=True):
            kinds = {self._kinds.get(result) for result in results}
            if len(kinds - {None}) > 1:
                raise InvalidModelError(f"has branches that give {quoted(value.name)} in different types")
            kind = kinds.pop()
            if isinstance(kind, ir.DataType) and not kinds:
                self._result(node, value, kind)

    def body(self, node: ir.Node) -> None:
        """A body has an input for each of the node's, and an output for each of the node's (and the condition)."""
        if node.op_type == "Scan" and self._imports[""] < _SCANS_FROM:
            return  # lengths of sequences come first there
        for graph in semantics.subgraphs(node):
            more = 1 if node.op_type == "Loop" else 0
            if len(graph.inputs) != len(node.inputs):
                raise InvalidModelError(f"has {counted(len(node.inputs), 'input')} and a body with {len(graph.inputs)}")
            if len(graph.outputs) != len(node.outputs) + more:
                raise _miscounted(node, "body", graph)

    def _enter(self, node: ir.Node, graph: ir.Graph) -> None:
        """Learn the types of the inputs of a loop's body: those of the node's."""
        if node.domain or node.op_type != "Loop":
            return
        for outer, inner in zip(node.inputs[2:], graph.inputs[2:], strict=False):
            kind = self._kinds.get(outer)
            if not isinstance(kind, ir.DataType) or outer is None:
                continue
            self._kinds[inner] = kind
            if isinstance(inner.type, ir.TensorType) and inner.dtype is not kind:
                raise InvalidModelError(
                    f"{label(node)} gives {quoted(outer.name)} as {kind.name} to its body, where {quoted(inner.name)}"
                    f" is declared as {inner.type.dtype.name}"
                )

    # Functions

    def _function(self, function: ir.Function) -> InvalidModelError | None:
        """Look at a function's nodes; types hold for a call, and are not looked at.

        ONNX Runtime counts operands as the function's imports say, and reads attributes as the model's do.

        Returns:
            What is wrong with it if it is called.

        Raises:
            InvalidModelError: What is wrong whether it is called or not.
        """
        fault: InvalidModelError | None = None
        for node in self._checked(function.all_nodes()):
            if not node.op_type:
                raise InvalidModelError(f"{label(node)} has no op type")
            identifier = node.op_identifier()
            if identifier in self._functions:
                self._called.add(identifier)
                continue
            if node.op_type == "Constant" and not node.domain:
                continue
            own = signature(node.domain, node.op_type, function.opset_imports.get(node.domain, 0))
            if own is None:
                continue
            try:
                own.check_counts(len(node.inputs), len(node.outputs))
            except InvalidModelError as error:
                raise InvalidModelError(f"function {quoted(function.name)}: {label(node)} {error}") from None
            other = signature(node.domain, node.op_type, self._imports.get(node.domain, 0))
            faults = [error for error in map(_fault_of(node), {own, other}) if error is not None]
            if faults and other is not None and len(faults) == len({own, other}):
                fault = fault or InvalidModelError(f"function {quoted(function.name)}: {label(node)} {faults[0]}")
        return fault


def _fault_of(node: ir.Node) -> Callable[[Signature | None], InvalidModelError | None]:
    def fault(of: Signature | None) -> InvalidModelError | None:
        try:
            if of is not None:
                of.check_attributes(attributes_of(node))
        except InvalidModelError as error:
            return error
        return None

    return fault


def _miscounted(node: ir.Node, what: str, graph: ir.Graph) -> InvalidModelError:
    given = counted(len(graph.outputs), "value")
    return InvalidModelError(f"has {counted(len(node.outputs), 'output')} and a {what} that gives {given}")


def _known(shape: ir.Shape) -> Known:
    return tuple(dim if isinstance(dim, int) else None for dim in shape.dims)


_BY_ATTRIBUTES: Final[Mapping[str, Callable[[_Check, ir.Node], None]]] = {
    "Cast": _Check.cast,
    "If": _Check.branches,
    "Loop": _Check.body,
    "Scan": _Check.body,
}
