"""What a database holds of a run's values may be compressed and encrypted: sealed by who writes, opened by who reads.

A sealed payload is JSON as well, in encoding 3, and says how it was sealed and by which key, so that a reader without
the key can tell what he lacks: `{"sealed":"zstd+aes256gcm","key":"2026-11","encoding":1,"data":"…"}`.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, cast

import msgspec

from pgwf_sdk._errors import DefinitionError, SealedError
from pgwf_sdk._kinds import kind_of

SEALED: Final = 3
"""The encoding of a sealed payload."""

KEY_BYTES: Final = 32
COMPRESS_BYTES_MIN: Final = 1024
"""Shorter payloads are not compressed: they would hardly shrink."""

MARK: Final = b'{"sealed":"'
"""What sealed payloads begin with."""
_GIVE_KEY: Final = (
    "give its reader the key: Client(dsn, sealing=Sealing({…})), Recording.load(file, sealing=…), or PGWF_KEYS on the"
    " command line"
)
_NONCE_BYTES: Final = 12
_ZSTD_LEVEL: Final = 3
_ENCRYPTED: Final = "aes256gcm"
_COMPRESSED: Final = "zstd"


class _Envelope(msgspec.Struct, omit_defaults=True):
    sealed: str
    data: str
    encoding: int = 1
    key: str | None = None


class _Decided(msgspec.Struct):
    value: msgspec.Raw
    by: msgspec.Raw
    at: msgspec.Raw


_envelopes = msgspec.json.Decoder(_Envelope)
_decided = msgspec.json.Decoder(_Decided)


class Sealing:
    """How values are sealed: compressed from `compress_bytes_min` bytes on (None: never), then encrypted if there are
    keys.

    `keys` are AES-256 keys of 32 bytes by their names. The first one seals; the others only open, so a key is replaced
    by putting its successor in front of it, in readers first. What is sealed is bound to its place: the call in the
    journal, the signal, the task. DefinitionError: a key of another length, or a package that is missing.
    """

    def __init__(
        self, keys: Mapping[str, bytes] | None = None, *, compress_bytes_min: int | None = COMPRESS_BYTES_MIN
    ) -> None:
        _check_options(keys, compress_bytes_min)
        self._compress_bytes_min = compress_bytes_min
        self._zstd = None if compress_bytes_min is None else _zstd()
        self._ciphers: dict[str, Any] = {}
        for name, key in (keys or {}).items():
            self._ciphers[name] = _aes()(key)
        self._current = next(iter(self._ciphers), None)

    def seal(self, payload: bytes | None, encoding: int, place: str) -> tuple[bytes | None, int]:
        """Return what to store at `place` instead of this payload; itself, if there is nothing to seal."""
        if payload is None or encoding == SEALED:
            return payload, encoding
        data, names = payload, list[str]()
        if self._zstd is not None and len(payload) >= (self._compress_bytes_min or 0):
            smaller: bytes = self._zstd.compress(payload, level=_ZSTD_LEVEL)
            if len(smaller) < len(payload):
                data, names = smaller, [_COMPRESSED]
        if self._current is not None:
            names.append(_ENCRYPTED)
            nonce = os.urandom(_NONCE_BYTES)
            cipher = self._ciphers[self._current]
            data = nonce + cipher.encrypt(nonce, data, _bound("+".join(names), encoding, place))
        if not names:
            return payload, encoding
        key = self._current if _ENCRYPTED in names else None
        return msgspec.json.encode(_Envelope("+".join(names), base64.b64encode(data).decode(), encoding, key)), SEALED

    def open(self, payload: bytes | None, encoding: int, place: str) -> tuple[bytes | None, int]:
        """Return what was sealed at `place`; a payload that is not sealed as it is. SealedError: no key opens it."""
        if encoding != SEALED or payload is None:
            return payload, encoding
        envelope = _envelope(payload, place)
        names = envelope.sealed.split("+")
        data = base64.b64decode(envelope.data)
        if names[-1] == _ENCRYPTED:
            names.pop()
            data = self._decrypted(envelope, data, place)
        if names == [_COMPRESSED]:
            names.pop()
            data = (self._zstd or _zstd()).decompress(data)
        if names:
            raise SealedError(f"{place}: sealed by {envelope.sealed!r}, which this version does not know; upgrade pgwf")
        return data, envelope.encoding

    def open_decision(self, payload: bytes | None, encoding: int, place: str) -> tuple[bytes | None, int]:
        """The same for a decision as the database delivers it, with the sealed value beside who decided and when."""
        if encoding != SEALED or payload is None:
            return payload, encoding
        decided = _decided.decode(payload)
        value, encoding = self.open(bytes(decided.value), SEALED, place)
        return msgspec.json.encode(_Decided(msgspec.Raw(value or b"null"), decided.by, decided.at)), encoding

    def seal_text(self, text: str | None, place: str) -> str | None:
        """The same for JSON that is stored as a text, without an encoding beside it."""
        if text is None:
            return None
        payload, _ = self.seal(text.encode(), 1, place)
        return (payload or b"").decode()

    def open_text(self, text: str | None, place: str) -> str | None:
        """Return what `seal_text` was given; a text that is not sealed as it is. SealedError: it cannot be opened."""
        if text is None or not is_sealed(text):
            return text
        payload, _ = self.open(text.encode(), SEALED, place)
        return (payload or b"").decode()

    def _decrypted(self, envelope: _Envelope, data: bytes, place: str) -> bytes:
        cipher = self._ciphers.get(envelope.key or "")
        if cipher is None:
            raise SealedError(f"{place}: {_lacking(envelope.key)}; {_held(self._ciphers)}")
        try:
            opened: bytes = cipher.decrypt(
                data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound(envelope.sealed, envelope.encoding, place)
            )
        except Exception as error:
            raise SealedError(
                f"{place}: what is stored was not sealed here with key {envelope.key!r}: it was changed or moved, or"
                " another key has that name"
            ) from error
        return opened


def _check_options(keys: object, compress_bytes_min: object) -> None:
    """Keys are never shown, whatever is wrong with them."""
    if keys is not None and not isinstance(keys, Mapping):
        raise DefinitionError(
            f"Sealing: found {kind_of(keys)}; expected the keys by their names: Sealing({{'2026-11': key}})"
        )
    least = compress_bytes_min
    if least is not None and (not isinstance(least, int) or isinstance(least, bool) or least < 0):
        raise DefinitionError(
            f"Sealing: compress_bytes_min is {least!r}; expected a number of bytes, or None for never"
        )
    for name, key in cast("Mapping[object, object]", keys or {}).items():
        if not name or not isinstance(name, str):
            found = f"the name {name!r}" if name else "no name"
            raise DefinitionError(f"Sealing: a key has {found}; what it seals names it, such as '2026-11'")
        if not isinstance(key, bytes | bytearray):
            raise DefinitionError(
                f"Sealing: key {name!r} is {kind_of(key)}; expected {KEY_BYTES} bytes, such as"
                f" os.urandom({KEY_BYTES}) or base64.b64decode(text)"
            )
        if len(key) != KEY_BYTES:
            raise DefinitionError(f"Sealing: key {name!r} has {len(key)} bytes; expected {KEY_BYTES}")


def is_sealed(text: str) -> bool:
    """Whether a JSON text is what `seal` made."""
    return text.startswith(MARK.decode())


def sealed_by(payload: bytes | str) -> str:
    """What a sealed payload says about itself: what is needed to read it."""
    try:
        envelope = _envelopes.decode(payload)
    except msgspec.MsgspecError:
        return "it is sealed in an unknown form"
    return f"it is compressed ({envelope.sealed})" if envelope.key is None else _lacking(envelope.key)


def unopened(payload: bytes | str, subject: str) -> SealedError:
    """The error of a reader who meets a payload that nobody has opened for it."""
    return SealedError(f"{subject}: {sealed_by(payload)}; {_GIVE_KEY}")


def _lacking(key: str | None) -> str:
    return f"it is sealed with key {key!r}, which this reader does not have"


def _held(ciphers: Mapping[str, Any]) -> str:
    has = f"it has {', '.join(ciphers)}" if ciphers else "it has none"
    return f"{has}; {_GIVE_KEY}"


def _envelope(payload: bytes, place: str) -> _Envelope:
    try:
        return _envelopes.decode(payload)
    except msgspec.MsgspecError as error:
        raise SealedError(f"{place}: stored as sealed, but in no form that this version knows: {error}") from error


def _bound(sealed: str, encoding: int, place: str) -> bytes:
    return f"{sealed}|{encoding}|{place}".encode()


def _aes() -> Any:
    return _needed("cryptography.hazmat.primitives.ciphers.aead", "encrypt", "cryptography").AESGCM


def _zstd() -> Any:
    try:
        return import_module("compression.zstd")
    except ModuleNotFoundError:
        return _needed("backports.zstd", "compress", "backports.zstd")


def _needed(module: str, what: str, package: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise DefinitionError(
            f"Sealing: to {what} it needs the package {package}, which is not installed; expected"
            " pip install 'pgwf[sealing]'"
        ) from error
