"""Backtracking: a match that may be read in several ways is written as if the right way were known.

A commutative node has two orders of operands, and which of them a pattern needs shows only further up the graph. So a
match asks `choose` for one of the alternatives and goes on. If it refuses later, `first_match`, which runs every match
of a rule, runs it again from the start: all choices but the last one that has alternatives left are made as before, and
that one gives its next alternative. This is depth-first search, with the path through the choices as its only state:

====================  =============================  =======================
attempt               ``choose([a, b])`` gives       ``choose([c, d])`` gives
====================  =============================  =======================
1                     a                              c
2                     a                              d
3                     b                              c
4                     b                              d
====================  =============================  =======================

The first attempt without a refusal is the match. Where all refuse, the user reads the reason of the first attempt,
which is the preferred reading. A match that never reaches a `choose` with two alternatives runs once, at no extra cost.

Few matches call `choose` themselves: `operand_from` and `operand_constant` of `ortopt.graph.match` do it for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import onnx_ir as ir

from ortopt.graph.refusal import Refusal

T = TypeVar("T")


class _Choices(threading.local):
    """Where a thread is in the tree of the alternatives of a match.

    Attributes:
        path: The alternative that each call of `choose` gives in this attempt, in the order of the calls.
        widths: How many alternatives each of these calls has.
        position: How many of the calls this attempt has made.
    """

    def __init__(self) -> None:
        self.path: list[int] = []
        self.position = 0
        self.widths: list[int] = []


_choices = _Choices()
MAX_ALTERNATIVES = 64
"""Attempts after the first one: a match with many choices one after the other has exponentially many."""


def choose(alternatives: Sequence[T]) -> T:
    """One of several alternatives; if the match refuses, it is run again with the next.

    Args:
        alternatives: At least one, in order of preference; the same ones whenever the choices before are the same.

    Returns:
        The alternative of this attempt.
    """
    if len(alternatives) == 1:
        return alternatives[0]
    state = _choices
    if state.position == len(state.path):
        state.path.append(0)
        state.widths.append(len(alternatives))
    chosen = state.path[state.position]
    state.position += 1
    return alternatives[chosen]


def first_match(match: Callable[[ir.Node], T], node: ir.Node) -> T:
    """Run a match over its alternatives (see `choose`) until an attempt holds.

    Args:
        match: The match of a rule: only questions, which change nothing, and give the same answers in each attempt.
        node: The node offered to it.

    Returns:
        The result of the first attempt that holds.

    Raises:
        Refusal: If none of `MAX_ALTERNATIVES` further attempts holds: the reason of the first, most preferred attempt.
    """
    state = _choices
    if state.path:
        state.path, state.widths = [], []
    state.position = 0
    try:
        return match(node)
    except Refusal as refusal:
        if not state.path:
            raise
        first = refusal
    try:
        for _ in range(MAX_ALTERNATIVES):
            while state.path and state.path[-1] + 1 >= state.widths[-1]:  # the last choice has been tried out: back up
                state.path.pop()
                state.widths.pop()
            if not state.path:
                break
            state.path[-1] += 1
            state.position = 0
            try:
                return match(node)
            except Refusal:
                continue
        raise first
    finally:
        state.path, state.widths, state.position = [], [], 0
