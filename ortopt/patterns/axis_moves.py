"""What a Transpose moves, as ONNX Runtime's kernel on the CPU sees it."""

from collections.abc import Sequence


def moves_one(order: Sequence[int]) -> bool:
    """Whether all axes but one, at most, keep their order: the kernel is fast then.

    Args:
        order: The order of the axes.
    """
    return any((rest := [each for each in order if each != moved]) == sorted(rest) for moved in order)


def is_slow(order: Sequence[int]) -> bool:
    """Whether a Transpose goes element by element: it ends with another axis, and moves several.

    Args:
        order: The order of the axes.
    """
    return bool(order) and order[-1] != len(order) - 1 and not moves_one(order)


__all__ = ["is_slow", "moves_one"]
