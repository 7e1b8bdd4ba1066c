"""Awakeables: promises of a run that somebody outside completes with a token."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Final

from pgwf_journal import Entry, Kind, Phase
from pgwf_sdk import _failure
from pgwf_sdk._errors import WaitTimeoutError
from pgwf_sdk._wording import within_words
from pgwf_sdk.replay._calls import PendingCall
from pgwf_sdk.replay._commands import Command, OpenAwakeable

if TYPE_CHECKING:
    from datetime import timedelta

    from pgwf_sdk._serial import Codec
    from pgwf_sdk.replay._scope import Scope

__all__ = ["AwakeableCall"]

_TOKEN_BYTES: Final = 18
"""144 bits, which nobody guesses, and 24 letters without padding."""


class AwakeableCall(PendingCall):
    """A promise. Its token is derived, so that a replay gives the code the one it gave away, and is stored nowhere."""

    __slots__ = ("codec", "has_followers", "timeout")
    kind = Kind.AWAKEABLE

    def __init__(self, scope: Scope, name: str, codec: Codec, timeout: timedelta | None) -> None:
        super().__init__(scope, name)
        self.codec = codec
        self.timeout = timeout
        self.has_followers = False
        """True when steps are held back until it is recorded."""

    @property
    def token(self) -> str:
        """What whoever completes the promise must have: HMAC-SHA256 of run and call under the installation's key."""
        run = self.scope.machine.run
        named = f"{run.run_id}\0{self.id.key}".encode()
        digest = hmac.digest(run.token_key, named, "sha256")[:_TOKEN_BYTES]
        return f"awk_{urlsafe_b64encode(digest).decode()}"

    def command(self) -> Command:
        token_hash = hashlib.sha256(self.token.encode()).hexdigest()
        return OpenAwakeable(self.id, token_hash, self.timeout, self.opened, self.has_followers)

    def settle(self, entry: Entry) -> None:
        if entry.phase == Phase.COMPLETED:
            self.value = self.codec.decode_sent(entry.payload, entry.encoding)
        elif entry.phase == Phase.FAILED:
            self.error = _failure.rebuild(entry.payload)
        else:
            within = within_words(self.timeout)
            self.error = WaitTimeoutError(f"awakeable {self.name!r} was not completed{within}", name=self.name)
        self.is_done = True
