"""Members of the zoo from TensorFlow and JAX: `python -m benchmarks.exports.tensorflow`.

Needs packages that no extra of ortopt has, as the last releases of transformers with such models want old ones:
Python 3.11 with tensorflow 2.15, tf2onnx 1.16, transformers 4.40, flax 0.8, onnx 1.16 and numpy 1.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import onnx

from benchmarks.exports.architecture import Block, activation, attention, layer_norm
from benchmarks.exports.skeletons import MODELS, enter, entry, strip

OPSET: Final = 15
SIZES: Final = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
WORDS: Final = 1000


def bert() -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """BERT in TensorFlow, for texts of any number and length; the names of sizes are as `--rename-dim` gives them."""
    tf, transformers = (importlib.import_module(name) for name in ("tensorflow", "transformers"))
    network = transformers.TFBertModel(transformers.BertConfig(vocab_size=WORDS, **SIZES))
    names = ("input_ids", "attention_mask")
    signature = [tf.TensorSpec((None, None), tf.int32, name=name) for name in names]
    model = _converted(lambda *given: network(dict(zip(names, given, strict=True)), training=False)[0], signature)
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, ("batch", "seq"), strict=True):
            dim.dim_param = size
    mask = np.ones((2, 12), np.int32)
    mask[1, 8:] = 0
    return model, {"input_ids": np.random.default_rng(0).integers(0, WORDS, (2, 12), np.int32), "attention_mask": mask}


def vit() -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """A vision transformer in Flax, converted by way of TensorFlow, for two images."""
    tf, transformers = (importlib.import_module(name) for name in ("tensorflow", "transformers"))
    # What is an identity at inference, and no op that tf2onnx knows.
    tf.raw_ops.PreventGradient = lambda input, **_: tf.identity(input)
    network = transformers.FlaxViTModel(transformers.ViTConfig(image_size=96, **SIZES))
    jax2tf = importlib.import_module("jax.experimental.jax2tf")
    computed = jax2tf.convert(
        lambda pixels: network(pixels, params=network.params, train=False)[0], with_gradient=False, enable_xla=False
    )
    pixels = np.random.default_rng(0).standard_normal((2, 3, 96, 96), np.float32)
    signature = [tf.TensorSpec(pixels.shape, tf.float32, name="pixel_values")]
    return _converted(computed, signature), {"pixel_values": pixels}


def _converted(function: Callable[..., Any], signature: list[Any]) -> onnx.ModelProto:
    tf, tf2onnx = (importlib.import_module(name) for name in ("tensorflow", "tf2onnx"))
    traced = tf.function(function, input_signature=signature, autograph=False)
    model: onnx.ModelProto
    model, _ = tf2onnx.convert.from_function(traced, input_signature=signature, opset=OPSET)
    return model


BLOCKS: Final[tuple[Block, ...]] = (layer_norm(5), activation(2, "gelu"))

MEMBERS: Final[Mapping[str, tuple[Callable[[], Any], tuple[Block, ...]]]] = {
    "bert_tf__tf15": (bert, (attention(2, mask="padding"), *BLOCKS)),
    "vit_flax__jax15": (vit, (attention(2), *BLOCKS)),
}


def main() -> None:
    """Write the members, with their entries."""
    for name, (make, blocks) in MEMBERS.items():
        model, inputs = make()
        listed = {**entry(name, name.partition("_")[0], model, inputs), "exporter": "tf2onnx"}
        onnx.save(strip(model), MODELS / f"{name}.onnx")
        enter(listed, [dict(block) for block in blocks])


if __name__ == "__main__":
    main()
