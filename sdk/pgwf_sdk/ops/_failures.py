"""Errors as a journal records them: what a person needs of the envelope."""

import msgspec
from msgspec import Struct

from pgwf_sdk._sealing import is_sealed, sealed_by


class Failure(Struct, frozen=True, kw_only=True):
    """An exception that was recorded: its class as `module:Qualname`, its message, and where it was raised."""

    type: str = "unknown"
    message: str = ""
    traceback: str = ""
    notes: list[str] = []

    def line(self) -> str:
        """Class and message, as the last line of a traceback has them."""
        name = self.type.rpartition(":")[2]
        return f"{name}: {self.message}" if self.message else name


def failure_of(payload: str | None) -> Failure | None:
    """The failure in the payload of an entry or attempt; None when there is none, or in a form nobody knows."""
    if payload is None:
        return None
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError:
        return None


def error_words(payload: str | None) -> str:
    """The failure in a payload in one line, or why it cannot be told."""
    if payload is not None and is_sealed(payload):
        return f"an error that cannot be read: {sealed_by(payload)}"
    failure = failure_of(payload)
    return "an error that was not recorded" if failure is None else failure.line()


_decoder = msgspec.json.Decoder(Failure)
