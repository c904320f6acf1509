"""Texts for one line of a terminal: names and messages out of untrusted files, and speeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import onnx_ir as ir

_NAME_LENGTH: Final = 80
_MESSAGE_LENGTH: Final = 400


def quoted(name: str | bytes | None) -> str:
    """A name in quotes: control characters and terminal escapes are spelled out, the middle of a long one is left out.

    Args:
        name: Any text, or what protobuf gives where text is not UTF-8; None reads as the empty name.
    """
    if isinstance(name, bytes):
        name = name.decode(errors="backslashreplace")
    return f"'{_shortened(escaped(name or ''), _NAME_LENGTH)}'"


def node_name(node: ir.Node) -> str:
    """A node's name for people: where it has none, that of its first result that has one; empty if none has."""
    return node.name or next((value.name for value in node.outputs if value.name), "")


def one_line(message: object) -> str:
    """A message without line breaks, control characters or excessive length."""
    text = " ".join(str(message)[: 4 * _MESSAGE_LENGTH].split())
    return _shortened(escaped(text), _MESSAGE_LENGTH)


def counted(count: int, what: str) -> str:
    """A number and what it counts: ``no inputs``, ``1 input``, ``2 inputs``."""
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def escaped(text: str) -> str:
    """A text whose control characters and line breaks are spelled out."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in _shortened(text, 4 * _MESSAGE_LENGTH)
    )


def _shortened(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]}…{text[-half:]}"


_AS_FAST: Final = "as fast"


def faster(speed: float) -> str:
    """A speed for people, e.g. ``1.20× faster``.

    Args:
        speed: Relative to what it is compared with: 2 is twice as fast.
    """
    times, word = _times(speed)
    return _AS_FAST if times == "1.00" else f"{times}× {word}"


def between(low: float, high: float) -> str:
    """A range of speeds for people, e.g. ``1.23× slower to 1.05× faster``.

    Args:
        low: The least speed, relative to what it is compared with.
        high: The greatest one.
    """
    (least, word), (most, other) = _times(low), _times(high)
    if _AS_FAST in (faster(low), faster(high)) or word != other:
        return faster(low) if faster(low) == faster(high) else f"{faster(low)} to {faster(high)}"
    if least == most:
        return f"{least}× {word}"
    first, last = sorted((least, most), key=float)
    return f"{first}× to {last}× {word}"


def _times(speed: float) -> tuple[str, str]:
    """How many times faster or slower, at least 1, and which of the two."""
    return (f"{speed:.2f}", "faster") if speed >= 1 else (f"{1 / speed:.2f}", "slower")
