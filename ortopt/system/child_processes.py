"""What a child process and its parent say to each other, kept apart from what libraries print.

ONNX Runtime, its providers and their drivers print to standard output when they like, and what Python loads at its
start may, too. So a child that talks to its parent takes the descriptors of standard input and output for itself
(`taken`), and says with a `GREETING` where its answers begin: what was printed before counts for nothing, and what is
printed later goes nowhere. Nothing but the standard library is imported here.
"""

from __future__ import annotations

import os
from typing import IO, BinaryIO, Final

GREETING: Final = b"\x1eortopt answers from here on\x1e\n"
"""Ends the line after which all is the child's own."""


def taken() -> tuple[BinaryIO, BinaryIO]:
    """The parent's requests, and where answers go; nobody else in this process reads or writes them from now on."""
    requests, answers = (os.dup(number) for number in (0, 1))  # not inherited by processes that a library starts
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    os.close(nothing)
    own = os.fdopen(answers, "wb")
    own.write(GREETING)
    own.flush()
    return os.fdopen(requests, "rb"), own


def skip_to_answers(stream: IO[str]) -> bool:
    """Read what was printed before a child took its descriptors; whether it has."""
    greeting = GREETING.decode()
    while line := stream.readline():
        if line.endswith(greeting):
            return True
    return False


def answers_in(output: bytes) -> bytes:
    """What a child that has ended answered, of all that came by its standard output."""
    return output.partition(GREETING)[2]


__all__ = ["GREETING", "answers_in", "skip_to_answers", "taken"]
