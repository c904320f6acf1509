"""How a match says no: an exception with a reason that a user can read."""

from __future__ import annotations

import onnx_ir as ir

ONLY_DECLARED = "the file declares more, which is not inferred and no proof"
"""What a refusal adds that might not be one if the shapes that a file declares for computed values were believed."""


class Refusal(Exception):  # noqa: N818 -- not an error: a match that says no
    """A match that does not hold, with the reason.

    Args:
        reason: A clause that a user can read, e.g. "Gemm broadcasts C one way only".
        about: The values or nodes that it is about.
    """

    def __init__(self, reason: str, *about: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.about = about
        self.claims: tuple[ir.Value, ...] = ()

    def __str__(self) -> str:
        reason = f"{self.reason}; {ONLY_DECLARED}" if self.claims else self.reason
        claims = [value for value in self.claims if not any(value is item for item in self.about)]
        names = [_name(item) for item in (*self.about, *claims) if item is not None]
        return f"{reason} ({', '.join(names)})" if names else reason


def _name(item: object) -> str:
    """What people know a value or a node by; a node without a name by its first result."""
    name = getattr(item, "name", None)
    if not name and isinstance(item, ir.Node):
        name = next((value.name for value in item.outputs if value.name), item.op_type)
    return name or str(item)


def need(condition: bool, reason: str, *about: object) -> None:
    """Go on only if a condition holds.

    Args:
        condition: What must be.
        reason: Why it must be, for the user.
        about: The values or nodes that it is about.

    Raises:
        Refusal: If it does not hold.
    """
    if not condition:
        raise Refusal(reason, *about)


__all__ = ["ONLY_DECLARED", "Refusal", "need"]
