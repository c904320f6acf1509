"""How a match says no: an exception with a reason that a user can read."""

from __future__ import annotations

import enum
from typing import Self

import onnx_ir as ir

ONLY_DECLARED = "the file declares more, which is not inferred and no proof"
"""What a refusal adds that might not be one if the shapes that a file declares for computed values were believed."""


class Code(enum.Enum):
    """What kind of reason it is that a node is left as it is."""

    ABSENT = "absent"
    """The pattern is not there."""
    CONDITION = "condition"
    """It is there, and something that the rewrite needs does not hold."""
    TYPE = "type"
    """The elements are of another type than the rewrite is for."""
    NUMERICS = "numerics"
    """The numbers would differ by more than the run allows."""
    KERNEL = "kernel"
    """A new op is not defined, or has no kernel, where it is to run."""
    PLACEMENT = "placement"
    """The rewrite serves another provider or target."""
    COST = "cost"
    """It is not worth it, as far as is known, or ``--fusions`` says so."""
    SIZE = "size"
    """The file would grow by more than it may."""
    OPTION = "option"
    """Another option of the run keeps it."""


class Reason(str):
    """A reason as people read it, and what kind it is.

    Attributes:
        code: What kind it is.
    """

    __slots__ = ("code",)
    code: Code

    def __new__(cls, text: str, code: Code) -> Self:
        """The reason of a text and a code."""
        reason = super().__new__(cls, text)
        reason.code = code
        return reason


def code_of(reason: object) -> Code:
    """What kind of reason it is: a `Reason`, or an exception that has a code; a plain text is a condition.

    Args:
        reason: The reason.
    """
    code = getattr(reason, "code", Code.CONDITION)
    return code if isinstance(code, Code) else Code.CONDITION


class Refusal(Exception):  # noqa: N818 -- not an error: a match that says no
    """A match that does not hold, with the reason.

    Args:
        reason: A clause that a user can read, e.g. "Gemm broadcasts C one way only".
        about: The values or nodes that it is about.
        code: What kind of reason it is; that of the class if None.
    """

    code = Code.CONDITION

    def __init__(self, reason: str, *about: object, code: Code | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.about = about
        if code is not None:
            self.code = code
        self.claims: tuple[ir.Value, ...] = ()

    def __str__(self) -> str:
        reason = f"{self.reason}; {ONLY_DECLARED}" if self.claims else self.reason
        claims = [value for value in self.claims if not any(value is item for item in self.about)]
        names = [_name(item) for item in (*self.about, *claims) if item is not None]
        return f"{reason} ({', '.join(names)})" if names else reason


class Absent(Refusal):
    """A match that does not hold because the pattern is not there."""

    code = Code.ABSENT


def _name(item: object) -> str:
    """What people know a value or a node by; a node without a name by its first result."""
    name = getattr(item, "name", None)
    if not name and isinstance(item, ir.Node):
        name = next((value.name for value in item.outputs if value.name), item.op_type)
    return name or str(item)


def need(condition: bool, reason: str, *about: object, code: Code = Code.CONDITION) -> None:
    """Go on only if a condition holds.

    Args:
        condition: What must be.
        reason: Why it must be, for the user.
        about: The values or nodes that it is about.
        code: What kind of reason it is.

    Raises:
        Refusal: If it does not hold.
    """
    if not condition:
        raise Refusal(reason, *about, code=code)


def need_present(condition: bool, reason: str, *about: object) -> None:
    """Go on only if a part of the pattern is there.

    Args:
        condition: Whether it is there.
        reason: That it is not, for the user.
        about: The values or nodes that it is about.

    Raises:
        Absent: If it is not there.
    """
    if not condition:
        raise Absent(reason, *about)


__all__ = ["ONLY_DECLARED", "Absent", "Code", "Reason", "Refusal", "code_of", "need", "need_present"]
