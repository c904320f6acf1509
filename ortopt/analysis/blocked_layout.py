"""Which part of a graph ONNX Runtime runs in its blocked layout, and where images are reordered.

On x86 its kernels for convolutions keep images in blocks of 16 channels (8 without AVX-512). When a model is loaded at
the highest level, convolutions with constant weights begin a region, some ops go on in it, and all others end it: there
the image is reordered, which reads and writes it once and takes 0.15 to 0.2 times as long as a convolution of points.

The answer is for a graph in which nothing is left to fuse but activations, as a result of ortopt is. It counts what
ONNX Runtime 1.31 does; a test loads models and compares.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct, field

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph.facts import DECLARED, dims_of
from ortopt.graph.match import attribute, is_constant, tensor_of
from ortopt.graph.symbolic import is_invented, is_known
from ortopt.onnx_ir_internals import get_meta
from ortopt.semantics.domains import MICROSOFT

Origin: TypeAlias = tuple[tuple[object, int], ...]
"""For each axis of an image, where its size is known to come from, and how often it was halved since."""

Affine: TypeAlias = Mapping[ir.Node, tuple[ir.Value, Collection[ir.Node]]]
"""Nodes that stand for a BatchNormalization: of which value each, and the nodes inside that go away."""

RANK: Final = 4
BLOCK: Final = 16
"""Channels of a block where the processor has AVX-512; others take 8."""

ALIGNED: Final = 4
"""What is reordered has a multiple of so many channels."""

BEFORE: Final = frozenset({"Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid"})
"""Activations that become part of the convolution before them, before layouts are chosen."""

_INSIDE: Final = frozenset({"Relu", "Sigmoid", "Tanh", "HardSigmoid"})
"""Activations that become part of a convolution in a region, behind a sum as well."""

_ACTIVATIONS: Final = _INSIDE | {"Gelu", "QuickGelu"}
"""Activations that a region passes through."""


class _Step(Struct):
    """What a node is when layouts are chosen: some have been fused by then, others taken apart.

    Attributes:
        op: The op's type.
        node: The node that it comes from.
        inputs: Its operands.
        output: Its first result.
        activated: Whether it is a convolution with an activation.
        fused: Nodes that have become part of it.
    """

    op: str
    node: ir.Node
    inputs: list[ir.Value | None]
    output: ir.Value
    activated: bool = False
    fused: list[ir.Node] = field(default_factory=list)


class _Kernel(Struct):
    """A kernel in a region; convolutions take one sum and one activation."""

    is_convolution: bool
    has_sum: bool = False
    has_activation: bool = False


class _Image(Struct):
    """A value in blocks.

    Attributes:
        kernel: What gives it.
        channels: Its channels, without those that fill the last block.
        origin: For each axis, where its size is known to come from, and how often it was halved since.
        uses: How many operands it is, and an output of the graph counts as one.
        left: How many of these do not take it in blocks.
    """

    kernel: _Kernel
    channels: int
    origin: Origin
    uses: int
    left: int


class Layout(Struct, frozen=True):
    """The regions of a graph.

    Attributes:
        kernels: The nodes that have a kernel in blocks, or have become part of one.
        images: The values that are in blocks.
        reordered_in: Values that are reordered into blocks, each once.
        reordered_out: Values in blocks that are needed in the usual order, too, each once.
        unequal: Sums of images that are not known to be equally large: each operand and the result is reshaped.
    """

    kernels: frozenset[ir.Node]
    images: frozenset[ir.Value]
    reordered_in: tuple[ir.Value, ...]
    reordered_out: tuple[ir.Value, ...]
    unequal: tuple[ir.Node, ...]

    @property
    def reorders(self) -> int:
        """How often an image is reordered."""
        return len(self.reordered_in) + len(self.reordered_out)

    @property
    def reshapes(self) -> int:
        """How often something is reshaped around sums."""
        return sum(len(node.inputs) + 1 for node in self.unequal)


def blocked_layout(
    graph: ir.Graph, block: int = BLOCK, affine: Affine | None = None, token: CancellationToken = NEVER
) -> Layout:
    """The regions that ONNX Runtime makes of a graph on the CPU.

    Args:
        graph: The graph; its values have been inferred.
        block: Channels of a block.
        affine: Nodes to take for a BatchNormalization.
        token: Cancellation token.
    """
    if not any(node.op_type in CONVOLUTIONS for node in token.checked(graph)):
        return Layout(frozenset(), frozenset(), (), (), ())
    return _Regions(graph, block, affine or {}, token).layout()


CONVOLUTIONS: Final = frozenset({"Conv", "FusedConv"})


def is_blocked_convolution(node: ir.Node, block: int = BLOCK) -> bool:
    """Whether a convolution has a kernel in blocks: its weights are constants, and its groups fill whole blocks.

    Args:
        node: The node.
        block: Channels of a block.
    """
    is_one = node.op_type in CONVOLUTIONS and node.domain in {"", MICROSOFT}
    return is_one and _weights_in_blocks(node, block) is not None


def _weights_in_blocks(node: ir.Node, block: int) -> Sequence[int] | None:
    """The shape of a convolution's weights if it has a kernel in blocks."""
    weight, bias, summand = (*node.inputs[1:4], None, None)[:3]
    if weight is None or not is_constant(weight) or (bias is not None and not is_constant(bias)):
        return None
    if summand is not None and bias is None:
        return None  # of these ONNX Runtime takes none
    shape = tensor_of(weight).shape.numpy()
    if len(shape) != RANK:
        return None
    channels, inner = shape[:2]
    group = attribute(node, "group", 1)
    if group == 1:
        fits = inner < block or inner % ALIGNED == 0
    elif inner == 1 and channels == group:
        fits = channels % ALIGNED == 0
    else:
        fits = inner % block == 0 and channels % group == 0 and channels // group % block == 0
    return shape if fits else None


class _Regions:
    """A walk along a graph, in the order of its nodes."""

    def __init__(self, graph: ir.Graph, block: int, affine: Affine, token: CancellationToken) -> None:
        self._block = block
        self._token = token
        self._steps = _steps(graph, affine, token)
        self._uses = Counter(value for step in token.checked(self._steps) for value in step.inputs if value is not None)
        self._uses.update(value for value in graph.outputs if value is not None)
        self._uses.update(_captured(graph, token))
        self._producers = {step.output: step for step in token.checked(self._steps)}
        self._images: dict[ir.Value, _Image] = {}
        self._kernels: list[ir.Node] = []
        self._in: dict[ir.Value, None] = {}
        self._out: list[ir.Value] = []
        self._unequal: list[ir.Node] = []
        self._consumed: set[int] = set()
        _fuse_activations(self._steps, self._uses, token)

    def layout(self) -> Layout:
        """Walk, and see what is left."""
        for step in self._token.checked(self._steps):
            if id(step) not in self._consumed and _is_float(step.output):
                self._visit(step)
        self._out += [value for value, image in self._images.items() if image.left > 0]
        return Layout(
            frozenset(self._kernels), frozenset(self._images), tuple(self._in), tuple(self._out), tuple(self._unequal)
        )

    def _visit(self, step: _Step) -> None:
        match step.op:
            case "Conv" | "FusedConv":
                self._convolution(step)
            case "MaxPool" | "AveragePool":
                self._pool(step)
            case "Mul":
                self._product(step)
            case _ if self._has_only_images(step):
                self._other(step)

    def _other(self, step: _Step) -> None:
        """An op that goes on in a region, and begins none."""
        match step.op:
            case "Add" | "Sum":
                self._sum(step, is_sum=True)
            case "Concat":
                self._concatenation(step)
            case "BatchNormalization":
                self._normalization(step)
            case "Transpose":
                self._to_channels_last(step)
            case "Resize" | "Upsample":
                self._enlargement(step)
            case "GlobalAveragePool" | "GlobalMaxPool":
                self._pool(step)
            case _ if step.op in _ACTIVATIONS:
                self._activation(step)

    def _has_only_images(self, step: _Step) -> bool:
        """Whether all operands are images, constants or inputs of the graph."""
        computed = [value for value in step.inputs if value is not None and value.producer() is not None]
        return all(value in self._images or is_constant(value) for value in computed)

    def _take(self, value: ir.Value | None) -> _Image | None:
        image = None if value is None else self._images.get(value)
        if image is not None:
            image.left -= 1
        return image

    def _give(self, step: _Step, kernel: _Kernel, channels: int, origin: Origin | None = None) -> None:
        uses = self._uses[step.output]
        own = origin or tuple((step.output, 0) for _ in range(RANK))
        self._images[step.output] = _Image(kernel, channels, own, uses, uses)
        self._kernels += [step.node, *step.fused]

    def _convolution(self, step: _Step) -> None:
        shape = _weights_in_blocks(step.node, self._block)
        summand = step.inputs[3] if len(step.inputs) > 3 else None
        if shape is None or (summand is not None and summand not in self._images):
            return
        channels, inner = shape[:2]
        x = step.inputs[0]
        origin = None
        if attribute(step.node, "group", 1) > 1 or inner >= self._block:
            image = self._take(x)
            if image is not None:
                origin = _windowed(step, image.origin, tuple(shape[2:]))
            elif x is not None:
                self._in[x] = None
        self._take(summand)
        has_activation = step.activated or "activation" in step.node.attributes
        self._give(step, _Kernel(True, summand is not None, has_activation), channels, origin)

    def _pool(self, step: _Step) -> None:
        x = step.inputs[0]
        shape = None if x is None else dims_of(x)
        if x is None or shape is None or len(shape) != RANK or len(step.node.outputs) > 1:
            return
        channels = shape[1]
        if not isinstance(channels, int) or channels % self._block:
            return
        if (
            step.op == "AveragePool"
            and attribute(step.node, "ceil_mode", 0)
            and attribute(step.node, "count_include_pad", 0)
        ):
            return
        image = self._take(x)
        origin = None
        if image is None:
            self._in[x] = None
        elif "kernel_shape" in step.node.attributes:
            none: tuple[int, ...] = ()
            origin = _windowed(step, image.origin, attribute(step.node, "kernel_shape", none))
        else:
            origin = (image.origin[0], *((step.output, 0),) * (RANK - 1))
        self._give(step, _Kernel(False), channels, origin)

    def _product(self, step: _Step) -> None:
        a, b = step.inputs
        images = [value for value in (a, b) if value in self._images]
        if len(images) == 2:
            self._sum(step, is_sum=False)
        elif images:
            other = b if images[0] is a else a
            image = self._images[images[0]]
            if other is not None and is_constant(other) and _is_of_channels(other, image.channels):
                image.left -= 1
                self._give(step, _Kernel(True), image.channels, image.origin)

    def _sum(self, step: _Step, *, is_sum: bool) -> None:
        """A sum or product of images; two that are not known to be equally large are added in five dimensions."""
        images = [self._images.get(value) for value in step.inputs if value is not None]
        present = [image for image in images if image is not None]
        if len(present) < len(images) or len({image.channels for image in present}) != 1:
            return
        same = all(
            _are_equal(step.inputs[0], value, present[0], image)
            for value, image in zip(step.inputs[1:], present[1:], strict=True)
        )
        if not same and not is_sum:
            return
        for image in present:
            image.left -= 1
        if not same:
            self._unequal.append(step.node)
            self._give(step, _Kernel(False), present[0].channels)
            return
        for image in present if is_sum and len(present) == 2 else ():
            kernel = image.kernel
            if kernel.is_convolution and image.uses == 1 and not kernel.has_sum and not kernel.has_activation:
                kernel.has_sum = True
                self._give(step, kernel, image.channels, image.origin)
                return
        self._give(step, _Kernel(False), present[0].channels, present[0].origin)

    def _concatenation(self, step: _Step) -> None:
        images = [self._images.get(value) for value in step.inputs if value is not None]
        present = [image for image in images if image is not None]
        whole = all(image.channels % self._block == 0 for image in present)
        if len(present) < len(images) or attribute(step.node, "axis", 0) != 1 or not whole:
            return
        for image in present:
            image.left -= 1
        origin = (present[0].origin[0], (step.output, 0), *present[0].origin[2:])
        self._give(step, _Kernel(False), sum(image.channels for image in present), origin)

    def _normalization(self, step: _Step) -> None:
        if not all(value is not None and is_constant(value) for value in step.inputs[1:]):
            return
        image = self._take(step.inputs[0])
        if image is not None:
            self._give(step, _Kernel(True), image.channels, image.origin)

    def _activation(self, step: _Step) -> None:
        x = step.inputs[0]
        image = self._images.get(x) if x is not None else None
        if x is None or image is None or self._is_hard_swish(step, x, image):
            return
        image.left -= 1
        kernel = image.kernel
        if kernel.is_convolution and step.op in _INSIDE and image.uses == 1 and not kernel.has_activation:
            kernel.has_activation = True
            self._give(step, kernel, image.channels, image.origin)
        else:
            self._give(step, _Kernel(False), image.channels, image.origin)

    def _is_hard_swish(self, step: _Step, x: ir.Value, image: _Image) -> bool:
        """Whether ``x · HardSigmoid(x)`` becomes part of the convolution that gives x."""
        kernel = image.kernel
        if step.op != "HardSigmoid" or not kernel.is_convolution or kernel.has_activation or image.uses != 2:
            return False
        alpha, beta = (1 / 6, 0.5) if step.node.op_type == "HardSwish" else _slope(step.node)
        product = next((one for one in self._steps if one.op == "Mul" and step.output in one.inputs), None)
        if abs(alpha - 1 / 6) > 1e-6 or abs(beta - 0.5) > 1e-6 or product is None or x not in product.inputs:
            return False
        if self._uses[step.output] != 1 or product.output.is_graph_output():
            return False
        kernel.has_activation = True
        image.left -= 2
        self._consumed.add(id(product))
        self._give(product, kernel, image.channels, image.origin)
        self._kernels.append(step.node)
        return True

    def _to_channels_last(self, step: _Step) -> None:
        none: tuple[int, ...] = ()
        if attribute(step.node, "perm", none) == (0, 2, 3, 1) and self._take(step.inputs[0]) is not None:
            self._kernels.append(step.node)
            self._out.append(step.output)

    def _enlargement(self, step: _Step) -> None:
        image = self._images.get(step.inputs[0]) if step.inputs[0] is not None else None
        if image is not None and is_enlarged_in_blocks(step.node):
            image.left -= 1
            self._give(step, _Kernel(False), image.channels)


def _steps(graph: ir.Graph, affine: Affine, token: CancellationToken) -> list[_Step]:
    """The nodes as they are when layouts are chosen."""
    gone = set(itertools.chain.from_iterable(inner for _, inner in affine.values()))
    steps = []
    for node in token.checked(graph):
        if node in gone or not node.outputs:
            continue
        if node in affine:
            steps.append(_Step("BatchNormalization", node, [affine[node][0]], node.outputs[0]))
        elif node.op_type == "HardSwish" and not node.domain:
            x = node.inputs[0]
            gate = ir.Value(name=None, type=node.outputs[0].type)
            steps.append(_Step("HardSigmoid", node, [x], gate))
            steps.append(_Step("Mul", node, [x, gate], node.outputs[0]))
        elif not node.domain or node.domain == MICROSOFT:
            steps.append(_Step(node.op_type, node, list(node.inputs), node.outputs[0]))
        else:
            steps.append(_Step("", node, list(node.inputs), node.outputs[0]))
    return steps


def _captured(graph: ir.Graph, token: CancellationToken) -> Iterator[ir.Value]:
    """The values that nested graphs read, once for each use."""
    for node in token.checked(graph):
        for value in node.outputs:
            for use in value.uses():
                if use.node.graph is not graph:
                    yield value


def _fuse_activations(steps: list[_Step], uses: Counter[ir.Value], token: CancellationToken) -> None:
    """Let activations become part of convolutions, and x · Sigmoid(x) one op."""
    producers = {step.output: step for step in token.checked(steps)}
    gone: set[int] = set()
    for step in token.checked(steps):
        x = step.inputs[0] if step.inputs else None
        before = None if x is None else producers.get(x)
        if step.op == "Mul":
            _fuse_silu(step, producers, uses, gone)
        elif before is None or x is None or step.op not in BEFORE or uses[x] != 1 or before.op != "Conv":
            continue
        elif step.op != "Clip" or all(value is None or is_constant(value) for value in step.inputs[1:]):
            before.activated = True
            before.fused.append(step.node)
            before.output = step.output
            producers[step.output] = before
            gone.add(id(step))
    steps[:] = [step for step in steps if id(step) not in gone]


def _fuse_silu(step: _Step, producers: Mapping[ir.Value, _Step], uses: Counter[ir.Value], gone: set[int]) -> None:
    """Make one op of ``x · Sigmoid(x)``."""
    a, b = step.inputs
    for x, factor in ((a, b), (b, a)):
        gate = None if factor is None else producers.get(factor)
        if x is None or factor is None or gate is None or uses[factor] != 1:
            continue
        if gate.op == "Sigmoid" and gate.inputs[0] is x:
            gone.add(id(gate))
            step.op, step.inputs = "QuickGelu", [x]
            step.fused.append(gate.node)
            uses[x] -= 1
            return


def _is_float(value: ir.Value) -> bool:
    return value.dtype in {None, ir.DataType.FLOAT}


def _windowed(step: _Step, origin: Origin, kernel: Sequence[int]) -> Origin:
    """Where the sizes of a convolution or pooling come from: of its input, if they are as large or half as large."""
    axes = len(kernel)
    own = (step.output, 0)
    sizes = [origin[0], own]
    pads = attribute(step.node, "pads", (0,) * (2 * axes))
    strides, dilations = (attribute(step.node, name, (1,) * axes) for name in ("strides", "dilations"))
    same = attribute(step.node, "auto_pad", "NOTSET").startswith("SAME")
    for axis in range(axes):
        source, halved = origin[2 + axis]
        kept = same or pads[axis] + pads[axis + axes] + 1 == kernel[axis]
        if kept and dilations[axis] == 1 and strides[axis] in (1, 2):
            sizes.append((source, halved + strides[axis] - 1))
        else:
            sizes.append(own)
    return tuple(sizes)


def _is_of_channels(value: ir.Value, channels: int) -> bool:
    """Whether a constant has one number for each channel, written out."""
    shape = tuple(tensor_of(value).shape)
    return shape in {(channels, 1, 1), (1, channels, 1, 1)}


def _are_equal(first: ir.Value | None, second: ir.Value | None, image: _Image, other: _Image) -> bool:
    """Whether ONNX Runtime knows that two images are equally large."""
    if first is None or second is None:
        return False
    known, others = _known_dims(first), _known_dims(second)
    for axis in range(RANK):
        if image.origin[axis] == other.origin[axis] or axis == 1:
            continue
        if known is None or others is None or known[axis] is None or known[axis] != others[axis]:
            return False
    return True


def _known_dims(value: ir.Value) -> list[object] | None:
    """The dimensions of an image that ONNX Runtime knows: numbers, the batch, and what the file will declare."""
    dims = dims_of(value)
    if dims is None or len(dims) != RANK:
        return None
    declared = bool(get_meta(value, DECLARED)) or value.producer() is None
    return [
        dim if isinstance(dim, int) or (is_known(dim) and not is_invented(dim) and (declared or axis == 0)) else None
        for axis, dim in enumerate(dims)
    ]


def _slope(node: ir.Node) -> tuple[float, float]:
    return attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)


def is_enlarged_in_blocks(node: ir.Node) -> bool:
    """Whether a Resize or an Upsample has a kernel in blocks: whole factors, of the height and the width only.

    Args:
        node: The node.
    """
    mode = attribute(node, "mode", "nearest")
    if mode not in {"nearest", "linear"} or any(name in node.attributes for name in ("axes", "antialias")):
        return False
    if node.op_type == "Resize":
        coordinates = attribute(node, "coordinate_transformation_mode", "half_pixel")
        if mode == "nearest" and (coordinates != "asymmetric" or attribute(node, "nearest_mode", "") != "floor"):
            return False
        if mode == "linear" and coordinates not in {"asymmetric", "align_corners", "half_pixel"}:
            return False
        if "coordinate_transformation_mode" not in node.attributes:
            return False
    factors = _factors(node)
    return factors is not None and factors[:2] == (1, 1) and all(factor >= 1 for factor in factors)


def _factors(node: ir.Node) -> tuple[int, ...] | None:
    """The factors of a Resize or an Upsample, if they are constants and whole."""
    sizes = node.inputs[3] if len(node.inputs) > 3 else None
    if sizes is not None:
        x = node.inputs[0]
        dims = None if x is None else dims_of(x)
        if dims is None or not is_constant(sizes):
            return None
        goal = tensor_of(sizes).numpy().reshape(-1).tolist()
        known = [dim for dim in dims if isinstance(dim, int) and dim > 0]
        if len(goal) != RANK or len(known) != RANK or any(n % dim for dim, n in zip(known, goal, strict=True)):
            return None
        return tuple(n // dim for dim, n in zip(known, goal, strict=True))
    scales = node.inputs[1 if node.op_type == "Upsample" or len(node.inputs) == 2 else 2]
    if scales is None or not is_constant(scales):
        return None
    numbers = tensor_of(scales).numpy().reshape(-1)
    return tuple(map(int, numbers)) if len(numbers) == RANK and (numbers == np.floor(numbers)).all() else None
