"""Graphs inside graphs: If, Loop, Scan, local functions, sequences and optionals."""

from __future__ import annotations

import numpy as np
from onnx import helper

from fuzzing.families.elementwise import chain
from fuzzing.families.registry import family, step
from fuzzing.writer import BOOL, F32, F64, FLOATS, I64, NUMBERS, Unsuitable, Value, Writer


def steps(w: Writer, count: int) -> None:
    """Write so many families as fit."""
    for _ in range(count):
        try:
            step(w)
        except Unsuitable:
            continue


def _ending(w: Writer, like: Value) -> Value:
    """A value of this graph of a certain type and shape."""
    source = w.like(like)
    return chain(w, source, show=False)


@family(1.5)
def _if(w: Writer) -> None:
    w.require(w.depth < 2)
    x = w.pick((*NUMBERS, BOOL))
    outputs = [x] if w.chance(0.7) else [x, w.pick((*NUMBERS, BOOL))]
    branches = {}
    for branch in ("then_branch", "else_branch"):
        inner = Writer(w.sheet, w)
        steps(inner, w.one(0, 1, 2, 4))
        ends = [_ending(inner, one) for one in outputs]
        branches[branch] = inner.graph(w.name("g"), [], ends)
    made = w.node("If", [_condition(w)], [(one.dtype, one.shape, one.varies) for one in outputs], **branches)
    w.show(*made)


def _condition(w: Writer) -> Value:
    if w.chance(0.45):
        return w.constant(np.array(w.chance(0.5)))
    booleans = [value for value in w.visible() if value.dtype == BOOL and value.rank == 0]
    if booleans and w.chance(0.7):
        return w.random.choice(booleans)
    x = w.pick(NUMBERS, where=lambda one: one.rank > 0)
    size = w.add("Size", [x], (), dtype=I64, show=False)
    return w.add("Greater", [size, w.constant(np.int64(w.one(0, 3, 20)))], (), dtype=BOOL)


@family(0.9)
def _loop(w: Writer) -> None:
    w.require(w.depth < 2)
    state = w.pick(FLOATS)
    inner = Writer(w.sheet, w)
    count, go = (Value(inner.name(), dtype, (), ()) for dtype in (I64, BOOL))
    before = Value(inner.name(), state.dtype, state.shape, state.varies)
    inner.show(count, before)
    steps(inner, w.one(0, 1, 3))
    on = inner.add("Identity", [go], show=False)
    after = _ending(inner, state)
    if w.chance(0.6):
        after = inner.either("Add", after, before, show=False)
        after = inner.add("Tanh", [after], show=False)
    scanned = [chain(inner, after, show=False)] if w.chance(0.4) else []
    trips = w.one(0, 1, 2, 3)
    body = inner.graph(
        w.name("g"),
        [inner.info(one, exact=True) for one in (count, go, before)],
        [on, after, *scanned],
    )
    results = [(state.dtype, state.shape, state.varies)]
    results += [(one.dtype, (trips, *one.shape), (False, *one.varies)) for one in scanned]
    trip = w.constant(np.int64(trips))
    condition = w.constant(np.array(True)) if w.chance(0.5) else None
    w.show(*w.node("Loop", [trip, condition, state], results, body=body))


@family(0.6)
def _scan(w: Writer) -> None:
    w.require(w.depth < 2)
    x = w.pick((F32, F64), range(2, 5), lambda one: one.size > 0)
    row = Value("", x.dtype, x.shape[1:], x.varies[1:])
    inner = Writer(w.sheet, w)
    state, each = (Value(inner.name(), x.dtype, row.shape, row.varies) for _ in range(2))
    inner.show(state, each)
    steps(inner, w.one(0, 1, 2))
    after = inner.add("Tanh", [inner.either("Add", state, each, show=False)], show=False)
    y = _ending(inner, row)
    body = inner.graph(w.name("g"), [inner.info(one, exact=True) for one in (state, each)], [after, y])
    axis = 0
    first = w.add("Gather", [x, w.constant(np.int64(0))], row.shape, row.varies, show=False, axis=0)
    results = [(x.dtype, row.shape, row.varies), (y.dtype, (x.shape[0], *y.shape), (x.varies[0], *y.varies))]
    w.show(*w.node("Scan", [first, x], results, body=body, num_scan_inputs=1, scan_input_axes=[axis]))


@family(1)
def _function(w: Writer) -> None:
    """A local function, and a call of it; further calls may follow."""
    w.require(w.depth < 2)
    if w.sheet.calls and w.chance(0.6):
        w.random.choice(w.sheet.calls)(w)
        return
    w.require(len(w.sheet.functions) < 3)
    arguments = [w.pick((*NUMBERS, BOOL)) for _ in range(w.one(1, 1, 2))]
    inner = Writer(w.sheet, body=True)
    formal = [Value(inner.name("p"), one.dtype, one.shape, one.varies) for one in arguments]
    inner.show(*formal)
    attributes = []
    if formal[0].dtype in FLOATS and w.chance(0.3):
        y = inner.add("LeakyRelu", [formal[0]])
        reference = inner.nodes[-1].attribute.add()
        reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", 1
        attributes = ["slope"]
        assert y.dtype == formal[0].dtype
    # a body's calls of further functions would have to come first
    calls, w.sheet.calls = w.sheet.calls, []
    steps(inner, w.one(1, 2, 4))
    w.sheet.calls = calls + w.sheet.calls
    used = inner.used()
    ends = [one for one in dict.fromkeys(inner.made) if one.name not in used][:3]
    ends = ends or [chain(inner, formal[0], show=False)]
    name = w.name("F")
    domain = "local"
    w.sheet.domains.add(domain)
    imports = [helper.make_opsetid("", w.opset)]
    imports += [helper.make_opsetid(one, 1) for one in sorted(w.sheet.domains)]
    w.sheet.functions.append(
        helper.make_function(
            domain, name, [one.name for one in formal], [one.name for one in ends], inner.nodes, imports, attributes
        )
    )
    results = [(one.dtype, one.shape, one.varies) for one in ends]

    def call(at: Writer) -> None:
        given = [at.like(one) for one in formal]
        extra = {"slope": at.one(0.1, 0.3)} if attributes else {}
        at.show(*at.node(name, given, results, domain=domain, **extra))

    given = {"slope": 0.2} if attributes else {}
    w.show(*w.node(name, arguments, results, domain=domain, **given))
    w.sheet.calls.append(call)


@family(0.5)
def _sequence(w: Writer) -> None:
    x = w.pick(FLOATS, range(1, 4))
    y = w.like(x)
    both = w.name("s")
    w.nodes.append(helper.make_node("SequenceConstruct", [x.name, y.name], [both]))
    if w.chance(0.3):
        longer = w.name("s")
        w.nodes.append(helper.make_node("SequenceInsert", [both, x.name], [longer]))
        both = longer
    what = w.random.randrange(3)
    if what == 0:
        w.add("SequenceAt", [both, w.constant(np.int64(w.one(0, 1, -1)))], x.shape, x.varies, dtype=x.dtype)
    elif what == 1:
        w.add("SequenceLength", [both], (), dtype=I64)
    else:
        count = 3 if len(w.nodes) > 1 and w.nodes[-1].op_type == "SequenceInsert" else 2
        shape, varies = (count, *x.shape), (False, *x.varies)
        w.add("ConcatFromSequence", [both], shape, varies, dtype=x.dtype, axis=0, new_axis=1)


@family(0.3)
def _split_to_sequence(w: Writer) -> None:
    x = w.pick(FLOATS, range(1, 4), lambda one: not one.varies[0] and one.shape[0] > 1)
    parts = w.name("s")
    w.nodes.append(helper.make_node("SplitToSequence", [x.name], [parts], axis=0, keepdims=1))
    w.add("SequenceAt", [parts, w.constant(np.int64(0))], (1, *x.shape[1:]), x.varies, dtype=x.dtype)


@family(0.3)
def _optional(w: Writer) -> None:
    w.require(w.opset >= 15 and w.parent is None)
    x = w.pick((F32,), range(3))
    box = w.name("o")
    w.nodes.append(helper.make_node("Optional", [x.name], [box]))
    if w.chance(0.4):
        w.add("OptionalHasElement", [box], (), dtype=BOOL)
    else:
        w.add("OptionalGetElement", [box], x.shape, x.varies, dtype=x.dtype)
