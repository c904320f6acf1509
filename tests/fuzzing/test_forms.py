"""The forms of nodes that passes make: how they are written, and when one counts as not measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzzing import forms
from fuzzing.releases import Runner
from ortopt.analysis import shapes
from ortopt.graph.provenance import NEEDS_KEY
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from ortopt.verification.process import WorkerError
from tools import probe_forms
from tools.probe_forms import Probe, draw, outcome

SUM = "main (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> { t = Add (x, w) y = Relu (t) }"
OTHER = "main (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> { t = Sum (x, w) y = Relu (t) }"
WRONG = "main (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 5}> { t = Sum (x, w) y = Relu (t) }"


def typed(text: str, opset: int = 17) -> Any:
    model = parse(text, opset)
    shapes.infer_model(model)
    return model


@pytest.mark.parametrize(
    ("text", "opset", "form"),
    [
        ("main (float[2,1] x) => (float[2,1] y) { y = Add (x, x) }", 17, "ai.onnx::Add-14 (float, float) +"),
        (
            "main (float[2,1,N] x) => (float[2,1,N] y) { y = com.microsoft.FusedMatMul <transB = 1> (x, x) }",
            17, "com.microsoft::FusedMatMul-1 (float[n,1,?], float[n,1,?]) + transB=1",
        ),
        (
            'main (float[4] x) => (float[4] y) { y = Gelu <approximate = "tanh"> (x) }',
            20, "ai.onnx::Gelu-20 (float[n]) + approximate=tanh",
        ),
        ("main (float[4] x) => (float16[4] y) { y = Cast <to = 10> (x) }", 17, "ai.onnx::Cast-13 (float) + to=10"),
        ("main (float[4] x) => (float[4] y) { y = Clip (x, , x) }", 17, "ai.onnx::Clip-13 (float, -, float) +"),
    ],
)  # fmt: skip
def test_a_form_is_what_kernels_tell_apart(text: str, opset: int, form: str) -> None:
    model = typed(text, opset)
    assert forms.form_of(model.graph[-1], model.opset_imports.get(model.graph[-1].domain, 1)) == form


def test_what_the_original_has_is_not_produced() -> None:
    assert forms.produced(typed(SUM), typed(SUM)) == frozenset()
    assert forms.produced(typed(SUM), typed(OTHER)) == {"ai.onnx::Sum-13 (float, float) +"}


@pytest.mark.parametrize(
    ("letters", "told"),
    [
        ("rr", []),
        ("or", []),
        ("rl", ["it is wrong, as it is rewritten at load, on ONNX Runtime 1.32.0"]),
        (".r", ["it has not been run on ONNX Runtime 1.17.3"]),
        ("rx", ["it is wrong on ONNX Runtime 1.32.0"]),
        (None, ["it has not been run on ONNX Runtime 1.17.3, 1.32.0"]),
    ],
)
def test_a_form_must_have_been_run(
    letters: str | None, told: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    form = "ai.onnx::Sum-13 (float, float) +"
    table = tmp_path / "table.json"
    known = {} if letters is None else {form: letters}
    table.write_text(json.dumps({"releases": {"1.17.3": "", "1.32.0": ""}, "forms": known}))
    monkeypatch.setattr(forms, "_data", lambda: json.loads(table.read_text()))
    monkeypatch.setattr(forms, "table", forms.table.__wrapped__)
    monkeypatch.setattr(forms, "probed", forms.probed.__wrapped__)
    assert forms.faults(typed(SUM), typed(OTHER)) == [f"{form}: {text}" for text in told]


def test_releases_before_what_a_result_needs_do_not_count() -> None:
    versions = ("1.17.3", "1.23.2", "1.28.0")
    assert forms.meant(forms.needed(typed(SUM)), versions) == range(3)
    model = typed("main (float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Attention (x, x, x) }", 23)
    assert forms.meant(forms.needed(model), versions) == range(1, 3)
    model.graph[0].metadata_props[NEEDS_KEY] = "0 for what reads no key"
    assert forms.meant(forms.needed(load(to_bytes(model))), versions) == range(2, 3)


def probe_of(result: str) -> Probe:
    return Probe("it", to_bytes(parse(SUM)), to_bytes(parse(result)), frozenset({"form"}), "1.17")


def test_a_probe_is_run_with_inputs_on_which_its_original_agrees_here(tmp_path: Path) -> None:
    with Runner(tmp_path) as here:
        right, wrong = probe_of(OTHER), probe_of(WRONG)
        draw(right, here)
        draw(wrong, here)
        assert [len(inputs["x"]) for inputs in right.inputs][1:] == [0, 1, 2]
        assert outcome(right, here) == forms.RIGHT
    assert [len(inputs["x"]) for inputs in wrong.inputs] == [0]  # of nothing both give nothing


def test_what_comes_of_a_probe(tmp_path: Path) -> None:
    probe = probe_of(OTHER)
    with Runner(tmp_path) as here:
        draw(probe, here)

    class Refusing(Runner):
        """Refuses models with one of some ops."""

        def __init__(self, *ops: bytes, at_load: bool = False) -> None:
            super().__init__(tmp_path)
            self.ops = ops
            self.at_load = at_load

        def run_all(self, model: bytes, sets: Any, *, optimize: bool = False) -> Iterator[list[Any]]:
            if any(op in model for op in self.ops) and optimize >= self.at_load:
                raise WorkerError("it has none")
            for inputs in sets:
                yield [np.maximum(inputs["x"] + np.float32([1, 2, 3, 4]), 0)]

    assert outcome(probe, Refusing()) == forms.RIGHT
    assert outcome(probe, Refusing(b"Sum")) == forms.WRONG
    assert outcome(probe, Refusing(b"Sum", at_load=True)) == forms.REWRITTEN
    assert outcome(probe, Refusing(b"Sum", b"Add")) == forms.LIKE_THE_ORIGINAL


def test_of_several_probes_of_a_form_a_wrong_one_counts() -> None:
    strength = probe_forms.STRENGTH
    assert max([forms.RIGHT, forms.WRONG, forms.NOT_RUN], key=strength.index) == forms.WRONG
    assert max([forms.RIGHT, forms.LIKE_THE_ORIGINAL], key=strength.index) == forms.RIGHT
