"""What is said last about a run: how it ended, and what it goes on as."""

import json
import logging

from msgspec import Struct

from pgwf_journal import ENCODING_JSON, Kind, NewEntry, Phase
from pgwf_sdk import _failure
from pgwf_sdk.replay import Blocked, Cancelled, Completed, Continued, Failed, Outcome, Suspended
from pgwf_sdk.worker._advance import Claim, Disposition

log = logging.getLogger("pgwf_sdk.worker")


class Ending(Struct, frozen=True):
    """The last item's disposition, its terminal entry (none for a blocked run), a successor's need, and a note."""

    disposition: Disposition
    entry: NewEntry | None = None
    need: str | None = None
    note: str | None = None


def ending_of(claim: Claim, outcome: Outcome) -> Ending:
    """How the run of `claim` ends with `outcome`; the log says so where a person may want to know."""

    def entry(phase: Phase, payload: bytes | None, encoding: int = ENCODING_JSON) -> NewEntry:
        return NewEntry(0, Kind.RUN, phase, "", claim.workflow, 1, payload, encoding)

    match outcome:
        case Blocked(report=report):
            log.error("run %s is blocked: %s", claim.run_id, report.get("text", report))
            return Ending("block", note=json.dumps(report, default=str))
        case Completed(payload=payload, encoding=encoding):
            return Ending("complete", entry(Phase.COMPLETED, payload, encoding))
        case Failed(payload=payload):
            log.warning("run %s failed: %s", claim.run_id, _failure.line_in(payload))
            return Ending("fail", entry(Phase.FAILED, payload))
        case Cancelled(payload=payload):
            return Ending("cancel", entry(Phase.CANCELLED, payload))
        case Continued(call=call, payload=payload):
            note = json.dumps({"workflow": call.workflow.name, "build": call.workflow.build})
            # Named after the successor's workflow, whose input it holds.
            last = NewEntry(0, Kind.RUN, Phase.CONTINUED, "", call.workflow.name, 1, payload, ENCODING_JSON)
            return Ending("continue", last, call.workflow.home, note)
        case Suspended():
            raise AssertionError("a suspended activation says nothing more")
