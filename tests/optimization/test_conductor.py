"""One conductor: a run from the source to the file, its phases in order, and what is written when."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from ortopt.api import Optimization, make_options
from ortopt.cancellation import CancellationToken
from ortopt.errors import OptimizationCancelled, UsageError, VerificationError
from ortopt.testing import parse
from tests.optimization.test_result import WrongRule

MODEL = "main (float[N] x) => (float[N] y) { a = Identity (x) b = Relu (a) y = Abs (b) }"


class Phases:
    """Writes down the phases, and whether the file was there before and after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[tuple[str, bool, bool]] = []

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        before = self.path.exists()
        yield
        self.seen.append((name, before, self.path.exists()))


def a_run(*transformers: Any, token: CancellationToken | None = None, **options: Any) -> Optimization:
    return Optimization(parse(MODEL), make_options(**options), transformers=transformers, cancellation=token)


def names(path: Path) -> list[str]:
    return [value.name for value in (*onnx.load(path).graph.input, *onnx.load(path).graph.output)]


def test_a_run_writes_what_it_returns_last_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    phases, run = Phases(path), a_run(rename={"x": "image", "y": "class"})
    result = run.run(save_to=path, metadata={"mark": "me"}, phase=phases)
    assert phases.seen == [("optimize", False, False), ("verify", False, False), ("save", False, True)]
    assert result.verified
    assert (run.saved and run.saved.path, names(path)) == (path, ["image", "class"])
    assert {entry.key: entry.value for entry in onnx.load(path).metadata_props}["mark"] == "me"
    assert list(result.summary.seconds) == ["load", "optimize", "verify", "save"]


def test_without_verification_and_into_a_stream(tmp_path: Path) -> None:
    stream, phases = io.BytesIO(), Phases(tmp_path / "none")
    result = a_run().run(verify=False, save_to=stream, phase=phases)
    assert stream.getvalue() == result.to_bytes()
    assert [name for name, *_ in phases.seen] == ["optimize", "save"]


def test_the_ending_chooses_the_format(tmp_path: Path) -> None:
    a_run().run(verify=False, save_to=tmp_path / "out.json")
    assert (tmp_path / "out.json").read_text().startswith("{")
    with pytest.raises(UsageError, match="holds its weights"):
        a_run().run(verify=False, save_to=tmp_path / "other.json", external_data="copy")


def test_what_differs_or_must_be_verified_and_is_not_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    run = a_run(WrongRule(), repair=False)
    with pytest.raises(VerificationError, match="differs"):
        run.run(save_to=path)
    assert run.verification is not None
    assert run.result(run.verification).verification is run.verification
    imports = '<ir_version: 8, opset_import: ["": 18, "mine": 1]>'
    strange = onnx.parser.parse_model(f"{imports} main (float[N] x) => (float[N] y) {{ y = mine.Op (x) }}")
    for required in (False, True):
        run = Optimization(strange, make_options())
        with pytest.raises(VerificationError, match="could not be verified") if required else contextlib.nullcontext():
            run.run(save_to=path, require_verified=required)
        assert path.exists() is not required
        path.unlink(missing_ok=True)


def test_a_run_that_is_stopped_leaves_a_result_and_no_file(tmp_path: Path) -> None:
    token, path = CancellationToken(), tmp_path / "out.onnx"

    @contextlib.contextmanager
    def stop(name: str) -> Iterator[None]:
        yield
        if name == "verify":
            token.cancel()
            token.check()

    with pytest.raises(OptimizationCancelled) as caught:
        a_run(token=token).run(save_to=path, phase=stop)
    assert [node.op_type for node in caught.value.result.model.graph] == ["Identity", "Relu", "Abs"]
    assert not path.exists()
