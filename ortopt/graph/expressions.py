"""Expressions in canonical form: polynomials over symbols, floor divisions, maxima and minima, and their text.

Symbols stand for integers >= 0. Equal expressions have the same text (`text_of`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from ortopt.graph.polynomials import (
    FUNCTIONS,
    Monomial,
    Polynomial,
    TooComplexError,
    add,
    as_constant,
    constant,
    divide,
    lower_bound,
    multiply,
)

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
