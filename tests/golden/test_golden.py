"""Journals that earlier versions recorded mean what they meant: the present code follows each to its end and goes on.

A failure here is a change of meaning: live runs of users would be blocked, or go on differently. Bring the old meaning
back for runs that were recorded with it (a patch named sdk:…), and record a new journal for the new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pgwf_journal import Phase
from pgwf_sdk.replay import (
    Abandon,
    Blocked,
    Cancelled,
    Completed,
    Continued,
    Failed,
    RecordedRun,
    Suspended,
    seqs_of,
    try_replay,
)
from tests.golden.programs import WORKFLOWS

JOURNALS = sorted((Path(__file__).parent / "journals").glob("*.json"))
BY_NAME = {workflow.name: workflow for workflow in WORKFLOWS}


def recorded(file: Path) -> RecordedRun:
    return RecordedRun.from_json(file.read_bytes())


def test_there_is_a_journal_of_every_workflow() -> None:
    assert {recorded(file).workflow for file in JOURNALS} == set(BY_NAME)


@pytest.mark.parametrize("file", JOURNALS, ids=lambda file: file.stem)
def test_a_recorded_journal_leads_to_the_recorded_end_and_asks_for_nothing(file: Path) -> None:
    run = recorded(file)

    trial = try_replay(BY_NAME[run.workflow], run.info, run.entries)

    ending = run.ending
    assert ending is not None
    match trial.outcome:
        case Completed(payload, encoding):
            assert (ending.phase, ending.payload, ending.encoding) == (Phase.COMPLETED, payload, encoding)
        case Failed(payload):
            assert (ending.phase, told(ending.payload)) == (Phase.FAILED, told(payload))
        case Cancelled(payload):
            assert (ending.phase, told(ending.payload)) == (Phase.CANCELLED, told(payload))
        case Continued(payload=payload):
            assert (ending.phase, ending.payload) == (Phase.CONTINUED, payload)
        case outcome:
            raise AssertionError(outcome)
    assert [command for command in trial.commands if not isinstance(command, Abandon)] == []


@pytest.mark.parametrize("file", JOURNALS, ids=lambda file: file.stem)
def test_a_recorded_journal_cut_off_anywhere_asks_for_what_was_recorded_next(file: Path) -> None:
    run = recorded(file)
    for cut in range(1, len(run.entries) - 1):
        trial = try_replay(BY_NAME[run.workflow], run.info, run.entries[:cut])

        following = run.entries[cut]
        known = {(entry.scope, entry.call) for entry in run.entries[:cut]}
        assert isinstance(trial.outcome, Suspended), (cut, trial.outcome)
        asked = {command.id.key for command in trial.commands}
        is_new = (following.scope, following.call) not in known
        if following.call and (is_new or following.phase.is_resolving):
            assert following.key in asked, (cut, asked)


def told(payload: bytes | None) -> tuple[Any, Any]:
    """Class and message of an error envelope; its traceback has lines of whoever raised it."""
    envelope = msgspec.json.decode(payload or b"{}")
    return envelope["type"], envelope["message"]


def test_a_changed_meaning_is_found() -> None:
    """The test above would be worth little if it passed whatever the journal says."""
    run = recorded(Path(__file__).parent / "journals" / "golden.steps.json")

    trial = try_replay(BY_NAME["golden.values"], run.info, run.entries)

    assert isinstance(trial.outcome, Blocked)
    assert trial.outcome.report["expected"]["key"] == "/step:pack#1"
    assert set(seqs_of(trial.outcome.report)) <= run.sources.keys()


def test_a_journal_survives_its_document_entry_for_entry() -> None:
    for file in JOURNALS:
        run = recorded(file)
        assert RecordedRun.from_json(run.to_json()) == run
        assert run.to_json() == file.read_bytes()
