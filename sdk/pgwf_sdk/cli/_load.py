"""Workflows found in the user's modules."""

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from pgwf_sdk._kinds import kind_of
from pgwf_sdk.cli._exit import CliError, ExitCode

if TYPE_CHECKING:
    from pgwf_sdk._definition import Workflow


def workflows_of(reference: str) -> "list[Workflow[..., Any]]":
    """The workflows of `module`, or the one or the list of `module:attribute`. CliError when there is none."""
    module_name, colon, attribute = reference.partition(":")
    module = load_module(module_name)
    if not colon:
        found = _only_workflows(vars(module).values())
        if not found:
            raise CliError(
                f"module {module_name!r} has no workflow; expected a function decorated with @workflow in it",
                ExitCode.INVALID_INPUT,
            )
        return found
    value = _attribute(module, attribute)
    listed = list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]
    found = _only_workflows(listed)
    if not found or len(found) < len(listed):
        raise CliError(
            f"{reference}: it is {_described(value)}, expected a workflow or a list of workflows",
            ExitCode.INVALID_INPUT,
        )
    return found


def workflow_of(reference: str) -> "Workflow[..., Any]":
    """The one workflow that `module:attribute` names."""
    found = workflows_of(reference)
    if len(found) != 1:
        names = ", ".join(workflow.name for workflow in found)
        raise CliError(f"{reference}: it has several workflows ({names}); expected one", ExitCode.INVALID_INPUT)
    return found[0]


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name, or by its path; modules of the working directory are found."""
    if name.endswith(".py") or os.sep in name:
        return _load_file(name)
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return _imported(name)


def _load_file(path: str) -> ModuleType:
    """Import a file by the name its folder gives it, so that workers and callers name its functions alike."""
    absolute = os.path.abspath(path)
    if not os.path.isfile(absolute):
        raise CliError(f"no file {absolute}", ExitCode.INVALID_INPUT)
    folder, file = os.path.split(absolute)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return _imported(file.removesuffix(".py"))


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CliError(
                f"no module {name!r}: looked in {sys.path[0]} and in the environment of {sys.executable}; "
                "expected package.module or path/to/file.py",
                ExitCode.INVALID_INPUT,
            ) from error
        said = f"it needs {error.name!r}, which is not installed here"
        raise CliError(f"module {name!r} cannot be imported: {said}", ExitCode.INVALID_INPUT) from error
    except Exception as error:
        from pgwf_sdk.replay._places import line_of_error

        line = None if isinstance(error, SyntaxError) else line_of_error(error)
        at = "" if line is None else f", at {line[0]}:{line[1]}"
        said = f"{type(error).__name__}: {error}{at}"
        raise CliError(f"module {name!r} cannot be imported: {said}", ExitCode.INVALID_INPUT) from error


def _only_workflows(values: "Iterable[Any]") -> "list[Workflow[..., Any]]":
    """Those of the values that are workflows, each once."""
    from pgwf_sdk._definition import Workflow

    found: list[Workflow[..., Any]] = []
    for value in values:
        if isinstance(value, Workflow):
            workflow = cast("Workflow[..., Any]", value)
            if workflow not in found:
                found.append(workflow)
    return found


def _attribute(module: ModuleType, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError as error:
            raise CliError(
                f"{module.__name__}:{path}: {_described(value)} has no {name!r}", ExitCode.INVALID_INPUT
            ) from error
    return value


def _described(value: Any) -> str:
    return f"module {value.__name__!r}" if isinstance(value, ModuleType) else kind_of(value)
