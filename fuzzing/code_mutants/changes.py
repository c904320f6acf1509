"""What may be changed in a function: conditions, constants, operators, calls; one small change at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}

_CALLS: Final = {"any": "all", "all": "any", "min": "max", "max": "min"}

_LEAVING = ast.Return | ast.Raise | ast.Continue | ast.Break


def changes(function: Function) -> Iterator[tuple[ast.AST, str, ast.AST]]:
    """The changes of a function, in the order of its nodes.

    Signatures, decorators, annotations, docstrings and the texts of errors are left alone.

    Args:
        function: The outermost function or method.

    Yields:
        The node that would be replaced, the kind of the change, and the node in its place.
    """
    for node in _code(function):
        for kind, replacement in _replacements(node):
            yield node, kind, replacement


def changed(function: Function, number: int) -> Function:
    """A copy of a function with one of its changes made.

    Args:
        function: The function.
        number: The number of the change among `changes`.
    """
    mutant = copy.deepcopy(function)
    node, _, replacement = next(item for at, item in enumerate(changes(mutant)) if at == number)
    for parent in ast.walk(mutant):
        for field, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, field, replacement)
            elif isinstance(value, list) and any(item is node for item in value):
                value[next(at for at, item in enumerate(value) if item is node)] = replacement
    return ast.fix_missing_locations(mutant)


def _code(function: Function) -> Iterator[ast.AST]:
    """The nodes of a body, without what only people read."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    pending: list[ast.AST] = list(reversed(body))
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.Raise | ast.JoinedStr):
            continue
        inner: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.AnnAssign):
            inner = [node.value] if node.value else []
        elif isinstance(node, Function):
            inner = node.body
        pending.extend(reversed([child for child in inner if not isinstance(child, ast.arguments)]))


def _replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            yield "comparison", ast.Compare(node.left, [_COMPARISONS[type(operator)]()], node.comparators)
        case ast.BoolOp(ast.And(), values):
            yield "connective", ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            yield "connective", ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "negation", operand
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            yield "operator", ast.BinOp(left, _OPERATORS[type(operator)](), right)
        case ast.Constant(bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Expr(ast.Call()):
            yield "statement", ast.Pass()
        case ast.Call(ast.Name(name), arguments) if name in _CALLS:
            yield "call", ast.Call(ast.Name(_CALLS[name], ast.Load()), arguments, node.keywords)
        case ast.Call(_, arguments, [*keywords, last]) if last.arg is not None:
            yield "keyword", ast.Call(node.func, arguments, keywords)
        case ast.If(test, [statement], []) if isinstance(statement, _LEAVING):
            yield "guard", ast.If(ast.Constant(False), [statement], [])
            if isinstance(test, ast.Call | ast.Name | ast.Attribute):
                yield "condition", ast.If(ast.UnaryOp(ast.Not(), test), [statement], [])
        case ast.If(test, body, orelse) if isinstance(test, ast.Call | ast.Name | ast.Attribute):
            yield "condition", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(test, body, other):
            yield "choice", ast.IfExp(test, other, body)
        case ast.comprehension(target, source, [*conditions, _]):
            yield "filter", ast.comprehension(target, source, conditions, node.is_async)
