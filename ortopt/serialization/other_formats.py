"""What is often taken for an ONNX model, told by its first bytes."""

from __future__ import annotations

from typing import Final

from ortopt.serialization.wire import Buffer

_PAGE: Final = "a page of HTML or XML, not a model: what was downloaded is no file of the model"

_BEGINNINGS: Final = (
    (0, b"version https://git-lfs", "a pointer of Git LFS, not the model itself: git lfs pull fetches it"),
    *((0, mark, _PAGE) for mark in (b"<!doctype", b"<html", b"<?xml")),
    (0, b"PK\x03\x04", "a zip archive, as PyTorch saves: torch.onnx.export makes an ONNX model of a network"),
    (0, b"\x80\x02", "a Python pickle, as PyTorch saved: torch.onnx.export makes an ONNX model of a network"),
    (0, b"\x89HDF", "an HDF5 file, as Keras saves: tf2onnx makes an ONNX model of a network"),
    (0, b"GGUF", "a model of GGML (GGUF), not of ONNX"),
    (4, b"ORTM", "a model in ONNX Runtime's own format (.ort): optimize the ONNX model that it was made of"),
    (4, b"TFL3", "a model of TensorFlow Lite: tf2onnx makes an ONNX model of it"),
    (8, b'{"', "a file of safetensors: weights without a graph"),
)


def other_format(buffer: Buffer) -> str:
    """What a file is that is no ONNX model, for people; empty where its first bytes do not tell.

    Args:
        buffer: The file's bytes.
    """
    first = bytes(buffer[:64])
    text = first.lstrip(b"\xef\xbb\xbf \r\n").lower()
    return next(
        (what for at, mark, what in _BEGINNINGS if first[at:].startswith(mark) or (not at and text.startswith(mark))),
        "",
    )
