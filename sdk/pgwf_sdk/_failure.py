"""Exceptions to bytes and back, so that `except CardDeclined` in a workflow works when the step ran elsewhere.

The envelope is JSON: {"type": "module:Qualname", "message", "args", "attributes", "traceback", "notes", "cause",
"exceptions"}. A class is only ever looked up among imported modules, and only Exceptions are rebuilt.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from pgwf_sdk._errors import StepFailedError, UndecodableError, WorkflowError
from pgwf_sdk._names import class_name, imported_class
from pgwf_sdk._sealing import MARK, unopened
from pgwf_sdk._tagged import from_tagged, to_tagged

if TYPE_CHECKING:
    from types import TracebackType

CAUSES_MAX: Final = 16
TEXT_CHARS_MAX: Final = 8_000
FRAMES_MAX: Final = 50
MEMBERS_MAX: Final = 50

_OWN_FILES: Final = str(Path(__file__).parent)
_NOTHING: Final = msgspec.Raw(b"null")


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
    return f"{type(error).__name__}: {error.said if isinstance(error, WorkflowError) else error}"


def message_of(payload: bytes | None) -> str:
    """The message of an error as it was described; empty when there is none."""
    try:
        return _decoder.decode(payload or b"").message
    except msgspec.MsgspecError:
        return ""


def _envelope(error: BaseException, causes: int) -> _Envelope:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return _Envelope(
        type=class_name(type(error)),
        message=_cut(_message(error)),
        args=_stored(_arguments(error)),
        attributes=_stored_attributes(error),
        traceback=_traceback_text(error.__traceback__),
        notes=[_cut(str(note)) for note in getattr(error, "__notes__", [])][:MEMBERS_MAX],
        cause=_envelope(cause, causes - 1) if cause is not None and causes > 1 else None,
        exceptions=_members(error, causes - 1),
    )


def _members(error: Any, causes: int) -> list[_Envelope] | None:
    if not isinstance(error, BaseExceptionGroup) or causes < 1:
        return None
    members: tuple[BaseException, ...] = cast("Any", error).exceptions
    return [_envelope(member, causes) for member in members[:MEMBERS_MAX]]


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001 - a broken __str__ of the user must not hide the failure itself
        return f"(its message cannot be read: {type(fault).__name__})"


def _arguments(error: BaseException) -> list[object]:
    """What makes the exception again; an OSError keeps its paths outside of `args`."""
    arguments: list[object] = list(error.args)
    if isinstance(error, OSError) and error.filename is not None and len(arguments) == 2:
        arguments.append(error.filename)
        if error.filename2 is not None:
            arguments += [None, error.filename2]
    return arguments


def _stored(value: object) -> msgspec.Raw:
    try:
        stored = to_tagged(value, "args")
    except Exception:  # noqa: BLE001 - whatever the user's objects raise when they are read, the failure must be told
        return _NOTHING
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
    cls = imported_class(envelope.type)
    error = None
    # StopIteration cannot pass through a coroutine, and BaseExceptions are not for a stored record to raise.
    if cls is not None and issubclass(cls, Exception) and not issubclass(cls, StopIteration | StopAsyncIteration):
        error = _rebuilt_group(cls, envelope) if envelope.exceptions is not None else _instance(cls, envelope)
    if error is None:
        error = StepFailedError(f"{envelope.type}: {envelope.message}", type_name=envelope.type)
    if envelope.cause is not None:
        error.__cause__ = _rebuilt(envelope.cause)
    for note in envelope.notes:
        error.add_note(note)
    if envelope.traceback:
        error.add_note(f"Remote traceback (most recent call last):\n{envelope.traceback.rstrip()}")
    return error


def _instance(cls: type[Exception], envelope: _Envelope) -> Exception | None:
    arguments = tuple(_unstored(envelope.args, [envelope.message]))
    error = _constructed(cls, arguments)
    if error is None:
        return None
    for name, value in _unstored(envelope.attributes, {}).items():
        try:
            setattr(error, name, value)
        except (AttributeError, TypeError):
            continue  # Read-only in this version of the class.
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
