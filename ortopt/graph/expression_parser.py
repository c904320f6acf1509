"""The parser of expressions: from the text of a dimension in a file to a polynomial."""

from __future__ import annotations

import re
from functools import lru_cache

from ortopt.graph.expressions import IDENTIFIER, MAX_TEXT, extremum, floordiv, mod, name_of, symbol
from ortopt.graph.polynomials import (
    MAX_DEGREE,
    Polynomial,
    TooComplexError,
    add,
    as_constant,
    bounded,
    constant,
    divide,
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
