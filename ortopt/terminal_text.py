"""Names and messages out of untrusted files, made fit for one line of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the command line starts without it
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
    """A node's name for people: where it has none, its first result's."""
    return node.name or (node.outputs[0].name or "" if node.outputs else "")


def one_line(message: object) -> str:
    """A message without line breaks, control characters or excessive length."""
    text = " ".join(str(message)[: 4 * _MESSAGE_LENGTH].split())
    return _shortened(escaped(text), _MESSAGE_LENGTH)


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
