"""From which opset of ai.onnx on an op has the form of today, each fact once.

Tables are by op type; the number is the first opset with the new form. The attributes that became inputs are checked
against ONNX's schemas.
"""

from __future__ import annotations

from typing import Final

from ortopt.semantics.op_traits import REDUCTIONS

AXES_ARE_AN_INPUT_FROM: Final = {
    **dict.fromkeys(sorted(REDUCTIONS), 18),
    "ReduceSum": 13,
    "Squeeze": 13,
    "Unsqueeze": 13,
}
"""Ops whose ``axes`` are an attribute before, the second input from then on."""

BOUNDS_ARE_INPUTS_FROM: Final = {"Clip": 11, "Slice": 10}
"""Ops whose bounds (``min`` and ``max``; ``starts``, ``ends`` and ``axes``) are attributes before."""

PADS_ARE_AN_INPUT_FROM: Final = {"Pad": 11}
"""Ops whose ``pads`` are an attribute before."""

SCALES_ARE_AN_INPUT_FROM: Final = {"Upsample": 9}
"""Ops whose ``scales`` are an attribute before."""

SIZES_ARE_AN_INPUT_FROM: Final = {"Split": 13}
"""Ops whose parts' sizes (``split``) are an attribute before."""

REGION_IS_AN_INPUT_FROM: Final = {"Resize": 11}
"""Ops whose second input is a region of interest, and whose sizes may be given instead of scales."""

ONE_AXIS_FROM: Final = {"Hardmax": 13, "LogSoftmax": 13, "Softmax": 13}
"""Ops that go along one axis, by default the last; before, all dimensions from the axis on are one, by default 1."""

BROADCASTS_FROM: Final = 7
"""The opset from which operands broadcast as in numpy; before, attributes say whether and where."""

CONSTANTS_OF_ANY_TYPE_FROM: Final = 9
"""The opset from which a Constant node holds tensors of any type; before, only of floats."""

DEPTH_TO_SPACE_HAS_MODES_FROM: Final = 11
"""The opset from which a DepthToSpace may join columns and rows before depth; before, it has no ``mode``."""

SCAN_HAS_NO_BATCH_FROM: Final = 9
"""The opset from which a Scan's inputs have no batch axis in front."""

DFT_AXIS_IS_AN_INPUT_FROM: Final = 20
"""The opset from which the axis of a DFT is an input; before, it is an attribute."""

SHAPE_HAS_AN_END_FROM: Final = 15
"""The opset from which a Shape may give some of the dimensions only."""

RESHAPE_ALLOWS_ZERO_FROM: Final = 14
"""From here on a Reshape may be told that a 0 in the shape is one, and no dimension of what it reads."""
