"""The zoo at its levels: the same numbers and interface, a valid model, no more nodes, no harm downstream."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest

from ortopt import optimize, zoo
from ortopt.optimization.result import OptimizeResult
from ortopt.options import GROWTH_SHARE, MEGABYTE
from ortopt.reporting.report import as_dict, size
from ortopt.reporting.short_report import MAX_LINES, screen
from ortopt.serialization.load import load
from ortopt.serialization.save import Saved, to_bytes
from ortopt.verification.comparison import Comparison, OutputRow
from ortopt.verification.quantizers import quantizers
from ortopt.verification.tolerances import tolerances
from ortopt.verification.verdict import Verification
from ortopt.verification.verify import verify
from tests.processors import saturates
from tests.whole_models.new_names import check_new_names

WEIGHT_BYTES = 1 << 16
WIDE = {
    *("albert__dyn19", "conformer__ts17", "convnextv2__dyn18"),
    *("dinov2__ts17", "hifigan__dyn18", "mobilevit__dyn20"),
    *("phi3_past__ts18", "picodet__ts13", "picodet_fixed__ts11"),
    *("pitch_detector__ts17", "pp_ocr5_detector__ts17", "qwen2_past__dyn18"),
    *("regnet__ts15", "roberta__ts14", "segformer__ts17"),
    *("text_detector__dyn18", "text_recognizer__ts13", "text_recognizer_lcnet3__ts11"),
    *("vae_decoder__dyn18", "wav2vec2__ts17", "yolo_v10ish__ts17"),
    *("yolo_v4ish__ts17"),
}
"""Members for the benchmark of speed: `ortopt check models` (``make zoo``) verifies each at every level, but they are
too slow to all be here."""

SAMPLE = ("albert__dyn19", "picodet__ts13", "text_recognizer__ts13")
"""Those of them that are here: of each exporter, with and without products, recurrent and open sizes."""

TESTED = tuple(name for name in zoo.names() if name not in WIDE or name in SAMPLE)
SKELETONS = tuple(name for name in TESTED if not name.startswith("light_"))
HASHED = ("bert_small__dyn20raw", "control_flow__script17", "deberta_v2__ts13", "resnet18_qdq__qdq", "yolo_v8ish__ts17")
LEVELS = dict.fromkeys((*HASHED, *SAMPLE), (1, 2, 3))
"""The levels that a member runs at: others run at the first and at the last, which has the second's passes, too."""

MORE_NODES = {"light_zfnet512", "resnet18__dyn18raw", "resnet18__ts13nf", "superres__ts13", "yolo_v4ish__ts17"}
"""More nodes, and faster: LRN as a pool and roots; Mish as arithmetic around one Exp; Convs around a pixel shuffle
as one, with strips along the edges; Convs as products of the points of tiles."""

OF_ONE_ROW = ["query_selection_reordering", "row_selection_reordering"]
"""Passes that leave a layer one row to compute. It has two axes, of which ONNX Runtime fuses less."""

NOT_FUSED = {
    "com.microsoft.nchwc::ReorderInput",
    "com.microsoft.nchwc::ReorderOutput",
}


def session(path: Path, level: ort.GraphOptimizationLevel, written: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1  # others would wait for work, which takes processor time
    if written is not None:
        options.optimized_model_filepath = str(written)
        options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(path, options, ["CPUExecutionProvider"])


class Written:
    """A model in a file, without its weights in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nbytes = path.stat().st_size
        self.digest = hashlib.blake2b(path.read_bytes()).hexdigest()

    @cached_property
    def weightless(self) -> onnx.ModelProto:
        """The model with its big weights as inputs."""
        model = onnx.load(self.path)
        told = {value.name for value in model.graph.input}
        big = [tensor for tensor in model.graph.initializer if len(tensor.raw_data) > WEIGHT_BYTES]
        for tensor in big:
            if tensor.name not in told:
                model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            model.graph.initializer.remove(tensor)
        return model

    @cached_property
    def interface(self) -> tuple[list[bytes], list[bytes]]:
        """Inputs that must be fed, and outputs, as the file spells them."""
        loaded = load(self.path)
        names = {value.name for value in loaded.graph.inputs}
        graph = self.weightless.graph
        return (
            [value.SerializeToString() for value in graph.input if value.name in names],
            [value.SerializeToString() for value in graph.output],
        )

    @cached_property
    def ops(self) -> Counter[str]:
        """How many nodes there are by op, subgraphs and functions included."""
        bodies = (self.weightless.graph.node, *(function.node for function in self.weightless.functions))
        return Counter(
            f"{node.domain}::{node.op_type}" if node.domain else node.op_type for body in bodies for node in nodes(body)
        )

    def run(self, inputs: dict[str, Any]) -> tuple[list[tuple[str, str]], list[Any]]:
        """Names and types of the outputs, and what ONNX Runtime computes without optimization."""
        runs = session(self.path, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        return [(output.name, output.type) for output in runs.get_outputs()], runs.run(None, inputs)


def nodes(body: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in body:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes(attribute.g.node)


@pytest.mark.parametrize("name", TESTED)
def test_every_level_keeps_what_the_model_says_and_computes(name: str, tmp_path: Path) -> None:
    original = Written(zoo.grow(name, tmp_path / "original.onnx"))
    inputs = zoo.inputs(name)
    outputs, expected = original.run(inputs)
    loaded = load(original.path)
    comparison = Comparison(tolerances(loaded))
    most_bytes = original.nbytes + max(MEGABYTE, int(original.nbytes * GROWTH_SHARE))
    seen: set[str] = set()
    for level in LEVELS.get(name, (1, 3)):
        result = optimize(original.path, level=level, verify=False)
        assert not result.summary.failures
        check_new_names(loaded, result.model)
        assert not result.summary.bound_reached
        target = tmp_path / f"{level}.onnx"
        result.save(target, external_data="inline")
        written = Written(target)
        check_report(name, result, written.nbytes)
        if written.digest in seen:
            continue
        seen.add(written.digest)
        onnx.checker.check_model(written.weightless)
        assert written.interface == original.interface
        assert written.nbytes <= most_bytes
        assert written.ops.total() <= original.ops.total() or (level >= 3 and name in MORE_NODES)
        names, got = written.run(inputs)
        assert names == outputs
        rows = [comparison.of(*output, *both) for output, *both in zip(outputs, expected, got, strict=True)]
        wrong = [row for row in rows if not row.agrees]
        if wrong and any(quantizers(loaded)):  # one number may round to the step beside, and move the rest
            outcome = verify(original.path, target, inputs=inputs)
            if outcome.status == "differs" and saturates():  # here a run leaves out what makes such kernels
                with pytest.warns(UserWarning, match="default optimizations change the original, too"):
                    outcome = optimize(original.path, level=level, inputs=inputs).verification
            assert outcome.status == "verified", f"-O{level}: {outcome.reason}"
        else:
            assert not wrong, f"-O{level}: {wrong}"
        if level == 3 or name in LEVELS:
            again = optimize(target, level=level, verify=False)
            assert [one.transformer for one in again.summary.passes] == [], f"-O{level} on its own result"
            assert to_bytes(again.model) == target.read_bytes(), f"-O{level} on its own result"
    if name in SKELETONS:
        check_downstream(original.path, tmp_path)


def check_report(name: str, result: OptimizeResult, nbytes: int) -> None:
    """Check that the report of a result, with warnings above it, is a screenful, and says why what has grown has."""
    row = OutputRow("a_long_name_of_an_output", 1e-6, 1e-4, True)
    outcome = Verification(
        "verified", worst=1e-6, worst_output=row.name, outputs=(row,), input_sets=5, as_deployed=True
    )
    result = dataclasses.replace(result, verification=outcome, verified_on=("CPUExecutionProvider",))
    data = as_dict(result, source=name, saved=Saved(Path(f"{name}.opt.onnx"), nbytes, None))
    nodes, file = data["nodes"], data["file_bytes"]
    added = sum(total["nodes"] for total in data["passes"])
    assert added == nodes["after"] - nodes["before"], "every node that comes or goes is some pass's"
    has_larger_file = nbytes > file["before"] and size(nbytes) != size(file["before"])
    told = [clause for clause in data["larger"] if not clause.startswith("once loaded")]
    assert len(told) == (nodes["after"] > nodes["before"]) + has_larger_file
    for width in (60, 80, 120):
        shown = screen(data, width, above=6)
        lines = [*(f"{label:10}{text}" for label, text, _ in shown.rows), *shown.hint]
        assert len(shown) <= MAX_LINES - 6, lines
        assert max(map(len, lines)) <= width
        assert {label for label, _, _ in shown.rows} >= {"nodes", "file", "verified", "needs", "left", "written"}


@pytest.mark.parametrize("name", sorted({*zoo.names()} - {*TESTED}))
def test_the_reports_of_the_others_are_screenfuls(name: str, tmp_path: Path) -> None:
    result = optimize(zoo.grow(name, tmp_path / "original.onnx"), verify=False)
    check_report(name, result, len(result.to_bytes()))


HASHES = """
import hashlib, sys
from ortopt import optimize, zoo
from ortopt.serialization.save import to_bytes
for name, path in zip(sys.argv[1::2], sys.argv[2::2]):
    result = optimize(path, level=3, verify=False)
    print(name, hashlib.sha256(to_bytes(result.model)).hexdigest())
"""


def test_the_same_bytes_with_any_hash_seed(tmp_path: Path) -> None:
    arguments = [text for name in HASHED for text in (name, str(zoo.grow(name, tmp_path / f"{name}.onnx")))]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", HASHES, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("0", "4242")
    ]
    printed = {process.communicate()[0] for process in started}
    assert [process.returncode for process in started] == [0, 0]
    (lines,) = printed
    assert len(lines.splitlines()) == len(HASHED)


def optimized_by_ort(path: Path, folder: Path) -> Counter[str]:
    written = folder / "by_ort.onnx"
    session(path, ort.GraphOptimizationLevel.ORT_ENABLE_ALL, written)
    return Written(written).ops


GELUS = {"Gelu", "com.microsoft::Gelu", "com.microsoft::FastGelu"}


def fused(ops: Counter[str]) -> Counter[str]:
    """The ops that only a fusion makes; Gelu, by either formula, is one of ai.onnx since opset 20."""
    own = {op: count for op, count in ops.items() if op.startswith("com.microsoft") and op not in NOT_FUSED | GELUS}
    return Counter(own | {"Gelu": sum(ops[op] for op in GELUS)})


FUSED_MATMUL = "com.microsoft::FusedMatMul"
ATTENTIONS = ("Attention", "com.microsoft::Attention", "com.microsoft::MultiHeadAttention")


def products(ops: Counter[str]) -> int:
    """Matrix products, whatever they add or transpose; an attention is two of them."""
    return ops["MatMul"] + ops["Gemm"] + ops[FUSED_MATMUL] + 2 * sum(ops[op] for op in ATTENTIONS)


def check_downstream(original: Path, folder: Path) -> None:
    """Check that ONNX Runtime makes no less of results of standard ops, of which there is one at level 1."""
    before = optimized_by_ort(original, folder)
    portable = folder / "portable.onnx"
    result = optimize(original, level=3, target="onnx", disable=OF_ONE_ROW, verify=False)
    result.save(portable, external_data="inline")
    onnx.checker.check_model(Written(portable).weightless)
    for way, target in {"-O1": folder / "1.onnx", "-O3 --target onnx": portable}.items():
        after = optimized_by_ort(target, folder)
        assert after.total() <= before.total(), f"{way}: {after - before} more"
        fewer = fused(before) - fused(after)
        # A FusedMatMul is a MatMul that has swallowed a Transpose. Where the Transpose is gone altogether, a plain
        # MatMul is no loss: there are no more products (constant ones are computed), and no more transposes are left.
        if fewer.pop(FUSED_MATMUL, 0):
            assert products(after) <= products(before), f"{way}: more products"
            assert after["Transpose"] <= before["Transpose"], f"{way}: more transposes"
            assert after.total() < before.total(), f"{way}: fewer FusedMatMul, and nothing for them"
        assert not fewer, f"{way}: fewer fused ops"
