"""Options of passes: typed as they are declared, however annotations are written; what is wrong is refused by name."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, NewType, get_type_hints

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import GraphTransformerManager, UsageError, optimize, registry
from ortopt.errors import RegistrationError
from ortopt.framework.pass_options import LEAST, options_of
from ortopt.graph.match import Refusal
from ortopt.options import Options
from ortopt.rule import Forwarded, RewriteRule
from ortopt.testing import parse
from ortopt.transformer import GraphTransformer

MODEL = "main (float[N] x) => (float[N] y) { y = Relu (x) }"
PAGE = Path(__file__).parents[1] / "docs" / "writing_passes.md"


class Mode(enum.Enum):
    """A choice."""

    FAST = "fast"
    SLOW = "slow"


@dataclass(frozen=True)
class AsText:
    """Options whose annotations are texts."""

    count: int = 3
    share: float = 0.5
    name: str = "a"
    on: bool = False
    most: int | None = None
    offset: int = -1
    axis: int = field(default=0, metadata={LEAST: -4})
    mode: Mode = Mode.FAST
    way: Literal["there", "back"] = "there"


AS_TYPES: Any = make_dataclass(
    "AsTypes",
    [
        (one.name, get_type_hints(AsText)[one.name], field(default=one.default, metadata=one.metadata))
        for one in fields(AsText)
    ],
    frozen=True,
)
"""The same options, whose annotations are types."""


class Texts(RewriteRule[Forwarded]):
    """Nothing becomes anything."""

    name = "own"
    roots = ("Relu",)
    Options: ClassVar[type] = AsText
    seen: list[Any]

    def match(self, root: ir.Node) -> Forwarded:
        self.__dict__.setdefault("seen", []).append(self.options)
        raise Refusal("it only looks", root)

    def rewrite(self, found: Forwarded) -> ir.Value:
        raise AssertionError


class Types(Texts):
    """Nothing becomes anything, with types for annotations."""

    name = "own"
    Options = AS_TYPES


BOTH = pytest.mark.parametrize("kind", [Texts, Types])
RIGHT: dict[str, tuple[str, object]] = {
    "count=7": ("count", 7),
    "count=1kB": ("count", 1000),
    "share=2": ("share", 2.0),
    "share=0.25": ("share", 0.25),
    "name=7": ("name", "7"),
    "on=true": ("on", True),
    "on=0": ("on", False),
    "most=4": ("most", 4),
    "most=none": ("most", None),
    "offset=-5": ("offset", -5),
    "axis=-4": ("axis", -4),
    "mode=slow": ("mode", Mode.SLOW),
    "way=back": ("way", "back"),
}
WRONG: dict[str, str] = {
    "count=a": "own: count=a is no int",
    "count=1.5": "own: count=1.5 is no int",
    "count=-1": "own: count must be at least 0, not -1",
    "share=-0.5": "own: share must be at least 0, not -0.5",
    "share=nan": "own: share=nan is no float",
    "on=maybe": "own: on=maybe is no bool",
    "most=few": "own: most=few is no int or None",
    "axis=-5": "own: axis must be at least -4, not -5",
    "mode=idle": "own: mode=idle is no Mode",
    "way=up": "own: way=up is no 'there' or 'back'",
    "depth=1": "own does not take 'depth=1'; its options: count, share",
    "count": "own does not take 'count'; its options: count, share",
}
WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"count": "7"}, "own: count must be a whole number, not '7'"),
    ({"count": True}, "own: count must be a whole number, not True"),
    ({"count": 1.0}, "own: count must be a whole number, not 1.0"),
    ({"count": None}, "own: count must be a whole number, not None"),
    ({"count": -1}, "own: count must be at least 0, not -1"),
    ({"share": "a"}, "own: share must be a number, not 'a'"),
    ({"share": float("nan")}, "own: share must be a number, not nan"),
    ({"share": -1.0}, "own: share must be at least 0, not -1.0"),
    ({"name": 1}, "own: name must be a text, not 1"),
    ({"on": 1}, "own: on must be True or False, not 1"),
    ({"most": "few"}, "own: most must be a whole number or None, not 'few'"),
    ({"axis": -5}, "own: axis must be at least -4, not -5"),
    ({"mode": "idle"}, "own: mode must be Mode, not 'idle'"),
    ({"way": "up"}, "own: way must be 'there' or 'back', not 'up'"),
    ({"depth": 1}, "own does not take depth; its options: count, share"),
]


def settings_of(transformer: GraphTransformer, **how: Any) -> Any:
    """The options with which a run has run an instance."""
    (chosen,) = [
        one.transformer
        for one in registry.select(Options(level=1, **how), [transformer])
        if one.transformer.name == transformer.name
    ]
    return chosen.options


@BOTH
@pytest.mark.parametrize("text", RIGHT)
def test_a_text_is_read_as_the_declared_type(text: str, kind: type[Texts]) -> None:
    name, value = RIGHT[text]
    read = getattr(settings_of(kind(), passes=f"own{{{text}}}"), name)
    assert (read, type(read)) == (value, type(value))


@BOTH
@pytest.mark.parametrize("text", WRONG)
def test_a_text_of_another_type_is_refused(text: str, kind: type[Texts]) -> None:
    with pytest.raises(UsageError, match=re.escape(WRONG[text])):
        optimize(parse(MODEL), passes=f"own{{{text}}}", transformers=[kind()])


@BOTH
@pytest.mark.parametrize(("values", "says"), WRONG_VALUES)
def test_a_value_of_another_type_is_refused_in_settings_and_by_the_class(
    values: dict[str, Any], says: str, kind: type[Texts]
) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        kind(**values)
    with pytest.raises(UsageError, match=re.escape(says)):
        optimize(parse(MODEL), settings={"own": values}, transformers=[kind()])


@BOTH
def test_integers_of_numpy_and_members_by_value_are_taken(kind: type[Texts]) -> None:
    assert (kind(count=np.int32(4)).options.count, kind(mode="slow").options.mode) == (4, Mode.SLOW)


HOW: list[Mapping[str, Any]] = [{"passes": "own{count=7}"}, {"settings": {"own": {"count": 7}}}]


@pytest.mark.parametrize("how", HOW)
def test_what_a_run_sets_acts_on_the_callers_own_instance(how: Mapping[str, Any]) -> None:
    own = Texts(share=0.25)
    own.seen = []
    optimize(parse(MODEL), level=1, transformers=[own], verify=False, **how)
    assert {(seen.count, seen.share) for seen in own.seen} == {(7, 0.25)}, "what else it was given stays"
    assert own.options.count == 3, "the instance itself is not changed"


def test_an_instance_that_nothing_is_set_of_runs_itself() -> None:
    own = Texts(count=5)
    ways: list[dict[str, Any]] = [{}, {"passes": "own"}, {"settings": {"own": {}}}, {"only": ("own",)}]
    for how in ways:
        chosen = registry.select(Options(level=1, **how), [own])
        assert any(one.transformer is own for one in chosen)


class Constructed(Texts):
    """Nothing becomes anything, by a constructor of its own."""

    name = "own"

    def __init__(self, count: int) -> None:
        super().__init__(count=count)
        self.twice = 2 * count


@pytest.mark.parametrize("how", HOW)
def test_where_that_is_not_possible_it_is_refused(how: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"own is an instance of yours, .* constructor of its own: set count there"):
        optimize(parse(MODEL), level=1, transformers=[Constructed(4)], **how)


Number = NewType("Number", int)


@dataclass(frozen=True)
class Many:
    """Options of types that are made of others."""

    names: tuple[str, ...] = ()
    pair: tuple[int, str] = (1, "a")
    sizes: list[int] = field(default_factory=list)
    sets: frozenset[int] = frozenset()
    table: Mapping[str, int | None] = field(default_factory=dict)
    noted: Annotated[int, "a note"] = 3
    number: Number = Number(3)
    mode: Mode | None = None
    anything: Any = None
    careless: int = None  # type: ignore[assignment]


class OfMany(Texts):
    """Nothing becomes anything, with options of many types."""

    name = "own"
    Options: ClassVar[type] = Many


TAKEN: list[dict[str, Any]] = [
    {"names": ("a", "b")},
    {"pair": (2, "b")},
    {"sizes": [1, np.int64(2)]},
    {"sets": frozenset({1})},
    {"table": {"a": 1, "b": None}},
    {"noted": 4},
    {"number": 4},
    {"anything": object()},
]
REFUSED: list[dict[str, Any]] = [
    {"names": ("a", 1)},
    {"names": "ab"},
    {"pair": (2, "b", "c")},
    {"pair": ("b", 2)},
    {"sizes": ["1"]},
    {"sizes": [True]},
    {"sets": frozenset({"a"})},
    {"table": {"a": "b"}},
    {"table": {1: 1}},
    {"noted": "4"},
    {"noted": np.array(1.5)},
    {"noted": np.array([1, 2])},
    {"noted": -1},
    {"number": "4"},
    {"mode": np.array([1, 2])},
    {"mode": True},
]


@pytest.mark.parametrize("values", TAKEN, ids=lambda values: next(iter(values)))
def test_values_of_composed_types_are_taken(values: dict[str, Any]) -> None:
    ((name, value),) = values.items()
    assert getattr(settings_of(OfMany(), settings={"own": values}), name) == value


@pytest.mark.parametrize("values", REFUSED, ids=lambda values: next(iter(values)))
def test_what_a_value_holds_is_of_the_declared_type_too(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(UsageError, match=f"own: {name} must be"):
        OfMany(**values)


@pytest.mark.parametrize("text", ["noted=4", "number=4"])
def test_a_text_is_read_as_what_a_type_stands_for(text: str) -> None:
    options = settings_of(OfMany(), passes=f"own{{{text}}}")
    assert getattr(options, text.partition("=")[0]) == 4


def test_settings_are_named_by_texts() -> None:
    for wrong in ({"own": {3: 3}}, {3: {"count": 3}}):
        with pytest.raises(UsageError, match="settings maps names of passes to their options"):
            optimize(parse(MODEL), settings=wrong, transformers=[Texts()], verify=False)  # type: ignore[arg-type]


class PastTheConstructor(Texts):
    """Nothing becomes anything, with options that nobody has checked."""

    name = "own"

    def __init__(self, options: object) -> None:
        self.options = options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (AsText(count="7"), "own: count must be a whole number, not '7'"),  # type: ignore[arg-type]
        (AsText(share=-1.0), "own: share must be at least 0, not -1.0"),
        ({"count": 7}, "options must be a AsText"),
        (None, "options must be a AsText"),
    ],
)
def test_options_that_an_instance_was_given_elsewhere_are_checked_too(options: object, says: str) -> None:
    own = PastTheConstructor(options)
    with pytest.raises((UsageError, RegistrationError), match=re.escape(says)):
        optimize(parse(MODEL), transformers=[own])
    with pytest.raises((UsageError, RegistrationError), match=re.escape(says)):
        GraphTransformerManager().register(own)
    assert settings_of(PastTheConstructor(AsText(count=7))).count == 7


def test_options_are_a_dataclass() -> None:
    for wrong in (dict, int):
        kind = type("Odd", (Texts,), {"__doc__": "Nothing becomes anything.", "Options": wrong})
        with pytest.raises(RegistrationError, match="Options must be a dataclass"):
            GraphTransformerManager().register(kind())


def test_what_the_dataclass_refuses_is_refused_by_name() -> None:
    @dataclass(frozen=True)
    class Even:
        count: int = 2

        def __post_init__(self) -> None:
            if self.count % 2:
                raise ValueError("count must be even")

    @dataclass(frozen=True)
    class Required:
        count: int

    assert options_of(Even)["count"].types == (int,), "a class of a function, with texts for annotations"
    for options, says in ((Even, "own: count must be even"), (Required, "own: .*missing .* 'count'")):
        kind = type("Own", (Texts,), {"name": "own", "Options": options, "__doc__": "x"})
        with pytest.raises(UsageError, match=says):
            kind(**({"count": 3} if options is Even else {}))


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_the_block_of_the_page_runs_both_ways(future: str, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Options\n")[2]
    found = re.search(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    module = ModuleType("block_of_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look there for annotations that are texts
    names = vars(module)
    exec(compile(future + found[1], "block", "exec", dont_inherit=True), names)
    rule = names["SmallPowToMul"]
    assert isinstance(names["Limits"].__annotations__["largest"], str) is bool(future)
    cube = "main (float[N] x) => (float[N] y) <float n = {3.0}> { y = Pow (x, n) }"
    for largest, ops in (("2", ["Pow"]), ("3", ["Mul", "Mul"])):
        passes = f"small_pow_to_mul{{largest={largest}}}"
        result = optimize(parse(cube), level=1, passes=passes, transformers=[rule()])
        assert [node.op_type for node in result.model.graph] == ops
    with pytest.raises(UsageError, match="largest=many is no int"):
        optimize(parse(cube), passes="small_pow_to_mul{largest=many}", transformers=[rule()])
