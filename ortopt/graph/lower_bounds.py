"""Lower bounds of polynomials whose symbols are >= 0: what proves that one dimension is never below another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction

from ortopt.graph.polynomials import FUNCTIONS, Monomial, Polynomial, as_constant


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
        return max(known, default=None)
    return min(known) if len(known) == len(lows) else None


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


__all__ = ["lower_bound", "lower_bound_of_atom"]
