"""Polynomials with integer coefficients over atoms: what dimensions are inside (`ortopt.graph.symbolic`).

An atom is a symbol, a floor division, a maximum or a minimum of polynomials, and is kept as its text
(`ortopt.graph.expressions`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
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


def grows(polynomial: Polynomial) -> bool:
    """Whether the expression is, by its form, never smaller where a symbol is larger."""
    return all(factor > 0 and len(atoms) == 1 and _grows(atoms[0]) for atoms, factor in polynomial.items() if atoms)


def _grows(atom: str) -> bool:
    if atom not in FUNCTIONS:
        return True
    name, arguments = FUNCTIONS[atom]
    if name != "//":
        return all(map(grows, arguments))
    by = as_constant(arguments[1])
    return by is not None and by > 0 and grows(arguments[0])


def lower_bound(polynomial: Mapping[Monomial, int | Fraction], depth: int = 4) -> int | None:
    """An integer that the expression never falls below, or None."""
    best = _lower_bound_by_terms(polynomial, depth)
    if depth:
        for replaced in _relaxed(polynomial):
            candidate = lower_bound(replaced, depth - 1)
            if candidate is not None and (best is None or candidate > best):
                best = candidate
    return best


def _lower_bound_by_terms(polynomial: Mapping[Monomial, int | Fraction], depth: int) -> int | None:
    total = Fraction(0)
    for monomial, coefficient in polynomial.items():
        if coefficient < 0 and monomial:
            return None
        bound = 1
        for atom in monomial:
            low = lower_bound_of_atom(atom, depth)
            if low is None or low < 0:
                return None
            bound *= low
        total += coefficient * bound
    return math.ceil(total)


def lower_bound_of_atom(atom: str, depth: int) -> int | None:
    """An integer that an atom never falls below, or None where none is found within a depth of nesting."""
    if atom not in FUNCTIONS:
        return 0
    if depth == 0:
        return None
    name, arguments = FUNCTIONS[atom]
    lows = [lower_bound(argument, depth - 1) for argument in arguments]
    if name == "//":
        return 0 if lows[0] is not None and lows[0] >= 0 and lows[1] is not None and lows[1] >= 0 else None
    known = [low for low in lows if low is not None]
    if name == "max":
        return max([*known, *_bounds_of_means(arguments, depth - 1)], default=None)
    return min(known) if len(known) == len(lows) else None


def _bounds_of_means(parts: tuple[Polynomial, ...], depth: int) -> Iterable[int]:
    """What the greater of two never falls below, as it is at least each weighted mean of them.

    ``max(N, 8 - 8*N)`` is at least 1: 8 times its first part and once its second are 8 together, divided by 9.
    """
    if len(parts) != 2:
        return
    for first, second in (parts, parts[::-1]):
        weight = max(
            (Fraction(-coefficient, first[at]) for at, coefficient in second.items() if at and first.get(at, 0) > 0),
            default=Fraction(0),
        )
        if weight > 0:
            low = lower_bound(_shifted(second, first, weight, Fraction(0)), depth)
            if low is not None:
                yield math.ceil(low / (1 + weight))


def _relaxed(polynomial: Mapping[Monomial, int | Fraction]) -> Iterable[dict[Monomial, int | Fraction]]:
    """Expressions that are nowhere above this one, each with one atom less."""
    for monomial, coefficient in polynomial.items():
        if len(monomial) != 1 or monomial[0] not in FUNCTIONS:
            continue
        name, arguments = FUNCTIONS[monomial[0]]
        rest = {other: factor for other, factor in polynomial.items() if other != monomial}
        if name == "//":
            by = as_constant(arguments[1])
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
    rest: Mapping[Monomial, int | Fraction], by: Polynomial, factor: Fraction, constant: Fraction
) -> dict[Monomial, int | Fraction]:
    result = dict(rest)
    for monomial, coefficient in by.items():
        result[monomial] = result.get(monomial, 0) + factor * coefficient
    result[()] = result.get((), 0) + constant
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient}
