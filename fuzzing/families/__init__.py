"""The op families of the generator: each writes one op, or a few, on values that are there, one module a kind of op."""

# The order of registration decides what a seed draws.
# isort: off
from fuzzing.families import elementwise
from fuzzing.families import reductions
from fuzzing.families import normalizations
from fuzzing.families import products
from fuzzing.families import images
from fuzzing.families import movement
from fuzzing.families import reshaping
from fuzzing.families import sizes
from fuzzing.families import special_ops
from fuzzing.families import quantization

__all__ = [
    "elementwise",
    "images",
    "movement",
    "normalizations",
    "products",
    "quantization",
    "reductions",
    "reshaping",
    "sizes",
    "special_ops",
]
