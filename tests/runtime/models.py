"""Grouped models for the tests, in text, and ONNX Runtime's own answer for the same model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference.op_run import OpRun

from ortopt.runtime.session import InferenceSession
from ortopt.testing import parse
from tests.runtime.side_by_side import theirs

HEADER = '<ir_version: 10, opset_import: ["" : 17, "ortopt.group" : 1, "my" : 1]>'

FUNCTION = '<domain: "ortopt.group", opset_import: ["" : 17]>'
"""What stands before the name of a group's function."""

TWO_GROUPS = f"""{HEADER}
main (float[N,4] x) => (float[N,4] y, float[N,4] t) <float[4] w = {{1, 2, 3, 4}}, float[N,4] a> {{
    a = ortopt.group.group_0 (x, w)
    t = Neg (a)
    y = ortopt.group.group_1 (t, a, w)
}}
{FUNCTION} group_0 (p, q) => (r) {{ s = Add (p, q) r = Relu (s) }}
{FUNCTION} group_1 (p, o, q) => (r) {{ s = Mul (p, q) r = Add (s, o) }}
"""

PLAIN = "main (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> { a = Add (x, w) y = Relu (a) }"

WITH_SHAPE = f"""{HEADER}
main (float[N,4] x, int64[K] shape) => (float[] y) <float[4] w = {{1, 2, 3, 4}}> {{
    a = ortopt.group.group_0 (x, w)
    y = ortopt.group.group_1 (a, shape)
}}
{FUNCTION} group_0 (p, q) => (r) {{ s = Add (p, q) r = Relu (s) }}
{FUNCTION} group_1 (p, shape) => (r) {{ s = Neg (p) r = Reshape (s, shape) }}
"""


class Twice(OpRun):
    """A user's own op: ``my.Twice(x) = 2 x``."""

    op_domain = "my"

    def _run(self, x: Any) -> tuple[Any, ...]:
        return (x * x.dtype.type(2),)


class Backwards(OpRun):
    """A user's own op on strings."""

    op_domain = "my"

    def _run(self, x: Any) -> tuple[Any, ...]:
        return (np.array([text[::-1] for text in x.reshape(-1)], object).reshape(x.shape),)


def two_groups(x: Any) -> tuple[Any, Any]:
    """What TWO_GROUPS computes."""
    w = np.array([1, 2, 3, 4], np.float32)
    a = np.maximum(x + w, 0)
    return -a * w + a, -a


def floats(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def session(text: str | ir.Model, **options: Any) -> InferenceSession:
    options.setdefault("providers", ["cpu"])
    return InferenceSession(parse(text) if isinstance(text, str) else text, **options)


def plain_session(text: str) -> Any:
    return theirs(parse(text))
