"""A model in ONNX Runtime's own format, as ONNX Runtime's converter writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ortopt.analysis.providers import CPU
from ortopt.errors import OutputError
from ortopt.evaluation.sessions import quiet_options, register_libraries
from ortopt.terminal_text import one_line


def convert(source: Path, target: Path, libraries: Iterable[str] = ()) -> None:
    """Write a model in ONNX Runtime's format, without optimizing it: its nodes stay those of the model.

    Args:
        source: An ONNX file.
        target: The file.
        libraries: Shared libraries of ops that the model needs.

    Raises:
        OutputError: ONNX Runtime cannot load the model.
    """
    import onnxruntime

    options, _ = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.save_model_format", "ORT")
    try:
        register_libraries(options, libraries)
        onnxruntime.InferenceSession(str(source), options, [CPU])
    except Exception as error:  # whatever ONNX Runtime raises: there are a dozen classes
        reason = one_line(error)
        raise OutputError(f"ONNX Runtime cannot write this model in its own format: {reason}") from error


__all__ = ["convert"]
