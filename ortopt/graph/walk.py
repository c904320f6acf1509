"""Questions about the graph behind a value, or before it, whose answers follow from answers about neighbours.

Such a question is a generator function. It yields what it needs an answer about (a value, a node, or a tuple that
begins with one), gets the answer, and returns its own, as if it called itself:

    def _is_positive(value: ir.Value) -> Question[ir.Value, bool]:
        node = value.producer()
        if not is_op(node, "Add", "Mul"):
            return is_op(node, "Exp")
        for operand in node.inputs:
            if operand is None or not (yield operand):
                return False
        return True

    walk(_is_positive, value, unknown=False)

A function that really called itself would take exponential time where paths meet again, as in ``And(a, a)`` of an
``And(b, b)``, and would exceed Python's recursion limit on a chain of a thousand nodes. Here each value is asked about
once, the pending questions are on a list, their number is bounded, and the run's cancellation token is asked. A refusal
is an answer too: it is raised where the answer is asked for.

What lies beyond the bound, and what a question leads back to while its own answer is still open (as a value that a Loop
carries), is answered by what the caller states as unknown. It must be an answer that claims nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Final, Generic, TypeAlias, TypeVar

import onnx_ir as ir

from ortopt.cancellation import BETWEEN_CHECKS, NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.refusal import Refusal

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")

Question: TypeAlias = Generator[K, A, A]
"""What a question returns: it yields what it needs answers about, is sent these, and returns its own answer."""

MAX_ASKED: Final = 512
"""How much is asked about for one answer: as much as the largest patterns have, and a few milliseconds of work."""

WHOLE_GRAPH: Final = sys.maxsize
"""The bound where all nodes of a graph are asked about and answers are kept: each node is asked about once in all."""


class _Pending(Generic[K, A]):
    """A question whose answer is still open.

    Attributes:
        about: What it is about.
        question: The question, which has asked or not begun.
        is_guess: Whether something that its answer rests on was taken for unknown.
    """

    __slots__ = ("about", "is_guess", "question")

    def __init__(self, about: K, question: Question[K, A]) -> None:
        self.about = about
        self.question = question
        self.is_guess = False


class Answers(Generic[K, A]):
    """The answers to one question, to be kept for as long as the graph stays as it is.

    Attributes:
        known: The answers, without refusals, and without those that rest on what was taken for unknown.
        refused: The refusals.
    """

    __slots__ = ("known", "refused")

    def __init__(self) -> None:
        self.known: dict[K, A] = {}
        self.refused: dict[K, Refusal] = {}


def walk(
    question: Callable[[K], Question[K, A]],
    about: K,
    *,
    unknown: A | Refusal,
    most: int = MAX_ASKED,
    answers: Answers[K, A] | None = None,
) -> A:
    """The answer to a question (see the module).

    Args:
        question: The question.
        about: A value, a node, or a tuple that begins with one.
        unknown: The answer where there is none; a refusal is raised.
        most: How much is asked about.
        answers: What is known already, and is added to; only ever of the same question.

    Raises:
        Refusal: If that is the answer.
        OptimizationCancelled: If the run on the model has been asked to stop.
    """
    if answers is None:
        answers = Answers()
    elif about in answers.known:
        return answers.known[about]
    refusal = answers.refused.get(about)
    if refusal is None:
        answer = _answer(question, about, unknown, most, answers)
        if not isinstance(answer, Refusal):
            return answer
        refusal = answer
        del answer
    try:
        raise refusal
    finally:
        del refusal  # what is raised holds this frame, which must not hold it


def each(asked: Iterable[K]) -> Generator[K, A, list[A]]:
    """What a question asks several things at a time by; a comprehension cannot yield."""
    answers: list[A] = []
    for about in asked:
        answers.append((yield about))  # noqa: PERF401
    return answers


def _answer(
    question: Callable[[K], Question[K, A]], start: K, unknown: A | Refusal, most: int, answers: Answers[K, A]
) -> A | Refusal:
    pending = [_Pending(start, question(start))]
    still_open = {start}
    guesses: dict[K, A | Refusal] = {}
    left, steps = most - 1, 0
    answer: A | Refusal | None = None  # what the last pending question gets: nothing to begin with
    while True:
        steps += 1
        if not steps % BETWEEN_CHECKS:
            _token(start).check()
        at = pending[-1]
        try:
            asked = _resumed(at.question, answer)
        except StopIteration as end:
            answer = end.value
        except Refusal as refusal:
            answer = refusal.with_traceback(None)  # its frames would hold everything
        else:
            if asked in answers.known:
                answer = answers.known[asked]
            elif asked in answers.refused:
                answer = answers.refused[asked]
            elif asked in guesses or asked in still_open or not left:
                answer = guesses.get(asked, unknown)
                at.is_guess = True
            else:
                left -= 1
                still_open.add(asked)
                pending.append(_Pending(asked, question(asked)))
                answer = None
            continue
        pending.pop()
        still_open.discard(at.about)
        if at.is_guess:
            guesses[at.about] = answer
        elif isinstance(answer, Refusal):
            answers.refused[at.about] = answer
        else:
            answers.known[at.about] = answer
        if not pending:
            return answer
        pending[-1].is_guess |= at.is_guess


def _resumed(question: Question[K, A], answer: A | Refusal | None) -> K:
    """What a question asks about next, once it has the answer to what it has asked."""
    if isinstance(answer, Refusal):
        return question.throw(answer)
    return question.send(answer)  # type: ignore[arg-type]  # None begins it


def _token(about: object) -> CancellationToken:
    """The token of the run that works on the model of a value, a node, or a tuple that begins with one."""
    at = about[0] if isinstance(about, tuple) else about
    graph = at.graph if isinstance(at, ir.Value | ir.Node) else None
    return scope.token_of(graph) if isinstance(graph, ir.Graph) else NEVER
