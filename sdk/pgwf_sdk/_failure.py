"""Exceptions to bytes and back, so that `except CardDeclined` in a workflow works when the step ran elsewhere.

The envelope is JSON: {"type": "module:Qualname", "message", "args", "attributes", "traceback", "notes", "cause",
"exceptions"}. A class is only ever looked up among imported modules, and only Exceptions are rebuilt.

Whatever the classes of the user raise while they are read or made, the failure is told, and rebuilt, with what is left.
"""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from pgwf_sdk._errors import StepFailedError, UndecodableError, WorkflowError
from pgwf_sdk._names import class_name, imported_class
from pgwf_sdk._sealing import MARK, unopened
from pgwf_sdk._tagged import from_tagged, to_tagged
from pgwf_sdk._wording import text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

CAUSES_MAX: Final = 16
TEXT_CHARS_MAX: Final = 8_000
FRAMES_MAX: Final = 50
MEMBERS_MAX: Final = 50

_OWN_FILES: Final = str(Path(__file__).parent)
_NOTHING: Final = msgspec.Raw(b"null")

T = TypeVar("T")


class _Envelope(msgspec.Struct, omit_defaults=True):
    type: str
    message: str = ""
    args: msgspec.Raw = _NOTHING
    attributes: msgspec.Raw = _NOTHING
    traceback: str = ""
    notes: list[str] = []
    cause: _Envelope | None = None
    exceptions: list[_Envelope] | None = None


def describe(error: BaseException, *, note: str = "") -> bytes:
    """Return the envelope of an exception: what `rebuild` needs, and what a person wants to read in SQL.

    `note` is added to its notes, here only: the exception may be one that its raiser keeps.
    """
    envelope = _envelope(error, CAUSES_MAX)
    if note:
        envelope.notes.append(note)
    return _encoder.encode(envelope)


def rebuild(payload: bytes | None) -> Exception:
    """Return the exception an envelope describes, with the remote traceback as a note.

    Its own class if this process has imported it, otherwise a StepFailedError that names the class. SealedError:
    the envelope is sealed, and nobody has opened it.
    """
    if payload is not None and payload.startswith(MARK):
        raise unopened(payload, "the error cannot be read")
    try:
        return _rebuilt(_decoder.decode(payload or b'{"type": ""}'))
    except msgspec.MsgspecError as error:
        return StepFailedError(f"the failure was stored in an unknown form: {error}")


def line_of(error: BaseException) -> str:
    """`Class: message`, for an error that builds upon this one and says itself what to do."""
    return f"{type(error).__name__}: {error.said if isinstance(error, WorkflowError) else text_of(error)}"


def line_in(payload: bytes | None) -> str:
    """`Class: message` of an error that was described, of which nothing is rebuilt for that."""
    try:
        envelope = _decoder.decode(payload or b"")
    except msgspec.MsgspecError:
        return "an unknown error"
    return f"{envelope.type.rpartition(':')[2].rpartition('.')[2]}: {envelope.message}"


def message_of(payload: bytes | None) -> str:
    """The message of an error as it was described; empty when there is none."""
    try:
        return _decoder.decode(payload or b"").message
    except msgspec.MsgspecError:
        return ""


def log_info(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """`exc_info` of any error: logging asks whether what it is given is true, and an error may be without length."""
    return type(error), error, error.__traceback__


def _envelope(error: BaseException, causes: int, members: int = MEMBERS_MAX) -> _Envelope:
    cause = _readable(lambda: _cause(error), None)
    return _Envelope(
        type=class_name(type(error)),
        message=_cut(text_of(error)),
        args=_readable(lambda: _stored(_arguments(error)), _NOTHING),
        attributes=_readable(lambda: _stored_attributes(error), _NOTHING),
        traceback=_traceback_text(_readable(lambda: error.__traceback__, None)),
        notes=_readable(lambda: _notes(error), []),
        cause=_envelope(cause, causes - 1, members) if cause is not None and causes > 1 else None,
        exceptions=_members(error, causes - 1, members),
    )


def _readable(part: Callable[[], T], otherwise: T) -> T:
    """What an object of the user says of itself, unless that raises: a failure must be told all the same."""
    try:
        return part()
    except Exception:  # noqa: BLE001 - see above
        return otherwise


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def _notes(error: BaseException) -> list[str]:
    notes: list[object] = getattr(error, "__notes__", [])
    return [_cut(text_of(note)) for note in notes[:MEMBERS_MAX]]


def _members(error: Any, causes: int, members_max: int) -> list[_Envelope] | None:
    """The members of a group; those of groups within share its number."""
    if not isinstance(error, BaseExceptionGroup) or causes < 1:
        return None
    members: tuple[BaseException, ...] = cast("Any", error).exceptions[:members_max]
    return [_envelope(member, causes, max(members_max // len(members), 1)) for member in members]


def _arguments(error: BaseException) -> list[object]:
    """What makes the exception again; an OSError keeps its paths outside of `args`."""
    arguments: list[object] = list(error.args)
    if isinstance(error, OSError) and error.filename is not None and len(arguments) == 2:
        arguments.append(error.filename)
        if error.filename2 is not None:
            arguments += [None, error.filename2]
    return arguments


def _stored(value: object) -> msgspec.Raw:
    stored = _readable(lambda: to_tagged(value, "args"), b"null")
    return msgspec.Raw(stored) if len(stored) <= TEXT_CHARS_MAX else _NOTHING


def _stored_attributes(error: BaseException) -> msgspec.Raw:
    kept = {
        name: value
        for name, value in vars(error).items()
        if not name.startswith("__") and bytes(_stored(value)) != b"null"
    }
    return _stored(kept) if kept else _NOTHING


def _traceback_text(trace: TracebackType | None) -> str:
    """The frames of the user: those of the SDK say nothing about the fault."""
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(_OWN_FILES)]
    return _cut("".join(traceback.format_list(frames[-FRAMES_MAX:])))


def _cut(text: str) -> str:
    clean = text.encode(errors="replace").decode()
    return clean if len(clean) <= TEXT_CHARS_MAX else f"{clean[:TEXT_CHARS_MAX]}… ({len(clean)} characters)"


def _rebuilt(envelope: _Envelope) -> Exception:
    error = _readable(lambda: _own(envelope), None)
    if error is None:
        error = StepFailedError(f"{envelope.type}: {envelope.message}", type_name=envelope.type)
    # What a class does not let itself be given is missing.
    if envelope.cause is not None:
        with suppress(Exception):
            error.__cause__ = _rebuilt(envelope.cause)
    remote = f"Remote traceback (most recent call last):\n{envelope.traceback.rstrip()}" if envelope.traceback else ""
    for note in filter(None, (*envelope.notes, remote)):
        with suppress(Exception):
            error.add_note(note)
    return error


def _own(envelope: _Envelope) -> Exception | None:
    """An error of the class that was raised, if this process knows it."""
    cls = imported_class(envelope.type)
    # StopIteration cannot pass through a coroutine, and BaseExceptions are not for a stored record to raise.
    if cls is None or not issubclass(cls, Exception) or issubclass(cls, StopIteration | StopAsyncIteration):
        return None
    return _rebuilt_group(cls, envelope) if envelope.exceptions is not None else _instance(cls, envelope)


def _instance(cls: type[Exception], envelope: _Envelope) -> Exception | None:
    arguments = tuple(_unstored(envelope.args, [envelope.message]))
    error = _constructed(cls, arguments)
    if error is None:
        return None
    for name, value in _unstored(envelope.attributes, {}).items():
        with suppress(Exception):  # Read-only, or of another kind, in this version of the class.
            setattr(error, name, value)
    return error


def _constructed(cls: type[Exception], arguments: tuple[Any, ...]) -> Exception | None:
    """An `__init__` may take something else than `args`, so its result counts only when it has the stored `args`."""
    try:
        error = cls(*arguments)
        if error.args == arguments or isinstance(error, OSError):
            return error
    except Exception:  # noqa: BLE001 - whatever the user's __init__ raises, the next way is without it
        pass
    try:
        error = cls.__new__(cls, *arguments)
        error.args = arguments
    except Exception:  # noqa: BLE001 - the caller falls back to StepFailedError, which names the class
        return None
    return error


def _rebuilt_group(cls: type[Exception], envelope: _Envelope) -> Exception | None:
    members = [_rebuilt(member) for member in envelope.exceptions or []]
    if not issubclass(cls, ExceptionGroup) or not members:
        return None
    title = (_unstored(envelope.args, []) or [envelope.message.rpartition(" (")[0]])[0]
    group: ExceptionGroup[Exception] = ExceptionGroup(str(title), members)
    return group


def _unstored(raw: msgspec.Raw, otherwise: Any) -> Any:
    try:
        found = from_tagged(bytes(raw))
    except UndecodableError:
        return otherwise
    return found if type(found) is type(otherwise) else otherwise


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Envelope)
