"""Calls of If, Loop, Scan, sequences and optionals, with the nodes that they need."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from fuzzing.calls.draw import Draw, Drawn, drawing
from fuzzing.calls.reshaping import node


def _graph(name: str, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: str) -> onnx.GraphProto:
    """A body whose outputs declare nothing but their names."""
    return helper.make_graph(nodes, name, inputs, [onnx.ValueInfoProto(name=one) for one in outputs.split()])


def _any(d: Draw, source: str, result: str) -> list[onnx.NodeProto]:
    """A node that keeps or changes a shape."""
    return [d.one(
        node("Identity", source, result),
        node("Neg", source, result),
        node("Concat", f"{source} {source}", result, axis=0),
        node("Transpose", source, result),
        node("Shape", source, result),
        node("ReduceSum", source, result, keepdims=0),
    )]  # fmt: skip


@drawing("If")
def if_(d: Draw) -> Drawn:
    """Branches that agree and that do not."""
    branches = {f"{name}_branch": _graph(name, _any(d, "i1", f"{name}0"), [], f"{name}0") for name in ("then", "else")}
    return d.calls([d.tensor("bool", ()), d.tensor("float", d.shape(1, 3))], node("If", "i0", "o0", **branches))


@drawing("Loop")
def loop(d: Draw) -> Drawn:
    """Carried values that keep their shape and that grow; a condition, none, one that ends."""
    x = d.tensor("float", d.shape(1, 2))
    ends = d.chance(0.3)
    body = [node("Less", "t k", "c1") if ends else node("Identity", "c", "c1")]
    body += [d.one(node("Identity", "s", "s1"), node("Concat", "s s", "s1", axis=0), node("Transpose", "s", "s1"))]
    body += _any(d, d.one("s", "i2"), "p")
    limit = helper.make_tensor("k", TensorProto.INT64, [], [d.number(0, 2)])
    inputs = [
        helper.make_tensor_value_info("t", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("s", TensorProto.FLOAT, None),
    ]
    graph = _graph("body", body, inputs, "c1 s1 p")
    graph.initializer.append(limit)
    condition = d.tensor("bool", ()) if ends or d.chance(0.5) else None
    trips = np.array(d.number(-1, 3), np.int64) if not ends or d.chance(0.5) or condition is None else None
    names = " ".join("-" if one is None else f"i{index}" for index, one in enumerate((trips, condition)))
    return d.calls([trips, condition, x], node("Loop", f"{names} i2", "o0 o1", body=graph))


@drawing("Scan")
def scan(d: Draw) -> Drawn:
    """Axes of what goes in and of what comes out, from either end."""
    x = d.tensor("float", d.shape(1, 3, zero=False))  # of nothing it ends the process
    rank = x.ndim
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("s", "x")]
    body = [node("Identity", "s", "s1"), d.one(node("Identity", "x", "p"), node("Neg", "x", "p"))]
    graph = _graph("body", body, inputs, "s1 p")
    given: dict[str, object] = {"num_scan_inputs": 1}
    if d.opset >= 9:
        if d.chance(0.6):
            given["scan_input_axes"] = [d.axis(rank) if d.opset >= 11 else d.number(0, rank - 1)]
        if d.chance(0.6):
            given["scan_output_axes"] = [d.axis(rank) if d.opset >= 11 else d.number(0, rank - 1)]
        if d.chance(0.2):
            given["scan_input_directions"] = [1]
    state = d.tensor("float", d.shape(0, 2))
    names = "i0 i1" if d.opset >= 9 else "- i0 i1"
    return d.calls([state, x], node("Scan", names, "o0 o1", body=graph, **given))


@drawing("SequenceConstruct", "SequenceAt", "SequenceLength", "SequenceErase")
def sequence(d: Draw) -> Drawn:
    """Elements of several shapes; one of them, from either end."""
    count = d.number(1, 3)
    shape = d.shape(0, 3)
    parts = [d.tensor("float", shape if d.chance(0.7) else d.shape(0, 3)) for _ in range(count)]
    made = node("SequenceConstruct", " ".join(f"i{index}" for index in range(count)), "q")
    place = np.array(d.number(-count, count - 1) if d.chance(0.95) else count, np.int64)
    after = {
        "SequenceConstruct": node("SequenceLength", "q", "o0"),
        "SequenceLength": node("SequenceLength", "q", "o0"),
        "SequenceAt": node("SequenceAt", f"q i{count}", "o0"),
        "SequenceErase": node("SequenceErase", f"q i{count}", "q1"),
    }[d.op]
    more = [node("SequenceAt", f"q1 i{count}", "o0")] if d.op == "SequenceErase" else []
    return d.calls([*parts, place], made, after, *more)


@drawing("SequenceEmpty", "SequenceInsert")
def sequence_empty(d: Draw) -> Drawn:
    """An element put into a sequence without any, and taken out again."""
    made = node("SequenceEmpty", "", "q", dtype=d.one(1, 1, 7)) if d.chance(0.8) else node("SequenceEmpty", "", "q")
    x, place = d.tensor("float", d.shape(0, 3)), np.array(0, np.int64)
    return d.calls([x, place], made, node("SequenceInsert", "q i0", "q1"), node("SequenceAt", "q1 i1", "o0"))


@drawing("SplitToSequence", "ConcatFromSequence")
def split_to_sequence(d: Draw) -> Drawn:
    """Equal parts, told parts, single slices; one of them, or all together again."""
    shape = list(d.shape(1, 3))
    axis = d.axis(len(shape))
    size = shape[axis] if -len(shape) <= axis < len(shape) else 1
    form = d.one("none", "scalar", "vector")
    told = np.array(d.number(1, 3), np.int64)
    if form == "vector":
        first = d.number(0, size)
        told = d.ints(d.one([first, size - first], [size], [1] * size))
    inputs = [d.tensor("float", shape), told, np.array(d.one(0, -1, 1), np.int64)]
    source = "i0" if form == "none" else "i0 i1"
    keep = {"keepdims": d.one(0, 1)} if d.chance(0.5) else {}
    parts = node("SplitToSequence", source, "q", axis=axis, **keep)
    if d.op == "SplitToSequence":
        return d.calls(inputs, parts, node("SequenceAt", "q i2", "o0"))
    stacked = {"new_axis": d.one(0, 1)} if d.chance(0.5) else {}
    return d.calls(inputs, parts, node("ConcatFromSequence", "q", "o0", axis=axis, **stacked))


@drawing("Optional", "OptionalHasElement", "OptionalGetElement")
def optional(d: Draw) -> Drawn:
    """Something in an optional; from opset 18 on, something that is in none."""
    x = d.tensor("float", d.shape())
    if d.op != "Optional" and d.opset >= 18 and d.chance(0.5):
        return d.calls([x], node(d.op, "i0", "o0"))
    after = "OptionalHasElement" if d.op == "OptionalHasElement" else "OptionalGetElement"
    return d.calls([x], node("Optional", "i0", "p"), node(after, "p", "o0"))
