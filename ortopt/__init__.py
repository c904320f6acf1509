"""ortopt: a standalone ONNX graph optimizer."""

from ortopt import _deferred_sympy

_deferred_sympy.install()
