"""What is refused with the words of the call that should have been made."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import pgwf_sdk
from pgwf_sdk import (
    AsyncClient,
    Client,
    Context,
    DefinitionError,
    InvalidArgumentError,
    RetryAfter,
    RetryPolicy,
    RunNotFoundError,
    Sealing,
    Worker,
    ops,
    step,
    workflow,
)
from pgwf_sdk._kinds import described
from pgwf_sdk._wording import limit_words
from pgwf_sdk.worker import JournalLimits

if TYPE_CHECKING:
    from collections.abc import Callable

NOWHERE = "postgresql://nobody@nowhere/none"
"""What is refused is refused before a database is asked: this one is never found."""
NOON = datetime(2031, 2, 3, 12, tzinfo=UTC)
NAIVE = datetime(2031, 2, 3, 12)  # noqa: DTZ001 - it is what is refused
KEY = os.urandom(32)


@step
def charge(order: str) -> str:
    return order


@workflow
def checkout(ctx: Context, order: str) -> str:
    return ctx.step(charge, order)


def plain() -> None:
    """No workflow."""


@pytest.mark.parametrize(
    ("workflows", "message"),
    [
        (checkout, r"found the workflow checkout; expected a list: workflows=\[checkout\]"),
        ([charge], r"found the step charge among them; .*a worker runs any step of the workflows it is given"),
        ([checkout("17")], r"found a call of a workflow among them; .*@workflow, uncalled"),
        ([checkout, plain], r"found <function plain>, a function among them; .*decorated with @workflow"),
        (plain, r"found <function plain>, a function; expected a list of workflows"),
        (None, r"found None; expected a list of workflows: workflows=\[checkout\]"),
    ],
)
def test_a_worker_without_a_list_of_workflows_is_told_what_to_write(workflows: Any, message: str) -> None:
    with Client(NOWHERE) as client, pytest.raises(TypeError, match=message):
        Worker(client, workflows=workflows)


@pytest.mark.parametrize(
    ("capabilities", "message"),
    [("gpu", r"found the text 'gpu'; expected a list: \['gpu'\]"), ([1], r"found 1, an int; .*such as \['gpu'\]")],
)
def test_the_letters_of_a_text_are_no_capabilities(capabilities: Any, message: str) -> None:
    with Client(NOWHERE) as client, pytest.raises(TypeError, match=message):
        Worker(client, workflows=[checkout], capabilities=capabilities)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (timedelta(days=14), "14 days"),
        (timedelta(days=1, hours=1, minutes=5), "1 day 1 hour"),
        (timedelta(hours=1), "1 hour"),
        (timedelta(minutes=90), "1 hour 30 minutes"),
        (timedelta(minutes=1, seconds=1), "1 minute 1 second"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(milliseconds=50), "0.05 seconds"),
        (timedelta(0), "0 seconds"),
        (timedelta(days=-3), "0 seconds"),
    ],
)
def test_a_limit_is_named_as_its_author_would(limit: timedelta, words: str) -> None:
    assert limit_words(limit) == words


@pytest.mark.parametrize(
    ("found", "words"),
    [(17, "17, an int"), ("a", "'a', a str"), (None, "None"), (plain, "<function plain>, a function")],
)
def test_what_was_found_is_told_with_its_class(found: object, words: str) -> None:
    assert described(found) == words


LOOSE: Any = pgwf_sdk
"""Without its types: whoever has no type checker calls it like this."""


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (
            lambda: LOOSE.workflow(need=3)(plain_workflow),
            r"need of workflow 'plain_workflow': found 3, an int; expected a text",
        ),
        (
            lambda: LOOSE.workflow(build=3)(plain_workflow),
            r"build of workflow 'plain_workflow': found 3, an int; expected a text",
        ),
        (lambda: LOOSE.workflow(name=3)(plain_workflow), r"name: found 3, an int; expected a text"),
        (
            lambda: LOOSE.workflow("checkout"),
            r"@workflow: found 'checkout', a str; .* options by name: @workflow\(name=",
        ),
        (lambda: LOOSE.step(3), r"@step: found 3, an int; expected a function, and options by name: @step\(name="),
        (lambda: LOOSE.step(need=3)(plain), r"step 'plain': need is 3, an int; expected a str, such as \"gpu\""),
        (lambda: LOOSE.step(at_most_once="no")(plain), r"step 'plain': at_most_once is 'no', a str; expected a bool"),
        (lambda: LOOSE.step(undo=3)(plain), r"step 'plain': undo: found 3, an int; expected the step itself, uncalled"),
        (lambda: LOOSE.step(undo=checkout)(plain), r"step 'plain': undo: found <Workflow checkout>; expected a step"),
        (
            lambda: LOOSE.step(undo=checkout("17"))(plain),
            r"step 'plain': undo: found <Call of checkout>; expected a step",
        ),
        (
            lambda: LOOSE.RetryPolicy(max_attempts="3"),
            r"RetryPolicy: max_attempts is '3', a str; expected a whole number",
        ),
        (lambda: LOOSE.RetryPolicy(initial=1), r"RetryPolicy: initial is 1, an int; .*timedelta\(seconds=1\)"),
        (lambda: LOOSE.RetryPolicy(factor="2"), r"RetryPolicy: factor is '2', a str; expected a number"),
        (lambda: LOOSE.RetryPolicy(max_interval=60), r"RetryPolicy: max_interval is 60, an int; expected a timedelta"),
        (lambda: LOOSE.RetryPolicy(max_elapsed=60), r"RetryPolicy: max_elapsed is 60, an int; expected a timedelta"),
        (
            lambda: LOOSE.RetryPolicy(retry_on="OSError"),
            r"retry_on is 'OSError', a str; expected a tuple of exception classes",
        ),
        (
            lambda: LOOSE.RetryPolicy(no_retry_on="OSError"),
            r"no_retry_on is 'OSError', a str; expected a tuple of exception",
        ),
        (
            lambda: LOOSE.RetryPolicy(no_retry_on=[OSError]),
            r"no_retry_on is \[.*\], a list; expected a tuple of exception",
        ),
        (
            lambda: LOOSE.RetryPolicy(no_retry_on=(3,)),
            r"no_retry_on is \(3,\), a tuple; expected a tuple of exception classes",
        ),
        (lambda: LOOSE.Sealing([KEY]), r"Sealing: found a list; expected the keys by their names"),
        (lambda: LOOSE.Sealing({3: KEY}), r"Sealing: a key has the name 3; what it seals names it"),
        (lambda: LOOSE.Sealing({"a": "b" * 32}), r"Sealing: key 'a' is a str; expected 32 bytes"),
        (lambda: LOOSE.Sealing({"a": 32}), r"Sealing: key 'a' is an int; expected 32 bytes"),
        (
            lambda: LOOSE.Sealing({"a": KEY}, compress_bytes_min="4"),
            r"compress_bytes_min is '4'; expected a number of bytes",
        ),
        (
            lambda: LOOSE.Sealing({"a": KEY}, compress_bytes_min=-1),
            r"compress_bytes_min is -1; expected a number of bytes",
        ),
    ],
)
def test_a_definition_of_another_kind_is_refused_where_it_is_made(define: Callable[[], Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as refused:
        define()

    assert repr(KEY) not in str(refused.value)


def plain_workflow(ctx: Context) -> None:
    """Not decorated yet."""


def test_one_class_of_exceptions_is_as_good_as_a_tuple() -> None:
    policy = RetryPolicy(retry_on=OSError, no_retry_on=FileNotFoundError)  # type: ignore[arg-type]

    assert (policy.allows(OSError()), policy.allows(FileNotFoundError()), policy.allows(ValueError())) == (
        True,
        False,
        False,
    )


@pytest.mark.parametrize("factor", [1e300, float("inf")])
def test_a_pause_that_grows_beyond_all_bounds_is_the_longest_one(factor: float) -> None:
    policy = RetryPolicy(factor=factor, max_interval=timedelta(minutes=5))

    assert [policy.longest_delay_after(attempt) for attempt in (1, 2, 3)] == [
        timedelta(seconds=1),
        timedelta(minutes=5),
        timedelta(minutes=5),
    ]


def test_the_delay_of_a_retry_has_a_unit() -> None:
    with pytest.raises(TypeError, match=r"RetryAfter\(delay\): found 3; expected a timedelta"):
        RetryAfter(3, "busy")  # type: ignore[arg-type]


CLIENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dsn": ""}, ValueError, r"\(dsn\): found ''; expected a PostgreSQL connection string"),
    ({"dsn": "localhost"}, ValueError, r"\(dsn\): found 'localhost'; expected a PostgreSQL connection string"),
    ({"dsn": "mysql://u:s3cret@h/d"}, ValueError, r"\(dsn\): found a text that is none; it is not shown"),
    ({"dsn": "host=h password=s3cret pots=1"}, ValueError, r"\(dsn\): found a text that is none; it is not shown"),
    ({"dsn": None}, TypeError, r"\(dsn\): found None; expected a PostgreSQL connection string"),
    ({"dsn": 5432}, TypeError, r"\(dsn\): found 5432, an int; expected a PostgreSQL connection string"),
    ({"listen_dsn": "localhost"}, ValueError, r"\(listen_dsn=…\): found 'localhost'; expected a PostgreSQL"),
    ({"sealing": {"2026": b"s3cret"}}, TypeError, r"\(sealing=…\): found a dict; .*Sealing\(\{'2026-11': key\}\)"),
    ({"name": 3}, TypeError, r"\(name=…\): found 3, an int; expected a text"),
    ({"connections_max": "4"}, TypeError, r"\(connections_max=…\): found '4', a str; expected a whole number"),
    ({"connections_max": 0}, ValueError, r"\(connections_max=…\): found 0; expected 1 or more"),
    ({"telemetry": True}, TypeError, r"\(telemetry=…\): found True, a bool; expected Telemetry"),
]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(("options", "error", "message"), CLIENTS)
def test_a_client_that_cannot_be_is_refused_without_a_word_of_its_secrets(
    kind: type[Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=kind.__name__ + message) as refused:
        kind(**{"dsn": NOWHERE, **options})

    assert "s3cret" not in str(refused.value)


HANDLE = type("Run", (), {"run_id": "order-17", "__repr__": lambda _: "<Run 'order-17'>"})()
CALLS: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (
        lambda c: c.start(checkout("1"), run_id=3),
        TypeError,
        r"client.start\(run_id=…\): found 3, an int; expected a text",
    ),
    (lambda c: c.start(checkout("1"), start_at=3), TypeError, r"start\(start_at=…\): found 3; expected a datetime"),
    (
        lambda c: c.start(checkout("1"), start_at=NAIVE),
        ValueError,
        r"start\(start_at=…\): .*no time zone; expected one",
    ),
    (
        lambda c: c.start(checkout("1"), deadline=timedelta(days=1)),
        TypeError,
        r"start\(deadline=…\): .*; expected a datetime: datetime.now\(UTC\) \+ datetime.timedelta\(days=1\)",
    ),
    (lambda c: c.start(checkout("1"), deadline=date(2031, 2, 3)), TypeError, r"start\(deadline=…\): .* a datetime"),
    (
        lambda c: c.start(checkout("1"), singleton_key=17),
        TypeError,
        r"\(singleton_key=…\): found 17, an int; .* a text",
    ),
    (lambda c: c.start(checkout("1"), priority="high"), TypeError, r"\(priority=…\): found 'high', a str; .* a whole"),
    (
        lambda c: c.start(checkout("1"), priority=True),
        TypeError,
        r"\(priority=…\): found True, a bool; .* a whole number",
    ),
    (
        lambda c: c.start(checkout("1"), priority=10**12),
        InvalidArgumentError,
        r"found 1000000000000; expected 1 \(most",
    ),
    (
        lambda c: c.start(checkout("1"), attributes=["a"]),
        TypeError,
        r"\(attributes=…\): found \['a'\], a list; .* by their",
    ),
    (lambda c: c.start(checkout("1"), attributes={3: 4}), DefinitionError, r"\(attributes=…\): name: found 3, an int"),
    (lambda c: c.signal_with_start(checkout("1"), 3, "a"), TypeError, r"client.signal_with_start\(run_id\): found 3"),
    (lambda c: c.signal_with_start(checkout("1"), "a", 3), TypeError, r"client.signal_with_start\(…, name\): found 3"),
    (
        lambda c: c.signal_with_start(checkout("1"), "a", "b", priority="c"),
        TypeError,
        r"client.signal_with_start\(priority=…\): found 'c', a str",
    ),
    (lambda c: c.get(3), TypeError, r"client.get\(run_id\): found 3, an int; expected a text, such as 'order-17'"),
    (lambda c: c.get(None), TypeError, r"client.get\(run_id\): found None; expected a text"),
    (lambda c: c.get(HANDLE), TypeError, r"client.get\(run_id\): found <Run 'order-17'>, a Run; .* a text: its run_id"),
    (lambda c: c.get("a", lambda: 1), TypeError, r"client.get\('a', …\): found <function .*, a function; .* uncalled"),
    (lambda c: c.get("a", checkout("17")), TypeError, r"client.get\('a', …\): found a call of a workflow; .* uncalled"),
    (lambda c: c.list(workflow=checkout), TypeError, r"\(workflow=…\): found <Workflow checkout>, .* a text: its name"),
    (lambda c: c.list(statuses="failed"), TypeError, r"\(statuses=…\): found the text 'failed'; .* \['failed'\]"),
    (lambda c: c.list(statuses=["done"]), ValueError, r"client.list\(statuses=…\): found 'done'; .* ready, running,"),
    (
        lambda c: c.list(before=NOON),
        TypeError,
        r"client.list\(before=…\): found .*, a datetime; expected a whole number",
    ),
    (lambda c: c.list(before=10**30), ValueError, r"before is 1000.*, expected a number from -2\^63 to 2\^63 - 1"),
    (lambda c: c.list(before=10**5000), ValueError, r"before is a number of thousands of digits, expected"),
    (lambda c: ops.list_runs(c, before=2**63), ValueError, r"before is 9223372036854775808, expected a number from"),
    (lambda c: ops.limit_need(c, "a", max_active=2**31, by="b"), InvalidArgumentError, r"max_active is 2147483648, "),
    (
        lambda c: ops.limit_key(c, "a", max_active=10**30, by="b"),
        InvalidArgumentError,
        r"max_active is 1000.*, expected",
    ),
    (lambda c: c.list(limit="9"), TypeError, r"client.list\(limit=…\): found '9', a str; expected a whole number"),
    (lambda c: c.list(attributes=3), TypeError, r"client.list\(attributes=…\): found 3, an int; .* by their names"),
    (lambda c: c.start(checkout("1"), connection=NOWHERE), TypeError, r"connection=…: found an object of str"),
    (lambda c: c.signal("a", "b", connection=c), TypeError, r"connection=…: found .*Client; expected a"),
    (lambda c: c.signal("a", 3), TypeError, r"client.signal\(…, name\): found 3, an int; .* such as 'paid'"),
    (lambda c: c.signal("a", "b", dedup_id=3), TypeError, r"client.signal\(dedup_id=…\): found 3, an int"),
    (lambda c: c.signal(3, "b"), TypeError, r"client.signal\(run_id\): found 3, an int"),
    (lambda c: c.cancel(3), TypeError, r"client.cancel\(run_id\): found 3, an int"),
    (lambda c: c.cancel("a", reason=3), TypeError, r"client.cancel\(reason=…\): found 3, an int; expected a text"),
    (lambda c: c.cancel("a", grace=3), TypeError, r"client.cancel\(grace=…\): found 3; expected a timedelta"),
    (lambda c: c.terminate("a", by=3), TypeError, r"client.terminate\(by=…\): found 3, an int; expected a text"),
    (lambda c: c.pause(HANDLE), TypeError, r"client.pause\(run_id\): .*; expected a text: its run_id"),
    (lambda c: c.resume(3), TypeError, r"client.resume\(run_id\): found 3, an int"),
    (lambda c: c.retry("a", plain), TypeError, r"client.retry\('a', …\): found <function .*, a function; .* uncalled"),
    (lambda c: c.fork("a", before=None), TypeError, r"client.fork\(before=…\): found None; expected a call's key"),
    (lambda c: c.fork("a", before=2, run_id=3), TypeError, r"client.fork\(run_id=…\): found 3, an int"),
    (lambda c: c.fork_price("a", before=NOON), TypeError, r"client.fork_price\(before=…\): found .*, a datetime"),
    (lambda c: c.resume_all(workflow=checkout), TypeError, r"client.resume_all\(workflow=…\): .* a text: its name"),
    (lambda c: c.retry_all(workflow=checkout), TypeError, r"client.retry_all\(workflow=…\): .* a text: its name"),
    (lambda c: c.complete_awakeable(3, 1), TypeError, r"client.complete_awakeable\(token\): found 3, an int"),
    (
        lambda c: c.fail_awakeable("a", 3),
        TypeError,
        r"client.fail_awakeable\(…, error\): found 3, an int; .* an exception",
    ),
    (lambda c: c.human.list(states="open"), TypeError, r"client.human.list\(states=…\): found the text 'open'"),
    (
        lambda c: c.human.list(states=["new"]),
        ValueError,
        r"client.human.list\(states=…\): found 'new'; .* open, claimed",
    ),
    (lambda c: c.human.list(need=3), TypeError, r"client.human.list\(need=…\): found 3, an int"),
    (lambda c: c.human.claim(3), TypeError, r"client.human.claim\(task_id\): found 3, an int"),
    (lambda c: c.human.claim("a", duration=3), TypeError, r"client.human.claim\(duration=…\): found 3; .* a timedelta"),
    (lambda c: c.human.release("a", by=3), TypeError, r"client.human.release\(by=…\): found 3, an int"),
    (lambda c: c.human.decide(3, True), TypeError, r"client.human.decide\(task_id\): found 3, an int"),
    (lambda c: c.human.reviewer(3, plain), TypeError, r"client.human.reviewer\(need\): found 3, an int"),
    (lambda c: c.human.reviewer("human.a", 3), TypeError, r"client.human.reviewer\(decide\): found 3, an int"),
    (
        lambda c: c.human.reviewer("human.a", plain, poll=timedelta(seconds=-1)),
        ValueError,
        r"client.human.reviewer\(poll=…\): found .*, which is negative; expected timedelta\(0\) or longer",
    ),
]


@pytest.mark.parametrize(("misuse", "error", "message"), CALLS)
def test_a_call_with_what_it_does_not_take_is_refused_before_the_database_is_asked(
    misuse: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    async def asked() -> None:
        async with AsyncClient(NOWHERE) as client:
            await misuse(client)

    with Client(NOWHERE) as client, pytest.raises(error, match=message):
        misuse(client)
    with pytest.raises(error, match=message):
        asyncio.run(asked())


MADE_ON_A_CONNECTION: list[Callable[[Any, Any], Any]] = [
    lambda client, connection: client.start(checkout("1"), connection=connection),
    lambda client, connection: client.signal("a", "b", connection=connection),
    lambda client, connection: client.signal_with_start(checkout("1"), "a", "b", connection=connection),
    lambda client, connection: client.complete_awakeable("a", 1, connection=connection),
    lambda client, connection: client.fail_awakeable("a", "b", connection=connection),
    lambda client, connection: client.human.decide("a", 1, connection=connection),
]


@pytest.mark.parametrize("found", [NOWHERE, 3, object()])
@pytest.mark.parametrize("call", MADE_ON_A_CONNECTION)
def test_what_is_no_connection_is_refused_by_clients_that_seal_alike(call: Any, found: Any) -> None:
    pytest.importorskip("cryptography")
    sealing = Sealing({"k1": KEY})
    message = rf"connection=…: found an object of {type(found).__name__}; expected a psycopg.(Async)?Connection"

    async def asked() -> None:
        async with AsyncClient(NOWHERE, sealing=sealing) as client:
            await call(client, found)

    with Client(NOWHERE, sealing=sealing) as client, pytest.raises(TypeError, match=message):
        call(client, found)
    with pytest.raises(TypeError, match=message):
        asyncio.run(asked())


WORKERS: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"client": NOWHERE},
        TypeError,
        r"Worker\(client\): found 'postgresql.*, a str; .*Worker\(Client\(dsn\), workflows",
    ),
    ({"workflows": []}, DefinitionError, r"found no workflows and no capabilities.* expected one of them at least"),
    ({"lease": 15}, TypeError, r"Worker\(lease=…\): found 15; expected a timedelta"),
    ({"poll": "5s"}, TypeError, r"Worker\(poll=…\): found '5s'; expected a timedelta"),
    ({"grace": None}, TypeError, r"Worker\(grace=…\): found None; expected a timedelta"),
    ({"grace": timedelta(seconds=-1)}, DefinitionError, r"Worker: grace is -1 day.*; expected 0:00:00 or longer"),
    ({"concurrency": "4"}, TypeError, r"Worker: concurrency: found '4', a str; expected a whole number"),
    ({"step_threads": True}, TypeError, r"Worker: step_threads: found True, a bool; expected a whole number"),
    ({"limits": ["gpu"]}, TypeError, r"Worker\(limits=…\): found \['gpu'\], a list; expected counts by capability"),
    ({"limits": {"checkout": "1"}}, TypeError, r"Worker: the limit of 'checkout': found '1', a str; .* whole number"),
    ({"capabilities": [""]}, DefinitionError, r"Worker\(capabilities=…\): '' is 0 bytes long; expected 1 to 512"),
    ({"build": 3}, TypeError, r"Worker\(build=…\): found 3, an int; expected a text"),
    ({"worker_id": 3}, TypeError, r"Worker\(worker_id=…\): found 3, an int; expected a text"),
    ({"journal_limits": 3}, TypeError, r"Worker\(journal_limits=…\): found 3, an int; expected JournalLimits"),
]


@pytest.mark.parametrize(("options", "error", "message"), WORKERS)
def test_a_worker_that_cannot_be_is_told_which_of_its_options_to_change(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with Client(NOWHERE) as client, pytest.raises(error, match=message):
        Worker(**{"client": client, "workflows": [checkout], **options})


def test_limits_of_a_journal_are_numbers() -> None:
    with pytest.raises(TypeError, match=r"JournalLimits\(entries_max=…\): found '9', a str; expected a whole number"):
        JournalLimits(entries_max="9")  # type: ignore[arg-type]


@pytest.mark.parametrize("act", ["signal", "cancel", "terminate", "pause", "resume", "retry", "fork", "fork_price"])
def test_a_run_that_is_not_there_is_looked_for_with_the_client(dsn: str, act: str) -> None:
    arguments = {"signal": ("paid",)}.get(act, ())
    options: dict[str, Any] = {"before": 2} if act.startswith("fork") else {}

    with Client(dsn) as client, pytest.raises(RunNotFoundError, match=r"^no run 'a'; `client.list\(\)` shows which"):
        getattr(client, act)("a", *arguments, **options)


@pytest.mark.parametrize(
    ("timeout", "error", "message"),
    [
        (3, TypeError, r"run a: result\(timeout=…\): found 3; expected a timedelta"),
        (timedelta(seconds=-1), ValueError, r"run a: result\(timeout=…\): found .*, which is negative"),
    ],
)
def test_nobody_waits_for_less_than_nothing(dsn: str, timeout: Any, error: type[Exception], message: str) -> None:
    async def waited() -> None:
        async with AsyncClient(dsn) as client:
            await (await client.get("a")).result(timeout)

    with Client(dsn) as client:
        run = client.start(checkout("1"), run_id="a")
        with pytest.raises(error, match=message):
            run.result(timeout)
        with pytest.raises(error, match=message):
            asyncio.run(waited())
        assert run.status() == "ready"


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (lambda db: LOOSE.ops.get_run(db, 3), TypeError, r"run_id: found 3, an int; expected a text, such as"),
        (lambda db: LOOSE.ops.get_ending(db, None), TypeError, r"run_id: found None; expected a text"),
        (
            lambda db: LOOSE.ops.timeline(db, ["order-1"]),
            TypeError,
            r"run_id: found \['order-1'\], a list; expected a text",
        ),
        (lambda db: LOOSE.ops.list_runs(db, limit="9"), TypeError, r"limit: found '9', a str; expected 1 to 1000"),
        (lambda db: LOOSE.ops.list_runs(db, limit=0), ValueError, r"limit is 0, expected 1 to 1000$"),
        (
            lambda db: LOOSE.ops.list_runs(db, limit=1001),
            ValueError,
            r"limit is 1001, expected 1 to 1000; ask for the next",
        ),
        (lambda _: LOOSE.ops.get_run("postgresql://ann:s3cret@h/d", "a"), TypeError, r"pgwf_sdk.ops: found a str"),
        (lambda _: LOOSE.ops.get_run(AsyncClient("dbname=x"), "a"), TypeError, r"ops: found an AsyncClient; expected"),
    ],
)
def test_a_question_that_cannot_be_is_refused_before_it_is_asked(
    db: psycopg.Connection[Any], asked: Callable[[Any], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as refused:
        asked(db)

    assert "s3cret" not in str(refused.value)
