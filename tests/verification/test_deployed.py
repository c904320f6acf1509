"""Results as people deploy them: what only ONNX Runtime's own optimizations break of a result is found and repaired."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from click.testing import CliRunner

from ortopt import OptimizeResult, VerificationError, optimize
from ortopt.api import Optimization, make_options
from ortopt.cli.group import commands
from ortopt.graph.match import inputs, need
from ortopt.optimization.half_precision_conversion import DEPLOYED
from ortopt.options import TransformerLevel
from ortopt.reporting.report import as_dict, of_deployment
from ortopt.rule import Forwarded, RewriteRule
from ortopt.serialization.save import save
from ortopt.testing import parse
from ortopt.verification import deployed, process, start
from ortopt.verification.result_comparison import ResultComparison
from ortopt.verification.verify import Reference, verify

MODEL = "main (float[N,4] x) => (float[N,4] y) { a = Identity (x) b = Relu (a) c = Identity (b) y = Tanh (c) }"


@pytest.fixture(autouse=True)
def _faulty_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ONNX Runtime whose optimizations have faults, see `tests.verification.deployed_worker`."""
    monkeypatch.setattr(start, "_MODULE", "tests.verification.deployed_worker")


def named(text: str, op: str, name: str) -> ir.Model:
    """A text's model in which the nodes of an op have a name."""
    model = parse(text)
    for node in model.graph:
        if node.op_type == op:
            node.name = name
    return model


FAULTS = {
    "segfaults": "the original runs, the result does not: it ended its process with SIGSEGV",
    "is_refused": "the original runs, the result does not: no kernel for what it was fused to",
    "is_wrong": "output 'y': ",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_result_that_only_the_default_optimizations_break_differs(fault: str) -> None:
    outcome = verify(parse(MODEL), named(MODEL, "Tanh", fault))
    assert outcome.status == "differs"
    assert outcome.as_deployed is False
    assert outcome.reason.startswith(f"with ONNX Runtime's default optimizations, {FAULTS[fault]}")


def test_a_result_that_is_right_is_so_as_deployed_too() -> None:
    outcome = verify(parse(MODEL), parse(MODEL))
    assert (outcome.status, outcome.as_deployed, outcome.not_as_deployed) == ("verified", True, "")


THEIRS = {
    "segfaults": "break the original, too: it ended its process with SIGSEGV",
    "is_refused": "break the original, too: no kernel for what it was fused to",
    "is_wrong": "change the original, too: output 'y': ",
}


@pytest.mark.parametrize("fault", THEIRS)
def test_what_they_break_of_the_original_too_is_no_fault_of_the_result(fault: str) -> None:
    outcome = verify(named(MODEL, "Tanh", fault), named(MODEL, "Tanh", fault))
    assert outcome.status == "verified"
    assert outcome.not_as_deployed.startswith(f"ONNX Runtime's default optimizations {THEIRS[fault]}")


def test_a_result_without_what_they_break_of_the_original_is_right() -> None:
    outcome = verify(named(MODEL, "Tanh", "segfaults"), parse(MODEL))
    assert (outcome.status, outcome.as_deployed, outcome.not_as_deployed) == ("verified", True, "")


def test_an_output_that_only_the_result_has_wrong_is_no_excuse_for_another() -> None:
    text = "main (float[N,4] x) => (float[N,4] y, float[N,4] z) { y = Tanh (x) z = Relu (x) }"
    outcome = verify(parse(text), named(text, "Relu", "is_wrong"))
    assert {row.name for row in outcome.outputs if not row.agrees} == {"y", "z"}


def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "deadline_of", lambda *_: process.Deadline(10.0))
    outcome = verify(parse(MODEL), named(MODEL, "Tanh", "hangs"))
    assert outcome.status == "differs"
    assert "with ONNX Runtime's default optimizations, the original ran in" in outcome.reason
    assert "it took longer than" in outcome.reason


def test_a_model_that_differs_without_them_is_not_asked_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = verify(parse(MODEL), named(MODEL.replace("Tanh", "Sin"), "Sin", "segfaults"))
    assert outcome.status == "differs"
    assert outcome.as_deployed is None


def test_the_original_is_run_so_once_and_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, bool]] = []
    plain = process.Worker.follow

    def counted(self: process.Worker, model: Path, *arguments: Any, optimize: bool, **more: Any) -> None:
        opened.append((model.name, optimize))
        plain(self, model, *arguments, optimize=optimize, **more)

    monkeypatch.setattr(process.Worker, "follow", counted)
    with Reference(parse(MODEL)) as reference:
        assert reference.compare(parse(MODEL)).as_deployed
        assert [name for name, optimize in opened if optimize] == ["result.onnx"]
        for _ in range(2):
            assert reference.compare(named(MODEL, "Tanh", "is_wrong")).as_deployed is False
        assert sum(optimize and "original" in name for name, optimize in opened) == 1


def test_a_model_with_random_ops_is_loaded_itself_too() -> None:
    text = "main (float[4] x) => (float[4] y) { r = RandomNormalLike (x) y = Add (x, r) }"
    assert verify(parse(text), parse(text)).as_deployed
    outcome = verify(parse(text), named(text, "RandomNormalLike", "segfaults"))
    assert outcome.status == "differs"
    assert "SIGSEGV" in outcome.reason


# -- repaired


NAME = "wrong_description"


class Describing(RewriteRule[Forwarded]):
    """Describe a Relu as no optimization of ONNX Runtime bears."""

    name = NAME
    levels = (TransformerLevel.LEVEL1,)
    roots = ("Relu",)
    fault = "segfaults"

    def match(self, root: ir.Node) -> Forwarded:
        need(root.doc_string != self.fault, "it is described so already")
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Relu", [found.value], doc_string=self.fault)


def describing(fault: str) -> Describing:
    rule = Describing()
    rule.fault = fault
    return rule


def optimized(fault: str, **more: Any) -> OptimizeResult:
    return optimize(parse(MODEL), transformers=[describing(fault)], only=[NAME, "identity_elimination"], **more)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_pass_that_enables_a_fault_is_named_and_left_out(fault: str) -> None:
    result = optimized(fault)
    (repair,) = result.repairs
    assert repair.rewrite.transformer == NAME
    assert FAULTS[fault] in repair.reason
    assert [node.op_type for node in result.model.graph] == ["Relu", "Tanh"]
    assert result.verification is not None
    assert (result.verification.status, result.verification.as_deployed) == ("verified", True)


def test_a_fault_that_hangs_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployed, "deadline_of", lambda *_: process.Deadline(10.0))
    (repair,) = optimized("hangs").repairs
    assert "it took longer than" in repair.reason


def test_without_repair_it_is_an_error() -> None:
    with pytest.raises(VerificationError, match="ended its process with SIGSEGV"):
        optimized("segfaults", repair=False)


def test_probes_for_a_fault_of_the_optimizations_run_nothing_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ResultComparison.verdict
    count = 0

    def counted(self: ResultComparison, *arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        return plain(self, *arguments, **more)

    monkeypatch.setattr(ResultComparison, "verdict", counted)
    (repair,) = optimized("segfaults").repairs
    assert repair.probes > 1
    assert count == 2  # the result, and the repaired one


def test_the_rewrite_can_be_blamed() -> None:
    run = Optimization(
        parse(MODEL),
        make_options(only=[NAME, "identity_elimination"]),
        transformers=[describing("segfaults")],
    )
    run.transform()
    blame = run.blame()
    assert blame is not None
    assert blame.culprit.rewrite.transformer == NAME
    assert "SIGSEGV" in blame.culprit.verification.reason


# -- in 16 bits

EYE = "float[4,4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}"
HALF = f"""main (float[2,4] x) => (float[2,4] y) <{EYE}, {EYE.replace("w", "v")}> {{
    m = MatMul (x, w) r = Relu (m) y = MatMul (r, v) }}"""


@pytest.mark.parametrize("fault", FAULTS)
def test_what_they_break_in_16_bits_only_stays_in_float32(fault: str) -> None:
    model = parse(HALF)
    first, *_ = (node for node in model.graph if node.op_type == "MatMul")
    first.name = f"{fault}_in_16_bits"
    result = optimize(model, float16=True, only=["identity_elimination"])
    half = result.half_precision
    assert half is not None
    assert half.single == (("MatMul", DEPLOYED, 1),)
    assert half.nodes == 2
    assert half.error is not None
    assert result.verification is not None
    assert (result.verification.status, result.verification.as_deployed) == ("verified", True)
    assert result.verification.not_as_deployed == ""


# -- said


def test_the_report_and_json_say_it() -> None:
    data = as_dict(optimized("is_wrong"))
    assert data["verification"]["as_deployed"] is True
    assert of_deployment(data["verification"]) == "verified with ONNX Runtime's default optimizations"


def test_the_command_says_it_and_ends_as_for_any_difference(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.onnx", "b.onnx", "out.onnx")]
    save(parse(MODEL), paths[0])
    save(named(MODEL, "Tanh", "segfaults"), paths[1])
    outcome = CliRunner().invoke(commands, ["verify", str(paths[0]), str(paths[1])])
    assert outcome.exit_code == 3
    assert "SIGSEGV" in outcome.output
    outcome = CliRunner().invoke(commands, ["verify", "--json", str(paths[1]), str(paths[1])])
    assert outcome.exit_code == 0
    assert "SIGSEGV" in json.loads(outcome.stdout)["not_as_deployed"]
    outcome = CliRunner().invoke(commands, ["optimize", str(paths[1]), "-o", str(paths[2])])
    assert outcome.exit_code == 0
    assert "break the original, too: it ended its process with SIGSEGV" in outcome.stderr
