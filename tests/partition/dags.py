"""Seeded graphs of five shapes: what the policies are compared on."""

from __future__ import annotations

import random

from ortopt.partition.dag import Dag

SHAPES = ("chain", "tree", "layers", "random", "diamonds")


def draw(shape: str, seed: int, most: int = 40) -> Dag:
    """A graph with branching, multiple results, items of the host, and inputs of its own.

    Args:
        shape: One of `SHAPES`.
        seed: The same seed gives the same graph.
        most: How many items at most.
    """
    rng = random.Random(f"{shape}{seed}")
    count = rng.randint(1, most)
    inputs = list(range(rng.randint(1, 3)))
    values = len(inputs)
    reads: list[tuple[int, ...]] = []
    writes: list[tuple[int, ...]] = []
    operands: list[int] = []
    for item in range(count):
        known = [value for row in writes for value in row]
        drawn = _operands(rng, shape, item, known, writes, inputs)
        reads.append(tuple(dict.fromkeys(drawn)))
        operands.append(len(drawn))
        results = 2 if rng.random() < 0.15 else 1
        writes.append(tuple(range(values, values + results)))
        values += results
    read = {value for row in reads for value in row}
    wanted = {value for row in writes for value in row if value not in read and rng.random() < 0.9}
    wanted |= {value for row in writes for value in row if rng.random() < 0.05}
    share = rng.choice([0.0, 0.1, 0.3])
    colors = [0 if rng.random() < share else 1 for _ in range(count)]
    if rng.random() < 0.2:
        colors = [color and rng.choice([1, 2]) for color in colors]
    return Dag(reads, writes, frozenset(wanted), colors, operands=operands)


def _operands(
    rng: random.Random, shape: str, item: int, known: list[int], writes: list[tuple[int, ...]], inputs: list[int]
) -> list[int]:
    if not known:
        return [rng.choice(inputs)]
    last = writes[-1][0]
    if shape == "chain":  # with skips, as a residual network has
        return [last, *([rng.choice(known)] if rng.random() < 0.3 else [])]
    if shape == "tree":
        return [rng.choice(known + inputs)]
    if shape == "layers":
        width = 4
        start = max(0, item - item % width - width) * (item >= width)
        layer = [value for row in writes[start : item - item % width] for value in row] or inputs
        return [rng.choice(layer) for _ in range(rng.randint(1, 3))]
    if shape == "diamonds":
        return [last] if item % 3 else [writes[item - 1][0], *([writes[item - 2][0]] if item > 1 else [])]
    return [rng.choice(known + inputs) for _ in range(rng.randint(0, 4))]
