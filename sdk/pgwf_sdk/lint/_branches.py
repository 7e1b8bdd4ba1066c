"""Functions that run as branches: each has a context of its own, and must not use that of the code around it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Branch: TypeAlias = Function | ast.Lambda

_ANYWHERE: Final = frozenset(("log", "run_id", "is_replaying"))
"""What a context answers in every scope."""


def foreign_names(branch: Branch, contexts: set[str]) -> Iterator[ast.Name]:
    """Where a branch uses one of `contexts` that its own parameters and variables do not hide."""
    hidden = {one.arg for one in ast.walk(branch.args) if isinstance(one, ast.arg)}
    body = [branch.body] if isinstance(branch, ast.Lambda) else branch.body
    hidden |= {
        one.id
        for part in body
        for one in ast.walk(part)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    if left := contexts - hidden:
        for part in body:
            yield from _uses(part, left)


def _uses(node: ast.AST, contexts: set[str]) -> Iterator[ast.Name]:
    if isinstance(node, Branch):
        yield from foreign_names(node, contexts)
    elif isinstance(node, ast.Name):
        if node.id in contexts:
            yield node
    elif not (isinstance(node, ast.Attribute) and node.attr in _ANYWHERE and isinstance(node.value, ast.Name)):
        for child in ast.iter_child_nodes(node):
            yield from _uses(child, contexts)
