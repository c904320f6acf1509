"""Guards in the file: a group's call becomes an If with a specialised and a general branch.

What the runtime does behind a call (see `specialization`), said in ONNX: the condition compares the guarded arguments,
one branch calls a copy of the group that ortopt has optimized for them, the other calls the group as it was. Any ONNX
runtime can take the file; none has to profile anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.analysis import shapes as shape_inference
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.graph.edit import Editor
from ortopt.graph.facts import shape_of
from ortopt.graph.names import NameRegistry, unused
from ortopt.option_kinds import Shapes
from ortopt.partition import groups
from ortopt.partition.groups import GUARD_KEY, Group, groups_of
from ortopt.partition.outlining import Cluster, outline
from ortopt.runtime.execution.group_spec import GroupSpec, SpecLibrary
from ortopt.runtime.specialization.optimized_group import optimized
from ortopt.semantics import GROUP_DOMAIN, same_constant
from ortopt.terminal_text import one_line, quoted

_OLDEST_OPSET: Final = 13  # from there on Equal, ReduceMin and Slice are as they are written here
_GREATEST_SIZE: Final = (1 << 63) - 1
_FLOATS: Final = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT})


def guarded(
    model: ir.Model,
    group: str,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> ir.Model:
    """A copy of a grouped model in which one group has a specialised version, under an If.

    Args:
        model: A grouped model, which is not changed.
        group: The name of a group. One that has a specialised version already can get
            another, which is asked after it.
        shapes: Sizes by the names of the group's inputs in the model: they must be equal for the specialised version.
        constants: Contents by the names of the group's inputs: they must be equal, bit for bit, and so must the shape.

    Raises:
        UsageError: If there is no such group or input, or the guard cannot be said in ONNX.
        InvalidModelError: If the model's groups are not as the format says.
    """
    if not isinstance(model, ir.Model):
        raise UsageError(f"guarded takes an onnx_ir.Model, not {type(model).__name__}")
    wanted_sizes, wanted_contents = _checked_shapes(shapes), _checked_constants(constants)
    written = model.clone()
    shape_inference.infer_model(written)  # what the file declares of the arguments is no proof
    target = _target(written, group)
    wanted = [True] * len(target.call.outputs)
    spec, operands, results = SpecLibrary(written).of_call(target.call, target.function, wanted)
    if spec.random:
        raise UsageError(f"the group {quoted(group)} draws random numbers: it is not specialised")
    contents = _contents(group, operands, wanted_contents)
    sizes = _sizes(group, operands, wanted_sizes, contents)
    if not sizes:
        raise UsageError("a guard compares the shape or the content of at least one argument")
    names = _Names(written)
    function = names.function(f"{group}_specialized")
    version, order = _specialized(spec, target, operands, sizes, contents, function)
    call = next(node for node in version.graph if node.domain == GROUP_DOMAIN)
    body = version.functions[call.op_identifier()]
    opset = written.opset_imports.get("", 1)
    if body.opset_imports.get("", opset) != opset:
        raise UsageError(f"the group {quoted(group)} is of another opset than the model")
    _adopt_functions(written, version, body)
    arguments = _arguments(written, target, spec, operands, call, names)
    guard = _guard_metadata(spec, operands, sizes, contents)
    body.metadata_props[GUARD_KEY] = groups.metadata("", 0, (), guard)[GUARD_KEY]
    body.metadata_props[groups.ORIGIN_KEY] = target.function.metadata_props.get(groups.ORIGIN_KEY, "[0]")
    specialized = ir.Node(GROUP_DOMAIN, function, arguments, num_outputs=len(call.outputs))
    _branch(target.call, results, _condition(names, sizes, contents), names, specialized, order)
    return written


def _checked_shapes(shapes: object) -> dict[str, list[int]]:
    """Sizes by name, as a caller gives them.

    Raises:
        UsageError: They are none that an argument can have.
    """
    checked: dict[str, list[int]] = {}
    for name, shape in Shapes().checked("shapes", shapes).items():
        if None in shape:
            raise UsageError(f"the shape for {quoted(name)} leaves a size open, and a guard compares them all")
        if any(size > _GREATEST_SIZE for size in shape):
            raise UsageError(f"the shape for {quoted(name)} has a size that no tensor has")
        checked[name] = list(shape)
    return checked


def _checked_constants(constants: object) -> dict[str, np.ndarray[Any, Any]]:
    """Contents by name, as a caller gives them.

    Raises:
        UsageError: They are no arrays.
    """
    if constants is not None and not isinstance(constants, Mapping):
        raise UsageError(f"constants maps names of inputs to arrays, not {one_line(repr(constants))}")
    checked = {}
    for name, content in (constants or {}).items():
        if not isinstance(name, str):
            raise UsageError(f"constants maps names of inputs to arrays; {name!r} is no name")
        try:
            checked[name] = np.asarray(content)
        except (ValueError, TypeError) as error:
            raise UsageError(f"the constant for {quoted(name)} is no array: {one_line(error)}") from error
    return checked


def _target(model: ir.Model, name: str) -> Group:
    """The group that gets a version.

    Raises:
        UsageError: There is none, or it can have no version.
    """
    if not isinstance(name, str):
        raise UsageError(f"a group is named by a text, not {name!r}")
    target = next((candidate for candidate in groups_of(model) if candidate.name == name), None)
    if target is None:
        raise UsageError(f"the model has no group {quoted(name)}")
    if target.guard is not None:
        raise UsageError(f"the group {quoted(name)} is a specialised version itself")
    opset = model.opset_imports.get("", 1)
    if opset < _OLDEST_OPSET:
        raise UsageError(f"guards need opset {_OLDEST_OPSET} or later, the model has {opset}")
    return target


class _Names:
    """Names that a model does not have yet."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = {function.name for function in model.functions.values()}
        self._values = NameRegistry(lambda: scope.below(model.graph)).collect()

    def function(self, hint: str) -> str:
        return unused(hint, self._functions)

    def value(self, hint: str) -> str:
        return unused(hint, self._values)


def _named(group: str, operands: Iterable[ir.Value], name: str) -> ir.Value:
    for value in operands:
        if value.name == name:
            if not isinstance(value.type, ir.TensorType) or value.dtype is None:
                raise UsageError(f"the input {quoted(name)} of the group {quoted(group)} is not known to be a tensor")
            return value
    raise UsageError(f"the group {quoted(group)} has no input {quoted(name)} that is known only when it runs")


def _contents(
    group: str, operands: Sequence[ir.Value], constants: Mapping[str, np.ndarray[Any, Any]]
) -> dict[ir.Value, np.ndarray[Any, Any]]:
    contents = {}
    for name, array in constants.items():
        value = _named(group, operands, name)
        dtype = value.dtype
        assert dtype is not None
        if _compared_as(dtype) is None:
            raise UsageError(f"the content of {quoted(name)} cannot be compared: it is of type {dtype.name}")
        if array.dtype != dtype.numpy():
            raise UsageError(f"the constant for {quoted(name)} is {array.dtype}, the input is {dtype.numpy()}")
        if not dtype.is_integer() and dtype != ir.DataType.BOOL and np.isnan(array.astype(np.float64)).any():
            raise UsageError(f"the constant for {quoted(name)} has a NaN: the guard would never hold")
        contents[value] = array
    return contents


def _sizes(
    group: str,
    operands: Sequence[ir.Value],
    shapes: Mapping[str, list[int]],
    contents: Mapping[ir.Value, np.ndarray[Any, Any]],
) -> dict[ir.Value, list[int]]:
    fixed = {value: list(array.shape) for value, array in contents.items()}
    for name, wanted in shapes.items():
        if fixed.setdefault(_named(group, operands, name), wanted) != wanted:
            raise UsageError(f"the shape and the constant for {quoted(name)} do not fit")
    for value, sizes in fixed.items():
        declared = shape_of(value)
        if declared is not None and (
            len(declared) != len(sizes)
            or any(isinstance(dim, int) and dim != size for dim, size in zip(declared, sizes, strict=True))
        ):
            raise UsageError(f"the input {quoted(value.name)} is declared as {declared}, it is never {sizes}")
    return fixed


def _compared_as(dtype: ir.DataType) -> ir.DataType | None:
    """The type in which two values are compared: one that every runtime compares, and that holds all values."""
    if dtype == ir.DataType.BOOL or (dtype.is_integer() and dtype.itemsize >= 1 and dtype != ir.DataType.UINT64):
        return ir.DataType.INT64
    if dtype in _FLOATS:
        return ir.DataType.FLOAT
    return dtype if dtype == ir.DataType.DOUBLE else None


def _guard_metadata(
    spec: GroupSpec,
    operands: Sequence[ir.Value],
    sizes: Mapping[ir.Value, list[int]],
    contents: Mapping[ir.Value, np.ndarray[Any, Any]],
) -> dict[str, Any]:
    """The guard as metadata, by the names of the general group's inputs; infinities are strings."""
    guard: dict[str, Any] = {}
    for value, argument in zip(operands, spec.inputs, strict=True):
        if value in sizes:
            guard[argument.name] = {"shape": sizes[value]}
        if value in contents:
            flat = contents[value].reshape(-1)
            wide = flat if flat.dtype.kind in "biu" else flat.astype(np.float64)
            guard[argument.name]["value"] = [
                number if not isinstance(number, float) or np.isfinite(number) else str(number)
                for number in wide.tolist()
            ]
    return guard


def _specialized(
    spec: GroupSpec,
    group: Group,
    operands: Sequence[ir.Value],
    sizes: Mapping[ir.Value, list[int]],
    contents: Mapping[ir.Value, np.ndarray[Any, Any]],
    name: str,
) -> tuple[ir.Model, list[int]]:
    """The group optimized under its guard, as a model that calls it; where the call has each output."""
    folded = {place: contents[value] for place, value in enumerate(operands) if value in contents}
    model = optimized(spec, group.provider, [sizes.get(value) for value in operands], folded)
    graph, edit = model.graph, Editor(model, shape_inference.infer_node)
    seen: set[ir.Value] = set()
    for place, value in enumerate(graph.outputs):  # each result is one of a node's own, and no constant
        producer = value.producer()
        if producer is None or producer.op_type == "Constant" or value in seen:
            copied = ir.Node("", "Identity", [value], name=edit.fresh_name("result"))
            copied.outputs[0].name = edit.fresh_name(f"{value.name}_result")
            copied.outputs[0].type, copied.outputs[0].shape = value.type, shape_of(value)
            edit.append(graph, copied)
            edit.set_output(graph, place, copied.outputs[0])
        seen.add(graph.outputs[place])
    nodes = tuple(node for node in graph if node.domain or node.op_type != "Constant")
    call = outline(edit, Cluster(group.provider, nodes), name)
    return model, [call.outputs.index(value) for value in graph.outputs]


def _adopt_functions(model: ir.Model, version: ir.Model, body: ir.Function) -> None:
    """Let the model have the specialised version, and what it imports."""
    for identifier, function in list(version.functions.items()):
        if function is body or identifier not in model.functions:
            del version.functions[identifier]
            model.functions[identifier] = function
            for domain, opset in function.opset_imports.items():
                model.opset_imports.setdefault(domain, opset)
    model.opset_imports.setdefault(GROUP_DOMAIN, groups.OPSET)
    model.ir_version = max(model.ir_version or 0, groups.IR_VERSION)


def _arguments(
    model: ir.Model, group: Group, spec: GroupSpec, operands: Sequence[ir.Value], call: ir.Node, names: _Names
) -> list[ir.Value]:
    """What the specialised version is called with: the general one's arguments, and weights that ortopt computed."""
    runtime = {argument.name: value for argument, value in zip(spec.inputs, operands, strict=True)}
    weights = {
        formal.name: value
        for formal, value in zip(group.function.inputs, group.call.inputs, strict=True)
        if value is not None and formal.name in spec.weights
    }
    arguments = []
    for value in call.inputs:
        assert value is not None
        name, tensor = value.name or "", value.const_value
        if tensor is None:
            arguments.append(runtime[name])
            continue
        old = spec.weights.get(name)
        if old is not None and same_constant(old, tensor):
            arguments.append(weights[name])
            continue
        new = ir.Value(name=names.value(f"{group.name}/{name}"), type=ir.TensorType(tensor.dtype), const_value=tensor)
        new.shape = ir.Shape(tensor.shape.numpy())
        model.graph.register_initializer(new)
        arguments.append(new)
    return arguments


class Condition:
    """The nodes that compare arguments with what they should be.

    Args:
        fresh: Makes a name that is free of one that is wanted.

    Nothing here fails on any argument: sizes and contents are padded before they are cut to the expected length.
    """

    def __init__(self, fresh: Callable[[str], str]) -> None:
        self._fresh = fresh
        self._parts: list[ir.Value] = []
        self.nodes: list[ir.Node] = []

    def shape(self, value: ir.Value, sizes: Sequence[int]) -> None:
        """The shape is this one: the padding of -1 is the end of the sizes, of which there may be none."""
        self._compare(self._op("Shape", value), [-1] * (len(sizes) + 1), [*sizes, -1], np.int64)

    def content(self, value: ir.Value, content: np.ndarray[Any, Any]) -> None:
        """The content is this one, the signs of zeros included; there is at least one element."""
        assert value.dtype is not None
        kind = _compared_as(value.dtype)
        assert kind is not None
        flat = self._op("Reshape", value, self._constant([-1], np.int64))
        if kind != value.dtype:
            flat = self._op("Cast", flat, to=int(kind))
        expected = content.reshape(-1).astype(kind.numpy())
        self._compare(flat, [0] * expected.size, expected, kind.numpy())
        if kind != ir.DataType.INT64 and not expected.all():
            with np.errstate(divide="ignore", over="ignore"):
                inverse = np.reciprocal(expected)
            zeros = np.flatnonzero(expected == 0)
            padded = self._op("Concat", flat, self._constant([0] * expected.size, kind.numpy()), axis=0)
            chosen = self._op("Gather", padded, self._constant(zeros, np.int64))
            self._parts.append(
                self._op("Equal", self._op("Reciprocal", chosen), self._constant(inverse[zeros], kind.numpy()))
            )

    def holds(self) -> ir.Value:
        """Whether all of it is so: a scalar."""
        parts = [self._op("Cast", part, to=int(ir.DataType.INT32)) for part in self._parts]
        together = self._op("Concat", *parts, axis=0)
        return self._op("Cast", self._op("ReduceMin", together, keepdims=0), to=int(ir.DataType.BOOL))

    def _compare(self, value: ir.Value, padding: Any, expected: Any, dtype: Any) -> None:
        padded = self._op("Concat", value, self._constant(padding, dtype), axis=0)
        count = len(expected)
        cut = self._op("Slice", padded, self._constant([0], np.int64), self._constant([count], np.int64))
        self._parts.append(self._op("Equal", cut, self._constant(expected, dtype)))

    def _constant(self, content: Any, dtype: Any) -> ir.Value:
        return self._op("Constant", value=ir.tensor(np.asarray(content, dtype)))

    def _op(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        name = self._fresh(f"guard/{op_type}")
        node = ir.node(op_type, inputs, attributes=attributes, name=name)
        node.outputs[0].name = self._fresh(f"{name}_output")
        self.nodes.append(node)
        return node.outputs[0]


def _condition(
    names: _Names, sizes: Mapping[ir.Value, list[int]], contents: Mapping[ir.Value, np.ndarray[Any, Any]]
) -> Condition:
    """The condition of a guard."""
    condition = Condition(names.value)
    for value, expected in sizes.items():
        condition.shape(value, expected)
        if value in contents and contents[value].size:
            condition.content(value, contents[value])
    return condition


def _branch(
    call: ir.Node,
    results: Sequence[ir.Value],
    condition: Condition,
    names: _Names,
    specialized: ir.Node,
    order: Sequence[int],
) -> None:
    """Put an If where the call stands, with the specialised call in one branch and the call itself in the other."""
    graph = call.graph
    assert isinstance(graph, ir.Graph)
    general = ir.Node(call.domain, call.op_type, call.inputs, call.attributes.values(), num_outputs=len(call.outputs))
    general.metadata_props.update(call.metadata_props)
    held = condition.holds()
    branches = []
    for call_node, places in ((specialized, order), (general, range(len(results)))):
        call_node.name = names.value(call_node.op_type)
        for place, value in zip(places, results, strict=True):
            inner = call_node.outputs[place]
            inner.name, inner.type, inner.shape = names.value(f"{call_node.name}/{value.name}"), value.type, value.shape
        outputs = [call_node.outputs[place] for place in places]
        branches.append(ir.Graph([], outputs, nodes=[call_node], name=call_node.name))
    chosen = ir.node(
        "If",
        [held],
        attributes={"then_branch": branches[0], "else_branch": branches[1]},
        num_outputs=len(results),
        name=names.value(f"{call.op_type}/guard"),
    )
    graph.insert_before(call, [*condition.nodes, chosen])
    for old, new in zip(results, chosen.outputs, strict=True):
        name, old.name = old.name, None
        new.name, new.type, new.shape = name, old.type, old.shape
        new.metadata_props.update(old.metadata_props)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(call, safe=True)
