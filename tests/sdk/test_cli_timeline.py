"""The drawn timeline, compared with text as a person sees it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from pgwf_sdk import ops
from pgwf_sdk.cli._text import cells_of
from pgwf_sdk.cli.timeline import WIDTH_MIN, render_timeline
from tests.sdk.story import Story, a_run, at, audit, refund


def drawn(story: Story, *, width: int = 100, ascii_only: bool = False, asked: float = 1e6) -> str:
    return render_timeline(ops.build_timeline(story.facts(asked=asked)), width=width, ascii_only=ascii_only)


def golden(text: str) -> str:
    """A golden text without the indentation it has here."""
    return dedent(text).strip("\n")


def test_a_run_that_waits_for_people_shows_its_work_because_idle_gaps_are_folded() -> None:
    assert drawn(refund()) == golden(
        """
                          0          ≈18h  ≈8h      ≈1h  1d 3h
        refund-42        │───────────≈─────≈────────≈─────────│ completed after 1d 3h
          python-1       │━       ▚  ≈     ≈        ≈  ▚━━━━━━│ 3 leases, replayed 7 entries
          gpu-1          │     ▚━━   ≈     ≈        ≈         │ replayed 1 entry
          python-2       │           ≈  ▚  ≈  ▚━━   ≈         │ lost its lease, 2 leases, replayed 9 entries
          load_order     │█          ≈     ≈        ≈         │ 400 ms
          fraud_score    │     ███   ≈     ≈        ≈         │ 6.0 s
          human risk     │        ▓▓▓≈▓▓   ≈        ≈         │ bob decided after 18h 9m
          human legal    │        ▓▓▓≈▓▓▓▓▓≈▓▓▓     ≈         │ carol decided after 1d 1h
          pay_out        │           ≈     ≈  ▒▒▒   ≈  ███    │ 5.0 s, cut off before
          email_customer │           ≈     ≈        ≈     ████│ 7.0 s
        ━ leased  ▚ taken over, replayed  █ step  ▒ failed  ▓ person  ≈ 3 idle gaps folded (1d 2h)
        """
    )


def test_ascii_is_enough_for_everything_a_timeline_says() -> None:
    text = drawn(refund(), width=80, ascii_only=True)

    assert text == golden(
        """
                          0       ^18h ^8h  1h^  1d 3h
        refund-42        |--------^----^------^-------| completed after 1d 3h
          python-1       |=     / ^    ^      ^ /=====| 3 leases, replayed 7 entries
          gpu-1          |   /=== ^    ^      ^       | replayed 1 entry
          python-2       |        ^  / ^ /==  ^       | lost its lease, 2 leases, repla~
          load_order     |#       ^    ^      ^       | 400 ms
          fraud_score    |   #### ^    ^      ^       | 6.0 s
          human risk     |      @@^@@  ^      ^       | bob decided after 18h 9m
          human legal    |      @@^@@@@^@@    ^       | carol decided after 1d 1h
          pay_out        |        ^    ^ xxx  ^ ###   | 5.0 s, cut off before
          email_customer |        ^    ^      ^   ####| 7.0 s
        = leased  / taken over, replayed  # step  x failed  @ person
        ^ 3 idle gaps folded (1d 2h)
        """
    )
    assert text.isascii()


def test_sixty_equal_children_are_one_row_and_the_slowest_stand_apart() -> None:
    assert drawn(audit()) == golden(
        """
                                  0                                   12.1 s
        audit                    │──────────────────────────────────────────│ completed after 12.1 s
          w-1                    │━━━━━━━━━━                                │ lost its lease
          w-2                    │                    ▚                   ▚━│ 2 leases, replayed 222 entries
          discover               │██                                        │ 500 ms
          map                    │  ─────────────────────────────────────── │ 60 branches, 11.0 s
            child audit_one × 57 │  ▆▆█▃▆█▆█▆▆▆▆█▆█▆▆▆▆█▆▆█▆█               │ p50 100 ms, max 100 ms
            [7] child audit_one  │     ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄                │ 6.1 s
            [22] child audit_one │           ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄         │ 6.1 s
            [41] child audit_one │                   ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄ │ 6.1 s
          write_report           │                                        ██│ 290 ms
        ━ leased  ▚ taken over, replayed  █ step  ▄ child run  ▄ several at once
        """  # noqa: RUF001
    )


def test_a_living_run_shows_what_it_waits_for_and_its_failed_attempts() -> None:
    story = Story(status="waiting", end=None, available_at=at(3600))
    story.entry(1, "step", "charge")
    story.entry(1.2, "timer", "", "opened")
    story.entry(1.2, "signal", "delivered", "opened")
    story.lease(1, "w-1", 0, 1.3, "reschedule_job")
    story.attempts = [
        ops.Attempt(
            key="/step:notify#1",
            number=3,
            first_at=at(4),
            next_at=at(130),
            error='{"type":"builtins:TimeoutError","message":"no answer"}',
        )
    ]

    assert drawn(story, asked=100, width=108) == golden(
        """
                            0                               1m 40s
        order-17           │───────────────────────────────────≈──│ waiting, since 1m 40s
          w-1              │━━━━━━━━━━                         ≈  │
          charge           │████████                           ≈  │ 1.0 s
          sleep            │         ░░░░░░░░░░░░░░░░░░░░░░░░░░≈░░│ fires in 58m 20s
          signal delivered │         ··························≈··│ since 1m 39s
          notify           │                                ▒··≈··│ 3 failed attempts, next in 30.0 s: TimeoutError…
        ━ leased  █ step  ▒ failed  · waiting  ░ timer  ≈ 1 idle gap folded (1m 36s)
        """
    )


@pytest.mark.parametrize("width", [1, 40, 44, 60, 80, 100, 132, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, ascii_only: bool) -> None:
    for story in (refund(), audit(), Story(end=0)):
        lines = drawn(story, width=width, ascii_only=ascii_only).splitlines()

        assert max(cells_of(line) for line in lines) <= max(width, WIDTH_MIN)


def test_every_bar_has_the_same_length() -> None:
    lines = [line for line in drawn(audit(), width=132).splitlines() if line.count("│") == 2]

    assert len({(line.index("│"), line.rindex("│")) for line in lines}) == 1


def test_names_cannot_drive_the_terminal() -> None:
    story = Story(run_id="\x1b]0;pwned\x07", end=2)
    story.entry(1, "step", "a\x1b[31mred\u202eevil")

    text = drawn(story, width=120)

    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert r"a\x1b[31mred\u202eevil" in text


def test_wide_characters_keep_the_columns_straight() -> None:
    story = Story(end=2)
    story.entry(1, "step", "支払い処理を実行する")
    story.entry(2, "step", "pay")

    lines = [line for line in drawn(story, width=80).splitlines() if line.count("│") == 2]

    assert len({cells_of(line[: line.index("│")]) for line in lines}) == 1


def test_colours_only_surround_what_is_drawn_without_them() -> None:
    timeline = ops.build_timeline(refund().facts())

    plain = render_timeline(timeline, width=100)
    coloured = render_timeline(timeline, width=100, colour=True)

    assert "\x1b[32m" in coloured
    for code in ("0", "2", "31", "32", "33", "34", "35", "36"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert [line.rstrip() for line in coloured.splitlines()] == plain.splitlines()


def test_a_run_without_any_time_or_entry_can_be_drawn() -> None:
    story = Story(end=0)

    assert drawn(story, width=60).splitlines()[1].startswith("order-17 │─")


def test_more_rows_than_a_person_reads_are_counted_not_drawn() -> None:
    story = Story(end=1000)
    for number in range(400):
        story.entry(number + 1, "step", f"step_{number}")

    text = drawn(story)

    assert len(text.splitlines()) < 310
    assert "101 more rows not drawn" in text


def test_a_child_that_failed_is_not_folded_with_those_that_completed() -> None:
    story = Story(end=30)
    for index in range(10):
        scope = f"/branch:map#1[{index}]"
        story.entry(1, "child", "audit_one", "opened", scope=scope)
        story.children.append(a_run(f"c{index}", start=1, end=3, parent_key=f"{scope}/child:audit_one#1"))
    for index in range(10):
        phase = "failed" if index == 4 else "completed"
        story.entry(3, "child", "audit_one", phase, scope=f"/branch:map#1[{index}]")

    lines = drawn(story).splitlines()

    assert sum("audit_one \N{MULTIPLICATION SIGN} 9" in line for line in lines) == 1
    assert sum("[4] child audit_one" in line and "failed after 2.0 s" in line for line in lines) == 1


def test_what_was_cancelled_is_not_drawn_as_failed() -> None:
    story = Story(status="cancelled", end=60)
    story.lease(1, "w-1", 0, 60, "complete_job")
    story.entry(30, "cancel", "cancel", lease_no=1)
    story.entry(40, "step", "load", phase="cancelled", lease_no=1)

    lines = drawn(story, width=80).splitlines()

    (row,) = (line for line in lines if "load" in line)
    assert row.endswith("cancelled after 10.0 s")
    assert ("▧" in row, "▒" in row) == (True, False)
    assert lines[-1] == "━ leased  ▧ cancelled"
    assert drawn(story, width=80, ascii_only=True).splitlines()[-1] == "= leased  % cancelled"


def test_a_step_that_was_cut_off_again_and_again_is_no_idle_gap() -> None:
    """An hour's work that two workers lost is work, however little of it is in the journal."""
    story = Story()
    story.entry(1, "step", "load", lease_no=1)
    story.lease(1, "w-1", 0, 1800, "lease_lapsed")
    story.lease(2, "w-2", 1800, 3600, "lease_lapsed")
    story.entry(3660, "step", "crunch", lease_no=3)
    story.lease(3, "w-3", 3600, 3661, "complete_job")

    text = drawn(story, width=80)

    assert "≈" not in text
    (row,) = (line for line in text.splitlines() if "crunch" in line)
    assert row.count("▒") == 35
    assert row.endswith("1m 0s, cut off before")


def test_a_step_that_runs_for_the_first_time_is_no_idle_gap() -> None:
    story = Story(status="running", end=None)
    story.entry(1, "step", "load", lease_no=1)
    story.lease(1, "w-1", 0, None, None)

    assert "≈" not in drawn(story, asked=3600)


@pytest.mark.parametrize("kind", ["step", "compensation"])
def test_a_step_that_was_recorded_before_it_began_is_drawn_as_running_while_it_runs(kind: str) -> None:
    story = Story(status="running", end=None)
    story.entry(10, kind, "charge", "opened", lease_no=1)
    story.lease(1, "w-1", 0, None, None)

    lines = drawn(story, asked=20, width=80).splitlines()

    (row,) = (line for line in lines if "charge" in line)
    assert "█" in row
    assert row.endswith("since 10.0 s")
    assert lines[-1] == "━ leased  █ step"


def test_a_step_that_was_begun_is_drawn_as_failed_where_a_lost_lease_cut_it_off() -> None:
    story = Story(status="running", end=None)
    story.entry(10, "compensation", "refund", "opened", lease_no=1)
    story.lease(1, "w-1", 0, 20, "lease_lapsed")

    between = drawn(story, asked=40, width=80)
    story.lease(2, "w-2", 30, None, None)
    again = drawn(story, asked=40, width=80)

    ((left,), (taken,)) = ([line for line in text.splitlines() if "refund" in line] for text in (between, again))
    assert ("▒" in left, "█" in left) == (True, False)
    assert taken.index("▒") < taken.index("█")


def test_a_note_is_whole_where_the_terminal_has_room() -> None:
    story = Story(end=60)
    for number in range(150):
        story.entry(number / 10, "value", "now", occurrence=number + 1)
    story.lease(1, "w-1", 0, 16, "lease_lapsed")
    story.lease(2, "w-2", 20, 60, "complete_job")

    for width in (60, 80, 100):
        assert any(line.endswith("replayed 150 entries") for line in drawn(story, width=width).splitlines()), width


def test_what_runs_for_the_first_time_has_a_row_while_nothing_else_is_open() -> None:
    story = Story(status="running", end=None)
    story.entry(2, "step", "load_order")
    story.lease(1, "w-1", 0, None, None)

    assert drawn(story, asked=8, width=90) == golden(
        """
                      0                                       8.0 s
        order-17     │─────────────────────────────────────────────│ running, since 8.0 s
          w-1        │━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━│ holds it now
          load_order │███████████                                  │ 2.0 s
          running    │           ██████████████████████████████████│ since 6.0 s, not recorded yet
        ━ leased  █ step
        """
    )
    story.entry(3, "signal", "delivered", "opened")
    assert "running " not in drawn(story, asked=8).partition("w-1")[2]


@pytest.mark.parametrize("status", ["ready", "waiting", "completed"])
def test_nothing_runs_while_no_worker_has_the_run(status: str) -> None:
    story = Story(status=status, end=60 if status == "completed" else None)
    story.entry(2, "step", "load_order")
    story.lease(1, "w-1", 0, 3, "reschedule_job")

    assert not any(row.kind == "running" for row in ops.build_timeline(story.facts(asked=60)).rows)


def test_a_step_that_says_that_it_is_alive_is_drawn_by_its_name() -> None:
    story = Story(status="running", end=None)
    story.entry(2, "step", "load_order")
    story.lease(1, "w-1", 0, None, None)
    story.attempts = [ops.Attempt(key="/step:train#1", number=0, first_at=at(4), next_at=at(9), error=None)]

    running = drawn(story, asked=10)
    story.run["status"], story.activations[0] = (
        "ready",
        ops.Activation(lease_no=1, worker_id="w-1", started_at=at(0), ended_at=at(9), ended_by="lease_lapsed"),
    )
    cut_off = drawn(story, asked=10)

    (row,) = (line for line in running.splitlines() if "train" in line)
    assert row.endswith("│ since 8.0 s")
    assert "█" in row
    assert "not recorded yet" not in running
    (row,) = (line for line in cut_off.splitlines() if "train" in line)
    assert row.endswith("│ cut off, runs again")
    assert "█" not in row


def test_a_step_that_is_tried_again_now_is_drawn_as_running() -> None:
    story = Story(status="running", end=None)
    story.lease(1, "w-1", 0, None, None)
    story.attempts = [
        ops.Attempt(
            key="/step:notify#1",
            number=2,
            first_at=at(4),
            next_at=at(9),
            error='{"type":"builtins:TimeoutError","message":"no answer"}',
        )
    ]

    (row,) = (line for line in drawn(story, asked=12, width=120).splitlines() if "notify" in line)

    assert row.index("▒") < row.index("·") < row.index("█")
    assert "│ 2 failed attempts, runs again since 3.0 s: Time" in row


def test_a_hop_is_drawn_until_a_worker_of_the_new_home_has_the_run() -> None:
    story = Story(end=20)
    story.entry(1, "step", "load_order")
    story.entry(1, "hop", "gpu", lease_no=1)
    story.entry(15, "step", "train", lease_no=2)
    story.entry(15, "hop", "gpu", occurrence=2, lease_no=2)
    story.lease(1, "w-1", 0, 1, "reschedule_job")
    story.lease(2, "gpu-1", 10, 20, "complete_job")

    assert drawn(story, width=90) == golden(
        """
                        0                                           20.0 s
        order-17       │──────────────────────────────────────────────────│ completed after 20.0 s
          w-1          │━━                                                │
          gpu-1        │                         ▚━━━━━━━━━━━━━━━━━━━━━━━━│ replayed 2 entries
          load_order   │██                                                │ 1.0 s
          hop to gpu   │  ·······················                         │ taken after 9.0 s
          train        │                         █████████████            │ 5.0 s
          hop to gpu#2 │                                     ·            │
        ━ leased  ▚ taken over, replayed  █ step  · waiting
        """
    )


def test_a_hop_to_where_no_worker_is_says_since_when() -> None:
    story = Story(status="ready", end=None)
    story.entry(1, "hop", "gpu", lease_no=1)
    story.lease(1, "w-1", 0, 1, "reschedule_job")

    (row,) = (line for line in drawn(story, asked=61).splitlines() if "hop to gpu" in line)

    assert row.endswith("│ since 1m 0s")


def test_a_step_at_the_exit_is_no_undoing() -> None:
    story = Story(status="failed", end=10)
    story.entry(2, "step", "book")
    story.entry(4, "compensation", "cancel_booking", "opened", payload='{"undoes": "/step:book#1"}')
    story.entry(5, "compensation", "cancel_booking")
    story.entry(7, "compensation", "notify")

    labels = [row.label for row in ops.build_timeline(story.facts(asked=10)).rows if row.kind == "compensation"]

    assert labels == ["undo cancel_booking", "at exit notify"]


def test_the_ruler_of_a_retry_is_as_long_as_what_is_drawn() -> None:
    """Its journal begins with calls of the run before it."""
    story = Story(run_id="order-17~2", start=100, end=110)
    story.entry(10, "step", "charge")
    story.entry(105, "step", "ship")

    ruler, run, *_ = drawn(story).splitlines()

    assert ruler.endswith(" 1m 40s")
    assert run.endswith("completed after 10.0 s")
