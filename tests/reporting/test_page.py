"""The page: how it folds a graph, what it says of each node, and that nothing in it can be markup."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import zlib
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import ortopt
from ortopt.graph.module_scopes import SCOPES_KEY, common
from ortopt.instrumentation.graph_snapshot import GraphSnapshot, SnapshotTaker
from ortopt.instrumentation.module_paths import paths
from ortopt.reporting.model_diff import compare
from ortopt.reporting.page import graph_data
from ortopt.reporting.page.graph_data import Folding, fold
from ortopt.reporting.page.pages import SCRIPT, STYLE, asset, diff_page, document, index_page, page_of, write_page
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse

ASSETS = Path(ortopt.__file__).parent / "reporting" / "page" / "assets"
HOSTILE = "</script><script>alert(1)</script><!--\u2028\u2029&\"'"
MODEL = """
main (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}> {
    i = Identity (x) m = MatMul (i, w) y = Add (m, b) }"""
USED_TWICE = """
main (float[4,2] x) => (float[4,3] y, float[4,3] m) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}> {
    m = MatMul (x, w) y = Add (m, b) }"""


def data_of(page: str) -> dict[str, Any]:
    """The data in a page, as its script reads it."""
    found = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', page)
    assert found
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def snapshot_of(model: ir.Model) -> GraphSnapshot:
    numbers = itertools.count()
    return SnapshotTaker(model, lambda node, label: next(numbers)).snapshot


def named(*names: str, op: str = "Relu") -> GraphSnapshot:
    """A chain of nodes with names."""
    body = " ".join(f"v{at + 1} = {op} (v{at})" for at in range(len(names)))
    model = parse(f"main (float[2] v0) => (float[2] v{len(names)}) {{ {body} }}")
    for node, name in zip(model.graph, names, strict=True):
        node.name = name
    return snapshot_of(model)


def folded(names: list[str]) -> tuple[Folding, dict[str, list[int]]]:
    """How a chain of nodes folds: by label of the group, the nodes."""
    snapshot = named(*names)
    folding_ = fold(paths(snapshot), {row.id: row.op for row in snapshot.nodes}, {})
    inside: dict[str, list[int]] = {}
    for number, group in sorted(folding_.of.items()):
        inside.setdefault(folding_.groups[group].label, []).append(number)
    return folding_, inside


def test_modules_are_read_from_names_with_slashes() -> None:
    assert list(paths(named("/m/a/Relu", "m/b.0/Relu", "/top")).values()) == [
        ("m", "a"),
        ("m", "b.0"),
        (),
    ]


def test_modules_are_read_from_the_metadata_of_an_exporter() -> None:
    model = parse("main (float[2] x) => (float[2] y) { y = Relu (x) }")
    scopes = ["", "m", "m.layers.1", "m.layers.1.attention", "relu_3"]
    model.graph[0].metadata_props[SCOPES_KEY] = str(scopes)
    assert paths(snapshot_of(model)) == {0: ("m", "layers.1", "attention")}


@pytest.mark.parametrize("text", ["['a'", "__import__('os')", "{}", "[1, 2]", "[" * 5000, "x" * 30_000])
def test_metadata_that_is_no_list_of_names_says_nothing(text: str) -> None:
    model = parse("main (float[2] x) => (float[2] y) { y = Relu (x) }")
    model.graph[0].metadata_props[SCOPES_KEY] = text
    model.graph[0].name = "/a/b"
    assert paths(snapshot_of(model)) == {0: ("a",)}


def test_a_node_that_says_nothing_stands_with_its_readers() -> None:
    assert paths(named("/a/x/Relu", "plain", "/a/y/Relu"))[1] == ("a", "y")


@pytest.mark.parametrize(
    ("given", "shared"),
    [
        ([], ()),
        ([("a", "b")], ("a", "b")),
        ([("a", "b"), ("a",)], ("a",)),
        ([("a", "b"), ("a", "c")], ("a",)),
        ([("a",), ("b",)], ()),
    ],
)
def test_what_paths_have_in_common(given: list[tuple[str, ...]], shared: tuple[str, ...]) -> None:
    assert common(given) == shared


def test_nodes_of_a_subgraph_stand_below_the_node_that_holds_it() -> None:
    model = parse(
        """main (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { a = Relu (x) },
                else_branch = e () => (float[2] b) { b = Neg (x) }
            >
        }"""
    )
    model.graph[0].name = "/m/If"
    found = paths(snapshot_of(model))
    assert found == {0: ("m",), 1: ("m", "If:then_branch"), 2: ("m", "If:else_branch")}


def test_a_group_that_holds_one_group_only_is_one_with_it() -> None:
    folding_, inside = folded(["/m/model/a/Relu", "/m/model/a/Relu_1", "/m/model/b/Relu", "/m/model/b/Relu_1"])
    assert [group.label for group in folding_.groups] == ["", "m/model", "a", "b"]
    assert inside == {"a": [0, 1], "b": [2, 3]}


def test_layers_that_are_alike_are_put_together() -> None:
    names = [f"/m/layers.{layer}/Relu_{at}" for layer in range(12) for at in range(5)]
    folding_, _ = folded(names)
    together = [group for group in folding_.groups if group.alike]
    assert [(group.label, group.alike) for group in together] == [("layers.0 … layers.11", 12)]


def test_a_large_graph_without_modules_folds_into_blocks_and_parts() -> None:
    folding_, _ = folded(["" for _ in range(500)])
    held = [0] * len(folding_.groups)
    for group in (*folding_.of.values(), *(group.parent for group in folding_.groups[1:])):
        held[group] += 1
    assert max(held) <= graph_data.MAX_CHILDREN
    assert len(folding_.of) == 500


def test_blocks_that_repeat_are_found() -> None:
    body, last = "", "x"
    for at in range(20):
        for op in ("Relu", "Neg", "Abs", "Exp"):
            body += f"{op}{at} = {op} ({last}) "
            last = f"{op}{at}"
    snapshot = snapshot_of(parse(f"main (float[2] x) => (float[2] {last}) {{ {body} }}"))
    labels = [group.label for group in fold(paths(snapshot), {row.id: row.op for row in snapshot.nodes}, {}).groups]
    assert any("block 1 of" in label for label in labels)


def run(**options: Any) -> dict[str, Any]:
    lineage = ortopt.Lineage()
    return data_of(page_of(ortopt.optimize(parse(MODEL), observers=[lineage], **options), "a model"))


def test_the_page_of_a_run_has_both_graphs_and_what_leads_from_one_to_the_other() -> None:
    data = run()
    ops = [data["ops"][node[0]] for node in data["nodes"]]
    assert [ops[row[0]] for row in data["before"]["nodes"]] == ["Identity", "MatMul", "Add"]
    assert [ops[row[0]] for row in data["after"]["nodes"]] == ["Gemm"]
    (made,) = [row for row in data["rewrites"] if data["after"]["nodes"][0][0] in row[7]]
    assert made[1] == "matmul_add_fusion"
    assert sorted(ops[number] for number in made[6]) == ["Add", "MatMul"]
    assert data["report"]["verification"]["status"] == "verified"
    assert {entry[2] for entry in data["history"] if entry[7]} == {row[1] for row in data["rewrites"]}


def test_a_new_node_folds_with_those_that_it_stands_for() -> None:
    model = parse(MODEL)
    for node, name in zip(model.graph, ("/m/Identity", "/m/head/MatMul", "/m/head/Add"), strict=True):
        node.name = name
    data = data_of(page_of(ortopt.optimize(model, observers=[ortopt.Lineage()], verify=False)))
    gemm = data["nodes"][data["after"]["nodes"][0][0]]
    assert data["groups"][gemm[3]][1] == "head"


LAYERS = """main (float[4,2] x) => (float[4,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2] b = {5, 6}> {
    m = MatMul (x, w) a = Add (m, b) r = Relu (a) s = Sigmoid (r)
    n = MatMul (s, w) c = Add (n, b) t = Tanh (c) y = Neg (t)
}"""


def layers(scopes: str = "/m/layer.{}/dense/{}") -> ir.Model:
    model = parse(LAYERS)
    for at, node in enumerate(model.graph):
        node.name = scopes.format(at // 4, node.op_type)
    return model


def modules_of(data: dict[str, Any]) -> dict[str, list[str]]:
    """The groups around the nodes of the second model, innermost first, by name."""
    found = {}
    for row in data["after"]["nodes"]:
        _, name, _, group = data["nodes"][row[0]]
        found[name] = [data["groups"][group][1]]
        while (group := data["groups"][group][0]) >= 0:
            found[name].append(data["groups"][group][1])
    return found


def test_new_nodes_stand_in_their_modules_beside_the_original() -> None:
    model = layers()
    result = to_bytes(ortopt.optimize(model, verify=False).model)
    data = data_of(diff_page(model, load(result), compare(model, load(result), "a", "b")))
    inside = {name: groups for name, groups in modules_of(data).items() if "Gemm" in name}
    assert inside == {f"/m/layer.{at}/dense/FusedGemm": [f"layer.{at}/dense", "m", ""] for at in range(2)}


def test_new_nodes_of_an_exporter_that_says_modules_in_metadata_stand_in_them() -> None:
    model = layers("node_{}_{}")
    for at, node in enumerate(model.graph):
        around = ["", "m", f"m.layer.{at // 4}", f"m.layer.{at // 4}.{'dense' if at % 4 else 'linear'}"]
        node.metadata_props[SCOPES_KEY] = str([*around, f"{node.op_type.lower()}_{at}"])
    result = to_bytes(ortopt.optimize(model, verify=False).model)
    data = data_of(diff_page(model, load(result), compare(model, load(result), "a", "b")))
    assert [groups for name, groups in modules_of(data).items() if "Gemm" in name] == [
        [f"layer.{at}", "m", ""] for at in range(2)
    ]


def test_a_new_node_of_a_module_that_the_original_has_not_stands_in_the_one_around() -> None:
    first, second = layers(), layers()
    second.graph[1].name, second.graph[1].outputs[0].name = "/m/layer.0/other/Add", "other"
    second.graph[5].name, second.graph[5].outputs[0].name = "/Add", "top"
    inside = modules_of(data_of(diff_page(first, second, compare(first, second, "a", "b"))))
    assert inside["/m/layer.0/other/Add"] == ["layer.0/dense", "m", ""]
    assert inside["/Add"] == [""]


def test_without_lineage_the_page_has_the_result_alone() -> None:
    data = data_of(page_of(ortopt.optimize(parse(MODEL), verify=False)))
    assert data["before"] is None
    assert len(data["after"]["nodes"]) == 1
    assert data["rewrites"] == []


def test_reasons_stand_with_what_is_left() -> None:
    lineage = ortopt.Lineage()
    data = data_of(page_of(ortopt.optimize(parse(USED_TWICE), observers=[lineage], level=1, verify=False)))
    reasons = {reason for name, reason, _ in data["refusals"] if name == "matmul_add_fusion"}
    assert reasons == {"MatMul's result is used elsewhere"}


def test_a_profile_is_passed_on() -> None:
    from ortopt.reporting.page.pages import describe_run
    from ortopt.reporting.report import as_dict

    result = ortopt.optimize(parse(MODEL), verify=False)
    taken = {"original": [{"op": "MatMul", "count": 1, "ms": 0.5, "share": 1.0}], "result": []}
    assert describe_run(result, {**as_dict(result), "profile": taken})["profile"] == taken


def hostile_model() -> ir.Model:
    """A model whose every name would be a script."""
    model = parse(MODEL)
    model.graph.name = HOSTILE
    model.metadata_props[HOSTILE] = HOSTILE
    for at, node in enumerate(model.graph):
        node.name = f"/{HOSTILE}/{at}"
        node.doc_string = HOSTILE
        node.metadata_props[HOSTILE] = HOSTILE
    model.graph.inputs[0].name = HOSTILE
    model.graph.outputs[0].name = f"{HOSTILE}y"
    return model


def pages() -> dict[str, str]:
    model = hostile_model()
    result = ortopt.optimize(model, observers=[ortopt.Lineage()], verify=False)
    return {
        "run": page_of(result, HOSTILE),
        "diff": diff_page(model, result.model, compare(model, result.model, HOSTILE, HOSTILE)),
        "index": index_page(HOSTILE, [({"input": HOSTILE, "error": HOSTILE}, "")]),
    }


def test_names_in_a_page_are_no_markup() -> None:
    for kind, page in pages().items():
        own = page.replace(asset(SCRIPT), "").replace(asset(STYLE), "")
        assert "alert(1)" not in own.replace("&lt;script&gt;alert(1)", ""), kind
        assert own.count("<script") == own.count("</script>") == 2, kind
        assert "<!--" not in own, kind
        assert data_of(page)["title"]


def test_an_index_has_what_failed_on_top_and_what_was_verified_in_green() -> None:
    told = [{"input": "a", "verified": True}, {"input": "b", "verified": False}, {"input": "c", "error": "it is empty"}]
    data = data_of(index_page("several", [(report, "") for report in told]))
    assert [(row["name"], data["kinds"][row["status"]]) for row in data["rows"]] == [
        ("c", "bad"),
        ("b", "unknown"),
        ("a", "good"),
    ]
    assert data["counts"] == {"broken": 1, "not verified": 1, "verified": 1}


def test_the_policy_allows_this_very_script_and_style_and_nothing_else() -> None:
    page = document({"title": "t", "kind": "check"})
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'; ")
    for element, name in (("script", SCRIPT), ("style", STYLE)):
        body = page.rpartition(f"<{element}>")[2].partition(f"</{element}>")[0]
        assert body == asset(name)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy[1]
    assert "unsafe" not in policy[1]
    assert "http" not in policy[1]


def test_what_is_built_is_what_is_recorded() -> None:
    manifest = json.loads((ASSETS / "manifest.json").read_text())
    recorded = manifest["sha256"]
    assert {path.name for path in ASSETS.iterdir()} == {*recorded, "manifest.json"}
    for name, digest in recorded.items():
        assert hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() == digest, name


def test_licences_of_all_that_is_built_in_are_there_and_allow_it() -> None:
    manifest = json.loads((ASSETS / "manifest.json").read_text())
    licences = (ASSETS / "LICENSES.txt").read_text()
    assert manifest["libraries"]
    for library in manifest["libraries"]:
        assert library["license"] in {"MIT", "ISC", "BSD-3-Clause"}
        assert f"{library['name']} {library['version']} ({library['license']})" in licences


def test_the_lock_file_names_the_versions_that_are_built_in() -> None:
    root = Path(__file__).parents[2] / "report"
    lock = json.loads((root / "package-lock.json").read_text())["packages"]
    manifest = json.loads((ASSETS / "manifest.json").read_text())
    assert {library["name"]: library["version"] for library in manifest["libraries"]} == {
        name: lock[f"node_modules/{name}"]["version"] for name in (one["name"] for one in manifest["libraries"])
    }
    assert all("localhost" not in one.get("resolved", "") for one in lock.values())


def test_a_page_of_thousands_of_nodes_stays_small() -> None:
    body = " ".join(f"v{at + 1} = Relu (v{at})" for at in range(5000))
    model = parse(f"main (float[2] v0) => (float[2] v5000) {{ {body} }}")
    page = diff_page(model, model, compare(model, model, "a", "b"))
    assert len(page) < 1_500_000


def test_a_page_is_written_in_one_step(tmp_path: Path) -> None:
    result = ortopt.optimize(to_bytes(parse(MODEL)), verify=False)
    write_page(result, tmp_path / "a.html")
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
    assert data_of((tmp_path / "a.html").read_text())["title"] == "a"
    with pytest.raises(ortopt.OutputError, match="cannot write"):
        write_page(result, tmp_path / "missing" / "a.html")
