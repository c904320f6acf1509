"""What tuning decides: the options of a run that choose between equivalent forms, as data that can be replayed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from ortopt import documents
from ortopt.options import Fusions, March, Options

KEY: Final = "choices"
"""Where a report has them."""

_LISTS: Final = ("disable", "enable", "force_forms")


@dataclass(frozen=True, slots=True)
class Choices:
    """Options that choose between equivalent forms of a computation.

    Attributes:
        level: The optimization level.
        fusions: Which fused forms are taken: ``default``, ``all`` or ``none``.
        disable: Passes that are left out.
        enable: Passes that run although they are off by default.
        force_forms: Forms of the table of costs that are taken whatever is known of them.
        march: The processors for which forms are chosen, ``any`` or ``native``.
        for_threads: Threads that the result will run with; None where that is not known.
    """

    level: int
    fusions: str
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    force_forms: tuple[str, ...] = ()
    march: str = March.ANY.value
    for_threads: int | None = None

    @staticmethod
    def of(options: Options) -> Choices:
        """The choices that some options make."""
        return Choices(
            options.level,
            options.fusions.value,
            options.disable,
            options.enable,
            options.force_forms,
            options.march.value,
            options.for_threads,
        )

    def applied_to(self, options: Options) -> Options:
        """The same options with these choices."""
        return replace(
            options,
            level=self.level,
            fusions=Fusions(self.fusions),
            disable=self.disable,
            enable=self.enable,
            force_forms=self.force_forms,
            march=March(self.march),
            for_threads=self.for_threads,
        )

    def as_dict(self) -> dict[str, Any]:
        """The choices as data that json can write."""
        return {**asdict(self), **{name: list(getattr(self, name)) for name in _LISTS}}


def read_choices(path: str | Path) -> Choices:
    """The choices of a file: a report of a run (``--json``), or the part of one under ``choices``.

    Args:
        path: The file.

    Raises:
        InvalidModelError: If it cannot be read, or is neither.
    """
    content = documents.contents(path)
    try:
        data = documents.parse_json(content)
        found = documents.typed(data[KEY] if isinstance(data, dict) and KEY in data else data, _Document)
    except ValueError as error:
        what = "it has no choices, as a report that --json has written"
        raise documents.invalid(path, what, error) from error
    return Choices(
        found.level,
        found.fusions.value,
        found.disable,
        found.enable,
        found.force_forms,
        found.march.value,
        found.for_threads,
    )


class _Document(Struct):
    level: Annotated[int, Meta(ge=0, le=4)]
    fusions: Fusions
    disable: tuple[str, ...]
    enable: tuple[str, ...]
    force_forms: tuple[str, ...] = ()
    march: March = March.ANY
    for_threads: Annotated[int, Meta(ge=1)] | None = None


__all__ = ["KEY", "Choices", "read_choices"]
