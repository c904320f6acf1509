"""What may never be changed: the facts that folding, sharing, fusion, verification and fuzzing ask.

No pass keeps a list of its own: what ops are is in `ortopt.semantics.op_traits`, how their forms have changed between
opsets in `ortopt.semantics.opset_changes`. Where the ONNX specification or ONNX Runtime is silent, the answer is the
careful one.
"""

from __future__ import annotations

from ortopt.semantics.nodes import (
    GROUP_DOMAIN,
    PURE_DOMAINS,
    QUANTIZATION_KEY,
    STANDARD_DOMAINS,
    Functions,
    constant_content,
    constant_tensor,
    dequantizes,
    growth_allowance,
    is_overridable,
    is_pure,
    is_random,
    is_removable,
    key,
    may_merge,
    owns_interfaces,
    quantization_parameters,
    same_constant,
    strings_of,
    subgraphs,
)
from ortopt.semantics.op_traits import (
    COMMUTATIVE,
    CONTROL_FLOW,
    DEQUANTIZERS,
    OPTIONAL_OUTPUTS,
    QUANTIZERS,
    RANDOM_OPS,
    SPARE_OUTPUTS,
)

__all__ = [
    "COMMUTATIVE",
    "CONTROL_FLOW",
    "DEQUANTIZERS",
    "GROUP_DOMAIN",
    "OPTIONAL_OUTPUTS",
    "PURE_DOMAINS",
    "QUANTIZATION_KEY",
    "QUANTIZERS",
    "RANDOM_OPS",
    "SPARE_OUTPUTS",
    "STANDARD_DOMAINS",
    "Functions",
    "constant_content",
    "constant_tensor",
    "dequantizes",
    "growth_allowance",
    "is_overridable",
    "is_pure",
    "is_random",
    "is_removable",
    "key",
    "may_merge",
    "owns_interfaces",
    "quantization_parameters",
    "same_constant",
    "strings_of",
    "subgraphs",
]
