"""What a kind of model is called with, and which dimensions stay open in its export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Call = tuple[dict[str, Any], dict[str, dict[int, str]]]
"""Arguments by name, and names of open dimensions by argument and axis."""

TEXT = {0: "batch", 1: "seq"}
WORDS, POSITIONS_BEFORE = 1000, 5


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, WORDS, (batch, length))


def _text(_: Mapping[str, Any]) -> Call:
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, -3:] = 0
    return {"input_ids": _ids(2, 10), "attention_mask": mask}, {"input_ids": TEXT, "attention_mask": TEXT}


def _past(sizes: Mapping[str, Any]) -> Call:
    mask = torch.ones(2, POSITIONS_BEFORE + 3, dtype=torch.long)
    mask[1, :2] = 0
    arguments: dict[str, Any] = {"input_ids": _ids(2, 3), "attention_mask": mask}
    axes = {"input_ids": TEXT, "attention_mask": {0: "batch", 1: "past_plus_seq"}}
    _add_past(arguments, axes, sizes)
    return arguments, axes


def _decoder(sizes: Mapping[str, Any]) -> Call:
    arguments: dict[str, Any] = {"input_ids": _ids(2, 3), "encoder_hidden_states": torch.randn(2, 10, 64)}
    axes = {"input_ids": TEXT, "encoder_hidden_states": {0: "batch", 1: "encoded"}}
    _add_past(arguments, axes, sizes)
    return arguments, axes


def _add_past(arguments: dict[str, Any], axes: dict[str, dict[int, str]], sizes: Mapping[str, Any]) -> None:
    """Keys and values of earlier positions, by layer."""
    for layer in range(sizes["layers"]):
        for part in ("key", "value"):
            name = f"past.{layer}.{part}"
            arguments[name] = torch.randn(2, sizes["kv"], POSITIONS_BEFORE, sizes["head_size"])
            axes[name] = {0: "batch", 2: "past"}


def _pair(_: Mapping[str, Any]) -> Call:
    arguments, axes = _text({})
    arguments["decoder_input_ids"] = _ids(2, 6)
    return arguments, {**axes, "decoder_input_ids": {0: "batch", 1: "decoded"}}


def _image(sizes: Mapping[str, Any]) -> Call:
    side = sizes.get("image", 32)
    return {"pixel_values": torch.randn(2, 3, side, side)}, {"pixel_values": {0: "batch"}}


def _text_and_image(sizes: Mapping[str, Any]) -> Call:
    (text, text_axes), (image, _) = _text(sizes), _image(sizes)
    return {**text, **image}, {**text_axes, "pixel_values": {0: "images"}}


def _wave(_: Mapping[str, Any]) -> Call:
    return {"input_values": torch.randn(2, 800)}, {"input_values": {0: "batch", 1: "time"}}


def _spectrum(_: Mapping[str, Any]) -> Call:
    return {"input_values": torch.randn(2, 64, 32)}, {"input_values": {0: "batch"}}


def _spectrum_pair(_: Mapping[str, Any]) -> Call:
    arguments = {"input_features": torch.randn(2, 16, 100), "decoder_input_ids": _ids(2, 6)}
    return arguments, {"input_features": {0: "batch"}, "decoder_input_ids": {0: "batch", 1: "decoded"}}


def _latent(_: Mapping[str, Any]) -> Call:
    return {"sample": torch.randn(2, 4, 8, 8)}, {"sample": {0: "batch"}}


def _noise_and_text(sizes: Mapping[str, Any]) -> Call:
    width = sizes.get("width", 32)
    arguments = {
        "sample": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 4]),
        "encoder_hidden_states": torch.randn(2, 10, width),
    }
    return arguments, {
        "sample": {0: "batch"},
        "timestep": {0: "batch"},
        "encoder_hidden_states": {0: "batch", 1: "seq"},
    }


def _latent_and_text(_: Mapping[str, Any]) -> Call:
    arguments = {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "encoder_hidden_states": torch.randn(2, 10, 32),
        "timestep": torch.tensor([3, 4]),
    }
    return arguments, {"hidden_states": {0: "batch"}, "encoder_hidden_states": TEXT, "timestep": {0: "batch"}}


def _noise_and_class(_: Mapping[str, Any]) -> Call:
    arguments = {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 4]),
        "class_labels": torch.tensor([1, 2]),
    }
    return arguments, {name: {0: "batch"} for name in arguments}


def _noise_text_and_pool(_: Mapping[str, Any]) -> Call:
    arguments = {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "encoder_hidden_states": torch.randn(2, 10, 32),
        "pooled_projections": torch.randn(2, 32),
        "timestep": torch.tensor([3, 4]),
    }
    return arguments, {name: {0: "batch"} for name in arguments}


def _flux(_: Mapping[str, Any]) -> Call:
    arguments = {
        "hidden_states": torch.randn(2, 16, 16),
        "encoder_hidden_states": torch.randn(2, 10, 32),
        "pooled_projections": torch.randn(2, 32),
        "timestep": torch.tensor([0.3, 0.4]),
        "img_ids": torch.randint(0, 4, (16, 3)).float(),
        "txt_ids": torch.zeros(10, 3),
    }
    named = ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep")
    return arguments, {name: {0: "batch"} for name in named}


INPUTS: Mapping[str, Callable[[Mapping[str, Any]], Call]] = {
    "text": _text,
    "past": _past,
    "decoder": _decoder,
    "pair": _pair,
    "image": _image,
    "text_and_image": _text_and_image,
    "wave": _wave,
    "spectrum": _spectrum,
    "spectrum_pair": _spectrum_pair,
    "latent": _latent,
    "noise_and_text": _noise_and_text,
    "latent_and_text": _latent_and_text,
    "noise_and_class": _noise_and_class,
    "noise_text_and_pool": _noise_text_and_pool,
    "flux": _flux,
}
