"""Forms that passes of level 3 make for the kernels of ONNX Runtime: a model, and what the pass makes of it.

Sizes that no single node shows are named as the pass names them when it asks the table.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from ortopt.analysis.costs import Form
from ortopt.cost_measurement.entries import Array, Entry, FormComparison, Given, cases, normal, shape, weight


def _made(
    form: Form,
    instead_of: str,
    made_by: str,
    build: Callable[[Given], tuple[Mapping[str, Array], str, Mapping[str, Array]]],
    sizes: Sequence[Given],
    *,
    opset: int = 18,
    as_loaded: bool = False,
) -> Entry:
    """A form that a pass makes of inputs, nodes and weights."""

    def forms(given: Given) -> FormComparison:
        inputs, before, weights = build(given)
        return FormComparison(inputs, before, weights=weights, opset=opset, made_by=(made_by,))

    return Entry(form, instead_of, forms, sizes, as_loaded)


def _transposed(given: Given) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    """A transposed convolution of signals or images with a kernel of two strides."""
    axes, stride = given["axes"], given["scale"]
    pads = [stride // 2] * (2 * axes)
    before = f"y = ConvTranspose <strides = {[stride] * axes}, pads = {pads}> (x, w)"
    own = weight(given["channels"], given["outputs"], *[2 * stride] * axes)
    return {"x": normal(1, given["channels"], *[given["length"]] * axes)}, before, {"w": own}


def _few_outputs(given: Given) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    """A convolution with few outputs."""
    kernel, side = given["kernel"], math.isqrt(given["pixels"])
    channels = given["products"] // kernel**2
    before = f"y = Conv <pads = {[kernel // 2] * 4}> (x, w)"
    return {"x": normal(1, channels, side, side)}, before, {"w": weight(given["outputs"], channels, kernel, kernel)}


def _padded(given: Given) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    """A convolution of signals with zeros around: as many as its kernel has columns but one."""
    kernel, outputs = given["kernel"], given["outputs"]
    width = 100 * (kernel - 1) // given["zeros"]
    before = f"y = Conv <pads = [0, {kernel // 2}, 0, {kernel // 2}]> (x, w)"
    return {"x": normal(1, 16, 1, width)}, before, {"w": weight(outputs, 16, 1, kernel)}


def _padded_of_any_width(given: Given) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    """The same of an image whose shape is an operand."""
    return _of_any_shape(*_padded({**given, "zeros": 50}))


def _signals(given: Given) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    """A convolution of signals."""
    channels, groups, kernel = given["channels"], given["groups"], given["kernel"]
    pads = [kernel // 2, (kernel - 1) // 2]
    before = f"y = Conv <group = {groups}, pads = {pads}> (x, w)"
    own = weight(given["results"], channels, kernel)
    return {"x": normal(1, channels * groups, given["length"])}, before, {"w": own}


def _columns(given: Given) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    """A convolution of images of width 1."""
    channels, kernel = given["channels"], given["kernel"]
    before = f"y = Conv <pads = [{kernel // 2}, 0, {(kernel - 1) // 2}, 0]> (x, w)"
    return {"x": normal(1, channels, given["length"], 1)}, before, {"w": weight(32, channels, kernel, 1)}


def _enlarged(given: Given) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    """A convolution of an image whose pixels are repeated."""
    channels, side, scale = given["channels"], given["side"], given["scale"]
    how = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    weights = {"s": np.array([1, 1, scale, scale], np.float32), "w": weight(channels, channels, 3, 3)}
    before = f"r = Resize <{how}> (x, , s) y = Conv <pads = [1, 1, 1, 1]> (r, w)"
    return {"x": normal(1, channels, side, side)}, before, weights


def _enlarged_of_any_size(given: Given) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    return _of_any_shape(*_enlarged(given))


def _of_any_shape(
    inputs: Mapping[str, Array], before: str, weights: Mapping[str, Array]
) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    """The same of an image whose shape is an operand."""
    x = inputs["x"]
    return {"i": x.reshape(-1), "h": shape(*x.shape)}, f"x = Reshape (i, h) {before}", weights


def _summed(given: Given) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    """Sums over the axis before the last."""
    x = normal(1, given["length"], given["elements"] // given["length"])
    return {"x": x}, "y = ReduceMean (x, axis)", {"axis": shape(1)}


def _of_an_image(before: str) -> Callable[[Given], tuple[Mapping[str, Array], str, Mapping[str, Array]]]:
    """Nodes of one operand: an image of 16 channels."""
    return lambda given: ({"x": normal(1, 16, given["image"] // 16)}, before, {})


def _with_slopes(least: float, greatest: float, given: Given) -> tuple[Mapping[str, Array], str, Mapping[str, Array]]:
    """A PRelu of an image of 16 channels, each with a slope."""
    slopes = np.linspace(least, greatest, 16, dtype=np.float32).reshape(-1, 1)
    return {"x": normal(1, 16, given["image"] // 16)}, "y = PRelu (x, s)", {"s": slopes}


ENTRIES: Final = (
    *(
        _made(
            Form("", op, "in place of PRelu"),
            f"PRelu with {slopes}",
            "prelu_decomposition",
            functools.partial(_with_slopes, least, greatest),
            cases(image=sizes),
        )
        for op, slopes, least, greatest, sizes in (
            ("Max", "slopes of 0 to 1", 0.1, 1.0, (2048, 16384, 131072)),
            ("Min", "any slopes", -0.5, 1.5, (8192, 16384, 131072)),
        )
    ),
    _made(
        Form("", "Exp", "in place of Elu"),
        "Elu or Celu",
        "elu_decomposition",
        _of_an_image("t = Add (x, x) y = Elu (t)"),
        cases(image=(2048, 16384, 131072)),
    ),
    _made(
        Form("", "Exp", "in place of one of two sides"),
        "Selu, or an Elu that is no maximum",
        "elu_decomposition",
        _of_an_image("y = Selu (x)"),
        cases(image=(4096, 16384, 131072)),
    ),
    _made(
        Form("", "AveragePool", "in place of LRN"),
        "LRN",
        "lrn_decomposition",
        lambda given: ({"x": normal(1, 16, given["image"] // 128, 8)}, "y = LRN <size = 5> (x)", {}),
        cases(image=(128, 256, 4096, 131072), window=(5, 5, 5, 5)),
    ),
    _made(
        Form("", "Softmax", "of merged axes"),
        "Softmax with several axes behind",
        "softmax_axis_canonicalization",
        lambda given: ({"x": normal(1, 16, given["elements"] // 128, 8)}, "y = Softmax <axis = 1> (x)", {}),
        cases(elements=(1024, 16384, 131072)),
    ),
    _made(
        Form("", "MatMul", "in place of DFT"),
        "DFT of numbers whose count is no power of two",
        "dft_matmul_conversion",
        lambda given: (
            {"x": normal(1, 16, given["columns"], given["components"])},
            "y = DFT <axis = 2> (x)",
            {},
        ),
        cases(columns=(96, 768, 96, 511), components=(1, 1, 2, 2)),
    ),
    *(
        _made(
            Form("", "Conv", f"in place of STFT{of}"),
            f"STFT of frames whose length is {what} power of two",
            "stft_conv_conversion",
            lambda given: (
                {"x": normal(1, 16000)},
                "y = STFT <onesided = 1> (x, step, window)",
                {"step": np.array(160), "window": np.hanning(given["columns"]).astype(np.float32)},
            ),
            cases(columns=columns),
        )
        for of, what, columns in (("", "no", (100, 400, 1000)), (" of a power of two", "a", (64, 512, 1024, 2048)))
    ),
    _made(
        Form("", "MatMul", "of ones in place of a sum"),
        "the sum of a column and a row",
        "outer_sum_conversion",
        lambda given: (
            {"x": normal(12, 256, 64)},
            """a = MatMul (x, v) b = MatMul (x, w) c = Unsqueeze (a, last) d = Unsqueeze (b, before)
                y = Add (c, d)""",
            {
                "v": weight(64, given["side"]),
                "w": weight(64, given["elements"] // given["side"]),
                "last": shape(-1),
                "before": shape(-2),
            },
        ),
        cases(side=(5, 7, 16), elements=(25, 49, 256)),
    ),
    _made(
        Form("", "Conv", "of the phases of a transposed convolution"),
        "ConvTranspose of signals or images",
        "conv_transpose_decomposition",
        _transposed,
        cases(
            axes=(1, 1, 1, 1, 2, 2),
            channels=(512, 256, 128, 64, 128, 64),
            length=(75, 512, 3000, 12000, 16, 64),
            outputs=(256, 128, 64, 32, 64, 32),
            scale=(8, 4, 4, 2, 2, 2),
        ),
        as_loaded=True,
    ),
    _made(
        Form("", "Conv", "of the phases of two transposed convolutions"),
        "two ConvTranspose, one behind the other",
        "stacked_conv_transpose_conversion",
        lambda given: (
            {"x": normal(1, given["channels"], 24, given["pixels"] // 24)},
            """a = Conv <pads = [1, 1, 1, 1]> (x, u) b = ConvTranspose <strides = [2, 2]> (a, v) c = Relu (b)
                y = ConvTranspose <strides = [2, 2]> (c, w)""",
            {
                "u": weight(given["channels"], given["channels"], 3, 3),
                "v": weight(given["channels"], given["channels"], 2, 2),
                "w": weight(given["channels"], given["outputs"], 2, 2),
            },
        ),
        cases(channels=(48, 64), outputs=(1, 1), pixels=(576, 3840)),
        as_loaded=True,
    ),
    _made(
        Form("", "Conv", "with four pixels as channels"),
        "Conv with few outputs",
        "few_output_conv_unrolling",
        _few_outputs,
        cases(
            outputs=(1, 1, 3, 1),
            kernel=(3, 3, 9, 3),
            saving=(225, 225, 162, 225),
            products=(144, 576, 5184, 2880),
            pixels=(256, 1024, 4096, 16384),
        ),
        as_loaded=True,
    ),
    _made(
        Form("", "Transpose", "twice in place of DepthToSpace"),
        "DepthToSpace",
        "depth_to_space_decomposition",
        lambda given: (
            {"x": normal(1, 16 * given["scale"] ** 2, 32, 32)},
            f"y = DepthToSpace <blocksize = {given['scale']}> (x)",
            {},
        ),
        cases(scale=(2, 3, 4)),
    ),
    _made(
        Form("", "Conv", "behind a Pad"),
        "Conv with padded columns",
        "conv_pad_decomposition",
        _padded,
        cases(
            kernel=(9, 17, 65),
            products=(288, 544, 4160),
            outputs=(32, 32, 64),
            zeros=(20, 50, 100),
            results=(500, 200, 100),
        ),
        as_loaded=True,
    ),
    _made(
        Form("", "Conv", "behind a Pad, of any width"),
        "Conv with padded columns",
        "conv_pad_decomposition",
        _padded_of_any_width,
        cases(kernel=(17, 65), products=(544, 4160), outputs=(32, 64)),
        as_loaded=True,
    ),
    _made(
        Form("", "Conv", "of signals as images"),
        "Conv of signals",
        "conv1d_conversion",
        _signals,
        cases(
            channels=(1, 1, 64, 128, 16, 16, 16, 64),
            groups=(64, 1, 1, 1, 1, 1, 4, 1),
            group=(1, 32, 64, 128, 16, 16, 16, 16),
            results=(64, 32, 64, 128, 16, 16, 64, 16),
            kernel=(7, 64, 3, 3, 31, 5, 3, 31),
            length=(500, 16000, 500, 64, 20, 500, 64, 40),
            fitting=(7, 64, 3, 3, 31, 5, 3, 31),
        ),
        as_loaded=True,
    ),
    _made(
        Form("", "Conv", "of columns as rows"),
        "Conv of images of width 1",
        "tall_conv_conversion",
        _columns,
        cases(channels=(1, 64, 16), kernel=(64, 3, 9), length=(500, 500, 100)),
        as_loaded=True,
    ),
    _made(
        Form("", "Conv", "of the image before SpaceToDepth"),
        "SpaceToDepth and Conv",
        "space_to_depth_conv_fusion",
        lambda given: (
            {"x": normal(1, given["channels"], 128, 128)},
            "b = SpaceToDepth <blocksize = 2> (x) c = Conv <pads = [1, 1, 1, 1]> (b, w) y = Relu (c)",
            {"w": weight(32, 4 * given["channels"], 3, 3)},
        ),
        cases(channels=(1, 3, 4, 16)),
        as_loaded=True,
    ),
    _made(
        Form("", "Slice", "for each offset"),
        "Gather of windows that slide",
        "sliding_gather_decomposition",
        lambda given: (
            {"x": normal(1, 384, 128 + given["parts"])},
            "r = Range (zero, n, one) u = Unsqueeze (r, first) i = Add (u, o) y = Gather <axis = 2> (x, i)",
            {
                **{name: np.array(number, np.int64) for name, number in (("zero", 0), ("n", 128), ("one", 1))},
                "first": shape(0),
                "o": np.arange(given["parts"], dtype=np.int64)[:, None],
            },
        ),
        cases(parts=(3, 9, 16)),
    ),
    _made(
        Form("", "ReduceSum", "of sums of products"),
        "Concat, Mul and ReduceSum",
        "weighted_concat_decomposition",
        lambda given: (
            {name: normal(8, 900, size * given["columns"]) for name, size in (("a", 1), ("b", 1), ("w", 2))},
            "c = Concat <axis = 2> (a, b) m = Mul (c, w) y = ReduceSum (m, last)",
            {"last": shape(-1)},
        ),
        cases(columns=(4, 16)),
    ),
    _made(
        Form("", "Transpose", "of two around a Reshape"),
        "Transpose, Reshape and Transpose",
        "transpose_reshape_merging",
        lambda given: (
            {"x": normal(12, 196, 14, given["columns"])},
            "t = Transpose <perm = [0, 2, 1, 3]> (x) r = Reshape (t, s) y = Transpose <perm = [1, 0, 2, 3]> (r)",
            {"s": shape(168, 14, 14, given["columns"])},
        ),
        cases(columns=(8, 64)),
    ),
    _made(
        Form("", "Transpose", "of two exchanges of axes"),
        "Transpose of single elements",
        "transpose_decomposition",
        lambda given: (
            {"x": normal(4, 16, given["elements"] // 1024, 16)},
            "y = Transpose <perm = [0, 3, 2, 1]> (x)",
            {},
        ),
        cases(elements=(16384, 131072), picoseconds=(1000, 1000)),
    ),
    _made(
        Form("", "Conv", "for each phase of a larger image"),
        "nearest Resize and Conv",
        "upsampled_conv_decomposition",
        _enlarged,
        cases(channels=(16, 64, 64), side=(16, 8, 32), scale=(2, 2, 2)),
        as_loaded=True,
    ),
    _made(
        Form("", "Conv", "for each phase of a larger image of any size"),
        "nearest Resize and Conv",
        "upsampled_conv_decomposition",
        _enlarged_of_any_size,
        cases(channels=(32, 64), side=(16, 32), scale=(2, 2)),
        as_loaded=True,
    ),
    _made(
        Form("", "MatMul", "of ones in place of sums"),
        "ReduceSum, ReduceMean or ReduceL2 over axes before the last",
        "reduce_matmul_conversion",
        _summed,
        cases(length=(9, 196, 3136), elements=(11520, 75264, 401408)),
    ),
    _made(
        Form("", "MatMul", "of ones in place of sums of any number"),
        "ReduceSum, ReduceMean or ReduceL2 over axes before the last",
        "reduce_matmul_conversion",
        lambda given: _of_any_shape(*_summed({**given, "elements": 1000 * given["length"]})),
        cases(length=(64, 512)),
    ),
    _made(
        Form("", "Resize", "of blocks of channels"),
        "linear Resize by whole numbers",
        "resize_block_conversion",
        lambda given: (
            {"x": normal(1, given["channels"], 16, given["image"] // (given["channels"] * 64))},
            'y = Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> (x, , s)',
            {"s": np.array([1, 1, 2, 2], np.float32)},
        ),
        cases(channels=(32, 64), image=(32768, 262144)),
        as_loaded=True,
    ),
    _made(
        Form("", "Conv", "of points in place of a product"),
        "MatMul that widens rows before an image's convolutions",
        "image_projection_conversion",
        lambda given: (
            {"x": normal(1, 28, 28, given["columns"])},
            f"""m = MatMul (x, a) t = Transpose <perm = [0, 3, 1, 2]> (m)
                y = Conv <group = {4 * given["columns"]}, pads = [1, 1, 1, 1]> (t, w)""",
            {"a": weight(given["columns"], 4 * given["columns"]), "w": weight(4 * given["columns"], 1, 3, 3)},
        ),
        cases(columns=(16, 64, 192)),
        as_loaded=True,
    ),
    _made(
        Form("", "Slice", "for each run of a window"),
        "Gather of windows",
        "window_gather_decomposition",
        lambda given: (
            {"x": normal(64, given["elements"] // 256 + 3)},
            "y = Gather <axis = 1> (x, i)",
            {"i": (np.arange(4)[:, None] + np.arange(given["elements"] // 256)).astype(np.int64)},
        ),
        cases(elements=(16384, 131072)),
    ),
    _made(
        Form("", "Conv", "of two around a shuffle"),
        "Conv, DepthToSpace and Conv",
        "shuffled_conv_fusion",
        lambda _: (
            {"x": normal(1, 3, 160, 160)},
            """c = Conv <pads = [1, 1, 1, 1]> (x, v) d = DepthToSpace <blocksize = 2, mode = "CRD"> (c)
                y = Conv <pads = [1, 1, 1, 1]> (d, w)""",
            {"v": weight(64, 3, 3, 3), "w": weight(1, 16, 3, 3)},
        ),
        cases(left=(50,), saved=(1 << 23,)),
        as_loaded=True,
    ),
    _made(
        Form("", "MatMul", "of what a convolution reads of a smaller image"),
        "Conv of an interpolated image",
        "interpolated_conv_decomposition",
        lambda _: (
            {"x": normal(1, 64, 16, 16)},
            """r = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, , s)
                y = Conv <pads = [1, 1, 1, 1]> (r, w)""",
            {"s": np.array([1, 1, 4, 4], np.float32), "w": weight(32, 64, 3, 3)},
        ),
        cases(left=(50,)),
        as_loaded=True,
    ),
    _made(
        Form("", "Exp", "in place of Mish"),
        "Mish",
        "mish_decomposition",
        _of_an_image("y = Mish (x)"),
        cases(image=(1024, 16384, 131072)),
    ),
)
"""What is measured of forms that passes of level 3 make."""

__all__ = ["ENTRIES"]
