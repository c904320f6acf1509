"""Expressions in canonical form: polynomials over symbols, floor divisions, maxima and minima, and their text.

Symbols stand for integers >= 0. Equal expressions have the same text (`text_of`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from ortopt.graph.polynomials import (
    FUNCTIONS,
    MAX_DEGREE,
    Monomial,
    Polynomial,
    TooComplexError,
    add,
    as_constant,
    bounded,
    constant,
    divide,
    lower_bound,
    multiply,
)

_MAX_NESTING = 24
_CACHE = 1 << 16

_TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]+)|(?P<name>[^\W\d][\w.]*|`(?:[^`]|``)*`)|(?P<sign>//|\*\*|[-+*/%(),]))")

_QUOTED = re.compile(r"`(?:[^`]|``)*`")
"""A name in quotes and nothing else: a symbol is written so only among others, so that these quotes are the name's."""


class _NotAnExpressionError(Exception):
    """The text is not in the grammar."""


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

    def parse(self) -> Polynomial:
        polynomial = self._whole(self._sum())
        if self._next != len(self._tokens):
            raise _NotAnExpressionError
        return polynomial

    @staticmethod
    def _whole(value: tuple[Polynomial, int]) -> Polynomial:
        polynomial, divisor = value
        if divisor == 1:
            return polynomial
        exact = divide(polynomial, constant(divisor))
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

    def _sum(self) -> tuple[Polynomial, int]:
        left, by = self._product()
        while sign := self._take("+", "-"):
            right, other = self._product()
            factor = 1 if sign == "+" else -1
            left = add(multiply(left, constant(other)), multiply(right, constant(by)), factor)
            by *= other
        return left, by

    def _product(self) -> tuple[Polynomial, int]:
        left, by = self._unary()
        while sign := self._take("*", "/", "//", "%"):
            right, other = self._unary()
            if sign == "*":
                left, by = multiply(left, right), by * other
            elif sign == "/":
                divisor = as_constant(self._whole((right, other)))
                if divisor is None or divisor <= 0:
                    raise _NotAnExpressionError
                by *= divisor
            elif sign == "//":
                left, by = floordiv(left, multiply(self._whole((right, other)), constant(by))), 1
            else:
                left, by = mod(self._whole((left, by)), self._whole((right, other))), 1
        return left, by

    def _unary(self) -> tuple[Polynomial, int]:
        negative = False
        while self._take("-"):
            negative = not negative
        value, by = self._power()
        return (multiply(value, constant(-1)), by) if negative else (value, by)

    def _power(self) -> tuple[Polynomial, int]:
        base, by = self._primary()
        if self._take("**") is None:
            return base, by
        exponent = as_constant(self._whole(self._primary()))
        if exponent is None or not 0 <= exponent <= MAX_DEGREE:
            raise _NotAnExpressionError
        result = constant(1)
        for _ in range(exponent):
            result = multiply(result, base)
        return result, by**exponent

    def _primary(self) -> tuple[Polynomial, int]:
        if self._next >= len(self._tokens):
            raise _NotAnExpressionError
        kind, text = self._tokens[self._next]
        self._next += 1
        if kind == "number":
            return bounded(constant(int(text))), 1
        if kind == "name":
            if self._take("("):
                return self._call(text), 1
            return symbol(name_of(text)), 1
        if text != "(":
            raise _NotAnExpressionError
        value = self._nested()
        self._expect(")")
        return value

    def _nested(self) -> tuple[Polynomial, int]:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise TooComplexError
        value = self._sum()
        self._nesting -= 1
        return value

    def _call(self, name: str) -> Polynomial:
        arguments = [self._nested()]
        while self._take(","):
            arguments.append(self._nested())
        self._expect(")")
        if name == "floor" and len(arguments) == 1:
            return floordiv(arguments[0][0], constant(arguments[0][1]))
        whole = [self._whole(argument) for argument in arguments]
        if name in {"max", "Max", "min", "Min"}:
            return extremum(name.lower(), whole)
        if name in {"mod", "Mod"} and len(whole) == 2:
            return mod(*whole)
        raise _NotAnExpressionError


@lru_cache(_CACHE)
def parse(text: str) -> Polynomial:
    """The polynomial that a text is; a text that is no expression, or is too long, is one opaque symbol."""
    if IDENTIFIER.match(text):
        return {(text,): 1}
    if len(text) <= MAX_TEXT:
        try:
            polynomial = _Parser(text).parse()
        except (_NotAnExpressionError, TooComplexError):
            return symbol(text)
        if any(polynomial) and not _QUOTED.fullmatch(text):
            return polynomial
    return symbol(text)


MAX_TEXT = 400
"""Letters of a canonical text; a longer expression is of no use and costs time."""

IDENTIFIER = re.compile(r"[^\W\d][\w.]*\Z")


def floordiv(a: Polynomial, b: Polynomial) -> Polynomial:
    """``a / b`` rounded down."""
    divisor = as_constant(b)
    if divisor == 0:
        raise TooComplexError
    if divisor is not None:
        return _floordiv_by_constant(a, divisor)
    exact = divide(a, b)
    if exact is not None:
        return exact
    return {(_function("//", (a, b)),): 1}


def _floordiv_by_constant(a: Polynomial, divisor: int) -> Polynomial:
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
        return add(add(whole, rest), constant(shift))
    inner = _nested_division(rest)
    if inner is not None:  # floor((floor(x / b) + k) / c) is floor((x + k * b) / (b * c))
        numerator, by = inner
        return add(whole, _floordiv_by_constant(add(numerator, constant(shift * by)), divisor * by))
    atom = _function("//", (add(rest, constant(shift)), constant(divisor)))
    return add(whole, {(atom,): 1})


def _nested_division(polynomial: Polynomial) -> tuple[Polynomial, int] | None:
    if len(polynomial) != 1:
        return None
    ((monomial, coefficient),) = polynomial.items()
    if coefficient != 1 or len(monomial) != 1 or monomial[0] not in FUNCTIONS:
        return None
    name, arguments = FUNCTIONS[monomial[0]]
    by = as_constant(arguments[1]) if name == "//" else None
    return None if by is None else (arguments[0], by)


def mod(a: Polynomial, b: Polynomial) -> Polynomial:
    """``a - b * (a // b)``."""
    return add(a, multiply(b, floordiv(a, b)), -1)


def extremum(name: str, arguments: Iterable[Polynomial]) -> Polynomial:
    """The greatest (``max``) or the smallest (``min``) of polynomials."""
    flat: dict[str, Polynomial] = {}
    for argument in arguments:
        for part in parts(name, argument):
            flat[text_of(part)] = part
    kept: list[Polynomial] = []
    for part in (flat[text] for text in sorted(flat)):
        if any(_dominates(name, other, part) for other in kept):
            continue
        kept = [other for other in kept if not _dominates(name, part, other)]
        kept.append(part)
    if len(kept) == 1:
        return kept[0]
    return {(_function(name, tuple(kept)),): 1}


def parts(name: str, argument: Polynomial) -> Sequence[Polynomial]:
    """The operands of a polynomial that is a ``max`` or a ``min``, as the name says; else the polynomial itself."""
    if len(argument) == 1:
        ((monomial, coefficient),) = argument.items()
        if coefficient == 1 and len(monomial) == 1 and FUNCTIONS.get(monomial[0], ("",))[0] == name:
            return FUNCTIONS[monomial[0]][1]
    return (argument,)


def _dominates(name: str, winner: Polynomial, loser: Polynomial) -> bool:
    difference = add(winner, loser, -1) if name == "max" else add(loser, winner, -1)
    bound = lower_bound(difference)
    return bound is not None and bound >= 0


def _function(name: str, arguments: tuple[Polynomial, ...]) -> str:
    if name == "//":
        text = f"{_operand(arguments[0])}//{_operand(arguments[1])}"
    else:
        text = f"{name}({', '.join(sorted(map(text_of, arguments)))})"
    if len(text) > MAX_TEXT:
        raise TooComplexError
    FUNCTIONS[text] = (name, arguments)
    return text


def _operand(polynomial: Polynomial) -> str:
    text = text_of(polynomial)
    simple = len(polynomial) == 1 and (text.isdigit() or text in _symbols_of(polynomial))
    return text if simple else f"({text})"


def _symbols_of(polynomial: Polynomial) -> set[str]:
    return {atom for monomial in polynomial for atom in monomial if atom not in FUNCTIONS}


def text_of(polynomial: Polynomial) -> str:
    """The canonical text: the same for equal polynomials."""
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
    if len(text) > MAX_TEXT:
        raise TooComplexError
    return text


def _factors(monomial: Monomial) -> list[str]:
    factors = []
    for atom in dict.fromkeys(monomial):
        text = f"({atom})" if FUNCTIONS.get(atom, ("",))[0] == "//" else atom
        power = monomial.count(atom)
        factors.append(text if power == 1 else f"{text}**{power}")
    return factors


def symbol(name: str) -> Polynomial:
    """The polynomial that is a symbol; one that is no identifier is written between backquotes."""
    atom = name if IDENTIFIER.match(name) else "`" + name.replace("`", "``") + "`"
    return {(atom,): 1}


def name_of(atom: str) -> str:
    """The name of a symbol from its text as an atom."""
    return atom[1:-1].replace("``", "`") if atom.startswith("`") else atom


def substituted(polynomial: Polynomial, mapping: Mapping[str, Polynomial]) -> Polynomial:
    """The polynomial with symbols replaced, all at once, by name."""
    result: Polynomial = {}
    for monomial, coefficient in polynomial.items():
        term = constant(coefficient)
        for atom in monomial:
            term = multiply(term, _substituted_atom(atom, mapping))
        result = add(result, term)
    return result


def _substituted_atom(atom: str, mapping: Mapping[str, Polynomial]) -> Polynomial:
    if atom not in FUNCTIONS:
        return mapping.get(name_of(atom), {(atom,): 1})
    name, arguments = FUNCTIONS[atom]
    replaced = [substituted(argument, mapping) for argument in arguments]
    return floordiv(replaced[0], replaced[1]) if name == "//" else extremum(name, replaced)
