"""What the passes look for, whole or with one condition broken: that is where wrong rewrites live."""

# The order of registration decides what a seed draws.
# isort: off
from fuzzing.patterns import activations
from fuzzing.patterns import normalizations
from fuzzing.patterns import products
from fuzzing.patterns import arithmetic
from fuzzing.patterns import movement
from fuzzing.patterns import quantization
from fuzzing.patterns import redundancies
from fuzzing.patterns import attention

__all__ = [
    "activations",
    "arithmetic",
    "attention",
    "movement",
    "normalizations",
    "products",
    "quantization",
    "redundancies",
]
