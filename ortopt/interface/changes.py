"""The changes of a model's inputs and outputs that options ask for.

Outputs go, inputs become int32. A fixed batch becomes symbolic where each node is proven to treat its rows one by one.
Image inputs are decoded images, channels last, as bytes, not normalized: what the caller did before is in the model
then: a Transpose, a Cast, a BatchNormalization, which folds into a convolution behind it that pads nothing. A border
of zeros is black before the normalization, and the mean behind it: in front of a convolution that pads, the
normalization stays an op, unless it only multiplies.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.analysis.dimensions import forget_computed_shapes, rename
from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError, UsageError
from ortopt.graph import scope
from ortopt.graph.detached import remove_unneeded
from ortopt.graph.match import Refusal
from ortopt.interface.batch_places import BatchPlaces, Edit
from ortopt.interface.change import Arrays, Insertion, InterfaceChange
from ortopt.interface_options import ImageInput
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.terminal_text import node_name, one_line, quoted

_BROADCASTING_OPSET: Final = 7
"""The first opset whose Mul and Add broadcast as numpy does, and whose BatchNormalization is no training."""

_PARAMETERS: Final = ("scale", "shift", "mean", "variance")


class Images(InterfaceChange):
    """Images in another layout, dtype or range.

    Args:
        model: The model; changed in place.
        images: How they are given, by the names of inputs.
        token: Cancellation token.

    Raises:
        UsageError: If a name is none of an input, or the input is no image of float32.
    """

    def __init__(self, model: ir.Model, images: Mapping[str, ImageInput], token: CancellationToken) -> None:
        self._images = images
        self._ranks: dict[str, int] = {}
        inputs = {value.name or "": value for value in model.graph.inputs if not value.is_initializer()}
        for name, image in images.items():
            if name not in inputs:
                known = ", ".join(map(quoted, inputs))
                raise UsageError(f"image_inputs: no input is named {quoted(name)}; the inputs: {known}")
            value = inputs[name]
            _check(model, value, image)
            assert value.shape is not None
            self._ranks[name] = len(value.shape)
            _change(model, value, image, token)

    def calls(self, inputs: Arrays) -> Sequence[Arrays]:
        """Images as the original takes them: transposed and normalized."""
        return [{name: self._normalized(name, array) for name, array in inputs.items()}]

    def _normalized(self, name: str, array: Any) -> Any:
        image = self._images.get(name)
        if image is None:
            return array
        pixels = np.asarray(array).astype(np.float64)
        if image.layout == "nhwc":
            pixels = np.moveaxis(pixels, -1, 1)
        scale, mean, std = self._constants(name)
        return ((pixels * scale - mean) / std).astype(np.float32)

    def given(self, inputs: Arrays) -> Arrays:
        """Images whose normalization gives those of the original; as bytes, the nearest ones."""
        return {name: self._as_pixels(name, array) for name, array in inputs.items()}

    def _as_pixels(self, name: str, array: Any) -> Any:
        image = self._images.get(name)
        if image is None or np.asarray(array).dtype != np.float32:  # bytes are given as they will be
            return array
        scale, mean, std = self._constants(name)
        pixels = (np.asarray(array).astype(np.float64) * std + mean) / scale
        if image.layout == "nhwc":
            pixels = np.moveaxis(pixels, 1, -1)
        if image.dtype == "float32":
            return pixels.astype(np.float32)
        return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)

    def _constants(self, name: str) -> tuple[Any, ...]:
        image, rank = self._images[name], self._ranks[name]
        return tuple(_column(numbers, rank) for numbers in (image.scale, image.mean, image.std))


def _column(numbers: Sequence[float], rank: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Numbers of channels, for images with channels behind the batch."""
    return np.array(numbers, np.float64).reshape(-1, *[1] * (rank - 2))


def _check(model: ir.Model, value: ir.Value, image: ImageInput) -> None:
    """Refuse what is no image of float32."""
    name = f"image_inputs: input {quoted(value.name)}"
    dtype = value.type.dtype if isinstance(value.type, ir.TensorType) else None
    if dtype != ir.DataType.FLOAT:
        raise UsageError(f"{name} is no tensor of float32")
    if value.shape is None or len(value.shape) not in (4, 5):
        raise UsageError(f"{name} is no image: it has not the dimensions batch, channels, height, width")
    if value in model.graph.outputs:
        raise UsageError(f"{name} is an output, too, which stays as it is")
    counts = {len(each) for each in (image.scale, image.mean, image.std)} - {1}
    channels = value.shape[1]
    if counts and {channels} != counts:
        raise UsageError(f"{name} has {channels} channels; scale, mean or std has {counts.pop()} numbers")
    version = model.opset_imports.get("", _BROADCASTING_OPSET)
    if version < _BROADCASTING_OPSET:
        raise UsageError(f"{name}: opset {version} has no ops that broadcast; give --opset {_BROADCASTING_OPSET} first")


def _change(model: ir.Model, value: ir.Value, image: ImageInput, token: CancellationToken) -> None:
    assert value.shape is not None
    shape, rank = value.shape, len(value.shape)
    readers, nodes = [(use.node, use.idx) for use in value.uses()], Insertion(model, value, token)
    result = value
    if image.layout == "nhwc":
        last = [0, *range(2, rank), 1]
        value.shape = ir.Shape([shape.dims[i] for i in last], denotations=[shape.get_denotation(i) for i in last])
        result = nodes.node("Transpose", [result], {"perm": [0, rank - 1, *range(1, rank - 1)]})
    if image.dtype == "uint8":
        value.type = ir.TensorType(ir.DataType.UINT8)
        result = nodes.node("Cast", [result], {"to": ir.DataType.FLOAT.value})
    result = _normalization(nodes, result, image, shape.dims[1], rank)
    if result is not value:
        nodes.finish(readers, result)


def _normalization(
    nodes: Insertion, image: ir.Value, how: ImageInput, channels: int | ir.SymbolicDim, rank: int
) -> ir.Value:
    """What the original takes of an image in its layout: one op that both scales and shifts, for it folds at once."""
    scale, mean, std = (_column(numbers, rank) for numbers in (how.scale, how.mean, how.std))
    factor, shift = scale / std, -mean / std
    scales, shifts = bool((factor != 1).any()), bool((shift != 0).any())
    if scales and shifts and isinstance(channels, int):
        rows = (factor, shift, np.zeros(1), np.ones(1))  # and the mean 0 and the variance 1
        constants = [
            nodes.constant(ir.tensor(np.broadcast_to(row.reshape(-1), (channels,)).astype(np.float32)), hint)
            for row, hint in zip(rows, _PARAMETERS, strict=True)
        ]
        return nodes.node("BatchNormalization", [image, *constants], {"epsilon": 0.0})
    for op, numbers in (("Mul", factor), ("Add", shift)):
        if scales if op == "Mul" else shifts:
            constant = nodes.constant(ir.tensor(numbers.astype(np.float32)), f"{op}_constant")
            image = nodes.node(op, [image, constant], {})
    return image


class DynamicBatch(InterfaceChange):
    """A batch of any size; the original runs once for each part of it that is as large as its own.

    The batch is the first axis of the first input that has one, and of every other input whose first axis is as large.

    Args:
        model: The model; changed in place.
        name: The name of the dimension.
        token: Cancellation token.

    Raises:
        UsageError: If no input has a fixed first axis, or the name is one of the model already.
        InvalidModelError: If a node is not known to work for any size; the message names it, with code and reason.
    """

    def __init__(self, model: ir.Model, name: str, token: CancellationToken) -> None:
        inputs = {value.name or "": value for value in model.graph.inputs if not value.is_initializer()}
        sizes = {key: value.shape[0] for key, value in inputs.items() if value.shape}
        fixed = [size for size in sizes.values() if isinstance(size, int) and size > 0]
        if not fixed:
            raise UsageError("dynamic_batch: no input has a first dimension of a fixed size")
        taken = {str(dim) for value in inputs.values() for dim in value.shape or () if not isinstance(dim, int)}
        if name in taken:
            raise UsageError(f"dynamic_batch: a dimension is named {quoted(name)} already")
        self.size = fixed[0]
        self._inputs = tuple(key for key, size in sizes.items() if size == self.size)
        places = self._proven(model, token)
        self._outputs = {value.name or "": places.of[value] for value in places.graph.outputs if value in places.of}
        nodes = dict(zip(places.graph, tuple(model.graph), strict=True))
        _apply(model, [(nodes[edit.node], edit) for edit in places.edits], inputs[self._inputs[0]], token)
        self._declare(model, name)

    def _proven(self, model: ir.Model, token: CancellationToken) -> BatchPlaces:
        """The places of the batch, in a copy of the model."""
        copy = load(model, token, checked=False)
        scope.attach(copy, Options(), token)
        infer_model(copy, token)
        first = [value for value in copy.graph.inputs if value.name in self._inputs]
        try:
            return BatchPlaces(copy.graph, self.size, first, token)
        except Refusal as refusal:
            node = next(about for about in refusal.about if isinstance(about, ir.Node))
            raise InvalidModelError(
                f"the batch cannot be of any size: {node.op_type} {quoted(node_name(node))}: {one_line(refusal.reason)}"
                f" [{refusal.code.value}]"
            ) from refusal

    def _declare(self, model: ir.Model, name: str) -> None:
        """Let inputs and outputs declare the new dimension; nothing else was said of it."""
        declared = {value: value.shape for value in model.graph.outputs}
        forget_computed_shapes(model)
        for value, shape in declared.items():
            place = self._outputs.get(value.name or "")
            if shape is None or place is None:
                value.shape = shape
            else:
                value.shape = _with(shape, place, name if shape[place] == self.size else None)
        for value in model.graph.inputs:
            if value.name in self._inputs and value.shape is not None:
                value.shape = _with(value.shape, 0, name)

    def calls(self, inputs: Arrays) -> Sequence[Arrays] | None:
        """One call for each part of the batch that is as large as that of the original."""
        count, rest = divmod(len(inputs[self._inputs[0]]), self.size)
        if rest or not count:
            return None
        return [self._rows(inputs, range(i * self.size, (i + 1) * self.size)) for i in range(count)]

    def outputs(self, results: Sequence[Arrays]) -> Arrays:
        """Their results one behind the other."""
        return {
            name: np.concatenate([result[name] for result in results], self._outputs[name])
            if name in self._outputs
            else array
            for name, array in results[0].items()
        }

    def variants(self, inputs: Arrays) -> list[Arrays]:
        """Inputs as large as those of the original, and twice as large or more: rows again, in the other order."""
        rows = len(inputs[self._inputs[0]])
        if not rows:
            return []
        several = 2 * self.size * (-(-rows // (2 * self.size)))
        order = (list(range(rows)) + list(reversed(range(rows)))) * several
        return [self._rows(inputs, order[: self.size]), self._rows(inputs, order[:several])]

    def _rows(self, inputs: Arrays, rows: Sequence[int]) -> Arrays:
        chosen = list(rows)
        return {name: np.asarray(each)[chosen] if name in self._inputs else each for name, each in inputs.items()}


def _with(shape: ir.Shape, axis: int, dim: str | None) -> ir.Shape:
    dims: list[Any] = [dim if i == axis else old for i, old in enumerate(shape.dims)]
    return ir.Shape(dims, denotations=[shape.get_denotation(i) for i in range(len(dims))])


def _apply(model: ir.Model, edits: Sequence[tuple[ir.Node, Edit]], first: ir.Value, token: CancellationToken) -> None:
    """Put in the place of operands that hold the size of the batch what holds for any."""
    nodes = Insertion(model, first, token)
    needs_size = any(edit.sizes is None or None in edit.sizes for _, edit in edits)
    batch: ir.Value | None = None
    if needs_size:
        zero = nodes.constant(ir.tensor([0], dtype=ir.DataType.INT64), "first")
        batch = nodes.node("Gather", [nodes.node("Shape", [first], {}), zero], {"axis": 0}, "batch")
        nodes.finish([], batch)
    for node, edit in edits:
        value = node.inputs[edit.index]
        assert value is not None
        if edit.sizes is not None:
            result = _sizes(nodes, edit.sizes, batch)
        else:
            zero = nodes.constant(ir.tensor([0], dtype=ir.DataType.INT64), "first")
            row = nodes.node("Gather", [value, zero], {"axis": edit.axis}, "row")
            sizes = (*(1,) * edit.axis, None, *(1,) * edit.behind)
            result = nodes.node("Expand", [row, _sizes(nodes, sizes, batch)], {})
        nodes.finish([(node, edit.index)], result, before=node)


def _sizes(nodes: Insertion, sizes: Sequence[int | None], batch: ir.Value | None) -> ir.Value:
    """A list of sizes, with that of the batch where there is None."""
    parts: list[ir.Value] = []
    for is_batch, group in itertools.groupby(sizes, lambda size: size is None):
        if is_batch:
            assert batch is not None
            parts.append(batch)
        else:
            numbers = np.array(list(group), np.int64)
            parts.append(nodes.constant(ir.tensor(numbers), "sizes"))
    return parts[0] if len(parts) == 1 else nodes.node("Concat", parts, {"axis": 0}, "sizes")


_BOUNDS = np.iinfo(np.int32)


class Int32Inputs(InterfaceChange):
    """Every input that must be given and is a tensor of int64 becomes one of int32.

    Args:
        model: The model; changed in place.
        token: Cancellation token.

    Raises:
        UsageError: If there is no such input, or one is an output, too: that one is int64 under the same name.
    """

    def __init__(self, model: ir.Model, token: CancellationToken) -> None:
        inputs = [value for value in model.graph.inputs if not value.is_initializer() and _is_int64(value)]
        if not inputs:
            raise UsageError("int32_inputs: no input is a tensor of int64")
        for value in inputs:
            if value in model.graph.outputs:
                raise UsageError(f"int32_inputs: input {quoted(value.name)} is an output, too, which stays int64")
        self._names = {value.name or "" for value in inputs}
        for value in inputs:
            readers, nodes = list(value.uses()), Insertion(model, value, token)
            result = nodes.node("Cast", [value], {"to": ir.DataType.INT64.value})
            value.type = ir.TensorType(ir.DataType.INT32)
            nodes.finish([(use.node, use.idx) for use in readers], result)

    def calls(self, inputs: Arrays) -> Sequence[Arrays]:
        """The same numbers as int64."""
        return [{name: self._as(np.int64, name, array) for name, array in inputs.items()}]

    def given(self, inputs: Arrays) -> Arrays:
        """The same numbers as int32."""
        for name in self._names & inputs.keys():
            array = np.asarray(inputs[name])
            if array.size and not _BOUNDS.min <= array.min() <= array.max() <= _BOUNDS.max:
                raise UsageError(f"input {quoted(name)} holds numbers beyond int32, which it is to be")
        return {name: self._as(np.int32, name, array) for name, array in inputs.items()}

    def _as(self, dtype: type[np.integer], name: str, array: object) -> object:
        return np.asarray(array).astype(dtype) if name in self._names else array


def _is_int64(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.type.dtype == ir.DataType.INT64


class FewerOutputs(InterfaceChange):
    """Fewer outputs; the inputs stay, so that callers give what they gave.

    Args:
        model: The model; changed in place.
        kept: Names of the outputs that stay, with ``*`` for any text; all if empty.
        dropped: Names of those that go, likewise.
        token: Cancellation token.

    Raises:
        UsageError: If a name matches no output, or no output stays.
    """

    def __init__(self, model: ir.Model, kept: Sequence[str], dropped: Sequence[str], token: CancellationToken) -> None:
        outputs = model.graph.outputs
        names = [value.name or "" for value in outputs]
        chosen = _matching(names, kept or ("*",)) - _matching(names, dropped)
        if not chosen:
            raise UsageError("no output would be left")
        self._names = chosen
        outputs[:] = [value for value in outputs if value.name in chosen]
        read = {value.name for value in model.graph.inputs if value.uses()}
        unused = remove_unneeded(model.graph, token)
        for value in unused.intersection(model.graph.initializers.values()).difference(model.graph.inputs):
            model.graph.initializers.pop(value.name or "")
        self._unread = read - {value.name for value in model.graph.inputs if value.uses()}

    def calls(self, inputs: Arrays) -> Sequence[Arrays]:
        """The same; zeros for what only the other outputs need, since any table has a row 0."""
        return [{name: np.zeros_like(array) if name in self._unread else array for name, array in inputs.items()}]

    def outputs(self, results: Sequence[Arrays]) -> Arrays:
        """Those that are kept."""
        return {name: array for name, array in results[0].items() if name in self._names}


def _matching(names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    """The outputs that patterns name."""
    found: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)}
        if not matching:
            near = get_close_matches(pattern, names, 1)
            hint = f"did you mean {quoted(near[0])}?" if near else f"the outputs: {', '.join(map(quoted, names))}"
            raise UsageError(f"no output is named {quoted(pattern)}; {hint}")
        found |= matching
    return found


def are_asked(options: Options) -> bool:
    """Whether options ask for changes that the model itself must have before a run; new names come behind it."""
    return bool(
        options.rename_dims
        or options.keep_outputs
        or options.drop_outputs
        or options.int32_inputs
        or options.image_inputs
        or options.dynamic_batch
    )


def change(model: ir.Model, options: Options, token: CancellationToken = NEVER) -> tuple[InterfaceChange, ...]:
    """Make the changes that options ask for, in place.

    Args:
        model: The model, as it was loaded.
        options: Options of the run.
        token: Cancellation token.

    Returns:
        The changes, in the order in which they were made.

    Raises:
        UsageError: If one does not fit the model.
        InvalidModelError: If the model does not allow one.
    """
    made: list[InterfaceChange] = []
    if options.rename_dims:
        rename(model, options.rename_dims)
        made.append(InterfaceChange())
    if options.keep_outputs or options.drop_outputs:
        made.append(FewerOutputs(model, options.keep_outputs, options.drop_outputs, token))
    if options.image_inputs:
        both = next((name for name in options.image_inputs if name in options.input_shapes), None)
        if both is not None:
            raise UsageError(f"image_inputs and input_shapes name {quoted(both)}: give it its shape in a run before")
        made.append(Images(model, options.image_inputs, token))
    if options.int32_inputs:
        made.append(Int32Inputs(model, token))
    if options.dynamic_batch:
        if options.input_shapes:
            raise UsageError("dynamic_batch needs the sizes of the file: give input_shapes in a run of their own")
        made.append(DynamicBatch(model, options.dynamic_batch, token))
    return tuple(made)
