"""One export after the other: `python -m benchmarks.exports.one` reads a line of JSON for each, and answers with one.

A line is ``[architecture, way, opset, file]``, the way being ts, dynamo or dynamoraw (without torch's own optimizer);
the answer is the reason why there is no file, or null.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.exports.architecture import Architecture
from benchmarks.exports.catalog import ARCHITECTURES
from benchmarks.exports.inputs import INPUTS


def module(architecture: Architecture, attention: str) -> torch.nn.Module:
    """The model with random weights, the same ones each time.

    Args:
        architecture: What to make.
        attention: How transformers is to compute attention: ``sdpa`` or ``eager``.
    """
    torch.manual_seed(0)
    if architecture.loader == "AutoModel":
        whole = _of_transformers(architecture, attention)
    else:
        whole = getattr(importlib.import_module("diffusers"), architecture.loader)(**architecture.config)
    part: torch.nn.Module = getattr(whole, architecture.part) if architecture.part else whole
    _train(part)
    return part.eval()


def _train(module: torch.nn.Module) -> None:
    """Move biases off 0 and scales off 1, as training does: no Add may vanish, and no two norms be the same."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(0.05 * torch.randn_like(parameter))


def _hugging_face() -> Any:
    """Their package transformers, which type checkers take for this project's folder of the same name."""
    return importlib.import_module("transformers")


def _of_transformers(architecture: Architecture, attention: str) -> Any:
    hugging_face = _hugging_face()
    config = hugging_face.AutoConfig.for_model(architecture.model_type or architecture.name, **architecture.config)
    config.use_cache = architecture.inputs in STEPS
    for way in (attention, "eager"):
        try:
            return hugging_face.AutoModel.from_config(config, attn_implementation=way)
        except ValueError as error:  # "does not support an attention implementation through …"
            if way == "eager" or "attention implementation" not in str(error):
                raise
    raise AssertionError("the second way returns or raises")


STEPS = ("past", "decoder")
"""Kinds of inputs with a cache; a decoder's has a second part, for what the encoder gave, which starts empty."""


class Flat(torch.nn.Module):
    """A model that is called with tensors in the order of their names, and gives tensors."""

    def __init__(self, inner: torch.nn.Module, names: list[str], kind: str) -> None:
        super().__init__()
        self.inner, self.names, self.kind = inner, names, kind
        self.accepts_tuples = "return_dict" in inspect.signature(inner.forward).parameters

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The first result, and the cache where there is one."""
        given: dict[str, Any] = dict(zip(self.names, tensors, strict=True))
        if self.kind in STEPS:
            return self._step(given)
        more = {"return_dict": False} if self.accepts_tuples else {}
        result = self.inner(**given, **more)
        return result[0] if isinstance(result, tuple | dict) or hasattr(result, "to_tuple") else result

    def _step(self, given: dict[str, Any]) -> Any:
        hugging_face = _hugging_face()
        cache = hugging_face.DynamicCache()
        layers = sorted({int(name.split(".")[1]) for name in given if name.startswith("past.")})
        for layer in layers:
            cache.update(given.pop(f"past.{layer}.key"), given.pop(f"past.{layer}.value"), layer)
        whole = cache
        if self.kind == "decoder":
            whole = hugging_face.EncoderDecoderCache(cache, hugging_face.DynamicCache())
        result = self.inner(**given, past_key_values=whole, use_cache=True, return_dict=True)
        kept = result.past_key_values
        return result.last_hidden_state, *_contents(kept if isinstance(kept, tuple) else cache)


def _contents(cache: Any) -> list[torch.Tensor]:
    """Keys and values by layer, in any of the spellings that transformers has had."""
    if isinstance(cache, tuple):
        return [tensor for layer in cache for tensor in layer[:2]]
    if hasattr(cache, "layers"):
        return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return [tensor for pair in zip(cache.key_cache, cache.value_cache, strict=True) for tensor in pair]


def export(architecture: Architecture, way: str, opset: int, out: str) -> None:
    """Write one file."""
    inner = module(architecture, "eager" if way == "ts" and opset < 14 else "sdpa")
    arguments, axes = INPUTS[architecture.inputs](architecture.sizes)
    flat = Flat(inner, list(arguments), architecture.inputs).eval()
    with torch.no_grad():
        flat(*arguments.values())
        if way == "ts":
            _by_torchscript(flat, arguments, axes, opset, out)
        else:
            _by_dynamo(flat, arguments, axes, opset, out, optimize=way == "dynamo")


def _outputs(arguments: Mapping[str, Any]) -> list[str]:
    return ["output", *(name.replace("past", "present") for name in arguments if name.startswith("past."))]


def _by_torchscript(
    flat: Flat, arguments: Mapping[str, Any], axes: Mapping[str, dict[int, str]], opset: int, out: str
) -> None:
    torch.onnx.export(
        flat,
        tuple(arguments.values()),
        out,
        dynamo=False,
        opset_version=opset,
        input_names=list(arguments),
        output_names=_outputs(arguments),
        dynamic_axes=dict(axes),
    )


def _by_dynamo(
    flat: Flat,
    arguments: Mapping[str, Any],
    axes: Mapping[str, dict[int, str]],
    opset: int,
    out: str,
    *,
    optimize: bool,
) -> None:
    shapes = tuple(dict(axes.get(name, {})) for name in arguments)
    torch.onnx.export(
        flat,
        tuple(arguments.values()),
        out,
        dynamo=True,
        opset_version=opset,
        input_names=list(arguments),
        output_names=_outputs(arguments),
        dynamic_shapes=(shapes,),
        external_data=False,
        optimize=optimize,
    )


def main() -> None:
    """Export until nothing is asked for any more; what exporters print goes to stderr, from C++ too."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, way, opset, out = json.loads(line)
        try:
            export(ARCHITECTURES[name], way, opset, out)
            why = None
        except Exception as error:  # whatever an exporter raises of a model that it cannot write
            why = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(why), file=answers, flush=True)


if __name__ == "__main__":
    main()
