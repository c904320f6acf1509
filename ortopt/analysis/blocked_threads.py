"""How ONNX Runtime divides convolutions in its blocked layout among threads.

A thread computes whole rows of four blocks of channels. An image has many rows; a signal that has become an image of
height 1 is one, and with 64 channels or fewer its kernel runs on one thread, however many there are. Kernels of the
usual layout divide the positions of a row as well, so a form that is faster with one thread may lose with two.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.analysis.blocked_layout import BLOCK
from ortopt.graph import scope

CHANNELS_OF_A_THREAD: Final = 4 * BLOCK
"""Channels of a result that one thread computes at least."""

LARGEST_SHARE: Final = 0.55
"""What the busier of two threads may have of the work: with 80, 96, 160 and 192 channels of a signal two threads were
0.66 to 0.91 times as fast as with the kernel for signals, with 128 and 256 channels 1.0 and more."""


def is_divided(convolution: ir.Node, outputs: int, *, is_little: bool) -> bool:
    """Whether two threads divide a convolution of one row in blocks, or it need not gain by two.

    Args:
        convolution: The convolution; where the result runs with one thread, none has to be divided.
        outputs: The channels of the result.
        is_little: Whether there is so little to do that one thread is faster than two.
    """
    if is_little or scope.of(scope.graph_of(convolution)).options.for_threads == 1:
        return True
    sets = -(-outputs // CHANNELS_OF_A_THREAD)
    return -(-sets // 2) * CHANNELS_OF_A_THREAD <= LARGEST_SHARE * outputs


__all__ = ["CHANNELS_OF_A_THREAD", "LARGEST_SHARE", "is_divided"]
