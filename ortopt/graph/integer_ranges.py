"""Integers are bounded: what the elements of a tensor may be, given its dtype and how large tensors get.

Shape arithmetic is computed here as in mathematics, and by a model in a dtype that wraps around. Both agree on numbers,
after `wrapped`, and on expressions that never leave the dtype's range; all other expressions are unknown. `Sizes.holds`
decides, for everything that is kept (`ortopt.graph.facts.set_contents`).

The one assumption behind it: **the dimensions of a tensor, those that are 0 left out, and the bytes of an element
have a product of at most `LARGEST`** (2^40 - 1: a tensor has less than a terabyte). So a symbol is at most `LARGEST`,
however large the other tensors are, and a product of symbols is if one input of the model has them all as dimensions:
``N*M`` of an input ``[N, M]``, but neither ``N*N`` nor the product of the lengths of two inputs, which wraps around for
tensors that fit every memory. The numbers among the dimensions count as well: N of an input ``[N, 224, 224, 3]`` fits
32 bits, and so does N where the model computes a tensor ``[N, 128]`` of floats of it in every run; of a tensor
``[N, N]`` it is at most the square root. Nothing here assumes that a dimension fits 32 bits without that.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Final, TypeAlias

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import symbolic
from ortopt.graph.polynomials import TooComplexError
from ortopt.graph.symbolic import Dim

LARGEST: Final = 2**40 - 1
"""The most that the dimensions of a tensor multiply to, those that are 0 left out, and the bytes of an element."""

EXACT_IN_DOUBLES: Final = 2**53
"""Up to here a double has every integer; ONNX Runtime computes some integers as doubles."""

EXACT_IN_FLOATS: Final = 2**24
"""Up to here single precision has every integer."""

LIMITS: Final[dict[ir.DataType, tuple[int, int]]] = {
    **{ir.DataType[f"INT{bits}"]: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{ir.DataType[f"UINT{bits}"]: (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    ir.DataType.BOOL: (0, 1),
}
"""The smallest and the largest number of each type whose elements are tracked; booleans are 0 and 1."""

_LAST_OF_32_BITS: Final = 2**31 - 1

_MAX_TERMS = 256
_MOST_LEAST = 1 << 16  # more than the windows of a network have together
_MAX_WAYS = 64  # to choose one symbol of each dimension of an input


def wrapped(element: Dim, dtype: ir.DataType) -> Dim:
    """What sums, differences, products and casts of integers leave of an exact result: its last bits.

    Args:
        element: The exact result; an expression stays as it is, and is unknown where the type may not hold it.
        dtype: The type of the result; for a boolean nothing is changed.
    """
    if not isinstance(element, int) or dtype == ir.DataType.BOOL:
        return element
    low, high = LIMITS[dtype]
    remainder: int = (element - low) % (high - low + 1)
    return remainder + low


def is_endless(end: Dim) -> bool:
    """Whether an end of a Slice that goes forwards is that of every dimension: ONNX Runtime reads INT32_MAX so too."""
    return isinstance(end, int) and (end == _LAST_OF_32_BITS or end >= LARGEST)


def extent(dims: Iterable[Dim], dtype: ir.DataType | None) -> tuple[Dim, ...]:
    """What multiplies to the bytes of a tensor: its dimensions, and the bytes of an element, at least 1.

    Args:
        dims: Its dimensions.
        dtype: Its element type, if it is known.
    """
    sized = dtype not in (None, ir.DataType.STRING, ir.DataType.UNDEFINED)
    return (*dims, max(1, int(dtype.itemsize)) if dtype is not None and sized else 1)


class Sizes:
    """How large the expressions of one model get.

    Args:
        inputs: The extents of the model's inputs (see `extent`): what multiplies to at most `LARGEST` together.

    Attributes:
        least: What some symbols are at least, wherever the model runs.
        refusals: How often something was in doubt.
    """

    __slots__ = ("_alone", "_asked", "_found", "_having", "_held", "_positive", "_together", "least", "refusals")

    def __init__(self, inputs: Iterable[Iterable[Dim]] = ()) -> None:
        self._together: dict[tuple[str, ...], int] = {}
        self._having: dict[str, dict[tuple[str, ...], None]] = {}  # for each symbol, those of `_together` that have it
        self._alone: dict[str, int] = {}  # what `_times` says of one symbol
        self._found: dict[str, int | None] = {}
        self._held: dict[tuple[int, int], dict[str, bool]] = {}
        self._positive: set[str] = set()  # what `least` is learned of
        self.least: dict[str, int] = {}
        self._asked: dict[tuple[str, int], bool] = {}  # what `is_at_least` has said of them
        self.refusals = 0
        self.learn(inputs)

    def learn(self, tensors: Iterable[Iterable[Dim]]) -> bool:
        """Note the extents of tensors that there are wherever the model runs (see `extent`).

        Returns:
            Whether they bound something more closely than what was known.
        """
        closer = False
        for dims in set(map(tuple, tensors)):
            times = math.prod(dim for dim in dims if isinstance(dim, int) and dim > 0)
            for names in _choices(dims):
                if times > self._times(names):
                    self._note(names, times)
                    closer = True
        if closer:
            self._found.clear()
            self._held.clear()
        return closer

    def _note(self, names: tuple[str, ...], times: int) -> None:
        self._together[names] = times
        for name, often in Counter(names).items():
            self._having.setdefault(name, {})[names] = None
            most = _root(LARGEST // times, often)  # N of a tensor [N, N] is at most the square root
            self._alone[name] = max(LARGEST // most, self._alone.get(name, 1))

    def learn_positive(self, dim: Dim) -> None:
        """Note that a dimension is at least 1 wherever the model runs: what that says of its only symbol.

        A convolution without padding, for example, has an input that is no smaller than its window.
        """
        text = str(dim)
        if text in self._positive:
            return
        self._positive.add(text)
        found = symbolic.least_of_symbol(dim, _MOST_LEAST)
        if found is not None:
            name, size = found
            if size > self.least.get(name, 0):
                self.least[name] = size
                self._asked.clear()

    def is_at_least(self, element: Dim, number: int) -> bool:
        """Whether an element is never below a number wherever the model runs."""
        if symbolic.at_least(element, number):
            return True
        if isinstance(element, int) or element.value is None or not self.least:
            return False
        about = element.value, number
        if about not in self._asked:
            known = self.least.keys() & symbolic.symbols(element)
            shifted = {name: symbolic.add(symbolic.symbol(name), self.least[name]) for name in known}
            self._asked[about] = bool(known) and symbolic.at_least(symbolic.substitute(element, shifted), number)
        return self._asked[about]

    def holds(self, element: Dim, dtype: ir.DataType) -> bool:
        """Whether a type has what an element is, whatever the sizes are; it never has the unknown dimension."""
        return self.lies_within(element, *LIMITS[dtype])

    def doubts(self, known: Iterable[Dim], dtype: ir.DataType) -> set[Dim]:
        """The elements that a type may not hold, without the unknown dimension."""
        limits = low, high = LIMITS[dtype]
        held = self._held.setdefault(limits, {})
        doubted: set[Dim] = set()
        for element in known:  # for every value of integers: kept short
            if isinstance(element, int):
                if not low <= element <= high:
                    doubted.add(element)
            elif (text := element.value) is not None and not (
                held[text] if text in held else self.lies_within(element, low, high)
            ):
                doubted.add(element)
        self.refusals += bool(doubted)
        return doubted

    def lies_within(self, element: Dim, low: int, high: int) -> bool:
        """Whether an element is never below one number, nor above another."""
        if isinstance(element, int):
            return low <= element <= high
        text = element.value
        if text is None:
            return False
        held = self._held.setdefault((low, high), {})
        if text not in held:
            held[text] = self._lies_within(element, low, high)
        return held[text]

    def _lies_within(self, element: ir.SymbolicDim, low: int, high: int) -> bool:
        try:
            return self._is_within(element, low, high)
        except TooComplexError:
            return False

    def _is_within(self, element: ir.SymbolicDim, low: int, high: int) -> bool:
        most = self.magnitude(element)
        if (most is None or -most < low) and not symbolic.at_least(element, low):
            return False
        if most is None or most > high:
            return symbolic.at_least(symbolic.sub(high, element), 0)
        return True

    def magnitude(self, element: Dim) -> int | None:
        """A number that an element is never above, nor its negative; None where none is known."""
        if isinstance(element, int):
            return abs(element)
        text = element.value
        if text is None:
            return None
        if text not in self._found:
            self._found[text] = self._magnitude(element)
        return self._found[text]

    def _magnitude(self, element: ir.SymbolicDim) -> int | None:
        parts = symbolic.greatest_of(element)
        if len(parts) > 1 and symbolic.at_least(element, 0):  # at most the greatest of what its parts are at most
            highs = [symbolic.upper_bound(part) for part in parts]
            bounds = [self.magnitude(part) if high is None else high for part, high in zip(parts, highs, strict=True)]
            return None if None in bounds else max(bound for bound in bounds if bound is not None)
        try:
            terms = symbolic.compute(element, _number, _symbol, _operate).terms
        except _TooManyTermsError:
            return None
        total = Fraction(0)
        for names, factor in terms.items():
            bound = self._bound(names) if names else 1
            if bound is None:
                return None
            total += factor * bound
        return math.ceil(total)

    def _bound(self, names: tuple[str, ...]) -> int | None:
        """The most that symbols multiply to, where one tensor has them all."""
        times = self._times(names)
        return LARGEST // times if times else None

    def _times(self, names: tuple[str, ...]) -> int:
        """What stands beside symbols in a tensor that has them all, as often as they are multiplied; 0 for none."""
        if len(names) == 1:
            return self._alone.get(names[0], 1)
        wanted = Counter(names)
        rarest = min((self._having.get(name, {}) for name in wanted), key=len)
        return max((self._together[own] for own in rarest if wanted <= Counter(own)), default=0)


def _root(number: int, degree: int) -> int:
    """An integer that is not smaller than a root of a number, and at least 1."""
    return max(1, number if degree == 1 else math.ceil(number ** (1 / degree)))


def _choices(dims: Iterable[Dim]) -> Iterable[tuple[str, ...]]:
    """For each dimension a symbol that is never larger, in all ways: ``past`` or ``seq`` for ``past + seq``."""
    parts = [names for dim in dims if (names := _summands(dim))]
    return itertools.islice(itertools.product(*parts), _MAX_WAYS) if parts else ()


def _summands(dim: Dim) -> list[str]:
    """The symbols that a sum of nothing but symbols and numbers is never smaller than."""
    names = sorted(symbolic.symbols(dim))
    try:
        return [name for name in names if symbolic.at_least(symbolic.sub(dim, symbolic.symbol(name)), 0)]
    except TooComplexError:  # a name of thousands of characters
        return []


class _TooManyTermsError(Exception):
    """The expression is too long to be worth it."""


_Terms: TypeAlias = dict[tuple[str, ...], Fraction]


class _Bound(Struct, frozen=True):
    """A sum of products of symbols that a value is never above, nor its negative; and the value if it is a number."""

    terms: _Terms
    number: int | None = None


def _number(value: int) -> _Bound:
    return _Bound({(): Fraction(abs(value))} if value else {}, value)


def _symbol(name: str) -> _Bound:
    return _Bound({(name,): Fraction(1)})


def _operate(name: str, a: _Bound, b: _Bound) -> _Bound:
    if name == "*":
        return _Bound(_multiplied(a.terms, b.terms))
    if name == "//":
        if b.number is None:  # an integer that is not 0
            return _Bound(a.terms)
        by = abs(b.number)
        return _Bound(_added({key: factor / by for key, factor in a.terms.items()}, {(): Fraction(1)}))
    return _Bound(_added(a.terms, b.terms))  # neither the greater nor the smaller one is beyond both together


def _added(a: _Terms, b: _Terms) -> _Terms:
    total = dict(a)
    for key, factor in b.items():
        total[key] = total.get(key, Fraction(0)) + factor
    return total


def _multiplied(a: _Terms, b: _Terms) -> _Terms:
    if len(a) * len(b) > _MAX_TERMS:
        raise _TooManyTermsError
    total: _Terms = {}
    for left, x in a.items():
        for right, y in b.items():
            key = tuple(sorted(left + right))
            total[key] = total.get(key, Fraction(0)) + x * y
    return total
