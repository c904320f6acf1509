"""Polynomials with integer coefficients over atoms: what dimensions are inside (`ortopt.graph.symbolic`).

An atom is a symbol, a floor division, a maximum or a minimum of polynomials, and is kept as its text
(`ortopt.graph.expressions`).
"""

from __future__ import annotations

from typing import TypeAlias

Monomial: TypeAlias = tuple[str, ...]  # texts of atoms, sorted; () is the constant
Polynomial: TypeAlias = dict[Monomial, int]  # no coefficient is 0; never changed once made

# Beyond these an expression is of no use and costs time (a hostile file can nest and multiply at will).
_MAX_TERMS = 24
MAX_DEGREE = 12
_MAX_COEFFICIENT = 2**63

FUNCTIONS: dict[str, tuple[str, tuple[Polynomial, ...]]] = {}
"""The function and the operands of each atom that is no symbol, by its text."""


class TooComplexError(Exception):
    """The expression exceeds the bounds above."""


def add(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
    """``a + factor * b``."""
    result = dict(a)
    for monomial, coefficient in b.items():
        total = result.get(monomial, 0) + factor * coefficient
        if total:
            result[monomial] = total
        else:
            result.pop(monomial, None)
    return bounded(result)


def multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    """``a * b``."""
    if len(a) * len(b) > _MAX_TERMS * _MAX_TERMS:
        raise TooComplexError
    result: Polynomial = {}
    for left, x in a.items():
        for right, y in b.items():
            monomial = tuple(sorted(left + right)) if left and right else left or right
            result[monomial] = result.get(monomial, 0) + x * y
    return bounded({monomial: coefficient for monomial, coefficient in result.items() if coefficient})


def bounded(polynomial: Polynomial) -> Polynomial:
    """The polynomial itself, if it is not too large."""
    if len(polynomial) > _MAX_TERMS:
        raise TooComplexError
    for monomial, coefficient in polynomial.items():
        if len(monomial) > MAX_DEGREE or abs(coefficient) > _MAX_COEFFICIENT:
            raise TooComplexError
    return polynomial


def constant(value: int) -> Polynomial:
    """The polynomial that is a number."""
    return {(): value} if value else {}


def as_constant(polynomial: Polynomial) -> int | None:
    """The number that a polynomial is, or None."""
    if not polynomial:
        return 0
    return polynomial.get(()) if len(polynomial) == 1 else None


def divide(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """The polynomial q with a == q * b, or None where there is none."""
    if not b:
        return None
    lead = max(b, key=order)
    rest, quotient = a, {}
    while rest:
        top = max(rest, key=order)
        factor = _without(top, lead)
        if factor is None or rest[top] % b[lead]:
            return None
        term = {factor: rest[top] // b[lead]}
        quotient.update(term)
        if len(quotient) > _MAX_TERMS:
            return None
        rest = add(rest, multiply(term, b), -1)
    return quotient


def order(monomial: Monomial) -> tuple[int, Monomial]:
    """Sorts monomials: a graded lexicographic order, compatible with multiplication."""
    return len(monomial), monomial


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


__all__ = [
    "FUNCTIONS",
    "MAX_DEGREE",
    "Monomial",
    "Polynomial",
    "TooComplexError",
    "add",
    "as_constant",
    "bounded",
    "constant",
    "divide",
    "multiply",
    "order",
]
