from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from click.testing import CliRunner, Result

from ortopt import Context, GraphTransformer, Numerics, RewriteRule, TransformerLevel, registry
from ortopt.cli.group import commands
from ortopt.graph.edit import constant
from ortopt.graph.match import inputs
from ortopt.rule import Forwarded
from ortopt.serialization.save import save
from ortopt.testing import parse
from tests.rules import with_passes

MODEL = """
main (float[N,8] x) => (float[N,4] y, float[N,8] r) <float[8,4] w, float[4] b> {
    i = Identity (x)
    m = MatMul (i, w)
    y = Add (m, b)
    j = Identity (x)
    r = Relu (j)
}"""


class WrongNumbers(RewriteRule[Forwarded]):
    """Relu becomes Neg, which it is not."""

    enabled = False
    roots = ("Relu",)

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Neg", [found.value])


class Contrib(WrongNumbers):
    """Relu becomes an op of ONNX Runtime's own, twice as a level and as many times."""

    levels = (TransformerLevel.LEVEL2, TransformerLevel.LEVEL3)
    produces = (("com.microsoft", "QuickGelu"),)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("QuickGelu", [found.value], domain="com.microsoft")


class Approximation(WrongNumbers):
    """Relu becomes HardSwish, more or less."""

    enabled = True
    numerics = Numerics.APPROXIMATE

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("HardSwish", [found.value])


class Inflation(WrongNumbers):
    """Relu becomes an addition of 2 MB of zeros."""

    def rewrite(self, found: Forwarded) -> ir.Node:
        pile = ir.node("Add", [found.value, constant([[0.0] * 8] * 62500)])
        return ir.node("Slice", [pile.outputs[0], constant([0]), constant([1])])


class Failure(GraphTransformer):
    """Nothing becomes of it."""

    enabled = False

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        raise RuntimeError("it is broken\x1b[31m\nand says so in two lines")


class PingPong(WrongNumbers):
    """Relu becomes Neg becomes Relu."""

    roots = ("Relu", "Neg")

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Neg" if found.nodes[0].op_type == "Relu" else "Relu", [found.value])


class Alternate(GraphTransformer):
    """Relu becomes Neg in one step, Neg becomes Relu in the next."""

    enabled = False
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        for node in list(graph):
            if node.op_type in {"Relu", "Neg"} and context.offer([node]):
                new = ir.node("Neg" if node.op_type == "Relu" else "Relu", list(node.inputs))
                context.replace({node.outputs[0]: new.outputs[0]}, node, [node])
                return True
        return False


class Endless(GraphTransformer):
    """Goes round and round, and asks nobody."""

    enabled = False

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        number = 0
        while True:
            number += 1


class Renames(GraphTransformer):
    """Gives the first output another name."""

    enabled = False

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        if graph.outputs[0].name == "renamed":
            return False
        context.edit.rename(graph.outputs[0], "renamed")
        return True


class WrongOnce(WrongNumbers):
    """Abs becomes Neg, which is right of what is negative."""

    roots = ("Abs",)


EXTRA = (WrongNumbers, Contrib, Approximation, Inflation, Failure, PingPong, Alternate, Endless, Renames, WrongOnce)


@pytest.fixture(scope="session")
def _with_more_passes() -> registry.Registry:
    return with_passes(EXTRA)


@pytest.fixture(autouse=True)
def _more_passes(monkeypatch: pytest.MonkeyPatch, _with_more_passes: registry.Registry) -> None:
    """Passes that do what no pass of ours does; all off unless asked for."""
    monkeypatch.setattr(registry, "installed", lambda: _with_more_passes)


@pytest.fixture(autouse=True)
def _quick(models_run_here: None) -> None:
    """Nothing here is about how models are run, but for what is marked so."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of five nodes, with an Add that becomes a Gemm and two Identities that go."""
    import numpy as np

    rng = np.random.default_rng(0)
    made = parse(
        MODEL.replace("<float[8,4] w, float[4] b>", "").replace(
            "(float[N,8] x)", "(float[N,8] x, float[8,4] w, float[4] b)"
        )
    )
    graph = made.graph
    for value, shape in zip(list(graph.inputs)[1:], ((8, 4), (4,)), strict=True):
        value.const_value = ir.tensor(rng.standard_normal(shape).astype(np.float32), name=value.name)
        graph.register_initializer(value)
    del graph.inputs[1:]
    path = tmp_path / "m.onnx"
    save(made, path)
    return path


Invoke = Callable[..., Result]


@pytest.fixture
def ortopt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Invoke]:
    """Run a command in a folder of its own; what it must exit with is said by `code`."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: object, code: int = 0, stdin: bytes | None = None) -> Result:
        done = CliRunner().invoke(commands, [str(a) for a in arguments], input=stdin)
        assert done.exit_code == code, f"exit {done.exit_code}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    yield invoke


@pytest.fixture
def report(ortopt: Invoke, model: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Optimize the model without verification, and return the report."""

    def run(*arguments: object, verify: bool = False, code: int = 0) -> dict[str, Any]:
        more = () if verify else ("--no-verify",)
        ortopt("optimize", model, "--json", tmp_path / "report.json", *more, *arguments, code=code)
        data: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
        return data

    return run
