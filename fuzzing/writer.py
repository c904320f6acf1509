"""Writes a random model forward: each value has a type and a shape, so that what is written is valid."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fuzzing.protos import reads

Array = np.ndarray[Any, Any]
Attributes: TypeAlias = dict[str, Any]
Size: TypeAlias = int | str
Item = TypeVar("Item")

F32: Final = TensorProto.FLOAT
F64: Final = TensorProto.DOUBLE
F16: Final = TensorProto.FLOAT16
BF16: Final = TensorProto.BFLOAT16
I64: Final = TensorProto.INT64
I32: Final = TensorProto.INT32
I8: Final = TensorProto.INT8
U8: Final = TensorProto.UINT8
BOOL: Final = TensorProto.BOOL
STRING: Final = TensorProto.STRING
FLOATS: Final = (F32, F64, F16)
INTEGERS: Final = (I64, I32)
NUMBERS: Final = FLOATS + INTEGERS
NEWEST_OPSET: Final = 26
"""The newest that ONNX Runtime reads."""

_IR_VERSIONS: Final = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13}
_MAX_ELEMENTS: Final = 4096


class Unsuitable(Exception):  # noqa: N818 - no error: another is drawn
    """What was to be written does not fit what is there; another op is tried."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor while the model runs with the primary sizes.

    Attributes:
        name: Its name.
        dtype: An ``onnx.TensorProto.DataType``.
        shape: Its dimensions.
        varies: Which of them depend on the sizes of the inputs' symbols.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    varies: tuple[bool, ...]

    @property
    def rank(self) -> int:
        """How many dimensions there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return int(np.prod(self.shape))

    @property
    def static(self) -> bool:
        """Whether no dimension varies."""
        return not any(self.varies)


@dataclass
class Input:
    """An input of the model.

    Attributes:
        value: The tensor.
        symbols: For each dimension the name of its symbol, or None.
        limit: Integers that are drawn for it lie between 0 and this, exclusive.
    """

    value: Value
    symbols: tuple[str | None, ...]
    limit: int = 5


@dataclass
class Sheet:
    """What all graphs of one model share.

    Attributes:
        random: What to draw from.
        opset: The version of ai.onnx.
        dtype: The element type of most floats.
        sizes: The primary size of each symbol.
    """

    random: random.Random
    opset: int
    dtype: int = F32
    sizes: dict[str, int] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    overridable: list[Value] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    domains: set[str] = field(default_factory=set)
    calls: list[Callable[[Writer], None]] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.random.getrandbits(64))


class Writer:
    """Writes one graph.

    Args:
        sheet: What is shared with the other graphs.
        parent: The graph around it, whose values it may use; None for the main graph and functions.
        body: Whether it is a function's, which has no initializers.
    """

    def __init__(self, sheet: Sheet, parent: Writer | None = None, *, body: bool = False) -> None:
        self.sheet = sheet
        self.random = sheet.random
        self.parent = parent
        self.body: bool = body or (parent is not None and parent.body)
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.values: list[Value] = []
        self.made: list[Value] = []
        self.hidden: set[str] = set()

    # -- drawing ------------------------------------------------------------------------------------------------------

    @property
    def opset(self) -> int:
        """The version of ai.onnx."""
        return self.sheet.opset

    @property
    def depth(self) -> int:
        """How many graphs are around it."""
        return 0 if self.parent is None else 1 + self.parent.depth

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def one(self, *items: Item) -> Item:
        """One of several, all alike."""
        return self.random.choice(items)

    def size(self, *items: Size) -> Size:
        """One of several dimensions: numbers, and names of symbols."""
        return self.random.choice(items)

    def usual(self, right: Item, *wrong: Item, odds: float = 0.85) -> Item:
        """Mostly the right thing; else one that breaks a pattern."""
        return right if not wrong or self.chance(odds) else self.random.choice(wrong)

    def require(self, condition: bool) -> None:
        """Go on only if something fits.

        Raises:
            Unsuitable: If it does not.
        """
        if not condition:
            raise Unsuitable

    def visible(self) -> list[Value]:
        """What a node may read."""
        outer = self.parent.visible() if self.parent is not None else []
        return outer + self.values

    def pick(
        self,
        dtypes: Sequence[int] = FLOATS,
        ranks: Sequence[int] = range(7),
        where: Callable[[Value], bool] | None = None,
    ) -> Value:
        """A value that is there, a recent one more likely.

        Raises:
            Unsuitable: There is none.
        """
        fitting = [
            value
            for value in self.visible()
            if value.dtype in dtypes and value.rank in ranks and (where is None or where(value))
        ]
        if not fitting or (self.parent is None and not self.body and self.chance(0.03)):
            fitting = [value for value in [self._input_like(dtypes, ranks)] if where is None or where(value)]
        self.require(bool(fitting))
        return self.random.choice(fitting[-5:] if self.chance(0.6) else fitting)

    def _input_like(self, dtypes: Sequence[int], ranks: Sequence[int]) -> Value:
        self.require(self.parent is None and not self.body and len(self.sheet.inputs) < 6)
        dtype = self.sheet.dtype if self.sheet.dtype in dtypes else dtypes[0]
        rank = self.random.choice([rank for rank in ranks if rank <= 4] or [0])
        return self.input(dtype, [self.size("N", "S", 1, 2, 3, 4, 6, 4, 6) for _ in range(rank)])

    def input(self, dtype: int, dims: Sequence[Size], *, limit: int = 5) -> Value:
        """A new input of the model."""
        sizes = tuple(self.sheet.sizes[dim] if isinstance(dim, str) else dim for dim in dims)
        value = Value(self.name("x"), dtype, sizes, tuple(isinstance(dim, str) for dim in dims))
        symbols = tuple(dim if isinstance(dim, str) else None for dim in dims)
        self.sheet.inputs.append(Input(value, symbols, limit))
        self.values.append(value)
        return value

    def like(self, value: Value, *, other: bool = False) -> Value:
        """A value of the same type and shape; perhaps itself unless another is wanted."""
        return self.pick(
            (value.dtype,),
            (value.rank,),
            lambda one: (
                one.shape == value.shape and one.varies == value.varies and (one.name != value.name or not other)
            ),
        )

    def partner(self, value: Value) -> Value:
        """A value that broadcasts with another one."""

        def fits(one: Value) -> bool:
            try:
                return int(np.prod(np.broadcast_shapes(one.shape, value.shape))) <= _MAX_ELEMENTS
            except ValueError:
                return False

        return self.pick((value.dtype,), where=fits)

    # -- writing ------------------------------------------------------------------------------------------------------

    def name(self, prefix: str = "v") -> str:
        """A new name."""
        self.sheet.count += 1
        return f"{prefix}{self.sheet.count}"

    def node(
        self,
        op: str,
        inputs: Sequence[Value | str | None],
        results: Sequence[tuple[int, Sequence[int], Sequence[bool]]],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> list[Value]:
        """Write a node; its results are not picked until they are shown."""
        names = ["" if one is None else one if isinstance(one, str) else one.name for one in inputs]
        while names and not names[-1]:
            names.pop()
        values = [
            Value(self.name(), dtype, tuple(int(d) for d in shape), tuple(varies)) for dtype, shape, varies in results
        ]
        self.require(all(value.size <= _MAX_ELEMENTS and value.rank < 7 for value in values))
        self.nodes.append(helper.make_node(op, names, [value.name for value in values], domain=domain, **attributes))
        self.made.extend(values)
        return values

    def add(
        self,
        op: str,
        inputs: Sequence[Value | str | None],
        shape: Sequence[int] | None = None,
        varies: Sequence[bool] | None = None,
        *,
        dtype: int | None = None,
        show: bool = True,
        domain: str = "",
        **attributes: Any,
    ) -> Value:
        """Write a node of one result, by default of the first input's type and shape."""
        first = next((one for one in inputs if isinstance(one, Value)), None)
        if first is not None and shape is None:
            shape, varies = first.shape, first.varies
        if dtype is None:
            dtype = first.dtype if first is not None else F32
        assert shape is not None
        (value,) = self.node(op, inputs, [(dtype, shape, varies or [False] * len(shape))], domain=domain, **attributes)
        if show:
            self.values.append(value)
        return value

    def show(self, *values: Value) -> None:
        """Let values be picked."""
        self.values.extend(values)

    def maybe_show(self, *values: Value) -> None:
        """Let values of a pattern's inside be picked now and then: that breaks it."""
        for value in values:
            if self.chance(0.08):
                self.show(value)

    def elementwise(self, op: str, a: Value, b: Value, *, show: bool = True, dtype: int | None = None) -> Value:
        """Write a node that broadcasts two operands."""
        try:
            shape = np.broadcast_shapes(a.shape, b.shape)
        except ValueError:
            raise Unsuitable from None
        varies = [False] * len(shape)
        for operand in (a, b):
            for i in range(1, operand.rank + 1):
                varies[-i] = varies[-i] or operand.varies[-i]
        return self.add(op, [a, b], shape, varies, dtype=a.dtype if dtype is None else dtype, show=show)

    def either(self, op: str, a: Value, b: Value, *, show: bool = True) -> Value:
        """The same, in either order."""
        if self.chance(0.5):
            a, b = b, a
        return self.elementwise(op, a, b, show=show)

    # -- constants ----------------------------------------------------------------------------------------------------

    def constant(self, content: Any, dtype: int | None = None, *, plain: bool = False) -> Value:
        """A constant in any spelling.

        Args:
            content: The elements.
            dtype: Their type.
            plain: Whether it must be a constant for ONNX Runtime: an initializer or a Constant, nothing computed.
        """
        array = np.asarray(content)
        if dtype is None:
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        if dtype != STRING:
            with np.errstate(all="ignore"):
                array = array.astype(helper.tensor_dtype_to_np_dtype(dtype))
        value = Value(self.name("c"), dtype, array.shape, (False,) * array.ndim)
        tensor = numpy_helper.from_array(array, value.name)
        how = self.random.random()
        if not self.body and how < 0.55:
            holder: Writer = self
            while holder.parent is not None and self.chance(0.4):
                holder = holder.parent
            holder.initializers.append(tensor)
            if not plain and self.parent is None and dtype in FLOATS and array.size and self.chance(0.04):
                self.sheet.overridable.append(value)
            return value
        self._constant_node(tensor, value, array, how)
        if not plain and how > 0.97:
            copy = Value(self.name("c"), dtype, value.shape, value.varies)
            self.nodes.append(helper.make_node("Identity", [value.name], [copy.name]))
            return copy
        return value

    def _constant_node(self, tensor: TensorProto, value: Value, array: Array, how: float) -> None:
        content: dict[str, Any] = {"value": tensor}
        if how > 0.85 and value.dtype in (I64, F32) and array.ndim < 2:
            kind = "int" if value.dtype == I64 else "float"
            content = {f"value_{kind}": array.item()} if array.ndim == 0 else {f"value_{kind}s": array.tolist()}
            if array.ndim and not array.size:
                content = {"value": tensor}
        self.nodes.append(helper.make_node("Constant", [], [value.name], **content))

    def ints(self, *content: int, dtype: int = I64) -> Value:
        """A list of integers, as axes and shapes are."""
        return self.constant(np.array(content, np.int64), dtype)

    def scalar(self, number: float, like: Value, *, rank: int | None = None) -> Value:
        """A number in the type of a value: of rank 0, of shape [1], or of more ones."""
        rank = self.one(0, 0, 1, min(like.rank, 1), like.rank) if rank is None else rank
        return self.constant(np.full((1,) * rank, number), like.dtype)

    def noise(self, shape: Sequence[int], dtype: int | None = None, scale: float = 1.0) -> Value:
        """Random numbers."""
        dtype = self.sheet.dtype if dtype is None else dtype
        numbers = self.sheet.numbers
        if dtype in INTEGERS or dtype in (I8, U8):
            return self.constant(numbers.integers(0, 5, tuple(shape)), dtype)
        if dtype == BOOL:
            return self.constant(numbers.integers(0, 2, tuple(shape)) > 0, dtype)
        return self.constant(np.round(numbers.standard_normal(tuple(shape)) * scale, 3), dtype)

    def special(self, shape: Sequence[int], dtype: int) -> Value:
        """Numbers among which are those that rewrites stumble over, often all the same."""
        count = int(np.prod(shape))
        if dtype in INTEGERS:
            pool: Sequence[float] = (0, 1, -1, 2, 3, 7)
        else:
            pool = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, np.inf, -np.inf, np.nan, 1e-40, 1e-5, 65504.0)
        if self.chance(0.75):
            number = self.random.choice(pool[:7])
            content = np.full(count, number)
        else:
            content = np.array([self.random.choice(pool) for _ in range(count)])
        return self.constant(content.reshape(tuple(shape)), dtype)

    # -- shapes that are computed -------------------------------------------------------------------------------------

    def shape_of(self, value: Value) -> Value:
        """A Shape."""
        return self.add("Shape", [value], (value.rank,), dtype=I64, show=self.chance(0.1))

    def dim(self, value: Value, axis: int) -> Value:
        """One dimension as a list of one integer, in one of its spellings."""
        spelling = self.random.randrange(5)
        if not value.varies[axis] and spelling == 0:
            return self.ints(value.shape[axis])
        if spelling == 1 and self.opset >= 15:
            end: Attributes = {"end": axis + 1} if axis + 1 < value.rank or self.chance(0.5) else {}
            return self.add("Shape", [value], (1,), dtype=I64, show=self.chance(0.1), start=axis, **end)
        shape = self.shape_of(value)
        at = axis - self.one(0, value.rank)
        if spelling == 2:
            stop = at + 1 if at != -1 else self.one(2**63 - 1, value.rank)
            return self.add("Slice", [shape, self.ints(at), self.ints(stop), self.ints(0)], (1,), show=False)
        if spelling == 3:
            number = self.add("Gather", [shape, self.constant(np.int64(at))], (), show=self.chance(0.1), axis=0)
            if self.chance(0.2):
                number = self.elementwise("Mul", number, self.constant(np.int64(1)), show=False)
            return self.add("Unsqueeze", [number, self.ints(0)], (1,), show=False)
        return self.add("Gather", [shape, self.ints(at)], (1,), show=False, axis=0)

    def whole_shape(self, value: Value) -> Value:
        """All dimensions, by a Shape or put together."""
        if value.rank == 0 or self.chance(0.4):
            return self.shape_of(value)
        dims = [self.dim(value, axis) for axis in range(value.rank)]
        return self.add("Concat", dims, (value.rank,), show=False, axis=0)

    # -- a graph of what is written -----------------------------------------------------------------------------------

    def used(self) -> set[str]:
        """The names that the nodes of this graph read, those inside included."""
        return set(reads(self.nodes))

    def info(self, value: Value, *, exact: bool = False) -> onnx.ValueInfoProto:
        """How a graph declares a value: with all that is known, or less."""
        if not exact and self.chance(0.15):
            return helper.make_tensor_value_info(value.name, value.dtype, None)
        dims: list[int | str | None] = [
            None if vary else dim for dim, vary in zip(value.shape, value.varies, strict=True)
        ]
        if not exact:
            dims = [self.one(None, f"o{value.name}_{i}") if dim is None else dim for i, dim in enumerate(dims)]
        return helper.make_tensor_value_info(value.name, value.dtype, dims)

    def graph(self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[Value]) -> GraphProto:
        """The graph."""
        return helper.make_graph(
            self.nodes, name, inputs, [self.info(value) for value in outputs], initializer=self.initializers
        )


def draw_feeds(
    inputs: Sequence[Input], sizes: Mapping[str, int], seed: int, *, special: bool = False
) -> dict[str, Array]:
    """Arrays for a model's inputs.

    Args:
        inputs: The inputs.
        sizes: The size of every symbol.
        seed: What to draw from.
        special: Whether NaN, infinities, zeros of both signs and tiny numbers are among them.
    """
    numbers = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for one in inputs:
        shape = tuple(
            dim if symbol is None else sizes[symbol] for dim, symbol in zip(one.value.shape, one.symbols, strict=True)
        )
        feeds[one.value.name] = _draw(numbers, one.value.dtype, shape, one.limit, special)
    return feeds


def _draw(numbers: np.random.Generator, dtype: int, shape: tuple[int, ...], limit: int, special: bool) -> Array:
    if dtype == STRING:
        texts = np.empty(shape, object)
        texts.reshape(-1)[:] = [("a", "b", "", "né")[i] for i in numbers.integers(0, 4, texts.size)]
        return texts
    if dtype == BOOL:
        return np.asarray(numbers.integers(0, 2, shape) > 0)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    if dtype not in (*FLOATS, BF16):
        return np.asarray(numbers.integers(0, limit, shape)).astype(kind)
    content = np.asarray(numbers.standard_normal(shape))
    if special and content.size:
        pool = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-7])
        content = np.where(numbers.random(shape) < 0.2, pool[numbers.integers(0, len(pool), shape)], content)
    with np.errstate(all="ignore"):
        return np.asarray(content).astype(kind)


def finish(writer: Writer, *, typed: bool) -> ModelProto:
    """The model of a main graph: what nobody uses, and a few values more, are its outputs.

    Raises:
        Unsuitable: It has nothing to give.
    """
    sheet, used = writer.sheet, writer.used()
    outputs = [
        value
        for value in dict.fromkeys(writer.made)
        if value.name not in used or (value in writer.values and writer.chance(0.06))
    ]
    writer.require(bool(outputs))
    if len(outputs) > 8:
        outputs = outputs[:1] + writer.random.sample(outputs[1:-1], 6) + outputs[-1:]
    inputs = [
        helper.make_tensor_value_info(
            one.value.name,
            one.value.dtype,
            [dim if symbol is None else symbol for dim, symbol in zip(one.value.shape, one.symbols, strict=True)],
        )
        for one in sheet.inputs
    ]
    inputs += [writer.info(value, exact=True) for value in sheet.overridable]
    graph = writer.graph("fuzz", inputs, outputs)
    imports = [helper.make_opsetid("", sheet.opset), *(helper.make_opsetid(one, 1) for one in sorted(sheet.domains))]
    model = helper.make_model(
        graph,
        opset_imports=imports,
        functions=sheet.functions,
        ir_version=max(_IR_VERSIONS.get(sheet.opset, 13), 8 if sheet.functions else 0),
    )
    if typed:
        model = onnx.shape_inference.infer_shapes(model)
    return model
