"""Optimum's models, with the real package: on ortopt's sessions, and from folders that ortopt has optimized."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortopt
from ortopt.integrations.optimum import optimize_folder

pytest.importorskip(
    "optimum.onnxruntime", reason="optimum-onnx is not installed here: make test-integrations installs it"
)

import torch
from optimum.exporters.onnx import onnx_export_from_model
from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSeq2SeqLM, ORTModelForSequenceClassification

import transformers

IDS = torch.arange(12).reshape(2, 6) + 3
SMALL = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BERT = transformers.BertConfig(
    **SMALL, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)
GPT2 = transformers.GPT2Config(**SMALL, n_positions=32, n_embd=16, n_layer=2, n_head=2)
T5 = transformers.T5Config(
    **{**SMALL, "bos_token_id": None}, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
)
MODELS = {
    "bert": (transformers.BertForSequenceClassification, BERT, "text-classification"),
    "gpt2": (transformers.GPT2LMHeadModel, GPT2, "text-generation-with-past"),
    "t5": (transformers.T5ForConditionalGeneration, T5, "text2text-generation-with-past"),
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of random models, as Optimum exports them."""
    root = tmp_path_factory.mktemp("exports")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing
        for name, (kind, config, task) in MODELS.items():
            onnx_export_from_model(kind(config).eval(), root / name, task=task)
    return root


@pytest.fixture
def folder(exports: Path, tmp_path: Path) -> Any:
    """Gives a copy of an export."""
    return lambda name: shutil.copytree(exports / name, tmp_path / name)


def logits(model: Any) -> Any:
    mask = torch.ones_like(IDS)
    return model(input_ids=IDS, attention_mask=mask, token_type_ids=torch.zeros_like(IDS)).logits


def generation(folder: Path) -> transformers.GenerationConfig:
    return transformers.GenerationConfig.from_pretrained(folder)


def generated(model: Any) -> list[list[int]]:
    found = model.generate(
        IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=6, min_new_tokens=6, do_sample=False
    )
    tokens: list[list[int]] = found.tolist()
    return tokens


@pytest.mark.parametrize("io_binding", [None, False, True])
def test_a_classifier_on_a_session_of_ortopt(exports: Path, tmp_path: Path, io_binding: bool | None) -> None:
    path = exports / "bert" / "model.onnx"
    session = ortopt.InferenceSession(path, providers="cpu")
    model = ORTModelForSequenceClassification(config=BERT, session=session, use_io_binding=io_binding)
    want = logits(ORTModelForSequenceClassification.from_pretrained(path.parent))
    assert torch.equal(logits(model), want)
    assert (model.path, model.providers, model.dtype) == (path, ["CPUExecutionProvider"], torch.float32)
    assert model.to("cpu") is model
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.onnx").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("options", [{"run_type": "host"}, {"specialize_after": 2}], ids=["host", "specialised"])
def test_a_classifier_on_several_sessions(exports: Path, options: dict[str, Any]) -> None:
    session = ortopt.InferenceSession(exports / "bert" / "model.onnx", **options)
    model = ORTModelForSequenceClassification(config=BERT, session=session)
    want = logits(ORTModelForSequenceClassification.from_pretrained(exports / "bert"))
    for _ in range(4):
        np.testing.assert_allclose(logits(model), want, atol=1e-6)
    model.use_io_binding = True
    with pytest.raises(ValueError, match=r"takes what session\.io_binding\(\) returns"):
        logits(model)
    model._io_binding = session.io_binding()
    np.testing.assert_allclose(logits(model), want, atol=1e-6)


@pytest.mark.parametrize("io_binding", [False, True])
def test_a_decoder_generates_on_a_session_of_ortopt(exports: Path, io_binding: bool) -> None:
    session = ortopt.InferenceSession(exports / "gpt2" / "model.onnx")
    model = ORTModelForCausalLM(
        config=GPT2, session=session, use_io_binding=io_binding, generation_config=generation(exports / "gpt2")
    )
    assert generated(model) == generated(ORTModelForCausalLM.from_pretrained(exports / "gpt2"))


def test_an_encoder_and_a_decoder_generate_on_sessions_of_ortopt(exports: Path) -> None:
    encoder, decoder = (
        ortopt.InferenceSession(exports / "t5" / f"{name}.onnx") for name in ("encoder_model", "decoder_model_merged")
    )
    model = ORTModelForSeq2SeqLM(
        config=T5, encoder_session=encoder, decoder_session=decoder, generation_config=generation(exports / "t5")
    )
    assert generated(model) == generated(ORTModelForSeq2SeqLM.from_pretrained(exports / "t5"))


def test_a_folder_in_place_is_loaded_as_before(folder: Any) -> None:
    path = folder("bert")
    want = logits(ORTModelForSequenceClassification.from_pretrained(path))
    names = sorted(file.name for file in path.iterdir())
    results = optimize_folder(path)
    assert list(results) == [path / "model.onnx"]
    result = results[path / "model.onnx"]
    assert result.verified
    assert result.summary.after.nodes < result.summary.before.nodes / 2
    assert sorted(file.name for file in path.iterdir()) == names
    np.testing.assert_allclose(logits(ORTModelForSequenceClassification.from_pretrained(path)), want, atol=1e-5)


def test_all_models_of_a_folder_go_to_another_with_what_stands_beside_them(exports: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    given = {file.name: file.read_bytes() for file in (exports / "t5").iterdir()}
    results = optimize_folder(exports / "t5", tmp_path / "out", level=2, providers="cpu")
    assert {path.name for path in results} == {name for name in given if name.endswith(".onnx")}
    assert {file.name for file in (tmp_path / "out").iterdir()} == given.keys()
    assert {file.name: file.read_bytes() for file in (exports / "t5").iterdir()} == given
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "t5"
    want = generated(ORTModelForSeq2SeqLM.from_pretrained(exports / "t5"))
    assert generated(ORTModelForSeq2SeqLM.from_pretrained(tmp_path / "out")) == want


def test_a_decoder_in_place_generates_the_same(folder: Any) -> None:
    path = folder("gpt2")
    want = generated(ORTModelForCausalLM.from_pretrained(path))
    optimize_folder(path, level="O3")
    assert generated(ORTModelForCausalLM.from_pretrained(path)) == want
    assert not optimize_folder(path)[path / "model.onnx"].summary.rewrites, "a second run finds nothing"


def test_weights_beside_a_model_stay_beside_it_and_old_ones_go(folder: Any) -> None:
    path = folder("bert")
    proto = onnx.load(path / "model.onnx")
    onnx.save(proto, path / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=256)
    want = logits(ORTModelForSequenceClassification.from_pretrained(path))
    optimize_folder(path)
    (data,) = path.glob("*.data")
    assert not (path / "model.onnx_data").exists()
    assert data.stat().st_size > 1000
    np.testing.assert_allclose(logits(ORTModelForSequenceClassification.from_pretrained(path)), want, atol=1e-5)
