"""The asynchronous client: the same calls as the synchronous one, awaited."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Generic, Never, TypeVar

import psycopg
from psycopg import AsyncConnection

from pgwf_sdk._attributes import AttributeValue
from pgwf_sdk._client import _calls
from pgwf_sdk._client._identity import client_name, listener_name, new_run_id
from pgwf_sdk._client._options import check_client
from pgwf_sdk._client._patience import Patience
from pgwf_sdk._definition import Call, Workflow
from pgwf_sdk._errors import RunConflictError, RunNotFoundError
from pgwf_sdk._misuse import check_call
from pgwf_sdk._sealing import Sealing
from pgwf_sdk._telemetry import Telemetry
from pgwf_sdk.human._reviewer import REVIEW_POLL, AsyncReviewer
from pgwf_sdk.ops._rows import ForkPrice, RunSummary, TaskSummary
from pgwf_sdk.ops._sealed import SealedStatements
from pgwf_sql.database import CONNECTIONS_MAX, AsyncClosing, AsyncDatabase, AsyncListener, Statement

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

CLAIM_DURATION = timedelta(hours=4)
"""How long a claimed human task stays with its holder, unless told otherwise."""


class AsyncClient(AsyncClosing):
    """Starts runs and talks to them; for one event loop. Close it, or use it as a context manager.

    `dsn` is a PostgreSQL connection string or URL. `name` is recorded with what this client starts, cancels and
    decides (default: host and process). At most `connections_max` connections are open, and one more while somebody
    waits for a result. `telemetry` says where spans and metrics go (default: the process's OpenTelemetry providers).
    Where `dsn` leads through a pooler in transaction mode, `listen_dsn` leads past it; else results are polled for.
    `sealing` compresses and encrypts what this client, and workers made with it, store.
    The first call raises SchemaOutdatedError if the database's schema is missing or too old, and each call about a run
    RunNotFoundError if there is none.
    """

    def __init__(
        self,
        dsn: str,
        *,
        name: str | None = None,
        connections_max: int = CONNECTIONS_MAX,
        telemetry: Telemetry | None = None,
        listen_dsn: str | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        check_client("AsyncClient", dsn, listen_dsn, sealing, name, connections_max, telemetry)
        self.name = name or client_name()
        self.dsn = dsn
        self.listen_dsn = listen_dsn
        self.sealing = sealing
        self.telemetry = telemetry or Telemetry()
        self._database = AsyncDatabase(
            dsn,
            translate=_calls.translate,
            connections_max=connections_max,
            listen_dsn=listen_dsn,
            rewrite=None if sealing is None else SealedStatements(sealing),
        )
        self._listener = AsyncListener(self._database)
        self.human = AsyncHumanTasks(self._database, self.name)

    async def start(
        self,
        call: Call[R],
        /,
        *excess: Never,
        run_id: str | None = None,
        start_at: datetime | None = None,
        deadline: datetime | None = None,
        priority: int = 3,
        attributes: Mapping[str, AttributeValue] | None = None,
        singleton_key: str | None = None,
        connection: AsyncConnection[Any] | None = None,
    ) -> "AsyncRun[R]":
        """Start a run of `call` and return its handle; nothing of it runs in this process.

        A `run_id` that is known already gives the handle of that run (`created` is False) if workflow and input are
        the same, RunConflictError if not. Default: a new UUID. `start_at` holds the run back until then, whatever is
        sent to it and also if it is paused and resumed before, `deadline` cancels it; both need a time zone. `priority`
        goes from 1 (most urgent) to 4. Lists find the run by its `attributes`. Of runs with one `singleton_key` (1 to
        512 bytes without control characters) at most one is with a worker at a time, or as many as an operator says
        (`pgwf keys limit`); one that waits lets others pass. With `connection` the run begins to exist when that
        connection's transaction commits, and not at all if it rolls back.
        """
        check_call(call, excess, used="client.start")
        options = _calls.StartOptions(
            start_at=start_at, deadline=deadline, priority=priority, attributes=attributes, singleton_key=singleton_key
        )
        return await self._start(call, new_run_id() if run_id is None else run_id, options, connection)

    async def get(self, run_id: str, workflow: Workflow[..., R] | None = None) -> "AsyncRun[R]":
        """The handle of an existing run; `workflow` says how to read its result. RunNotFoundError if there is none.

        An id of a chain leads to its live end: the newest run that a continued or retried run went on as.
        """
        found = await self._database.run(_calls.run_summary(run_id, workflow))
        return self._handle(_calls.Started(found.n, found.run_id, created=False), workflow)

    async def list(
        self,
        *,
        statuses: Collection[str] = (),
        workflow: str | None = None,
        need: str | None = None,
        parent_run_id: str | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[RunSummary, ...]:
        """Runs, newest first, at most `limit` (up to 1000). `before` is the `n` of the last one seen, to go on.

        Children of other runs are listed only for their `parent_run_id`. Of several `attributes` a run must have all;
        the one that fewest runs have comes first, as it leads the search.
        """
        statement = _calls.runs(
            statuses=statuses,
            workflow=workflow,
            need=need,
            parent_run_id=parent_run_id,
            attributes=attributes,
            before=before,
            limit=limit,
        )
        return await self._database.run(statement)

    async def signal(
        self,
        run_id: str,
        name: str,
        value: object = None,
        /,
        *,
        dedup_id: str | None = None,
        connection: AsyncConnection[Any] | None = None,
    ) -> bool:
        """Send the signal `name` to a run, which receives signals of one name in the order they were sent.

        False, and nothing is sent, if a signal with this `dedup_id` was sent to the run before. RunFinishedError when
        the run is over.
        """
        return await self._database.run(_calls.signal(run_id, name, value, dedup_id=dedup_id), connection)

    async def signal_with_start(
        self,
        call: Call[R],
        run_id: str,
        name: str,
        value: object = None,
        /,
        *,
        dedup_id: str | None = None,
        start_at: datetime | None = None,
        deadline: datetime | None = None,
        priority: int = 3,
        attributes: Mapping[str, AttributeValue] | None = None,
        singleton_key: str | None = None,
        connection: AsyncConnection[Any] | None = None,
    ) -> "AsyncRun[R]":
        """Start `call` as `run_id` unless it runs already, and send it the signal `name`: both, or neither.

        `created` of the handle tells which it was. RunConflictError as in `start`; RunFinishedError, and nothing is
        sent, when the run of that id is over. The other options are those of `start` and `signal`.
        """
        check_call(call, (), used=_calls.WITH_START)
        options = _calls.StartOptions(
            start_at=start_at, deadline=deadline, priority=priority, attributes=attributes, singleton_key=singleton_key
        )
        sending = _calls.signal(run_id, name, value, dedup_id=dedup_id, used=_calls.WITH_START)
        return await self._start(call, run_id, options, connection, sending)

    async def complete_awakeable(
        self, token: str, value: object = None, /, *, connection: AsyncConnection[Any] | None = None
    ) -> bool:
        """Complete the promise of a run that gave `token` away; whoever waits for it gets `value`.

        False, and nothing happens, if it was completed or failed before. AwakeableNotFoundError: no such token.
        AwakeableClosedError: too late, its time is over or its run gave it up. RunFinishedError: its run is over.
        """
        return await self._database.run(_calls.complete_awakeable(token, value), connection)

    async def fail_awakeable(
        self, token: str, error: Exception | str, /, *, connection: AsyncConnection[Any] | None = None
    ) -> bool:
        """Fail the promise: whoever waits for it gets `error`, a text as AwakeableFailedError.

        Otherwise as `complete_awakeable`.
        """
        return await self._database.run(_calls.fail_awakeable(token, error), connection)

    async def cancel(
        self, run_id: str, *, reason: str | None = None, by: str | None = None, grace: timedelta | None = None
    ) -> str:
        """Ask a run to stop; its code sees RunCancelled and may clean up.

        A cleanup that takes longer than `grace` (default: 5 minutes) is cut short: the run is terminated. Compensations
        take the time they take. A run of which nothing was executed is `cancelled` at once, without a worker.

        `requested`, `already_requested`, or the final status of a run that is over.
        """
        return await self._database.run(_calls.cancel(run_id, reason=reason, by=by or self.name, grace=grace))

    async def terminate(self, run_id: str, *, reason: str | None = None, by: str | None = None) -> str:
        """Stop a run at once, without running any more of its code; gives its final status."""
        return await self._database.run(_calls.terminate(run_id, reason=reason, by=by or self.name))

    async def pause(self, run_id: str, *, by: str | None = None) -> str:
        """Let no worker take the run until it is resumed; a step that is being executed ends and is recorded.

        `paused`, or the status of a run that cannot be paused: it is blocked or over.
        """
        return await self._database.run(_calls.pause(run_id, by=by or self.name))

    async def resume(self, run_id: str, *, by: str | None = None) -> str:
        """Let a paused or blocked run go on: `resumed`, or the status of a run that is neither.

        One that has not begun still waits for its `start_at`.
        """
        return await self._database.run(_calls.resume(run_id, by=by or self.name))

    async def retry(
        self, run_id: str, workflow: Workflow[..., R] | None = None, *, by: str | None = None
    ) -> "AsyncRun[R]":
        """Run a run that ended badly again, from where it failed, as a new one, `<id>~2`, with new idempotency keys.

        One that was retried before gives the run it goes on as. RunNotRetryableError: it goes on, or has completed.
        """
        return self._handle(await self._database.run(_calls.retry(run_id, workflow, by=by or self.name)), workflow)

    async def fork(
        self,
        source: str,
        /,
        workflow: Workflow[..., R] | None = None,
        *,
        before: str | int,
        run_id: str | None = None,
        by: str | None = None,
    ) -> "AsyncRun[R]":
        """Start a new run that takes over what `source`, whatever it is doing, had recorded before an entry.

        `before` is the key of a call, such as `/step:charge#1`, or an entry's number. Calls that were not resolved by
        then are made anew, and idempotency keys are new; see `fork_price`. Default id: `<source>~fork1`, `~fork2` …
        Forking again with the same `run_id` gives the same run. InvalidArgumentError: the journal has no such entry;
        RunConflictError: the id is taken.
        """
        statement = _calls.fork(source, workflow, before=before, new_run_id=run_id, by=by or self.name)
        return self._handle(await self._database.run(statement), workflow)

    async def fork_price(self, source: str, /, *, before: str | int) -> ForkPrice:
        """What a fork would copy, and what it would do again."""
        return await self._database.run(_calls.fork_price(source, before=before))

    async def resume_all(self, *, workflow: str | None = None, by: str | None = None) -> int:
        """Let all blocked runs go on, or those of one workflow, the newest first; gives how many there were.

        For after a deploy. A hundred runs are one transaction.
        """
        pages = _calls.resume_all(workflow=workflow, by=by or self.name)
        while await self._database.run(pages.next()):
            pass
        return pages.count

    async def retry_all(self, *, workflow: str, by: str | None = None) -> int:
        """Retry all failed runs of a workflow that were not retried yet; gives how many there were."""
        pages = _calls.retry_all(workflow=workflow, by=by or self.name)
        while await self._database.run(pages.next()):
            pass
        return pages.count

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[AsyncConnection]:
        """One of this client's connections, in autocommit mode, for the time of the block."""
        async with self._database.connection() as lent:
            yield lent

    async def close(self) -> None:
        """Close all connections; idempotent. Runs are not affected."""
        await self._listener.close()
        await self._database.close()

    async def _start(
        self,
        call: Call[R],
        run_id: str,
        options: _calls.StartOptions,
        connection: AsyncConnection[Any] | None,
        sending: Statement[bool] | None = None,
    ) -> "AsyncRun[R]":
        with self.telemetry.starting(call.workflow.name, run_id) as starting:
            statement = _calls.start(call, run_id, options, trace=starting.trace, by=self.name, sending=sending)
            started = await self._started(statement, connection, sending)
            starting.created = started.created
        return self._handle(started, call.workflow)

    async def _started(
        self,
        statement: Statement[_calls.Started],
        connection: AsyncConnection[Any] | None,
        sending: Statement[bool] | None,
    ) -> _calls.Started:
        if self.sealing is None:
            return await self._database.run(statement, connection)
        # Equal inputs are not sealed to equal bytes: the ones that are there have to be opened to be compared.
        try:
            async with self._database.savepoint(connection):
                return await self._database.run(statement, connection)
        except RunConflictError:
            known = await self._database.run(_calls.known_start(statement, self.sealing), connection)
            if known is None:
                raise
            if sending is not None:
                await self._database.run(sending, connection)
            return known

    def _handle(self, started: _calls.Started, workflow: Workflow[..., R] | None) -> "AsyncRun[R]":
        return AsyncRun(self, self._database, self._listener, started, workflow)


class AsyncRun(Generic[R_co]):
    """A handle on one run. It holds no state of the run: each call asks the database."""

    def __init__(
        self,
        client: AsyncClient,
        database: AsyncDatabase,
        listener: AsyncListener,
        started: _calls.Started,
        workflow: Workflow[..., R_co] | None,
    ) -> None:
        self.run_id = started.run_id
        self.n = started.n
        self.created = started.created
        self._client = client
        self._database = database
        self._listener = listener
        self._workflow = workflow

    def __repr__(self) -> str:
        return f"<AsyncRun {self.run_id!r}>"

    async def details(self) -> RunSummary:
        """What the run is doing now."""
        return await self._database.run(_calls.run_summary(self.run_id))

    async def status(self) -> str:
        """The run's status now, such as `waiting` or `completed`."""
        return (await self._look()).status

    async def result(self, timeout: timedelta | None = None) -> R_co:  # noqa: ASYNC109  The error says what the run did.
        """Wait until the run is over and return what it returned.

        RunFailedError (its `__cause__` is the run's own error), RunCancelledError or RunTerminatedError if it ended
        otherwise; ResultTimeoutError, a TimeoutError, if it is not over after `timeout` (None waits for ever);
        RunExpiredError if retention has removed it.
        """
        return _calls.result_of(await self._ending(Patience(self.run_id, timeout)), self._workflow)

    async def signal(self, name: str, value: object = None, /, *, dedup_id: str | None = None) -> bool:
        """Send the run a signal; see Client.signal."""
        return await self._client.signal(self.run_id, name, value, dedup_id=dedup_id)

    async def cancel(self, *, reason: str | None = None, by: str | None = None, grace: timedelta | None = None) -> str:
        """Ask the run to stop; see Client.cancel."""
        return await self._client.cancel(self.run_id, reason=reason, by=by, grace=grace)

    async def terminate(self, *, reason: str | None = None, by: str | None = None) -> str:
        """Stop the run at once; see Client.terminate."""
        return await self._client.terminate(self.run_id, reason=reason, by=by)

    async def pause(self, *, by: str | None = None) -> str:
        """Let no worker take the run; see Client.pause."""
        return await self._client.pause(self.run_id, by=by)

    async def resume(self, *, by: str | None = None) -> str:
        """Let the paused or blocked run go on."""
        return await self._client.resume(self.run_id, by=by)

    async def retry(self, *, by: str | None = None) -> "AsyncRun[R_co]":
        """Run the failed run again from the entry it failed at; see Client.retry."""
        return await self._client.retry(self.run_id, self._workflow, by=by)

    async def fork(self, *, before: str | int, run_id: str | None = None, by: str | None = None) -> "AsyncRun[R_co]":
        """Start a new run with what this one recorded before an entry; see Client.fork."""
        return await self._client.fork(self.run_id, self._workflow, before=before, run_id=run_id, by=by)

    async def _look(self) -> _calls.Ending:
        try:
            return await self._database.run(_calls.ending(self.run_id, n=self.n))
        except RunNotFoundError:
            raise _calls.expired(self.run_id) from None

    async def _ending(self, patience: Patience) -> _calls.Ending:
        seen = await self._ending_of(self.n, patience)
        while not seen.is_final:
            seen = await self._ending_of(seen.n, patience)
        return seen

    async def _ending_of(self, n: int, patience: Patience) -> _calls.Ending:
        """Wait until run `n` of the chain is over or goes on as another one."""
        listener = listener_name()
        epoch = self._listener.epoch
        channels = await self._database.run(_calls.watch(n, listener=listener))
        try:
            async with self._listener.hear(channels) as bell:
                while True:
                    try:
                        if epoch != self._listener.epoch:
                            # The server may have forgotten who waits.
                            epoch = self._listener.epoch
                            await self._database.run(_calls.watch(n, listener=listener))
                        seen = await self._look()
                        if seen.is_final or seen.n != n:
                            return seen
                        pause_seconds = patience.pause_seconds(seen)
                    except psycopg.OperationalError as error:
                        pause_seconds = patience.pause_seconds_after(error)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause_seconds):
                            await bell.wait()
                    bell.clear()
        finally:
            # A row that stays behind costs one empty notification; it must not hide why the wait ended.
            with suppress(psycopg.Error):
                await self._database.run(_calls.unwatch(listener=listener))


class AsyncHumanTasks:
    """Questions that runs put to people. Programs that answer them use the same calls as a person's page does.

    Each call about a task raises TaskNotFoundError if there is none.
    """

    def __init__(self, database: AsyncDatabase, name: str) -> None:
        self._database = database
        self._name = name

    async def list(
        self,
        *,
        need: str | None = None,
        states: Collection[str] = ("open",),
        holder: str | None = None,
        limit: int = 100,
    ) -> tuple[TaskSummary, ...]:
        """Tasks, the one due first on top, at most `limit` (up to 1000). States: open, claimed, decided, expired and
        cancelled; none: whatever state they are in.
        """
        return await self._database.run(_calls.tasks(need=need, states=states, holder=holder, limit=limit))

    async def claim(self, task_id: str, *, by: str | None = None, duration: timedelta = CLAIM_DURATION) -> datetime:
        """Take a task: nobody else decides it until the returned time. Claiming one's own again prolongs it.

        TaskUnavailableError if it is not open or somebody else holds it; TaskForbiddenError if it is not for `by`.
        """
        return await self._database.run(_calls.claim_task(task_id, by=by or self._name, duration=duration))

    async def release(self, task_id: str, *, by: str | None = None) -> None:
        """Give a claimed task back undecided. TaskNotHeldError if it is not held by `by`."""
        await self._database.run(_calls.release_task(task_id, by=by or self._name))

    async def decide(
        self, task_id: str, value: object, /, *, by: str | None = None, connection: AsyncConnection[Any] | None = None
    ) -> None:
        """Answer a task with `value`, for the waiting run. A task nobody holds is claimed and decided in one.

        TaskUnavailableError if somebody else holds it, or if it is no longer open; TaskForbiddenError if it is not
        for `by`; InvalidArgumentError if `value` does not fit what the task asks for. Then nothing is decided.
        """
        answer = _calls.Answer(task_id, value, by=by or self._name)
        await self._database.run(answer.deciding(await self._database.run(answer.form(), connection)), connection)

    def reviewer(
        self,
        need: str,
        decide: Callable[[TaskSummary], object],
        *,
        by: str | None = None,
        poll: timedelta = REVIEW_POLL,
    ) -> AsyncReviewer:
        """A bot that answers the open tasks of `need` with what `decide(task)` returns; None leaves one to people.

        Its `run` goes on until `stop`; `look` decides once what is open now. It looks each `poll`.
        """
        return AsyncReviewer(self, need, decide, by=by or self._name, poll=poll)
