"""Arrays to verify with, read from an .npz file."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortopt.errors import InvalidModelError
from ortopt.terminal_text import quoted

if TYPE_CHECKING:
    import numpy as np


def read_inputs(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file, by input name.

    Args:
        path: The file.

    Raises:
        InvalidModelError: It cannot be read, or holds something else.
    """
    import numpy as np

    label = quoted(os.fspath(path))
    try:
        with Path(path).open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it holds something else")  # noqa: TRY301 -- one message for all that is no .npz
            file.seek(0)
            arrays = np.load(file, allow_pickle=False)
            inputs = dict(arrays) if isinstance(arrays, np.lib.npyio.NpzFile) else {}
        if not inputs or not all(isinstance(array, np.ndarray) for array in inputs.values()):
            raise ValueError("it holds something else")  # noqa: TRY301 -- one message for all that is no .npz
    except OSError as error:
        raise InvalidModelError(f"{label}: {error.strerror or error}") from error
    except Exception as error:  # whatever numpy, zipfile and zlib say of a broken file
        raise InvalidModelError(f"{label}: no .npz file of plain arrays ({error})") from error
    return inputs


__all__ = ["read_inputs"]
