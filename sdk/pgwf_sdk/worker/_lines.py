"""Source lines by number: the database numbers them once, and this process remembers."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import psycopg

from pgwf_sdk.ops._statements import sources_statement
from pgwf_sdk.replay import Source, seqs_of, with_sources
from pgwf_sql.database import AsyncDatabase, Row, Statement

log = logging.getLogger("pgwf_sdk.worker")

Line = tuple[str, int]

_AGAIN_SECONDS: Final = 1.0
_NOT_SAID: Final = "what was found may be of a value, and values are sealed: it is in the worker's log"


def _numbers(build: str, lines: Sequence[Line]) -> Statement[dict[Line, int]]:
    def read(rows: Sequence[Row]) -> dict[Line, int]:
        return {(row["file"], row["line"]): row["code"] for row in rows}

    parameters = {"build": build, "files": [file for file, _ in lines], "lines": [line for _, line in lines]}
    return Statement("journal_code_numbers", parameters, read, is_repeatable=True)


class Lines:
    """Answers at once for lines it has met; asks the database for the others, on a connection beside the hot one."""

    def __init__(
        self,
        database: AsyncDatabase,
        *,
        build: str,
        is_discreet: bool,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._database = database
        self._build = build
        self._is_discreet = is_discreet
        self._spawn = spawn
        self._known: dict[Line, int] = {}
        self._asked: set[Line] = set()
        self._waiting: list[Callable[[], None]] = []

    def numbers(self, lines: set[Line], then: Callable[[], None]) -> dict[Line, int] | None:
        """The numbers of `lines`; None when one is not known yet: `then` is called when it is."""
        if lines <= self._known.keys():
            return self._known
        missing = lines - self._known.keys()
        self._waiting.append(then)
        if new := sorted(missing - self._asked):
            self._asked |= missing
            self._spawn(self._ask(new))
        return None

    def explain(self, n: int, report: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        """Give `then` the report on run `n` with the places of its entries, or without them if they cannot be read."""
        self._spawn(self._explain(n, report, then))

    async def _explain(self, n: int, report: dict[str, Any], then: Callable[[dict[str, Any]], None]) -> None:
        sources: dict[int, Source] = {}
        try:
            sources = await self._database.run(sources_statement(n, seqs_of(report)))
        except psycopg.Error as error:
            log.warning("run %s: where its journal was recorded cannot be read: %s", report["run_id"], error)
        if self._is_discreet and report["detail"]:
            log.error("run %s: %s", report["run_id"], report["detail"])
            report = {**report, "detail": _NOT_SAID}
        then(with_sources(report, sources, build=self._build))

    async def _ask(self, lines: list[Line]) -> None:
        try:
            self._known |= await self._database.run(_numbers(self._build, lines))
        except psycopg.Error as error:
            log.warning("source lines cannot be numbered just now: %s", error)
            await asyncio.sleep(_AGAIN_SECONDS)  # Who waits asks again.
        finally:
            self._asked -= set(lines)
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then()
