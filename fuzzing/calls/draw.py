"""Draws of single calls: an op, an opset, attributes, operands; hits the boundaries of each on purpose."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import defs, helper

from ortopt.analysis import kernels
from ortopt.analysis.providers import CPU

Array = npt.NDArray[Any]
T = TypeVar("T")

MICROSOFT: Final = "com.microsoft"
NEWEST: Final = 26
"""The newest opset of ai.onnx that ONNX Runtime reads."""

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
FLOATS: Final = ("float", "double", "float16")

_STRINGS: Final = (b"", b"a", b"b", b"ab", "ä".encode())
_SPECIAL: Final = (
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e-45,
    -1e-40,
    1e30,
    -3.4e38,
    1e39,
    math.inf,
    -math.inf,
    math.nan,
)


@dataclass
class Drawn:
    """One call, or a few nodes around one.

    Attributes:
        domain: The op's domain.
        op: The op's type.
        opset: The opset of ai.onnx.
        inputs: The operands; None where an optional one is left out.
        nodes: What is run, on inputs named ``i0``, ``i1``, …; the last one is the call.
        is_wide: Whether operands span their dtypes: their contents are then told to no rule.
    """

    domain: str
    op: str
    opset: int
    inputs: list[Array | None]
    nodes: list[onnx.NodeProto]
    is_wide: bool = False

    def __str__(self) -> str:
        shown = ", ".join(
            "-" if one is None else f"{one.dtype}{list(one.shape)}" + (f"={one.tolist()}" if one.size <= 8 else "")
            for one in self.inputs
        )
        nodes = "; ".join(onnx.printer.to_text(node).strip() for node in self.nodes)
        return f"opset {self.opset}: {' '.join(nodes.split())} of {shown}"


Drawing = Callable[["Draw"], Drawn]

DRAWINGS: Final[dict[tuple[str, str], Drawing]] = {}
"""How a call of each op is drawn, by domain and type."""


def drawing(*ops: str, domain: str = "") -> Callable[[Drawing], Drawing]:
    """Take up a function that draws calls of these ops."""

    def register(function: Drawing) -> Drawing:
        for op in ops:
            if (domain, op) in DRAWINGS:
                raise ValueError(f"{domain}::{op} is drawn twice")
            DRAWINGS[domain, op] = function
        return function

    return register


@cache
def opsets(domain: str, op: str) -> tuple[int, ...]:
    """The opsets of ai.onnx in which a form of the op begins or ends, and the newest."""
    if domain:
        return 17, NEWEST
    since = {
        one.since_version for one in defs.get_all_schemas_with_history() if one.domain == domain and one.name == op
    }
    since = {one for one in since if one <= NEWEST} or {17}
    first = min(since)
    return tuple(sorted({*since, *(one - 1 for one in since if one > first), NEWEST, max(first, 17)}))


@cache
def _allowed(domain: str, op: str, opset: int, parameter: str) -> tuple[str, ...]:
    """The element types that a type parameter may be; those that ONNX Runtime has a kernel for, where it has any."""
    schema = kernels.schema(domain, op, 1 if domain else opset)
    if schema is None:
        return ("float",)
    texts = sorted(text for text in schema.constraints.get(parameter, ()) if text.startswith("tensor("))
    usable = [text for text in texts if kernels.has_kernel(CPU, domain, op, 1 if domain else opset, {parameter: text})]
    names = [text.removeprefix("tensor(").removesuffix(")") for text in usable or texts]
    return tuple(name for name in names if not name.startswith("complex")) or ("float",)


def numpy_of(name: str) -> np.dtype[Any]:
    """The numpy dtype of an ONNX element type (``float``, ``uint8``, ``string``)."""
    return np.dtype(object) if name == "string" else ir.DataType[name.upper()].numpy()


def number_of(name: str) -> int:
    """ONNX's number of an element type."""
    return int(ir.DataType[name.upper()])


class Draw:
    """Random choices for one call."""

    def __init__(self, seed: int, domain: str, op: str) -> None:
        self.random = random.Random(seed)
        self.domain = domain
        self.op = op
        self.opset = self.random.choice(opsets(domain, op))
        self.is_wide = self.chance(0.4)

    # Choices

    def one(self, *choices: T) -> T:
        """One of these."""
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.random.random() < probability

    def number(self, low: int, high: int) -> int:
        """An integer, the bounds included."""
        return self.random.randint(low, high)

    def size(self, *, zero: bool = True) -> int:
        """A dimension: small, often 1, seldom 0."""
        return self.one(1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 8) if not zero or self.chance(0.92) else 0

    def shape(self, low: int = 0, high: int = 4, *, zero: bool = True) -> tuple[int, ...]:
        """Dimensions, so many at least and at most."""
        return tuple(self.size(zero=zero) for _ in range(self.number(low, high)))

    def axis(self, rank: int) -> int:
        """An axis from either end; once in a while one that is not there."""
        if rank == 0 or self.chance(0.04):
            return self.one(rank, -rank - 1, 0, -1)
        return self.number(-rank, rank - 1)

    def axes(self, rank: int) -> list[int]:
        """Some axes, each once, from either end; once in a while one twice or one that is not there."""
        chosen = [axis - rank if self.chance(0.4) else axis for axis in range(rank) if self.chance(0.5)]
        self.random.shuffle(chosen)
        if self.chance(0.04):
            chosen.append(self.axis(rank))
        return chosen

    def broadcast(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts with another one; once in a while not."""
        kept = list(shape[self.number(0, len(shape)) if self.chance(0.4) else 0 :])
        for axis in range(len(kept)):
            if self.chance(0.3):
                kept[axis] = 1
            elif (kept[axis] == 1 and self.chance(0.4)) or self.chance(0.02):
                kept[axis] = self.size()
        if self.chance(0.1):
            kept.insert(0, self.size())
        return tuple(kept)

    def dtype(self, parameter: str = "T", *among: str) -> str:
        """An element type that a parameter of the op allows, among these if any are given and allowed."""
        allowed = _allowed(self.domain, self.op, self.opset, parameter)
        usable = tuple(name for name in allowed if name in among) or among or allowed
        return self.one(*usable)

    # Operands

    def tensor(self, dtype: str, shape: Sequence[int]) -> Array:
        """Contents of a dtype: all over its range where the draw is wide, else small."""
        count = math.prod(shape)
        kind = numpy_of(dtype)
        if dtype == "string":
            made = np.empty(count, object)
            made[:] = [self.one(*_STRINGS) for _ in range(count)]
            return made.reshape(shape)
        if dtype == "bool":
            return np.array([self.chance(0.5) for _ in range(count)], kind).reshape(shape)
        if dtype.startswith(("int", "uint")):
            return self._integers(dtype, count).reshape(shape)
        numbers = [
            self.one(*_SPECIAL) if self.is_wide and self.chance(0.3) else self.number(-6, 6) / 2 for _ in range(count)
        ]
        with np.errstate(all="ignore"):
            return np.array(numbers, np.float64).astype(kind).reshape(shape)

    def _integers(self, dtype: str, count: int) -> Array:
        bits, kind = int(dtype.lstrip("uint")), numpy_of(dtype)
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        numbers = []
        for _ in range(count):
            if self.is_wide and self.chance(0.5):
                numbers.append(self.one(low, low + 1, high, high - 1, self.number(low, high), min(high, 2**53 + 1)))
            else:
                numbers.append(self.number(max(low, -5), min(high, 7)))
        return np.array(numbers, np.int64 if low else np.uint64).astype(kind)

    def ints(self, numbers: Sequence[int], dtype: str = "int64") -> Array:
        """A vector of integers: an operand that says a shape, axes and the like."""
        return np.array(numbers, numpy_of(dtype)).reshape(len(numbers))

    # Calls

    def call(self, inputs: Sequence[Array | None], outputs: int = 1, **attributes: Any) -> Drawn:
        """The call with these operands; attributes that are None are left out."""
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        node = helper.make_node(
            self.op,
            ["" if one is None else f"i{index}" for index, one in enumerate(given)],
            [f"o{index}" for index in range(outputs)],
            domain=self.domain,
            **{name: value for name, value in attributes.items() if value is not None and value != []},
        )
        for name, value in attributes.items():
            if value == []:  # of nothing onnx's helper cannot tell the type
                node.attribute.add(name=name, type=onnx.AttributeProto.INTS)
        return Drawn(self.domain, self.op, self.opset, given, [node], self.is_wide)

    def calls(self, inputs: Sequence[Array | None], *nodes: onnx.NodeProto) -> Drawn:
        """Several nodes, the last of which is the call."""
        return Drawn(self.domain, self.op, self.opset, list(inputs), list(nodes), self.is_wide)


def drawn(seed: int, domain: str, op: str) -> Drawn:
    """The call of an op that a seed stands for."""
    return DRAWINGS[domain, op](Draw(seed, domain, op))


__all__ = [
    "DRAWINGS",
    "FLOATS",
    "INT64_MAX",
    "INT64_MIN",
    "MICROSOFT",
    "NEWEST",
    "Array",
    "Draw",
    "Drawn",
    "drawing",
    "drawn",
    "number_of",
    "numpy_of",
]
