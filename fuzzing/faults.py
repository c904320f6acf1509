"""Runs that are killed, cancelled, or in which a pass raises, at random instants.

``python -m fuzzing.faults`` kills 200 runs that replace a model with external data (`fuzzing.kills`), cancels 200
through the API, measures how late runs on 100,000 nodes stop (`fuzzing.latency`), and lets a pass raise in mid-edit
some thousand times.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir

from benchmarks.generators import GENERATORS
from fuzzing import latency
from fuzzing.kills import kill
from ortopt.api import Optimization, make_options, optimize
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError, OptimizationCancelled
from ortopt.graph.edit import Editor
from ortopt.graph.undo_log import UndoLog
from ortopt.observers import Observer
from ortopt.options import Options
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.transformer import GraphTransformer


def _options(**values: Any) -> Options:
    return make_options(**{"strict": True} | values)


# -- cancellation -----------------------------------------------------------------------------------------------------


class _CancelsAt(Observer):
    """Counts what happens in a run, and sets a token when so much has happened."""

    listens_to_refusals = True
    decides = False

    def __init__(self, at: int, token: CancellationToken) -> None:
        self._at = at
        self._token = token
        self.count = 0

    def _happened(self) -> None:
        self.count += 1
        if self.count == self._at:
            self._token.cancel()

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        self._happened()

    def after(self, entry: object, graph: ir.Graph) -> None:
        self._happened()

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        self._happened()
        return True

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        self._happened()

    def refused(self, transformer: GraphTransformer, node: ir.Node, reason: str) -> None:
        self._happened()


@dataclasses.dataclass
class Cancellations:
    """What became of runs that were cancelled.

    Attributes:
        cancelled: Runs that stopped.
        finished: Runs that were over before.
        rewrites: How many different numbers of rewrites they had completed.
        wrong: What must not be, in words.
    """

    cancelled: int = 0
    finished: int = 0
    rewrites: set[int] = dataclasses.field(default_factory=set)
    wrong: list[str] = dataclasses.field(default_factory=list)


def cancel(
    source: bytes, count: int, seed: int, same: Callable[[bytes], str] = lambda _: "", *, threads: bool = True
) -> Cancellations:
    """Cancel runs on a model: at an event that an observer sees, or (every second one) at an instant, by a thread.

    Each result must be valid, and to the byte what a run makes that is allowed as many rewrites as had completed.

    Args:
        source: The model.
        count: How many runs.
        seed: When they are cancelled.
        same: What makes a result differ from the original; empty if nothing does. Asked once for equal results.
        threads: Whether threads cancel too: what they hit differs from run to run.
    """
    draw, result = random.Random(seed), Cancellations()
    counter = _CancelsAt(0, CancellationToken())
    started = time.perf_counter()
    optimize(source, verify=False, observers=[counter])
    seconds = time.perf_counter() - started
    judge = functools.cache(same)
    limited = functools.cache(lambda limit: to_bytes(optimize(source, verify=False, limit=limit).model))
    for number in range(count):
        token = CancellationToken()
        at, delay = draw.randint(1, counter.count), draw.uniform(0, seconds)
        by_thread = threads and number % 2 == 1
        timer = threading.Timer(delay, token.cancel)
        where = f"after {delay:.3f} s" if by_thread else f"at event {at}"
        if by_thread:
            timer.start()
        try:
            observers = [_CancelsAt(0 if by_thread else at, token)]
            optimize(source, verify=False, observers=observers, cancellation=token)
        except OptimizationCancelled as cancelled:
            reached = cancelled.result
        else:
            result.finished += 1
            continue
        finally:
            timer.cancel()
        result.cancelled += 1
        if reached is None:
            continue  # nothing had been loaded
        validate(reached.model)
        made, offered = to_bytes(reached.model), reached.summary.rewrites
        result.rewrites.add(offered)
        if made not in (limited(offered), limited(max(offered - 1, 0))):
            result.wrong.append(f"cancelled {where}: it holds something else than the {offered} rewrites offered")
        if difference := judge(made):
            result.wrong.append(f"cancelled {where}: {difference}")
    return result


# -- a pass that raises -----------------------------------------------------------------------------------------------


class Raised(Exception):  # noqa: N818 -- no error of anybody's
    """What a pass raises here."""


@dataclasses.dataclass
class Rollbacks:
    """What became of runs in which a pass raised.

    Attributes:
        raised: How often each transformer raised.
        wrong: What must not be, in words.
    """

    raised: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)


class _Raiser(Observer):
    """Lets the n-th change of a graph raise, and sees whether everything is taken back."""

    decides = False

    def __init__(self, at: int, token: CancellationToken, watch: int) -> None:
        self.at = at
        self.watch = watch
        self.count = 0
        self.run = 0
        self.authors: list[tuple[str, int]] = []  # of each change: whose, and during which run
        self.kept: bytes | None = None
        self.failure = ""
        self.verdict = "it did not fail"
        self.model: Callable[[], ir.Model] | None = None
        self._token = token

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        self.run += 1
        if self.run == self.watch and self.model is not None:
            self.kept = to_bytes(self.model())

    def failed(self, transformer: GraphTransformer, graph: ir.Graph, reason: str) -> None:
        if "Raised" not in reason or self.model is None:
            self.verdict = f"{transformer.name} failed for another reason: {reason}"
        else:
            self.failure = transformer.name
            self.verdict = "" if to_bytes(self.model()) == self.kept else f"{transformer.name} was not taken back whole"
        self._token.cancel()

    def changed(self, editor: Editor) -> None:
        """Called after each change."""
        self.count += 1
        if self.at == 0:
            self.authors.append((editor.author, self.run))
        elif self.count == self.at:
            raise Raised


@contextmanager
def _watched(raiser: _Raiser) -> Iterator[None]:
    """Let a raiser hear of every change, in the midst of the editor's methods as well as between them."""
    begin, record, reinfer = Editor.__init__, UndoLog.record, Editor.reinfer
    editors: dict[UndoLog, Editor] = {}
    learning = False

    def begun(self: Editor, *arguments: Any) -> None:
        begin(self, *arguments)
        editors[self._log] = self

    def recorded(self: UndoLog, undo: Callable[..., None], *arguments: Any) -> None:
        record(self, undo, *arguments)
        if not learning:  # that is between two passes, and nobody's
            raiser.changed(editors[self])

    def learned(self: Editor, infer: Callable[[ir.Node], None], token: CancellationToken = NEVER) -> bool:
        nonlocal learning
        learning = True
        try:
            return reinfer(self, infer, token)
        finally:
            learning = False

    Editor.__init__ = begun  # type: ignore[assignment, method-assign]
    UndoLog.record = recorded  # type: ignore[method-assign]
    Editor.reinfer = learned  # type: ignore[method-assign]
    try:
        yield
    finally:
        Editor.__init__, UndoLog.record = begin, record  # type: ignore[method-assign]
        Editor.reinfer = reinfer  # type: ignore[method-assign]


def _run_with(source: bytes, raiser: _Raiser, token: CancellationToken, level: int) -> None:
    run = Optimization(source, _options(level=level, strict=False), observers=[raiser], cancellation=token)
    raiser.model = lambda: run.model
    with _watched(raiser):
        try:
            run.transform()
        except OptimizationCancelled:
            pass
        except Exception as error:
            raiser.verdict = f"{type(error).__name__}: {error}"


def let_raise(source: bytes, each: int, seed: int, level: int = 4) -> Rollbacks:
    """Let each pass that has something to do on a model raise after some of its changes, in mid-edit.

    The model must then be as it was before that pass, to the byte.

    Args:
        source: The model.
        each: How often each pass raises.
        seed: When.
        level: The level.
    """
    draw, result = random.Random(seed), Rollbacks()
    quiet = _Raiser(0, CancellationToken(), 0)
    _run_with(source, quiet, CancellationToken(), level)
    by_author: dict[str, list[int]] = {}
    for number, (author, _) in enumerate(quiet.authors, 1):
        by_author.setdefault(author, []).append(number)
    for author, numbers in sorted(by_author.items()):
        for at in sorted(draw.sample(numbers, min(each, len(numbers)))):
            token = CancellationToken()
            raiser = _Raiser(at, token, quiet.authors[at - 1][1])
            _run_with(source, raiser, token, level)
            result.raised[raiser.failure or author] += 1
            if raiser.verdict:
                result.wrong.append(f"change {at}, by {author}: {raiser.verdict}")
    return result


# -- all of it --------------------------------------------------------------------------------------------------------


@contextmanager
def difference(source: bytes) -> Iterator[Callable[[bytes], str]]:
    """What tells, in words, how another model's outputs differ from a model's; the empty text if they do not."""
    from ortopt.verification.verify import Reference

    with Reference(load(source)) as reference:

        def differs(made: bytes) -> str:
            outcome = reference.compare(load(made))
            return "" if outcome.status == "verified" else f"{outcome.status}: {outcome.reason}"

        yield differs


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, cancel, measure and raise; 1 if anything is wrong.

    Args:
        arguments: The command line; the process's own if None.
    """
    parser = argparse.ArgumentParser(prog="python -m fuzzing.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200, help="how many kills, and how many cancellations")
    parser.add_argument("--models", type=int, default=200, help="how many drawn models passes raise on")
    parser.add_argument("--nodes", type=int, default=100_000, help="the size of the graphs whose latency is measured")
    parser.add_argument(
        "--verified", type=int, default=10, help="how many runs on each are cancelled with verification"
    )
    options = parser.parse_args(arguments)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ortopt-faults-") as folder:
        kills = kill(options.count, options.seed, Path(folder), say=print)
    wrong += kills.wrong
    print(
        f"{kills.killed} runs killed, {kills.saving} of them while they wrote; {kills.littered} left files behind;"
        f" the output was {kills.old} times the old model, {kills.new} times the new one"
    )
    wrong += _cancel_some(options.count, options.seed)
    for shape in GENERATORS:
        wrong += latency.measure(shape, options.nodes, gap=0.4, verified=options.verified, seed=options.seed)
    wrong += _raise_some(options.models, options.seed)
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def _cancel_some(count: int, seed: int) -> list[str]:
    from ortopt import zoo

    names = ("bert_small__dyn20raw", "control_flow__script17", "resnet18_qdq__qdq", "lstm_tagger__ts13")
    wrong: list[str] = []
    for name in names:
        source = zoo.cached(name).read_bytes()
        with difference(source) as same:
            done = cancel(source, count // len(names), seed, same)
        print(f"{name}: {done.cancelled} runs cancelled, with {len(done.rewrites)} different numbers of rewrites")
        wrong += [f"{name}: {line}" for line in done.wrong]
    return wrong


def _raise_some(models: int, seed: int) -> list[str]:
    from fuzzing.campaign import case_of

    total, wrong, refused = Rollbacks(), [], 0
    for number in range(models):
        source = case_of(seed + number).model.SerializeToString()
        try:
            done = let_raise(source, 3, number)
        except InvalidModelError:  # a type that the op does not take; no pass sees such a model
            refused += 1
            continue
        total.raised += done.raised
        wrong += [f"drawn model {seed + number}: {line}" for line in done.wrong]
    raised = dict(total.raised.most_common())
    print(f"passes raised {total.raised.total()} times on {models - refused} drawn models: {raised}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
