"""Replaying what was recorded elsewhere, to see whether code follows it: nothing is executed, recorded or said."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct

from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk import _failure, _places
from pgwf_sdk._errors import Suspend, UndecodableError
from pgwf_sdk._sealing import SEALED, unopened
from pgwf_sdk.replay._async import AsyncActivation
from pgwf_sdk.replay._commands import Command, Failed, Outcome, RunInfo, Suspended
from pgwf_sdk.replay._report import Source
from pgwf_sdk.replay._sync import SyncActivation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgwf_sdk._definition import Workflow
    from pgwf_sdk._sealing import Sealing

__all__ = ["RecordedRun", "Trial", "try_replay"]

SCHEMA: Final = "pgwf.journal/1"


class RecordedRun(Struct, frozen=True, kw_only=True):
    """A run and its whole journal as values. `sources` has the places in the code by the entries' seq, where known."""

    run_id: str
    workflow: str
    seed: int
    entries: tuple[Entry, ...]
    sources: dict[int, Source] = {}

    @property
    def info(self) -> RunInfo:
        """What a replay needs to know of the run."""
        started_at = self.entries[0].recorded_at
        return RunInfo(self.run_id, self.workflow, self.seed, started_at, is_trial=True)

    @property
    def ending(self) -> Entry | None:
        """The entry that ended the run; None while it goes on."""
        last = self.entries[-1]
        return last if last.kind is Kind.RUN and last.phase is not Phase.OPENED else None

    def check_readable(self) -> None:
        """SealedError: an entry is sealed, so that code cannot be tried on the journal."""
        for entry in self.entries:
            if entry.encoding == SEALED:
                subject = f"run {self.run_id}: entry {entry.seq} {entry.key} was read without its key"
                raise unopened(entry.payload or b"", subject)

    def opened(self, sealing: Sealing) -> RecordedRun:
        """The run with its payloads in clear. SealedError: one cannot be opened."""
        entries = tuple(_places.opened_entry(sealing, entry) for entry in self.entries)
        return msgspec.structs.replace(self, entries=entries)

    def to_json(self) -> bytes:
        """The journal as a JSON document of the form `pgwf.journal/1`, payloads as they were recorded."""
        head = {
            "schema": SCHEMA,
            "run_id": self.run_id,
            "workflow": self.workflow,
            "seed": self.seed,
        }
        lines = [_line_of(entry, self.sources.get(entry.seq)) for entry in self.entries]
        # An entry a line, and nothing reformatted: payloads are kept byte for byte.
        body = b",\n".join(map(msgspec.json.encode, lines))
        return msgspec.json.encode(head)[:-1] + b',\n"entries":[\n' + body + b"\n]}\n"

    @classmethod
    def from_json(cls, document: bytes) -> RecordedRun:
        """The run of such a document. UndecodableError: it is none, or its entries do not count from 1."""
        try:
            exported = msgspec.json.decode(document, type=_Exported)
        except msgspec.MsgspecError as error:
            raise UndecodableError(f"no exported journal: {error}; expected what `pgwf export` writes") from error
        found = [line.seq for line in exported.entries]
        if exported.schema != SCHEMA or found != list(range(1, len(found) + 1)) or not found:
            raise UndecodableError(
                f"no exported journal: schema {exported.schema!r} with {len(found)} entries; expected {SCHEMA!r} with"
                " entries numbered from 1"
            )
        return cls(
            run_id=exported.run_id,
            workflow=exported.workflow,
            seed=exported.seed,
            entries=tuple(_entry_of(line) for line in exported.entries),
            sources={line.seq: Source(line.build or "", *line.code) for line in exported.entries if line.code},
        )


class Trial(Struct, frozen=True):
    """How far the code comes with a journal: how it ended, or what it would ask for next (Suspended)."""

    outcome: Outcome
    commands: tuple[Command, ...] = ()


def try_replay(workflow: Workflow[..., Any], run: RunInfo, history: Sequence[Entry]) -> Trial:
    """Replay a journal as far as it goes. Steps and side effects beyond its end are not executed."""
    asked: list[Command] = []
    if workflow.is_async:
        activation = AsyncActivation(workflow, run, history)
        try:
            asked += activation.start()
        except SystemExit as error:
            return Trial(Failed(_failure.describe(error)))
        finally:
            activation.close()
        return Trial(activation.outcome or Suspended(), tuple(asked))

    def stop(commands: list[Command]) -> Sequence[Entry]:
        asked.extend(commands)
        raise Suspend

    try:
        outcome = SyncActivation(workflow, run, history).run(stop)
    except SystemExit as error:  # In a worker it fails the run; here it must not end who asks.
        outcome = Failed(_failure.describe(error))
    return Trial(outcome, tuple(asked))


class _Line(Struct, omit_defaults=True):
    seq: int
    key: str
    phase: str
    kind: str
    name: str
    recorded_at: datetime
    call: int = 0
    scope: str = ""
    occurrence: int = 1
    encoding: int = 0
    payload: Raw | msgspec.UnsetType = msgspec.UNSET
    lease_no: int | None = None
    code: tuple[str, int] | None = None
    build: str | None = None


class _Exported(Struct):
    schema: str
    run_id: str
    workflow: str
    seed: int
    entries: list[_Line]


def _line_of(entry: Entry, source: Source | None) -> _Line:
    return _Line(
        seq=entry.seq,
        key=entry.key,
        phase=entry.phase.label,
        kind=entry.kind.label,
        name=entry.name,
        recorded_at=entry.recorded_at,
        call=entry.call,
        scope=entry.scope,
        occurrence=entry.occurrence,
        encoding=entry.encoding,
        payload=msgspec.UNSET if entry.payload is None else Raw(entry.payload),
        lease_no=entry.lease_no,
        code=None if source is None else (source.file, source.line),
        build=None if source is None else source.build or None,
    )


def _entry_of(line: _Line) -> Entry:
    return Entry(
        line.seq,
        line.call,
        _KINDS[line.kind],
        _PHASES[line.phase],
        line.scope,
        line.name,
        line.occurrence,
        None if line.payload is msgspec.UNSET else bytes(line.payload),
        line.encoding,
        line.recorded_at,
        line.lease_no,
    )


_KINDS: Final = {kind.label: kind for kind in Kind}
_PHASES: Final = {phase.label: phase for phase in Phase}
