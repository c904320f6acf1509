"""Broken files without end: mutated models are loaded and described, and nothing but `InvalidModelError` may come out.

``python -m fuzzing.loader --seconds N`` lets libFuzzer choose, by the branches of the loader that an input reaches
(needs the ``fuzz`` extra: atheris). Models are mutated as messages, field by field, and as bytes. Findings are kept as
files, one for each place in the source; the corpus is kept too, and a later run goes on with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import helper, numpy_helper

PATIENCE: Final = 2.0
"""Seconds of processor time after which an input counts as a hang."""

MAX_MEMORY: Final = 512 << 20
"""Bytes by which one small input may let the process grow."""

LARGEST: Final = 64 << 10
"""Bytes of the largest input."""

_DATA: Final = "weights.data"
_DATA_BYTES: Final = 8192
_DEEPEST: Final = 60
_NUMBERS: Final = (0, 1, 2, 3, 7, 8, 13, 16, 255, 4096, 10**12, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -1, -2, -(2**31))
_STRINGS: Final = (
    "", "x", "y", "location", "offset", "length", "checksum", "-1", "0", "4096", "99999999999999999999", "1e3",
    _DATA, "../" + _DATA, "/dev/zero", ".", "/", "ai.onnx", "com.microsoft", "ortopt", "If", "Loop", "Constant",
    "Identity", "\x00", "a\nb", "\x1b[31mred", "\u202e\U0001f600", "n" * 3000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not happen.

    Attributes:
        kind: ``raises``, ``hangs``, ``grows``, or ``changes``: what was loaded cannot be written and loaded again.
        place: Where, the same for the same fault.
        detail: All that is known.
    """

    kind: str
    place: str
    detail: str


def examine(data: bytes, folder: Path) -> Finding | None:
    """Load bytes as a model, describe it, write it and load it again.

    Args:
        data: Anything.
        folder: An existing folder: models with external data are written into it, for only a file may have them.

    Returns:
        What went wrong, or None.
    """
    from ortopt.errors import InvalidModelError

    processor, memory = time.process_time(), _peak()
    try:
        _load(data, folder)
    except InvalidModelError as error:
        text = str(error)
        if "\n" in text or not text.isprintable():
            return Finding("raises", "message", f"a message that is not one printable line: {text!r}")
    except _Changed as changed:
        return Finding("changes", re.sub(r"'.*?'|\d+", "_", str(changed))[:100], str(changed))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = next((frame for frame in reversed(frames) if "ortopt" in frame.filename), frames[-1])
        place = f"{type(error).__name__} {Path(where.filename).name}:{where.name}"
        return Finding("raises", place, traceback.format_exc())
    seconds, grown = time.process_time() - processor, _peak() - memory
    if seconds > PATIENCE:
        return Finding("hangs", "seconds", f"{seconds:.1f} s of processor time for {len(data)} bytes")
    if grown > MAX_MEMORY:
        return Finding("grows", "bytes", f"{grown} bytes of memory for {len(data)} bytes")
    return None


class _Changed(Exception):  # noqa: N818 -- what happened, not an error
    """What was loaded cannot be written and loaded again."""


def _load(data: bytes, folder: Path) -> None:
    from ortopt.cli.info import describe
    from ortopt.errors import InvalidModelError, OutputError
    from ortopt.serialization.load import load
    from ortopt.serialization.save import to_bytes

    source: bytes | Path = data
    if b"location" in data:
        source = folder / "model.onnx"
        source.write_bytes(data)
        weights = folder / _DATA
        if not weights.exists():
            weights.write_bytes(bytes(range(256)) * (_DATA_BYTES // 256))
    model = load(source)
    said = describe(model, "it")
    json.dumps(said)
    try:
        written = to_bytes(model)
    except OutputError as error:
        raise _Changed(f"it loads, but it cannot be written: {error}") from error
    try:
        again = describe(load(written), "it")
    except InvalidModelError as error:
        raise _Changed(f"it loads, but what is written does not: {error}") from error
    for about in (said, again):  # an initializer tells its type, which a graph output of that name may have left out
        for kind in ("inputs", "outputs"):
            about[kind] = [value["name"] for value in about[kind]]
    for key in ("nodes", "by_op", "initializers", "parameters", "inputs", "outputs", "functions", "subgraphs"):
        if again[key] != said[key]:
            raise _Changed(f"{key} changed from {said[key]} to {again[key]}")


def _peak() -> int:
    """The most memory that the process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# -- inputs -----------------------------------------------------------------------------------------------------------


def seeds() -> Iterator[bytes]:
    """Small valid models that have everything which the loader treats in a way of its own."""
    from fuzzing.generator import generate

    for seed in range(12):
        model = generate(seed).model
        if model.ByteSize() < LARGEST // 4:
            yield model.SerializeToString()
    yield _everything().SerializeToString()
    text = '<ir_version: 3, opset_import: ["": 7]> g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}>'
    yield onnx.parser.parse_model(text + " { z = Add(x, w) y = Relu(z) }").SerializeToString()
    yield onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Relu(z) z = Exp(x) }'
    ).SerializeToString()


def _everything() -> onnx.ModelProto:
    """A model with weights of all kinds, an If, a function, sequences, optionals, sparse and external tensors."""
    weight = np.arange(512, dtype=np.float32).reshape(16, 32)
    branches = [_branch(name, weight[0, :1]) for name in ("then", "else")]
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(weight.T.copy(), "c")),
        helper.make_node("MatMul", ["external", "c"], ["m"], "mat", doc_string="doc"),
        helper.make_node("If", ["cond"], ["i"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("F", ["i", "", "m"], ["f"], domain="local", alpha=2.0),
        helper.make_node("Unknown", ["f", "strings"], ["y", ""], domain="strange", ints=[1, 2], strings=["a", "b"]),
        helper.make_node("SequenceConstruct", ["x", "y"], ["s"]),
    ]
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sparse", 1, [2], [1.0, 2.0]), helper.make_tensor("at", 7, [2], [1, 3]), [5]
    )
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N"]), helper.make_tensor_value_info("cond", 9, [])],
        [helper.make_tensor_value_info("y", 1, None), helper.make_tensor_sequence_value_info("s", 1, None)],
        _weights(weight),
        value_info=[helper.make_tensor_value_info("m", 1, [16, "M"])],
        sparse_initializer=[sparse],
    )
    graph.quantization_annotation.add(tensor_name="m")
    graph.metadata_props.add(key="k", value="v")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1), helper.make_opsetid("strange", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[_function()], ir_version=10)


def _weights(weight: np.ndarray[Any, Any]) -> list[onnx.TensorProto]:
    """Initializers: external data, a list of floats, other types, strings."""
    external = numpy_helper.from_array(weight, "external")
    external.ClearField("raw_data")
    external.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", _DATA), ("offset", "4096"), ("length", "2048")):
        external.external_data.add(key=key, value=value)
    listed = helper.make_tensor("listed", onnx.TensorProto.FLOAT, [16, 32], weight.ravel().tolist())
    odd = [
        helper.make_tensor(f"odd{kind}", kind, [3], [1, 2, 3])
        for kind in (
            onnx.TensorProto.INT4, onnx.TensorProto.UINT8, onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT16,
            onnx.TensorProto.BFLOAT16, onnx.TensorProto.INT64, onnx.TensorProto.COMPLEX64,
            onnx.TensorProto.FLOAT8E4M3FN,
        )
    ]  # fmt: skip
    odd.append(helper.make_tensor("strings", onnx.TensorProto.STRING, [2], [b"a", b"\xff"]))  # type: ignore[list-item]
    return [external, listed, *odd]


def _branch(name: str, inner: np.ndarray[Any, Any]) -> onnx.GraphProto:
    """A branch of an If with an initializer of its own."""
    return helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], [f"{name}_y"])],
        name,
        [],
        [helper.make_tensor_value_info(f"{name}_y", 1, None)],
        [numpy_helper.from_array(inner, "inner")],
    )


def _function() -> onnx.FunctionProto:
    """A function with an attribute."""
    scale = helper.make_node("Constant", [], ["k"])
    scale.attribute.add(name="value_float", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    return helper.make_function(
        "local", "F", ["a", "b", "c"], ["d"], [scale, helper.make_node("Mul", ["a", "k"], ["d"])],
        [helper.make_opsetid("", 17)], ["alpha"],
    )  # fmt: skip


def mutated(
    data: bytes, most: int, draw: random.Random, mutate_bytes: Callable[[bytes, int], bytes] | None = None
) -> bytes:
    """Change an input a little: mostly one to four fields of the message, else some bytes.

    Args:
        data: The input.
        most: Bytes that the result may have.
        draw: Decides.
        mutate_bytes: Changes bytes: libFuzzer's mutation, or a simple one.
    """
    mutate_bytes = mutate_bytes or (lambda given, _: _other_bytes(given, draw))
    if draw.random() < 0.7:
        model = onnx.ModelProto()
        try:
            model.ParseFromString(data)
            for _ in range(draw.randint(1, 4)):
                _change(model, draw)
            made = model.SerializeToString()
        except (DecodeError, ValueError, RecursionError):
            made = b""
        if made and len(made) <= most:
            return made if draw.random() < 0.9 else mutate_bytes(made, most)[:most]
    return mutate_bytes(data, most)[:most]


def _other_bytes(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(4):
            case 0:
                changed[at : at + 1] = draw.randbytes(1)
            case 1:
                del changed[at : at + draw.choice((1, 2, 8, 100, 10**9))]
            case 2:
                changed[at:at] = draw.randbytes(draw.choice((1, 2, 8)))
            case _:
                start = draw.randrange(len(changed) + 1)
                changed[at:at] = changed[start : start + draw.choice((4, 16, 200))]
    return bytes(changed)


def _change(model: onnx.ModelProto, draw: random.Random) -> None:
    everything = list(_below(model))
    message = draw.choice(everything)
    field = draw.choice(message.DESCRIPTOR.fields)
    if message.ListFields() and draw.random() < 0.6:  # what is there matters more than what could be
        field = draw.choice(message.ListFields())[0]
    old = getattr(message, field.name)
    if draw.random() < 0.15:
        message.ClearField(field.name)
    elif field.is_repeated:
        _change_list(old, field, everything, draw)
    elif field.message_type is not None:
        alike = [other for other in everything if other.DESCRIPTOR is field.message_type]
        old.SetInParent()
        if alike:
            copy = type(old)()
            copy.CopyFrom(draw.choice(alike))
            old.CopyFrom(copy)
    else:
        setattr(message, field.name, _scalar(field, old, everything, draw))


def _change_list(values: Any, field: FieldDescriptor, everything: Sequence[Message], draw: random.Random) -> None:
    at = draw.randrange(len(values)) if values else 0
    what = draw.randrange(4)
    if field.message_type is not None:
        alike = [other for other in everything if other.DESCRIPTOR is field.message_type]
        if what == 0 and values:
            del values[at]
        elif what == 1 and len(values) > 1:
            values.insert(draw.randrange(len(values)), values.pop(at))
        elif alike:
            copy = type(alike[0])()
            copy.CopyFrom(draw.choice(alike))
            values.append(copy)
        else:
            values.add()
    elif what == 0 and values:
        del values[at]
    elif what == 1 and values:
        values[at] = _scalar(field, values[at], everything, draw)
    else:
        values.append(_scalar(field, values[at] if values else None, everything, draw))


def _scalar(field: FieldDescriptor, old: Any, everything: Sequence[Message], draw: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return draw.choice([value.number for value in field.enum_type.values])
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return draw.choice((0.0, -0.0, 1.0, 1e38, float("nan"), float("inf")))
    if kind == FieldDescriptor.CPPTYPE_STRING and field.type != FieldDescriptor.TYPE_BYTES:
        strings = [
            value
            for message in draw.sample(everything, min(8, len(everything)))
            for other, value in message.ListFields()
            if isinstance(value, str)
        ]
        return draw.choice(strings) if strings and draw.random() < 0.6 else draw.choice(_STRINGS)
    if kind == FieldDescriptor.CPPTYPE_STRING:
        given = old if isinstance(old, bytes) else b""
        return draw.choice((b"", given[:-1], given + b"\0", given * 2, bytes(2000), b"\xff\xfe"))
    near = [old - 1, old + 1, old * 2] if isinstance(old, int) else []
    number = draw.choice([*_NUMBERS, *near])
    bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        return number % 2**bits
    return (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def _below(message: Message, depth: int = 0) -> Iterator[Message]:
    yield message
    if depth > _DEEPEST:
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from _below(inner, depth + 1)


# -- a long run -------------------------------------------------------------------------------------------------------


class _Examiner:
    """Examines inputs in a process of libFuzzer's, and keeps what it finds."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._scratch = Path(tempfile.mkdtemp(prefix="ortopt-loader-"))
        self._known = {path.name for path in out.iterdir()}
        self._count = 0

    def __call__(self, data: bytes) -> None:
        self._count += 1
        finding = examine(data, self._scratch)
        if self._count % 500 == 0:
            (self._out / "count").write_text(str(self._count))
        if finding is None:
            return
        name = f"{finding.kind}-{hashlib.sha256(finding.place.encode()).hexdigest()[:12]}"
        if name in self._known:
            return
        self._known.add(name)
        (self._out / name).write_bytes(data)
        (self._out / f"{name}.txt").write_text(f"{finding.place}\n{finding.detail}")
        print(f"FOUND {name}: {finding.place}: {finding.detail.splitlines()[-1][:300]}", file=sys.stderr, flush=True)


def _child(out: Path, corpus: Path, seconds: int) -> None:
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=["ortopt.graph", "ortopt.cli.info", "ortopt.semantics"]):
        import ortopt.cli.info
        import ortopt.graph.scope
        import ortopt.serialization.decode
        import ortopt.serialization.encode
        import ortopt.serialization.load
        import ortopt.serialization.save
    import ortopt.api  # noqa: F401 -- before the clock runs

    def custom(data: bytes, most: int, seed: int) -> bytes:
        return mutated(bytes(data), most, random.Random(seed), atheris.Mutate)

    arguments = [
        sys.argv[0], f"-max_total_time={seconds}", f"-max_len={LARGEST}", "-timeout=60", "-rss_limit_mb=4096",
        f"-artifact_prefix={out}/", "-print_final_stats=1", "-len_control=0", str(corpus),
    ]  # fmt: skip
    atheris.Setup(arguments, _Examiner(out), custom_mutator=custom)
    atheris.Fuzz()


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz for some time, over processes that end by themselves; 1 if anything was found.

    Args:
        arguments: The command line; the process's own if None.
    """
    parser = argparse.ArgumentParser(prog="python -m fuzzing.loader", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long")
    parser.add_argument("--out", type=Path, default=Path("fuzz-out/loader"), help="where findings and corpus go")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    corpus = options.out / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    if options.child:
        _child(options.out, corpus, options.seconds)
        return 0
    for data in seeds():
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    end, executions, ended, coverage = time.monotonic() + options.seconds, 0, 0, 0
    while (left := int(end - time.monotonic())) > 0:
        (options.out / "count").write_text("0")
        command = [sys.executable, "-m", "fuzzing.loader", "--child", "--out", str(options.out), "--seconds", str(left)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            assert process.stderr is not None
            for line in process.stderr:
                print(line, end="", flush=True)
                found = re.search(r" cov: (\d+)", line)
                coverage = max(coverage, int(found[1])) if found else coverage
        executions += int((options.out / "count").read_text() or 0)
        ended += process.returncode != 0
        if process.returncode and not executions:
            break  # it does not even start
    findings = sorted(path.stem for path in options.out.glob("*.txt"))
    print(f"{executions} executions, {coverage} counters reached, {ended} processes ended badly, found: {findings}")
    return 1 if findings or ended else 0


if __name__ == "__main__":
    if "--child" in sys.argv:
        os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())
