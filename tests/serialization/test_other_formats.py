"""Files that are no ONNX model, as people give them."""

from __future__ import annotations

import pytest

from ortopt import InvalidModelError
from ortopt.serialization.load import load


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "a page of HTML"),
        (b"\r\n<?xml version='1.0'?>", "a page of HTML or XML"),
        (b"PK\x03\x04\x14\x00archive/data.pkl", "a zip archive"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a Python pickle"),
        (b"\x28\x00\x00\x00ORTM\x00\x00\x00\x00\x00\x00", r"own format \(.ort\)"),
        (b"\x1c\x00\x00\x00TFL3\x14\x00\x20\x00", "TensorFlow Lite"),
        (b"\x40\x00\x00\x00\x00\x00\x00\x00" + b'{"__metadata__":{}}', "safetensors"),
        (b"GGUF\x03\x00\x00\x00", "GGUF"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"\xff\xff\xff\xff", "not an ONNX model"),
        (b"<ir_version: 8>", "not an ONNX model"),
    ],
)
def test_the_first_bytes_tell_what_it_is(first: bytes, told: str) -> None:
    with pytest.raises(InvalidModelError, match=told):
        load(first)
