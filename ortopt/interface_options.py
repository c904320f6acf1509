"""The kind of value by which an option says how an image input is given: layout, dtype and normalization."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ortopt.errors import UsageError
from ortopt.option_kinds import Table

_FORM: Final = "NAME=nhwc,uint8,scale=1/255,mean=0.5:0.4:0.3,std=0.2:0.2:0.2, as far as needed"
_KEYS: Final = ("layout", "dtype", "scale", "mean", "std")
_NAMED: Final = re.compile(r"(.+?)=((?:nchw|nhwc|float32|uint8|scale=|mean=|std=).*)", re.DOTALL)
"""A name, which may hold an equals sign, and how it is given."""

_WORDS: Final = {"nchw": "layout", "nhwc": "layout", "float32": "dtype", "uint8": "dtype"}


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How an image input is given; the model computes ``(image * scale - mean) / std`` from it, in its own layout.

    Attributes:
        layout: ``nchw``, as models have it, or ``nhwc``, as images are decoded.
        dtype: ``float32`` or ``uint8``.
        scale: What pixels are multiplied by, one number or one for each channel.
        mean: What is subtracted then, likewise.
        std: What is divided by then, likewise.
    """

    layout: str = "nchw"
    dtype: str = "float32"
    scale: tuple[float, ...] = (1.0,)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __str__(self) -> str:
        """As a flag takes it."""
        numbers = [
            f"{key}={':'.join(map(repr, getattr(self, key)))}"
            for key in ("scale", "mean", "std")
            if getattr(self, key) != getattr(ImageInput(), key)
        ]
        return ",".join((self.layout, self.dtype, *numbers))


class ImageInputs(Table):
    """By the names of image inputs how they are given."""

    syntax = _FORM
    says = "names of inputs to how images are given, e.g. {'pixels': {'layout': 'nhwc', 'dtype': 'uint8'}}"

    def parsed(self, flag: str, text: Any) -> Any:
        """The images from texts of the form NAME=nhwc,uint8,mean=0.5."""
        images: dict[str, str] = {}
        for one in text:
            match = _NAMED.fullmatch(one)
            if match is None:
                raise UsageError(f"{flag} takes {_FORM}, not {one!r}")
            name, image = match.groups()
            if images.setdefault(name, image) != image:
                raise UsageError(f"{flag} {name} is given twice: {images[name]} and {image}")
        return images

    def _one(self, name: str, key: str, value: Any) -> Any:
        if isinstance(value, ImageInput):
            return value
        given = _words(name, value) if isinstance(value, str) else value
        if not isinstance(given, Mapping) or not given or not set(given) <= set(_KEYS):
            raise UsageError(f"{name} of {key} takes some of {', '.join(_KEYS)}, not {value!r}")
        image = ImageInput(
            given.get("layout", "nchw"),
            given.get("dtype", "float32"),
            *(_numbers(f"{name} of {key}", each, given.get(each, each != "mean")) for each in ("scale", "mean", "std")),
        )
        if _WORDS.get(image.layout) != "layout" or _WORDS.get(image.dtype) != "dtype":
            raise UsageError(
                f"{name} of {key}: the layout is nchw or nhwc and the dtype float32 or uint8,"
                f" not {image.layout!r} and {image.dtype!r}"
            )
        if 0.0 in (*image.scale, *image.std):
            raise UsageError(f"{name} of {key}: neither scale nor std may be 0")
        if len({len(each) for each in (image.scale, image.mean, image.std)} - {1}) > 1:
            raise UsageError(f"{name} of {key}: scale, mean and std have one number, or one for each channel")
        return image


def _fraction(text: str) -> float:
    """The number that a text is, ``0.5`` or ``1/255``."""
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)


def _words(name: str, text: str) -> dict[str, Any]:
    """What a text such as ``nhwc,uint8,mean=0.5`` says, by key."""
    found: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, _, value = part.partition("=")
        known = key in _KEYS[2:] if value else key in _WORDS
        if not known:
            raise UsageError(f"{name} takes {_FORM}, not {part!r}")
        key, value = (key, value) if value else (_WORDS[key], key)
        if found.setdefault(key, value) != value:
            raise UsageError(f"{name} gives {key} twice: {found[key]} and {value}")
    return found


def _numbers(name: str, key: str, value: Any) -> tuple[float, ...]:
    """One number, or several: a text with colons, a number, or a list."""
    try:
        given = value.split(":") if isinstance(value, str) else value if hasattr(value, "__iter__") else (value,)
        numbers = tuple(_fraction(each) if isinstance(each, str) else float(each) for each in given)
    except (TypeError, ValueError, ZeroDivisionError):
        numbers = ()
    if not numbers or not all(map(math.isfinite, numbers)):
        raise UsageError(f"{name}: {key} takes a number, or one for each channel, not {value!r}")
    return numbers


__all__ = ["ImageInput", "ImageInputs"]
