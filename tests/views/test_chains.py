"""Random chains of moves: the map that is read is what ONNX Runtime computes, and so is the chain that is built."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from msgspec import Struct

from ortopt.graph import symbolic
from ortopt.graph.match import Dim, Refusal, inputs
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse, run
from ortopt.views import emission, reading
from ortopt.views.emission import Chain
from ortopt.views.index_map import IndexMap

SIZES = {"N": 2, "M": 3}
LONGEST = 5
MOVES = ("Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
BLOCKS, CHAINS = 8, 50
MIN_READ, MIN_BUILT = 20, 12
"""Of the chains of a block: others take elements in no affine order, or do nothing."""


class Drawing:
    """A random chain of moves, as text.

    Args:
        seed: What it is drawn from.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        rank = self.random.randint(1, 4)
        self.declared = [self.random.choice(["N", "M", 1, 2, 3, 4, 6]) for _ in range(rank)]
        self.shape = [SIZES.get(str(dim), dim) for dim in self.declared]
        assert all(isinstance(size, int) for size in self.shape)
        self.source = tuple(self.shape)
        self.lines: list[str] = []
        self.constants: list[str] = []
        self.value = "x"
        for _ in range(self.random.randint(1, LONGEST)):
            self.random.choice([self.transpose, self.reshape, self.ones, self.slice, self.split, self.gather,
                                self.concat, self.expand, self.blocks, self.flatten])()  # fmt: skip

    def named(self, numbers: list[int], shape: str | None = None) -> str:
        name = f"c{len(self.constants)}"
        shape = f"[{len(numbers)}]" if shape is None else shape
        self.constants.append(f"int64{shape} {name} = {{{', '.join(map(str, numbers))}}}")
        return name

    def add(self, call: str, shape: list[int]) -> None:
        self.lines.append(f"v{len(self.lines)} = {call}")
        self.value, self.shape = f"v{len(self.lines) - 1}", shape

    def transpose(self) -> None:
        if not self.shape:
            return
        order = self.random.sample(range(len(self.shape)), len(self.shape))
        self.add(f"Transpose <perm = {order}> ({self.value})", [self.shape[axis] for axis in order])

    def reshape(self) -> None:
        primes = [self.random.choice([1, 2, 3, 4]) for _ in range(self.random.randint(0, 3))]
        total, shape = math.prod(self.shape), []
        for size in primes:
            if total % size == 0:
                shape.append(size)
                total //= size
        shape.insert(self.random.randint(0, len(shape)), total)
        target = [0 if axis < len(self.shape) and self.shape[axis] == size and self.random.random() < 0.5 else size
                  for axis, size in enumerate(shape)]  # fmt: skip
        if self.random.random() < 0.5:
            target[self.random.randrange(len(target))] = -1
        self.add(f"Reshape ({self.value}, {self.named(target)})", shape)

    def flatten(self) -> None:
        axis = self.random.randint(0, len(self.shape))
        shape = [math.prod(self.shape[:axis]), math.prod(self.shape[axis:])]
        self.add(f"Flatten <axis = {axis}> ({self.value})", shape)

    def ones(self) -> None:
        ones = [axis for axis, size in enumerate(self.shape) if size == 1]
        if ones and self.random.random() < 0.5:
            axis = self.random.choice(ones)
            self.add(f"Squeeze ({self.value}, {self.named([axis])})", self.shape[:axis] + self.shape[axis + 1 :])
        else:
            axis = self.random.randint(0, len(self.shape))
            self.add(f"Unsqueeze ({self.value}, {self.named([axis])})", [*self.shape[:axis], 1, *self.shape[axis:]])

    def slice(self) -> None:
        if not self.shape:
            return
        axis = self.random.randrange(len(self.shape))
        size, step = self.shape[axis], self.random.choice([1, 1, 2, 3, -1, -2])
        start, end = (
            self.random.randint(-size - 1, size + 1),
            self.random.choice([self.random.randint(-size - 1, size + 1), 2**63 - 1]),
        )
        if step < 0 and end == 2**63 - 1:
            end = -1000
        taken = len(np.arange(size)[slice(start, end, step)])
        if taken:
            lists = ", ".join(self.named([number]) for number in (start, end, axis, step))
            self.add(f"Slice ({self.value}, {lists})", [*self.shape[:axis], taken, *self.shape[axis + 1 :]])

    def split(self) -> None:
        axes = [axis for axis, size in enumerate(self.shape) if size > 1]
        if axes:
            axis = self.random.choice(axes)
            first = self.random.randint(1, self.shape[axis] - 1)
            sizes, place = (first, self.shape[axis] - first), self.random.randint(0, 1)
            name = f"v{len(self.lines)}"
            results = (name, f"{name}_other") if place == 0 else (f"{name}_other", name)
            self.lines.append(f"{', '.join(results)} = Split <axis = {axis}> ({self.value}, {self.named(list(sizes))})")
            self.value, self.shape = name, [*self.shape[:axis], sizes[place], *self.shape[axis + 1 :]]

    def gather(self) -> None:
        if not self.shape:
            return
        axis = self.random.randrange(len(self.shape))
        size = self.shape[axis]
        kind = self.random.choice(["one", "few", "pairs"])
        if kind == "one":
            self.add(f"Gather <axis = {axis}> ({self.value}, {self.named([self.random.randint(-size, size - 1)], '')})",
                     self.shape[:axis] + self.shape[axis + 1 :])  # fmt: skip
            return
        numbers = [self.random.randint(0, size - 1) for _ in range(self.random.randint(1, 4))]
        if kind == "pairs":
            numbers = [min(first + second, size - 1) for first in range(0, size, 2) for second in range(2)]
            self.add(f"Gather <axis = {axis}> ({self.value}, {self.named(numbers, f'[{len(numbers) // 2},2]')})",
                     [*self.shape[:axis], len(numbers) // 2, 2, *self.shape[axis + 1 :]])  # fmt: skip
            return
        self.add(f"Gather <axis = {axis}> ({self.value}, {self.named(numbers)})",
                 [*self.shape[:axis], len(numbers), *self.shape[axis + 1 :]])  # fmt: skip

    def concat(self) -> None:
        """Strided slices of a value, or its parts, are joined."""
        axes = [axis for axis, size in enumerate(self.shape) if size > 1]
        if not axes:
            return
        axis, along = self.random.choice(axes), self.random.randrange(len(self.shape))
        step = self.random.choice(
            [number for number in range(2, self.shape[axis] + 1) if self.shape[axis] % number == 0]
        )
        count = self.shape[axis] // step
        strided, order = self.random.random() < 0.5, self.random.sample(range(step), step)
        if self.random.random() < 0.7:
            order.sort()
        parts = []
        for place in order:
            start, end, by = (place, 2**63 - 1, step) if strided else (place * count, (place + 1) * count, 1)
            part = f"v{len(self.lines)}_{place}"
            lists = ", ".join(self.named([number]) for number in (start, end, axis, by))
            self.lines.append(f"{part} = Slice ({self.value}, {lists})")
            parts.append(part)
        shape = list(self.shape)
        shape[axis] = count
        shape[along] *= step
        self.add(f"Concat <axis = {along}> ({', '.join(parts)})", shape)

    def expand(self) -> None:
        shape = [self.random.choice([1, 2, 3]) if size == 1 else size for size in self.shape]
        shape = [2] * self.random.randint(0, 1) + shape
        aligned = [1] * (len(shape) - len(self.shape)) + self.shape
        target = [1 if self.random.random() < 0.5 and size == own else size
                  for size, own in zip(shape, aligned, strict=True)]  # fmt: skip
        self.add(f"Expand ({self.value}, {self.named(target)})", shape)

    def blocks(self) -> None:
        if len(self.shape) != 4:
            return
        batch, channels, height, width = self.shape
        if channels % 4 == 0:
            mode = self.random.choice(["DCR", "CRD"])
            self.add(
                f'DepthToSpace <blocksize = 2, mode = "{mode}"> ({self.value})',
                [batch, channels // 4, height * 2, width * 2],
            )
        elif height % 2 == 0 and width % 2 == 0:
            self.add(f"SpaceToDepth <blocksize = 2> ({self.value})", [batch, channels * 4, height // 2, width // 2])

    @property
    def model(self) -> ir.Model:
        rank = len(self.shape)
        declared, result = ",".join(map(str, self.declared)), ",".join(f"R{place}" for place in range(rank))
        constants = f"<{', '.join(self.constants)}>" if self.constants else ""
        lines = " ".join([*self.lines, f"y = Identity ({self.value})"])
        return parse(f"main (float[{declared}] x) => (float[{result}] y) {constants} {{ {lines} }}")


def number(dim: Dim) -> int:
    found = symbolic.substitute(dim, dict(SIZES))
    assert isinstance(found, int)
    return found


def places(found: IndexMap) -> np.ndarray:
    """The places in the source that a map says."""
    result = np.full((), number(found.offset))
    for axis in itertools.chain(*found.groups):
        result = result[..., None] + np.arange(number(axis.size)) * number(axis.stride)
    return result.reshape([number(dim) for dim in found.dims])


def computed(model: ir.Model, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(bytes(to_bytes(model)), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": x})
    return np.asarray(result)


class Found(Struct, frozen=True):
    """What ends a chain, and the chain that computes the same."""

    nodes: tuple[ir.Node, ...]
    chain: Chain


class Again(RewriteRule[Found]):
    """A chain of moves → the cheapest one."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Identity",)

    def __init__(self) -> None:
        self.found: IndexMap | None = None
        self.chain: Chain | None = None

    def match(self, root: ir.Node) -> Found:
        (value,) = inputs(root, 1)
        (x,) = root.graph.inputs
        self.found = next((one for one in reading.maps(value) if one.source is x), None)
        if self.found is None:
            raise Refusal("it is no map", root)
        self.chain = emission.chain(self.found, root)
        return Found((root,), self.chain)

    def rewrite(self, found: Found) -> ir.Value:
        return found.chain.build()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_is_read_and_what_is_built_compute_the_same(block: int) -> None:
    read = built = 0
    for seed in range(block * CHAINS, (block + 1) * CHAINS):
        drawing, again = Drawing(seed), Again()
        x = np.arange(math.prod(drawing.source), dtype=np.float32).reshape(drawing.source)
        model = drawing.model
        expected = computed(model, x)
        changed, _ = run(again, model)
        if again.found is not None:
            assert np.array_equal(places(again.found), expected), f"seed {seed}: {drawing.lines} is read otherwise"
            read += 1
        if changed and again.chain is not None:
            assert np.array_equal(computed(model, x), expected), f"seed {seed}: {drawing.lines} is built otherwise"
            moves = [node.op_type for node in model.graph if node.op_type in MOVES]
            computes_sizes = any(node.op_type == "Shape" for node in model.graph)
            assert computes_sizes or len(moves) == again.chain.nodes, f"seed {seed}: {drawing.lines} becomes {moves}"
            assert moves.count("Transpose") == again.chain.transposes <= 1
            built += 1
    assert read >= MIN_READ
    assert built >= MIN_BUILT
