"""A reference for models that ONNX Runtime runs as copies: those that compute in 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ortopt.serialization.load import load
from ortopt.verification.layer_rows import Layers
from ortopt.verification.runner import Source
from ortopt.verification.verdict import Verification
from ortopt.verification.verify import Reference


class RenderedReference(Reference):
    """An original and results that are compared as copies: of what ONNX Runtime has no kernels for here.

    Args:
        rendering: Makes the copy of a model, which is nothing that anybody deploys.
        original: The original.
        **more: As `Reference` takes them.
    """

    _is_deployable = False

    def __init__(self, rendering: Callable[[ir.Model], ir.Model], original: ir.Model, **more: Any) -> None:
        super().__init__(rendering(original), **more)
        self._rendering = rendering

    def compare(self, result: Source, **more: Any) -> Verification:
        """Compare a copy of a result; see `Reference`."""
        model = result if isinstance(result, ir.Model) else load(result, self._token)
        return super().compare(self._rendering(model), **more)

    def layers(self, result: Source, outcome: Verification) -> Layers | None:
        """Compare the values of a copy of a result; see `Reference`."""
        model = result if isinstance(result, ir.Model) else load(result, self._token)
        return super().layers(self._rendering(model), outcome)
