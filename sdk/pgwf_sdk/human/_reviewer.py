"""Bots that answer the questions of one need, with the calls that people's pages use: claim, decide, or give back."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pgwf_sdk._errors import TaskForbiddenError, TaskNotFoundError, TaskNotHeldError, TaskUnavailableError
from pgwf_sdk._kinds import check_text, check_wait, described

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgwf_sdk._client import AsyncHumanTasks, HumanTasks
    from pgwf_sdk.ops._rows import TaskSummary

log = logging.getLogger("pgwf_sdk.human")

REVIEW_POLL: Final = timedelta(seconds=1)
"""How often a bot looks for open tasks, unless told otherwise."""

_CLAIM: Final = timedelta(minutes=5)
_TASKS_MAX: Final = 1000
_NOT_OURS: Final = (TaskUnavailableError, TaskForbiddenError, TaskNotFoundError)
_TAKEN_AWAY: Final = (TaskUnavailableError, TaskNotHeldError, TaskNotFoundError)


class _Desk:
    """What a bot has looked at and left to people, as long as that is open."""

    def __init__(self, need: str, decide: object, poll: timedelta) -> None:
        check_text(need, used="client.human.reviewer(need)", such_as="human.risk")
        if not callable(decide):
            expected = "a function of a task that returns what is decided"
            raise TypeError(f"client.human.reviewer(decide): found {described(decide)}; expected {expected}")
        check_wait(poll, used="client.human.reviewer(poll=…)")
        self.poll_seconds = poll.total_seconds()
        self._left: set[str] = set()

    def new(self, tasks: Sequence[TaskSummary]) -> list[TaskSummary]:
        """The tasks it has not left to people."""
        self._left &= {task.task_id for task in tasks}
        return [task for task in tasks if task.task_id not in self._left]

    def leave(self, task: TaskSummary, error: BaseException | None = None) -> None:
        """People are to decide this one; if the bot broke on it, the log says how."""
        self._left.add(task.task_id)
        if error is not None:
            log.error("task %s: the bot cannot decide it, it stays open", task.task_id, exc_info=error)


class Reviewer:
    """Answers the open tasks of one need with a function, until it is told to stop.

    Each task is claimed, so that nobody else works on it meanwhile, and decided with what `decide(task)` returns. None,
    or an exception, which is logged, leaves it open for people. Several bots, and people, may share a need.
    """

    def __init__(
        self, human: HumanTasks, need: str, decide: Callable[[TaskSummary], object], *, by: str, poll: timedelta
    ) -> None:
        self._human = human
        self._need = need
        self._decide = decide
        self._by = by
        self._desk = _Desk(need, decide, poll)
        self._stopping = threading.Event()

    def run(self) -> None:
        """Decide what is open and what will be, until `stop`."""
        while not self._stopping.is_set():
            self.look()
            self._stopping.wait(self._desk.poll_seconds)

    def stop(self) -> None:
        """End `run` after the task it is at. Safe from any thread, also before `run`."""
        self._stopping.set()

    def look(self) -> int:
        """Decide what is open now; how many tasks were decided."""
        found = self._desk.new(self._human.list(need=self._need, limit=_TASKS_MAX))
        return sum(self._review(task) for task in found if not self._stopping.is_set())

    def _review(self, task: TaskSummary) -> bool:
        try:
            self._human.claim(task.task_id, by=self._by, duration=_CLAIM)
        except _NOT_OURS:
            return False
        try:
            value = self._decide(task)
            if value is not None:
                self._human.decide(task.task_id, value, by=self._by)
                return True
            self._desk.leave(task)
        except _TAKEN_AWAY:
            return False  # Its time was over, or its run ended, while the bot thought.
        except Exception as error:  # noqa: BLE001 - one task must not stop the bot; the log says which and why
            self._desk.leave(task, error)
        self._give_back(task)
        return False

    def _give_back(self, task: TaskSummary) -> None:
        try:
            self._human.release(task.task_id, by=self._by)
        except _TAKEN_AWAY:
            return


class AsyncReviewer:
    """Answers the open tasks of one need with a function, which may be `async def`, until it is told to stop.

    Each task is claimed, so that nobody else works on it meanwhile, and decided with what `decide(task)` returns. None,
    or an exception, which is logged, leaves it open for people. Several bots, and people, may share a need.
    """

    def __init__(
        self, human: AsyncHumanTasks, need: str, decide: Callable[[TaskSummary], object], *, by: str, poll: timedelta
    ) -> None:
        self._human = human
        self._need = need
        self._decide = decide
        self._by = by
        self._desk = _Desk(need, decide, poll)
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Decide what is open and what will be, until `stop`."""
        while not self._stopping.is_set():
            await self.look()
            try:
                async with asyncio.timeout(self._desk.poll_seconds):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    def stop(self) -> None:
        """End `run` after the task it is at; on the loop's thread, also before `run`."""
        self._stopping.set()

    async def look(self) -> int:
        """Decide what is open now; how many tasks were decided."""
        found = self._desk.new(await self._human.list(need=self._need, limit=_TASKS_MAX))
        decided = 0
        for task in found:
            if not self._stopping.is_set():
                decided += await self._review(task)
        return decided

    async def _review(self, task: TaskSummary) -> bool:
        try:
            await self._human.claim(task.task_id, by=self._by, duration=_CLAIM)
        except _NOT_OURS:
            return False
        try:
            value: Any = self._decide(task)
            if inspect.isawaitable(value):
                value = await value
            if value is not None:
                await self._human.decide(task.task_id, value, by=self._by)
                return True
            self._desk.leave(task)
        except _TAKEN_AWAY:
            return False  # Its time was over, or its run ended, while the bot thought.
        except Exception as error:  # noqa: BLE001 - one task must not stop the bot; the log says which and why
            self._desk.leave(task, error)
        await self._give_back(task)
        return False

    async def _give_back(self, task: TaskSummary) -> None:
        try:
            await self._human.release(task.task_id, by=self._by)
        except _TAKEN_AWAY:
            return
