"""A run's journal in a file: recorded once, replayed by every later version of the code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgwf_journal import Entry, Phase
from pgwf_sdk import ops
from pgwf_sdk.replay import Blocked, Cancelled, Completed, Failed, Outcome, RecordedRun
from pgwf_sdk.testing._differences import ReplayDifferenceError
from pgwf_sdk.testing._watch import difference, replay, said

if TYPE_CHECKING:
    from pgwf_sdk._definition import Workflow
    from pgwf_sdk._sealing import Sealing
    from pgwf_sdk.ops import LendsConnection


@dataclass(frozen=True, slots=True)
class Recording:
    """The journal of a run, with what else a replay needs. Its file is what `pgwf export` writes."""

    recorded: RecordedRun

    @classmethod
    def of(cls, client: LendsConnection, run_id: str) -> Recording:
        """Read the journal of a run, over or not, from any database. RunNotFoundError: there is no such run."""
        return cls(ops.recorded_run(client, run_id))

    @classmethod
    def load(cls, path: Path | str, *, sealing: Sealing | None = None) -> Recording:
        """Read a file that `save` or `pgwf export` wrote; `sealing` opens what was exported without its key.

        UndecodableError: it is no such file. SealedError: `sealing` lacks the key.
        """
        recorded = RecordedRun.from_json(Path(path).read_bytes())
        return cls(recorded if sealing is None else recorded.opened(sealing))

    @property
    def entries(self) -> Sequence[Entry]:
        """The journal, in order."""
        return self.recorded.entries

    def save(self, path: Path | str) -> None:
        """Write the file, over one that is there."""
        Path(path).write_bytes(self.recorded.to_json())

    def replay(self, workflow: Workflow[..., Any]) -> None:
        """Run this version of the workflow over the journal; nothing is executed or written.

        ReplayDifferenceError: it makes other calls than were recorded, or ends in another way. SealedError: the journal
        was read or exported without its key.
        """
        self.recorded.check_readable()
        info = self.recorded.info
        end = self._end()
        _, outcome = replay(workflow, info, self.entries)
        if isinstance(outcome, Blocked):
            raise difference(info, outcome)
        if end is not None and said(outcome) != said(end):
            raise ReplayDifferenceError(
                f"run {info.run_id}: the recorded run {said(end)}, this version of workflow {workflow.name!r}"
                f" {said(outcome)}; if that is meant, guard the change with ctx.patched, or record anew"
            )

    def _end(self) -> Outcome | None:
        """How the recorded run ended; None: it had not, or somebody ended it without its code."""
        last = self.recorded.ending
        if last is None:
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
