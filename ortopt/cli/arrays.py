"""The arrays that a model takes and returns: drawn or read, written, and the first that it accepts."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from ortopt.analysis.dimensions import Shapes
    from ortopt.cli.models import ModelArgument
    from ortopt.measurement.asking import MeasurementBudget
    from ortopt.measurement.in_turns import Version
    from ortopt.verification.inputs import Interface

UNFIT: Final = frozenset({"ValueError", "InvalidArgument"})
"""Classes of the errors that a session raises where an input is missing or does not fit."""

HINT: Final = "on drawn inputs: --inputs gives it others"


def candidates(
    argument: ModelArgument,
    model: ir.Model,
    path: str | None,
    seed: int,
    sizes: Mapping[str, int],
    shapes: Shapes | None = None,
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Inputs to try, the most natural first, and whether they are drawn: the user's, the zoo's, or as `verify` draws.

    Args:
        argument: The model.
        model: The loaded model.
        path: An .npz file of the user's, or None.
        seed: Seed of drawn inputs.
        sizes: Sizes of symbolic dimensions in drawn inputs.
        shapes: Shapes of drawn inputs.

    Raises:
        UsageError: A size is of no dimension, or an input cannot be drawn.
        InvalidModelError: The file cannot be read.
    """
    from ortopt.cli import models
    from ortopt.errors import UsageError
    from ortopt.verification.draws import initial_draws

    interface, sizes = sized_interface(model, sizes, shapes or {}, path)
    if path is not None:
        yield models.verification_inputs(path, argument, {}) or {}, False
        return
    if argument.zoo is not None:
        from ortopt import zoo

        yield zoo.inputs(argument.zoo, seed, sizes=sizes), True
    if argument.zoo is None or sizes or shapes:
        for i, how in enumerate(initial_draws()):
            try:
                drawn = interface.draw(seed=seed, sizes=sizes, how=how)
            except UsageError:
                if i == 0:
                    raise
                continue  # some are large
            yield drawn, True


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


def accepted(
    label: str,
    original: Version,
    candidates: Iterable[tuple[Mapping[str, Any], bool]],
    path: Path,
    budget: MeasurementBudget,
) -> dict[str, Any]:
    """The first inputs that a model runs on; they are stored then.

    Args:
        label: The model, as the user named it.
        original: The model.
        candidates: From `ortopt.cli.candidates`.
        path: The folder in which they are stored (`ortopt.verification.input_sets`).
        budget: Where the model runs.

    Raises:
        UsageError: The user's do not fit it.
        InvalidModelError: It runs on none.
    """
    import numpy as np

    from ortopt.errors import InvalidModelError, UsageError
    from ortopt.measurement.in_turns import Failure, attempt
    from ortopt.verification.input_sets import store_inputs

    first: Failure | None = None
    for feeds, drawn in candidates:
        for name, value in feeds.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufcOU":
                raise UsageError(f"a measurement takes arrays of types that numpy has: input {name!r} is none")
        store_inputs(dict(feeds), path)
        failure = attempt(original, path, budget)
        if failure is None:
            return dict(feeds)
        if not drawn and failure.kind in UNFIT:
            raise UsageError(f"the inputs do not fit {label}: {failure.reason}")
        first = first or failure
        if not failure.opens or not drawn:
            raise InvalidModelError(f"{label} cannot be run: {failure.reason}")
    reason = "" if first is None else first.reason
    raise InvalidModelError(f"{label} cannot be run: {reason} ({HINT})")


def described(feeds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The inputs, as data that json can write."""
    return [
        {"name": name, "dtype": "string" if value.dtype.kind in "OU" else str(value.dtype), "shape": list(value.shape)}
        for name, value in feeds.items()
    ]


def in_words(inputs: Iterable[Mapping[str, Any]], threads: int, providers: Iterable[str]) -> str:
    """What was measured with, for people.

    Args:
        inputs: From `described`.
        threads: Threads within an op; 0 for ONNX Runtime's default.
        providers: Full names.
    """
    sizes = ", ".join(f"{row['name']} {row['dtype']}{row['shape']}" for row in inputs) or "no inputs"
    count = f"{threads} thread{'' if threads == 1 else 's'}"
    if threads == 0:
        count = f"ONNX Runtime's default number of threads ({os.cpu_count()} processors here)"
    return f"measured with {sizes}; {count}; {', '.join(providers)}"
