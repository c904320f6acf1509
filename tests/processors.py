"""What depends on the processor that tests run on."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

import numpy as np
import onnx

from ortopt.system import processor

AVX512: Final = frozenset({"avx", "avx2", "avx512f", "fma"})
"""An x86 processor that computes 16 channels at once, and whose products of bytes saturate."""


@contextmanager
def pretended(features: frozenset[str] = AVX512) -> Iterator[None]:
    """Let passes that ask for this processor, with --march native, take it for another one: alike on all machines.

    Args:
        features: The instruction sets of the other, an x86 processor.
    """
    with (
        mock.patch.object(processor, "features", lambda: features),
        mock.patch.object(processor, "is_x86", lambda: True),
    ):
        yield


@functools.cache
def saturates() -> bool:
    """Whether kernels of uint8 by int8 add pairs of products in 16 bits, and cut them off: x86 without VNNI does."""
    import onnxruntime

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (uint8[1,4] a, int8[4,1] b) => (int32[1,1] y) { y = MatMulInteger (a, b) }"""
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"a": np.full((1, 4), 255, np.uint8), "b": np.full((4, 1), 127, np.int8)})
    return int(np.asarray(result)[0, 0]) != 4 * 255 * 127
