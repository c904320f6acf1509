"""Draws of single calls, one module a family of ops; importing this takes them all up."""

from fuzzing.calls import control, elementwise, layers, products, reshaping, slicing, windows
from fuzzing.calls.draw import DRAWINGS, Draw, Drawn, drawn

__all__ = [
    "DRAWINGS",
    "Draw",
    "Drawn",
    "control",
    "drawn",
    "elementwise",
    "layers",
    "products",
    "reshaping",
    "slicing",
    "windows",
]
