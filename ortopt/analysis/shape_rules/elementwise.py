"""Ops that work on each element, with broadcasting.

Elements are computed as mathematics has them; sums, products and casts of integers wrap around (`wrapped`), and what
the result's type does not hold is dropped when it is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import Call, broadcast, broadcast_shape, rule
from ortopt.graph import symbolic
from ortopt.graph.facts import INTEGERS, MAX_ELEMENTS, Dims, all_contents
from ortopt.graph.integer_ranges import wrapped
from ortopt.graph.symbolic import UNKNOWN, Dim
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import (
    BOOLEAN_RESULTS,
    BROADCASTING,
    BROADCASTING_ONE_WAY,
    CASTS,
    SHAPE_OF_FIRST_INPUT,
    VARIADIC,
)
from ortopt.semantics.opset_changes import BROADCASTS_FROM

BOOL = ir.DataType.BOOL


_RULES_OF_THEIR_OWN = CASTS | {
    *("Abs", "DequantizeLinear", "Dropout", "Identity", "IsInf", "IsNaN", "LayerNormalization", "Neg", "Not", "PRelu"),
    "QuantizeLinear",
}
"""Ops of which more is known than that the result is like the first input, or whose result has another type."""


@rule(*(SHAPE_OF_FIRST_INPUT - _RULES_OF_THEIR_OWN), "RotaryEmbedding")
@rule("RotaryEmbedding", "GemmaRotaryEmbedding", domain=MICROSOFT)
@rule("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=MICROSOFT)
def like_input(call: Call) -> None:
    """The type and shape of the first input."""
    call.same(0, 0)


@rule("Identity")
def identity(call: Call) -> None:
    """Whatever the input is, a sequence too."""
    call.same(0, 0)
    call.keep_elements()


@rule("Neg", "Abs")
def sign(call: Call) -> None:
    """As the input; contents change sign."""
    call.same(0, 0)
    dtype = call.dtype(0)
    if dtype is None or dtype not in INTEGERS or (found := all_contents(call.value(0))) is None:
        return
    changed = partial(symbolic.sub, 0) if call.node.op_type == "Neg" else partial(_absolute, call)
    call.contents[0] = [wrapped(changed(element), dtype) for element in found]


def _absolute(call: Call, element: Dim) -> Dim:
    if isinstance(element, int):
        return abs(element)
    return element if call.host.is_at_least(element, 0) else UNKNOWN


@rule("Not")
def negation(call: Call) -> None:
    """Boolean, as the input."""
    call.same(0, 0)
    if call.tracks(0) and (found := call.elements(0)) is not None:
        call.contents[0] = [1 - element if isinstance(element, int) else UNKNOWN for element in found]


@rule("IsNaN", "IsInf")
def predicate(call: Call) -> None:
    """Boolean, in the input's shape."""
    call.same(0, 0)
    call.types[0] = BOOL


@rule("Cast")
def cast(call: Call) -> None:
    """The type of the attribute; numbers keep their last bits, expressions stay where the target holds them."""
    call.same(0, 0)
    call.types[0] = None
    target = ir.DataType(call.attribute("to"))
    call.types[0] = target
    _cast_contents(call, target)


@rule("CastLike")
def cast_like(call: Call) -> None:
    """The second input's type."""
    call.same(0, 0)
    target = call.types[0] = call.dtype(1)
    if target is not None:
        _cast_contents(call, target)


def _cast_contents(call: Call, target: ir.DataType) -> None:
    if call.dtype(0) in _FLOATS and target in INTEGERS - {BOOL}:
        call.contents[0] = _truncated(call.constant(0))
        return
    if call.dtype(0) not in INTEGERS or target not in INTEGERS or (found := all_contents(call.value(0))) is None:
        return
    if target == BOOL:
        call.contents[0] = [_truth(element) for element in found]
    else:
        call.contents[0] = [wrapped(element, target) for element in found]


_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})


def _truncated(tensor: ir.TensorProtocol | None) -> list[Dim] | None:
    """The elements of a small float constant as integers: a few exporters write 0. and cast it.

    What the target does not hold is dropped when it is kept: kernels differ in what becomes of it.
    """
    if tensor is None or tensor.size > MAX_ELEMENTS:
        return None
    numbers = tensor.numpy().reshape(-1).tolist()
    return [int(number) if -(2**31) <= number < 2**31 else UNKNOWN for number in numbers]


def _truth(element: Dim) -> Dim:
    if symbolic.provably_different(element, 0):
        return 1
    return 0 if symbolic.equal(element, 0) else UNKNOWN


@rule(*(BROADCASTING - BOOLEAN_RESULTS - VARIADIC - {"Where"}), *BROADCASTING_ONE_WAY)
def arithmetic(call: Call) -> None:
    """The first input's type, the broadcast shape."""
    a, b = call.value(0), call.value(1)
    dtype = call.dtype(0)
    if dtype is None and call.node.op_type != "Pow":
        dtype = call.dtype(1)
    call.types[0] = dtype
    x, y = call.shape(0), call.shape(1)
    if x is y:
        call.shapes[0] = x
    elif call.version < BROADCASTS_FROM and call.attribute("broadcast", 0):
        call.shapes[0] = x
        return
    else:
        call.shapes[0] = broadcast_all(call, range(2))
    if dtype in INTEGERS and len(x) <= 1 and len(y) <= 1 and a.dtype == b.dtype:
        _follow(call, _ARITHMETIC.get(call.node.op_type))


def _follow(call: Call, operation: Callable[[Dim, Dim], Dim] | None) -> None:
    if call.node.op_type == "Div":
        operation = call.quotient
    if operation is None and call.node.op_type == "Mod":
        operation = partial(_remainder_of_doubles, call) if call.attribute("fmod", 0) else symbolic.mod
    if operation is None:
        return
    x, y = call.elements(0), call.elements(1)
    if x is None or y is None:
        return
    pairs = paired(x, y)
    if pairs is None:
        return
    results = [operation(a, b) for a, b in pairs]
    if call.node.op_type in _WRAPPING and (dtype := call.dtype(0)) is not None:
        results = [wrapped(result, dtype) for result in results]
    call.contents[0] = results


def _remainder_of_doubles(call: Call, a: Dim, b: Dim) -> Dim:
    """What the C function fmod leaves, for numbers >= 0."""
    if not call.host.is_at_least(a, 0) or not call.host.is_at_least(b, 0) or not call.survives_doubles(a, b):
        return UNKNOWN
    return symbolic.mod(a, b)


def paired(*operands: Sequence[Dim]) -> list[tuple[Dim, ...]] | None:
    """The elements of vectors beside one another, vectors of one element repeated; None where lengths differ."""
    length = max(map(len, operands), default=0)
    if any(len(operand) == 0 for operand in operands):
        return None
    if any(len(operand) not in {1, length} for operand in operands):
        return None
    return list(zip(*(tuple(operand) * (length if len(operand) == 1 else 1) for operand in operands), strict=True))


_WRAPPING = frozenset({"Add", "Sub", "Mul"})
_ARITHMETIC: dict[str, Callable[[Dim, Dim], Dim]] = {
    "Add": symbolic.add,
    "Sub": symbolic.sub,
    "Mul": symbolic.mul,
}


@rule(*(BROADCASTING & BOOLEAN_RESULTS), typed=BOOL)
def comparison(call: Call) -> None:
    """Boolean, in the broadcast shape; decided where it can be proven."""
    x, y = call.shape(0), call.shape(1)
    call.shapes[0] = broadcast_all(call, range(2))
    if len(x) > 1 or len(y) > 1 or call.dtype(0) not in INTEGERS:
        return
    a, b = call.elements(0), call.elements(1)
    if a is None or b is None or (pairs := paired(a, b)) is None:
        return
    decide = _DECIDE[call.node.op_type]
    call.contents[0] = [decide(left, right) for left, right in pairs]


def _equal(a: Dim, b: Dim) -> Dim:
    if symbolic.equal(a, b):
        return 1
    return 0 if symbolic.provably_different(a, b) else UNKNOWN


def _greater_or_equal(a: Dim, b: Dim) -> Dim:
    if symbolic.at_least(symbolic.sub(a, b), 0):
        return 1
    return 0 if symbolic.at_least(symbolic.sub(b, a), 1) else UNKNOWN


def _both(a: Dim, b: Dim) -> Dim:
    if 0 in (a, b):
        return 0
    return 1 if a == 1 and b == 1 else UNKNOWN


def _either(a: Dim, b: Dim) -> Dim:
    if 1 in (a, b):
        return 1
    return 0 if a == 0 and b == 0 else UNKNOWN


_DECIDE: dict[str, Callable[[Dim, Dim], Dim]] = {
    "Equal": _equal,
    "GreaterOrEqual": _greater_or_equal,
    "Greater": lambda a, b: _greater_or_equal(a, symbolic.add(b, 1)),
    "LessOrEqual": lambda a, b: _greater_or_equal(b, a),
    "Less": lambda a, b: _greater_or_equal(b, symbolic.add(a, 1)),
    "And": _both,
    "Or": _either,
    "Xor": lambda a, b: a ^ b if isinstance(a, int) and isinstance(b, int) else UNKNOWN,
}


@rule(*VARIADIC)
def variadic(call: Call) -> None:
    """The first input's type, the shape that all broadcast to."""
    count = len(call.inputs)
    call.types[0] = next((dtype for index in range(count) if (dtype := call.dtype(index)) is not None), None)
    call.shapes[0] = broadcast_all(call, range(count))
    operation = {"Max": symbolic.maximum, "Min": symbolic.minimum}.get(call.node.op_type)
    if operation is None or not call.tracks(*range(count)):
        return
    operands = [call.elements(index) for index in range(count)]
    known = [operand for operand in operands if operand is not None]
    if len(known) < count or (rows := paired(*known)) is None:
        return
    results: list[Dim] = []
    for row in rows:
        result = row[0]
        for element in row[1:]:
            result = operation(result, element)
        results.append(result)
    call.contents[0] = results


def broadcast_all(call: Call, indices: Sequence[int]) -> ir.Shape | Dims:
    """The dimensions that these inputs broadcast to."""
    shapes = [call.shape(index) for index in indices]
    if all(shape is shapes[0] for shape in shapes):
        return shapes[0]
    result: ir.Shape | Dims
    if len(shapes) == 2:
        result = broadcast_shape(shapes[0].dims, shapes[1].dims)
        if call.node.op_type in {"Add", "Div", "Mul", "Sub"}:
            _learn_from_copies(call, shapes[0].dims, shapes[1].dims)
    else:
        result = _broadcast_to([shape.dims for shape in shapes])
    if not any(not symbolic.is_known(dim) or symbolic.is_invented(dim) for dim in result):
        return result
    dims = {dim for shape in shapes for dim in shape.dims if not symbolic.is_invented(dim)}
    names = {name for dim in dims for name in symbolic.symbols(dim)}
    positive = {name for name in names if call.host.is_positive(symbolic.symbol(name))}
    if not positive:
        return result
    return _broadcast_to([tuple(symbolic.where_positive(dim, positive) for dim in shape.dims) for shape in shapes])


def _learn_from_copies(call: Call, a: Dims, b: Dims) -> None:
    """Note what sizes are not 0, because a Reshape copies another for them, which the other operand has not.

    ``x + Reshape(y, [batch, seq, 64])``, with a y of 64 columns and an x of length seq: were that 0, the Reshape would
    copy y's 64, and 0 and 64 do not broadcast.
    """
    for x, y in zip(reversed(a), reversed(b), strict=False):
        for dim, other in ((x, y), (y, x)):
            if (symbolic.number_where_zero(other, dim) or 0) > 1:
                call.host.fails_without(call.node, dim)


def _broadcast_to(shapes: Sequence[Dims]) -> Dims:
    dims = shapes[0]
    for shape in shapes[1:]:
        dims = broadcast(dims, shape)
    return dims


@rule("Where")
def where(call: Call) -> None:
    """The second input's type, the shape that all three broadcast to."""
    dtype = call.types[0] = call.dtype(1) or call.dtype(2)
    call.shapes[0] = broadcast_all(call, range(3))
    if dtype not in INTEGERS or not call.tracks(0, 1, 2):
        return
    x, y = call.elements(1), call.elements(2)
    if x is None or y is None:
        return
    condition = call.elements(0)
    if condition is None:
        sizes = call.shapes[0]
        if sizes is None or not all(isinstance(dim, int) for dim in sizes):
            return
        count = math.prod(dim for dim in sizes if isinstance(dim, int))
        if count > MAX_ELEMENTS:
            return
        condition = (UNKNOWN,) * count
    rows = paired(condition, x, y)
    if rows is not None:
        call.contents[0] = [_choice(*row) for row in rows]


def _choice(condition: Dim, x: Dim, y: Dim) -> Dim:
    if isinstance(condition, int):
        return x if condition else y
    return x if symbolic.equal(x, y) else UNKNOWN


@rule("Dropout")
def dropout(call: Call) -> None:
    """As the input, and a mask."""
    call.same(0, 0)
    if call.output_count() > 1:
        call.same(1, 0)
        if call.version >= 10:
            call.types[1] = BOOL


@rule("Bernoulli", "RandomNormalLike", "RandomUniformLike", "EyeLike", "Multinomial")
def random_like(call: Call) -> None:
    """The input's shape, the type of the attribute or of the input; Multinomial draws rows of samples."""
    call.same(0, 0)
    dtype = call.attribute("dtype")
    if call.node.op_type == "Multinomial":
        call.types[0] = ir.DataType(dtype) if dtype else ir.DataType.INT32
        call.shapes[0] = None
        call.shapes[0] = (call.dims(0)[0], call.attribute("sample_size", 1))
    elif dtype is not None:
        call.types[0] = ir.DataType(dtype)


@rule("RandomNormal", "RandomUniform")
def random(call: Call) -> None:
    """What the attributes say."""
    call.set(0, ir.DataType(call.attribute("dtype", 1)), call.attribute("shape"))


@rule("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "BiasSoftmax", "BiasDropout", domain=MICROSOFT)
def activation(call: Call) -> None:
    """As the input."""
    call.same(0, 0)
    if call.output_count() > 1:
        call.set(1, BOOL, call.dims_or_none(0))


@rule("QLinearAdd", "QLinearMul", domain=MICROSOFT, typed=0)
def quantized_arithmetic(call: Call) -> None:
    """Operands at 0 and 3."""
    call.shapes[0] = broadcast(call.dims(0), call.dims(3))
