"""Whoever makes a rewrite, and however: it is announced once, stays when a run is stopped, and counts only if made.

The examples are those that the tests of each pass rewrite.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import onnx_ir as ir
import pytest

from ortopt import registry
from ortopt.cancellation import CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.graph import scope
from ortopt.graph.edit import Conflict, Editor, TooLarge
from ortopt.manager import GraphTransformerManager
from ortopt.observers import Observer
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import all_fusions, parse
from ortopt.transformer import Context, GraphTransformer
from tests.all_passes.pass_examples import WHOLE_RUNS, examples

ROOT = Path(__file__).parents[2]
PASSES = [kind.name for kind in registry.installed() if kind.name]
MAX_EXAMPLES = 4

BY_THEMSELVES = {
    "dead_node_elimination", "control_flow_output_elimination", "optional_output_elimination", "ensure_unique_dq",
    "loop_invariant_code_motion", "opset_conversion", "loop_carried_elimination", "group_fusion",
}  # fmt: skip
"""Those that edit otherwise than by replacing values, too: they need not end where no value can be replaced."""

MORE: dict[str, list[tuple[str, int]]] = {
    "opset_conversion": [
        (
            """main (float[N,8] x, float[8] s) => (float[N,8] y) <float eps = {0.00001}> {
            q = Mul (x, x) v = ReduceMean <axes = [-1]> (q) w = Add (v, eps) r = Sqrt (w) u = Div (x, r)
            t = Mul (s, u) y = Relu (t) }""",
            13,
        )
    ],
}
"""Examples, each with its opset, of passes whose tests run whole levels."""


class Announced(Observer):
    """Writes down what was offered, accepted and announced.

    Args:
        token: Cancelled at the first announcement; nothing is if None.
        most: So many offers are accepted.
    """

    listens_to_refusals = True

    def __init__(self, token: CancellationToken | None = None, most: int | None = None) -> None:
        self.token = token
        self.most = most
        self.offered: list[int] = []
        self.announced: list[int] = []
        self.refused_reasons: list[str] = []
        self.rewrites = 0
        self.at_first: list[tuple[str, str]] | None = None
        self.model: ir.Model | None = None

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        if self.most is not None and number > self.most:
            return False
        self.offered.append(number)
        return True

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        assert all(node.graph is not None for node in nodes)
        self.announced.append(number)
        if self.token is not None and self.at_first is None:
            assert self.model is not None
            self.at_first = what_is_there(self.model)
            self.token.cancel()

    def refused(self, transformer: GraphTransformer, node: ir.Node, reason: str) -> None:
        self.refused_reasons.append(reason)

    def after(self, entry: Any, graph: ir.Graph) -> None:
        self.rewrites += entry.rewrites


def what_is_there(model: ir.Model) -> list[tuple[str, str]]:
    """The nodes of a model, in no order: a run that was stopped still puts them into one."""
    return sorted((node.op_type, node.outputs[0].name or "") for graph in scope.graphs(model) for node in graph)


class Case(NamedTuple):
    """An example of a pass, with how it is run."""

    name: str
    content: bytes
    level: int
    options: Options

    def run(self, observer: Announced) -> ir.Model:
        """The example after a run of its pass alone; if that is cancelled, as it was then."""
        model = observer.model = load(self.content)
        manager = GraphTransformerManager(options=self.options, observers=[observer])
        manager.register(registry.installed().find(self.name)(), self.level)
        with contextlib.suppress(OptimizationCancelled):
            manager.apply_transformers(model, self.level, cancellation=observer.token)
        return model


def cases(name: str) -> Iterator[Case]:
    kind = registry.installed().find(name)
    for model, more in examples(name)[:MAX_EXAMPLES]:
        options = more.get("options") or all_fusions(more.get("target", "ort"))
        yield Case(name, to_bytes(load(model)), int(more.get("level") or kind.levels[0]), options)
    for text, opset in MORE.get(name, []):
        yield Case(name, to_bytes(parse(text, opset)), int(kind.levels[0]), all_fusions())


@pytest.mark.parametrize("name", PASSES)
def test_rewrites(name: str) -> None:
    """One test of all that is asked of an example: most of the time goes into what the questions have in common."""
    rewritten = 0
    for case in cases(name):
        observer = Announced()
        result = to_bytes(case.run(observer))
        check_each_is_announced_once_and_counted_once(observer)
        if observer.announced:  # some examples need other passes before
            rewritten += 1
            untouched = to_bytes(case.run(Announced(most=0)))
            assert result != untouched, "what was announced has changed nothing"
            check_a_run_that_is_cancelled_keeps_what_was_announced(case)
            for reason in (Conflict("somebody is against it"), TooLarge(7)):
                check_what_is_refused_counts_nothing(case, reason, untouched)
    assert rewritten or (name in WHOLE_RUNS and name not in MORE), "nothing was rewritten"


def check_each_is_announced_once_and_counted_once(observer: Announced) -> None:
    assert len(set(observer.announced)) == len(observer.announced), "one was announced twice"
    assert set(observer.announced) <= set(observer.offered), "what was announced has never been accepted"
    assert observer.rewrites == len(observer.announced), "what is counted is not what was announced"


def check_a_run_that_is_cancelled_keeps_what_was_announced(case: Case) -> None:
    observer = Announced(CancellationToken())
    model = case.run(observer)
    assert observer.at_first is not None
    assert observer.at_first == what_is_there(model)


def check_what_is_refused_counts_nothing(case: Case, reason: Conflict, untouched: bytes) -> None:
    def against(*_: object, **__: object) -> None:
        raise reason

    observer = Announced()
    with mock.patch.object(Editor, "replace", against):
        model = case.run(observer)
    assert observer.rewrites == len(observer.announced)
    assert bool(observer.announced) == (to_bytes(model) != untouched), "what changes a model announces it"
    if case.name not in BY_THEMSELVES:
        assert observer.rewrites == 0
        assert any(str(reason) in told for told in observer.refused_reasons)


# -- the door ---------------------------------------------------------------------------------------------------------

BEHIND_THE_DOOR = {name for name in vars(Context) if name.startswith("_") and not name.startswith("__")} | {
    "_workspace", "_observers", "_rewrites", "_mark", "_open", "_new", "_changing",
}  # fmt: skip
GONE = {"rewrite", "rewrites", "mark", "observers", "workspace"}
PACKAGES = ("transformers", "ortopt/partition", "ortopt/transpose", "ortopt/patterns", "ortopt/opset_conversion")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
FILES += [ROOT / "ortopt" / "adapters.py"]
BATCHES = {"constant_folding.py", "group_fusion.py"}
"""Who must know of many changes whether they may be, before the first is made."""


def is_context(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "context") or (
        isinstance(node, ast.Attribute) and node.attr in {"context", "_context"}
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_passes_make_rewrites_by_the_door_alone(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and is_context(node.value):
            where = f"{path.name}:{node.lineno}: context.{node.attr}"
            assert node.attr not in BEHIND_THE_DOOR | GONE, where
            assert node.attr != "offer" or path.name in BATCHES, where


def test_the_check_knows_what_it_looks_for() -> None:
    assert {"_make", "_complete", "_drop", "_begin", "_end"} <= BEHIND_THE_DOOR
    assert not GONE & vars(Context).keys()
