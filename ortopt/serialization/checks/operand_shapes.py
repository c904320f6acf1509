"""Shapes of operands that contradict one another: what cannot be multiplied, added or put together.

Ops are followed as far as numbers are known: what a dimension's name stands for is never guessed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Final

import onnx_ir as ir

from ortopt.errors import InvalidModelError
from ortopt.onnx_ir_internals import attributes_of
from ortopt.semantics.op_traits import BROADCASTING, SHAPE_OF_FIRST_INPUT

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
