"""If, Loop, Scan, sequences and optionals."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import Call, Steps, Unknown, axis_of, join_dims, meet, rule
from ortopt.graph import symbolic
from ortopt.graph.facts import SCOPE, Dims, contents, dims_of, set_better_shape, set_contents, shape_from, sizes_of
from ortopt.graph.match import before
from ortopt.graph.symbolic import UNKNOWN, Dim
from ortopt.semantics import subgraphs
from ortopt.semantics.opset_changes import SCAN_HAS_NO_BATCH_FROM

INT64 = ir.DataType.INT64
BOOL = ir.DataType.BOOL

Fact: TypeAlias = tuple[ir.TypeProtocol | None, Dims | None, Dims | None]
"""What is known of a value: type, dimensions, contents."""


@rule("If")
def if_(call: Call) -> Steps:
    """What both branches agree on; what the taken branch gives where the condition is known."""
    branches = [call.attribute("then_branch"), call.attribute("else_branch")]
    yield from branches
    condition = call.elements(0)
    if condition and isinstance(condition[0], int):
        branches = [branches[0] if condition[0] else branches[1]]
    for index, values in enumerate(zip(*(branch.outputs for branch in branches), strict=True)):
        type_, dims, known = values[0].type, dims_of(values[0]), contents(values[0])
        for other in values[1:]:
            type_ = type_ if type_ == other.type else None
            dims = join_dims(dims, dims_of(other))
            known = join_dims(known, contents(other))
        call.set(index, type_, dims, known)


def _feed(value: ir.Value, type_: ir.TypeProtocol | None, dims: Sequence[Dim] | None, known: Dims | None) -> None:
    """Tell the input of a nested graph what it will get; what it declares stays."""
    if type_ is not None:
        if value.type is None:
            value.type = type_
        if not isinstance(type_, ir.TensorType):
            dims = None
    if dims is not None and any(not symbolic.is_known(dim) for dim in dims):
        scope = value.graph.meta.get(SCOPE) if value.graph is not None else None
        dims = [
            dim if symbolic.is_known(dim) else symbolic.fresh(f"{scope}:{value.name}:{axis}")
            for axis, dim in enumerate(dims)
        ]
    if value.shape is None and dims is not None:
        value.shape = shape_from(tuple(dims))
    set_better_shape(value, dims)
    set_contents(value, known, sizes_of(value), known or ())


def bodies(call: Call) -> Steps:
    """Infer the graphs of a node of which no rule says what they are given: nothing is known, whatever they declare.

    But for an op that inference cannot know what the file declares is all there is.
    """
    for graph in subgraphs(call.node):
        call.host.enter(graph)
        if not call.believed:
            for value in graph.inputs:
                _feed(value, None, None, None)
        yield graph


def _fact(value: ir.Value | None) -> Fact:
    return (None, None, None) if value is None else (value.type, dims_of(value), contents(value))


_WALKS = 3


def _carry(
    call: Call, body: ir.Graph, carried: list[Fact], fed: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> Generator[ir.Graph, None, list[Fact]]:
    """Walk a body until its states have shapes that no iteration changes, giving up what changes."""
    for walk in range(_WALKS + 1):
        if walk == _WALKS or not call.host.spend(body):
            carried = [(type_, None, None) for type_, _, _ in carried]
        call.host.reopen(fed)
        for value, fact in zip(fed, carried, strict=True):
            _feed(value, *fact)
        yield body
        after = [_joined(fact, _fact(value)) for fact, value in zip(carried, outputs, strict=True)]
        if after == carried:
            break
        carried = after
    return carried


@rule("Loop")
def loop(call: Call) -> Steps:
    """Carried values have the shape that no iteration changes; what is scanned gets a dimension in front."""
    body: ir.Graph = call.attribute("body")
    call.host.enter(body)
    carried = [_fact(value) for value in call.inputs[2:]]
    count = len(carried)
    if len(body.inputs) != count + 2 or len(body.outputs) < count + 1:
        yield from bodies(call)
        return
    _feed(body.inputs[0], ir.TensorType(INT64), (), None)
    _feed(body.inputs[1], ir.TensorType(BOOL), (), None)
    carried = yield from _carry(call, body, carried, body.inputs[2:], body.outputs[1 : count + 1])
    for index, fact in enumerate(carried):
        call.set(index, *fact)
    trips = call.elements(0)
    length = symbolic.maximum(trips[0], 0) if trips and _runs_through(body, call) else UNKNOWN
    idle = length == 0 or (call.has(1) and call.elements(1) == (0,))
    for index, value in enumerate(body.outputs[count + 1 :], count):
        type_, dims, _ = _fact(value)
        # Without iterations ONNX Runtime gives what it knows itself of the body's shapes, not even the rank of others.
        call.set(index, type_, _stacked(call, length, None if idle else dims, value.shape))


def _stacked(call: Call, length: Dim, dims: Dims | None, declared: ir.Shape | None) -> Dims | None:
    """The shape of all iterations' results; of none it is what the body declares, with 0 where that is no number."""
    if dims is None or call.host.is_positive(length):
        return None if dims is None else (length, *dims)
    if declared is None or len(declared) != len(dims):
        return None
    sure = zip(dims, declared, strict=True)
    return (length, *(dim if isinstance(dim, int) and dim == told else UNKNOWN for dim, told in sure))


def _joined(a: Fact, b: Fact) -> Fact:
    return a[0] if a[0] is not None else b[0], join_dims(a[1], b[1]), join_dims(a[2], b[2])


def _runs_through(body: ir.Graph, call: Call) -> bool:
    """Whether the loop provably makes all its trips: no condition, or one that stays true."""
    if call.has(1):
        begins = call.elements(1)
        if begins is None or begins[0] != 1:
            return False
    condition = body.outputs[0]
    if contents(condition) == (1,):
        return True
    return before(condition, "Identity") is body.inputs[1]


@rule("Scan")
def scan(call: Call) -> Steps:
    """States keep their shapes; scanned inputs lose their axis in the body, scanned outputs gain one."""
    body: ir.Graph = call.attribute("body")
    if call.version < SCAN_HAS_NO_BATCH_FROM:  # the first axis of everything is a batch
        yield from bodies(call)
        return
    call.host.enter(body)
    scanned = call.attribute("num_scan_inputs")
    states = len(call.inputs) - scanned
    in_axes = call.attribute("scan_input_axes") or (0,) * scanned
    out_axes = call.attribute("scan_output_axes") or (0,) * (len(body.outputs) - states)
    carried = [_fact(value) for value in call.inputs[:states]]
    slices = []
    length: Dim = UNKNOWN
    for value, axis in zip(call.inputs[states:], in_axes, strict=True):
        type_, dims, _ = _fact(value)
        if dims is not None:
            axis = axis_of(axis, len(dims))  # noqa: PLW2901 -- the same axis, counted from the front
            length = meet(length, dims[axis])
            dims = dims[:axis] + dims[axis + 1 :]
        slices.append((type_, dims, None))
    call.host.reopen(body.inputs[states:])
    for value, fact in zip(body.inputs[states:], slices, strict=True):
        _feed(value, *fact)
    carried = yield from _carry(call, body, carried, body.inputs[:states], body.outputs[:states])
    for index, (type_, dims, _) in enumerate(carried):
        call.set(index, type_, dims)
    for index, value in enumerate(body.outputs[states:]):
        type_, dims, _ = _fact(value)
        if dims is not None:
            axis = axis_of(out_axes[index], len(dims) + 1)
            dims = (*dims[:axis], length, *dims[axis:])
        call.set(states + index, type_, dims)


# Sequences: the shape of an element is kept with nobody, so only its type is known.


def _element(type_: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    return type_.elem_type if isinstance(type_, ir.SequenceType | ir.OptionalType) else None


@rule("SequenceConstruct")
def sequence_construct(call: Call) -> None:
    """A sequence of the first input's type."""
    type_ = call.value(0).type
    call.types[0] = None if type_ is None else ir.SequenceType(type_)


@rule("SequenceEmpty")
def sequence_empty(call: Call) -> None:
    """A sequence of tensors of the attribute's type."""
    call.types[0] = ir.SequenceType(ir.TensorType(ir.DataType(call.attribute("dtype", 1))))


@rule("SequenceInsert", "SequenceErase")
def sequence_edit(call: Call) -> None:
    """The sequence's type."""
    call.types[0] = call.value(0).type


@rule("SequenceLength")
def sequence_length(call: Call) -> None:
    """A scalar."""
    call.set(0, INT64, ())


@rule("SequenceAt")
def sequence_at(call: Call) -> None:
    """The element's type; its shape where the sequence is the parts of a tensor."""
    sequence = call.value(0)
    call.types[0] = _element(sequence.type)
    producer = sequence.producer()
    if producer is None or producer.domain != "":
        return
    if producer.op_type == "SplitToSequence":
        position = call.elements(1)
        call.shapes[0] = _part(Call(producer, call.version, call.host), position[0] if position else UNKNOWN)
    elif producer.op_type == "SequenceConstruct":
        parts: list[Dims | None] = [None if value is None else dims_of(value) for value in producer.inputs]
        position = call.elements(1)
        if position and isinstance(position[0], int):
            call.shapes[0] = parts[position[0]]
            return
        joined = parts[0]
        for part in parts[1:]:
            joined = join_dims(joined, part)
        call.shapes[0] = joined


@rule("SplitToSequence")
def split_to_sequence(call: Call) -> None:
    """A sequence of the input's type."""
    dtype = call.dtype(0)
    call.types[0] = None if dtype is None else ir.SequenceType(ir.TensorType(dtype))


def _part(split: Call, position: Dim) -> Dims:
    dims = split.dims(0)
    axis = axis_of(split.attribute("axis", 0), len(dims))
    # ONNX Runtime drops the axis of parts of a told size too, where that is 1; of told parts it does not.
    if not split.attribute("keepdims", 1) and (not split.has(1) or split.rank(1) == 0):
        return dims[:axis] + dims[axis + 1 :]
    if not split.has(1):
        size: Dim = 1
    else:
        sizes = split.elements(1)
        scalar = split.rank(1) == 0
        if sizes is None:
            size = UNKNOWN
        elif scalar:  # equal parts, but for a smaller last one
            size = sizes[0] if symbolic.divides(sizes[0], dims[axis]) else UNKNOWN
        elif len(set(sizes)) == 1:
            size = sizes[0]
        else:
            size = sizes[position] if isinstance(position, int) else UNKNOWN
    return (*dims[:axis], size, *dims[axis + 1 :])


@rule("ConcatFromSequence")
def concat_from_sequence(call: Call) -> None:
    """The element's type."""
    call.types[0] = _element(call.value(0).type)


@rule("Optional")
def optional(call: Call) -> None:
    """An optional of the input's type, or of the attribute's."""
    if call.has(0) and (type_ := call.value(0).type) is not None:
        call.types[0] = ir.OptionalType(type_)
    elif (stated := call.attribute("type")) is not None:
        call.types[0] = ir.OptionalType(stated.type)


@rule("OptionalHasElement")
def optional_has_element(call: Call) -> None:
    """A boolean scalar."""
    call.set(0, BOOL, ())


@rule("OptionalGetElement")
def optional_get_element(call: Call) -> None:
    """The element; from opset 18 on an input that is no optional is passed on."""
    type_ = call.value(0).type
    if type_ is None:
        raise Unknown
    if isinstance(type_, ir.OptionalType):
        call.types[0] = _element(type_)
    else:
        call.same(0, 0)
