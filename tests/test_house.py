"""The house rules a machine can keep, over the whole source tree. docs/style.md and docs/decisions/ say why."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "pgwf_sql": ROOT / "sql/pgwf_sql",
    "pgwf": ROOT / "pgwf/pgwf",
    "pgwf_journal": ROOT / "journal/pgwf_journal",
    "pgwf_sdk": ROOT / "sdk/pgwf_sdk",
}
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
CLASS_METHODS_MAX = 25
# Facades that mirror a contract one to one, and the model with a rule for each call; splitting them would only hide the
# contract.
FACADES = {"Client", "AsyncClient", "Context", "AsyncContext", "LeasingMachine"}
VAGUE_MODULES = {"utils", "helpers", "common", "models", "base", "types"}
# Put together here, so that this file does not contain what it looks for.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error"]) + r")\b")
REGISTRY = re.compile("|".join(["py" + r"pi\.org", "python" + "hosted", "npm" + r"js\.(org|com)", "deb" + r"ian\.org"]))
MACHINE = re.compile("|".join(["/wo" + "rk/", "/ro" + r"ot/\w", "py" + "env"]))
TICKET = re.compile("|".join([r"(?<![&\w])#" + r"\d{1,5}\b(?!['\"\];])", r"\bissue" + r" \d", r"\bJIR" + "A"]))
STATEMENT = re.compile(
    r"^\s*(select\s|insert\s+into\s|update\s+\S+\s+set\s|delete\s+from\s|with\s+\w+\s+as\b"
    r"|(create|alter|drop)\s+(or|table|schema|function|index|view|type)\b|call\s+\w+\.|truncate\s|lock\s+table\b)",
    re.IGNORECASE,
)
TEST_REFERENCE = re.compile(r"`?(tests/[\w/]+\.py)(?:::(\w+))?")


def project_files() -> list[Path]:
    """Return the files under version control and those about to be."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in sorted(listed.stdout.split("\0")) if name and (ROOT / name).is_file()]


FILES = project_files()
PYTHON_FILES = [path for path in FILES if path.suffix == ".py"]
SQL_FILES = [path for path in FILES if path.suffix == ".sql"]
ROOM_FILES = [path for path in PYTHON_FILES if any(path.is_relative_to(room) for room in ROOMS.values())]
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PYTHON_FILES}


def place(path: Path, line: int | None = None) -> str:
    return str(path.relative_to(ROOT)) + (f":{line}" if line else "")


def lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    found: list[str] = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{place(path, number)}: {line.strip()}" for number, line in enumerate(lines, 1) if pattern.search(line)
        ]
    return found


def docstrings(tree: ast.AST) -> set[int]:
    """Return the identities of the string nodes that are docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
    return found


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Give line and text of every string constant of a module that is no docstring."""
    prose = docstrings(TREES[path])
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def test_sql_is_written_in_sql_files_only() -> None:
    found = [
        f"{place(path, line)}: {text[:60]!r}"
        for path in ROOM_FILES
        for line, text in strings(path)
        if STATEMENT.match(text)
    ]

    assert not found, "move these to sql/pgwf_sql/queries/ and reach them by pgwf_sql.query(name)"


def test_only_pgwf_sql_opens_sql_files() -> None:
    others = [path for path in ROOM_FILES if not path.is_relative_to(ROOMS["pgwf_sql"])]

    assert not [place(path, line) for path in others for line, text in strings(path) if text.endswith(".sql")]


def test_files_are_short_enough_to_read() -> None:
    lengths = {place(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PYTHON_FILES + SQL_FILES}

    assert not {name: length for name, length in lengths.items() if length > FILE_LINES_MAX}, "split by noun"


def test_functions_and_classes_are_short_enough_to_read() -> None:
    found: list[str] = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    found.append(f"{place(path, node.lineno)} {node.name}: {length} lines")
            elif isinstance(node, ast.ClassDef) and node.name.lstrip("_") not in FACADES:
                # An overload states a type, it is no method of its own.
                methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
                if len(methods) > CLASS_METHODS_MAX:
                    found.append(f"{place(path, node.lineno)} {node.name}: {len(methods)} methods")

    assert not found


def test_modules_are_named_by_what_they_hold() -> None:
    vague = [
        place(path)
        for path in PYTHON_FILES
        if VAGUE_MODULES & {part.strip("_") for part in (*path.parts[-2:-1], path.stem)}
    ]

    assert not vague


def test_nothing_unfinished_is_left_behind() -> None:
    assert not lines_with(UNFINISHED, FILES)


def test_no_package_registry_is_named() -> None:
    assert not lines_with(REGISTRY, FILES)


def test_no_path_of_a_developers_machine_is_named() -> None:
    assert not lines_with(MACHINE, FILES)


def test_comments_and_documents_name_no_ticket() -> None:
    assert not lines_with(TICKET, [path for path in FILES if path.suffix in {".py", ".sql", ".md", ".toml", ".sh"}])


def test_no_wall_clock_of_a_client_reaches_the_database() -> None:
    """What is stored is stamped by the database; Python's clock may only wait, name and draw."""
    clocks = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("time", "time")}
    found = [
        place(path, node.lineno)
        for path in ROOM_FILES
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in clocks
    ]

    assert not found


def test_environment_is_read_by_the_command_line_and_the_embedded_server_only() -> None:
    readers = (ROOMS["pgwf_sdk"] / "cli", ROOMS["pgwf_sdk"] / "embedded")
    found = [
        place(path, node.lineno)
        for path in ROOM_FILES
        if not any(path.is_relative_to(reader) for reader in readers)
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]

    assert not found


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_are_sorted_documented_and_there(room: str) -> None:
    module = importlib.import_module(room)
    names: list[str] = module.__all__

    assert sorted(set(names), key=lambda name: (not name.isupper(), not name[0].isupper(), name)) == names
    assert not [name for name in names if not hasattr(module, name)]
    undocumented = [
        name
        for name in names
        if (inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name)))
        and not inspect.getdoc(getattr(module, name))
    ]
    assert not undocumented


def test_examples_use_public_names_only() -> None:
    found: list[str] = []
    for path in PYTHON_FILES:
        if not path.is_relative_to(ROOT / "examples"):
            continue
        for node in ast.walk(TREES[path]):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] not in ROOMS:
                continue
            assert node.module is not None
            public: list[str] = getattr(importlib.import_module(node.module), "__all__", [])
            hidden = any(part.startswith("_") for part in node.module.split("."))
            found += [
                f"{place(path, node.lineno)}: {node.module}.{alias.name}"
                for alias in node.names
                if hidden or alias.name not in public
            ]

    assert not found


def test_makefile_only_calls_run_py() -> None:
    recipes = [line.strip() for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("\t")]

    assert recipes
    assert all(re.fullmatch(r"@?\$\(PYTHON\) run\.py [\w$@ ]+", recipe) for recipe in recipes), recipes


def test_decisions_are_numbered_once() -> None:
    numbered = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [int(path.name[:4]) for path in numbered]

    assert numbers == list(range(1, len(numbers) + 1))
    headings = [path.read_text(encoding="utf-8").split(" ", 2)[1] for path in numbered]
    assert headings == [f"{number}." for number in numbers]


def test_documents_name_tests_that_exist() -> None:
    missing: list[str] = []
    for path in FILES:
        if path.suffix != ".md":
            continue
        for file, function in TEST_REFERENCE.findall(path.read_text(encoding="utf-8")):
            source = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else ""
            if not source or (function and not re.search(rf"def {function}\(", source)):
                missing.append(f"{place(path)}: {file}{'::' + function if function else ''}")

    assert not missing


def test_pages_that_messages_and_comments_name_exist() -> None:
    named = {
        (place(path), page)
        for path in PYTHON_FILES + SQL_FILES
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }

    assert named
    assert not [(where, page) for where, page in sorted(named) if not (ROOT / page).is_file()]


def test_each_guarantee_names_the_test_that_shows_it() -> None:
    """Up to the heading about what is not promised, each item of the page promises something."""
    page = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    promises = re.split(r"(?im)^#+ .*\bnot\b.*$", page)[0]
    items = re.findall(r"(?m)^(?:[-*]|\d+\.) .*(?:\n(?![-*#]|\d+\.|\n).*)*", promises)
    # A row of a table; neither its head, which has a rule below it, nor the rule.
    rows = re.findall(r"(?m)^\|(?! *-).*\|$(?!\n\| *-)", promises)

    assert len(items) + len(rows) > 10
    assert not [item for item in items + rows if not TEST_REFERENCE.search(item)]
