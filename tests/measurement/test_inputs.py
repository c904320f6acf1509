"""Inputs to time a model with: one for each representative size that the model runs on, and what is said of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortopt import zoo
from ortopt.errors import InvalidModelError, UsageError
from ortopt.measurement.in_turns import Failure
from ortopt.measurement.inputs import StoredInputs, stored_inputs
from ortopt.measurement.words import in_words, place_in_words
from ortopt.serialization.load import load
from ortopt.testing import parse
from ortopt.verification.input_sets import inputs_from

MODEL = "main (int64[batch,seq] ids) => (int64[batch,seq] y) { y = Neg (ids) }"
IMAGE = "main (float[N,3,H,W] x) => (float[N,3,H,W] y) { y = Neg (x) }"
REFUSED = Failure("it is refused", opens=True, kind="Fail")
DIED = Failure("its process died (-9)")


def found(text: str, tmp_path: Path, accepted: Any = lambda _: True, *, refusal: Failure = REFUSED, **more: Any) -> Any:
    """What is stored for a model that runs where its inputs' shapes are accepted."""

    def runs(folder: Path) -> Failure | None:
        shapes = {name: value.shape for name, value in inputs_from(folder).items()}
        return None if accepted(next(iter(shapes.values()))) else refusal

    return stored_inputs(parse(text), tmp_path / "inputs", runs, **{"sizes": {}, **more})


def test_one_for_each_size(tmp_path: Path) -> None:
    stored = found(MODEL, tmp_path)
    assert [each.sizes for each in stored] == [{"batch": 1, "seq": 16}, {"batch": 1, "seq": 128}]
    assert [inputs_from(each.folder)["ids"].shape for each in stored] == [(1, 16), (1, 128)]
    assert [each.fallback for each in stored] == ["", ""]
    assert stored[0].inputs == ({"name": "ids", "dtype": "int64", "shape": [1, 16]},)


def test_an_image_is_none_of_a_pixel(tmp_path: Path) -> None:
    (stored,) = found(IMAGE, tmp_path)
    assert stored.inputs[0]["shape"] == [1, 3, 224, 224]
    assert place_in_words(stored.as_dict()) == "N=1, H=224, W=224"


@pytest.mark.parametrize(
    ("more", "shapes"),
    [
        ({"sizes": {"seq": 7}}, [[1, 7]]),
        ({"sizes": {}, "expected": {"seq": (1, 64)}}, [[1, 1], [1, 64]]),
        ({"sizes": {"batch": 4}, "expected": {"seq": (9, 9)}}, [[4, 9]]),
    ],
)
def test_sizes_of_the_caller(more: dict[str, Any], shapes: list[list[int]], tmp_path: Path) -> None:
    assert [each.inputs[0]["shape"] for each in found(MODEL, tmp_path, **more)] == shapes


def test_dimensions_without_a_name_have_representative_sizes_too(tmp_path: Path) -> None:
    model = parse(IMAGE)
    model.graph.inputs[0].shape = model.graph.inputs[0].shape.__class__([None, 3, None, None])
    (stored,) = stored_inputs(model, tmp_path / "inputs", lambda _: None, sizes={})
    assert stored.inputs[0]["shape"] == [1, 3, 224, 224]
    assert stored.sizes == {"x[0]": 1, "x[2]": 224, "x[3]": 224}


def test_images_of_another_usual_size_where_the_model_refuses_the_first(tmp_path: Path) -> None:
    (stored,) = found(IMAGE, tmp_path, lambda shape: shape[2] == 320)
    assert stored.sizes == {"N": 1, "H": 320, "W": 320}
    assert stored.fallback == "it does not run at N=1, H=224, W=224: it is refused"
    lines = in_words(stored.as_dict(), 1, ["CPUExecutionProvider"])
    assert lines == [
        "measured with x float32[1, 3, 320, 320] (N=1, H=320, W=320); 1 thread; CPUExecutionProvider",
        "not at all representative sizes: it does not run at N=1, H=224, W=224: it is refused",
    ]


def test_a_process_that_dies_of_a_size_is_not_tried_with_other_numbers(tmp_path: Path) -> None:
    shapes: list[Any] = []

    def accepted(shape: Any) -> bool:
        shapes.append(shape)
        return bool(shape[2] < 100)

    (stored,) = found(IMAGE, tmp_path, accepted, refusal=DIED)
    assert stored.sizes == {"N": 1, "H": 64, "W": 64}
    assert [shape[2] for shape in shapes] == [224, 256, 320, 384, 512, 640, 112, 64]


def test_half_a_text_where_a_model_has_fewer_positions(tmp_path: Path) -> None:
    stored = found(MODEL, tmp_path, lambda shape: shape[1] <= 77)
    assert [each.sizes["seq"] for each in stored] == [16, 64]
    assert [bool(each.fallback) for each in stored] == [False, True]


def test_what_nothing_stands_for_is_told(tmp_path: Path) -> None:
    (stored,) = found(MODEL, tmp_path, lambda shape: shape == (1, 16))
    assert stored.sizes == {"batch": 1, "seq": 16}
    assert stored.fallback == "it does not run at batch=1, seq=128: it is refused"


def test_others_where_it_runs_at_no_representative_size(tmp_path: Path) -> None:
    (stored,) = found(MODEL, tmp_path, lambda shape: shape[0] == 2)
    assert stored.sizes == {"batch": 2, "seq": 8}
    assert stored.inputs[0]["shape"] == [2, 8]
    assert "it does not run at batch=1, seq=16: it is refused" in stored.fallback


def test_an_error_where_it_does_not_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"the original cannot be run: it is refused .on drawn inputs"):
        found(MODEL, tmp_path, lambda _: False)
    with pytest.raises(InvalidModelError, match=r"m.onnx cannot be run: no such op$"):
        found(MODEL, tmp_path, lambda _: False, refusal=Failure("no such op", kind="NotImplemented"), label="m.onnx")


def test_inputs_of_the_caller(tmp_path: Path) -> None:
    given = {"ids": np.ones((3, 3), np.int64)}
    (stored,) = found(MODEL, tmp_path, given=given)
    assert inputs_from(stored.folder)["ids"].shape == (3, 3)
    assert place_in_words(stored.as_dict()) == "ids int64[3, 3]"
    with pytest.raises(UsageError, match="the inputs do not fit the original: of another type"):
        refusal = Failure("of another type", opens=True, kind="ValueError")
        found(MODEL, tmp_path / "b", lambda _: False, given=given, refusal=refusal)
    with pytest.raises(UsageError, match="arrays of types that numpy has: input 'ids' is none"):
        found(MODEL, tmp_path / "c", given={"ids": [np.ones(2)]})


ZOO = {
    "superres__ts13": ["x [1, 3, 224, 224]"],
    "text_recognizer__ts13": ["pixel_values [1, 3, 32, 224]"],
    "wav2vec2__ts17": ["input_values [1, 16000]"],
    "distilbert__dyn18raw": ["input_ids [1, 16]", "input_ids [1, 128]"],
    "gpt2_past__ts17": ["input_ids [1, 1]", "input_ids [1, 128]"],
}


@pytest.mark.parametrize("name", ZOO)
def test_inputs_of_the_zoo_are_valid_at_representative_sizes(name: str, tmp_path: Path) -> None:
    from ortopt.measurement.asking import MeasurementBudget
    from ortopt.measurement.inputs import attempts

    path = zoo.cached(name)
    stored: list[StoredInputs] = stored_inputs(
        load(path), tmp_path / "inputs", attempts(path, MeasurementBudget(threads=1)), sizes={}
    )
    assert [f"{each.inputs[0]['name']} {each.inputs[0]['shape']}" for each in stored] == ZOO[name]
    assert not any(each.fallback for each in stored)
    if name == "gpt2_past__ts17":
        decode = {row["name"]: row["shape"] for row in stored[0].inputs}
        assert decode["attention_mask"] == [1, 129]
        assert place_in_words(stored[0].as_dict()) == "batch=1, seq=1, past=128"
        assert decode["past_key_values_0_key"][2] == 128
