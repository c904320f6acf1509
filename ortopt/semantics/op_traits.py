"""What ops are, each fact once: elementwise, broadcasting, moving elements, random, safe to evaluate and so on.

Sets of op types are of ai.onnx; sets of pairs name the domain too. Whoever needs a trait with exceptions writes it as
an expression, ``UNARY - {"Cast"}``, with the reason. The traits are checked against ONNX's schemas, and by numbers.
"""

from __future__ import annotations

from typing import Final

from ortopt.semantics.domains import MICROSOFT

# -- elementwise ------------------------------------------------------------------------------------------------------

UNARY: Final = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Cos"),
        *("Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
        *("LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid"),
        *("Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
    }
)
"""Ops of one operand: each element of the result is a function of the operand's element there."""

UNARY_WITH_PARAMETERS: Final = frozenset({"CastLike", "Clip", "Dropout"})
"""The same for the first operand of several; the others are parameters that have no element of their own there."""

BROADCASTING: Final = frozenset(
    {
        *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"),
        *("GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum"),
        *("Where", "Xor"),
    }
)
"""Ops whose operands broadcast to one shape: each element of the result is a function of the operands' there."""

BROADCASTING_ONE_WAY: Final = frozenset({"PRelu"})
"""The same, but the result has the shape of the first operand, to which the others broadcast."""

ELEMENTWISE: Final = UNARY | UNARY_WITH_PARAMETERS | BROADCASTING | BROADCASTING_ONE_WAY

VARIADIC: Final = frozenset({"Max", "Mean", "Min", "Sum"})
"""Ops of `BROADCASTING` with any number of operands."""

CASTS: Final = frozenset({"Cast", "CastLike"})

BITWISE: Final = frozenset({"BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"})
"""Elementwise ops of integers alone."""

BOOLEAN_RESULTS: Final = frozenset(
    {
        *("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"),
    }
)
"""Elementwise ops whose results are booleans."""

TRANSCENDENTAL: Final = frozenset(
    {
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu"),
        *("Log", "Mish", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus", "Swish", "Tan", "Tanh"),
    }
)
"""Elementwise ops that kernels approximate: no arithmetic of few operations."""

# -- algebra ----------------------------------------------------------------------------------------------------------

COMMUTATIVE: Final = frozenset(
    {"Add", "Mul", "And", "Or", "Xor", "Equal", "Sum", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}
)
"""Ops of ai.onnx that give the same bits for two operands in either order; not Max and Min, which tell zeros apart."""

IDEMPOTENT: Final = frozenset({"Abs", "Ceil", "Floor", "Relu", "Round", "Sign"})
"""Unary ops that change nothing the second time: integers wrap alike, and NaN and -0.0 come through unchanged."""

INVOLUTIONS: Final = frozenset({"BitwiseNot", "Neg", "Not"})
"""Unary ops that take themselves back, bit for bit."""

NEUTRAL: Final = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1, "And": 1, "Or": 0, "Xor": 0}
"""The second operand that gives back the first, by op; not -0.0 and integers of which a kernel makes doubles."""

ZERO_OF_ZERO: Final = frozenset(
    {
        *("Abs", "Celu", "Elu", "Erf", "Gelu", "HardSwish", "Identity", "LeakyRelu", "Mish", "Neg", "Relu", "Selu"),
        *("Sin", "Softsign", "Tanh"),
    }
)
"""Unary ops that give 0 for 0."""

# -- moving elements --------------------------------------------------------------------------------------------------

RESHAPING: Final = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
"""Ops whose result has the elements of the first operand, in their order, in another shape."""

PERMUTING: Final = RESHAPING | {"DepthToSpace", "Identity", "ReverseSequence", "SpaceToDepth", "Transpose"}
"""Ops whose result has each element of the first operand once."""

SELECTING: Final = frozenset({"Compress", "Gather", "GatherElements", "GatherND", "Slice", "Split"})
"""Ops whose results have some elements of the first operand; a Gather may have one several times."""

REPEATING: Final = frozenset({"Expand", "Tile"})
"""Ops whose result has the elements of the first operand again and again."""

MOVING: Final = PERMUTING | SELECTING | REPEATING
"""Ops whose results have elements of the first operand, and no others; the other operands say which and where."""

FROM_FIRST_OPERAND: Final = MOVING | {
    *("CenterCropPad", "ConcatFromSequence", "GlobalMaxPool", "MaxPool", "MaxUnpool", "Optional", "OptionalGetElement"),
    *("ReduceMax", "ReduceMin", "Resize", "SequenceAt", "SequenceErase", "SplitToSequence", "TopK", "Trilu", "Unique"),
    "Upsample",
}
"""Ops each element of whose result is one of the first operand; of a Resize, and what was one, if it takes the nearest.
"""
CHOOSING: Final = frozenset(
    {
        *("Clip", "Concat", "Max", "Min", "Pad", "Scatter", "ScatterElements", "ScatterND", "SequenceConstruct"),
        *("SequenceInsert", "TensorScatter", "Where"),
    }
)
"""Ops each element of whose result is one of an operand, of any."""

# -- attention --------------------------------------------------------------------------------------------------------

PAST_KEYS: Final = {
    ("", "Attention"): (4, 2),
    (MICROSOFT, "Attention"): (4, 3),
    (MICROSOFT, "GroupQueryAttention"): (3, 2),
    (MICROSOFT, "MultiHeadAttention"): (6, 2),
}
"""The input that holds the past keys, and the axis along which it has them, by op."""

# -- shapes -----------------------------------------------------------------------------------------------------------

SHAPE_QUERIES: Final = frozenset({"Shape", "Size"})
"""Ops that read nothing of their operand but the shape."""

SHAPE_OF_FIRST_INPUT: Final = (
    UNARY
    | UNARY_WITH_PARAMETERS
    | BROADCASTING_ONE_WAY
    | {
        *("CumProd", "CumSum", "DequantizeLinear", "GroupNormalization", "Hardmax", "InstanceNormalization", "LRN"),
        *("LayerNormalization", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "QuantizeLinear"),
        *("RMSNormalization", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "Softmax"),
        *("TensorScatter", "Trilu"),
    }
)
"""Ops whose first output has the shape of the first input, whatever the other inputs are."""

REDUCTIONS: Final = frozenset(
    {
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
        *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
    }
)
"""Ops that make one element of many along axes."""

# -- quantization -----------------------------------------------------------------------------------------------------

DEQUANTIZERS: Final = frozenset({("", "DequantizeLinear"), (MICROSOFT, "DequantizeLinear")})
"""Ops that turn few bits into many: their results are computed at run time, never stored."""

QUANTIZERS: Final = frozenset({("", "QuantizeLinear"), (MICROSOFT, "QuantizeLinear")})
"""Ops that turn many bits into few: their results are worth storing."""

# -- running ----------------------------------------------------------------------------------------------------------

CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Ops that run graphs that they hold."""

RANDOM_OPS: Final = frozenset(
    {
        ("", "RandomNormal"),
        ("", "RandomNormalLike"),
        ("", "RandomUniform"),
        ("", "RandomUniformLike"),
        ("", "Multinomial"),
        ("", "Bernoulli"),
        (MICROSOFT, "BiasDropout"),
        (MICROSOFT, "BitmaskBiasDropout"),
        (MICROSOFT, "BitmaskDropout"),
        (MICROSOFT, "DropoutGrad"),
        (MICROSOFT, "RandomNormal"),
        (MICROSOFT, "Sampling"),
        (MICROSOFT, "UniqueRandom"),
    }
)
"""Ops whose results differ between two runs, seeded or not: never folded, merged, duplicated or reordered."""

SAFE_TO_EVALUATE: Final = (
    (ELEMENTWISE - {"Dropout"})  # in training mode it is random
    | REDUCTIONS
    | RESHAPING
    | SHAPE_QUERIES
    | {
        *("ArgMax", "ArgMin", "BatchNormalization", "Compress", "Concat", "ConstantOfShape", "CumSum"),
        *("DequantizeLinear", "DynamicQuantizeLinear", "Expand", "Gather", "GatherElements", "Gemm", "Hardmax"),
        *("InstanceNormalization", "LayerNormalization", "LogSoftmax", "MatMul", "NonZero", "OneHot"),
        *("QuantizeLinear", "Range", "ScatterElements", "ScatterND", "Slice", "Softmax", "Tile", "TopK", "Transpose"),
        *("Trilu", "Unique"),
    }
)
"""Ops whose kernels check what they are given: no operand can end the process. Sizes are looked at apart."""

# -- outputs ----------------------------------------------------------------------------------------------------------

SPARE_OUTPUTS: Final = frozenset(
    {
        ("", "Dropout"),
        ("", "GRU"),
        ("", "LSTM"),
        ("", "LayerNormalization"),
        ("", "RNN"),
        (MICROSOFT, "DynamicQuantizeLSTM"),
        (MICROSOFT, "SkipLayerNormalization"),
        (MICROSOFT, "SkipSimplifiedLayerNormalization"),
    }
)
"""Ops whose other outputs do not depend on whether an optional one is asked for.

MaxPool is none of them: ONNX Runtime's kernel that gives indices skips NaN, and the one that does not gives it.
"""

OPTIONAL_OUTPUTS: Final = {
    ("", "BatchNormalization"): frozenset({1, 2, 3, 4}),
    ("", "Dropout"): frozenset({1}),
    ("", "GRU"): frozenset({0, 1}),
    ("", "LSTM"): frozenset({0, 1, 2}),
    ("", "LayerNormalization"): frozenset({1, 2}),
    ("", "RNN"): frozenset({0, 1}),
    ("", "Unique"): frozenset({1, 2, 3}),
    (MICROSOFT, "DynamicQuantizeLSTM"): frozenset({0, 1, 2}),
    (MICROSOFT, "SkipLayerNormalization"): frozenset({1, 2, 3}),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): frozenset({1, 2, 3}),
}
"""The positions of outputs that may be left out, by op; the others do not depend on whether they are asked for."""
