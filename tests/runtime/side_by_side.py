"""The same calls on ONNX Runtime's session and on ours: the same result, or the same error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.testing import assert_array_equal

from ortopt import InferenceSession
from ortopt.serialization.save import to_bytes

Pair = tuple[Any, InferenceSession]


def quiet(**attributes: Any) -> Any:
    """Options of a session that logs nothing."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for name, value in attributes.items():
        setattr(options, name, value)
    return options


def theirs(model: ir.Model) -> Any:
    """ONNX Runtime's session of a model."""
    return onnxruntime.InferenceSession(to_bytes(model), quiet(), providers=["CPUExecutionProvider"])


def both(source: str | bytes, options: Any = None, **more: Any) -> Pair:
    """ONNX Runtime's session and ours, of the same model of several groups; `more` is for ours."""
    if isinstance(source, str):
        source = onnx.parser.parse_model(source).SerializeToString()
    options = options or quiet()
    plain = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    mine = InferenceSession(source, options, providers=["cpu"], **more)
    assert len(mine.groups) > 1
    return plain, mine


def same(one: Any, other: Any) -> None:
    """Two results of a run are the same, types included."""
    assert type(one) is type(other)
    if isinstance(one, onnxruntime.OrtValue):
        assert one.data_type() == other.data_type()
        assert one.has_value() == other.has_value()
        one, other = (value.numpy() if value.has_value() else None for value in (one, other))
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for inner, outer in zip(one, other, strict=True):
            same(inner, outer)
    elif not isinstance(one, np.ndarray):
        assert one == other
    else:
        assert_array_equal(one, other, strict=True)


def outcome(call: Callable[[], Any], *, words: bool = True) -> Any:
    """What a call gives, or how it fails: the class of the error, and how its message begins."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error).splitlines()[0].split(" : ")[:3] if words else None


def alike(pair: Iterable[Any], call: Callable[[Any], Any], *, words: bool = True) -> Any:
    """Check that a call has the same outcome for both sessions.

    Args:
        pair: ONNX Runtime's session and ours.
        call: Takes one of them.
        words: Whether errors must begin with the same words, too.

    Returns:
        The outcome.
    """
    expected, got = (outcome(lambda one=one: call(one), words=words) for one in pair)
    same(expected, got)
    return expected
