"""What an edit raises that cannot be made; the rewrite that it is part of is taken back."""

from __future__ import annotations

from ortopt.graph.refusal import Code


class Conflict(Exception):  # noqa: N818 -- not an error: a rewrite that cannot be made, with the reason
    """A replacement that would break what the framework keeps; nothing has been changed."""

    code = Code.CONDITION


class NoKernel(Conflict):
    """A new op that is not defined, or has no kernel, where it is to run."""

    code = Code.KERNEL
