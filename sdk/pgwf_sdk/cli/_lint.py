"""`pgwf lint`: what in the code would go wrong in a replay."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import click

from pgwf_sdk._wording import count_words
from pgwf_sdk.cli._exit import CliError, ExitCode
from pgwf_sdk.cli._output import json_object, talk, write_json
from pgwf_sdk.cli._session import form_option, session
from pgwf_sdk.lint import RULES, has_workflow, lint_source

SCHEMA = "pgwf.lint/1"


@click.command("lint")
@click.argument("references", metavar="MODULE...", nargs=-1)
@click.option("--rules", is_flag=True, help="Print the rules and end.")
@form_option
def lint(references: tuple[str, ...], rules: bool) -> int:
    """Look for what a replay would not bear: clocks, randomness, I/O, threads, swallowed stops, missing awaits.

    MODULE is a dotted name, a .py file, or a folder whose .py files are all looked at. The code is read, not run. Names
    of pgwf are also known by `import *`, and through modules beside the file. A line with the comment
    `# pgwf: ignore PGWF103` is excused from that rule. Exit code 1: something was found.
    """
    if rules:
        _write_rules()
        return ExitCode.OK
    if not references:
        raise CliError("nothing to look at; expected a module, a file or a folder: pgwf lint shop.py", ExitCode.USAGE)
    files = sorted({file for reference in references for file in _files(reference)})
    if not files:
        raise CliError(f"no Python file in {', '.join(references)}: nothing was looked at", ExitCode.USAGE)
    sources = {str(file): _read(file) for file in files}
    found = [finding for file, source in sources.items() for finding in lint_source(source, file)]
    if session().form == "json":
        write_json([json_object(SCHEMA, one) for one in found])
    else:
        for one in found:
            click.echo(str(one))
        looked_at = found or any(has_workflow(source, file) for file, source in sources.items())
        nothing = "nothing found" if looked_at else "no workflow"
        talk(f"{f'{len(found)} found' if found else nothing} in {count_words(len(files), 'file')}")
    return ExitCode.ERROR if found else ExitCode.OK


def _write_rules() -> None:
    if session().form == "json":
        write_json([{"schema": SCHEMA, "rule": rule, "text": text} for rule, text in RULES.items()])
    else:
        for rule, text in RULES.items():
            click.echo(f"{rule}  {text}")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{file}: cannot be read: {error}", ExitCode.INVALID_INPUT) from error


def _files(reference: str) -> Iterator[Path]:
    path = Path(reference)
    if path.is_dir():
        yield from (file for file in path.rglob("*.py") if not any(part.startswith(".") for part in file.parts))
    elif path.suffix == ".py" or path.exists():
        yield path
    else:
        yield _source_of(reference)


def _source_of(module: str) -> Path:
    """The file of a module, found without running it; its packages are imported, as Python finds it that way only."""
    folder = Path(*module.split("."))
    for candidate in (folder.with_suffix(".py"), folder / "__init__.py"):
        if candidate.is_file():
            return candidate
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise CliError(f"{module!r}: no such module, file or folder here", ExitCode.INVALID_INPUT)
    return Path(spec.origin)


COMMANDS = MappingProxyType({"lint": lint})
