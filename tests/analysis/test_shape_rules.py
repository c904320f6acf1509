"""One rule after another: what it knows, and that ORT agrees."""

# ruff: noqa: E501 -- a case a line reads best

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from ortopt.analysis import shapes
from ortopt.analysis.shape_rules import RULES
from ortopt.analysis.shape_rules.registry import broadcast_dim, rule
from ortopt.graph import symbolic
from ortopt.graph.symbolic import canonical
from tests.analysis.truth import check, check_known, feeds_for, infer, infer_proto, parse, run, text

ELEMENTWISE = [
    ("y = Add(x, w)", "float[N,4] x, float[4] w", "float[N,4]"),
    ("y = Add(x, w)", "float[N,1] x, float[1,M] w", "float[N,M]"),
    ("y = Add(x, w)", "float[N,1] x, float[3] w", "float[N,3]"),
    ("y = Add(x, w)", "float[N] x, float[3] w", "float[3]"),
    ("y = Equal(x, w)", "int64[N,4] x, int64[1] w", "bool[N,4]"),
    ("y = Where(c, x, w)", "bool[N,1] c, float[4] x, float w", "float[N,4]"),
    ("y = Pow(x, w)", "float[N] x, int64[1] w", "float[N]"),
    ("y = Cast<to=10>(x)", "float[N] x", "float16[N]"),
    ("y = CastLike(x, w)", "float[N] x, int32[2] w", "int32[N]"),
    ("y = IsNaN(x)", "float[N] x", "bool[N]"),
    ("y = Max(x, w, v)", "float[N,1] x, float[4] w, float v", "float[N,4]"),
    ("y = PRelu(x, w)", "float[N,4] x, float[4] w", "float[N,4]"),
    ("y, m = Dropout(x)", "float[N,4] x", "float[N,4] bool[N,4]"),
    ("y = Clip(x)", "float[N,4] x", "float[N,4]"),
    ("y = Not(x)", "bool[N] x", "bool[N]"),
    ("w = Constant<value = int64[1] {2}>() y = Mod(x, w)", "int64[N] x", "int64[N]"),
    ("y = BitShift<direction=\"LEFT\">(x, w)", "uint8[N] x, uint8[1] w", "uint8[N]"),
    ("y = CumSum(x, a)", "float[N,4] x, int64 a", "float[N,4]"),
    ("y = EyeLike<dtype=7>(x)", "float[N,4] x", "int64[N,4]"),
    ("y = RandomNormalLike(x)", "float[N,4] x", "float[N,4]"),
    ("y = RandomNormal<shape=[2,3]>()", "", "float[2,3]"),
    ("y = Trilu(x)", "float[N,4] x", "float[N,4]"),
    ("y = com.microsoft.FastGelu(x, b)", "float[N,4] x, float[4] b", "float[N,4]"),
    ("y = com.microsoft.BiasGelu(x, b)", "float[N,4] x, float[4] b", "float[N,4]"),
]  # fmt: skip

RESHAPING = [
    ("s = Shape(x) y = Reshape(x, s)", "float[N,4] x", "float[N,4]"),
    ("s = Shape<start=1>(x) y = Identity(s)", "float[N,4] x", "int64[1]"),
    ("s = Size(x) y = Identity(s)", "float[N,4] x", "int64[]"),
    ("t = Constant<value = int64[2] {0, -1}>() y = Reshape(x, t)", "float[N,4,M] x", "float[N,4*M]"),
    ("t = Constant<value = int64[3] {-1, 2, 2}>() y = Reshape(x, t)", "float[N,4,M] x", "float[M*N,2,2]"),
    ("t = Constant<value = int64[3] {2, 2, -1}>() y = Reshape(x, t)", "float[N,M] x", "float[2,2,(M*N)//4]"),
    ("y = Flatten<axis=2>(x)", "float[N,4,M] x", "float[4*N,M]"),
    ("y = Flatten<axis=-3>(x)", "float[N,4,M] x", "float[1,4*M*N]"),
    ("a = Constant<value = int64[1] {-1}>() y = Squeeze(x, a)", "float[N,1] x", "float[N]"),
    ("y = Squeeze(x)", "float[1,4,1] x", "float[4]"),
    ("a = Constant<value = int64[2] {0, -1}>() y = Unsqueeze(x, a)", "float[N] x", "float[1,N,1]"),
    ("y = Transpose(x)", "float[N,4,M] x", "float[M,4,N]"),
    ("y = Transpose<perm=[1,0,2]>(x)", "float[N,4,M] x", "float[4,N,M]"),
    ("t = Constant<value = int64[2] {4, 1}>() y = Expand(x, t)", "float[N,1,1] x", "float[N,4,1]"),
    ("t = Shape(w) y = Expand(x, t)", "float[1] x, float[N,M] w", "float[N,M]"),
    ("t = Constant<value = int64[2] {2, 3}>() y = Tile(x, t)", "float[N,M] x", "float[2*N,3*M]"),
    ("s = Shape(x) y = ConstantOfShape<value = int64[1] {7}>(s)", "float[N,M] x", "int64[N,M]"),
    ("a = Constant<value_int=1>() l = Size(x) d = Constant<value_int=2>() y = Range(a, l, d)", "float[N] x", "int64[N//2]"),
    ("a = Constant<value_float=0.0>() l = Constant<value_float=2.0>() d = Constant<value_float=0.5>() y = Range(a, l, d)", "", "float[4]"),
    ("y = DepthToSpace<blocksize=2>(x)", "float[N,8,H,W] x", "float[N,2,2*H,2*W]"),
    ("y = SpaceToDepth<blocksize=2>(x)", "float[N,2,S,M] x", "float[N,8,S//2,M//2]"),
    ("y = Constant<value_strings=[\"a\",\"b\"]>()", "", "string[2]"),
]  # fmt: skip

SLICING = [
    ("y = Concat<axis=-1>(x, w, x)", "float[N,4] x, float[N,M] w", "float[N,M + 8]"),
    ("y, z = Split<axis=1>(x)", "float[N,4] x", "float[N,2] float[N,2]"),
    ("s = Constant<value = int64[2] {1, 3}>() y, z = Split<axis=1>(x, s)", "float[N,4] x", "float[N,1] float[N,3]"),
    ("b = Constant<value = int64[1] {1}>() e = Constant<value = int64[1] {-1}>() y = Slice(x, b, e)", "float[S,4] x", "float[max(0, max(0, S - 1) - min(1, S)),4]"),
    ("b = Constant<value = int64[1] {0}>() e = Shape<end=1>(w) y = Slice(x, b, e)", "float[8,4] x, float[N] w", "float[min(8, N),4]"),
    ("n = Shape<end=1>(x) b = Neg(n) e = Constant<value = int64[1] {9223372036854775807}>() y = Slice(x, b, e)", "float[N,4] x", "float[N,4]"),
    ("n = Shape<end=1>(x) o = Constant<value = int64[1] {0}>() w = Constant<value = int64[1] {128}>() d = Sub(w, n) b = Max(d, o) e = Constant<value = int64[1] {9223372036854775807}>() l = Slice(t, b, e) y = Identity(l)", "float[N,4] x, float[128,4] t", "float[min(128, N),4]"),
    ("n = Shape<end=1>(x) o = Constant<value = int64[1] {0}>() w = Constant<value = int64[1] {128}>() d = Sub(w, n) b = Max(d, o) e = Constant<value = int64[1] {9223372036854775807}>() l = Slice(t, b, e) y = Add(x, l)", "float[N,4] x, float[128,4] t", "float[N,4]"),
    ("n = Shape<end=1>(x) o = Constant<value = int64[1] {0}>() w = Constant<value = int64[1] {1}>() d = Sub(w, n) b = Max(d, o) e = Constant<value = int64[1] {9223372036854775807}>() l = Slice(t, b, e) y = Add(x, l)", "float[N,4] x, float[1,4] t", "float[N,4]"),
    ("n = Shape<end=1>(x) b = Neg(n) e = Constant<value = int64[1] {9223372036854775807}>() z = Concat<axis=0>(x, x) y = Slice(z, b, e)", "float[N,4] x", "float[N,4]"),
    ("n = Shape<end=1>(x) b = Neg(n) e = Constant<value = int64[1] {9223372036854775807}>() z = Concat<axis=0>(x, w) y = Slice(z, b, e)", "float[N,4] x, float[1,4] w", "float[?,4]"),
    ("b = Constant<value = int64[1] {-1}>() e = Constant<value = int64[1] {-9223372036854775807}>() a = Constant<value = int64[1] {1}>() s = Constant<value = int64[1] {-2}>() y = Slice(x, b, e, a, s)", "float[N,S] x", "float[N,(S + 1)//2]"),
    ("y = Gather<axis=1>(x, i)", "float[N,4,M] x, int64[2,S] i", "float[N,2,S,M]"),
    ("y = GatherElements(x, i)", "float[N,4] x, int64[2,4] i", "float[2,4]"),
    ("y = GatherND(x, i)", "float[N,4,M] x, int64[S,2] i", "float[S,M]"),
    ("y = GatherND<batch_dims=1>(x, i)", "float[N,4,M] x, int64[N,1] i", "float[N,M]"),
    ("p = Constant<value = int64[4] {0, 1, 2, 3}>() y = Pad(x, p)", "float[N,4] x", "float[N + 2,8]"),
    ("y = NonZero(x)", "float[N,4] x", "int64[2,?]"),
    ("k = Constant<value = int64[1] {2}>() y, i = TopK(x, k)", "float[N,4] x", "float[N,2] int64[N,2]"),
    ("y, i, j, c = Unique(x)", "float[N,4] x", "float[?] int64[?] int64[4*N] int64[?]"),
    ("y = Compress<axis=1>(x, c)", "float[N,2] x, bool[2] c", "float[N,?]"),
    ("d = Constant<value = int64 {5}>() y = OneHot(i, d, v)", "int64[N] i, float[2] v", "float[N,5]"),
    ("s = Constant<value = float[4] {1.0, 1.0, 2.0, 0.5}>() y = Resize(x, , s)", "float[N,3,H,W] x", "float[N,3,2*H,W//2]"),
    ("s = Constant<value = int64[4] {1, 3, 5, 6}>() y = Resize(x, , , s)", "float[1,3,H,W] x", "float[1,3,5,6]"),
    ("y = ScatterND(x, i, u)", "float[N,4] x, int64[2,1] i, float[2,4] u", "float[N,4]"),
    ("l = Constant<value = int64[3] {2, 2, 2}>() y = ReverseSequence(x, l)", "float[4,3] x", "float[4,3]"),
    ("y = GridSample(x, g)", "float[N,3,H,W] x, float[N,5,6,2] g", "float[N,3,5,6]"),
]  # fmt: skip

REDUCTIONS = [
    ("y = ReduceMean<axes=[1]>(x)", "float[N,4] x", "float[N,1]"),
    ("y = ReduceMean<axes=[-1], keepdims=0>(x)", "float[N,4] x", "float[N]"),
    ("y = ReduceMax<keepdims=0>(x)", "float[N,4] x", "float[]"),
    ("a = Constant<value = int64[1] {0}>() y = ReduceSum(x, a)", "float[N,4] x", "float[1,4]"),
    ("y = ReduceSum<noop_with_empty_axes=1>(x)", "float[N,4] x", "float[N,4]"),
    ("y = ArgMax<axis=1, keepdims=0>(x)", "float[N,4] x", "int64[N]"),
    ("y = ArgMin(x)", "float[N,4] x", "int64[1,4]"),
    ("y = Einsum<equation=\"bij, bjk -> bik\">(x, w)", "float[B,N,4] x, float[B,4,M] w", "float[B,N,M]"),
    ("y = Einsum<equation=\"ij,jk\">(x, w)", "float[N,4] x, float[4,M] w", "float[N,M]"),
]  # fmt: skip

PRODUCTS = [
    ("y = MatMul(x, w)", "float[B,1,N,4] x, float[S,4,M] w", "float[B,S,N,M]"),
    ("y = MatMul(x, w)", "float[4] x, float[4,M] w", "float[M]"),
    ("y = MatMul(x, w)", "float[N,4] x, float[4] w", "float[N]"),
    ("y = MatMul(x, w)", "float[4] x, float[4] w", "float[]"),
    ("y = Gemm<transA=1, transB=1>(x, w)", "float[4,N] x, float[M,4] w", "float[N,M]"),
    ("y = MatMulInteger(x, w)", "uint8[N,4] x, uint8[4,M] w", "int32[N,M]"),
    ("y = com.microsoft.FusedMatMul<transA=1, alpha=2.0>(x, w)", "float[4,N] x, float[4,M] w", "float[N,M]"),
    ("y = com.microsoft.FusedMatMul<transBatchA=1>(x, w)", "float[N,B,4] x, float[B,4,M] w", "float[B,N,M]"),
    ("y = com.microsoft.FusedGemm<activation=\"Relu\">(x, w)", "float[N,4] x, float[4,M] w", "float[N,M]"),
    ("y = com.microsoft.MatMulIntegerToFloat(x, w, s, t)", "uint8[N,4] x, uint8[4,M] w, float s, float t", "float[N,M]"),
    ("y = com.microsoft.DynamicQuantizeMatMul(x, w, s)", "float[N,4] x, uint8[4,M] w, float s", "float[N,M]"),
    ("y = com.microsoft.MatMulNBits<K=32, N=8, bits=4, block_size=32>(x, w, s)", "float[B,N,32] x, uint8[8,1,16] w, float[8] s", "float[B,N,8]"),
]  # fmt: skip

HALVED = "max(H//2 - 1, min((H + 1)//2 - 1, 0)) + 1"  # of one element a window of two still makes one

CONVOLUTIONS = [
    ("y = Conv(x, w)", "float[N,3,H,W] x, float[8,3,3,3] w", "float[N,8,H - 2,W - 2]"),
    ("y = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w)", "float[N,3,H,W] x, float[8,3,3,3] w", "float[N,8,(H + 1)//2,(W + 1)//2]"),
    ("y = Conv<dilations=[2], group=2>(x, w)", "float[N,4,W] x, float[8,2,3] w", "float[N,8,W - 4]"),
    ("y = Conv<auto_pad=\"SAME_UPPER\", strides=[2,2]>(x, w)", "float[N,3,H,W] x, float[8,3,3,3] w", "float[N,8,(H + 1)//2,(W + 1)//2]"),
    ("y = Conv<auto_pad=\"VALID\", strides=[2,2]>(x, w)", "float[N,3,9,11] x, float[8,3,3,3] w", "float[N,8,4,5]"),
    ("y = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,0]>(x, w)", "float[N,4,H,W] x, float[4,2,3,3] w", "float[N,2,2*H,2*W - 1]"),
    ("y = ConvTranspose<group=2>(x, w)", "float[N,4,W] x, float[4,2,3] w", "float[N,4,W + 2]"),
    ("y = ConvTranspose<output_shape=[12]>(x, w)", "float[N,4,W] x, float[4,2,3] w", "float[N,2,12]"),
    ("y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)", "float[N,3,H,6] x", f"float[N,3,{HALVED},3] int64[N,3,{HALVED},3]"),
    ("y = MaxPool<kernel_shape=[2], strides=[2], pads=[1,1]>(x)", "float[N,3,W] x", "float[N,3,W//2 + 1]"),
    ("y = MaxPool<kernel_shape=[2], strides=[2], ceil_mode=1>(x)", "float[N,3,11] x", "float[N,3,6]"),
    ("y = MaxPool<kernel_shape=[2], strides=[3], pads=[0,1], ceil_mode=1>(x)", "float[N,3,9] x", "float[N,3,3]"),
    ("y = AveragePool<kernel_shape=[3], pads=[1,1]>(x)", "float[N,3,W] x", "float[N,3,W]"),
    ("y = GlobalAveragePool(x)", "float[N,3,H,W] x", "float[N,3,1,1]"),
    ("y = com.microsoft.FusedConv<activation=\"Relu\">(x, w)", "float[N,3,H,W] x, float[8,3,3,3] w", "float[N,8,H - 2,W - 2]"),
]  # fmt: skip

NORMALIZATIONS = [
    ("y = LayerNormalization(x, s)", "float[N,S,4] x, float[4] s", "float[N,S,4]"),
    ("y, m, d = LayerNormalization<axis=1>(x, s)", "float[N,S,4] x, float[S,4] s", "float[N,S,4] float[N,1,1] float[N,1,1]"),
    ("y = BatchNormalization(x, s, b, m, v)", "float[N,4,H] x, float[4] s, float[4] b, float[4] m, float[4] v", "float[N,4,H]"),
    ("y = InstanceNormalization(x, s, b)", "float[N,4,H] x, float[4] s, float[4] b", "float[N,4,H]"),
    ("y, m, d, s = com.microsoft.SkipLayerNormalization(x, k, g)", "float[N,S,4] x, float[N,S,4] k, float[4] g", "float[N,S,4] float[N,S,1] float[N,S,1] float[N,S,4]"),
    ("y = com.microsoft.SkipSimplifiedLayerNormalization(x, k, g)", "float[N,S,4] x, float[N,S,4] k, float[4] g", "float[N,S,4]"),
    ("y = SimplifiedLayerNormalization(x, g)", "float[N,S,4] x, float[4] g", "float[N,S,4]"),
    ("y, m = com.microsoft.EmbedLayerNormalization(i, , w, p, , g, b)", "int32[N,S] i, float[8,4] w, float[8,4] p, float[4] g, float[4] b", "float[N,S,4] int32[N]"),
]  # fmt: skip

RECURRENT = [
    ("y, h, c = LSTM<hidden_size=5>(x, w, r)", "float[S,B,4] x, float[1,20,4] w, float[1,20,5] r", "float[S,1,B,5] float[1,B,5] float[1,B,5]"),
    ("y, h = GRU<hidden_size=5, direction=\"bidirectional\">(x, w, r)", "float[S,B,4] x, float[2,15,4] w, float[2,15,5] r", "float[S,2,B,5] float[2,B,5]"),
    ("y = RNN<hidden_size=5>(x, w, r)", "float[S,B,4] x, float[1,5,4] w, float[1,5,5] r", "float[S,1,B,5]"),
]  # fmt: skip

QUANTIZATION = [
    ("y = QuantizeLinear(x, s, z)", "float[N,4] x, float s, int8 z", "int8[N,4]"),
    ("y = QuantizeLinear(x, s)", "float[N,4] x, float s", "uint8[N,4]"),
    ("y = DequantizeLinear(x, s)", "uint8[N,4] x, float s", "float[N,4]"),
    ("y, s, z = DynamicQuantizeLinear(x)", "float[N,4] x", "uint8[N,4] float[] uint8[]"),
    ("y = QLinearMatMul(x, s, z, w, t, u, r, q)", "uint8[N,4] x, float s, uint8 z, uint8[4,M] w, float t, uint8 u, float r, uint8 q", "uint8[N,M]"),
    ("y = QLinearConv(x, s, z, w, t, u, r, q)", "uint8[N,3,H] x, float s, uint8 z, uint8[8,3,3] w, float t, uint8 u, float r, uint8 q", "uint8[N,8,H - 2]"),
    ("y = ConvInteger(x, w)", "uint8[N,3,H] x, uint8[8,3,3] w", "int32[N,8,H - 2]"),
    ("y = com.microsoft.QLinearAdd(x, s, z, w, t, u, r, q)", "uint8[N,4] x, float s, uint8 z, uint8[4] w, float t, uint8 u, float r, uint8 q", "uint8[N,4]"),
]  # fmt: skip

ATTENTION = [
    ("y, p = com.microsoft.Attention<num_heads=2>(x, w, b)", "float[B,S,8] x, float[8,24] w, float[24] b", "float[B,S,8] float[2,B,2,S,4]"),
    ("y = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v)", "float[B,S,8] q, float[B,M,8] k, float[B,M,6] v", "float[B,S,6]"),
    ("y, k2, v2 = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v)", "float[B,S,8] q, float[B,M,8] k, float[B,M,8] v", "float[B,S,8] float[B,2,M,4] float[B,2,M,4]"),
]  # fmt: skip

STEP = "s = Constant<value = int64 {2}>() "
SIGNALS = [
    (STEP + "y = STFT(x, s, w)", "float[N,16,1] x, float[6] w", "float[N,6,4,2]"),
    (STEP + "y = STFT<onesided=0>(x, s, w)", "float[N,16] x, float[6] w", "float[N,6,6,2]"),
    (STEP + "y = STFT<onesided=0>(x, s, w)", "float[N,16,2] x, float[6] w", "float[N,6,6,2]"),
    (STEP + "f = Constant<value = int64 {5}>() y = STFT(x, s, , f)", "float[N,16] x", "float[N,6,3,2]"),
    (STEP + "f = Constant<value = int64 {5}>() y = STFT(x, s, w, f)", "float[N,16] x, float[5] w", "float[N,6,3,2]"),
    ("y = DFT<axis=1>(x)", "float[N,8,5,1] x", "float[N,8,5,2]"),
    ("y = DFT<axis=2, onesided=1>(x)", "float[N,8,5,1] x", "float[N,8,3,2]"),
    ("y = DFT<axis=-2, inverse=1, onesided=1>(x)", "float[N,8,5,2] x", "float[N,8,8,1]"),
    ("y = DFT<axis=2, inverse=1>(x)", "float[N,8,5,2] x", "float[N,8,5,2]"),
    ("l = Shape<start=1, end=2>(x) o = Constant<value = int64[1] {0}>() n = Squeeze(l, o) y = DFT<axis=2, onesided=1>(x, n)", "float[N,8,5,1] x", "float[N,8,5,2]"),
]  # fmt: skip

SEQUENCES = [
    ("s = SplitToSequence<axis=1>(x) i = Constant<value = int64 {1}>() y = SequenceAt(s, i)", "float[N,4] x", "float[N,1]"),
    ("p = Constant<value = int64 {2}>() s = SplitToSequence<axis=1>(x, p) i = Constant<value = int64 {1}>() y = SequenceAt(s, i)", "float[N,4] x", "float[N,2]"),
    ("s = SequenceConstruct(x, w) i = Constant<value = int64 {1}>() y = SequenceAt(s, i)", "float[N,4] x, float[M] w", "float[M]"),
    ("s = SequenceConstruct(x, w) y = SequenceLength(s)", "float[N,4] x, float[M] w", "int64[]"),
]  # fmt: skip

FAMILIES = {
    "elementwise": ELEMENTWISE,
    "reshaping": RESHAPING,
    "slicing": SLICING,
    "reductions": REDUCTIONS,
    "products": PRODUCTS,
    "convolutions": CONVOLUTIONS,
    "normalizations": NORMALIZATIONS,
    "recurrent": RECURRENT,
    "quantization": QUANTIZATION,
    "attention": ATTENTION,
    "signals": SIGNALS,
    "sequences": SEQUENCES,
}


@pytest.mark.parametrize(
    ("body", "inputs", "expected"),
    [
        pytest.param(*case, id=f"{family}-{index}")
        for family, cases in FAMILIES.items()
        for index, case in enumerate(cases)
    ],
)
def test_rule(body: str, inputs: str, expected: str) -> None:
    check_known(body, inputs, expected)


OPSETS = [
    (11, "y = Squeeze<axes=[1]>(x)", "float[N,1,4] x", "float[N,4]"),
    (11, "y = Unsqueeze<axes=[0]>(x)", "float[N] x", "float[1,N]"),
    (9, "y = Slice<starts=[1], ends=[3], axes=[1]>(x)", "float[N,4] x", "float[N,2]"),
    (9, "y, z = Split<axis=1, split=[1,3]>(x)", "float[N,4] x", "float[N,1] float[N,3]"),
    (9, "y = Pad<pads=[0,1,0,1]>(x)", "float[N,4] x", "float[N,6]"),
    (9, "y, i = TopK<k=2>(x)", "float[N,4] x", None),
    (11, "y = ReduceSum<axes=[0]>(x)", "float[N,4] x", "float[1,4]"),
    (18, "a = Constant<value = int64[1] {1}>() y = ReduceMean(x, a)", "float[N,4] x", "float[N,1]"),
    (18, "y, z = Split<axis=1, num_outputs=2>(x)", "float[N,5] x", "float[N,3] float[N,2]"),
    (18, "a = Constant<value = int64[1] {1}>() p = Constant<value = int64[2] {1, 2}>() y = Pad(x, p, , a)", "float[N,4] x", "float[N,7]"),
    (18, "s = Constant<value = int64[1] {5}>() y = Resize<axes=[2]>(x, , , s)", "float[N,3,H] x", "float[N,3,5]"),
    (20, "y = Gelu(x)", "float[N,4] x", "float[N,4]"),
    (20, "y = DFT(x)", "float[N,5,8,1] x", "float[N,5,8,2]"),
    (20, "a = Constant<value = int64 {1}>() y = DFT<onesided=1>(x, , a)", "float[N,5,8,1] x", "float[N,3,8,2]"),
    (20, "n = Constant<value = int64 {6}>() y = DFT<onesided=1, inverse=1>(x, n)", "float[N,5,8,2] x", "float[N,5,6,1]"),
    (21, "y = QuantizeLinear<output_dtype=3>(x, s)", "float[N,4] x, float s", "int8[N,4]"),
    (23, "y = RMSNormalization(x, s)", "float[N,4] x, float[4] s", "float[N,4]"),
    (23, "y, k2, v2 = Attention(q, k, v)", "float[B,2,S,4] q, float[B,2,M,4] k, float[B,2,M,5] v", None),
    (23, "y = Attention<q_num_heads=2, kv_num_heads=2>(q, k, v)", "float[B,S,8] q, float[B,M,8] k, float[B,M,8] v", "float[B,S,8]"),
]  # fmt: skip


@pytest.mark.parametrize(("opset", "body", "inputs", "expected"), OPSETS)
def test_rule_of_an_opset(opset: int, body: str, inputs: str, expected: str | None) -> None:
    if expected is None:
        infer(body, inputs, opset=opset)
        return
    check_known(body, inputs, expected, opset=opset)


WITHOUT_KERNEL = [
    ("y, k2, v2 = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2>(q, k, v, pk, pv, l, t)", "float[B,S,16] q, float[B,S,8] k, float[B,S,8] v, float[B,2,M,4] pk, float[B,2,M,4] pv, int32[B] l, int32 t", "float[B,S,16] float[B,2,?,4] float[B,2,?,4]"),
    ("y = com.microsoft.QAttention<num_heads=2>(x, w, b, s, t)", "uint8[B,S,8] x, uint8[8,24] w, float[24] b, float s, float t", "float[B,S,8]"),
    ("y = com.microsoft.RotaryEmbedding(x, p, c, s)", "float16[B,S,8] x, int64[1] p, float16[8,2] c, float16[8,2] s", "float16[B,S,8]"),
    ("y = com.microsoft.NhwcFusedConv<pads=[1,1,1,1]>(x, w)", "float16[N,H,W,3] x, float16[8,3,3,3] w", "float16[N,H,W,8]"),
    ("y = com.microsoft.QLinearConcat<axis=1>(s, z, a, b, c, d, e, f)", "float s, uint8 z, uint8[N,4] a, float b, uint8 c, uint8[N,M] d, float e, uint8 f", "uint8[N,M + 4]"),
    ("y = com.microsoft.GatherBlockQuantized<bits = 4, gather_axis = 0, quantize_axis = 1>(q, i, s)", "uint8[8,K] q, int64[B,S] i, float16[8,2] s", "float16[B,S,2*K]"),
    ("y = com.microsoft.GatherBlockQuantized<quantize_axis = 1>(q, i, s)", "int4[8,64] q, int64[B] i, float[8,2] s", "float[B,64]"),
    ("y = com.microsoft.FusedMatMul<transB=1>(x, w)", "float16[N,4] x, float16[M,4] w", "float16[N,M]"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "inputs", "expected"), WITHOUT_KERNEL)
def test_rule_of_what_the_cpu_cannot_run(body: str, inputs: str, expected: str) -> None:
    values = infer(body, inputs)
    assert " ".join(text(values[name]) for name in parse(body, inputs).graph.node[-1].output) == expected


CONTENTS = {
    "y = Shape(x)": "N 4 M",
    "y = Shape<start=-2>(x)": "4 M",
    "y = Size(x)": "4*M*N",
    "s = Shape(x) i = Constant<value = int64 {-1}>() y = Gather(s, i)": "M",
    "s = Shape(x) i = Constant<value = int64[2] {2, 0}>() y = Gather(s, i)": "M N",
    "s = Shape(x) b = Constant<value = int64[1] {1}>() e = Constant<value = int64[1] {3}>() y = Slice(s, b, e)": "4 M",
    "s = Shape(x) m = Constant<value = int64[1] {-1}>() y = Concat<axis=0>(m, s)": "-1 N 4 M",
    "s = Size(x) a = Constant<value = int64[1] {0}>() y = Unsqueeze(s, a)": "4*M*N",
    "s = Shape(x) y = Add(s, s)": "2*N 8 2*M",
    "s = Shape(x) d = Constant<value = int64 {2}>() y = Div(s, d)": "N//2 2 M//2",
    "s = Shape(x) d = Constant<value = int64 {-3}>() y = Div(s, d)": "? -1 ?",
    "a = Constant<value = int64[2] {-7, 7}>() d = Constant<value = int64 {2}>() y = Div(a, d)": "-3 3",
    "a = Constant<value = int64[2] {-7, 7}>() d = Constant<value = int64 {2}>() y = Mod(a, d)": "1 1",
    "a = Constant<value = int64[2] {-7, 7}>() d = Constant<value = int64 {2}>() y = Mod<fmod=1>(a, d)": "? 1",
    "s = Shape(x) y = Neg(s)": "-N -4 -M",
    "s = Shape(x) y = Cast<to=6>(s)": "? 4 ?",
    "s = Shape(x) c = Constant<value = int64[3] {1, 1, 9}>() y = Max(s, c)": "max(1, N) 4 max(9, M)",
    "s = Shape(x) y = Equal(s, s)": "1 1 1",
    "s = Shape(x) m = Constant<value = int64 {-1}>() e = Equal(s, m) o = Constant<value = int64 {5}>() y = Where(e, o, s)": "N 4 M",
    "s = Shape(x) y = ReduceProd<keepdims=0>(s)": "4*M*N",
    "s = Shape(x) y, z, w = Split<axis=0>(s) v = Identity(y)": "N",
    "l = Constant<value = int64 {3}>() a = Constant<value = int64 {0}>() d = Constant<value = int64 {1}>() y = Range(a, l, d)": "0 1 2",
    "s = Constant<value = int64[1] {3}>() y = ConstantOfShape<value = int64[1] {7}>(s)": "7 7 7",
    "c = Constant<value = int64 {7}>() s = Constant<value = int64[1] {3}>() y = Expand(c, s)": "7 7 7",
    "c = Constant<value = int64[2] {7, 8}>() s = Constant<value = int64[1] {2}>() y = Tile(c, s)": "7 8 7 8",
    "p = Constant<value = int64[2,2] {1, 2, 3, 4}>() t = Transpose(p) r = Constant<value = int64[1] {-1}>() y = Reshape(t, r)": "1 3 2 4",
    "c = Constant<value = float {2.0}>() s = Size(x) y = CastLike(c, s)": "2",
}  # fmt: skip


@pytest.mark.parametrize("body", CONTENTS)
def test_contents(body: str) -> None:
    proto = parse(body, "float[N,4,M] x")
    name = "y"
    values = infer_proto(proto)
    elements = shapes.contents(values[name])
    assert elements is not None
    assert " ".join("?" if not isinstance(e, int) and e.value is None else str(e) for e in elements) == CONTENTS[body]
    feeds = feeds_for(proto)
    true = run(proto, feeds)[name].reshape(-1).tolist()
    binding = {"N": 3, "M": 4}
    for element, number in zip(elements, true, strict=True):
        known = symbolic.substitute(element, binding)
        assert not isinstance(known, int) or known == int(number)


def test_big_tensors_have_no_contents() -> None:
    body = "s = Constant<value = int64[1] {65}>() y = ConstantOfShape<value = int64[1] {7}>(s)"
    assert shapes.contents(infer(body)["y"]) is None


def test_contents_of_what_cannot_be_told() -> None:
    values = infer("s = Shape(x) y = Where(c, s, s) z = Where(c, t, s)", "float[N,4] x, bool c, int64[2] t")
    assert shapes.contents(values["y"]) == (canonical("N"), 4)
    assert shapes.contents(values["z"]) is None


def test_slices_at_random_agree_with_numpy() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        size = int(rng.integers(0, 7))
        start, end = (int(bound) for bound in rng.integers(-9, 10, 2))
        step = int(rng.choice([-3, -2, -1, 1, 2, 3]))
        parts = {"b": start, "e": end, "a": 0, "s": step}
        body = " ".join(f"{name} = Constant<value = int64[1] {{{value}}}>()" for name, value in parts.items())
        proto = parse(f"{body} y = Slice(x, b, e, a, s)", f"float[{size}] x")
        inferred = text(infer_proto(proto)["y"])
        assert inferred == f"float[{run(proto, {'x': np.zeros(size, np.float32)})['y'].shape[0]}]", (size, parts)


def test_poolings_at_random_agree_with_ort() -> None:
    rng = np.random.default_rng(4)
    for _ in range(60):
        kernel, stride, dilation = (int(number) for number in rng.integers(1, 4, 3))
        pads = [int(pad) for pad in rng.integers(0, kernel, 2)]
        size = int(rng.integers(8, 20))
        ceil = int(rng.integers(0, 2))
        body = (
            f"y = MaxPool<kernel_shape=[{kernel}], strides=[{stride}], dilations=[{dilation}],"
            f" pads=[{pads[0]},{pads[1]}], ceil_mode={ceil}>(x)"
        )
        proto = parse(body, f"float[1,1,{size}] x")
        true = run(proto, {"x": np.zeros((1, 1, size), np.float32)})["y"].shape[2]
        assert text(infer_proto(proto)["y"]) == f"float[1,1,{true}]", (body, size)
        symbolic_proto = parse(body, "float[1,1,N] x")
        dim = shapes.dims_of(infer_proto(symbolic_proto)["y"])[2]
        assert symbolic.substitute(dim, {"N": size}) == true, (body, size, dim)


def test_an_op_has_one_rule() -> None:
    with pytest.raises(ValueError, match="two shape rules"):
        rule("Add")(RULES["", "Add"])


def _slice(start: int, end: int, step: int, source: str = "x") -> str:
    given = zip("bepa", (start, end, step, 0), strict=True)
    return " ".join(f"{name} = Constant<value = int64[1] {{{one}}}>()" for name, one in given) + (
        f" y = Slice({source}, b, e, a, p)"
    )


LARGEST, SMALLEST = 2**63 - 1, -(2**63)


@pytest.mark.parametrize("start", [LARGEST, -1, SMALLEST])
@pytest.mark.parametrize("end", [LARGEST, 2**31 - 1, 0, SMALLEST])
@pytest.mark.parametrize("step", [1, -1, LARGEST, SMALLEST])
def test_slice_at_the_ends_of_int64(start: int, end: int, step: int) -> None:
    for size in (0, 3):
        check(_slice(start, end, step), "float[N] x", {"x": np.zeros(size, np.float32)})
    check("x = Constant<value = int64[3] {5, 6, 7}>() " + _slice(start, end, step))


EINSUMS = [
    ("ij,ij->ij", (3, 4), (3, 1), "float[3,4]"),
    ("ij,ij->ij", (1, 4), (3, 1), "float[3,4]"),
    ("ij,ji->ij", (1, 1), (4, 3), "float[3,4]"),
    ("ij,jk->k", (2, 1), (3, 5), "float[5]"),
    ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5), "float[2,3,5]"),
    ("...ij,...jk->...ik", (1, 3, 4), (2, 4, 5), "float[2,3,5]"),
    ("...ij,...jk", (2, 3, 4), (2, 4, 5), "float[2,3,5]"),
    ("i...,j...->...ij", (2, 3), (4, 3), "float[3,2,4]"),
    ("iij,jk->ik", (3, 3, 4), (4, 5), "float[3,5]"),
    ("ii,jj->ij", (3, 3), (4, 4), "float[3,4]"),
]


@pytest.mark.parametrize(("equation", "first", "second", "expected"), EINSUMS)
def test_einsum(equation: str, first: tuple[int, ...], second: tuple[int, ...], expected: str) -> None:
    feeds = {"x": np.ones(first, np.float32), "w": np.ones(second, np.float32)}
    body = f'y = Einsum<equation="{equation}">(x, w)'
    inputs = ", ".join(f"float[{','.join(map(str, one.shape))}] {name}" for name, one in feeds.items())
    assert text(check(body, inputs, feeds)["y"]) == expected
    symbols = ", ".join(
        f"float[{','.join(f'{name}{i}' for i in range(one.ndim))}] {name}" for name, one in feeds.items()
    )
    check(body, symbols, feeds)


POOLINGS = [
    "kernel_shape=[4], strides=[5]",
    "kernel_shape=[4], strides=[2]",
    "kernel_shape=[5], strides=[3], pads=[1,0]",
    "kernel_shape=[3], strides=[2], dilations=[3]",
    'kernel_shape=[3], strides=[2], dilations=[2], auto_pad="SAME_UPPER"',
    'kernel_shape=[5], strides=[3], dilations=[2], auto_pad="SAME_LOWER", ceil_mode=1',
    'kernel_shape=[2], strides=[3], auto_pad="SAME_LOWER"',
    'kernel_shape=[3], strides=[2], auto_pad="VALID", ceil_mode=1',
    "kernel_shape=[3], strides=[2], pads=[1,1], ceil_mode=1",
    "kernel_shape=[1], strides=[3], ceil_mode=1",
]


@pytest.mark.parametrize("attributes", POOLINGS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_larger_than_what_they_move_over(op: str, attributes: str) -> None:
    ran = 0
    for size in range(1, 9):
        feeds = {"x": np.ones((1, 2, size), np.float32)}
        for inputs in (f"float[1,2,{size}] x", "float[1,2,W] x"):
            try:
                check(f"y = {op}<{attributes}>(x)", inputs, feeds, opset=19)
            except (Fail, InvalidArgument, RuntimeException):
                continue
            ran += 1
    assert ran > 8


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("more", ["", "dilations=[3],", "output_padding=[1],", "output_shape=[5],"])
def test_transposed_convolutions_are_cut_and_not_filled(auto_pad: str, more: str) -> None:
    feeds = {"x": np.ones((1, 2, 3), np.float32), "w": np.ones((2, 2, 2), np.float32)}
    for stride in (2, 3, 5):
        if "output_shape" in more and stride > 2:
            continue  # nothing of three elements three apart fits in five
        body = f'y = ConvTranspose<{more} strides=[{stride}], auto_pad="{auto_pad}">(x, w)'
        check(body, "float[1,2,W] x, float[2,2,2] w", feeds)


@pytest.mark.parametrize("size", [0, 5])
def test_a_target_that_may_be_0_copies(size: int) -> None:
    feeds = {"x": np.ones((1, 5), np.float32), "s": np.ones((size,), np.float32)}
    body = "d = Shape(s) m = Constant<value = int64[1] {-1}>() t = Concat<axis=0>(m, d) y = Reshape(x, t)"
    check(body, "float[1,5] x, float[N] s", feeds)
    check(body, "float[1,M] x, float[N] s", feeds)


def test_no_dimension_is_below_0() -> None:
    """A Range up to a dimension has max(0, dimension) elements, which is the dimension beside a value that has it."""
    dim = canonical("N//10 - 1")
    capped = symbolic.maximum(dim, 0)
    assert capped != dim
    assert broadcast_dim(dim, capped) == broadcast_dim(capped, dim) == dim
    assert broadcast_dim(dim, symbolic.maximum(dim, 1)) == dim  # where it is 0, the other is 1


def test_what_was_broadcast_is_known_again() -> None:
    """Sums of the same lengths have the same length, and one of them added again changes nothing."""
    body = "a = Add(x, z) b = Add(z, x) c = Add(a, x) y = Add(b, c)"
    for n, m in ((3, 3), (1, 3), (3, 1), (1, 0), (0, 1)):
        values = check(body, "float[N] x, float[M] z", {"x": np.ones(n, np.float32), "z": np.ones(m, np.float32)})
        assert len({shapes.dims_of(values[name]) for name in "abcy"}) == 1


def test_what_was_broadcast_in_a_body_is_unknown_outside() -> None:
    body = """t = Constant<value = int64 {3}>() k = Constant<value = bool {1}>()
        y = Loop(t, k, x) <body = g (int64 i, bool c, float[] s) => (bool d, float r) {
            d = Identity(c) n = NonZero(s) f = Cast<to=1>(n) r = Add(f, x) }>"""
    values = infer(body, "float[N] x")
    assert all("broadcast" not in str(dim) for dim in shapes.dims_of(values["y"]) or ())


def test_a_slice_up_to_a_length_that_a_convolution_needs() -> None:
    """Where it were below 0 the Conv would fail: a Slice counts from the end there, but nothing runs."""
    body = """h = Conv<strides=[10]>(x, w) n = Shape<start=2>(x) ten = Constant<value = int64[1] {10}>() d = Div(n, ten)
        one = Constant<value = int64[1] {1}>() l = Sub(d, one) b = Constant<value = int64[1] {0}>()
        s = Slice(t, b, l) o = Squeeze(h) y = Identity(s)"""
    feeds = {"x": np.ones((1, 1, 45), np.float32), "w": np.ones((1, 1, 20), np.float32), "t": np.ones(79, np.float32)}
    values = check(body, "float[1,1,N] x, float[1,1,20] w, float[79] t", feeds)
    sliced, whole = shapes.dims_of(values["s"]), shapes.dims_of(values["h"])
    assert sliced is not None
    assert whole is not None
    assert sliced[0] == symbolic.minimum(79, whole[2])


def test_what_is_broadcast_with_a_size_that_is_not_0() -> None:
    """A Reshape that fails without elements proves it, if later: then max(1, N) and min(128, N) are one length."""
    body = """n = Shape(x) one = Constant<value = int64[1] {1}>() l = Max(n, one) z = Expand(one, l) o = Cast<to=1>(z)
        b = Constant<value = int64[1] {0}>() t = Slice(w, b, n) a = Add(o, t) m = Constant<value = int64[1] {-1}>()
        u = Concat<axis=0>(n, m) r = Reshape(x, u) s = Squeeze(r) y = Add(a, x)"""
    values = infer(body, "float[N] x, float[128] w")
    assert text(values["a"]) == text(values["y"]) == "float[N]"
