"""Tests that need a newer ONNX Runtime than the oldest that ortopt works with: by its release, with the reason."""

from __future__ import annotations

from typing import Final

import onnxruntime
import pytest

from ortopt.analysis.providers import release_of

INSTALLED: Final = release_of(onnxruntime.__version__)


def since(major: int, minor: int, what: str) -> pytest.MarkDecorator:
    """A test that older releases than one are not given.

    Args:
        major: The release.
        minor: Its second number.
        what: What it has and older ones lack.
    """
    return pytest.mark.skipif((major, minor) > INSTALLED, reason=f"ONNX Runtime {major}.{minor} brought {what}")


def needs(major: int, minor: int, what: str) -> None:
    """Skip one case of a test on older releases than one.

    Args:
        major: The release.
        minor: Its second number.
        what: What it has and older ones lack.
    """
    if (major, minor) > INSTALLED:
        pytest.skip(f"ONNX Runtime {major}.{minor} brought {what}")
