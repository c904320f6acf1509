"""Which floats are whole numbers, whatever a model is given: what was counted, rounded, or chosen from whole constants.

They begin where integers become floats, in roundings, in quantized values with a whole scale, and in constants that a
node chooses from or fills tensors with. Sums, products and products of matrices of whole numbers alone are whole, and
exact as long as they stay below the bound of their type (2^24 in float32): where nothing says how large a number gets,
it is taken to be below. Constants beyond the bound are whole by chance, as the -1e9 of a mask is, and count as others.

Where several graphs give one value, as the branches of an If do, one of them is enough.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis.crossings import Crossings
from ortopt.graph.constants import EPSILONS, FLOATS, is_constant
from ortopt.graph.facts import INTEGERS
from ortopt.graph.index import op_key
from ortopt.onnx_ir_internals import attributes_of
from ortopt.semantics import op_traits
from ortopt.semantics.op_traits import CASTS, CHOOSING, FROM_FIRST_OPERAND

INTEGRAL = INTEGERS | {kind for kind in ir.DataType if kind.name in ("INT2", "INT4", "UINT2", "UINT4")}
"""The element types of integers; booleans are 0 and 1."""

DISCRETE = INTEGRAL | {ir.DataType.STRING}
"""The element types that do not round."""

_FIRST_ELEMENTS = 64
_MORE_ELEMENTS = 1 << 20

SUMS = frozenset(
    {
        *("Conv", "ConvTranspose", "CumProd", "Einsum", "Gemm", "MatMul", "ReduceL1", "ReduceProd", "ReduceSum"),
        *("ReduceSumSquare", "com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul"),
    }
)
"""Ops that add many products, which is exact for whole numbers and rounds for others."""

FILLERS = frozenset({"Bernoulli", "ConstantOfShape", "EyeLike"})
"""Ops that fill a tensor with a few numbers, of which none is an operand."""

ARITHMETIC = frozenset({"Abs", "Add", "CumSum", "Mod", "Mul", "Neg", "OneHot", "Pow", "Range", "Relu", "Sub", "Sum"})
"""Other ops that give whole numbers for whole operands."""

ROUNDINGS = frozenset({"Ceil", "Floor", "Round", "Sign"})
"""Ops that give whole numbers for any."""

_FROM_FIRST = FROM_FIRST_OPERAND | {"com.microsoft::Trilu"}
DEQUANTIZERS = frozenset({op_key(*pair) for pair in op_traits.DEQUANTIZERS})

ALL, NONE, FIRST = slice(None), slice(0), slice(1)

OPERANDS = {
    **dict.fromkeys(ROUNDINGS | FILLERS, NONE),
    **dict.fromkeys(CASTS | _FROM_FIRST, FIRST),
    **dict.fromkeys(DEQUANTIZERS, slice(2)),
    "OneHot": slice(2, 3),
}
"""Which operands must be whole, by op; all where nothing is said."""

KEEPERS = SUMS | FILLERS | CHOOSING | _FROM_FIRST | ARITHMETIC | ROUNDINGS | DEQUANTIZERS | CASTS

ZERO_KEEPERS = SUMS | CHOOSING | _FROM_FIRST | CASTS | {"Abs", "Add", "CumSum", "Mul", "Neg", "Relu", "Sub", "Sum"}
"""Ops that give zeros for zeros."""

BEGINNINGS = KEEPERS - SUMS - {"Abs", "Add", "Mod", "Mul", "Neg", "Pow", "Relu", "Sub", "Sum"}
"""Ops of ai.onnx and com.microsoft that may give whole numbers, though no operand that is computed is one.

Arithmetic of constants alone has been folded.
"""


class Content(enum.Enum):
    """What is known of a float: whole numbers, zeros alone, or nothing."""

    WHOLE = enum.auto()
    ZEROS = enum.auto()
    OTHER = enum.auto()


class WholeNumbers:
    """The floats of one model that are whole numbers, constants apart. What is once known stays so.

    Zeros are whole and known apart: what sums and products make of 0 is the same in any order.

    Args:
        crossings: How values cross the graphs of the model.
    """

    def __init__(self, crossings: Crossings) -> None:
        self._crossings = crossings
        self._known: dict[ir.Value, Content] = {}
        self._constants: dict[ir.Value, Content] = {}
        self._waiting: dict[ir.Node, int] = {}

    def __contains__(self, value: ir.Value) -> bool:
        """Whether a value is whole, and not zeros alone."""
        return self._known.get(value) is Content.WHOLE

    def take_up(self, nodes: Iterable[ir.Node]) -> list[ir.Value]:
        """Look at nodes that are new, or have changed.

        Returns:
            The floats that are now known to be whole, and not zeros alone, there and behind.
        """
        found: list[ir.Value] = []
        for node in nodes:
            self._waiting.pop(node, None)
            pending = list(self._given_at(node))
            while pending:
                value, content = pending.pop()
                if self._is_news(value, content):
                    self._known[value] = content
                    if content is Content.WHOLE:
                        found.append(value)
                    pending.extend(self._behind(value))
        return found

    def is_chosen_from(self, node: ir.Node) -> bool:
        """Whether a node may give elements of a constant of whole numbers other than 0, beside any others."""
        if node.domain or node.op_type not in CHOOSING:
            return False
        return any(value is not None and self._content(value) is Content.WHOLE for value in node.inputs)

    def _is_news(self, value: ir.Value, content: Content) -> bool:
        """Whether more is said of a value than was known."""
        if content is Content.OTHER or value.dtype in DISCRETE or is_constant(value):
            return False
        known = self._known.get(value)
        return known is None or (known is Content.ZEROS and content is Content.WHOLE)

    def _given_at(self, node: ir.Node) -> Iterator[tuple[ir.Value, Content]]:
        """What is known of the floats that a node gives, as far as its operands are known."""
        if self._crossings.is_crossed(node):
            yield from ((inner, self._content(outer)) for outer, inner in self._crossings.into(node))
            yield from ((outer, self._content(inner)) for inner, outer in self._crossings.out_of(node))
        elif (content := self._content_given(node)) is not Content.OTHER:
            yield from ((value, content) for value in node.outputs)

    def _behind(self, value: ir.Value) -> Iterator[tuple[ir.Value, Content]]:
        """What follows from what is known of a value."""
        content = self._known[value]
        for node in dict.fromkeys(use.node for use in value.uses()):
            if self._crossings.is_crossed(node):
                yield from ((inner, content) for outer, inner in self._crossings.into(node) if outer is value)
            else:
                yield from self._given_at(node)
        yield from ((outer, content) for outer in self._crossings.beyond(value))

    def _content(self, value: ir.Value) -> Content:
        """What a float holds, as far as that is known; of an integer nothing is said."""
        content = self._known.get(value) or self._constants.get(value)
        if content is None:
            tensor = semantics.constant_tensor(value)
            if tensor is None:
                return Content.OTHER  # and may become a constant, or known
            content = self._constants[value] = _content_of(tensor)
        return content

    def _content_given(self, node: ir.Node) -> Content:
        """What a node gives; each operand is asked once, however many become known one by one."""
        op = op_key(node.domain, node.op_type)
        if op not in KEEPERS or not node.outputs or node.outputs[0].dtype in DISCRETE or node.outputs[0] in self:
            return Content.OTHER
        operands = node.inputs[OPERANDS.get(op, ALL)]
        for position in range(self._waiting.get(node, 0), len(operands)):
            value = operands[position]
            known = value is None or value in self._known or value.dtype in INTEGRAL
            if not known and not is_constant(value):  # what a constant holds is read last
                self._waiting[node] = position
                return Content.OTHER
        self._waiting[node] = len(operands)
        return _content_filled_in(node) if op == "ConstantOfShape" else self._content_made(node, op, operands)

    def _content_made(self, node: ir.Node, op: str, operands: Sequence[ir.Value | None]) -> Content:
        """What a node makes of its operands, of which those that are computed are whole."""
        if op not in FILLERS and all(value is None or is_constant(value) for value in node.inputs):
            return Content.OTHER  # it will be a constant, which begins a path only where it is chosen from
        condition = CONDITIONS.get(op)
        if condition is not None and not condition(node):
            return Content.OTHER
        floats = (value for value in operands if value is not None and value.dtype not in INTEGRAL)
        contents = {self._content(value) for value in floats}
        if Content.OTHER in contents:
            return Content.OTHER
        return Content.ZEROS if contents == {Content.ZEROS} and op in ZERO_KEEPERS else Content.WHOLE


def exact_below(kind: ir.DataType) -> float:
    """The number below which a type of floats holds every integer: 2^24 in float32, 2^11 in float16."""
    return 2 / EPSILONS[kind]


def _content_of(tensor: ir.TensorProtocol) -> Content:
    if tensor.dtype not in FLOATS:
        return Content.OTHER
    content = np.asarray(tensor.numpy()).reshape(-1)
    bound = exact_below(tensor.dtype)
    # A few first: weights, however many, show there that they are none. What is left is read in parts, to save memory.
    ends = (0, *range(_FIRST_ELEMENTS, content.size, _MORE_ELEMENTS), content.size)
    if not all(_are_whole(content[start:end], bound) for start, end in itertools.pairwise(ends)):
        return Content.OTHER
    return Content.WHOLE if content.any() else Content.ZEROS


def _are_whole(content: np.ndarray, bound: float) -> bool:
    numbers = content.astype(np.float64, copy=False)
    with np.errstate(invalid="ignore"):
        return bool(((np.abs(numbers) < bound) & (np.floor(numbers) == numbers)).all())


def _content_filled_in(node: ir.Node) -> Content:
    """What a ConstantOfShape gives."""
    attribute = attributes_of(node).get("value")
    if attribute is None:
        return Content.ZEROS
    return Content.OTHER if attribute.is_ref() else _content_of(attribute.value)


# -- conditions on attributes -----------------------------------------------------------------------------------------


def _takes_the_nearest(node: ir.Node) -> bool:
    attribute = attributes_of(node).get("mode")
    return attribute is None or (not attribute.is_ref() and attribute.as_string() == "nearest")


def _is_scaled_by_whole(node: ir.Node) -> bool:
    attributes = [attributes_of(node).get(name) for name in ("alpha", "beta")]
    return all(one is None or (not one.is_ref() and float(one.as_float()).is_integer()) for one in attributes)


def _has_whole_exponents(node: ir.Node) -> bool:
    exponent = semantics.constant_tensor(node.inputs[1])
    return exponent is not None and bool((np.asarray(exponent.numpy()) >= 0).all())


CONDITIONS: dict[str, Callable[[ir.Node], bool]] = {
    "Gemm": _is_scaled_by_whole,
    "Pow": _has_whole_exponents,
    "Resize": _takes_the_nearest,
    "Upsample": _takes_the_nearest,
    "com.microsoft::FusedMatMul": _is_scaled_by_whole,
    "com.microsoft::TransposeMatMul": _is_scaled_by_whole,
}
"""What else must hold for an op to give whole numbers, beside whole operands."""
