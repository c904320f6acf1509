"""ortopt: a standalone ONNX graph optimizer.

The public names are loaded when they are first used: ``import ortopt`` imports neither onnx nor ONNX Runtime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ortopt._version import __version__ as __version__

if TYPE_CHECKING:
    from ortopt._deferred_sympy import defer_sympy
    from ortopt.adapters import OnnxIrPass, OnnxScriptRules
    from ortopt.api import OptimizeResult, Summary, optimize
    from ortopt.cancellation import CancellationToken
    from ortopt.context import Context
    from ortopt.errors import (
        InvalidModelError,
        MissingRuntimeError,
        OptimizationCancelled,
        OrtoptError,
        OutputError,
        RegistrationError,
        TransformerError,
        UnknownTransformerError,
        UsageError,
        VerificationError,
    )
    from ortopt.extraction import extract
    from ortopt.instrumentation.lineage import Lineage
    from ortopt.manager import GraphTransformerManager
    from ortopt.observers import HistoryEntry, Observer
    from ortopt.options import Numerics, Options, Target, TransformerLevel
    from ortopt.reporting.notebook import notebook_html
    from ortopt.rule import RewriteRule
    from ortopt.runtime.decoding.decode_loop import DecodeLoop
    from ortopt.runtime.session import InferenceSession
    from ortopt.transformer import GraphTransformer
    from ortopt.verification.verify import verify

_HOMES = {
    "CancellationToken": "cancellation",
    "Context": "context",
    "DecodeLoop": "runtime.decoding.decode_loop",
    "GraphTransformer": "transformer",
    "GraphTransformerManager": "manager",
    "HistoryEntry": "observers",
    "InferenceSession": "runtime.session",
    "InvalidModelError": "errors",
    "Lineage": "instrumentation.lineage",
    "MissingRuntimeError": "errors",
    "Numerics": "options",
    "Observer": "observers",
    "OnnxIrPass": "adapters",
    "OnnxScriptRules": "adapters",
    "OptimizationCancelled": "errors",
    "OptimizeResult": "api",
    "Options": "options",
    "OrtoptError": "errors",
    "OutputError": "errors",
    "RegistrationError": "errors",
    "RewriteRule": "rule",
    "Summary": "api",
    "Target": "options",
    "TransformerError": "errors",
    "TransformerLevel": "options",
    "UnknownTransformerError": "errors",
    "UsageError": "errors",
    "VerificationError": "errors",
    "defer_sympy": "_deferred_sympy",
    "extract": "extraction",
    "merge_decoders": "merging",
    "notebook_html": "reporting.notebook",
    "optimize": "api",
    "verify": "verification.verify",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ortopt' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ortopt.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


__all__ = [
    "CancellationToken",
    "Context",
    "DecodeLoop",
    "GraphTransformer",
    "GraphTransformerManager",
    "HistoryEntry",
    "InferenceSession",
    "InvalidModelError",
    "Lineage",
    "MissingRuntimeError",
    "Numerics",
    "Observer",
    "OnnxIrPass",
    "OnnxScriptRules",
    "OptimizationCancelled",
    "OptimizeResult",
    "Options",
    "OrtoptError",
    "OutputError",
    "RegistrationError",
    "RewriteRule",
    "Summary",
    "Target",
    "TransformerError",
    "TransformerLevel",
    "UnknownTransformerError",
    "UsageError",
    "VerificationError",
    "defer_sympy",
    "extract",
    "merge_decoders",
    "notebook_html",
    "optimize",
    "verify",
]
