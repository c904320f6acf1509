"""Options are declared once: what else spells them, spells them as they are declared."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing

import click
import pytest

from ortopt.api import make_options, optimize
from ortopt.cli.bisect import command as bisect_command
from ortopt.cli.explain import command as explain_command
from ortopt.cli.groups import command as groups_command
from ortopt.cli.optimize import command as optimize_command
from ortopt.cli.run_options import HALF_PRECISION
from ortopt.cli.run_options import make_options as options_of_arguments
from ortopt.errors import UsageError
from ortopt.interface_options import ImageInput
from ortopt.observers import Observer
from ortopt.option_kinds import parse_size
from ortopt.options import March, Options, Target, TransformerLevel, as_arguments, declarations
from ortopt.partition.settings import PartitionOptions
from ortopt.system import memory
from ortopt.testing import parse
from tools import document_options

SIGNATURE = inspect.signature(optimize).parameters
OTHERS = {"model", "verify", "inputs", "transformers", "observers", "max_memory", "cancellation"}
"""Parameters of `optimize` that are no options of a run: what is optimized, and with what and whom."""

WITHOUT_FLAG = {"enforce_timeout", "settings"}
"""The command line always asks for the one, and spells the other in ``--passes`` and in flags of single passes."""


def documented() -> dict[str, str]:
    """The parameters that the docstring of `optimize` describes, as one line each."""
    text = inspect.getdoc(optimize) or ""
    section = text[text.index("Args:") : text.index("Returns:")]
    entries = re.split(r"^    (?=\w+: )", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(rest.split()) for name, _, rest in (entry.partition(": ") for entry in entries)}


def test_optimize_takes_every_option_and_nothing_else() -> None:
    assert SIGNATURE.keys() == {*declarations(), *OTHERS}
    assert all(p.kind is p.KEYWORD_ONLY for name, p in SIGNATURE.items() if name != "model")
    assert all(p.annotation not in {p.empty, "Any"} for p in SIGNATURE.values())


@pytest.mark.parametrize("name", declarations())
def test_the_signature_has_the_declared_default(name: str) -> None:
    default = getattr(make_options(**{name: SIGNATURE[name].default}), name)
    if name == "strict":  # a caller gets the exception, who runs a command gets a model
        assert default is not getattr(Options(), name)
    else:
        assert default == getattr(Options(), name)


@pytest.mark.parametrize("name", declarations())
def test_the_docstring_begins_with_the_declared_help(name: str) -> None:
    declared = declarations()[name]
    assert documented()[name].startswith(declared.help.removesuffix("."))
    assert declared.help.endswith(".")
    assert len(declared.help) <= 90


def test_the_docstring_describes_each_parameter_once_in_the_order_of_the_signature() -> None:
    assert list(documented()) == list(SIGNATURE)


@pytest.mark.parametrize(
    ("command", "without"),
    [
        (optimize_command, set()),
        (
            bisect_command,
            {"strict", "repair", "keep_pass", "verify_with", "provenance", "value_info", "rename", *HALF_PRECISION},
        ),
        (
            explain_command,
            {
                "repair",
                "rtol",
                "atol",
                "keep_pass",
                "verify_with",
                "provenance",
                "value_info",
                "rename",
                *HALF_PRECISION,
            },
        ),
    ],
    ids=["optimize", "bisect", "explain"],
)
def test_commands_have_the_declared_flags(command: click.Command, without: set[str]) -> None:
    flags = {parameter.name: parameter for parameter in command.params if isinstance(parameter, click.Option)}
    assert declarations().keys() - flags.keys() == without | WITHOUT_FLAG
    for name in declarations().keys() & flags.keys():
        assert declarations()[name].flag in flags[name].opts


def arguments_of(line: list[str]) -> dict[str, typing.Any]:
    """What the command gets for a line."""
    with optimize_command.make_context(
        "optimize", ["model.onnx", *line], help_option_names=["-h", "--help"]
    ) as context:
        return context.params


def test_the_command_line_has_the_declared_defaults() -> None:
    assert options_of_arguments(**arguments_of([])) == Options(enforce_timeout=True)


OPTIONS = Options(
    level=2,
    providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
    target=Target.ONNX,
    force_forms=("Softmax", "com.microsoft::FusedMatMul with a transpose"),
    march=March.NATIVE,
    for_threads=1,
    opset=21,
    min_onnxruntime=(1, 20),
    dims={"batch": 1, "a b": 2, "max(a, b)": 3},
    input_shapes={"x": (1, None, 224), "s": (), "t:0": (2,)},
    value_info=True,
    rename={"x": "pixels", "a=b": "c"},
    rename_dims={"a": "batch", "b": "batch"},
    keep_outputs=("y", "z*"),
    drop_outputs=("z1",),
    int32_inputs=True,
    dynamic_batch="N",
    image_inputs={"a=b": ImageInput("nhwc", "uint8", (1 / 255,), (0.5, 0.25, 0.125), (0.1,)), "c": ImageInput()},
    disable=("cast_elimination@1",),
    enable=("matmul_add_fusion",),
    only=("matmul_add_fusion", "cast_elimination"),
    limit=3,
    max_growth=1000,
    steps=4,
    timeout=2.5,
    enforce_timeout=True,
    strict=True,
    check_each=True,
    repair=False,
    keep_pass=True,
    provenance=True,
    keep_functions=True,
    float16=True,
    float16_tolerance=0.02,
    float16_io=True,
    keep_float32=("Softmax", "/layers.3/*"),
)


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        dataclasses.replace(OPTIONS, only=(), passes="cast_elimination,matmul_add_fusion", level=0, max_growth=0),
        Options(enforce_timeout=True, max_growth=parse_size("9000000000GB")),
        Options(enforce_timeout=True, bfloat16=True),
    ],
)
def test_options_as_arguments_are_read_back(options: Options) -> None:
    assert options_of_arguments(**arguments_of(as_arguments(options))) == options


def test_defaults_need_no_arguments() -> None:
    assert as_arguments(Options()) == []


WRONG: dict[str, object] = {
    "level": 5,
    "providers": "cpus",
    "target": "tflite",
    "opset": 0,
    "min_onnxruntime": "new",
    "dims": ["batch"],
    "input_shapes": {"x": 3},
    "rename": {"x": "z", "y": "z"},
    "disable": 1,
    "enable": b"a",
    "only": ["a", None],
    "limit": -1,
    "max_growth": "1 furlong",
    "steps": 0,
    "timeout": 0,
    "float16_tolerance": 0,
    "keep_float32": ["Softmax"],  # of a run that computes in float32
}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("dims", "batch=1,seq=128", {"batch": 1, "seq": 128}),
        ("dims", "max(a, b) = 3 , c=0", {"max(a, b)": 3, "c": 0}),
        ("input_shapes", "x=1,_,3", {"x": (1, None, 3)}),
        ("input_shapes", {"x": "1,_,3", "y": [2]}, {"x": (1, None, 3), "y": (2,)}),
        ("input_shapes", "x=", {"x": ()}),
        ("rename", "x=y", {"x": "y"}),
        ("max_growth", "10MB", 10**7),
        ("max_growth", "unlimited", sys.maxsize),
        ("providers", "cpu", ("CPUExecutionProvider",)),
        ("providers", "gpu, cpu,CPUExecutionProvider", ("CUDAExecutionProvider", "CPUExecutionProvider")),
        ("providers", ["trt"], ("TensorrtExecutionProvider",)),
        ("target", "onnx", Target.ONNX),
        ("target", Target.ONNX, Target.ONNX),
        ("march", March.NATIVE, March.NATIVE),
        ("level", "2", 2),
        ("level", "O2", 2),
        ("level", "-O2", 2),
        ("level", TransformerLevel.LEVEL2, 2),
        ("opset", "18", 18),
        ("opset", "latest", "latest"),
        ("disable", "a, b@1", ("a", "b@1")),
        ("only", "", ()),
    ],
)
def test_values_may_be_given_as_text(name: str, text: object, value: object) -> None:
    assert getattr(make_options(**{name: text}), name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("dims", text) for text in ("", "batch", "batch=", "=1", "batch=one", "batch=1,seq", "batch=-1", "a=1,a=2")),
        *(("input_shapes", text) for text in ("", "x", "=1", "x=1,", "x=1,two", "x=-1", "x=?")),
        *(("rename", text) for text in ("", "x", "x=", "=y")),
        *(("providers", text) for text in ("", " , ", "cpu;cuda", "processor")),
        *(("level", text) for text in ("", "5", "O", "O9", "33", "-1", "high")),
        *(("opset", text) for text in ("", "0", "newest", "-1")),
        *(("target", text) for text in ("", "Onnx", "tflite")),
    ],
)
def test_texts_that_make_no_sense_are_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError):
        make_options(**{name: text})


@pytest.mark.parametrize("name", WRONG)
def test_values_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        make_options(**{name: WRONG[name]})


@pytest.mark.parametrize("names", ["cuda", "gpu,cpu", ("cuda", "CPUExecutionProvider")])
def test_groups_read_providers_as_runs_do(names: str | tuple[str, ...]) -> None:
    assert PartitionOptions(providers=names).candidates == ("CUDAExecutionProvider", "CPUExecutionProvider")


def test_the_flags_of_the_pass_that_groups_have_its_options_and_defaults() -> None:
    plain = PartitionOptions(providers=("CPUExecutionProvider",))
    declared = {"group_policy": plain.policy, "group_arg_limit": plain.argument_limit}
    flags = {option.name: option for option in groups_command.params}
    assert {name: flags[name].default for name in declared} == declared
    shown = {option.name: option.help for option in optimize_command.params if isinstance(option, click.Option)}
    assert all(f"[default: {default}]" in (shown[name] or "") for name, default in declared.items())
    settings = options_of_arguments(**arguments_of(["--group-policy", "literal", "--group-arg-limit", "9"])).settings
    assert settings == {"group_fusion": {"policy": "literal", "argument_limit": 9}}


def test_the_documented_table_is_the_generated_one() -> None:
    assert document_options.PAGE.read_text(encoding="utf-8") == document_options.page(), (
        "run: python -m tools.document_options"
    )


@pytest.mark.parametrize("limit", ["1 furlong", "1MB", 1, -1, 0.5, "0"])
def test_a_limit_of_memory_that_makes_no_sense_is_refused(limit: typing.Any) -> None:
    with pytest.raises(UsageError):
        optimize(b"", max_memory=limit)


@pytest.mark.parametrize(
    ("given", "held"), [("2GB", 2 * 10**9), (3 * 10**9, 3 * 10**9), ("unlimited", None), (None, None)]
)
def test_memory_is_limited_while_a_run_lasts(given: typing.Any, held: int | None) -> None:
    seen: list[int | None] = []

    class Look(Observer):
        def before(self, *where: object) -> None:
            seen.append(memory.limit())

    optimize(
        parse("main (float[N] x) => (float[N] y) { y = Relu (x) }"),
        max_memory=given,
        verify=False,
        observers=[Look()],
    )
    assert set(seen) == {held}
    assert memory.limit() is None
