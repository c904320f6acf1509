"""Inputs to time a model with: at representative sizes, such as the original runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.node_sizes import Extent, representative_sizes
from ortopt.errors import OrtoptError
from ortopt.verification.draws import Draw, initial_draws
from ortopt.verification.input_sets import store_inputs
from ortopt.verification.inputs import Interface

_MAX_DRAWS: Final = 8
_AT_EACH_SIZE: Final = (Draw(), Draw(integers="binary"), Draw(integers="one"))


class StoredInputs(Struct, frozen=True):
    """Inputs in a folder.

    Attributes:
        folder: Where `ortopt.verification.input_sets` has stored them.
        sizes: The sizes of the symbolic dimensions, as far as they were chosen.
    """

    folder: Path
    sizes: Mapping[str, int]


def stored_inputs(
    model: ir.Model,
    folder: Path,
    runs: Callable[[Path], bool],
    *,
    sizes: Mapping[str, int],
    expected: Mapping[str, Extent] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Iterator[StoredInputs]:
    """Inputs that a model runs on, one for each of its representative sizes.

    Args:
        model: The model.
        folder: A folder for them.
        runs: Whether the model runs on stored inputs.
        sizes: Sizes that the caller has chosen.
        expected: Sizes that the caller expects.
        given: Inputs that are used instead.
    """
    if given is not None:
        stored = _stored(dict(given), folder / "given", runs)
        if stored is not None:
            yield StoredInputs(stored, {})
        return
    interface = Interface(model)
    count = 0
    for number, chosen in enumerate(representative_sizes(model, sizes, expected)):
        stored = _drawn(interface, chosen, _AT_EACH_SIZE, folder / f"{number}", runs)
        if stored is not None:
            count += 1
            yield StoredInputs(stored, chosen)
    if not count:
        stored = _drawn(interface, sizes, tuple(islice(initial_draws(), _MAX_DRAWS)), folder / "any", runs)
        if stored is not None:
            yield StoredInputs(stored, dict(sizes))


def _drawn(
    interface: Interface, sizes: Mapping[str, int], draws: Sequence[Draw], folder: Path, runs: Callable[[Path], bool]
) -> Path | None:
    for number, how in enumerate(draws):
        try:
            inputs = interface.draw(sizes=sizes, how=how)
        except OrtoptError:
            continue
        stored = _stored(inputs, folder / f"{number}", runs)
        if stored is not None:
            return stored
    return None


def _stored(inputs: dict[str, Any], folder: Path, runs: Callable[[Path], bool]) -> Path | None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    store_inputs(inputs, folder)
    return folder if runs(folder) else None
