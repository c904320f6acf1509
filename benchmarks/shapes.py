"""Graphs of any size of which only one thing is many: where work on one thing is done for each of the others, it shows.

``python -m benchmarks.shapes NAME NODES OUT.onnx`` writes one. The published graphs (benchmarks/generators.py) are made
of many different things, as real ones are, so what grows as the square of one of them hardly shows there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

_OPSET = 17
_IR_VERSION = 10
_LOCAL = "local"
_DEPTH = 8
_FLAG = helper.make_tensor_value_info("flag", TensorProto.BOOL, ())
_TRIPS = helper.make_tensor_value_info("trips", TensorProto.INT64, ())
Step = Callable[[str, int], NodeProto | Sequence[NodeProto]]


def _floats(name: str, *dims: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims or ("N", 16))


def _model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    output: onnx.ValueInfoProto,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
    constants: Sequence[TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "benchmark", inputs, [output], constants)
    imports = [helper.make_opsetid("", _OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=_IR_VERSION)


def _row(count: int, step: Step) -> list[NodeProto]:
    """Steps one behind the other, from ``x`` to ``y``; each makes nodes of which the last gives one result."""
    nodes: list[NodeProto] = []
    x = "x"
    for place in range(count):
        made = step(x, place)
        nodes.extend([made] if isinstance(made, NodeProto) else made)
        x = nodes[-1].output[0]
    return [*nodes, helper.make_node("Identity", [x], ["y"], "Output")]


def _function(name: str) -> onnx.FunctionProto:
    body = [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Sigmoid", ["t"], ["b"])]
    return helper.make_function(_LOCAL, name, ["a"], ["b"], body, [helper.make_opsetid("", _OPSET)])


def functions(nodes: int) -> onnx.ModelProto:
    """A row of calls, each of a function of its own."""
    names = [f"F{place}" for place in range(nodes // 3)]
    row = _row(len(names), lambda x, place: helper.make_node(names[place], [x], [f"v{place}"], domain=_LOCAL))
    return _model(row, [_floats("x")], _floats("y"), [_function(name) for name in names], [_LOCAL])


def unused_functions(nodes: int) -> onnx.ModelProto:
    """Functions that nothing calls."""
    unused = [_function(f"F{place}") for place in range(nodes // 2)]
    return _model(
        _row(1, lambda x, _: helper.make_node("Relu", [x], ["v"])), [_floats("x")], _floats("y"), unused, [_LOCAL]
    )


def unused_domains(nodes: int) -> onnx.ModelProto:
    """Imports of domains that no node is of, as many as another graph has nodes."""
    row = _row(1, lambda x, _: helper.make_node("Relu", [x], ["v"]))
    return _model(row, [_floats("x")], _floats("y"), domains=[f"domain{place}" for place in range(nodes)])


def ifs(nodes: int) -> onnx.ModelProto:
    """A row of Ifs whose condition is not known."""

    def step(x: str, place: int) -> NodeProto:
        return helper.make_node(
            "If",
            ["flag"],
            [f"v{place}"],
            then_branch=_branch("Relu", x, f"then{place}"),
            else_branch=_branch("Sigmoid", x, f"else{place}"),
        )

    return _model(_row(nodes // 3, step), [_floats("x"), _FLAG], _floats("y"))


def _branch(op: str, x: str, name: str, before: Sequence[NodeProto] = ()) -> onnx.GraphProto:
    result = f"{name}.result"
    return helper.make_graph([*before, helper.make_node(op, [x], [result])], name, [], [_floats(result)])


def loops(nodes: int) -> onnx.ModelProto:
    """A row of Loops of which it is not known how often they run."""

    def step(x: str, place: int) -> NodeProto:
        body = helper.make_graph(
            [
                helper.make_node("Identity", ["going"], ["on"]),
                helper.make_node("Sigmoid", ["state"], ["t"]),
                helper.make_node("Add", ["t", "t"], ["next"]),
            ],
            f"body{place}",
            [
                helper.make_tensor_value_info("trip", TensorProto.INT64, ()),
                helper.make_tensor_value_info("going", TensorProto.BOOL, ()),
                _floats("state"),
            ],
            [helper.make_tensor_value_info("on", TensorProto.BOOL, ()), _floats("next")],
        )
        return helper.make_node("Loop", ["trips", "", x], [f"v{place}"], body=body)

    return _model(_row(nodes // 4, step), [_floats("x"), _TRIPS], _floats("y"))


def nested(nodes: int) -> onnx.ModelProto:
    """A row of Ifs with Ifs in them, eight levels deep; protobuf reads a little more than thirty."""

    def nest(x: str, name: str, depth: int) -> onnx.GraphProto:
        inner = f"{name}.{depth}"
        if not depth:
            return _branch("Relu", x, inner)
        deeper = helper.make_node(
            "If",
            ["flag"],
            [f"{inner}.chosen"],
            then_branch=nest(f"{inner}.in", name, depth - 1),
            else_branch=_branch("Tanh", f"{inner}.in", f"{inner}.else"),
        )
        return _branch("Exp", f"{inner}.chosen", inner, [helper.make_node("Sigmoid", [x], [f"{inner}.in"]), deeper])

    def step(x: str, place: int) -> NodeProto:
        branches = nest(x, f"deep{place}", _DEPTH - 1), _branch("Sigmoid", x, f"else{place}")
        return helper.make_node("If", ["other"], [f"v{place}"], then_branch=branches[0], else_branch=branches[1])

    other = helper.make_tensor_value_info("other", TensorProto.BOOL, ())
    return _model(_row(nodes // (4 * _DEPTH), step), [_floats("x"), _FLAG, other], _floats("y"))


def transposes(nodes: int) -> onnx.ModelProto:
    """A row of pairs, a Transpose that turns three axes round and an op that works in any layout."""

    def step(x: str, place: int) -> list[NodeProto]:
        turned = helper.make_node("Transpose", [x], [f"t{place}"], perm=[0, 2, 3, 1])
        return [turned, helper.make_node("Sigmoid", [f"t{place}"], [f"v{place}"])]

    row = _row(nodes // 2, step)
    return _model(row, [_floats("x", "A", "B", "C", "D")], _floats("y", None, None, None, None))


def layouts(nodes: int) -> onnx.ModelProto:
    """A row of residual blocks, each in another layout: no choice of layouts serves two of them."""

    def step(x: str, place: int) -> list[NodeProto]:
        return [
            helper.make_node("Transpose", [x], [f"t{place}"], perm=[0, 2, 1]),
            helper.make_node("Softmax", [f"t{place}"], [f"s{place}"], axis=place % 3),
            helper.make_node("Add", [f"s{place}", x], [f"v{place}"]),
        ]

    return _model(_row(nodes // 3, step), [_floats("x", 2, 16, 16)], _floats("y", 2, 16, 16))


def fan_out(nodes: int) -> onnx.ModelProto:
    """One value that all other nodes use, and one node that uses all of theirs."""
    count = max(1, nodes - 3)
    constants = [numpy_helper.from_array(np.array([place], np.float32), f"c{place}") for place in range(count)]
    users = [helper.make_node("Add", ["t", f"c{place}"], [f"v{place}"]) for place in range(count)]
    joined = helper.make_node("Concat", [node.output[0] for node in users], ["joined"], axis=0)
    row = [helper.make_node("Relu", ["x"], ["t"]), *users, joined, helper.make_node("Identity", ["joined"], ["y"])]
    return _model(row, [_floats("x")], _floats("y", None, 16), constants=constants)


def symbols(nodes: int) -> onnx.ModelProto:
    """As many inputs as nodes, each of a length of its own."""
    count = max(1, nodes - 1)
    users = [helper.make_node("Relu", [f"x{place}"], [f"v{place}"]) for place in range(count)]
    joined = helper.make_node("Concat", [node.output[0] for node in users], ["y"], axis=0)
    return _model(
        [*users, joined], [_floats(f"x{place}", f"N{place}", 4) for place in range(count)], _floats("y", None, 4)
    )


def counted(nodes: int) -> onnx.ModelProto:
    """As many inputs as there may be, each of a length of its own, whose elements are counted."""
    count = max(1, (nodes - 1) // 3)
    row: list[NodeProto] = []
    for place in range(count):
        row.append(helper.make_node("Shape", [f"x{place}"], [f"s{place}"]))
        row.append(helper.make_node("ReduceProd", [f"s{place}"], [f"p{place}"], keepdims=1))
        row.append(helper.make_node("Cast", [f"p{place}"], [f"v{place}"], to=TensorProto.INT32))
    row.append(helper.make_node("Concat", [f"v{place}" for place in range(count)], ["y"], axis=0))
    counts = helper.make_tensor_value_info("y", TensorProto.INT32, (None,))
    return _model(row, [_floats(f"x{place}", "N", f"M{place}") for place in range(count)], counts)


def turned_back(nodes: int) -> onnx.ModelProto:
    """One Transpose that all other nodes read, each with another Transpose behind it that turns back."""
    count = max(1, (nodes - 2) // 2)
    row = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1])]
    for place in range(count):
        row.append(helper.make_node("LeakyRelu", ["t"], [f"s{place}"], alpha=(place + 1) / (count + 1)))
        row.append(helper.make_node("Transpose", [f"s{place}"], [f"v{place}"], perm=[0, 2, 1]))
    row.append(helper.make_node("Concat", [f"v{place}" for place in range(count)], ["y"], axis=0))
    return _model(row, [_floats("x", "N", 3, 5)], _floats("y", None, 3, 5))


SHAPES: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "functions": functions,
    "unused_functions": unused_functions,
    "unused_domains": unused_domains,
    "ifs": ifs,
    "loops": loops,
    "nested": nested,
    "transposes": transposes,
    "layouts": layouts,
    "fan_out": fan_out,
    "symbols": symbols,
    "counted": counted,
    "turned_back": turned_back,
}


if __name__ == "__main__":
    Path(sys.argv[3]).write_bytes(SHAPES[sys.argv[1]](int(sys.argv[2])).SerializeToString())
