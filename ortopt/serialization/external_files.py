"""The files of external data that a model refers to: found in its folder, opened once."""

from __future__ import annotations

import os

from ortopt.errors import InvalidModelError
from ortopt.serialization.mapped_tensors import MappedFile
from ortopt.terminal_text import quoted


class ExternalFiles:
    """The files of external data of one model: each is opened once, and none outside of the model's folder.

    Args:
        folder: The model's folder; None for a model that came without a place.

    Attributes:
        used: Whether anybody asked for a file.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = None if folder is None else os.path.realpath(folder)
        self._files: dict[str, MappedFile] = {}
        self.used = False

    @property
    def nbytes(self) -> int:
        """The sizes of the opened files, summed."""
        return sum(file.size for file in {file.path: file for file in self._files.values()}.values())

    @property
    def paths(self) -> tuple[str, ...]:
        """The opened files."""
        return tuple(dict.fromkeys(file.path for file in self._files.values()))

    def file(self, location: str) -> MappedFile:
        """The file at a location that a tensor names.

        Raises:
            InvalidModelError: The location leads out of the folder, or there is no readable file.
        """
        self.used = True
        if location in self._files:
            return self._files[location]
        if self._folder is None:
            raise InvalidModelError(
                f"its data are in the external file {quoted(location)}, and a model that is not loaded from a path"
                " has no folder to look in"
            )
        if not location or "\0" in location:
            raise InvalidModelError(f"{quoted(location)} is no location of external data")
        path = os.path.realpath(os.path.join(self._folder, location))  # noqa: PTH118 -- join keeps absolute paths
        if os.path.isabs(location) or os.path.commonpath([self._folder, path]) != self._folder:  # noqa: PTH117
            raise InvalidModelError(f"its external data {quoted(location)} lie outside of the model's folder")
        known = next((file for file in self._files.values() if file.path == path), None)
        try:
            self._files[location] = known or MappedFile(path)
        except InvalidModelError as error:
            raise InvalidModelError(f"its external data {quoted(location)}: {error}") from None
        except OSError as error:
            raise InvalidModelError(f"its external data {quoted(location)}: {error.strerror or error}") from None
        return self._files[location]


__all__ = ["ExternalFiles"]
