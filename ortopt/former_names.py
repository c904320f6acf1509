"""The names that passes had in earlier versions: they are still understood, with a hint of the present ones."""

from __future__ import annotations

import sys
import warnings

from ortopt.errors import FormerNameWarning
from ortopt.transformer import name_key

FORMER_NAMES = {
    "activation_idempotence": "repeated_activation_elimination",
    "concat_chain": "concat_merging",
    "expand_absorption": "broadcast_expand_elimination",
    "reshape_chain": "reshape_merging",
    "slice_chain": "slice_merging",
    "slice_concat_to_space_to_depth": "space_to_depth_fusion",
    "transpose_chain": "transpose_merging",
}
"""The present name of each former one."""

_BY_KEY = {name_key(former): former for former in FORMER_NAMES}


def present_name(name: str) -> str:
    """The present name of a pass.

    Args:
        name: In either spelling, e.g. ``reshape_chain`` or ``ReshapeChain``.

    Returns:
        The present name of a former one; any other name as it is.
    """
    former = _BY_KEY.get(name_key(name))
    return name if former is None else FORMER_NAMES[former]


def warn_former_name(name: str, context: str = "") -> None:
    """Warn that a name is a former one, at the line outside this package that uses it; of other names, say nothing.

    Args:
        name: In either spelling.
        context: Where it stands, if that is not the caller's own line.
    """
    former = _BY_KEY.get(name_key(name))
    if former is None:
        return
    message = f"{context}{former} is called {FORMER_NAMES[former]} now"
    warnings.warn(message, FormerNameWarning, stacklevel=_caller_level())


def _caller_level() -> int:
    """The stack level, as `warn_former_name` counts it, of the first frame outside this package."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ortopt":
        frame = frame.f_back
        level += 1
    return level


__all__ = ["FORMER_NAMES", "present_name", "warn_former_name"]
