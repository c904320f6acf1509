"""Models that are written one after the other, and share their weights: each weight lies in one place, once.

A search writes the same model many times, some nodes of it in another precision. Where its weights are large, what
changes from one to the next is the structure alone: weights that lie in a mapped file stay there (the file gets a
second name beside the models, as ONNX Runtime reads weights from a model's own folder only), others are appended to a
file of their own when they are first met.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.serialization.data_file import write_data
from ortopt.serialization.mapped_tensors import ConvertedTensor, MappedFile, MappedTensor
from ortopt.serialization.save import save_structure
from ortopt.serialization.tensor_encoding import Place

_SMALLEST: Final = 4096
_ALIGNMENT: Final = 4096
_ELEMENT: Final = 16  # a weight that stays in its file is aligned to this, or it is copied


class StoredWeights:
    """Weights that several models share.

    Args:
        folder: The folder of the models; nothing else writes to files there whose names begin with ``weights``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[object, Place] = {}
        self._held: list[ir.TensorProtocol] = []  # so that no other tensor gets the identity of one that is known
        self._linked: dict[tuple[int, int], str | None] = {}
        self._files: list[MappedFile] = []
        self._data = folder / "weights.data"
        self._end = 0

    def save(self, model: ir.Model, path: Path, token: CancellationToken = NEVER) -> None:
        """Write a model, and those of its weights that have not been written.

        Args:
            model: The model; it is not changed.
            path: A file in the folder.
            token: Cancellation token.

        Raises:
            OutputError: The model cannot be expressed.
            OSError: There is no room.
        """

        def place(tensor: ir.TensorProtocol, in_attribute: bool) -> Place | None:
            return None if in_attribute or tensor.nbytes < _SMALLEST else self._place(tensor, token)

        save_structure(model, path, place, token)

    def _place(self, tensor: ir.TensorProtocol, token: CancellationToken) -> Place:
        key = self._key(tensor)
        if key not in self._places:
            self._held.append(tensor)
            self._places[key] = self._in_its_file(tensor) or self._stored(tensor, token)
        return self._places[key]

    def _key(self, tensor: ir.TensorProtocol) -> object:
        """What two tensors have in common that have the same data for the same reason."""
        if isinstance(tensor, ConvertedTensor):
            return (self._key(tensor.source), tensor.dtype, tensor.largest)
        if isinstance(tensor, MappedTensor):
            return (id(tensor.raw.source), tensor.raw.offset, tensor.nbytes)
        return id(tensor)

    def _in_its_file(self, tensor: ir.TensorProtocol) -> Place | None:
        if not isinstance(tensor, MappedTensor) or tensor.raw.offset % _ELEMENT:
            return None
        source = tensor.raw.source
        location = self._link(source) if isinstance(source, MappedFile) else None
        return None if location is None else Place(location, tensor.raw.offset, tensor.nbytes)

    def _link(self, source: MappedFile) -> str | None:
        """A second name for a file, in the folder; None where the system gives none: on another disk, for example."""
        if source.identity not in self._linked:
            location = f"weights{len(self._linked)}.data"
            try:
                os.link(source.path, self._folder / location)
                found: str | None = location if source.is_at(self._folder / location) else None
            except (OSError, NotImplementedError):
                found = None
            self._linked[source.identity] = found
            self._files.append(source)
        return self._linked[source.identity]

    def _stored(self, tensor: ir.TensorProtocol, token: CancellationToken) -> Place:
        start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        with self._data.open("ab") as file:
            file.truncate(start)
            for _ in write_data(tensor, file):
                token.check()
        self._end = start + tensor.nbytes
        return Place(self._data.name, start, tensor.nbytes)
