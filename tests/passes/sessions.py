"""What ONNX Runtime makes of models before and after a pass, and what they compute there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from ortopt import optimize
from ortopt.api import figures
from ortopt.options import Options
from ortopt.serialization.save import to_bytes
from ortopt.testing import DEFAULT_OPSET, parse, run
from tests.sessions import unoptimized

LEVELS = ort.GraphOptimizationLevel


def passed(name: str, text: str, opset: int = DEFAULT_OPSET, options: Options | None = None) -> ir.Model:
    """A model after a pass, which changes it."""
    model = parse(text, opset)
    assert run(name, model, options=options)[0]
    return model


def loaded(model: ir.Model, folder: Path, level: LEVELS = LEVELS.ORT_ENABLE_ALL) -> list[str]:
    """The ops that ONNX Runtime makes of a model when it loads it, by default with all its optimizations."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(folder / "loaded.onnx")
    ort.InferenceSession(to_bytes(model), options, ["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


class Compared:
    """A model before and after a pass that changes it, in sessions without optimizations.

    Args:
        name: The pass.
        text: The model.
        opset: The version of ai.onnx.
    """

    def __init__(self, name: str, text: str, opset: int = DEFAULT_OPSET) -> None:
        self._sessions = [unoptimized(model) for model in (parse(text, opset), passed(name, text, opset))]

    def results(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The first result before, and after."""
        before, after = (session.run(None, dict(inputs))[0] for session in self._sessions)
        return before, after


def check_second_run(text: str, ops: Mapping[str, int], opset: int = DEFAULT_OPSET) -> None:
    """Check what level 3 makes of a model, and that it leaves that as it is."""
    result = optimize(parse(text, opset), level=3, verify=False).model
    assert figures(result).ops == dict(ops)
    assert to_bytes(optimize(result, level=3, verify=False).model) == to_bytes(result)
