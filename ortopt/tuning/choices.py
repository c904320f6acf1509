"""What tuning decides: the options of a run that choose between equivalent forms, as data that can be replayed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from ortopt.errors import UsageError
from ortopt.options import Fusions, Options
from ortopt.terminal_text import quoted

KEY: Final = "choices"
"""Where a report has them."""

_LISTS: Final = ("disable", "enable", "take")
_SWITCHES: Final = ("native", "single_thread")


@dataclass(frozen=True, slots=True)
class Choices:
    """Options that choose between equivalent forms of a computation.

    Attributes:
        level: The optimization level.
        fusions: Which fused forms are taken: ``default``, ``all`` or ``none``.
        disable: Passes that are left out.
        enable: Passes that run although they are off by default.
        take: Forms of the table of costs that are taken whatever is known of them.
        native: Whether forms are taken that are fast only on processors like this one.
        single_thread: Whether forms are taken that lose with several threads.
    """

    level: int
    fusions: str
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    take: tuple[str, ...] = ()
    native: bool = False
    single_thread: bool = False

    @staticmethod
    def of(options: Options) -> Choices:
        """The choices that some options make."""
        return Choices(
            options.level,
            options.fusions.value,
            options.disable,
            options.enable,
            options.take,
            options.native,
            options.single_thread,
        )

    def applied_to(self, options: Options) -> Options:
        """The same options with these choices."""
        return replace(
            options,
            level=self.level,
            fusions=Fusions(self.fusions),
            disable=self.disable,
            enable=self.enable,
            take=self.take,
            native=self.native,
            single_thread=self.single_thread,
        )

    def as_dict(self) -> dict[str, Any]:
        """The choices as data that json can write."""
        return {**asdict(self), **{name: list(getattr(self, name)) for name in _LISTS}}


def read_choices(path: str | Path) -> Choices:
    """The choices of a file: a report of a run (``--json``), or the part of one under ``choices``.

    Args:
        path: The file.

    Raises:
        UsageError: If it cannot be read, or is neither.
    """
    name = quoted(str(path))
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{name} is no JSON: {error}") from error
    if isinstance(data, Mapping) and KEY in data:
        data = data[KEY]
    if not isinstance(data, Mapping) or not _is_complete(data):
        raise UsageError(f"{name} has no choices: it should be a report that --json has written")
    given: dict[str, Any] = {name: tuple(data.get(name, ())) for name in _LISTS}
    given |= {name: data.get(name, False) for name in _SWITCHES}
    return Choices(data["level"], data["fusions"], **given)


def _is_complete(data: Mapping[str, Any]) -> bool:
    level, fusions = data.get("level"), data.get("fusions")
    lists = [data.get("disable"), data.get("enable"), data.get("take", [])]
    return (
        isinstance(level, int)
        and 0 <= level <= 4
        and fusions in {each.value for each in Fusions}
        and all(isinstance(data.get(name, False), bool) for name in _SWITCHES)
        and all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists)
    )


__all__ = ["KEY", "Choices", "read_choices"]
