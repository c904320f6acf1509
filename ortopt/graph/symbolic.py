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

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias, TypeVar

import onnx_ir as ir

Dim: TypeAlias = int | ir.SymbolicDim
T = TypeVar("T")

INVENTED = "ortopt:"
"""What the names of symbols begin with that come from no file; their dimensions are written to files as unknown."""

UNKNOWN = ir.SymbolicDim(None)

_Monomial: TypeAlias = tuple[str, ...]  # texts of atoms, sorted; () is the constant
_Polynomial: TypeAlias = dict[_Monomial, int]  # no coefficient is 0; never changed once made

# Beyond these an expression helps nobody and costs time (a hostile file can nest and multiply at will).
_MAX_TERMS = 24
_MAX_DEGREE = 12
_MAX_TEXT = 400
_MAX_NESTING = 24
_MAX_COEFFICIENT = 2**63

_CACHE = 1 << 16

_FUNCTIONS: dict[str, tuple[str, tuple[_Polynomial, ...]]] = {}
"""Text of an atom that is no symbol, to its function and operands."""


class TooComplexError(Exception):
    """The expression exceeds the bounds above."""


class _NotAnExpressionError(Exception):
    """The text is not in the grammar."""


# Polynomials


def _add(a: _Polynomial, b: _Polynomial, factor: int = 1) -> _Polynomial:
    result = dict(a)
    for monomial, coefficient in b.items():
        total = result.get(monomial, 0) + factor * coefficient
        if total:
            result[monomial] = total
        else:
            result.pop(monomial, None)
    return _bounded(result)


def _multiply(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    if len(a) * len(b) > _MAX_TERMS * _MAX_TERMS:
        raise TooComplexError
    result: _Polynomial = {}
    for left, x in a.items():
        for right, y in b.items():
            monomial = tuple(sorted(left + right)) if left and right else left or right
            result[monomial] = result.get(monomial, 0) + x * y
    return _bounded({monomial: coefficient for monomial, coefficient in result.items() if coefficient})


def _bounded(polynomial: _Polynomial) -> _Polynomial:
    if len(polynomial) > _MAX_TERMS:
        raise TooComplexError
    for monomial, coefficient in polynomial.items():
        if len(monomial) > _MAX_DEGREE or abs(coefficient) > _MAX_COEFFICIENT:
            raise TooComplexError
    return polynomial


def _constant(value: int) -> _Polynomial:
    return {(): value} if value else {}


def _as_constant(polynomial: _Polynomial) -> int | None:
    if not polynomial:
        return 0
    return polynomial.get(()) if len(polynomial) == 1 else None


def _divide(a: _Polynomial, b: _Polynomial) -> _Polynomial | None:
    """The polynomial q with a == q * b, or None where there is none."""
    if not b:
        return None
    lead = max(b, key=_order)
    rest, quotient = a, {}
    while rest:
        top = max(rest, key=_order)
        factor = _without(top, lead)
        if factor is None or rest[top] % b[lead]:
            return None
        term = {factor: rest[top] // b[lead]}
        quotient.update(term)
        if len(quotient) > _MAX_TERMS:
            return None
        rest = _add(rest, _multiply(term, b), -1)
    return quotient


def _order(monomial: _Monomial) -> tuple[int, _Monomial]:
    return len(monomial), monomial


def _without(monomial: _Monomial, part: _Monomial) -> _Monomial | None:
    rest = list(monomial)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


# Functions, in canonical form


def _floordiv(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    divisor = _as_constant(b)
    if divisor == 0:
        raise TooComplexError
    if divisor is not None:
        return _floordiv_by_constant(a, divisor)
    exact = _divide(a, b)
    if exact is not None:
        return exact
    return {(_function("//", (a, b)),): 1}


def _floordiv_by_constant(a: _Polynomial, divisor: int) -> _Polynomial:
    if divisor < 0:
        a, divisor = {monomial: -coefficient for monomial, coefficient in a.items()}, -divisor
    whole = {monomial: coefficient // divisor for monomial, coefficient in a.items() if coefficient // divisor}
    rest = {monomial: coefficient % divisor for monomial, coefficient in a.items() if coefficient % divisor}
    shift = rest.pop((), 0)
    if not rest:
        return whole
    common = math.gcd(divisor, *rest.values())
    rest = {monomial: coefficient // common for monomial, coefficient in rest.items()}
    shift, divisor = shift // common, divisor // common
    if divisor == 1:
        return _add(_add(whole, rest), _constant(shift))
    inner = _nested_division(rest)
    if inner is not None:  # floor((floor(x / b) + k) / c) is floor((x + k * b) / (b * c))
        numerator, by = inner
        return _add(whole, _floordiv_by_constant(_add(numerator, _constant(shift * by)), divisor * by))
    atom = _function("//", (_add(rest, _constant(shift)), _constant(divisor)))
    return _add(whole, {(atom,): 1})


def _nested_division(polynomial: _Polynomial) -> tuple[_Polynomial, int] | None:
    if len(polynomial) != 1:
        return None
    ((monomial, coefficient),) = polynomial.items()
    if coefficient != 1 or len(monomial) != 1 or monomial[0] not in _FUNCTIONS:
        return None
    name, arguments = _FUNCTIONS[monomial[0]]
    by = _as_constant(arguments[1]) if name == "//" else None
    return None if by is None else (arguments[0], by)


def _mod(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    return _add(a, _multiply(b, _floordiv(a, b)), -1)


def _extremum(name: str, arguments: Iterable[_Polynomial]) -> _Polynomial:
    flat: dict[str, _Polynomial] = {}
    for argument in arguments:
        for part in _parts(name, argument):
            flat[_text(part)] = part
    kept: list[_Polynomial] = []
    for part in (flat[text] for text in sorted(flat)):
        if any(_dominates(name, other, part) for other in kept):
            continue
        kept = [other for other in kept if not _dominates(name, part, other)]
        kept.append(part)
    if len(kept) == 1:
        return kept[0]
    return {(_function(name, tuple(kept)),): 1}


def _parts(name: str, argument: _Polynomial) -> Sequence[_Polynomial]:
    if len(argument) == 1:
        ((monomial, coefficient),) = argument.items()
        if coefficient == 1 and len(monomial) == 1 and _FUNCTIONS.get(monomial[0], ("",))[0] == name:
            return _FUNCTIONS[monomial[0]][1]
    return (argument,)


def _dominates(name: str, winner: _Polynomial, loser: _Polynomial) -> bool:
    difference = _add(winner, loser, -1) if name == "max" else _add(loser, winner, -1)
    lowest = _lowest(difference)
    return lowest is not None and lowest >= 0


def _function(name: str, arguments: tuple[_Polynomial, ...]) -> str:
    if name == "//":
        text = f"{_operand(arguments[0])}//{_operand(arguments[1])}"
    else:
        text = f"{name}({', '.join(sorted(map(_text, arguments)))})"
    if len(text) > _MAX_TEXT:
        raise TooComplexError
    _FUNCTIONS[text] = (name, arguments)
    return text


# Text


def _operand(polynomial: _Polynomial) -> str:
    text = _text(polynomial)
    simple = len(polynomial) == 1 and (text.isdigit() or text in _symbols_of(polynomial))
    return text if simple else f"({text})"


def _symbols_of(polynomial: _Polynomial) -> set[str]:
    return {atom for monomial in polynomial for atom in monomial if atom not in _FUNCTIONS}


def _text(polynomial: _Polynomial) -> str:
    if not polynomial:
        return "0"
    pieces: list[str] = []
    for monomial in sorted(polynomial, key=lambda monomial: (-len(monomial), monomial)):
        coefficient = polynomial[monomial]
        factors = _factors(monomial)
        size = abs(coefficient)
        first_is_power = not pieces and coefficient < 0 and monomial[:1] == monomial[1:2] != ()
        if size != 1 or not factors or first_is_power:  # onnx-ir reads -N**2 as (-N)**2
            factors.insert(0, str(size))
        elif len(factors) == 1 and coefficient > 0:
            factors = [monomial[0]] if len(monomial) == 1 else factors
        sign = "-" if coefficient < 0 else "+"
        pieces.append(f" {sign} " if pieces else sign if coefficient < 0 else "")
        pieces.append("*".join(factors))
    text = "".join(pieces)
    if len(text) > _MAX_TEXT:
        raise TooComplexError
    return text


def _factors(monomial: _Monomial) -> list[str]:
    factors = []
    for atom in dict.fromkeys(monomial):
        text = f"({atom})" if _FUNCTIONS.get(atom, ("",))[0] == "//" else atom
        power = monomial.count(atom)
        factors.append(text if power == 1 else f"{text}**{power}")
    return factors


_IDENTIFIER = re.compile(r"[^\W\d][\w.]*\Z")
_TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]+)|(?P<name>[^\W\d][\w.]*|`(?:[^`]|``)*`)|(?P<sign>//|\*\*|[-+*/%(),]))")


def _symbol(name: str) -> _Polynomial:
    atom = name if _IDENTIFIER.match(name) else "`" + name.replace("`", "``") + "`"
    return {(atom,): 1}


def _name_of(atom: str) -> str:
    return atom[1:-1].replace("``", "`") if atom.startswith("`") else atom


class _Parser:
    """Recursive descent over onnx-ir's grammar; values are quotients of a polynomial and a positive integer.

    The quotient serves ``floor(N/2 + 1/2)``, as sympy prints a floor division.
    """

    def __init__(self, text: str) -> None:
        self._tokens = self._split(text)
        self._next = 0
        self._nesting = 0

    @staticmethod
    def _split(text: str) -> list[tuple[str, str]]:
        tokens, position, end = [], 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise _NotAnExpressionError
            tokens.append((str(match.lastgroup), match[match.lastgroup or 0]))
            position = match.end()
        return tokens

    def parse(self) -> _Polynomial:
        polynomial = self._whole(self._sum())
        if self._next != len(self._tokens):
            raise _NotAnExpressionError
        return polynomial

    @staticmethod
    def _whole(value: tuple[_Polynomial, int]) -> _Polynomial:
        polynomial, divisor = value
        if divisor == 1:
            return polynomial
        exact = _divide(polynomial, _constant(divisor))
        if exact is None:
            raise _NotAnExpressionError
        return exact

    def _take(self, *signs: str) -> str | None:
        if self._next < len(self._tokens):
            kind, text = self._tokens[self._next]
            if kind == "sign" and text in signs:
                self._next += 1
                return text
        return None

    def _expect(self, sign: str) -> None:
        if self._take(sign) is None:
            raise _NotAnExpressionError

    def _sum(self) -> tuple[_Polynomial, int]:
        left, by = self._product()
        while sign := self._take("+", "-"):
            right, other = self._product()
            factor = 1 if sign == "+" else -1
            left = _add(_multiply(left, _constant(other)), _multiply(right, _constant(by)), factor)
            by *= other
        return left, by

    def _product(self) -> tuple[_Polynomial, int]:
        left, by = self._unary()
        while sign := self._take("*", "/", "//", "%"):
            right, other = self._unary()
            if sign == "*":
                left, by = _multiply(left, right), by * other
            elif sign == "/":
                divisor = _as_constant(self._whole((right, other)))
                if divisor is None or divisor <= 0:
                    raise _NotAnExpressionError
                by *= divisor
            elif sign == "//":
                left, by = _floordiv(left, _multiply(self._whole((right, other)), _constant(by))), 1
            else:
                left, by = _mod(self._whole((left, by)), self._whole((right, other))), 1
        return left, by

    def _unary(self) -> tuple[_Polynomial, int]:
        negative = False
        while self._take("-"):
            negative = not negative
        value, by = self._power()
        return (_multiply(value, _constant(-1)), by) if negative else (value, by)

    def _power(self) -> tuple[_Polynomial, int]:
        base, by = self._primary()
        if self._take("**") is None:
            return base, by
        exponent = _as_constant(self._whole(self._primary()))
        if exponent is None or not 0 <= exponent <= _MAX_DEGREE:
            raise _NotAnExpressionError
        result = _constant(1)
        for _ in range(exponent):
            result = _multiply(result, base)
        return result, by**exponent

    def _primary(self) -> tuple[_Polynomial, int]:
        if self._next >= len(self._tokens):
            raise _NotAnExpressionError
        kind, text = self._tokens[self._next]
        self._next += 1
        if kind == "number":
            return _bounded(_constant(int(text))), 1
        if kind == "name":
            if self._take("("):
                return self._call(text), 1
            return _symbol(_name_of(text)), 1
        if text != "(":
            raise _NotAnExpressionError
        value = self._nested()
        self._expect(")")
        return value

    def _nested(self) -> tuple[_Polynomial, int]:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise TooComplexError
        value = self._sum()
        self._nesting -= 1
        return value

    def _call(self, name: str) -> _Polynomial:
        arguments = [self._nested()]
        while self._take(","):
            arguments.append(self._nested())
        self._expect(")")
        if name == "floor" and len(arguments) == 1:
            return _floordiv(arguments[0][0], _constant(arguments[0][1]))
        whole = [self._whole(argument) for argument in arguments]
        if name in {"max", "Max", "min", "Min"}:
            return _extremum(name.lower(), whole)
        if name in {"mod", "Mod"} and len(whole) == 2:
            return _mod(*whole)
        raise _NotAnExpressionError


@lru_cache(_CACHE)
def _parse(text: str) -> _Polynomial:
    if _IDENTIFIER.match(text):
        return {(text,): 1}
    if len(text) <= _MAX_TEXT:
        try:
            polynomial = _Parser(text).parse()
        except (_NotAnExpressionError, TooComplexError):
            return _symbol(text)
        if any(polynomial) and (len(polynomial) > 1 or not text.startswith("`")):
            return polynomial
    return _symbol(text)


def _polynomial(dim: Dim) -> _Polynomial:
    if isinstance(dim, int):
        return _constant(dim)
    if dim.value is None:
        raise TooComplexError
    return _parse(dim.value)


def _dim(polynomial: _Polynomial) -> Dim:
    value = _as_constant(polynomial)
    if value is not None:
        return value
    text = _text(polynomial)
    return _interned(_name_of(text) if len(polynomial) == 1 and (text,) in polynomial else text)


@lru_cache(_CACHE)
def _interned(text: str) -> ir.SymbolicDim:
    return ir.SymbolicDim(text)


# Bounds


def _lowest(polynomial: Mapping[_Monomial, int | Fraction], depth: int = 4) -> int | None:
    """An integer that the expression never falls below, or None."""
    best = _lowest_by_terms(polynomial, depth)
    if depth:
        for replaced in _relaxed(polynomial):
            candidate = _lowest(replaced, depth - 1)
            if candidate is not None and (best is None or candidate > best):
                best = candidate
    return best


def _lowest_by_terms(polynomial: Mapping[_Monomial, int | Fraction], depth: int) -> int | None:
    total = Fraction(0)
    for monomial, coefficient in polynomial.items():
        if coefficient < 0 and monomial:
            return None
        bound = 1
        for atom in monomial:
            low = _lowest_of_atom(atom, depth)
            if low is None or low < 0:
                return None
            bound *= low
        total += coefficient * bound
    return math.ceil(total)


def _lowest_of_atom(atom: str, depth: int) -> int | None:
    if atom not in _FUNCTIONS:
        return 0
    if depth == 0:
        return None
    name, arguments = _FUNCTIONS[atom]
    lows = [_lowest(argument, depth - 1) for argument in arguments]
    if name == "//":
        return 0 if lows[0] is not None and lows[0] >= 0 and lows[1] is not None and lows[1] >= 0 else None
    known = [low for low in lows if low is not None]
    if name == "max":
        return max(known, default=None)
    return min(known) if len(known) == len(lows) else None


def _relaxed(polynomial: Mapping[_Monomial, int | Fraction]) -> Iterable[dict[_Monomial, int | Fraction]]:
    """Expressions that are nowhere above this one, each with one atom less."""
    for monomial, coefficient in polynomial.items():
        if len(monomial) != 1 or monomial[0] not in _FUNCTIONS:
            continue
        name, arguments = _FUNCTIONS[monomial[0]]
        rest = {other: factor for other, factor in polynomial.items() if other != monomial}
        if name == "//":
            by = _as_constant(arguments[1])
            if by is None:
                continue
            slack = Fraction(1 - by, by) * coefficient if coefficient > 0 else Fraction(0)
            yield _shifted(rest, arguments[0], Fraction(coefficient) / by, slack)
            return
        if (name == "max") == (coefficient > 0):
            for argument in arguments:
                yield _shifted(rest, argument, Fraction(coefficient), Fraction(0))
            return


def _shifted(
    rest: Mapping[_Monomial, int | Fraction], by: _Polynomial, factor: Fraction, constant: Fraction
) -> dict[_Monomial, int | Fraction]:
    result = dict(rest)
    for monomial, coefficient in by.items():
        result[monomial] = result.get(monomial, 0) + factor * coefficient
    result[()] = result.get((), 0) + constant
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient}


@lru_cache(_CACHE)
def _known_lowest(text: str) -> int | None:
    try:
        return _lowest(_parse(text))
    except TooComplexError:
        return None


# What others call


def symbol(name: str) -> ir.SymbolicDim:
    """The dimension that a symbol stands for; the name may be any string and is never parsed."""
    dim = _dim(_symbol(name))
    assert isinstance(dim, ir.SymbolicDim)
    return dim


def fresh(hint: str) -> ir.SymbolicDim:
    """A symbol that no file has; the same hint gives the same symbol, so a hint names a value and an axis."""
    return _interned(INVENTED + hint)


def is_invented(dim: Dim) -> bool:
    """Whether the dimension is, or mentions, an invented symbol: such a dimension is written to files as unknown."""
    return not isinstance(dim, int) and dim.value is not None and INVENTED in dim.value


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
    if _IDENTIFIER.match(text):
        return _interned(text)
    try:
        return _dim(_parse(text))
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
    a = _constant(left) if isinstance(left, int) else _parse(left)
    b = _constant(right) if isinstance(right, int) else _parse(right)
    try:
        return _dim(_OPERATIONS[name](a, b))
    except TooComplexError:
        return UNKNOWN


_OPERATIONS: dict[str, Callable[[_Polynomial, _Polynomial], _Polynomial]] = {
    "+": _add,
    "-": lambda a, b: _add(a, b, -1),
    "*": _multiply,
    "//": _floordiv,
    "%": _mod,
    "max": lambda a, b: _extremum("max", (a, b)),
    "min": lambda a, b: _extremum("min", (a, b)),
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
        quotient = _divide(_polynomial(a), _polynomial(b))
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
    lowest = _known_lowest(a.value)
    return lowest is not None and lowest >= n


def vanishes_with(a: Dim, b: Dim) -> bool:
    """Whether ``a`` is provably 0 wherever ``b`` is, as ``N*M`` is with ``N``."""
    if isinstance(a, int) or isinstance(b, int):
        return a == 0 or (isinstance(b, int) and b != 0)
    if a.value is None or b.value is None:
        return False
    dividend, terms = _parse(a.value), _parse(b.value)
    if _divide(dividend, terms) is not None:
        return True
    if any(coefficient < 0 for coefficient in terms.values()) or any(
        (_lowest_of_atom(atom, 4) or 0) < 0 for monomial in terms for atom in monomial
    ):
        return False  # else b is 0 only where each of its terms is, and a term only where one of its atoms is
    return any(all(_divide(dividend, {(atom,): 1}) is not None for atom in monomial) for monomial in terms if monomial)


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


def factors(a: Dim) -> frozenset[str]:
    """The names of symbols that the expression is a multiple of: where it is not 0, none of them is."""
    if isinstance(a, int) or a.value is None:
        return frozenset()
    polynomial = _parse(a.value)
    common = frozenset.intersection(*(frozenset(monomial) for monomial in polynomial))
    return frozenset(_name_of(atom) for atom in common if atom not in _FUNCTIONS)


def same_shape(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Whether both shapes are known and provably the same."""
    return a is not None and b is not None and len(a) == len(b) and all(map(equal, a, b))


def is_capped(a: Dim, b: Dim, n: int) -> bool:
    """Whether ``a`` is provably the smaller of ``b`` and numbers >= n, as in ``min(512, b)``."""
    if isinstance(a, int) or isinstance(b, int) or a.value is None or b.value is None:
        return False
    parts = _parts("min", _parse(a.value))
    own = _parse(b.value)
    others = [part for part in parts if part != own]
    return 0 < len(others) == len(parts) - 1 and all((_lowest(part) or 0) >= n for part in others)


def symbols(dim: Dim) -> frozenset[str]:
    """The names of the symbols in the expression."""
    if isinstance(dim, int) or dim.value is None:
        return frozenset()
    found: set[str] = set()
    pending = [_parse(dim.value)]
    while pending:
        for monomial in pending.pop():
            for atom in monomial:
                if atom in _FUNCTIONS:
                    pending.extend(_FUNCTIONS[atom][1])
                else:
                    found.add(_name_of(atom))
    return frozenset(found)


def substitute(dim: Dim, mapping: Mapping[str, Dim]) -> Dim:
    """The expression with symbols replaced, all at once; symbols not in the mapping stay."""
    if isinstance(dim, int) or dim.value is None:
        return dim
    try:
        return _dim(_substituted(_parse(dim.value), {name: _polynomial(value) for name, value in mapping.items()}))
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

    def of(polynomial: _Polynomial) -> T:
        terms = [term(monomial, polynomial[monomial]) for monomial in sorted(polynomial, key=_order, reverse=True)]
        return functools.reduce(lambda a, b: operate("+", a, b), terms) if terms else number(0)

    def term(monomial: _Monomial, coefficient: int) -> T:
        factors = [atom(text) for text in monomial]
        if coefficient != 1 or not factors:
            factors.append(number(coefficient))
        return functools.reduce(lambda a, b: operate("*", a, b), factors)

    def atom(text: str) -> T:
        if text not in _FUNCTIONS:
            return symbol(_name_of(text))
        name, arguments = _FUNCTIONS[text]
        return functools.reduce(lambda a, b: operate(name, a, b), map(of, arguments))

    return of(_parse(dim.value))


def _substituted(polynomial: _Polynomial, mapping: Mapping[str, _Polynomial]) -> _Polynomial:
    result: _Polynomial = {}
    for monomial, coefficient in polynomial.items():
        term = _constant(coefficient)
        for atom in monomial:
            term = _multiply(term, _substituted_atom(atom, mapping))
        result = _add(result, term)
    return result


def _substituted_atom(atom: str, mapping: Mapping[str, _Polynomial]) -> _Polynomial:
    if atom not in _FUNCTIONS:
        return mapping.get(_name_of(atom), {(atom,): 1})
    name, arguments = _FUNCTIONS[atom]
    replaced = [_substituted(argument, mapping) for argument in arguments]
    return _floordiv(replaced[0], replaced[1]) if name == "//" else _extremum(name, replaced)
