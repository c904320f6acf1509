"""The arrays that a model takes and returns: drawn or read at the sizes that the user gave, and written."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from ortopt.analysis.dimensions import Shapes
    from ortopt.analysis.node_sizes import Extent
    from ortopt.cli.models import ModelArgument
    from ortopt.verification.inputs import Interface


def candidates(
    argument: ModelArgument,
    model: ir.Model,
    path: str | None,
    seed: int,
    sizes: Mapping[str, int],
    shapes: Shapes | None = None,
    expected: Mapping[str, Extent] | None = None,
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Inputs to try, the most natural first, and whether they are drawn: the user's, else at representative sizes.

    Args:
        argument: The model.
        model: The loaded model; it gets the sizes and the shapes.
        path: An .npz file of the user's, or None.
        seed: Seed of drawn inputs.
        sizes: Sizes of symbolic dimensions in drawn inputs.
        shapes: Shapes of drawn inputs.
        expected: Sizes that the user expects.

    Raises:
        UsageError: A size is of no dimension, or an input cannot be drawn.
        InvalidModelError: The file cannot be read.
    """
    from ortopt.cli import models
    from ortopt.errors import UsageError
    from ortopt.measurement import inputs
    from ortopt.verification.inputs import Interface

    chosen = sized(model, sizes, shapes or {}, expected or {}, path)
    if path is not None:
        yield models.verification_inputs(path, argument, {}) or {}, False
        return
    interface = Interface(model)
    places, others = inputs.candidates(model, chosen, expected)
    for i, way in enumerate((*itertools.chain.from_iterable(places), *others)):
        try:
            drawn = way.draw(interface, seed)
        except UsageError:
            if i == 0:
                raise
            continue  # some are large
        yield drawn, True


def sized(
    model: ir.Model, sizes: Mapping[str, int], shapes: Shapes, expected: Mapping[str, Extent], path: str | None
) -> dict[str, int]:
    """Give a model's inputs the sizes that are asked for; the sizes of its symbols, by name.

    Args:
        model: The model; changed in place.
        sizes: Of ``--dim``, by the symbol's name.
        shapes: Of ``--input-shape``, by the input's name; None is a size that stays as it is.
        expected: Of ``--dim-hint``, by the symbol's name.
        path: An .npz file of the user's, or None.

    Raises:
        UsageError: They would have no effect, or contradict the model or each other.
    """
    from ortopt.analysis.dimensions import check_names, override
    from ortopt.errors import UsageError

    _, chosen = sized_interface(model, sizes, shapes, path)
    check_names(model, expected)
    if expected and path is not None:
        raise UsageError("--dim-hint gives sizes to random inputs: leave it out with --inputs")
    override(model, chosen, shapes)
    return dict(chosen)


def sized_interface(
    model: ir.Model, sizes: Mapping[str, int], shapes: Shapes, path: str | None
) -> tuple[Interface, Mapping[str, int]]:
    """The inputs of a model as they are drawn, and the sizes of its symbols.

    Args:
        model: The model; it is not changed.
        sizes: Of ``--dim``, by the symbol's name.
        shapes: Of ``--input-shape``, by the input's name; None is a size that stays as it is.
        path: An .npz file of the user's, or None.

    Raises:
        UsageError: They would have no effect, or contradict the model or each other.
    """
    from ortopt.analysis.dimensions import sizes_of_symbols
    from ortopt.errors import UsageError
    from ortopt.terminal_text import quoted
    from ortopt.verification.inputs import Interface

    check_sizes(Interface(model), sizes, path)
    if shapes and path is not None:
        raise UsageError("--input-shape gives sizes to random inputs: leave it out with --inputs")
    chosen = sizes_of_symbols(model, sizes, shapes)
    for value in model.graph.inputs:
        wanted = shapes.get(value.name or "", ()) if value.shape is not None else ()
        for size, dim in zip(wanted, value.shape or (), strict=False):
            if size is not None and isinstance(dim, int) and dim != size:
                raise UsageError(
                    f"input {quoted(value.name)} has a dimension that is {dim} in the file, not {size}:"
                    " ortopt optimize --input-shape changes it"
                )
    return Interface(model, shapes=shapes), chosen


def check_sizes(interface: Interface, sizes: Mapping[str, int], path: str | None) -> None:
    """Refuse sizes of ``--dim`` that would have no effect.

    Args:
        interface: Interface of the model.
        sizes: Sizes, by the symbol's name.
        path: An .npz file of the user's, or None.

    Raises:
        UsageError: If a size is of no dimension or can be none, or inputs are not drawn.
    """
    from ortopt.errors import UsageError

    for name, size in sizes.items():
        if name not in interface.symbols:
            symbols = ", ".join(sorted(interface.symbols)) or "none"
            raise UsageError(f"no input has a dimension {name!r}: there is {symbols}")
        if size >= 1 << 63:
            raise UsageError(f"no dimension has the size {size}")
    if sizes and path is not None:
        raise UsageError("--dim gives sizes to random inputs: leave it out with --inputs")


def archive(values: Mapping[str, Any]) -> bytes:
    """An .npz file: types that numpy lacks as their bits, the elements of a sequence as NAME.0, NAME.1 and so on.

    Raises:
        UsageError: A value is no array.
    """
    import numpy as np

    from ortopt.errors import UsageError

    arrays: dict[str, Any] = {}
    for name, value in values.items():
        parts = {f"{name}.{i}": item for i, item in enumerate(value)} if isinstance(value, list) else {name: value}
        for key, item in parts.items():
            if item is None:
                continue
            if not isinstance(item, np.ndarray) or key in arrays:
                raise UsageError(f"an .npz file holds arrays: {name!r} cannot be written")
            arrays[key] = item
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:  # numpy.savez knows no array named "file"
        for key, array in arrays.items():
            with file.open(f"{key}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _storable(array), allow_pickle=False)
    return buffer.getvalue()


def _storable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array that a file can hold without pickle."""
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.kind == "V":
        return array.view(f"u{array.itemsize}")
    return array
