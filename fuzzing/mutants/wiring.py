"""Changes of nodes: what they read, who reads them, which op they are, and their attributes."""

from __future__ import annotations

import copy
from typing import Any, Final

import onnx
from onnx import AttributeProto, helper

from fuzzing.mutants.draft import Draft
from fuzzing.writer import Unsuitable

_FAMILIES: Final = (
    ("Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "PRelu"),
    ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare"),
    ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Sqrt", "Neg", "Abs", "Softplus", "LeakyRelu", "HardSigmoid", "HardSwish",
     "Elu", "Reciprocal", "Floor", "Ceil", "Identity", "Sign"),
    ("Softmax", "LogSoftmax", "Hardmax"),
    ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"),
    ("And", "Or", "Xor"),
    ("MaxPool", "AveragePool"),
    ("GlobalAveragePool", "GlobalMaxPool"),
    ("LayerNormalization", "RMSNormalization"),
    ("ArgMax", "ArgMin"),
    ("Squeeze", "Unsqueeze"),
    ("MatMul", "Gemm"),
)  # fmt: skip
_TEXTS: Final = (b"NOTSET", b"SAME_UPPER", b"SAME_LOWER", b"VALID", b"constant", b"reflect", b"edge", b"nearest",
                 b"linear", b"cubic", b"tanh", b"none", b"add", b"DCR", b"CRD", b"floor", b"ceil", b"asymmetric",
                 b"half_pixel", b"align_corners", b"gelu", b"swish")  # fmt: skip
_FLOATS: Final = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-5, 1e-12, -1e30, float("inf"), float("nan"))


def operand(draft: Draft) -> None:
    """A node of the main graph reads another value."""
    at = draft.draw.randrange(len(draft.graph.node))
    node = draft.graph.node[at]
    i = draft.one([i for i, name in enumerate(node.input) if name])
    node.input[i] = draft.one([name for name in draft.before(at) if name != node.input[i]])


def twice(draft: Draft) -> None:
    """A node reads one value twice."""
    node = draft.one([one for one in draft.nodes if len(set(one.input)) > 1])
    i, j = draft.draw.sample(range(len(node.input)), 2)
    node.input[i] = node.input[j]


def swapped(draft: Draft) -> None:
    """Two operands change places."""
    node = draft.one([one for one in draft.nodes if len(one.input) > 1])
    i, j = draft.draw.sample(range(len(node.input)), 2)
    node.input[i], node.input[j] = node.input[j], node.input[i]


def omitted(draft: Draft) -> None:
    """An operand is left out."""
    node = draft.one([one for one in draft.nodes if len(one.input) > 1])
    if draft.draw.random() < 0.5:
        del node.input[-1]
    else:
        node.input[draft.draw.randrange(1, len(node.input))] = ""


def added(draft: Draft) -> None:
    """A node reads one operand more."""
    at = draft.draw.randrange(len(draft.graph.node))
    node = draft.graph.node[at]
    if draft.draw.random() < 0.3:
        node.input.append("")
    node.input.append(draft.one(draft.before(at)))


def output(draft: Draft) -> None:
    """A value of the main graph is an output too."""
    names = [name for node in draft.graph.node for name in node.output if name]
    if draft.draw.random() < 0.1:
        names = draft.before(0)
    draft.give(draft.one(names))


def consumer(draft: Draft) -> None:
    """A value has a reader more, which is an output."""
    at = draft.draw.randrange(len(draft.graph.node)) + 1
    name = draft.one(draft.before(at))
    op = draft.draw.choice(("Identity", "Neg", "Relu", "Abs", "Shape", "Cast"))
    given: dict[str, Any] = {"to": draft.draw.choice((1, 7, 11))} if op == "Cast" else {}
    draft.graph.node.insert(at, helper.make_node(op, [name], [draft.name()], **given))
    draft.give(draft.graph.node[at].output[0])


def between(draft: Draft) -> None:
    """A node stands between a value and one of its readers."""
    at = draft.draw.randrange(len(draft.graph.node))
    node = draft.graph.node[at]
    i = draft.one([i for i, name in enumerate(node.input) if name])
    op = draft.draw.choice(("Identity", "Neg", "Relu", "Abs", "Sqrt", "Dropout", "Sigmoid", "Transpose"))
    made = helper.make_node(op, [node.input[i]], [draft.name()])
    node.input[i] = made.output[0]
    draft.graph.node.insert(at, made)


def bypassed(draft: Draft) -> None:
    """A node is left out: its readers read what it read."""
    at = draft.draw.randrange(len(draft.graph.node))
    node = draft.graph.node[at]
    source = draft.one([name for name in node.input if name])
    told = {one.name for one in draft.graph.output}
    if len(node.output) != 1 or node.output[0] in told:
        raise Unsuitable
    gone = node.output[0]
    del draft.graph.node[at]
    for other in draft.nodes:
        for i, name in enumerate(other.input):
            if name == gone:
                other.input[i] = source


def op(draft: Draft) -> None:
    """A node is of another op that takes the same operands."""
    node = draft.one([one for one in draft.nodes if not one.domain and any(one.op_type in each for each in _FAMILIES)])
    family = next(each for each in _FAMILIES if node.op_type in each)
    node.op_type = draft.one([one for one in family if one != node.op_type])


def attribute(draft: Draft) -> None:
    """An attribute has another value, or is left out."""
    node = draft.one([one for one in draft.nodes if one.attribute and one.op_type != "Constant"])
    at = draft.draw.randrange(len(node.attribute))
    if draft.draw.random() < 0.25:
        del node.attribute[at]
        return
    _change(draft, node.attribute[at])


def _change(draft: Draft, given: AttributeProto) -> None:
    draw = draft.draw
    if given.type == AttributeProto.INT:
        given.i = draw.choice((0, 1, -1, 2, given.i + 1, given.i - 1, -given.i, 3))
    elif given.type == AttributeProto.FLOAT:
        given.f = draw.choice((*_FLOATS, given.f * 2 if abs(given.f) < 1e30 else 0.0, -given.f))
    elif given.type == AttributeProto.STRING:
        given.s = draw.choice(_TEXTS)
    elif given.type == AttributeProto.INTS:
        numbers = list(given.ints)
        how = draw.randrange(4)
        if how == 0:
            draw.shuffle(numbers)
        elif how == 1 and numbers:
            at = draw.randrange(len(numbers))
            numbers[at] = draw.choice((0, 1, 2, -1, numbers[at] + 1, numbers[at] - 1))
        elif how == 2:
            numbers.append(draw.choice((0, 1, 2)))
        else:
            numbers = [draw.choice((0, 1, 1, 2, 3))] * len(numbers)
        given.ints[:] = numbers
    else:
        raise Unsuitable


def further_attribute(draft: Draft) -> None:
    """A node has an attribute that its op takes and that was left out."""
    node = draft.one([one for one in draft.nodes if not one.domain and one.op_type != "Constant"])
    try:
        schema = onnx.defs.get_schema(node.op_type, draft.opset)
    except onnx.defs.SchemaError as error:
        raise Unsuitable from error
    has = {one.name for one in node.attribute}
    name = draft.one(sorted(set(schema.attributes) - has))
    kind, draw = schema.attributes[name].type, draft.draw
    if kind == onnx.defs.OpSchema.AttrType.INT:
        value: object = draw.choice((0, 1, 1, 2, -1, -2))
    elif kind == onnx.defs.OpSchema.AttrType.FLOAT:
        value = draw.choice(_FLOATS)
    elif kind == onnx.defs.OpSchema.AttrType.STRING:
        value = draw.choice(_TEXTS)
    elif kind == onnx.defs.OpSchema.AttrType.INTS:
        value = [draw.choice((0, 1, 1, 2)) for _ in range(draw.choice((1, 2, 2, 4)))]
    else:
        raise Unsuitable
    node.attribute.append(helper.make_attribute(name, value))


def branch(draft: Draft) -> None:
    """A node stands in both branches of an If, which read what is around them."""
    graph = draft.graph
    at = draft.draw.randrange(len(graph.node))
    node = graph.node[at]
    if len(node.output) != 1 or any(one.HasField("g") or one.ref_attr_name for one in node.attribute):
        raise Unsuitable
    condition = draft.constant(draft.draw.random() < 0.5, bool)
    if draft.draw.random() < 0.7:
        graph.input.append(helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, []))
    made = helper.make_node("If", [condition], list(node.output))
    for which in ("then_branch", "else_branch"):
        inner = copy.deepcopy(node)
        inner.output[0] = draft.name()
        result = onnx.ValueInfoProto(name=inner.output[0])
        made.attribute.append(helper.make_attribute(which, helper.make_graph([inner], which, [], [result])))
    graph.node[at].CopyFrom(made)
