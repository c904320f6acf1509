"""A Gather of windows is a few Slices of long runs."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "window_gather_decomposition"


def listed(indices: np.ndarray) -> str:
    shape = ",".join(map(str, indices.shape))
    return f"int64[{shape}] i = {{{','.join(map(str, indices.ravel().tolist()))}}}"


def windows(count: int, size: int, step: int = 1, gap: int = 1) -> np.ndarray:
    return step * np.arange(count)[:, None] + gap * np.arange(size)


def model(
    indices: np.ndarray, x: str = "2,8,200", axis: int = -1, kind: str = "float", given: str | None = None
) -> str:
    result = ",".join("ABCDEFG"[: x.count(",") + indices.ndim])
    return (
        f"main ({kind}[{x}] x) => ({kind}[{result}] y) <{given or listed(indices)}>"
        f" {{ y = Gather <axis = {axis}> (x, i) }}"
    )


REWRITTEN = {
    "windows last": (model(windows(198, 3)), 3, 1),
    "windows first": (model(windows(198, 3).T), 3, 0),
    "every second": (model(windows(99, 3, step=2)), 3, 1),
    "with gaps": (model(windows(190, 3, gap=5)), 3, 1),
    "few windows of many": (model(windows(3, 100, step=50)), 3, 0),
    "side by side": (model(np.arange(200).reshape(10, 20)), 1, 0),
    "of three axes": (model(64 * np.arange(3)[:, None, None] + windows(64, 3)), 3, 1),
    "from the end": (model(windows(198, 3) - 200), 3, 1),
    "a free batch": (model(windows(198, 3), x="N,8,200"), 3, 1),
    "axes of one behind": (model(windows(198, 3), x="2,8,200,1", axis=2), 3, 1),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_it_is_slices(case: str) -> None:
    text, slices, transposes = REWRITTEN[case]
    check_rewrites(PASS, text, ops={"Gather": 0, "Slice": slices, "Transpose": transposes, "Reshape": 1})


KEPT = {
    "few runs": model(np.random.default_rng(0).integers(0, 200, (100, 3))),
    "few runs of": model(windows(40, 40)),
    "but with elements 1024 or more": model(windows(20, 3)),
    "it takes no windows": model(np.arange(0, 200, 2), x="2,64,200"),
    "rows": model(windows(198, 3), x="2,200,8", axis=1),
    "out of range": model(windows(199, 3)),
    "fixed size": model(windows(198, 3), x="2,8,N"),
    "single precision": model(windows(198, 3), kind="double"),
}


@pytest.mark.parametrize("case", KEPT)
def test_it_stays(case: str) -> None:
    check_keeps(PASS, KEPT[case], case.split(" of", maxsplit=1)[0])


BOTH = """main (float[2,8,130] x) => (float[A,B,C,D,E{more}] y) <{frames}, {inner}> {{
    f = Gather <axis = 2> (x, i) {between} y = Gather <axis = {axis}> ({read}, j) }}"""
FRAMES = listed(windows(4, 34, step=32))
INNER = listed(windows(32, 3)).replace("] i", "] j")


@pytest.mark.parametrize("axes", [None, 3, -2])
def test_windows_of_frames(axes: int | None) -> None:
    unsqueeze = "" if axes is None else f"o = Constant <value_ints = [{axes}]> () g = Unsqueeze (f, o)"
    text = BOTH.format(
        more="" if axes is None else ",F",
        frames=FRAMES,
        inner=INNER,
        between=unsqueeze,
        axis=-1,
        read="f" if axes is None else "g",
    )
    check_rewrites(PASS, text, ops={"Gather": 0, "Slice": 3, "Unsqueeze": 0})


def test_frames_that_are_used_elsewhere() -> None:
    text = BOTH.format(more="", frames=FRAMES, inner=INNER, between="z = Neg (f)", axis=-1, read="f")
    text = text.replace("(float[A,B,C,D,E] y)", "(float[A,B,C,D,E] y, float[F,G,H,I] z)")
    check_rewrites(PASS, text, ops={"Gather": 0, "Slice": 7})


def test_an_empty_batch() -> None:
    text = model(windows(198, 3), x="N,8,200")
    check_rewrites(PASS, text, ops={"Slice": 3}, inputs={"x": np.zeros((0, 8, 200), np.float32)})


def test_other_runtimes_keep_it() -> None:
    check_keeps(PASS, model(windows(198, 3)), "it serves ONNX Runtime", target="onnx")
