"""What is left of the allowed growth, as a result tells it: a run on a result goes on where the one before stopped.

Else a run would have a new allowance each time, and a second run would fold what was too large for the first.
"""

from __future__ import annotations

import re
from typing import Final

import onnx_ir as ir

from ortopt import semantics
from ortopt.framework.workspace import Workspace
from ortopt.options import Options

KEY: Final = "ortopt.growth_left"
"""The model's metadata that says for which `Options.max_growth` how many bytes are left."""

_DEFAULT: Final = "default"
_NUMBER: Final = re.compile("[0-9]{1,18}")


def allowed_growth(model: ir.Model, original_bytes: int, options: Options) -> int:
    """The bytes by which a run's result may exceed its original; what the original says allows no more than there is.

    Args:
        model: The original.
        original_bytes: Bytes of its constants.
        options: Options of the run.
    """
    allowance = semantics.growth_allowance(original_bytes, options)
    left = _left(model, options)
    return allowance if left is None else min(allowance, left)


def record_growth(workspace: Workspace) -> None:
    """Let a result say how many bytes are left, where anything was too large, in this run or in one before.

    That is less than the smallest constant that was refused: what has been freed since does not make room for it.

    Args:
        workspace: Of a run that has ended.
    """
    model, refused = workspace.model, workspace.state.too_large
    if not refused and _left(model, workspace.options) is None:
        model.metadata_props.pop(KEY, None)  # of another allowance
        return
    below = (nbytes - 1 for nbytes in refused.values())
    left = max(0, min(workspace.allowance, workspace.allowance - workspace.edit.added_bytes, *below))
    model.metadata_props[KEY] = f"{_label(workspace.options)} {left}"


def _left(model: ir.Model, options: Options) -> int | None:
    """How many bytes are left of the same allowance, if the model says so."""
    label, _, number = model.metadata_props.get(KEY, "").partition(" ")
    return int(number) if label == _label(options) and _NUMBER.fullmatch(number) else None


def _label(options: Options) -> str:
    return _DEFAULT if options.max_growth is None else str(options.max_growth)
