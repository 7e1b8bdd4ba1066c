"""A run's journal in a file: recorded once, replayed by every later version of the code."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pgwf_journal import ENCODING_JSON, ENCODING_TAGGED_JSON, Entry, Kind, Phase
from pgwf_sdk._errors import RunNotFoundError
from pgwf_sdk.replay import Blocked, Cancelled, Completed, Failed, Outcome, RunInfo
from pgwf_sdk.testing import _statements
from pgwf_sdk.testing._differences import ReplayDifferenceError
from pgwf_sdk.testing._watch import difference, replay, said
from pgwf_sdk.worker._seals import opened_entries
from pgwf_sql.database import execute

if TYPE_CHECKING:
    from pgwf_sdk._definition import Workflow
    from pgwf_sdk._sealing import Sealing
    from pgwf_sdk.ops import LendsConnection

FORMAT: Final = 1
_READABLE: Final = (ENCODING_JSON, ENCODING_TAGGED_JSON)


class _Head(msgspec.Struct):
    format: int
    run_id: str
    workflow: str
    seed: int


class _Line(msgspec.Struct, omit_defaults=True):
    seq: int
    call: int
    kind: str
    phase: str
    scope: str
    name: str
    occurrence: int
    recorded_at: datetime
    encoding: int = 0
    payload: msgspec.Raw = msgspec.Raw(b"null")


_heads = msgspec.json.Decoder(_Head)
_lines = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class Recording:
    """The journal of a run, with what else a replay needs. Its file has a line for the run and one for each entry."""

    run_id: str
    workflow: str
    seed: int
    entries: Sequence[Entry]

    @classmethod
    def of(cls, client: LendsConnection, run_id: str) -> Recording:
        """Read the journal of a run, over or not, from any database; opened, if the client has the keys.

        RunNotFoundError: there is no such run. SealedError: a key is missing.
        """
        with client.connection() as connection:
            origin = execute(connection, _statements.origin(run_id))
            if origin is None:
                raise RunNotFoundError(f"no run {run_id!r}; `client.list()` shows which there are")
            entries: list[Entry] = []
            while page := execute(connection, _statements.history(run_id, len(entries))):
                entries += page
        sealing: Sealing | None = getattr(client, "sealing", None)
        if sealing is not None:
            entries = opened_entries(sealing, entries)
        return cls(run_id, origin[0], origin[1], tuple(entries))

    @classmethod
    def load(cls, path: Path | str) -> Recording:
        """Read a file that `save` wrote. ValueError: it is none, or of a later version."""
        first, *rest = Path(path).read_bytes().splitlines()
        head = _heads.decode(first)
        if head.format != FORMAT:
            raise ValueError(f"{path}: recorded in format {head.format}; expected {FORMAT}: upgrade pgwf")
        return cls(head.run_id, head.workflow, head.seed, tuple(_entry(_lines.decode(line)) for line in rest))

    def save(self, path: Path | str) -> None:
        """Write the file, over one that is there."""
        head = _Head(FORMAT, self.run_id, self.workflow, self.seed)
        lines = [msgspec.json.encode(head), *(msgspec.json.encode(_line(entry)) for entry in self.entries), b""]
        Path(path).write_bytes(b"\n".join(lines))

    def replay(self, workflow: Workflow[..., Any]) -> None:
        """Run this version of the workflow over the journal; nothing is executed or written.

        ReplayDifferenceError: it makes other calls than were recorded, or ends in another way.
        """
        info = RunInfo(self.run_id, self.workflow, self.seed, self.entries[0].recorded_at)
        end = self._end()
        _, outcome = replay(workflow, info, self.entries if end is None else self.entries[:-1])
        if isinstance(outcome, Blocked):
            raise difference(info, outcome)
        if end is not None and said(outcome) != said(end):
            raise ReplayDifferenceError(
                f"run {self.run_id}: the recorded run {said(end)}, this version of workflow {workflow.name!r}"
                f" {said(outcome)}; if that is meant, guard the change with ctx.patched, or record anew"
            )

    def _end(self) -> Outcome | None:
        """How the recorded run ended; None: it had not, or somebody ended it without its code."""
        last = self.entries[-1]
        if last.kind is not Kind.RUN:
            return None
        match last.phase:
            case Phase.COMPLETED:
                return Completed(last.payload, last.encoding)
            case Phase.FAILED:
                return Failed(last.payload or b"{}")
            case Phase.CANCELLED:
                return Cancelled(last.payload or b"{}")
            case _:
                return None


def _line(entry: Entry) -> _Line:
    payload = b"null" if entry.payload is None else entry.payload
    if entry.payload is not None and entry.encoding not in _READABLE:
        payload = msgspec.json.encode(base64.b64encode(entry.payload).decode())
    return _Line(
        entry.seq,
        entry.call,
        entry.kind.name.lower(),
        entry.phase.name.lower(),
        entry.scope,
        entry.name,
        entry.occurrence,
        entry.recorded_at,
        entry.encoding,
        msgspec.Raw(payload),
    )


def _entry(line: _Line) -> Entry:
    payload: bytes | None = bytes(line.payload)
    if not line.encoding:
        payload = None
    elif line.encoding not in _READABLE:
        payload = base64.b64decode(msgspec.json.decode(line.payload, type=str))
    return Entry(
        line.seq,
        line.call,
        Kind[line.kind.upper()],
        Phase[line.phase.upper()],
        line.scope,
        line.name,
        line.occurrence,
        payload,
        line.encoding,
        line.recorded_at,
        None,
    )
