"""Steps in processes of their own: killed when nobody wants them, and a death of theirs is a failed attempt."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pgwf_sdk import (
    Context,
    DefinitionError,
    RetryPolicy,
    RunFailedError,
    StepProcessError,
    StepTimeoutError,
    current_step,
    step,
    workflow,
)
from tests.support import wait_until

if TYPE_CHECKING:
    from pgwf_sdk.embedded import EmbeddedServer
    from pgwf_sdk.testing import Environment

ONCE = RetryPolicy(max_attempts=1)


class CardDeclinedError(Exception):
    def __init__(self, card: str) -> None:
        super().__init__(card)
        self.card = card


@step(isolate="process")
def where(total: Decimal) -> tuple[int, Decimal]:
    print("not a message", flush=True)  # noqa: T201 - what a step prints must not disturb
    return os.getpid(), total


@step(isolate="process", retry=ONCE)
def decline(card: str) -> None:
    raise CardDeclinedError(card)


@step(isolate="process", retry=RetryPolicy(max_attempts=2, initial=timedelta(seconds=1)))
def doomed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@workflow
def run_doomed(ctx: Context) -> None:
    ctx.step(doomed)


@step(isolate="process", retry=RetryPolicy(max_attempts=2, initial=timedelta(seconds=1)))
def leaving() -> None:
    if current_step().attempt == 1:
        os._exit(0)
    ctypes.CDLL(None).exit(0)


@workflow
def run_leaving(ctx: Context) -> None:
    ctx.step(leaving)


@step(isolate="process", retry=RetryPolicy(max_attempts=2))
def suicidal(path: str) -> str:
    attempt = current_step()
    if attempt.attempt == 1:
        attempt.heartbeat({"pid": os.getpid()})
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{attempt.idempotency_key} {attempt.last_heartbeat is not None}"


@step(isolate="process", retry=ONCE, timeout=timedelta(seconds=3))
def endless(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)


@step(isolate="process", retry=ONCE)
def place() -> tuple[int, int]:
    return os.getpid(), os.getpgrp()


@workflow
def run_place(ctx: Context) -> tuple[int, int]:
    return ctx.step(place)


@step(isolate="process", retry=ONCE)
def told_to_stop() -> list[int]:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    # What it starts can be told to stop, as ever.
    return [os.getpid(), subprocess.run(["sh", "-c", "kill -TERM $$; echo still there"], check=False).returncode]


@workflow
def run_told_to_stop(ctx: Context) -> list[int]:
    return ctx.step(told_to_stop)


@step(isolate="process", retry=ONCE)
def unstorable() -> Any:
    return open(os.devnull)


@workflow
def run_where(ctx: Context) -> list[tuple[int, Decimal]]:
    return [ctx.step(where, Decimal("1.50")), ctx.step(where, Decimal(2))]


@workflow
def run_decline(ctx: Context) -> str:
    try:
        ctx.step(decline, "4111")
    except CardDeclinedError as error:
        return error.card
    return ""


@workflow
def run_suicidal(ctx: Context, path: str) -> str:
    return ctx.step(suicidal, path)


@workflow
def run_endless(ctx: Context, path: str) -> None:
    ctx.step(where, Decimal(1))  # The process is up, and its time is the step's own.
    ctx.step(endless, path)


@workflow
def run_unstorable(ctx: Context) -> None:
    ctx.step(unstorable)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_step_runs_in_a_process_of_its_own_which_is_used_again(env: Environment) -> None:
    (first, total), (second, _) = env.run(run_where())

    assert first == second != os.getpid()
    assert total == Decimal("1.50")


def test_its_exceptions_reach_the_workflow_with_their_class(env: Environment) -> None:
    assert env.run(run_decline()) == "4111"


def test_a_process_that_is_killed_is_a_failed_attempt_which_is_retried(env: Environment, tmp_path: Path) -> None:
    key, heard = env.run(run_suicidal(str(tmp_path))).split()

    assert len(key) == 36
    assert heard == "True"


def test_a_process_that_is_killed_in_the_last_attempt_is_the_error_the_workflow_sees(env: Environment) -> None:
    with pytest.raises(RunFailedError) as failed:
        env.run(run_doomed())

    error = failed.value.__cause__
    assert isinstance(error, StepProcessError)
    assert (error.step, error.exit_code) == ("doomed", -signal.SIGKILL)
    assert "the process of attempt 2 was killed by signal 9; what it did is unknown" in str(error)


def test_a_process_that_ends_itself_with_0_is_a_failed_attempt_too(env: Environment) -> None:
    with pytest.raises(RunFailedError) as failed:
        env.run(run_leaving())

    error = failed.value.__cause__
    assert isinstance(error, StepProcessError)
    assert error.exit_code == 0
    assert "the process of attempt 2 ended with code 0 before the step did; what it did is unknown" in str(error)


def test_a_step_that_does_not_end_is_killed_when_its_time_is_over(env: Environment, tmp_path: Path) -> None:
    with pytest.raises(RunFailedError) as failed:
        env.run(run_endless(str(tmp_path / "pid")))

    assert isinstance(failed.value.__cause__, StepTimeoutError)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_there(pid), "the process is gone")


def is_gone(pid: int) -> bool:
    return not is_there(pid)


def test_a_process_that_was_killed_while_it_waited_is_no_steps_failure(env: Environment) -> None:
    waiting, _ = env.run(run_place())
    for is_known in (True, False, False, False):
        os.kill(waiting, signal.SIGKILL)
        if is_known:
            wait_until(partial(is_gone, waiting), "the process is dead")

        next_one, _ = env.run(run_place())

        assert next_one not in (waiting, os.getpid())
        waiting = next_one


def test_signals_that_tell_a_worker_to_stop_reach_no_step(env: Environment) -> None:
    _, group = env.run(run_place())
    assert group != os.getpgrp()

    pid, code = env.run(run_told_to_stop())

    assert (is_there(pid), code) == (True, -signal.SIGTERM)


def test_a_result_that_cannot_be_stored_is_named(env: Environment) -> None:
    with pytest.raises(RunFailedError, match=r"result: .*TextIOWrapper"):
        env.run(run_unstorable())


def test_what_cannot_be_found_from_another_process_is_refused_where_it_is_defined() -> None:
    def local() -> None: ...

    for fn in (local, lambda: None):
        with pytest.raises(DefinitionError, match="a function at the top of a module"):
            step(isolate="process", name="local")(fn)
        with pytest.raises(DefinitionError, match="a function at the top of a module"):
            step(name="local")(fn).options(isolate="process")
    with pytest.raises(DefinitionError, match=r"isolate is 'thread'; expected \"process\""):
        step(isolate="thread")(len)  # type: ignore[call-overload]


def test_processes_end_with_a_worker_that_is_killed(server: EmbeddedServer, tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import os, time
        from pathlib import Path
        from pgwf_sdk import Context, step, workflow
        from pgwf_sdk.testing import Environment

        @step(isolate="process")
        def endless() -> None:
            Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
            time.sleep(600)

        @workflow
        def run_endless(ctx: Context) -> None:
            ctx.step(endless)

        if __name__ == "__main__":
            with Environment({server.dsn!r}) as env:
                env.run(run_endless())
    """)
    (tmp_path / "program.py").write_text(program)
    with subprocess.Popen([sys.executable, str(tmp_path / "program.py")]) as worker:
        pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "it runs"))
        assert is_there(pid)

        worker.kill()

    wait_until(lambda: not is_there(pid), "the process is gone")
