"""A run's journal in a file: recorded once, replayed by every later version of the code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgwf_journal import Entry, Phase
from pgwf_sdk import ops
from pgwf_sdk._kinds import check_kind, check_text
from pgwf_sdk._misuse import check_sealing, check_workflow
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
        check_text(run_id, used="Recording.of(…, run_id)", such_as="order-17")
        return cls(ops.recorded_run(client, run_id))

    @classmethod
    def load(cls, path: Path | str, *, sealing: Sealing | None = None) -> Recording:
        """Read a file that `save` or `pgwf export` wrote; `sealing` opens what was exported without its key.

        UndecodableError: it is no such file. SealedError: `sealing` lacks the key.
        """
        check_sealing(sealing, used="Recording.load(sealing=…)")
        check_kind(path, (str, PathLike), used="Recording.load(path)", expected="the path of a file")
        recorded = RecordedRun.from_json(Path(path).read_bytes())
        return cls(recorded if sealing is None else recorded.opened(sealing))

    @property
    def entries(self) -> Sequence[Entry]:
        """The journal, in order."""
        return self.recorded.entries

    def save(self, path: Path | str) -> None:
        """Write the file, over one that is there."""
        check_kind(path, (str, PathLike), used="recording.save(path)", expected="the path of a file")
        Path(path).write_bytes(self.recorded.to_json())

    def replay(self, workflow: Workflow[..., Any]) -> None:
        """Run this version of the workflow over the journal; nothing is executed or written.

        ValueError: it is not the workflow that was recorded. ReplayDifferenceError: it makes other calls than were
        recorded, or ends in another way. SealedError: the journal was read or exported without its key.
        """
        check_workflow(workflow, used="recording.replay")
        info = self.recorded.info
        if workflow.name != info.workflow:
            raise ValueError(
                f"recording.replay: found the workflow {workflow.name}; expected {info.workflow}, which run"
                f" {info.run_id} is of"
            )
        self.recorded.check_readable()
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
