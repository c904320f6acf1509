"""A pass is still found by a former name, wherever one can be named, with one warning that tells the present name."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import onnx_ir as ir
import pytest

from ortopt import Context, GraphTransformer, RewriteRule, TransformerLevel, optimize, registry
from ortopt.errors import FormerNameWarning, UnknownTransformerError, UsageError
from ortopt.former_names import FORMER_NAMES, present_name
from ortopt.graph.match import inputs
from ortopt.manager import GraphTransformerManager
from ortopt.observers import Explanation
from ortopt.options import Options
from ortopt.rule import Forwarded
from ortopt.testing import check_rewrites, parse

FORMER, PRESENT = "transpose_chain", "transpose_merging"
HINT = f"{FORMER} is called {PRESENT} now"
TEXT = """main (float[2,3,4] x) => (float[?,?,?] y) {
    t = Transpose <perm = [1, 0, 2]> (x) u = Transpose <perm = [0, 2, 1]> (t) y = Relu (u)
}"""


class NegNegElimination(RewriteRule[Forwarded]):
    """``Neg(Neg(x))`` → ``x``."""

    roots = ("Neg",)
    after = ("transpose_chain",)

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Value:
        return found.value


class TransposeChain(GraphTransformer):
    """A transformer of a user's own, of a name that one of ours had."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        return False


DOORS: dict[str, Callable[[str], Options]] = {
    "disable": lambda name: Options(level=1, disable=(name,)),
    "disable at a level": lambda name: Options(level=1, disable=(f"{name}@1",)),
    "enable": lambda name: Options(level=1, enable=(name,)),
    "only": lambda name: Options(level=1, only=(name,)),
    "passes": lambda name: Options(level=1, passes=f"{name},identity_elimination"),
    "passes with options": lambda name: Options(level=1, passes=f"{name}{{}}"),
    "settings": lambda name: Options(level=1, settings={name: {}}),
}


@pytest.mark.parametrize("name", [FORMER, "TransposeChain"])
@pytest.mark.parametrize("door", DOORS)
def test_options(door: str, name: str) -> None:
    with pytest.warns(FormerNameWarning) as caught:
        selected = registry.select(DOORS[door](name))
    assert [str(warning.message) for warning in caught] == [HINT]
    running = {chosen.transformer.name: chosen.levels for chosen in selected}
    assert running == {chosen.transformer.name: chosen.levels for chosen in registry.select(DOORS[door](PRESENT))}
    assert (PRESENT in running) != door.startswith("disable")


def test_optimize_warns_at_the_line_that_calls_it() -> None:
    with pytest.warns(FormerNameWarning, match=HINT) as caught:
        result = optimize(parse(TEXT), level=1, only=[FORMER], verify=False)
    assert [node.op_type for node in result.model.graph] == ["Transpose", "Relu"]
    assert {warning.filename for warning in caught} == {__file__}


def test_a_transformer_by_its_name_in_tests_of_passes() -> None:
    with pytest.warns(FormerNameWarning, match=HINT):
        check_rewrites(FORMER, TEXT, ops={"Transpose": 1, "Relu": 1})


def test_what_an_explanation_listens_to() -> None:
    with pytest.warns(FormerNameWarning, match=HINT):
        explanation = Explanation([FORMER])
    manager = GraphTransformerManager(observers=[explanation])
    manager.register(registry.installed().find(PRESENT)())
    manager.apply_transformers(parse(TEXT), 1)
    assert [rewrite.transformer for rewrite in explanation.rewrites] == [PRESENT]


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_every_former_name_finds_its_pass(former: str) -> None:
    assert present_name(former) == FORMER_NAMES[former]
    with pytest.warns(FormerNameWarning, match=f"^{former} is called {FORMER_NAMES[former]} now$"):
        assert registry.installed().find(former).name == FORMER_NAMES[former]


def test_other_names_are_what_they_are() -> None:
    assert present_name("gelu_fusion") == "gelu_fusion"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnknownTransformerError):
            registry.installed().find("reshape_chains")


def test_the_order_of_a_transformer_that_follows_a_former_name() -> None:
    with pytest.warns(FormerNameWarning, match=f"the call: in the 'after' of neg_neg_elimination, {HINT}"):
        selected = registry.select(Options(level=1), [NegNegElimination()])
    manager = GraphTransformerManager()
    for chosen in selected:
        manager.register(chosen.transformer, TransformerLevel.LEVEL1)
    names = [transformer.name for transformer in manager.transformers(1)]
    assert names.index("neg_neg_elimination") > names.index(PRESENT)


def test_a_present_name_goes_before_a_former_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        selected = registry.select(Options(level=1, only=(FORMER,)), [TransposeChain()])
    assert [type(one.transformer) for one in selected] == [TransposeChain]
    manager = GraphTransformerManager()
    for transformer in (TransposeChain(), registry.installed().find(PRESENT)()):
        manager.register(transformer, TransformerLevel.LEVEL1)
    assert {one.name for one in manager.transformers(1)} == {FORMER, PRESENT}


def test_an_error_names_the_present_name() -> None:
    with pytest.warns(FormerNameWarning, match=HINT), pytest.raises(UsageError, match=f"^{PRESENT} .* does not run"):
        registry.select(Options(level=1, only=("gelu_fusion",), settings={FORMER: {}}))
