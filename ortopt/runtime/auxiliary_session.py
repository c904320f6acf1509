"""Sessions of ONNX Runtime for small models that compute nothing: they tell what no function of ONNX Runtime tells."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from ortopt.evaluation.sessions import use_one_thread
from ortopt.runtime.onnxruntime_internals import NativeSession, open_native_session


def auxiliary_session(model: onnx.ModelProto, entries: Mapping[str, str] | None = None) -> NativeSession:
    """A session on the CPU, without messages and threads.

    Args:
        model: The model.
        entries: Configuration entries.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    use_one_thread(options)
    options.log_severity_level = 4
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return open_native_session(options, model.SerializeToString())
