"""Convolutions, pooling and products of matrices, what ONNX Runtime makes of them, and activations behind them."""

from __future__ import annotations

from typing import Final

from ortopt.graph.match import attribute, inputs, need, rank, static_dims
from ortopt.ops.reader import Reader

_WEIGHT: Final = {"QLinearConv": 3}
"""Which input the weights are, where they are not the second."""


class Window(Reader):
    """A convolution or a pooling with a window."""

    __slots__ = ()

    @property
    def spatial(self) -> int:
        """Along how many axes the window moves.

        Raises:
            Refusal: If it is not known.
        """
        return len(self._given("kernel_shape") or ()) or rank(inputs(self.node, 1)[0]) - 2

    @property
    def kernel(self) -> tuple[int, ...]:
        """The sizes of the window.

        Raises:
            Refusal: If they are not known.
        """
        return self._given("kernel_shape") or ()

    @property
    def strides(self) -> tuple[int, ...]:
        """How far the window moves, along each axis."""
        return self._along_each("strides", 1)

    @property
    def dilations(self) -> tuple[int, ...]:
        """How far the places that it reads lie apart, along each axis."""
        return self._along_each("dilations", 1)

    @property
    def pads(self) -> tuple[int, ...]:
        """What is added before each axis, then behind each.

        Raises:
            Refusal: If it is computed from the sizes, or said to be none in another way.
        """
        need(self.auto_pad == "NOTSET", "its padding is not written out", self.node)
        return self.stated_pads

    @property
    def stated_pads(self) -> tuple[int, ...]:
        """As `pads`, whatever ``auto_pad`` says."""
        return self._along_each("pads", 0, 2)

    @property
    def auto_pad(self) -> str:
        """How the padding is said: NOTSET where it is written out."""
        return attribute(self.node, "auto_pad", "NOTSET") or "NOTSET"

    @property
    def is_padded(self) -> bool:
        """Whether anything may be added, or removed, around the image."""
        return self.auto_pad not in ("NOTSET", "VALID") or any(self._given("pads") or ())

    @property
    def moves_by_one(self) -> bool:
        """Whether it has neither strides nor dilations."""
        return {*(self._given("strides") or ()), *(self._given("dilations") or ())} <= {1}

    def _along_each(self, name: str, default: int, times: int = 1) -> tuple[int, ...]:
        given = self._given(name)
        return (default,) * times * self.spatial if given is None else given


class Pool(Window):
    """An AveragePool, MaxPool or LpPool."""

    __slots__ = ()

    @property
    def rounds_up(self) -> bool:
        """Whether a last window may begin within the image and end outside of the padding."""
        return attribute(self.node, "ceil_mode", 0) == 1

    @property
    def counts_padding(self) -> bool:
        """Whether an average counts what is added around."""
        return attribute(self.node, "count_include_pad", 0) != 0


class Conv(Window):
    """A Conv, ConvTranspose, or an op that computes one among others: FusedConv, QLinearConv, ConvInteger."""

    __slots__ = ()

    @property
    def group(self) -> int:
        """Into how many groups the channels are divided."""
        return attribute(self.node, "group", 1)

    @property
    def spatial(self) -> int:
        """Along how many axes the window moves.

        Raises:
            Refusal: If it is not known.
        """
        place = _WEIGHT.get(self.node.op_type, 1)
        return len(self._given("kernel_shape") or ()) or rank(inputs(self.node, place + 1)[place]) - 2

    @property
    def kernel(self) -> tuple[int, ...]:
        """The sizes of the window, which those of the weights are.

        Raises:
            Refusal: If they are not known.
        """
        place = _WEIGHT.get(self.node.op_type, 1)
        return self._given("kernel_shape") or static_dims(inputs(self.node, place + 1)[place])[2:]

    @property
    def is_plain(self) -> bool:
        """Whether it has neither groups, nor strides, nor dilations."""
        return self.group == 1 and self.moves_by_one


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


_PARAMETERS: Final = {
    "Celu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "ThresholdedRelu": {"alpha": 1.0},
}
"""The defaults of the specification."""


class Activation(Reader):
    """An activation with numbers for attributes, or without any."""

    __slots__ = ()

    @property
    def parameters(self) -> dict[str, float]:
        """Its attributes, or their defaults."""
        defaults = _PARAMETERS.get(self.node.op_type, {})
        return {name: float(attribute(self.node, name, default)) for name, default in defaults.items()}
