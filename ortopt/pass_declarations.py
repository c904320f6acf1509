"""Where a process has the declarations of the passes without their modules: in none, but for the command line's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

at_hand: Callable[[], Mapping[str, Mapping[str, Any]]] = dict
"""Gives what `ortopt.deferred_rules.declared` has once said of passes whose sources have not changed since, by name."""

__all__ = ["at_hand"]
