"""Walks the workflows and steps of one module, and the functions of the module that workflows call."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pgwf_sdk.lint._branches import Branch, Function, foreign_names
from pgwf_sdk.lint._findings import Finding
from pgwf_sdk.lint._names import Names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

AWAITED: Final = frozenset(
    ("step", "transaction", "sleep", "sleep_until", "wait_signal", "call", "parallel", "map", "human", "hop",
     "side_effect", "continue_as_new", "wait_for_callback", "poll", "attach")
)  # fmt: skip
"""Methods of an AsyncContext that have to be awaited."""
_STOPS: Final = frozenset(
    ("BaseException", "GeneratorExit", "asyncio.CancelledError", "pgwf_sdk.RunCancelled", "pgwf_sdk.BranchCancelled")
)
_IGNORED: Final = re.compile(r"#\s*pgwf:\s*ignore\b([\sA-Z0-9,]*)")


def lint_source(source: str, file: str = "<source>") -> list[Finding]:
    """What is found in a module's source, in the order of its lines. `file` is what findings call it."""
    try:
        tree = ast.parse(source, file)
    except (SyntaxError, ValueError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        return [Finding(file, line, column, "PGWF000", f"this is no Python: {error}")]
    excused = _excused(source)
    found = set(_Module(tree, file).findings())
    return sorted(one for one in found if not {one.rule, None} & excused.get(one.line, set()))


def has_workflow(source: str, file: str = "<source>") -> bool:
    """Whether a module has code that `lint_source` looks at as a workflow's: a workflow, or what takes a context."""
    try:
        module = _Module(ast.parse(source, file), file)
    except (SyntaxError, ValueError):
        return False
    return bool(module.workflows) or any(map(module.context_of, module.functions.values()))


def _excused(source: str) -> dict[int, set[str | None]]:
    """Rules that a line is excused from; None stands for all of them."""
    excused: dict[int, set[str | None]] = {}
    for number, line in enumerate(source.splitlines(), 1):
        if match := _IGNORED.search(line):
            excused[number] = set(re.findall(r"PGWF\d+", match[1])) or {None}
    return excused


class _Module:
    """One module: which of its functions are workflows and steps, and what workflows call."""

    def __init__(self, tree: ast.Module, file: str) -> None:
        self.names = Names(tree, Path(file))
        self.file = file
        everywhere = [node for node in ast.walk(tree) if isinstance(node, Function)]
        self.functions = {node.name: node for node in tree.body if isinstance(node, Function)}
        self.workflows = [node for node in everywhere if self._is_decorated(node, "workflow")]
        self.steps = [node for node in everywhere if self._is_decorated(node, "step")]
        self.step_names = {node.name for node in self.steps}
        self._workflow_nodes = set(self.workflows)

    def findings(self) -> Iterator[Finding]:
        for step in self.steps:
            yield from _StepCheck(self, step).findings()
        seen: set[Function] = set()
        for workflow in self.workflows:
            yield from self._of_workflow(workflow, workflow.name, seen)
        # A function that takes a context belongs to workflows, whoever calls it.
        for function in self.functions.values():
            if function not in self._workflow_nodes and self.context_of(function) is not None:
                yield from self._of_workflow(function, function.name, seen)

    def _of_workflow(self, function: Function, workflow: str, seen: set[Function]) -> Iterator[Finding]:
        if function in seen:
            return
        seen.add(function)
        check = _WorkflowCheck(self, function, workflow)
        check.visit_body()
        yield from check.found
        for name in check.called:
            callee = self.functions.get(name)
            if callee is not None and callee not in self._workflow_nodes and name not in self.step_names:
                yield from self._of_workflow(callee, workflow, seen)

    def context_of(self, function: Function) -> str | None:
        """The name of the parameter that is a context, by its annotation."""
        for parameter in [*function.args.posonlyargs, *function.args.args]:
            note = parameter.annotation
            text = ast.unparse(note).strip("'\"") if note is not None else ""
            if text.rpartition(".")[2] in ("Context", "AsyncContext") and self._is_context(text):
                return parameter.arg
        return None

    def _is_context(self, text: str) -> bool:
        return self.names.of_pgwf(ast.parse(text, mode="eval").body, "Context", "AsyncContext")

    def _is_decorated(self, function: Function, kind: str) -> bool:
        made_by = [one.func if isinstance(one, ast.Call) else one for one in function.decorator_list]
        return any(self.names.of_pgwf(one, kind) for one in made_by)


class _StepCheck:
    """A step has no context: it would be used when nothing of it is recorded."""

    def __init__(self, module: _Module, step: Function) -> None:
        self._module = module
        self._step = step

    def findings(self) -> Iterator[Finding]:
        step = self._step
        if (name := self._module.context_of(step)) is not None:
            yield _finding(
                self._module.file, step, "PGWF105", f"step {step.name!r} takes a context as {name!r}; {_STEP_ADVICE}"
            )
            return
        own = {one.arg for one in ast.walk(step.args) if isinstance(one, ast.arg)} | {
            node.id for node in ast.walk(step) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        contexts = {"ctx"} | {
            context for one in self._module.workflows if (context := self._module.context_of(one)) is not None
        }
        for node in ast.walk(step):
            owner = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id in contexts - own:
                text = f"step {step.name!r} uses the context of a workflow; {_STEP_ADVICE}"
                yield _finding(self._module.file, owner, "PGWF105", text)
                return


_STEP_ADVICE: Final = "pass it what it needs, and use current_step() for what concerns the attempt"


class _WorkflowCheck(ast.NodeVisitor):
    """One function that is run again in a replay, with the functions inside it."""

    def __init__(self, module: _Module, function: Function, workflow: str) -> None:
        self.found: list[Finding] = []
        self.called: list[str] = []
        self._module = module
        self._function = function
        self._workflow = workflow
        self._is_async = isinstance(function, ast.AsyncFunctionDef)
        first = [*function.args.posonlyargs, *function.args.args][:1]
        is_workflow = function in module.workflows
        context = module.context_of(function) or (first[0].arg if first and is_workflow else None)
        self._contexts = {context} if context else set[str]()
        self._sets: set[str] = set()
        self._inner = {
            one.name: one for one in ast.walk(function) if isinstance(one, Function) and one not in module.steps
        }
        self._where = "" if function.name == workflow else f" (called by workflow {workflow!r})"

    def visit_body(self) -> None:
        """Look at the body, not at the decorators and defaults, which run once."""
        for statement in self._function.body:
            self.visit(statement)

    # -- functions inside -----------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node, is_async=False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inside(node, is_async=True)

    def _inside(self, node: Function, *, is_async: bool) -> None:
        if node in self._module.steps or node in self._module.workflows:
            return  # Looked at on its own.
        outer_async, outer_contexts = self._is_async, set(self._contexts)
        self._is_async = is_async
        if (context := self._module.context_of(node)) is not None:
            self._contexts.add(context)
        for statement in node.body:
            self.visit(statement)
        self._is_async, self._contexts = outer_async, outer_contexts

    # -- calls ----------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        method = self._context_method(node)
        if method is not None:
            self._check_context_call(node, method)
            if method == "side_effect":  # What it runs is recorded.
                return
        elif (misplaced := self._module.names.misplaced(node)) is not None:
            rule, advice = misplaced
            self._report(node, rule, f"{ast.unparse(node.func)}(…) in workflow code{self._where}: {advice}")
        elif isinstance(node.func, ast.Name):
            name = node.func.id
            if name in self._module.step_names:
                self._report(
                    node,
                    "PGWF112",
                    f"step {name!r} is called directly, so nothing would be recorded; expected ctx.step({name}, …)",
                )
            self.called.append(name)
        self.generic_visit(node)

    def _check_context_call(self, node: ast.Call, method: str) -> None:
        if method in ("step", "transaction") and node.args and isinstance(node.args[0], ast.Lambda):
            self._report(
                node,
                "PGWF111",
                f'a lambda has no name that lasts in the journal; expected ctx.{method}(step(name="…")(lambda …))',
            )
        if method in ("step", "transaction") and any(
            isinstance(one, ast.Name) and one.id in self._contexts for one in node.args[1:]
        ):
            self._report(node, "PGWF105", f"a step is given the context; {_STEP_ADVICE}")
        if method in ("map", "parallel") and any(self._is_set(one) for one in node.args):
            self._report(node, "PGWF107", f"ctx.{method} is given a set; {_SET_ADVICE}")
        if method in ("map", "parallel"):
            for branch in node.args[:1] if method == "map" else node.args:
                self._check_branch(branch, method)

    def _check_branch(self, branch: ast.expr, method: str) -> None:
        body = self._inner.get(branch.id) if isinstance(branch, ast.Name) else branch
        if not isinstance(body, Branch):
            return
        for name in foreign_names(body, self._contexts):
            self._report(
                name,
                "PGWF115",
                f"a branch of ctx.{method} uses the context {name.id!r} of the code around it, which is refused when it"
                " runs; expected the context that it is given first",
            )

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call) and self._is_async and self._context_method(call) in AWAITED:
            name = ast.unparse(call.func)
            self._report(call, "PGWF106", f"{name}(…) is not awaited, so nothing happens; expected await {name}(…)")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if self._module.names.dotted(node.value) == "os.environ":
            self._report(
                node,
                "PGWF104",
                f"os.environ in workflow code{self._where}: read it in a step or by ctx.side_effect",
            )
        self.generic_visit(node)

    # -- sets -----------------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                (self._sets.add if self._is_set(node.value) else self._sets.discard)(target.id)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._check_loop(node.iter, node.body, node)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._check_loop(node.generators[0].iter, [node.elt], node)
        self.generic_visit(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._check_loop(node.generators[0].iter, [node.elt], node)
        self.generic_visit(node)

    def _check_loop(self, iterated: ast.expr, body: Iterable[ast.AST], node: ast.stmt | ast.expr) -> None:
        if not self._is_set(iterated):
            return
        calls = (one for part in body for one in ast.walk(part) if isinstance(one, ast.Call))
        if any(self._context_method(one) is not None for one in calls):
            self._report(node, "PGWF107", f"calls of the context in the order of a set; {_SET_ADVICE}")

    def _is_set(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub):
            return self._is_set(node.left) or self._is_set(node.right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in ("set", "frozenset")
        return isinstance(node, ast.Name) and node.id in self._sets

    # -- handlers and variables -----------------------------------------------------------------------------------

    def visit_Try(self, node: ast.Try) -> None:
        for handler in node.handlers:
            caught = _caught(self._module.names, handler.type)
            if caught is not None and not any(isinstance(one, ast.Raise) for one in ast.walk(handler)):
                self._report(
                    handler,
                    "PGWF109",
                    f"{caught} catches what stops a workflow (suspending it, cancelling it) and does not raise it"
                    " again; expected except Exception, or a raise at its end",
                )
        for statement in node.finalbody:
            self._check_final(statement)
        self.generic_visit(node)

    def _check_final(self, statement: ast.stmt) -> None:
        for one in ast.walk(statement):
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call | ast.Await):
                call = one.value.value if isinstance(one.value, ast.Await) else one.value
                if isinstance(call, ast.Call) and self._context_method(call) is None:
                    self._report(
                        one,
                        "PGWF110",
                        f"{ast.unparse(call.func)}(…) in a finally block runs each time the run is suspended; expected"
                        " a call of the context there, which does nothing then",
                    )

    def visit_Global(self, node: ast.Global) -> None:
        self._report(
            node,
            "PGWF113",
            f"{', '.join(node.names)} of the module is changed{self._where}: other runs and replays see it; expected"
            " variables of the function",
        )

    def _context_method(self, node: ast.Call) -> str | None:
        function = node.func
        if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
            return None
        return function.attr if function.value.id in self._contexts else None

    def _report(self, node: ast.stmt | ast.expr | ast.ExceptHandler, rule: str, message: str) -> None:
        self.found.append(_finding(self._module.file, node, rule, message, self._workflow))


_SET_ADVICE: Final = "it differs from process to process; expected sorted(…)"


def _caught(names: Names, kind: ast.expr | None) -> str | None:
    """How a handler that catches more than errors is written; None: it does not."""
    if kind is None:
        return "except:"
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    stopped = any(names.dotted(one) in _STOPS for one in kinds)
    return f"except {ast.unparse(kind)}:" if stopped else None


def _finding(
    file: str,
    node: ast.stmt | ast.expr | ast.ExceptHandler,
    rule: str,
    message: str,
    workflow: str | None = None,
) -> Finding:
    return Finding(file, node.lineno, node.col_offset + 1, rule, message, workflow)
