"""What a name in the code stands for, by the imports of its module, and which calls have no place in a workflow."""

from __future__ import annotations

import ast
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pgwf_sdk

_CLOCK: Final = "use ctx.now(), which gives the same instant in each replay"
_RANDOM: Final = "use ctx.random or ctx.uuid4(), which give the same in each replay"
_IO: Final = "do it in a step: a replay would do it again"
_LOG: Final = "use ctx.log, which says each line once; a replay would say it again"
_THREAD: Final = "use ctx.parallel or ctx.map; what runs beside the workflow is not replayed"
_SLEEP: Final = "use ctx.sleep, which holds no worker and outlives it"
_ENVIRONMENT: Final = "read it in a step or by ctx.side_effect: another worker may have another one"

_CALLS: Final = MappingProxyType(
    {
        "time.sleep": ("PGWF114", _SLEEP),
        "datetime.datetime.now": ("PGWF101", _CLOCK),
        "datetime.datetime.utcnow": ("PGWF101", _CLOCK),
        "datetime.datetime.today": ("PGWF101", _CLOCK),
        "datetime.date.today": ("PGWF101", _CLOCK),
        "os.urandom": ("PGWF102", _RANDOM),
        "uuid.uuid1": ("PGWF102", _RANDOM),
        "uuid.uuid4": ("PGWF102", _RANDOM),
        "uuid.uuid6": ("PGWF102", _RANDOM),
        "uuid.uuid7": ("PGWF102", _RANDOM),
        "os.getenv": ("PGWF104", _ENVIRONMENT),
        "open": ("PGWF103", _IO),
        "input": ("PGWF103", _IO),
        "print": ("PGWF103", _LOG),
        "asyncio.to_thread": ("PGWF108", _THREAD),
        "asyncio.run": ("PGWF108", _THREAD),
        "threading.Thread": ("PGWF108", _THREAD),
        "threading.Timer": ("PGWF108", _THREAD),
        "_thread.start_new_thread": ("PGWF108", _THREAD),
        "os.system": ("PGWF103", _IO),
        "os.fork": ("PGWF108", _THREAD),
    }
)
_TIME: Final = frozenset(
    ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "localtime",
     "gmtime", "ctime", "strftime", "clock_gettime")
)  # fmt: skip
_MODULES: Final = MappingProxyType(
    {
        "random": ("PGWF102", _RANDOM),
        "secrets": ("PGWF102", _RANDOM),
        "numpy.random": ("PGWF102", _RANDOM),
        "logging": ("PGWF103", _LOG),
        "socket": ("PGWF103", _IO),
        "subprocess": ("PGWF103", _IO),
        "shutil": ("PGWF103", _IO),
        "tempfile": ("PGWF103", _IO),
        "sqlite3": ("PGWF103", _IO),
        "psycopg": ("PGWF103", _IO),
        "requests": ("PGWF103", _IO),
        "httpx": ("PGWF103", _IO),
        "aiohttp": ("PGWF103", _IO),
        "boto3": ("PGWF103", _IO),
        "smtplib": ("PGWF103", _IO),
        "urllib.request": ("PGWF103", _IO),
        "http.client": ("PGWF103", _IO),
        "concurrent.futures": ("PGWF108", _THREAD),
        "multiprocessing": ("PGWF108", _THREAD),
    }
)
_OS_IO: Final = frozenset(
    ("listdir", "scandir", "walk", "stat", "remove", "unlink", "rename", "replace", "mkdir", "makedirs", "rmdir",
     "open", "popen", "kill")
)  # fmt: skip
_PATH_METHODS: Final = frozenset(
    ("read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "unlink", "mkdir", "rmdir", "touch", "exists",
     "is_file", "is_dir", "glob", "rglob")
)  # fmt: skip
_HARMLESS: Final = frozenset(
    ("random.Random", "logging.getLogger", "socket.inet_aton", "shutil.which", "subprocess.list2cmdline")
)  # fmt: skip


class Names:
    """Resolves names of one module to what they were imported as."""

    def __init__(self, tree: ast.Module, file: Path) -> None:
        self._imported = _imports(tree, file, set())

    def dotted(self, node: ast.expr) -> str | None:
        """The name an expression stands for, as `datetime.datetime.now`; None: it is no plain name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return ".".join([self._imported.get(node.id, node.id), *reversed(parts)])

    def of_pgwf(self, node: ast.expr, *names: str) -> bool:
        """Whether an expression stands for one of these names of pgwf_sdk."""
        dotted = self.dotted(node)
        return dotted is not None and dotted.startswith("pgwf_sdk.") and dotted.rpartition(".")[2] in names

    def misplaced(self, call: ast.Call) -> tuple[str, str] | None:
        """Rule and advice for a call that has no place in a workflow; None: it is harmless as far as one can tell."""
        dotted = self.dotted(call.func)
        if dotted is None or dotted in _HARMLESS:
            return self._path_method(call.func)
        if dotted in _CALLS and (dotted not in ("open", "input", "print") or isinstance(call.func, ast.Name)):
            return _CALLS[dotted]
        module, _, name = dotted.rpartition(".")
        if module == "time" and name in _TIME:
            return "PGWF101", _CLOCK
        if module == "os" and name in _OS_IO:
            return "PGWF103", _IO
        if dotted.startswith("os.environ."):
            return "PGWF104", _ENVIRONMENT
        while module:
            if module in _MODULES:
                return _MODULES[module]
            module = module.rpartition(".")[0]
        return self._path_method(call.func)

    def _path_method(self, function: ast.expr) -> tuple[str, str] | None:
        """A method that only paths have, on something that is called a path or made by Path(…)."""
        if not isinstance(function, ast.Attribute) or function.attr not in _PATH_METHODS:
            return None
        owner = function.value
        text = ast.unparse(owner).lower()
        return ("PGWF103", _IO) if "path" in text or function.attr.startswith(("read_", "write_")) else None


def _imports(tree: ast.Module, file: Path, seen: set[Path]) -> dict[str, str]:
    """What the names that a module imports stand for. Names it has of its neighbours are followed to their origin."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                imported[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            offered = _offered(node, file, seen)
            for alias in node.names:
                if alias.name == "*":
                    imported |= {name: origin for name, origin in offered.items() if not name.startswith("_")}
                elif alias.name in offered or not node.level:
                    imported[alias.asname or alias.name] = offered.get(alias.name, f"{node.module}.{alias.name}")
    return imported


def _offered(node: ast.ImportFrom, file: Path, seen: set[Path]) -> dict[str, str]:
    """What the module that is imported from has imported itself; nothing, if it is no neighbour of the file."""
    if node.module == "pgwf_sdk" and not node.level:
        return {name: f"pgwf_sdk.{name}" for name in pgwf_sdk.__all__}
    neighbour = _neighbour(node, file)
    if neighbour is None or neighbour in seen:
        return {}
    try:
        tree = ast.parse(neighbour.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    own = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    found = _imports(tree, neighbour, seen | {neighbour})
    return {name: origin for name, origin in found.items() if name not in own}


def _neighbour(node: ast.ImportFrom, file: Path) -> Path | None:
    """The file of a module that stands in a folder of the importing file, or in one around it."""
    parts = (node.module or "").split(".") if node.module else []
    folders = file.absolute().parents
    for folder in folders[node.level - 1 : node.level] if node.level else folders:
        module = folder.joinpath(*parts)
        for candidate in (module.with_name(f"{module.name}.py"), module / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None
