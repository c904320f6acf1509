"""Integer expressions over named symbols: the arithmetic of tensor dimensions, without sympy.

A dimension (`Dim`) is an ``int`` or an `ir.SymbolicDim` that holds the canonical text of an expression, so that two
dimensions are provably equal when their texts are. Symbols stand for integers >= 0 (a dimension may be 0).

The canonical form is a polynomial with integer coefficients over atoms. An atom is a symbol, a floor division, a
maximum or a minimum of canonical expressions; ``mod`` and ceiling division are written with floor division. The text
uses only ``+ - * ** // max min ( )``, identifiers and integers, which onnx-ir's parser reads too, except for symbols
that are no identifiers: alone they are written as they are, inside an expression between backquotes.

The string of a dimension in a file may be anything. It is an expression where it parses fully and names a symbol
(``N + 1``); everything else is one opaque symbol (``batch size``, ``N-1 tokens``, ``3``).

`ir.SymbolicDim(None)` is the unknown dimension: equal to nothing, itself included, and every result that needs it is
unknown. Division assumes that the divisor is not 0: what it describes does not run otherwise.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias, TypeVar

import onnx_ir as ir

from ortopt.graph import expressions, polynomials
from ortopt.graph.expressions import IDENTIFIER, name_of, parse
from ortopt.graph.polynomials import FUNCTIONS, Monomial, Polynomial, TooComplexError, lower_bound, lower_bound_of_atom

Dim: TypeAlias = int | ir.SymbolicDim
T = TypeVar("T")

INVENTED = "ortopt:"
"""What the names of symbols begin with that come from no file; their dimensions are written to files as unknown."""

UNKNOWN = ir.SymbolicDim(None)

_CACHE = 1 << 16


def _polynomial(dim: Dim) -> Polynomial:
    if isinstance(dim, int):
        return polynomials.constant(dim)
    if dim.value is None:
        raise TooComplexError
    return parse(dim.value)


def _dim(polynomial: Polynomial) -> Dim:
    value = polynomials.as_constant(polynomial)
    if value is not None:
        return value
    text = expressions.text_of(polynomial)
    return _interned(name_of(text) if len(polynomial) == 1 and (text,) in polynomial else text)


@lru_cache(_CACHE)
def _interned(text: str) -> ir.SymbolicDim:
    return ir.SymbolicDim(text)


@lru_cache(_CACHE)
def _known_lower_bound(text: str) -> int | None:
    try:
        return lower_bound(parse(text))
    except TooComplexError:
        return None


def symbol(name: str) -> ir.SymbolicDim:
    """The dimension that a symbol stands for; the name may be any string and is never parsed."""
    dim = _dim(expressions.symbol(name))
    assert isinstance(dim, ir.SymbolicDim)
    return dim


def fresh(hint: str) -> ir.SymbolicDim:
    """A symbol that no file has; the same hint gives the same symbol, so a hint names a value and an axis."""
    return _interned(INVENTED + hint)


_BROADCASTS: dict[str, frozenset[str]] = {}
"""By the name of an invented symbol, the texts of the dimensions that are broadcast to it."""

_LONGEST_NAME = 200


def broadcast(a: Dim, b: Dim) -> Dim:
    """The dimension that two broadcast to, of which no more is known: a symbol, the same one for the same dimensions.

    Broadcast with one of them again it is itself: where that is not 1, it is that one.
    """
    if isinstance(a, int) or isinstance(b, int) or a.value is None or b.value is None:
        return UNKNOWN
    operands = _BROADCASTS.get(a.value, frozenset((a.value,))) | _BROADCASTS.get(b.value, frozenset((b.value,)))
    known = next((text for text in (a.value, b.value) if _BROADCASTS.get(text) == operands), None)
    if known is not None:
        return _interned(known)
    scopes = {
        name.removeprefix(INVENTED).partition(":")[0]
        for text in operands
        for name in symbols(_interned(text))
        if name.startswith(INVENTED)
    }
    name = f"{INVENTED}{''.join(scopes)}:broadcast({'|'.join(sorted(operands))})"
    if len(scopes) > 1 or "`" in name or len(name) > _LONGEST_NAME:
        return UNKNOWN
    _BROADCASTS[name] = operands
    return symbol(name)


def broadcast_from(dim: Dim) -> tuple[Dim, ...]:
    """What a dimension is broadcast from: itself, unless `broadcast` made it; nothing if it is unknown."""
    if isinstance(dim, int):
        return (dim,)
    if dim.value is None:
        return ()
    return tuple(_interned(text) for text in sorted(_BROADCASTS.get(dim.value, (dim.value,))))


def is_invented(dim: Dim) -> bool:
    """Whether the dimension is, or mentions, an invented symbol: such a dimension is written to files as unknown."""
    return not isinstance(dim, int) and dim.value is not None and INVENTED in dim.value


def is_of_inputs(name: str) -> bool:
    """Whether a symbol is the same number wherever it stands: one of a file, or what some of these broadcast to."""
    return INVENTED not in name.removeprefix(f"{INVENTED}:broadcast(")


def is_known(dim: Dim) -> bool:
    """Whether the dimension is an integer or an expression, and not the unknown dimension."""
    return isinstance(dim, int) or dim.value is not None


def canonical(dim: Dim | str | None) -> Dim:
    """The canonical form of a dimension as a file has it; a text is read as the module's docstring says."""
    if isinstance(dim, int):
        return dim
    text = dim.value if isinstance(dim, ir.SymbolicDim) else dim
    return UNKNOWN if text is None else _canonical(text)


@lru_cache(_CACHE)
def _canonical(text: str) -> Dim:
    if IDENTIFIER.match(text):
        return _interned(text)
    try:
        return _dim(parse(text))
    except TooComplexError:
        return _interned(text)


def add(a: Dim, b: Dim) -> Dim:
    """``a + b``."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _operate("+", a, b)


def sub(a: Dim, b: Dim) -> Dim:
    """``a - b``."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return _operate("-", a, b)


def mul(a: Dim, b: Dim) -> Dim:
    """``a * b``."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return _operate("*", a, b)


def floordiv(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded down; unknown where b is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else UNKNOWN
    return _operate("//", a, b)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded up, for b > 0 or integers; unknown where b is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b) if b else UNKNOWN
    return floordiv(sub(add(a, b), 1), b)


def mod(a: Dim, b: Dim) -> Dim:
    """``a - b * (a // b)``: the remainder with the sign of b; unknown where b is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else UNKNOWN
    return _operate("%", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The greater of the two."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return _operate("max", a, b)


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of the two."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return _operate("min", a, b)


def _operate(name: str, a: Dim, b: Dim) -> Dim:
    left = a if isinstance(a, int) else a.value
    right = b if isinstance(b, int) else b.value
    if left is None or right is None:
        return UNKNOWN
    return _operate_cached(name, left, right)


@lru_cache(_CACHE)
def _operate_cached(name: str, left: int | str, right: int | str) -> Dim:
    a = polynomials.constant(left) if isinstance(left, int) else parse(left)
    b = polynomials.constant(right) if isinstance(right, int) else parse(right)
    try:
        return _dim(_OPERATIONS[name](a, b))
    except TooComplexError:
        return UNKNOWN


_OPERATIONS: dict[str, Callable[[Polynomial, Polynomial], Polynomial]] = {
    "+": polynomials.add,
    "-": lambda a, b: polynomials.add(a, b, -1),
    "*": polynomials.multiply,
    "//": expressions.floordiv,
    "%": expressions.mod,
    "max": lambda a, b: expressions.extremum("max", (a, b)),
    "min": lambda a, b: expressions.extremum("min", (a, b)),
}


def product(dims: Iterable[Dim]) -> Dim:
    """The product of all; 1 for none, 0 where one is 0 even if another is unknown."""
    constant, symbolic = 1, []
    for dim in dims:
        if isinstance(dim, int):
            constant *= dim
        else:
            symbolic.append(dim)
    if constant == 0:
        return 0
    result: Dim = constant
    for dim in symbolic:
        result = mul(result, dim)
    return result


def quotient_exact(a: Dim, b: Dim) -> Dim | None:
    """The dimension q with ``a == q * b`` as polynomials, or None where there is none or it is not known."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    try:
        quotient = polynomials.divide(_polynomial(a), _polynomial(b))
        return None if quotient is None else _dim(quotient)
    except TooComplexError:
        return None


def divides(divisor: Dim, dim: Dim) -> bool:
    """Whether ``dim`` is provably a multiple of ``divisor``."""
    return quotient_exact(dim, divisor) is not None


def equal(a: Dim, b: Dim) -> bool:
    """Whether both are provably the same number; unknown is never equal to anything."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    if a.value is None or b.value is None:
        return False
    return a.value == b.value or _canonical(a.value) == _canonical(b.value)


def provably_different(a: Dim, b: Dim) -> bool:
    """Whether both are provably different numbers, e.g. ``N`` and ``N + 1``."""
    if isinstance(a, int) and isinstance(b, int):
        return a != b
    return at_least(sub(a, b), 1) or at_least(sub(b, a), 1)


def at_least(a: Dim, n: int) -> bool:
    """Whether the dimension is provably >= n, symbols being >= 0."""
    if isinstance(a, int):
        return a >= n
    if a.value is None:
        return False
    bound = _known_lower_bound(a.value)
    return bound is not None and bound >= n


def least_of_symbol(a: Dim, most: int) -> tuple[str, int] | None:
    """From which size of its only symbol on a dimension is at least 1: the symbol and the size.

    Args:
        a: A dimension.
        most: The largest size that is looked at.

    Returns:
        None where it has several symbols, is not known to grow with it, or is less at all these sizes.
    """
    names = symbols(a)
    if isinstance(a, int) or len(names) != 1 or not polynomials.grows(_polynomial(a)):
        return None
    (name,) = names

    def size_at(size: int) -> int:
        number = substitute(a, {name: size})
        return number if isinstance(number, int) else 0  # too large to be told

    found = bisect.bisect_left(range(most), 1, key=size_at)
    return (name, found) if found < most else None


def vanishes_with(a: Dim, b: Dim) -> bool:
    """Whether ``a`` is provably 0 wherever ``b`` is, as ``N*M`` is with ``N``."""
    if isinstance(a, int) or isinstance(b, int):
        return a == 0 or (isinstance(b, int) and b != 0)
    if a.value is None or b.value is None:
        return False
    dividend, terms = parse(a.value), parse(b.value)
    if polynomials.divide(dividend, terms) is not None:
        return True
    if any(coefficient < 0 for coefficient in terms.values()) or any(
        (lower_bound_of_atom(atom, 4) or 0) < 0 for monomial in terms for atom in monomial
    ):
        return False  # else b is 0 only where each of its terms is, and a term only where one of its atoms is
    return any(
        all(polynomials.divide(dividend, {(atom,): 1}) is not None for atom in monomial)
        for monomial in terms
        if monomial
    )


def is_positive(a: Dim, positive: Collection[str]) -> bool:
    """Whether the dimension is provably >= 1 where some symbols and expressions are.

    Args:
        a: A dimension.
        positive: The names of the symbols, and the canonical texts of the expressions.
    """
    if at_least(a, 1) or (isinstance(a, ir.SymbolicDim) and a.value in positive):
        return True
    names = symbols(a).intersection(positive)
    return bool(names) and at_least(substitute(a, {name: add(symbol(name), 1) for name in names}), 1)


def where_positive(a: Dim, names: Collection[str]) -> Dim:
    """The dimension, simplified by what holds where some symbols are not 0: then ``max(1, N)`` is ``N``.

    Args:
        a: A dimension.
        names: The names of the symbols.
    """
    own = symbols(a).intersection(names)
    more = substitute(a, {name: add(symbol(name), 1) for name in own})
    return substitute(more, {name: sub(symbol(name), 1) for name in own})


def factors(a: Dim) -> frozenset[str]:
    """The names of symbols that the expression is a multiple of: where it is not 0, none of them is."""
    if isinstance(a, int) or a.value is None:
        return frozenset()
    polynomial = parse(a.value)
    common = frozenset.intersection(*(frozenset(monomial) for monomial in polynomial))
    return frozenset(name_of(atom) for atom in common if atom not in FUNCTIONS)


def same_shape(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Whether both shapes are known and provably the same."""
    return a is not None and b is not None and len(a) == len(b) and all(map(equal, a, b))


def is_capped(a: Dim, b: Dim, n: int) -> bool:
    """Whether ``a`` is provably the smaller of ``b`` and numbers >= n, as in ``min(512, b)``."""
    others = [] if isinstance(b, int) else _beside("min", a, b)
    return bool(others) and all((lower_bound(part) or 0) >= n for part in others)


def is_floored(a: Dim, b: Dim, n: int) -> bool:
    """Whether ``a`` is provably the greater of ``b`` and numbers <= n, as in ``max(0, b)``."""
    others = [] if isinstance(b, int) else _beside("max", a, b)
    rest = [lower_bound(polynomials.add(polynomials.constant(n), part, -1)) for part in others]
    return bool(rest) and all(bound is not None and bound >= 0 for bound in rest)


def where_zero(a: Dim, number: int) -> Dim:
    """A dimension, or a number where that dimension is 0.

    Args:
        a: A dimension, provably not negative.
        number: At least 1.
    """
    return maximum(a, mul(number, sub(1, a)))


def number_where_zero(a: Dim, b: Dim) -> int | None:
    """The number that ``a`` is where ``b`` is 0, while elsewhere they are the same; None where that is not proven."""
    others = [] if isinstance(b, int) else _beside("max", a, b)
    number = quotient_exact(_dim(others[0]), sub(1, b)) if len(others) == 1 else None
    return number if isinstance(number, int) and number > 0 else None


def greatest_of(a: Dim) -> list[Dim]:
    """The operands of the maximum that a dimension is; else the dimension itself, if it is known."""
    return [] if not is_known(a) else [_dim(part) for part in expressions.parts("max", _polynomial(a))]


def upper_bound(a: Dim) -> int | None:
    """A number that a dimension is never above, whatever its symbols are; None where none is found."""
    low = lower_bound(_polynomial(sub(0, a))) if is_known(a) else None
    return None if low is None else -low


def unfloored(a: Dim) -> Dim | None:
    """What the dimension is the greater of, beside 0; None where it is no such maximum."""
    others = _beside("max", a, 0)
    return _dim(others[0]) if len(others) == 1 else None


def is_one_or_none(a: Dim, b: Dim) -> bool:
    """Whether ``a`` is provably 1, or 0 where ``b`` is 0 too, as ``min(1, b)``."""
    others = [] if isinstance(b, int) else _beside("min", a, 1)
    return bool(others) and all(vanishes_with(b, _dim(part)) for part in others)


def _beside(extremum: str, a: Dim, b: Dim) -> list[Polynomial]:
    """The other operands of the maximum or minimum that a dimension is; none where ``b`` is not one of them."""
    if isinstance(a, int) or a.value is None or (not isinstance(b, int) and b.value is None):
        return []
    parts, own = expressions.parts(extremum, parse(a.value)), _polynomial(b)
    others = [part for part in parts if part != own]
    return others if len(others) == len(parts) - 1 else []


def symbols(dim: Dim) -> frozenset[str]:
    """The names of the symbols in the expression."""
    if isinstance(dim, int) or dim.value is None:
        return frozenset()
    names: set[str] = set()
    pending = [parse(dim.value)]
    while pending:
        for monomial in pending.pop():
            for atom in monomial:
                if atom in FUNCTIONS:
                    pending.extend(FUNCTIONS[atom][1])
                else:
                    names.add(name_of(atom))
    return frozenset(names)


def substitute(dim: Dim, mapping: Mapping[str, Dim]) -> Dim:
    """The expression with symbols replaced, all at once; symbols not in the mapping stay."""
    if isinstance(dim, int) or dim.value is None:
        return dim
    try:
        return _dim(
            expressions.substituted(parse(dim.value), {name: _polynomial(value) for name, value in mapping.items()})
        )
    except TooComplexError:
        return UNKNOWN


def compute(dim: Dim, number: Callable[[int], T], symbol: Callable[[str], T], operate: Callable[[str, T, T], T]) -> T:
    """Compute an expression in another algebra: as nodes of a graph, say.

    Args:
        dim: An expression.
        number: What an integer is there.
        symbol: What a symbol is there, by its name.
        operate: What ``+``, ``*``, ``//``, ``max`` and ``min`` are there; ``//`` rounds down.

    Raises:
        ValueError: The dimension is unknown.
    """
    if isinstance(dim, int):
        return number(dim)
    if dim.value is None:
        raise ValueError("the dimension is unknown")

    def of(polynomial: Polynomial) -> T:
        terms = [
            term(monomial, polynomial[monomial]) for monomial in sorted(polynomial, key=polynomials.order, reverse=True)
        ]
        return functools.reduce(lambda a, b: operate("+", a, b), terms) if terms else number(0)

    def term(monomial: Monomial, coefficient: int) -> T:
        factors = [atom(text) for text in monomial]
        if coefficient != 1 or not factors:
            factors.append(number(coefficient))
        return functools.reduce(lambda a, b: operate("*", a, b), factors)

    def atom(text: str) -> T:
        if text not in FUNCTIONS:
            return symbol(name_of(text))
        name, arguments = FUNCTIONS[text]
        return functools.reduce(lambda a, b: operate(name, a, b), map(of, arguments))

    return of(parse(dim.value))
