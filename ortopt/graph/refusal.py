"""How a match says no, and a rewrite that cannot be made: exceptions with a reason that a user can read."""

from __future__ import annotations

import enum
from typing import Self, TypeVar

import onnx_ir as ir

T = TypeVar("T")

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
    DECIDED = "decided"
    """What was decided at the node before stands: a reason that the same pass gave then tells more."""
    SIZE = "size"
    """The file would grow by more than it may."""
    OPTION = "option"
    """Another option of the run keeps it."""


class Reason(str):
    """A reason as people read it, and the parts that it is made of.

    Attributes:
        clause: The reason alone, which is the same at many nodes.
        code: What kind it is.
        about: What it is about, which differs at every node; empty if the clause says all.
    """

    __slots__ = ("about", "clause", "code")
    clause: str
    code: Code
    about: str

    def __new__(cls, clause: str, code: Code = Code.CONDITION, about: str = "") -> Self:
        """The reason of a clause, a code and what it is about."""
        reason = super().__new__(cls, f"{clause} ({about})" if about else clause)
        reason.clause, reason.code, reason.about = clause, code, about
        return reason

    def replaces(self, earlier: Reason) -> bool:
        """Whether it tells more than a reason that the same pass gave at the same node before.

        Args:
            earlier: That reason.
        """
        return self.code is not Code.DECIDED or earlier.code is Code.ABSENT

    def __getnewargs__(self) -> tuple[str, Code, str]:  # type: ignore[override]
        """Copies are made of the parts."""
        return self.clause, self.code, self.about


def reason_of(given: object) -> Reason:
    """A reason with its parts: of a refusal, or of an exception that may have a code; a plain text is a condition.

    Args:
        given: The reason, as it was raised or said.
    """
    if isinstance(given, Reason):
        return given
    if isinstance(given, Refusal):
        return given.told
    code = getattr(given, "code", Code.CONDITION)
    return Reason(str(given), code if isinstance(code, Code) else Code.CONDITION)


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

    @property
    def told(self) -> Reason:
        """The reason as people read it, with the names of what it is about."""
        clause = f"{self.reason}; {ONLY_DECLARED}" if self.claims else self.reason
        claims = [value for value in self.claims if not any(value is item for item in self.about)]
        names = [_name(item) for item in (*self.about, *claims) if item is not None]
        return Reason(clause, self.code, ", ".join(names))

    def __str__(self) -> str:
        return str(self.told)


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


def need_known(answer: T | None, reason: str, *about: object) -> T:
    """Go on only with an answer: what is asked for is known, or there.

    Args:
        answer: The answer, None if there is none.
        reason: That there is none, for the user.
        about: The values or nodes that it is about.

    Returns:
        The answer.

    Raises:
        Refusal: If there is none.
    """
    if answer is None:
        raise Refusal(reason, *about)
    return answer


class Conflict(Exception):  # noqa: N818 -- not an error: a rewrite that cannot be made, with the reason
    """A replacement that would break what the framework keeps; nothing has been changed."""

    code = Code.CONDITION


class NoKernel(Conflict):
    """A new op that is not defined, or has no kernel, where it is to run."""

    code = Code.KERNEL
