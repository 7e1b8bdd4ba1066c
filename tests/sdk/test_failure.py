"""Exceptions to bytes and back: what `except` in a workflow sees is what the step raised."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pgwf_sdk import StepFailedError, StepTimeoutError
from pgwf_sdk._failure import CAUSES_MAX, TEXT_CHARS_MAX, describe, line_in, line_of, rebuild


class DeclinedError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code
        self.handle = object()


class KeywordOnlyError(Exception):
    def __init__(self, *, run_id: str) -> None:
        super().__init__(f"run {run_id}")
        self.run_id = run_id


class StubbornError(Exception):
    def __new__(cls, first: int) -> StubbornError:
        return super().__new__(cls, first)

    def __init__(self, first: int) -> None:
        raise RuntimeError("never twice")


class BrokenError(Exception):
    """Everything of it that can be broken is."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.__dict__.update(code=1, kept=2, __notes__=[Unspeakable()])

    @property
    def code(self) -> int:
        return 1

    @code.setter
    def code(self, found: int) -> None:
        raise ValueError(f"{found} is no code")

    def __str__(self) -> str:
        raise RuntimeError("no message")

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise RuntimeError("neither")


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


SECRETS = {"args", "__notes__", "__cause__", "__context__", "__suppress_context__", "__dict__", "__traceback__"}


class SecretiveError(Exception):
    """Says nothing of itself."""

    def __getattribute__(self, name: str) -> Any:
        if name in SECRETS:
            raise RuntimeError(f"{name} is not to be read")
        return super().__getattribute__(name)


class UntouchableError(Exception):
    """Lets nothing be set."""

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError(f"{name} is not to be set")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - given to the caller
        return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 5),
        KeyError("missing"),
        FileNotFoundError(2, "No such file", "/a"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        DeclinedError(51),
        KeywordOnlyError(run_id="r"),
        StepTimeoutError("too late", step="charge", attempt=3),
        ExceptionGroup("several", [ValueError(1), TypeError("t")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_as_its_own_class_with_its_arguments_and_message(error: Exception) -> None:
    found = rebuild(describe(raised(error)))

    assert type(found) is type(error)
    assert str(found) == str(error)
    if not isinstance(error, ExceptionGroup):
        assert found.args == error.args


def test_attributes_come_back_as_far_as_they_can_be_stored() -> None:
    found = rebuild(describe(DeclinedError(51)))

    assert isinstance(found, DeclinedError)
    assert found.code == 51
    assert vars(rebuild(describe(StepTimeoutError("x", step="charge")))) == {"step": "charge", "attempt": 0}


def test_causes_notes_and_the_remote_traceback_come_along() -> None:
    def inner() -> None:
        raise DeclinedError(5)

    try:
        try:
            inner()
        except DeclinedError as cause:
            error = ValueError("outer")
            error.add_note("look here")
            raise error from cause
    except ValueError as caught:
        found = rebuild(describe(caught))

    assert isinstance(found.__cause__, DeclinedError)
    assert found.__notes__[0] == "look here"
    assert "in inner" in found.__cause__.__notes__[0]
    assert __file__ in found.__notes__[1]


def test_a_class_that_is_not_imported_becomes_step_failed_and_is_never_imported() -> None:
    found = rebuild(b'{"type": "antigravity:FloatError", "message": "up"}')

    assert isinstance(found, StepFailedError)
    assert found.type_name == "antigravity:FloatError"
    assert str(found) == "antigravity:FloatError: up"


@pytest.mark.parametrize("name", ["builtins:KeyboardInterrupt", "builtins:StopIteration", "builtins:dict", "x", ""])
def test_only_exceptions_are_rebuilt(name: str) -> None:
    found = rebuild(json.dumps({"type": name, "message": "m"}).encode())

    assert type(found) is StepFailedError


def test_a_class_whose_init_cannot_run_again_is_rebuilt_without_it() -> None:
    stubborn = StubbornError.__new__(StubbornError, 1)

    found = rebuild(describe(stubborn))

    assert type(found) is StubbornError
    assert found.args == (1,)


def test_an_envelope_stays_small() -> None:
    error: Exception = ValueError("x" * 100_000)
    for _ in range(100):
        outer = ValueError("y" * 10_000)
        outer.__cause__ = error
        error = outer

    envelope = describe(error)
    depth, found = 0, msgspec.json.decode(envelope)
    while found is not None:
        depth, found = depth + 1, found.get("cause")

    assert depth == CAUSES_MAX
    assert len(envelope) < (CAUSES_MAX + 1) * 2 * TEXT_CHARS_MAX


def test_a_broken_message_does_not_hide_the_failure() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert b"its message cannot be read: RuntimeError" in describe(BrokenError())


@pytest.mark.parametrize("cls", [BrokenError, SecretiveError, UntouchableError])
def test_a_class_that_raises_wherever_it_is_read_or_set_comes_back_all_the_same(cls: type[Exception]) -> None:
    error = raised(cls("said"))
    outer = ValueError("outer")
    outer.__cause__ = error

    found, cause = rebuild(describe(error, note="the last")), rebuild(describe(outer)).__cause__

    assert type(found) is cls
    assert type(cause) is cls
    assert line_of(found).startswith(f"{cls.__name__}: ")
    assert line_in(describe(error)).startswith(f"{cls.__name__}: ")


def test_what_can_be_read_of_a_broken_class_comes_back() -> None:
    found: Any = rebuild(describe(BrokenError("said"), note="the last"))

    assert found.args == ("said",)
    assert found.kept == 2
    assert found.__notes__[-1] == "the last"


def test_groups_of_groups_stay_small() -> None:
    members: list[Exception] = [ValueError(number) for number in range(60)]
    for _ in range(3):
        members = [ExceptionGroup("group", members) for _ in range(40)]

    envelope = describe(ExceptionGroup("all", members))

    assert len(envelope) < 50_000


def test_notes_that_are_no_list_are_left_out() -> None:
    error = ValueError("bad")
    error.__notes__ = 5  # type: ignore[assignment]  # what a user's class may do

    assert rebuild(describe(error)).args == ("bad",)


def test_a_payload_that_is_no_envelope_is_a_failure_all_the_same() -> None:
    found: Any = rebuild(b"[]")

    assert type(found) is StepFailedError
