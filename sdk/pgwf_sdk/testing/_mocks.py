"""Stand-ins for steps, found by the name that journals know the step by."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from threading import Lock
from typing import Any, Generic

from typing_extensions import ParamSpec, TypeVar

from pgwf_sdk._definition import Step
from pgwf_sdk._errors import SerialisationError
from pgwf_sdk._names import annotation_text
from pgwf_sdk._retry import NonRetryable
from pgwf_sdk._wording import count_words
from pgwf_sdk.replay._places import Line

P = ParamSpec("P")
R = TypeVar("R", default=Any)


@dataclass(frozen=True, slots=True)
class MockCall:
    """One execution of a mocked step: by which run, at which entry key, the how-manieth attempt, with what."""

    run_id: str
    key: str
    attempt: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class UnusedMockWarning(UserWarning):
    """A test mocked a step that none of its runs called; the warning stands at the line that made the mock."""


class StepMock(Generic[R]):
    """Answers in a step's stead; `calls` has its executions in order, those after a crash included.

    What it returns goes through the step's own encoding, so what cannot be stored is refused, and so is a value of
    another type than the step is annotated with.
    """

    def __init__(
        self, name: str, answer: Callable[..., R] | Sequence[R | BaseException], *, line: Line | None = None
    ) -> None:
        self.name = name
        self.calls: list[MockCall] = []
        self._line = line or ("<unknown>", 0)
        self._answer = answer
        self._places: dict[tuple[str, str, int], int] = {}
        self._lock = Lock()

    @property
    def call_count(self) -> int:
        """How often it was executed."""
        return len(self.calls)

    def rewind(self) -> None:
        """Forget all calls, and begin with the first outcome again."""
        with self._lock:
            self.calls.clear()
            self._places.clear()

    def warn_if_unused(self, executed: Sequence[str]) -> None:
        """UnusedMockWarning, where the mock was made: nothing called it. `executed` names the steps that were."""
        if self.calls:
            return
        path, number = self._line
        found = f"the steps executed were {', '.join(map(repr, executed))}" if executed else "no step was executed"
        warnings.warn_explicit(
            f"mock of step {self.name!r} was not called: {found}; give it the name that the step has in the journal, or"
            " leave it out",
            UnusedMockWarning,
            path,
            number,
        )

    def stand_in(self, step: Step[..., Any], run_id: str, key: str, attempt: int) -> Step[..., Any]:
        """The step with this mock as its function; one that would take a connection takes none.

        Its place among the outcomes is given now, where attempts begin in order: on their threads they race. An attempt
        that is made again, because its worker died, keeps its place.
        """
        with self._lock:
            if callable(self._answer) or len(self._places) < len(self._answer):
                self._places.setdefault((run_id, key, attempt), len(self._places))

        @wraps(step.fn)
        def answer(*args: Any, **kwargs: Any) -> R:
            value = self._value(MockCall(run_id, key, attempt, args, kwargs))
            if not _is_fitting(value, step):
                raise SerialisationError(
                    f"mock of step {self.name!r}: {value!r} is no {annotation_text(step.codec.annotation)}, which the"
                    " step is annotated to return; give it a value of that type",
                    path="result",
                )
            return value

        stand_in = replace(step, fn=answer, is_transaction=False, isolate=None)
        vars(stand_in).update(is_async=False, codec=step.codec)
        return stand_in

    def _value(self, call: MockCall) -> R:
        if callable(self._answer):
            with self._lock:
                self.calls.append(call)
            return self._answer(*call.args, **call.kwargs)
        outcome = self._outcome(call, self._answer)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _outcome(self, call: MockCall, outcomes: Sequence[R | BaseException]) -> R | BaseException:
        with self._lock:
            self.calls.append(call)
            place = self._places.get((call.run_id, call.key, call.attempt))
        if place is None:
            raise NonRetryable(
                f"mock of step {self.name!r}: {call.run_id}{call.key} is call {len(outcomes) + 1},"
                f" but given: {count_words(len(outcomes), 'outcome')}; give one for each call and each retry"
            )
        return outcomes[place]


def _is_fitting(value: object, step: Step[..., Any]) -> bool:
    """An instance of the annotated class fits even if it is not equal to its copy, as NaN and some classes are not."""
    cls = step.codec.annotation
    return step.codec.accepts(value) or (isinstance(cls, type) and isinstance(value, cls))
