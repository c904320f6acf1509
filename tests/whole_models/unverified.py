"""Models at every level without verification, beside their originals in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

import ortopt
from ortopt.serialization.save import to_bytes
from tests.sessions import unoptimized

LEVELS = (0, 1, 2, 3, 4)
Feeds = Mapping[str, np.ndarray]


def results(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    return [np.asarray(one) for one in unoptimized(model).run(None, dict(feeds))]


def loads(model: onnx.ModelProto) -> bool:
    try:
        unoptimized(model)
    except Exception:  # onnxruntime raises a class of its own for each status
        return False
    return True


def optimized(model: onnx.ModelProto, level: int, **options: Any) -> onnx.ModelProto:
    done = ortopt.optimize(model, level=level, verify=False, strict=True, **options)
    return onnx.load_from_string(to_bytes(done.model))


def check_levels(model: onnx.ModelProto, feeds: Feeds, **options: Any) -> list[onnx.ModelProto]:
    """The model at every level; each gives what the original gives."""
    wanted = results(model, feeds)
    made = [optimized(model, level, **options) for level in LEVELS]
    for level, one in enumerate(made):
        for want, got in zip(wanted, results(one, feeds), strict=True):
            assert want.dtype == got.dtype, level
            np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=f"at level {level}")
    return made
