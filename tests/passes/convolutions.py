"""Convolutions of one node, for tests of the passes that give ONNX Runtime's blocked kernels another form of them."""

from __future__ import annotations

import numpy as np


def convolution(attributes: str, *, image: str, weight: tuple[int, ...]) -> str:
    """A convolution with a bias, as text.

    Args:
        attributes: Of the node.
        image: The dimensions of the image.
        weight: The dimensions of the weight.
    """
    numbers = ",".join(str(((3 * place) % 7 - 3) / 8) for place in range(int(np.prod(weight))))
    bias = ", ".join(str(place % 5) for place in range(weight[0]))
    return f"""main (float[{image}] x) => (float[{"A,B,C,D"[: 2 * len(weight) - 1]}] y)
        <float[{",".join(map(str, weight))}] w = {{{numbers}}}, float[{weight[0]}] b = {{{bias}}}> {{
            y = Conv <{attributes}> (x, w, b)
        }}"""
