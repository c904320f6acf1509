"""Passes that wait are what they are, do what they do, and are imported when their ops turn up."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from ortopt import registry
from ortopt.discovery import deferred_passes, pass_files, pass_manifest
from ortopt.discovery.deferred_passes import DeferredRule, DeferredTransformer, declared, deferred
from ortopt.discovery.pass_manifest import Entry
from ortopt.errors import RegistrationError
from ortopt.options import Options
from ortopt.rule import Match, Replacement, RewriteRule
from ortopt.transformer import GraphTransformer
from tools.manifest import PATH, manifest

ATTRIBUTES = {
    kind: sorted(name for base in kind.__mro__ for name in getattr(base, "__annotations__", {}) if name[0] != "_")
    for kind in (GraphTransformer, RewriteRule)
}
MODULES = pass_manifest.read()
DECLARED = {
    name: (module, values)
    for module, entry in MODULES.items()
    for name, values in entry.passes.items()
    if values is not None
}

WAITING = (DeferredRule, DeferredTransformer)


def test_the_manifest_is_current() -> None:
    assert manifest() == PATH.read_bytes(), "a pass has changed: run make manifest"


def test_most_passes_can_wait() -> None:
    assert len(DECLARED) > 0.8 * len(registry.installed())


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_a_pass_that_waits_declares_what_it_declares(name: str) -> None:
    module, values = DECLARED[name]
    waiting, rule = deferred(module, name, values), registry.installed().find(name)()
    assert isinstance(waiting, RewriteRule) is isinstance(rule, RewriteRule)
    kind = RewriteRule if isinstance(rule, RewriteRule) else GraphTransformer
    for attribute in (*ATTRIBUTES[kind], "fused_ops", "formula"):
        if attribute != "Options":
            assert getattr(waiting, attribute) == getattr(rule, attribute), attribute
    assert "_own" not in waiting.__dict__
    assert waiting.Options is rule.Options
    assert waiting.options == rule.options
    assert repr(waiting) == repr(rule)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has imported no pass, as far as the registry knows."""
    monkeypatch.setattr(registry, "_imported", functools.cache(registry._imported.__wrapped__))


@pytest.mark.parametrize("options", [Options(), Options(level=1), Options(level=4), Options(finite_math=True)])
def test_the_same_are_selected(fresh: None, monkeypatch: pytest.MonkeyPatch, options: Options) -> None:
    waiting = registry.select(options)
    assert any(isinstance(chosen.transformer, WAITING) for chosen in waiting)
    monkeypatch.setattr(pass_manifest, "read", dict)
    usual = registry.select(options)
    assert not any(isinstance(chosen.transformer, WAITING) for chosen in usual)
    assert [(c.transformer.name, c.levels) for c in waiting] == [(c.transformer.name, c.levels) for c in usual]


@pytest.mark.parametrize(
    "options",
    [
        Options(disable=("gelu_fusion",)),
        Options(enable=("gelu_approximation",)),
        Options(only=("gelu_fusion",)),
        Options(passes="gelu_fusion"),
    ],
)
def test_whoever_names_a_pass_has_all(fresh: None, options: Options) -> None:
    assert not any(isinstance(chosen.transformer, WAITING) for chosen in registry.select(options))


def test_where_there_are_plug_ins_all_are_imported(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_plug_ins", lambda: [None])
    assert registry._select_unnamed(Options()) is None


class OfItsOwn(RewriteRule[Match]):
    """x -> y."""

    roots = ("Relu",)

    def match(self, root: ir.Node) -> Match:
        raise NotImplementedError

    def rewrite(self, found: Match) -> Replacement:
        raise NotImplementedError


def in_the_package(members: dict[str, Any]) -> type[OfItsOwn]:
    module = {"__module__": "ortopt.transformers.family.example"}
    return type("Example", (OfItsOwn,), {**module, "__doc__": "x -> y.", **members})


def test_only_passes_that_do_no_more_than_rules_can_wait() -> None:
    assert declared(OfItsOwn) is None
    assert declared(in_the_package({"lookback": 3, "_helper": print})) is not None
    for member in ("apply", "__init__", "__repr__", "fused_ops", "formula"):
        assert declared(in_the_package({member: getattr(OfItsOwn, member)})) is None, member


def test_a_file_that_has_changed_is_imported(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "activation.swish"
    known = MODULES[module]
    monkeypatch.setattr(pass_manifest, "read", lambda: {**MODULES, module: Entry(known.checksum + 1, known.passes)})
    waiting = {c.transformer.name for c in registry.select(Options()) if isinstance(c.transformer, WAITING)}
    assert "quick_gelu_fusion" not in waiting
    assert "gelu_fusion" in waiting


def test_an_archive_cannot_be_listed_and_has_what_the_manifest_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = list(pass_files.paths())
    monkeypatch.setattr("os.walk", lambda root: iter(()))
    assert list(pass_files.paths()) == listed
    assert pass_manifest.current(listed[0], "") is not None


def test_a_pass_that_does_not_load_says_so() -> None:
    rule = DeferredRule("activation.no_such_pass", "no_such_pass", DECLARED["gelu_fusion"][1])
    with pytest.raises(RegistrationError, match="no_such_pass does not load"):
        rule.match(ir.Node("", "Relu", []))


def test_rules_are_imported_when_their_ops_turn_up(tmp_path: Path) -> None:
    """One of them only after a rewrite: the Pow is no node of the model, but of a function in it."""
    path = tmp_path / "m.onnx"
    model = ir.from_onnx_text(
        '<ir_version: 9, opset_import: ["" : 18, "local" : 1]>\n'
        "m (float[2,3] x) => (float[2,3] y) { y = local.square(x) }\n"
        '<domain: "local", opset_import: ["" : 18]>\n'
        "square (x) => (y) { two = Constant <value = float {2}> ()  y = Pow(x, two) }"
    )
    ir.save(model, path)
    code = (
        "import sys\n"
        "from ortopt.discovery import pass_manifest\n"
        "if sys.argv[3] != 'wait': pass_manifest.read = dict\n"
        "import ortopt\n"
        "result = ortopt.optimize(sys.argv[1], level=3, verify=False)\n"
        "result.save(sys.argv[2])\n"
        "print(*(n.rpartition('.')[2] for n in sys.modules if n.startswith('ortopt.transformers.')))\n"
    )
    imported = []
    for how in ("wait", "usual"):
        command = [sys.executable, "-c", code, str(path), str(tmp_path / how), how]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        imported.append(set(done.stdout.split()))
    assert (tmp_path / "wait").read_bytes() == (tmp_path / "usual").read_bytes()
    waiting, usual = imported
    assert waiting < usual
    assert "simpler_ops" in waiting
    assert not waiting & {"ifs", "loop_row_hoisting", "group_fusion"}, "passes of whole graphs wait, too"
    assert not waiting & {"gelu_fusion", "attention_fusion", "conv_bn_fusion"}


def test_the_list_of_what_each_class_has_holds_no_contract() -> None:
    assert not deferred_passes._OF_EACH_CLASS & {"match", "apply"}
