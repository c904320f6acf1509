"""Shape rules, one module a family of ops; importing this registers them all."""

from ortopt.analysis.shape_rules import (
    attention,
    control_flow,
    convolution,
    elementwise,
    matmul,
    reductions,
    reshaping,
    slicing,
)
from ortopt.analysis.shape_rules.registry import RULES

__all__ = [
    "RULES",
    "attention",
    "control_flow",
    "convolution",
    "elementwise",
    "matmul",
    "normalization",
    "quantized_ops",
    "recurrent",
    "reductions",
    "reshaping",
    "signal",
    "slicing",
]
