"""The model of ONNX Runtime's blocked layout, held to what it does: models are loaded, and their graphs looked at."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import onnx
import pytest

import ortopt
from ortopt import zoo
from ortopt.analysis.blocked_layout import BLOCK, blocked_layout, is_blocked_convolution
from ortopt.analysis.blocked_values import is_in_blocks
from ortopt.analysis.shapes import infer_model
from ortopt.serialization.load import load
from ortopt.serialization.save import save
from ortopt.testing import parse
from tests.texts import table

BLOCKED = "com.microsoft.nchwc"

CASES = Path(__file__).parent / "cases" / "blocked_layout.txt"
CONSTANTS = dict(table(CASES, "constants"))
BETWEEN = dict(table(CASES, "between"))
"""What may stand between convolutions: of an image ``a`` and another ``e`` comes ``m``."""
SIXTEEN = ", ".join(["1"] * 16)


def model(between: str, size: str = "1,16,8,8") -> str:
    names = set(re.findall(r"\w+", between)) | {"w", "o"}
    used = ", ".join(
        text.replace("{1}", f"{{{SIXTEEN}}}") if name in {"b", "c", "d"} else text
        for name, text in CONSTANTS.items()
        if name in names
    )
    return f"main (float[{size}] x) => (float[A,B,C,D] y) <{used}> {{ a = Conv (x, w) e = Conv (x, o) {between} y = Conv (m, w) }}"  # noqa: E501


def filled(text: str) -> onnx.ModelProto:
    """The model with as many numbers in its constants as they have."""

    def fill(found: re.Match[str]) -> str:
        count = 1
        for dim in found[1].split(","):
            count *= int(dim)
        numbers = found[3].split(",")
        return f"float[{found[1]}] {found[2]} = {{{', '.join((numbers * count)[:count])}}}"

    return re.sub(r"float\[([\d,]+)\] (\w+) = \{([^}]*)\}", fill, text)


def loaded(path: Path) -> Counter[str]:
    """What ONNX Runtime makes of a file: how often it has each op of the blocked layout, and Reshape."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path.with_suffix(".loaded.onnx"))
    onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    graph = onnx.load(path.with_suffix(".loaded.onnx")).graph
    return Counter(node.op_type for node in graph.node if node.domain == BLOCKED or node.op_type == "Reshape")


def predicted(path: Path, block: int) -> tuple[int, int]:
    """How often images are reordered into blocks, and out of them."""
    again = load(path)
    infer_model(again)
    layout = blocked_layout(again.graph, block)
    return len(layout.reordered_in), len(layout.reordered_out)


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The channels of a block on this processor: groups of eight fill one where it has no AVX-512."""
    path = tmp_path_factory.mktemp("block") / "m.onnx"
    text = "main (float[1,16,8,8] x) => (float[A,B,C,D] y) <float[16,8,1,1] w = {1}> { y = Conv <group = 2> (x, w) }"
    save(parse(filled(text), opset=18), path)
    return 8 if loaded(path)["Conv"] else BLOCK


SYMBOLIC = [case for case in BETWEEN if any(word in case for word in ("sum", "gate", "product", "Resize", "pool"))]


@pytest.mark.parametrize(
    ("case", "size"), [(case, "1,16,8,8") for case in BETWEEN] + [(case, "N,16,H,W") for case in SYMBOLIC]
)
def test_reorders_between_convolutions(case: str, size: str, block: int, tmp_path: Path) -> None:
    save(parse(filled(model(BETWEEN[case], size)), opset=18), tmp_path / "m.onnx")
    found = loaded(tmp_path / "m.onnx")
    if found["Conv"] == 0:
        pytest.skip("this processor has no blocked layout")
    assert predicted(tmp_path / "m.onnx", block) == (found["ReorderInput"], found["ReorderOutput"])


ZOO = ("efficientnet_b0__ts17", "yolo_v8ish__ts17")


@pytest.mark.parametrize("name", ZOO)
def test_reorders_in_results(name: str, block: int, tmp_path: Path) -> None:
    ortopt.optimize(zoo.cached(name), level=3, verify=False).save(tmp_path / "m.onnx")
    found = loaded(tmp_path / "m.onnx")
    if found["Conv"] == 0:
        pytest.skip("this processor has no blocked layout")
    assert predicted(tmp_path / "m.onnx", block) == (found["ReorderInput"], found["ReorderOutput"])


UNEQUAL = "z = Erf (a) f = Conv (z, w) m = Add (a, f)"


def test_sums_of_images_that_are_not_known_to_be_equal(tmp_path: Path) -> None:
    """What is needed to see it is written into the file, and then the sum is a part of a convolution."""
    text = filled(model(UNEQUAL, "N,16,H,W").replace("a = Conv (x, w)", "a = Conv <pads = [1, 1, 1, 1]> (x, k)"))
    text = text.replace("<", filled(f"<{CONSTANTS['k']}, "), 1)
    read = parse(text, opset=18)
    infer_model(read)
    assert blocked_layout(read.graph).reshapes == 3
    ortopt.optimize(read, level=1, verify=False).save(tmp_path / "plain.onnx")
    assert loaded(tmp_path / "plain.onnx")["Reshape"] == 3
    ortopt.optimize(read, level=3, verify=False).save(tmp_path / "declared.onnx")
    assert loaded(tmp_path / "declared.onnx")["Reshape"] == 0


def test_a_neighbourhood() -> None:
    read = parse(filled(model("t = Add (a, one) s = HardSwish (t) n = Elu (e) m = Add (s, n)")), opset=18)
    infer_model(read)
    at = {value.name: value for node in read.graph for value in node.outputs}
    assert is_in_blocks(at["s"])
    assert not is_in_blocks(at["n"])
    assert not is_in_blocks(at["m"])
    assert not is_in_blocks(read.graph.inputs[0])


def test_a_neighbourhood_of_groups_that_fill_no_blocks() -> None:
    """AVX-512 takes 16 channels a block, and no kernel in blocks has groups of fewer."""
    weight = ",".join(["1"] * 16 * 8)
    text = f"""main (float[1,16,3,5] x, float[16,8,1,1] v) => (float[1,16,3,5] y) <float[16,8,1,1] w = {{{weight}}}> {{
        a = Conv <group = 2> (x, w) b = Conv <group = 2> (x, v) y = Add (a, b) }}"""
    read = parse(text, opset=18)
    infer_model(read)
    first, second, _ = read.graph
    assert not is_in_blocks(first.outputs[0])
    assert is_blocked_convolution(first, block=8)
    assert not is_blocked_convolution(second, block=8)


def test_a_chain_of_gates_is_walked_once() -> None:
    """Each gate reads what is before it twice: a walk along all paths would not end."""
    gates = " ".join(f"s{at} = Sigmoid (x{at}) x{at + 1} = Mul (x{at}, s{at})" for at in range(60))
    read = parse(f"main (float[1,16,3,5] x0) => (float[1,16,3,5] x60) {{ {gates} }}", opset=18)
    assert not is_in_blocks(read.graph.outputs[0])
