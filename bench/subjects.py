"""Who is measured: pgwf always, peers when they are installed or their checkout is given."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module, metadata
from typing import TYPE_CHECKING

from bench.engines import pgwf as pgwf_engine
from bench.queues import pgmq, pgwf, upstream

if TYPE_CHECKING:
    from pathlib import Path

    from bench.engines._engine import EngineSystem
    from bench.queues._queue import QueueSystem

PACKAGES = {
    "absurd": "absurd-sdk",
    "dbos": "dbos",
    "oban": "oban",
    "pgqueuer": "pgqueuer",
    "procrastinate": "procrastinate",
}


@dataclass(frozen=True)
class Subjects:
    """The systems of a run."""

    queues: list[QueueSystem]
    engines: list[EngineSystem]
    """pgwf first."""
    peers: list[str]
    """Those of `PACKAGES` to measure."""

    @classmethod
    def chosen(cls, names: str, *, pgmq_path: Path | None, upstream_path: Path | None) -> Subjects:
        """`names` as on the command line. SystemExit: one is unknown, or not installed."""
        queues = pgwf.systems()
        if pgmq_path is not None:
            queues += pgmq.systems(pgmq_path)
        if upstream_path is not None:
            queues += upstream.systems(upstream_path)
        peers = _peers(names)
        engines = pgwf_engine.systems()
        for peer in peers:
            engines += import_module(f"bench.engines.{peer}").systems()
        return cls(queues, engines, peers)

    def two_call_queues(self) -> list[QueueSystem]:
        """Without the forms that complete and claim in one call."""
        return [system for system in self.queues if "one call" not in system.name]

    def versions(self) -> list[str]:
        """What was measured, by version."""
        packages = ["pgwf", "psycopg", *(PACKAGES[name] for name in self.peers)]
        return [f"{package} {metadata.version(package)}" for package in packages]


def _peers(names: str) -> list[str]:
    if names == "none":
        return []
    if names == "all":
        return [name for name, package in PACKAGES.items() if _is_installed(package)]
    chosen = names.split(",")
    for name in chosen:
        if name not in PACKAGES:
            raise SystemExit(f"bench: unknown peer {name!r}, expected some of {', '.join(PACKAGES)}")
        if not _is_installed(PACKAGES[name]):
            raise SystemExit(f"bench: {PACKAGES[name]} is not installed; requirements/bench.txt names its version")
    return chosen


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
