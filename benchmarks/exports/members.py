"""Members of the zoo at realistic widths: `python -m benchmarks.exports.members [NAME...]`.

Needs the extra ``exports``. Each is a published architecture of few layers (of transformers, of diffusers, or of
`benchmarks.exports.networks`) with random weights. What this interpreter's packages cannot make is told and left out.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from benchmarks.exports import networks, one
from benchmarks.exports.architecture import (
    Block,
    activation,
    attention,
    group_norm,
    layer_norm,
    rms_norm,
    rotary,
)
from benchmarks.exports.inputs import TEXT, Call
from benchmarks.exports.skeletons import MODELS, enter, entry, strip

WORDS, BEFORE = 1000, 9


@dataclass(frozen=True)
class Member:
    """How a member of the zoo is made.

    Attributes:
        make: Its network.
        call: Its inputs.
        way: The exporter: ``ts``, ``dynamo`` or ``dynamoraw``.
        opset: The opset.
        blocks: What it has, from its paper and configuration.
        kind: The kind of inputs of `benchmarks.exports.inputs`, for what has a cache; empty for a network that is
            exported as it is.
    """

    make: Callable[[], nn.Module]
    call: Callable[[], Call]
    way: str
    opset: int
    blocks: tuple[Block, ...] = ()
    kind: str = "text"


def hugging_face(model_type: str, loader: str = "AutoModel", **config: Any) -> Callable[[], nn.Module]:
    """A network of transformers.

    Args:
        model_type: What it is called there.
        loader: The class that makes it of its configuration.
        config: Arguments of the configuration.
    """

    def make() -> nn.Module:
        package: Any = importlib.import_module("transformers")
        configuration = package.AutoConfig.for_model(model_type, **config)
        loads = getattr(package, loader)
        made: nn.Module = loads.from_config(configuration) if loader.startswith("Auto") else loads(configuration)
        return made

    return make


def text() -> Call:
    """Two texts, one of them shorter."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, -4:] = 0
    ids = torch.randint(3, WORDS, (2, 12))
    return {"input_ids": ids, "attention_mask": mask}, {"input_ids": TEXT, "attention_mask": TEXT}


def step(layers: int, heads: int, size: int) -> Callable[[], Call]:
    """Tokens behind others, for a decoder with a cache."""

    def call() -> Call:
        mask = torch.ones(2, BEFORE + 3, dtype=torch.long)
        mask[1, :3] = 0
        arguments: dict[str, Any] = {"input_ids": torch.randint(3, WORDS, (2, 3)), "attention_mask": mask}
        axes = {"input_ids": TEXT, "attention_mask": {0: "batch", 1: "past_plus_seq"}}
        for layer in range(layers):
            for part in ("key", "value"):
                arguments[f"past.{layer}.{part}"] = torch.randn(2, heads, BEFORE, size)
                axes[f"past.{layer}.{part}"] = {0: "batch", 2: "past"}
        return arguments, axes

    return call


def floats(name: str, *shape: int, axes: Mapping[int, str] | None = None) -> Callable[[], Call]:
    """Numbers of a shape, drawn."""
    return lambda: ({name: torch.randn(*shape)}, {name: dict(axes)} if axes else {})


def image(side: int, *, batch: bool = True) -> Callable[[], Call]:
    """Square images; one alone where its number is fixed."""
    return floats("pixel_values", 2 if batch else 1, 3, side, side, axes={0: "batch"} if batch else None)


def vae_decoder() -> nn.Module:
    """The decoder of diffusers' AutoencoderKL."""
    package: Any = importlib.import_module("diffusers")
    whole = package.AutoencoderKL(
        block_out_channels=(64, 128),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=16,
        latent_channels=4,
    )
    decoder: nn.Module = whole.decoder
    return decoder


def vocoder() -> nn.Module:
    """HiFi-GAN as of SpeechT5, its weights without their norms, as it is used."""
    package: Any = importlib.import_module("transformers")
    configuration = package.SpeechT5HifiGanConfig(upsample_initial_channel=128, model_in_dim=80)
    made: nn.Module = package.SpeechT5HifiGan(configuration)
    for module in made.modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d) and hasattr(module, "weight_g"):
            nn.utils.remove_weight_norm(module)
        elif isinstance(module, nn.Conv1d | nn.ConvTranspose1d) and hasattr(module, "parametrizations"):
            nn.utils.parametrize.remove_parametrizations(module, "weight")
    return made


TEXTS: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 1024,
    "vocab_size": WORDS, "max_position_embeddings": 514, "pad_token_id": 1,
}  # fmt: skip
GROUPED: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 704, "vocab_size": WORDS, "max_position_embeddings": 1024, "pad_token_id": 0,
}  # fmt: skip
SPEECH: dict[str, Any] = {
    "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 768,
    "conv_dim": (128,) * 5, "conv_stride": (5, 2, 2, 2, 2), "conv_kernel": (10, 3, 3, 3, 2),
    "num_feat_extract_layers": 5, "num_conv_pos_embeddings": 32, "num_conv_pos_embedding_groups": 16,
}  # fmt: skip
IMAGES: dict[str, Any] = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3}
GELU, SILU = activation(2, "gelu"), activation(2, "silu")
SIGNAL = floats("input_values", 1, 8000, axes={0: "batch", 1: "time"})
CACHED = attention(2, 8, kv=2, mask="causal padding", past=True)

MEMBERS: Mapping[str, Member] = {
    "albert__dyn19": Member(
        hugging_face("albert", embedding_size=128, **TEXTS),
        text, "dynamo", 19, (attention(2, mask="padding"), layer_norm(5), activation(2, "gelu_tanh")),
    ),
    "roberta__ts14": Member(
        hugging_face("roberta", **TEXTS), text, "ts", 14, (attention(2, mask="padding"), layer_norm(5), GELU)
    ),
    "phi3_past__ts18": Member(
        hugging_face("phi3", **GROUPED), step(2, 2, 32), "ts", 18, (CACHED, rotary(4), rms_norm(5), SILU), "past"
    ),
    "qwen2_past__dyn18": Member(
        hugging_face("qwen2", **GROUPED), step(2, 2, 32), "dynamo", 18, (CACHED, rotary(4), rms_norm(5), SILU), "past"
    ),
    "wav2vec2__ts17": Member(
        hugging_face("wav2vec2", **SPEECH),
        SIGNAL, "ts", 17, (attention(2), layer_norm(6), group_norm(1), activation(8, "gelu")),
    ),
    "conformer__ts17": Member(
        hugging_face("wav2vec2-conformer", position_embeddings_type="rotary", **SPEECH),
        floats("input_values", 1, 8000, axes={0: "batch"}), "ts", 17, (attention(2), rotary(4)),
    ),
    "hifigan__dyn18": Member(vocoder, floats("spectrogram", 1, 24, 80), "dynamo", 18),
    "pitch_detector__ts17": Member(
        networks.PitchDetector, floats("frames", 2, 1024, axes={0: "batch"}), "ts", 17, kind=""
    ),
    "picodet__ts13": Member(networks.Detector, image(160), "ts", 13, kind=""),
    "text_detector__dyn18": Member(networks.TextDetector, image(160, batch=False), "dynamo", 18, kind=""),
    "text_recognizer__ts13": Member(
        networks.TextRecognizer,
        floats("pixel_values", 2, 3, 32, 160, axes={0: "batch", 3: "width"}), "ts", 13, kind="",
    ),
    "segformer__ts17": Member(
        hugging_face(
            "segformer", "SegformerForSemanticSegmentation", hidden_sizes=[32, 64, 160, 256], depths=[1, 1, 1, 1],
            decoder_hidden_size=128, num_labels=20,
        ),
        image(128), "ts", 17, (attention(4, [1, 2, 5, 8]), activation(4, "gelu")),
    ),
    "mobilevit__dyn20": Member(
        hugging_face("mobilevit", hidden_sizes=[64, 80, 96], neck_hidden_sizes=[16, 32, 48, 64, 80, 96, 320]),
        image(128, batch=False), "dynamo", 20, (attention(9, 4),),
    ),
    "dinov2__ts17": Member(
        hugging_face("dinov2", image_size=112, patch_size=14, **IMAGES),
        image(112), "ts", 17, (attention(2, 3), layer_norm(5), GELU),
    ),
    "convnextv2__dyn18": Member(
        hugging_face("convnextv2", hidden_sizes=[40, 80, 160, 320], depths=[1, 1, 2, 1]),
        image(96), "dynamo", 18, (activation(5, "gelu"),),
    ),
    "regnet__ts15": Member(
        hugging_face(
            "regnet", embedding_size=32, hidden_sizes=[48, 96, 192, 384], depths=[1, 1, 2, 1], groups_width=24
        ),
        image(128), "ts", 15,
    ),
    "vae_decoder__dyn18": Member(
        vae_decoder, floats("sample", 1, 4, 16, 16), "dynamo", 18,
        (attention(1, 1), group_norm(14), activation(13, "silu")),
    ),
}  # fmt: skip


def export(member: Member, path: Path) -> Call:
    """Write one file.

    Returns:
        What it was called with.
    """
    torch.manual_seed(0)
    network = member.make()
    trained(network)
    arguments, axes = member.call()
    flat: Any = one.Flat(network, list(arguments), member.kind) if member.kind else network
    flat = flat.eval()
    with torch.no_grad():
        flat(*arguments.values())
        if member.way == "ts":
            one._by_torchscript(flat, arguments, axes, member.opset, str(path))
        else:
            _by_dynamo(flat, arguments, axes, member, path)
    return arguments, axes


def trained(network: nn.Module) -> None:
    """Move statistics, biases and scales off their first values, as training does."""
    one._train(network)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)


def _by_dynamo(flat: Any, arguments: Mapping[str, Any], axes: Any, member: Member, path: Path) -> None:
    if member.kind:
        one._by_dynamo(flat, arguments, axes, member.opset, str(path), optimize=member.way == "dynamo")
        return
    shapes = tuple(dict(axes.get(name, {})) for name in arguments)
    torch.onnx.export(
        flat, tuple(arguments.values()), str(path), dynamo=True, opset_version=member.opset, dynamic_shapes=shapes,
        input_names=list(arguments), output_names=["output"], external_data=False, optimize=member.way == "dynamo",
    )  # fmt: skip


def make(name: str) -> None:
    """Write one member of the zoo, with its entries; it must run, and give finite numbers.

    Args:
        name: One of `MEMBERS`.
    """
    member = MEMBERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "export.onnx")
        arguments, _ = export(member, path)
        model = onnx.load(path)
    for node in model.graph.node:  # where a node was in a network is of no use here, and makes up most of a file
        del node.metadata_props[:]
    names = {value.name for value in model.graph.input}
    inputs = {key: value.numpy() for key, value in arguments.items() if key in names}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    if not all(np.isfinite(array).all() for array in session.run(None, inputs)):
        raise ValueError("outputs are not finite")
    listed = entry(name, name.partition("__")[0], model, inputs)
    onnx.save(strip(model), MODELS / f"{name}.onnx")
    enter(listed, [dict(block) for block in member.blocks])


def main() -> None:
    """Read the command line, make what it names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports.members")
    parser.add_argument("name", nargs="*", help="members of the zoo; all if none")
    for name in parser.parse_args().name or MEMBERS:
        if name not in MEMBERS:
            parser.error(f"{name} is none of {', '.join(MEMBERS)}")
        try:
            make(name)
            print(f"{name}: written", flush=True)
        except Exception as error:  # another version of a package may be needed
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
