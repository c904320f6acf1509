"""Two convolutions with a pixel shuffle between are one on the small image."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "shuffled_conv_fusion"
SAME = "pads = [1, 1, 1, 1]"


def constant(name: str, *shape: int) -> str:
    """A constant of small numbers."""
    numbers = ",".join(str(((7 * place) % 11 - 5) / 16) for place in range(int(np.prod(shape))))
    return f"float[{','.join(map(str, shape))}] {name} = {{{numbers}}}"


def model(
    first: tuple[int, ...] = (64, 3, 3, 3),
    second: tuple[int, ...] = (1, 16, 3, 3),
    *,
    image: str = "N,3,H,W",
    shuffle: str = 'blocksize = 2, mode = "CRD"',
    one: str = SAME,
    other: str = SAME,
    conv: str = "Conv",
    bias: bool = True,
    more: str = "",
    also: str = "",
) -> str:
    """A convolution, a pixel shuffle, and a convolution."""
    constants = [constant("v", *first), constant("w", *second)]
    constants += [constant("a", first[0]), constant("b", second[0])] * bias
    biases = (", a", ", b") if bias else ("", "")
    return f"""main (float[{image}] x) => (float[A,B,C,D] y{also}) <{", ".join(constants)}> {{
        c = Conv <{one}> (x, v{biases[0]})
        d = DepthToSpace <{shuffle}> (c)
        y = {conv} <{other}> (d, w{biases[1]}{more})
    }}"""


def edges(strips: int, conv: str = "Conv") -> dict[str, int]:
    """The ops of one convolution and so many strips."""
    together = {"Conv": 1 + 2 * strips} if conv == "Conv" else {"Conv": strips, conv: 1 + strips}
    return {"DepthToSpace": 1 + strips, "Concat": strips // 2, "Slice": 5 * strips // 2} | together


CRD_OF_THREE, LARGE = 'blocksize = 3, mode = "CRD"', "1,3,200,200"
FIVE, ACTIVATED = "pads = [2, 2, 2, 2]", 'pads = [1, 1, 1, 1], activation = "Relu"'
REWRITTEN = {
    "a block of 2": (model(), edges(4)),
    "rows of a block first": (model(shuffle='blocksize = 2, mode = "DCR"'), edges(4)),
    "rows of a block first by default": (model(shuffle="blocksize = 2"), edges(4)),
    "a block of 3": (model((144, 3, 3, 3), shuffle=CRD_OF_THREE), edges(4)),
    "no bias": (model(bias=False), edges(4)),
    "two outputs": (model(second=(2, 16, 3, 3)), edges(4)),
    "a first kernel of 1x1": (model((256, 3, 1, 1), (1, 64, 3, 3), one="group = 1"), edges(4)),
    "a first kernel of 5x3": (model((64, 3, 5, 3), one="pads = [2, 1, 2, 1]"), edges(4)),
    "a second kernel of 1x1": (model(second=(1, 16, 1, 1), other="group = 1"), edges(0)),
    "a second kernel of 1x3": (model(second=(1, 16, 1, 3), other="pads = [0, 1, 0, 1]"), edges(2)),
    "a second kernel of 5x5": (
        model((64, 8, 3, 3), (1, 4, 5, 5), image="N,8,H,W", shuffle="blocksize = 4", other=FIVE),
        edges(4),
    ),
    "an activation behind": (
        model(conv="com.microsoft.FusedConv", other=ACTIVATED),
        edges(4, "com.microsoft::FusedConv"),
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_one_convolution_and_strips(name: str) -> None:
    before, ops = REWRITTEN[name]
    check_rewrites(PASS, before, ops=ops)


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (2, 1), (2, 2), (3, 5)])
@pytest.mark.parametrize("batch", [1, 2])
def test_images_of_any_size(batch: int, size: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal((batch, 3, *size)).astype(np.float32)
    check_rewrites(PASS, model((64, 3, 5, 5), one=FIVE), ops=edges(4), inputs={"x": x})


def test_a_large_image() -> None:
    check_rewrites(PASS, model(image=LARGE), ops=edges(4))


def test_what_is_not_finite_spreads_to_what_is_beside_it_only() -> None:
    x = np.ones((1, 3, 12, 13), np.float32)
    x[0, 1, 6, 7], x[0, 2, 0, 0] = np.nan, np.inf
    check_rewrites(PASS, model(), ops=edges(4), inputs={"x": x})


MORE = model().replace("main (", "main (float[A,B,C,D] z, ")
KEPT = {
    "many outputs": (model((64, 16, 3, 3), (16, 16, 3, 3), image="N,16,H,W"), "is no less work"),
    "a narrow image": (model(image="1,3,4,20000"), "is no less work"),
    "a small image": (model(image="1,3,40,40"), "saved 8388608 or more"),
    "strides": (model(other=f"{SAME}, strides = [2, 2]"), "groups, strides or dilations"),
    "dilations": (model(one="pads = [2, 2, 2, 2], dilations = [2, 2]"), "groups, strides or dilations"),
    "groups": (model(second=(2, 8, 3, 3), other=f"{SAME}, group = 2"), "groups, strides or dilations"),
    "padding by name": (model(one='auto_pad = "SAME_UPPER"'), "padding is not written out"),
    "no padding": (model(other="group = 1"), "not of the image's size"),
    "uneven padding": (model(one="pads = [2, 0, 0, 2]"), "not of the image's size"),
    "an even kernel": (model(second=(1, 16, 4, 4), other="pads = [1, 1, 2, 2]"), "not of the image's size"),
    "a wide kernel": (model(second=(1, 16, 5, 5), other=FIVE), "reads further than a block"),
    "the first is used elsewhere": (model(also=", float[E,F,G,I] c"), "used elsewhere"),
    "an image that is used elsewhere": (model(also=", float[E,F,G,I] d"), "used elsewhere"),
    "an activation between": (
        model()
        .replace("DepthToSpace", "Relu")
        .replace("y = Conv", "e = DepthToSpace <blocksize = 2> (d) y = Conv")
        .replace("(d, w", "(e, w")
        .replace('Relu <blocksize = 2, mode = "CRD">', "Relu"),
        "no Conv comes before",
    ),
    "an activation behind": (
        model().replace("y = Conv", "e = Relu (d) y = Conv").replace("(d, w", "(e, w"),
        "no convolution comes after",
    ),
    "a sum": (
        MORE.replace("y = Conv", "y = com.microsoft.FusedConv").replace("w, b", "w, b, z"),
        "adds another value",
    ),
    "double precision": (model(bias=False).replace("float[", "double["), "single precision only"),
    "numbers that would overflow": (model().replace("-0.3125,", "3e38,"), "larger or smaller than all that stay"),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    check_keeps(PASS, *KEPT[name])


def test_a_strip_of_an_image_stays() -> None:
    text = (
        model()
        .replace("(float[N,3,H,W] x)", "(float[N,3,H,W] z)")
        .replace(
            "c = Conv",
            "s = Constant <value_ints = [0]> () e = Constant <value_ints = [2]> () "
            "t = Constant <value_ints = [2]> () x = Slice (z, s, e, t) c = Conv",
        )
    )
    check_keeps(PASS, text, "a part of an image may be small")


def test_infinities_are_left_alone_on_request() -> None:
    check_keeps(PASS, model(), target="onnx")
