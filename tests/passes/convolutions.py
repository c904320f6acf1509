"""Convolutions of one node, for tests of the passes that give ONNX Runtime's blocked kernels another form of them."""

from __future__ import annotations

import numpy as np


def convolution(
    attributes: str,
    *,
    image: str,
    weight: tuple[int, ...],
    conv: str = "Conv",
    dtype: str = "float",
    number: str = "-0.375",
) -> str:
    """A convolution with a bias, as text.

    Args:
        attributes: Of the node.
        image: The dimensions of the image.
        weight: The dimensions of the weight.
        conv: The op.
        dtype: The element type.
        number: The first element of the weight.
    """
    numbers = ",".join([number] + [str(((3 * place) % 7 - 3) / 8) for place in range(1, int(np.prod(weight)))])
    bias = ", ".join(str(place % 5) for place in range(weight[0]))
    return f"""main ({dtype}[{image}] x) => ({dtype}[A,B,C,D] y)
        <{dtype}[{",".join(map(str, weight))}] w = {{{numbers}}}, {dtype}[{weight[0]}] b = {{{bias}}}> {{
            y = {conv} <{attributes}> (x, w, b)
        }}"""
