"""Stand-ins for steps, found by the name that journals know the step by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from threading import Lock
from typing import Any, Generic

from typing_extensions import ParamSpec, TypeVar

from pgwf_sdk._definition import Step

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


class StepMock(Generic[R]):
    """Answers in a step's stead; `calls` has its executions in order, those after a crash included.

    What it returns goes through the step's own encoding, so a value the real step could not return is refused.
    """

    def __init__(self, name: str, answer: Callable[..., R] | Sequence[R | BaseException]) -> None:
        self.name = name
        self.calls: list[MockCall] = []
        self._answer = answer
        self._given: dict[tuple[str, str, int], R | BaseException] = {}
        self._lock = Lock()

    @property
    def call_count(self) -> int:
        """How often it was executed."""
        return len(self.calls)

    def rewind(self) -> None:
        """Forget all calls, and begin with the first outcome again."""
        with self._lock:
            self.calls.clear()
            self._given.clear()

    def stand_in(self, step: Step[..., Any], run_id: str, key: str, attempt: int) -> Step[..., Any]:
        """The step with this mock as its function; one that would take a connection takes none."""

        @wraps(step.fn)
        def answer(*args: Any, **kwargs: Any) -> R:
            call = MockCall(run_id, key, attempt, args, kwargs)
            if callable(self._answer):
                with self._lock:
                    self.calls.append(call)
                return self._answer(*args, **kwargs)
            outcome = self._outcome(call, self._answer)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        stand_in = replace(step, fn=answer, is_transaction=False, isolate=None)
        vars(stand_in).update(is_async=False, codec=step.codec)
        return stand_in

    def _outcome(self, call: MockCall, outcomes: Sequence[R | BaseException]) -> R | BaseException:
        """The next outcome; an attempt that is made again, because its worker died, gets what it got before."""
        with self._lock:
            self.calls.append(call)
            place = (call.run_id, call.key, call.attempt)
            if place not in self._given:
                if len(self._given) == len(outcomes):
                    raise AssertionError(
                        f"mock of step {self.name!r}: {call.run_id}{call.key} is call {len(outcomes) + 1},"
                        f" and {len(outcomes)} outcomes were given; give one for each call and each retry"
                    )
                self._given[place] = outcomes[len(self._given)]
            return self._given[place]
