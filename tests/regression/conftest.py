from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from click.testing import CliRunner, Result

from ortopt import RewriteRule, registry
from ortopt.cli import check_run
from ortopt.cli.group import commands
from ortopt.graph.match import inputs
from ortopt.regression import latency, model_run
from ortopt.regression.pool import Job
from ortopt.rule import Forwarded
from ortopt.serialization.save import save
from ortopt.testing import parse
from tests.rules import with_passes

MODELS = {
    "gelu": """<ir_version: 8, opset_import: ["" : 17]> main (float[N,8] x) => (float[N,8] y)
        <float two = {1.4142135}, float one = {1.0}, float half = {0.5}> {
        d = Div (x, two) e = Erf (d) p = Add (e, one) m = Mul (x, p) y = Mul (m, half) }""",
    "relu": "main (float[N,8] x) => (float[N,8] y) { i = Identity (x) y = Relu (i) }",
    "abs": "main (float[N,8] x) => (float[N,8] y) { a = Abs (x) y = Exp (a) }",
}


class More(RewriteRule[Forwarded]):
    """Abs becomes Max of two."""

    roots = ("Abs",)

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Max", [found.value, ir.node("Neg", [found.value]).outputs[0]])


class Inexact(More):
    """Relu becomes almost the same."""

    roots = ("Relu",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("LeakyRelu", [found.value], {"alpha": 1.5e-6})


class Wrong(More):
    """Relu becomes Neg, which it is not."""

    roots = ("Relu",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Neg", [found.value])


class Failing(More):
    """Nothing becomes of it."""

    def rewrite(self, found: Forwarded) -> ir.Node:
        raise RuntimeError("it is broken")


class InProcess:
    """Runs jobs in this process, one after the other."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.ran: list[str] = []

    def run(self, jobs: Sequence[Job], done: Callable[..., None], begun: Callable[..., None]) -> None:
        for job in jobs:
            begun(job)
            self.ran.append(job.order["name"])
            done(job, model_run.run(job.order))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, models_run_here: None) -> None:
    """Models of ours are verified in this process; nothing is annotated, wherever tests run."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setattr(model_run, "_quiet_memory", model_run.memory.of_process)
    monkeypatch.setattr(latency, "attempts", lambda *_: lambda _: None)
    monkeypatch.setattr(model_run.start, "early", contextlib.nullcontext)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change which passes there are: some more, some fewer."""
    original = registry.installed()

    def change(*more: type, without: Sequence[str] = ()) -> None:
        changed = with_passes(more, original, without)
        monkeypatch.setattr(registry, "installed", lambda: changed)

    return change


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A folder with three models."""
    (tmp_path / "zoo").mkdir()
    for name, text in MODELS.items():
        save(parse(text), tmp_path / "zoo" / f"{name}.onnx")
    return tmp_path / "zoo"


@pytest.fixture
def check(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Run ``ortopt check`` in the folder above the zoo, models in this process."""
    monkeypatch.chdir(zoo.parent)
    monkeypatch.setattr(check_run, "Pool", InProcess)

    def invoke(*arguments: object, code: int = 0) -> Result:
        done = CliRunner().invoke(commands, ["check", *map(str, arguments)])
        assert done.exit_code == code, f"exit {done.exit_code}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    yield invoke
