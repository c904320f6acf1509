"""Products of matrices: MatMul, Gemm, and what ONNX Runtime makes of them."""

from __future__ import annotations

from ortopt.graph.match import attribute
from ortopt.ops.reader import Reader


class MatMul(Reader):
    """A MatMul, FusedMatMul or Gemm: what the op has no attribute for, it does not do."""

    __slots__ = ()

    @property
    def transposes_a(self) -> bool:
        """Whether the last two axes of the first operand are exchanged."""
        return attribute(self.node, "transA", 0) != 0

    @property
    def transposes_b(self) -> bool:
        """Whether the last two axes of the second operand are exchanged."""
        return attribute(self.node, "transB", 0) != 0

    @property
    def moves_batches(self) -> bool:
        """Whether the first axis of an operand goes to the last but one place (FusedMatMul)."""
        return any(attribute(self.node, name, 0) for name in ("transBatchA", "transBatchB"))

    @property
    def alpha(self) -> float:
        """What the product is multiplied by."""
        return attribute(self.node, "alpha", 1.0)


class Gemm(MatMul):
    """A Gemm."""

    __slots__ = ()

    @property
    def beta(self) -> float:
        """What the summand is multiplied by."""
        return attribute(self.node, "beta", 1.0)
