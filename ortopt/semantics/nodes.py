"""What one node does (its graphs, its effects, whether two runs of it agree), and what a constant holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.onnx_ir_internals import attributes_of, get_meta, graph_attributes, initializers_of
from ortopt.options import GROWTH_SHARE, MEGABYTE, Options
from ortopt.semantics.domains import BLOCKED, MICROSOFT, ML, TRAINING
from ortopt.semantics.op_traits import CASTS, CONTROL_FLOW, DEQUANTIZERS, RANDOM_OPS


def is_overridable(value: ir.Value) -> bool:
    """Whether a caller may give another value: an initializer that is also a graph input is no constant."""
    return value.is_initializer() and value.is_graph_input()


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor that a value always is, or None: an initializer that nobody can override, or a Constant's output.

    A Constant inside a function whose content is a reference attribute is no constant here.
    """
    if value is None:
        return None
    producer = value.producer()
    if producer is None:
        return None if value.is_graph_input() else value.const_value
    if producer.op_type != "Constant" or producer.domain != "":
        return None
    if value.const_value is None:
        value.const_value = constant_content(producer)
    return value.const_value


def constant_content(node: ir.Node) -> ir.TensorProtocol | None:
    """What a Constant node holds, in any of its spellings; None for sparse tensors and reference attributes."""
    if len(node.attributes) != 1:
        return None
    (attribute,) = attributes_of(node).values()
    if attribute.is_ref():
        return None
    match attribute.name:
        case "value":
            # Not as_tensor(): that asks a protocol which attributes it has, 0.1 ms each time.
            tensor: ir.TensorProtocol = attribute.value
            return tensor
        case "value_int" | "value_ints":
            return ir.Tensor(np.array(attribute.value, np.int64))
        case "value_float" | "value_floats":
            return ir.Tensor(np.array(attribute.value, np.float32))
        case "value_string":
            return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
        case "value_strings":
            strings = [text.encode() for text in attribute.as_strings()]
            return ir.StringTensor(strings, shape=ir.Shape([len(strings)]))
    return None


def same_constant(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    """Whether two tensors are equal bit for bit, with the same dtype and dims: +0.0 is not -0.0, NaN payloads count."""
    if a is b:
        return True
    if a.dtype != b.dtype or tuple(a.shape) != tuple(b.shape):
        return False
    if a.dtype == ir.DataType.STRING:
        return bool((strings_of(a) == strings_of(b)).all())
    return a.tobytes() == b.tobytes()


def strings_of(tensor: ir.TensorProtocol) -> np.ndarray:
    """The elements of a string tensor in its shape, as an object array of bytes.

    numpy's own type of strings, which onnx-ir's tensors give, drops zero bytes at their ends.
    """
    strings = tensor.string_data() if isinstance(tensor, ir.StringTensor) else tensor.numpy().reshape(-1).tolist()
    elements = np.empty(len(strings), object)
    elements[:] = [one.encode() if isinstance(one, str) else one for one in strings]
    return elements.reshape(tensor.shape.numpy())


STANDARD_DOMAINS = frozenset({"", ML, TRAINING, "ai.onnx.preview"})
"""Domains whose ops are defined by the ONNX specification: pure functions of their inputs, but for `RANDOM_OPS`."""

PURE_DOMAINS = STANDARD_DOMAINS | {MICROSOFT, BLOCKED, "com.ms.internal.nhwc"}
"""Domains whose ops have no side effects. Others are impure unless they are local functions of pure ops."""

GROUP_DOMAIN = "ortopt.group"
"""Local functions of this domain are fusion groups: optimized inside, never inlined."""

QUANTIZATION_KEY = "quant_parameter_tensor_names"
"""Where onnx-ir keeps a value's quantization annotation in ``value.meta``."""

_BLOCK_BITS = 4
"""Element types of at most so many bits hold quantized blocks."""

Functions = Mapping[ir.OperatorIdentifier, ir.Function]
"""A model's local functions, as `ir.Model.functions` holds them."""


def key(node: ir.Node) -> tuple[str, str]:
    """The domain and op type of a node; the domain of ai.onnx is the empty string."""
    return node.domain, node.op_type


def owns_interfaces(node: ir.Node) -> bool:
    """Whether inputs and outputs of the graphs below a node may go and be renamed: others may ask for their names."""
    return not node.domain and node.op_type in CONTROL_FLOW


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that a node holds in its attributes, in the attributes' order."""
    held = graph_attributes(node)
    return _graphs_in(held) if held else iter(())


def _graphs_in(attributes: Iterable[ir.Attr]) -> Iterator[ir.Graph]:
    for attribute in attributes:
        if attribute.is_ref():
            continue
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.value
        else:
            yield from attribute.value


def _trains(node: ir.Node) -> bool:
    """Whether a Dropout may be in training mode: unless an input says, as a constant, that it is not, or drops none."""
    if node.op_type != "Dropout" or node.domain != "":
        return False
    if len(node.inputs) < 3 or node.inputs[2] is None:
        is_test = node.attributes.get("is_test")  # opset 1 and 6 only; later versions without the input infer
        return is_test is not None and not is_test.is_ref() and is_test.as_int() == 0
    mode, ratio = constant_tensor(node.inputs[2]), constant_tensor(node.inputs[1])
    trains = mode is None or bool(mode.numpy().item())
    return trains and (ratio is None or bool(ratio.numpy().any()))


def is_random(node: ir.Node, functions: Functions | None = None) -> bool:
    """Whether two runs of a node may differ: by its own op, or by one inside its subgraphs or its local function.

    Args:
        node: Any node.
        functions: The model's local functions, so that calls are looked into.
    """
    by_id = functions or {}
    seen: set[ir.OperatorIdentifier] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if key(current) in RANDOM_OPS or _trains(current):
            return True
        for graph in subgraphs(current):
            pending.extend(graph)
        identifier = current.op_identifier()
        if identifier in by_id and identifier not in seen:
            seen.add(identifier)
            pending.extend(by_id[identifier])
    return False


def is_pure(node: ir.Node, functions: Functions | None = None) -> bool:
    """Whether a node has no effect but its outputs; ops of unknown domains are impure.

    Args:
        node: Any node.
        functions: The model's local functions: a call is as pure as the body.
    """
    if not functions and not attributes_of(node):
        return node.domain in PURE_DOMAINS
    by_id = functions or {}
    seen: set[ir.OperatorIdentifier] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        identifier = current.op_identifier()
        if identifier in by_id:
            if identifier not in seen:
                seen.add(identifier)
                pending.extend(by_id[identifier])
        elif current.domain not in PURE_DOMAINS:
            return False
        for graph in subgraphs(current):
            pending.extend(graph)
    return True


def is_removable(node: ir.Node, functions: Functions | None = None) -> bool:
    """Whether a node whose results nobody needs may go: random ops may, ops of unknown domains may not."""
    return is_pure(node, functions)


def may_merge(node: ir.Node, functions: Functions | None = None) -> bool:
    """Whether two such nodes with the same inputs and attributes give the same results."""
    return is_pure(node, functions) and not is_random(node, functions)


def dequantizes(node: ir.Node) -> bool:
    """Whether a node turns quantized data into numbers: by its op, or by a Cast of elements of 4 bits or less."""
    if key(node) in DEQUANTIZERS:
        return True
    if node.op_type not in CASTS or node.domain != "" or not node.inputs or node.inputs[0] is None:
        return False
    source = node.inputs[0].dtype
    return source is not None and source != ir.DataType.STRING and source.bitwidth <= _BLOCK_BITS


def quantization_parameters(graph: ir.Graph, token: CancellationToken = NEVER) -> frozenset[str]:
    """The names of the values that the quantization annotations of a graph refer to.

    Args:
        graph: The graph.
        token: Cancellation token.
    """
    names: set[str] = set()
    held = (graph.inputs, token.checked(initializers_of(graph).values()))
    for values in itertools.chain(held, (node.outputs for node in token.checked(graph))):
        for value in values:
            annotation = get_meta(value, QUANTIZATION_KEY)
            if annotation:
                names.update(annotation.values())
    return frozenset(names)


def growth_allowance(original_bytes: int, options: Options) -> int:
    """The bytes by which a result may exceed the original: `Options.max_growth`, or max(1 MB, 1 %)."""
    if options.max_growth is not None:
        return options.max_growth
    return max(MEGABYTE, int(original_bytes * GROWTH_SHARE))


def callers_first(functions: Functions) -> list[ir.OperatorIdentifier]:
    """Functions in an order in which each stands before those that it calls."""
    order: list[ir.OperatorIdentifier] = []
    seen: set[ir.OperatorIdentifier] = set()
    for root in functions:
        pending: list[tuple[ir.OperatorIdentifier, bool]] = [(root, False)]
        while pending:
            identifier, left = pending.pop()
            if left:
                order.append(identifier)
            elif identifier not in seen:
                seen.add(identifier)
                pending.append((identifier, True))
                pending.extend((callee, False) for callee in _callees(functions[identifier], functions))
    return order[::-1]


def _callees(function: ir.Function, functions: Functions) -> list[ir.OperatorIdentifier]:
    graphs: list[ir.Graph] = [function.graph]
    callees: dict[ir.OperatorIdentifier, None] = {}
    while graphs:
        for node in graphs.pop():
            if node.op_identifier() in functions:
                callees[node.op_identifier()] = None
            graphs.extend(subgraphs(node))
    return list(callees)
