"""Which fused forms a run takes, and who decides."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt import optimize, registry, zoo
from ortopt.analysis import costs
from ortopt.analysis.costs import Form
from ortopt.errors import RegistrationError, UsageError
from ortopt.framework import fusions
from ortopt.framework.workspace import Workspace
from ortopt.graph.match import Refusal, inputs, producer
from ortopt.options import Fusions, Options, TransformerLevel
from ortopt.reporting.report import as_dict
from ortopt.rule import Forwarded, RewriteRule
from ortopt.testing import check_keeps, check_rewrites, parse
from ortopt.transformer import check_contract

M = "com.microsoft"
DEFAULT, ALL, NONE = (Options(fusions=fusions) for fusions in Fusions)
STANDARD, OWN = Form("", "Attention"), Form(M, "MultiHeadAttention")
LOSER = Form(M, "SkipLayerNormalization")


class ReluOfNegFusion(RewriteRule[Forwarded]):
    """``Relu(Neg(x))`` → an op that no table knows."""

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Relu",)
    produces = ((M, "Trilu"),)

    def match(self, root: ir.Node) -> Forwarded:
        """Relu of Neg."""
        negation = producer(inputs(root, 1)[0], "Neg")
        return Forwarded((negation, root), inputs(negation, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        """Whatever it is."""
        return ir.node("Trilu", [found.value], domain=M)


TEXT = "main (float[N,8] x) => (float[N,8] y) { n = Neg (x) y = Relu (n) }"


def test_what_nobody_has_measured_is_taken_unless_none_is_wanted() -> None:
    fused = "y = com.microsoft.Trilu (x)"
    for options in (DEFAULT, ALL):
        check_rewrites(ReluOfNegFusion(), TEXT, fused, options=options, numbers=False)
    check_keeps(ReluOfNegFusion(), TEXT, "--fusions none takes no such op", options=NONE)


def root_of(options: Options) -> ir.Node:
    return Workspace(parse(TEXT), options).model.graph[1]


def test_a_rule_may_ask_which_form_is_faster() -> None:
    assert fusions.preferred(root_of(DEFAULT), [OWN, STANDARD]) == STANDARD
    assert fusions.preferred(root_of(DEFAULT), [STANDARD, OWN]) == STANDARD
    assert fusions.preferred(root_of(DEFAULT), [LOSER, OWN]) == OWN
    assert fusions.preferred(root_of(ALL), [OWN, STANDARD]) == STANDARD


PRODUCT = Form("", "MatMul", "one for each part")


def test_a_rule_may_ask_whether_a_form_is_faster_at_some_sizes() -> None:
    root = root_of(ALL)  # whatever --fusions says
    fusions.check_faster(root, PRODUCT, rows=16)
    fusions.check_faster(root, PRODUCT, rows=(4, 4))
    for sizes in ({"rows": 15}, {"rows": None}, {}):  # what is not known may be anything
        with pytest.raises(Refusal, match=r"MatMul one for each part is .* slower .* than one MatMul and a Split"):
            fusions.check_faster(root, PRODUCT, **sizes)
    forced = root_of(Options(force_forms=(str(PRODUCT),)))
    fusions.check_faster(forced, PRODUCT, rows=1)


def test_what_was_measured_at_other_sizes_only_is_not_known_to_be_faster() -> None:
    form = Form("", "Exp", "in place of Mish")
    root = root_of(DEFAULT)
    fusions.check_faster(root, form, image=1024)
    reason = "nobody has measured whether .* on the CPU at these sizes, but with image 1024 or more"
    with pytest.raises(Refusal, match=reason):
        fusions.check_faster(root, form, image=1023)


def test_the_simplest_form_stands_where_nobody_knows() -> None:
    assert fusions.preferred(root_of(DEFAULT), [Form(M, "Unheard"), OWN]) == Form(M, "Unheard")
    cuda = root_of(Options(providers=("CUDAExecutionProvider",)))
    assert fusions.preferred(cuda, [OWN, STANDARD]) == OWN
    assert fusions.preferred(root_of(Options(providers=("QNNExecutionProvider",))), [LOSER]) == LOSER


def test_a_form_that_loses_is_chosen_only_by_those_who_insist() -> None:
    assert fusions.preferred(root_of(ALL), [LOSER]) == LOSER
    with pytest.raises(
        Refusal, match=r"on the CPU, .* is 2\.50× to 7\.69× slower than Add and LayerNormalization; --fusions all"
    ):
        fusions.preferred(root_of(DEFAULT), [LOSER])
    with pytest.raises(Refusal, match="--fusions none takes no such op"):
        fusions.preferred(root_of(NONE), [OWN])


RESIDUAL = """main (float[N,4,8] x, float[N,4,8] s, float[8] g, float[8] b) => (float[N,4,8] y) {
    t = Add (x, s) y = LayerNormalization <epsilon = 0.001> (t, g, b) }"""


def test_a_form_that_is_named_is_taken_whatever_is_known_of_it() -> None:
    check_keeps("skip_layer_norm_fusion", RESIDUAL, "--fusions all takes it anyway", options=DEFAULT)
    named = Options(force_forms=(str(LOSER),))
    check_rewrites("skip_layer_norm_fusion", RESIDUAL, ops={str(LOSER): 1}, options=named)
    other = Options(force_forms=("com.microsoft::SkipLayerNormalizationOfOthers", "com.microsoft::Skip"))
    check_keeps("skip_layer_norm_fusion", RESIDUAL, "--fusions all takes it anyway", options=other)
    none = Options(force_forms=(str(LOSER),), fusions=Fusions.NONE)
    check_keeps("skip_layer_norm_fusion", RESIDUAL, "--fusions none takes no such op", options=none)


def test_a_rule_that_may_choose_chooses_what_is_named() -> None:
    named = Options(force_forms=(str(LOSER),))
    assert fusions.preferred(root_of(named), [OWN, STANDARD, LOSER]) == LOSER
    assert fusions.preferred(root_of(named), [OWN, STANDARD]) == STANDARD


def test_a_declaration_that_is_no_op_is_refused() -> None:
    class WrongFusion(ReluOfNegFusion):
        """Nothing."""

        fuses = ("Gelu",)  # type: ignore[assignment]

    with pytest.raises(RegistrationError, match="fuses must be a tuple of"):
        check_contract(WrongFusion())


SKIP = """main (float[N,M,8] x, float[N,M,8] s, float[8] g, float[8] b) => (float[N,M,8] y) {
    t = Add (x, s)
    n = LayerNormalization (t, g, b)
    e = Sigmoid (n)
    y = Mul (n, e)
}"""


def test_the_report_says_what_decided() -> None:
    options = {"default": DEFAULT, "all": ALL, "none": NONE}
    reports = {
        name: as_dict(optimize(parse(SKIP), fusions=name, verify=False), options=chosen)["costs"]  # type: ignore[arg-type]
        for name, chosen in options.items()
    }
    for report in reports.values():
        assert (report["table"], report["sha256"]) == (costs.shipped().name, costs.shipped().digest)
    taken = {name: [(row["op"], row["verdict"]) for row in report["taken"]] for name, report in reports.items()}
    declined = {
        name: [(row["pass"], row["op"], row["verdict"], row["count"]) for row in report["declined"]]
        for name, report in reports.items()
    }
    loser = ("skip_layer_norm_fusion", f"{M}::SkipLayerNormalization", "loses", 1)
    assert taken == {
        "default": [(f"{M}::QuickGelu", "pays")],
        "all": [*[(f"{M}::SkipLayerNormalization", "loses")] * 2, (f"{M}::QuickGelu", "pays")],
        "none": [],
    }
    assert declined == {"default": [loser], "all": [], "none": []}


FUSED = {
    f"{domain}::{op}" if domain else op for kind in registry.installed() for domain, op in (kind.fuses or kind.produces)
} - {"Gather"}  # one that selects a row stands for no other nodes


def test_no_fused_op_comes_at_level_2_where_none_is_wanted() -> None:
    results = [
        optimize(zoo.cached("bert_small__ts17"), level=level, fusions=wanted, verify=False)
        for level, wanted in ((1, "none"), (3, "none"), (3, "default"))
    ]
    canonical, without, usual = (result.summary.after.ops for result in results)
    came = {op for op in without if without[op] > canonical.get(op, 0)}
    assert not came & FUSED
    assert {op for op in usual if usual[op] > canonical.get(op, 0)} & FUSED
    assert results[1].summary.after.blocks["attention"].fused == 0


@pytest.mark.parametrize(
    ("form", "because"),
    [
        ("com.microsoft::BiasGelo", "no form named 'com.microsoft::BiasGelo'; did you mean com.microsoft::BiasGelu"),
        ("nonsense", "no form named 'nonsense' .`ortopt costs show` lists them"),
    ],
)
def test_a_form_to_take_that_is_none_is_refused(form: str, because: str) -> None:
    with pytest.raises(UsageError, match=because):
        optimize(ir.to_proto(parse(TEXT)), force_forms=(form,), verify=False)


def test_a_form_that_no_table_has_is_taken_if_a_pass_writes_it() -> None:
    fusions.check_taken(Options(force_forms=(f"{M}::Trilu",)), ReluOfNegFusion.produces)
    with pytest.raises(UsageError, match="no form named"):
        fusions.check_taken(Options(force_forms=(f"{M}::Trilu",)), ())
