"""Small random graphs like those that exporters from channels-last frameworks write: transposes around everything."""

from __future__ import annotations

import random

NHWC_TO_NCHW = (0, 3, 1, 2)
NCHW_TO_NHWC = (0, 2, 3, 1)
OPSETS = (7, 9, 11, 13, 18, 21)


def _type(shape: tuple[int, ...]) -> str:
    return f"float[{','.join(map(str, shape))}]" if shape else "float"


_MIN_RANK = {
    **dict.fromkeys(("transpose", "concat", "softmax", "reduce", "slice", "split", "pad", "gather"), 1),
    **dict.fromkeys(("reshape", "matmul"), 2),
}
"""The least rank of what an op takes, where it is not 0."""


class Graph:
    """Writes a model's text, statement by statement.

    Args:
        seed: What to draw from.
        steps: How many ops to draw.
    """

    def __init__(self, seed: int, steps: int = 12) -> None:
        self._random = random.Random(seed)
        self.opset = self._random.choice(OPSETS)
        self._statements: list[str] = []
        self._constants: list[str] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._count = 0
        self._inputs: list[str] = []
        for _ in range(self._random.choice((1, 1, 2))):
            self._input((self._random.choice((1, 2)), 4, self._random.choice((1, 3)), 6))
        for _ in range(steps):
            self._step()

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _input(self, shape: tuple[int, ...]) -> None:
        name = self._name()
        self._shapes[name] = shape
        self._inputs.append(name)

    def _constant(self, shape: tuple[int, ...]) -> str:
        name = self._name()
        size = 1
        for dim in shape:
            size *= dim
        content = ", ".join(f"{self._random.uniform(-1, 1):.3f}" for _ in range(size))
        self._constants.append(f"{_type(shape)} {name} = {{{content}}}")
        return name

    def _integers(self, content: list[int]) -> str:
        name = self._name()
        self._constants.append(f"int64[{len(content)}] {name} = {{{', '.join(map(str, content))}}}")
        return name

    def _add(self, op: str, inputs: list[str], shape: tuple[int, ...], attributes: str = "") -> str:
        name = self._name()
        mark = f"<{attributes}>" if attributes else ""
        self._statements.append(f"{name} = {op}{mark} ({', '.join(inputs)})")
        self._shapes[name] = shape
        return name

    def _transpose(self, x: str, perm: tuple[int, ...]) -> str:
        shape = self._shapes[x]
        return self._add("Transpose", [x], tuple(shape[axis] for axis in perm), f"perm = {list(perm)}")

    def _step(self) -> None:
        draw = self._random
        x = draw.choice(list(self._shapes)[-4:])
        shape = self._shapes[x]
        rank = len(shape)
        axis = draw.randrange(rank) if rank else 0
        kind = draw.choice(
            ["transpose"] * 6
            + ["unary", "add", "add", "constant", "constant", "concat", "softmax", "reduce", "slice", "split", "pad"]
            + ["conv", "conv", "gather", "unsqueeze", "squeeze", "reshape", "matmul", "gemm", "where", "block"]
        )
        if rank >= _MIN_RANK.get(kind, 0):
            getattr(self, f"_draw_{kind}")(x, shape, axis)

    def _alike(self, shape: tuple[int, ...]) -> str:
        return self._random.choice([name for name, other in self._shapes.items() if other == shape])

    def _draw_transpose(self, x: str, shape: tuple[int, ...], _: int) -> None:
        perm = list(range(len(shape)))
        self._random.shuffle(perm)
        if len(shape) == 4:
            common = (NHWC_TO_NCHW, NCHW_TO_NHWC, NCHW_TO_NHWC, NHWC_TO_NCHW, perm)
            perm = list(self._random.choice(common))
        self._transpose(x, tuple(perm))

    def _draw_block(self, x: str, shape: tuple[int, ...], _: int) -> None:
        if len(shape) == 4:
            self._conv(self._transpose(x, NHWC_TO_NCHW))
            self._transpose(next(reversed(self._shapes)), NCHW_TO_NHWC)

    def _draw_unary(self, x: str, shape: tuple[int, ...], _: int) -> None:
        self._add(self._random.choice(("Relu", "Tanh", "Neg", "Sigmoid", "Identity")), [x], shape)

    def _draw_add(self, x: str, shape: tuple[int, ...], _: int) -> None:
        op = self._random.choice(("Add", "Mul", "Sub"))
        self._add(op, self._random.sample([x, self._alike(shape)], 2), shape)

    def _draw_constant(self, x: str, shape: tuple[int, ...], _: int) -> None:
        draw = self._random
        own = tuple(dim if draw.random() < 0.7 else 1 for dim in shape)[draw.randrange(len(shape) + 1) :]
        self._add(draw.choice(("Add", "Mul")), draw.sample([x, self._constant(own)], 2), shape)

    def _draw_where(self, x: str, shape: tuple[int, ...], _: int) -> None:
        if self.opset >= 9:
            mask = self._name()
            self._statements.append(f"{mask} = Greater ({x}, {self._constant(shape[-1:])})")
            self._add("Where", [mask, x, self._constant(())], shape)

    def _draw_concat(self, x: str, shape: tuple[int, ...], axis: int) -> None:
        joined = tuple(dim * 2 if at == axis else dim for at, dim in enumerate(shape))
        self._add("Concat", [x, self._alike(shape)], joined, f"axis = {axis}")

    def _draw_softmax(self, x: str, shape: tuple[int, ...], axis: int) -> None:
        self._add("Softmax", [x], shape, f"axis = {axis}")

    def _draw_reduce(self, x: str, shape: tuple[int, ...], _: int) -> None:
        draw, rank = self._random, len(shape)
        keeps = draw.randrange(2)
        axes = sorted(draw.sample(range(rank), draw.choice((1, min(2, rank)))))
        left = tuple(1 if at in axes else dim for at, dim in enumerate(shape) if keeps or at not in axes)
        if self.opset >= 18:
            self._add("ReduceMean", [x, self._integers(axes)], left, f"keepdims = {keeps}")
        else:
            self._add("ReduceMean", [x], left, f"axes = {axes}, keepdims = {keeps}")

    def _draw_slice(self, x: str, shape: tuple[int, ...], axis: int) -> None:
        if self.opset >= 10:
            cut = tuple(min(dim, 2) if at == axis else dim for at, dim in enumerate(shape))
            axes = self._integers([0]), self._integers([2]), self._integers([axis - len(shape)])
            self._add("Slice", [x, *axes], cut)

    def _draw_split(self, x: str, shape: tuple[int, ...], axis: int) -> None:
        if shape[axis] % 2 == 0 and self.opset < 18:
            part = tuple(dim // 2 if at == axis else dim for at, dim in enumerate(shape))
            other = self._name()
            first = self._add("Split", [x], part, f"axis = {axis}")
            self._statements[-1] = self._statements[-1].replace(f"{first} =", f"{first}, {other} =")
            self._shapes[other] = part

    def _draw_pad(self, x: str, shape: tuple[int, ...], _: int) -> None:
        rank = len(shape)
        pads = [self._random.randrange(2) for _ in range(2 * rank)]
        grown = tuple(dim + pads[at] + pads[at + rank] for at, dim in enumerate(shape))
        if max(grown) > 12:
            return
        if self.opset >= 11:
            self._add("Pad", [x, self._integers(pads)], grown)
        else:
            self._add("Pad", [x], grown, f"pads = {pads}")

    def _draw_conv(self, x: str, shape: tuple[int, ...], _: int) -> None:
        if len(shape) == 4:
            self._conv(x)

    def _draw_gather(self, x: str, shape: tuple[int, ...], axis: int) -> None:
        count = self._random.choice((1, 2))
        picked = (*shape[:axis], count, *shape[axis + 1 :])
        self._add("Gather", [x, self._integers([0, -1][:count])], picked, f"axis = {axis}")

    def _draw_unsqueeze(self, x: str, shape: tuple[int, ...], _: int) -> None:
        if len(shape) < 5:
            at = self._random.randrange(len(shape) + 1)
            self._with_axes("Unsqueeze", x, [at], (*shape[:at], 1, *shape[at:]))

    def _draw_squeeze(self, x: str, shape: tuple[int, ...], _: int) -> None:
        if 1 in shape:
            at = shape.index(1)
            self._with_axes("Squeeze", x, [at], (*shape[:at], *shape[at + 1 :]))

    def _draw_reshape(self, x: str, shape: tuple[int, ...], _: int) -> None:
        at = self._random.randrange(len(shape) - 1)
        joined = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
        self._add("Reshape", [x, self._integers(list(joined))], joined)

    def _draw_matmul(self, x: str, shape: tuple[int, ...], _: int) -> None:
        self._add("MatMul", [x, self._constant((shape[-1], 3))], (*shape[:-1], 3))

    def _draw_gemm(self, x: str, shape: tuple[int, ...], _: int) -> None:
        if len(shape) == 2:
            flag = self._random.randrange(2)
            inner, outer = shape[::-1] if not flag else shape
            other = self._constant((2, inner))
            self._add("Gemm", [x, other, self._constant((2,))], (outer, 2), f"transA = {flag}, transB = 1")

    def _with_axes(self, op: str, x: str, axes: list[int], shape: tuple[int, ...]) -> None:
        if self.opset >= 13:
            self._add(op, [x, self._integers(axes)], shape)
        else:
            self._add(op, [x], shape, f"axes = {axes}")

    def _conv(self, x: str) -> None:
        shape = self._shapes[x]
        weight = self._constant((3, shape[1], 1, 1))
        self._add("Conv", [x, weight], (shape[0], 3, *shape[2:]))

    def text(self) -> str:
        """The whole model; what nobody uses, and a few values more, are its outputs."""
        used = " ".join(statement.partition("=")[2] for statement in self._statements).replace(",", " ")
        words = set(used.replace("(", " ").replace(")", " ").split())
        outputs = [
            name
            for name in self._shapes
            if name not in self._inputs and (name not in words or self._random.random() < 0.1)
        ]
        if not outputs:
            self._add("Relu", [self._inputs[0]], self._shapes[self._inputs[0]])
            outputs = [next(reversed(self._shapes))]
        typed = {name: f"{_type(shape)} {name}" for name, shape in self._shapes.items()}
        constants = f"<{', '.join(self._constants)}>" if self._constants else ""
        return (
            f'<ir_version: 8, opset_import: ["" : {self.opset}]> main '
            f"({', '.join(typed[name] for name in self._inputs)}) => ({', '.join(typed[name] for name in outputs)}) "
            f"{constants} {{ {' '.join(self._statements)} }}"
        )
