"""What rules for the kernels of ONNX Runtime on the CPU have in common."""

from __future__ import annotations

from typing import ClassVar

from ortopt.analysis.kernels import CPU
from ortopt.options import Target, TransformerLevel
from ortopt.rule import FoundT, RewriteRule

FOR_BLOCKS = "the blocked kernels are"
MEASURED = "the gain was measured"
"""What is for single precision only (see `need_float32`)."""


class CpuRule(RewriteRule[FoundT]):
    """A rule for a form that ONNX Runtime computes faster on the CPU."""

    levels = (TransformerLevel.LEVEL3,)
    providers = (CPU,)
    targets: ClassVar[tuple[Target, ...]] = (Target.ORT,)
