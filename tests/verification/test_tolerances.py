"""An output has the tolerance of the coarsest dtype among all that it is computed from."""

import onnx
import onnx_ir as ir

from ortopt.verification.tolerances import TOLERANCES, tolerances

EACH = {
    "a": ("float", "a = Relu (x)"),
    "b": ("float", "h = Cast <to = 10> (x) b = Cast <to = 1> (h)"),
    "float16": ("float", "i = Add (half, half) float16 = Cast <to = 1> (i)"),
    "q": ("float", "u = QuantizeLinear (x, s) q = DequantizeLinear (u, s)"),
    "bf": ("float", "j = Identity (brain) k = Cast <to = 1> (j) bf = Add (k, x)"),
    "size": ("int64", "size = Shape (half)"),
    "mixed": ("float", "mixed = Add (a, b)"),
    "branch": ("float", "branch = If (c) <then_branch = t () => (float[N] p) { p = Neg (a) },"
               " else_branch = e () => (float[N] r) { r = Neg (b) }>"),
    "within": ("float", "within = If (c) <then_branch = t () => (float[N] p2) { m = Cast <to = 10> (x)"
               " p2 = Cast <to = 1> (m) }, else_branch = e () => (float[N] r2) { r2 = Neg (x) }>"),
    "fun": ("float", "fun = local.outer (x)"),
    "after": ("float", "after = Neg (fun)"),
    "plain": ("float", "plain = local.plain (x)"),
    "wide": ("double", "wide = Cast <to = 11> (x)"),
}  # fmt: skip
LOOSE = {"b": 2e-2, "float16": 2e-2, "q": 2e-2, "bf": 8e-2, "mixed": 2e-2, "branch": 2e-2, "within": 2e-2,
         "fun": 2e-2, "after": 2e-2}  # fmt: skip


def test_only_what_depends_on_something_coarse_may_differ_more():
    body = " ".join(text for _, text in EACH.values())
    outputs = ", ".join(f"{dtype}[] {name}" for name, (dtype, _) in EACH.items())
    text = (
        f"main (float[N] x, float16[N] half, bool c) => ({outputs}) <float s = {{0.1}}, bfloat16[1] brain = {{1}}>"
        f" {{ {body} }}"
        '<domain: "local", opset_import: ["": 17]> inner (x) => (y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }'
        '<domain: "local", opset_import: ["": 17, "local": 1]> outer (x) => (y) { y = local.inner (x) }'
        '<domain: "local", opset_import: ["": 17]> plain (x) => (y) { y = Relu (x) }'
    )
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "local": 1]> {text}'))
    found = tolerances(model)
    single = TOLERANCES[ir.DataType.FLOAT]
    assert {name: max(found[name], single) for name in EACH} == {name: LOOSE.get(name, single) for name in EACH}
