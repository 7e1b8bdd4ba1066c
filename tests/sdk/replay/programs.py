"""Random workflows as data: what a program does, which programs there are, and what the outside owes each of them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hypothesis import strategies as st
from msgspec import Struct, structs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import SearchStrategy

DEPTH_MAX = 3

How: TypeAlias = Literal["value", "error", "never"]
"""What becomes of a promise."""


class Do(Struct, frozen=True, tag=True):
    """A step; a negative number makes it fail."""

    number: int


class Flaky(Struct, frozen=True, tag=True):
    """A step that succeeds after so many failed attempts."""

    number: int
    failures: int


class Dawdle(Struct, frozen=True, tag=True):
    """A step that outlasts the time of so many attempts; with a negative number, of all it has."""

    number: int
    attempts: int = 1
    is_plain: bool = False


class Sleep(Struct, frozen=True, tag=True):
    seconds: int


class Receive(Struct, frozen=True, tag=True):
    """Wait for a signal; all that are sent under a name are equal, so it does not matter which branch takes which.

    It is there from the start, or comes `after` so many seconds and a half, or not at all.
    """

    seconds: int | None
    comes: bool
    after: int | None = None
    name: str = ""


class Answer(Struct, frozen=True, tag=True):
    """Ask somebody, and wait for the answer or for so many seconds."""

    how: How
    seconds: int | None
    after: int | None = None
    name: str = ""


class Promise(Struct, frozen=True, tag=True):
    """Ask somebody, do something else, and then wait for the answer."""

    how: How
    seconds: int | None
    body: Program
    after: int | None = None
    name: str = ""


class Rival(Struct, frozen=True, tag=True):
    """A signal and a timer, of which the first is enough."""

    seconds: int
    comes: bool
    after: int | None = None
    name: str = ""


class Draw(Struct, frozen=True, tag=True):
    """Take a random number of the scope."""


class Record(Struct, frozen=True, tag=True):
    """A value computed by the workflow itself; a negative one is an error."""

    number: int


class Child(Struct, frozen=True, tag=True):
    """A run of its own; a negative number makes it fail."""

    number: int


class Book(Struct, frozen=True, tag=True):
    """A step with an undo."""

    number: int


class Finish(Struct, frozen=True, tag=True):
    """A step that comes to its end although its run is cancelled."""

    number: int


class Defer(Struct, frozen=True, tag=True):
    """A step that is recorded with what comes next; a negative number makes it fail."""

    number: int


class Attach(Struct, frozen=True, tag=True):
    """Wait for a run that is over, has failed, goes on or is not there."""

    run_id: Literal["over", "failed", "long", "nobody"]
    seconds: int | None = None


class Away(Struct, frozen=True, tag=True):
    """A step for which the run goes to another fleet and comes back."""

    number: int


class Exit(Struct, frozen=True, tag=True):
    """Plan a step for the end of the run."""

    number: int


class Shield(Struct, frozen=True, tag=True):
    """A part that is not told of a cancellation."""

    body: Program


class Guard(Struct, frozen=True, tag=True):
    """Go on after a failure inside."""

    body: Program


class Swallow(Struct, frozen=True, tag=True):
    """Go on whatever is raised inside, be it what ends a coroutine or a suspended call."""

    body: Program


class Finally(Struct, frozen=True, tag=True):
    """Do the second part however the first one ends."""

    body: Program
    last: Program


class Policy(Struct, frozen=True, tag=True):
    """When a fork or a map has enough."""

    kind: Literal["all settled", "min successful", "tolerated failures"]
    count: int = 1


class Fork(Struct, frozen=True, tag=True):
    bodies: tuple[Program, ...]
    policy: Policy | None = None
    width: int | None = None


class MapSteps(Struct, frozen=True, tag=True):
    numbers: tuple[int, ...]
    width: int | None
    policy: Policy | None = None


class MapChildren(Struct, frozen=True, tag=True):
    numbers: tuple[int, ...]
    width: int | None
    policy: Policy | None = None


class MapBody(Struct, frozen=True, tag=True):
    count: int
    body: Program
    width: int | None
    policy: Policy | None = None


class Race(Struct, frozen=True, tag=True):
    """Only in async programs: the first of several bodies wins, the others are cancelled."""

    bodies: tuple[Program, ...]


class Limit(Struct, frozen=True, tag=True):
    """Only in async programs: a body that may take so many seconds, by `asyncio.timeout` or by `asyncio.wait_for`."""

    seconds: int
    body: Program
    is_task: bool = False


class Tasks(Struct, frozen=True, tag=True):
    """Only in async programs: bodies side by side in one scope."""

    bodies: tuple[Program, ...]


Op: TypeAlias = (
    Do | Flaky | Dawdle | Sleep | Receive | Answer | Promise | Rival | Draw | Record | Child | Book | Finish | Defer
    | Attach | Away | Exit | Shield | Guard | Swallow | Finally | Fork | MapSteps | MapChildren | MapBody | Race | Limit
    | Tasks
)  # fmt: skip
Program: TypeAlias = tuple[Op, ...]

Awaited: TypeAlias = Receive | Answer | Promise | Rival
"""What waits for something from outside that bears its name."""


def bodies_of(op: Op) -> dict[str, tuple[Program, ...]]:
    """The programs within an op, by field."""
    parts = {name: getattr(op, name) for name in ("body", "last") if hasattr(op, name)}
    return {name: (part,) for name, part in parts.items()} | ({"bodies": op.bodies} if hasattr(op, "bodies") else {})


def named(program: Program, names: Iterator[str]) -> Program:
    """The program with a name of its own for each place that waits for the outside."""
    return tuple(_named(op, names) for op in program)


def _named(op: Op, names: Iterator[str]) -> Op:
    changes: dict[str, Any] = {"name": next(names)} if isinstance(op, Awaited) else {}
    for field, programs_within in bodies_of(op).items():
        inner = tuple(named(program, names) for program in programs_within)
        changes[field] = inner if field == "bodies" else inner[0]
    return structs.replace(op, **changes)


def size(program: Program) -> int:
    """How many ops there are, those within others included."""
    inner = [body for op in program for bodies in bodies_of(op).values() for body in bodies]
    return len(program) + sum(map(size, inner))


def awaited(program: Program, times: int = 1) -> Iterator[tuple[Awaited, int]]:
    """All places that wait for the outside, and how often at most."""
    for op in program:
        if isinstance(op, Awaited):
            yield op, times
        inner_times = times * op.count if isinstance(op, MapBody) else times
        for programs_within in bodies_of(op).values():
            for inner in programs_within:
                yield from awaited(inner, inner_times)


def programs(
    *, with_asyncio: bool = False, is_ordered: bool = False, is_timed: bool = True, escapes: bool = False
) -> SearchStrategy[Program]:
    """Programs. In one that is not `is_ordered` anything may fail anywhere, so what comes first decides what happens.

    In an ordered one no order does: a failure reaches only parts that have no other open beside it. What comes from
    outside comes some time later (`is_timed`), else it is there from the start or never comes, and there are no other
    runs to attach to. With `escapes` one of the branches of an ordered one may fail and cut off the others wherever
    they are: the results are the same, what was recorded of the others is not.
    """
    return Grammar(with_asyncio=with_asyncio, is_ordered=is_ordered, is_timed=is_timed, escapes=escapes).program()


NUMBERS = st.integers(0, 5)
BAD_NUMBERS = st.integers(-3, -1)
WIDTHS = st.none() | st.integers(1, 2)
SECONDS = st.integers(1, 50)
NEVER_SECONDS = 1_000_000


class Grammar(Struct, frozen=True):
    """Which programs there are."""

    with_asyncio: bool
    is_ordered: bool
    is_timed: bool
    escapes: bool

    def program(self) -> SearchStrategy[Program]:
        """Whole programs; of the ordered ones some fail at their end."""
        body = self._body(DEPTH_MAX)
        if self.is_ordered:
            body = body | st.builds(_then, body, self._fault())
        return body.map(lambda program: named(program, (f"outside-{n}" for n in count())))

    def _body(self, depth: int) -> SearchStrategy[Program]:
        inside = self._leaves() if self.is_ordered else [*self._leaves(), self._fault()]
        if depth == 0:
            return st.lists(st.one_of(inside), max_size=3).map(tuple)
        return st.lists(st.one_of([*inside, *self._nested(self._body(depth - 1))]), max_size=4).map(tuple)

    def _later(self) -> SearchStrategy[int | None]:
        return st.none() | st.integers(0, 50) if self.is_timed else st.none()

    def _leaves(self) -> list[SearchStrategy[Op]]:
        later = self._later()
        others: list[SearchStrategy[Op]] = [st.builds(Attach, st.just("over"))] if self.is_timed else []
        return [
            *others,
            st.builds(Do, NUMBERS),
            st.builds(Flaky, NUMBERS, st.integers(1, 2)),
            st.builds(Sleep, st.integers(0, 50)),
            st.builds(Receive, SECONDS, st.booleans(), later),
            st.builds(Receive, st.none(), st.just(True), later),
            st.builds(Answer, st.just("value"), st.none(), later),
            self._rivals(),
            st.builds(Draw),
            st.builds(Record, NUMBERS),
            st.builds(Child, NUMBERS),
            # A booking that cannot be undone decides how a failing run ends, if it was made at all.
            st.builds(Book, st.integers(1, 5) if self.escapes else NUMBERS),
            st.builds(Finish, NUMBERS),
            st.builds(Defer, NUMBERS),
            st.builds(Away, NUMBERS),
            st.builds(Dawdle, NUMBERS, st.integers(1, 2), st.booleans()),
            st.builds(Exit, NUMBERS),
            st.builds(MapSteps, _tuples(NUMBERS, 4), WIDTHS),
            st.builds(MapSteps, _tuples(NUMBERS | BAD_NUMBERS, 3), WIDTHS, self._policies()),
            st.builds(MapChildren, _tuples(NUMBERS, 3), WIDTHS),
            st.builds(MapChildren, _tuples(NUMBERS | BAD_NUMBERS, 3), WIDTHS, self._policies()),
        ]

    def _fault(self) -> SearchStrategy[Op]:
        others: list[SearchStrategy[Op]] = [
            st.builds(Attach, st.sampled_from(["failed", "nobody"])),
            st.builds(Attach, st.just("long"), SECONDS),
        ]
        return st.one_of(
            *(others if self.is_timed else []),
            st.builds(Do, BAD_NUMBERS),
            st.builds(Defer, BAD_NUMBERS),
            st.builds(Dawdle, BAD_NUMBERS),
            st.builds(Record, BAD_NUMBERS),
            st.builds(Child, BAD_NUMBERS),
            st.builds(Answer, st.just("error"), st.none(), self._later()),
            st.builds(Answer, st.just("never"), SECONDS),
        )

    def _rivals(self) -> SearchStrategy[Op]:
        if self.is_timed or self.escapes:
            return st.builds(Rival, SECONDS, st.booleans(), self._later())
        # A timer that is due too when a worker comes to look is recorded, though it comes second.
        return st.builds(Rival, SECONDS, st.just(False)) | st.builds(Rival, st.just(NEVER_SECONDS), st.just(True))

    def _policies(self) -> SearchStrategy[Policy]:
        """Of the ordered ones each lets every branch end."""
        everything = st.just(Policy("all settled")) | st.just(Policy("tolerated failures", 4))
        if self.is_ordered:
            return everything
        return everything | st.builds(
            Policy, st.sampled_from(["min successful", "tolerated failures"]), st.integers(1, 3)
        )

    def _nested(self, inner: SearchStrategy[Program]) -> list[SearchStrategy[Op]]:
        failing = st.builds(_then, inner, self._fault())
        bodies, settled = _tuples(inner, 3), _tuples(inner | failing, 3)
        lone: SearchStrategy[Op] = st.one_of(
            st.builds(Shield, failing),
            st.builds(Finally, failing, inner),
            st.builds(Fork, st.tuples(failing)),
            st.builds(MapBody, st.just(1), failing, WIDTHS),
        )
        # An answer that is there from the start must not run against a time limit.
        limits = SECONDS if self.is_timed else st.none()
        late: SearchStrategy[Op] = st.one_of(
            st.builds(Promise, st.sampled_from(["value", "error"]), limits, inner, self._later()),
            st.builds(Promise, st.just("never"), SECONDS, inner),
        )
        nested: list[SearchStrategy[Op]] = [
            st.builds(Guard, inner | failing),
            st.builds(Swallow, inner | failing),
            st.builds(lambda op: Guard((op,)), lone | late),
            st.builds(Shield, inner),
            st.builds(Finally, inner, inner),
            st.builds(Promise, st.just("value"), st.none(), inner, self._later()),
            st.builds(Fork, bodies, st.none(), WIDTHS),
            st.builds(Fork, settled, self._policies(), WIDTHS),
            st.builds(MapBody, st.integers(0, 3), inner, WIDTHS),
            st.builds(MapBody, st.integers(0, 2), inner | failing, WIDTHS, self._policies()),
        ]
        if not self.is_ordered:
            nested += [lone, late]
        if self.escapes:
            beside = st.builds(
                lambda fault, others, at: Fork((*others[:at], fault, *others[at:])), failing, bodies, st.integers(0, 3)
            )
            nested.append(st.builds(lambda op: Guard((op,)), beside))
        if self.with_asyncio:
            nested += [
                st.builds(Race, _tuples(inner, 3, least=1)),
                st.builds(Limit, st.integers(1, 40), inner, st.booleans()),
                st.builds(Tasks, bodies),
            ]
        return nested


def _then(program: Program, op: Op) -> Program:
    return (*program, op)


def _tuples(one: SearchStrategy[Any], most: int, *, least: int = 0) -> SearchStrategy[tuple[Any, ...]]:
    return st.lists(one, min_size=least, max_size=most).map(tuple)
