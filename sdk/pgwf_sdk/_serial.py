"""Values to bytes and back: JSON that the annotation explains where that loses nothing, tagged JSON everywhere else.

Encoding 1 is plain JSON. It is chosen only when the annotation describes the value completely and decoding gives back
an equal value. Encoding 2 is JSON in which `{"$decimal": "1.50"}` and its like mark what JSON does not know, so it
needs no annotation; classes are found by name among imported modules, and nothing is ever unpickled. None is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final, cast

import msgspec
from msgspec import inspect as shape

from pgwf_sdk._errors import SerialisationError, UndecodableError
from pgwf_sdk._names import annotation_text
from pgwf_sdk._sealing import SEALED, unopened
from pgwf_sdk._tagged import from_tagged, to_tagged
from pgwf_sdk._upcast import has_hook, upcast
from pgwf_sdk._wording import text_of

NONE: Final = 0
JSON: Final = 1
TAGGED_JSON: Final = 2

PAYLOAD_BYTES_MAX: Final = 64 << 20
"""A longer value is refused: replays read all values of a run, and PostgreSQL takes 1 GB in all a statement."""

_MARK: Final = b'{"$tagged":'
_CODECS_MAX: Final = 2_000


def encode(value: object, annotation: Any = None, *, subject: str = "value") -> tuple[bytes | None, int]:
    """Return `value` as (payload, encoding). `subject` heads the path that an error names.

    SerialisationError: some part of the value cannot be stored; its path and class are in the message.
    """
    return codec_for(annotation).encode(value, subject=subject)


def decode(payload: bytes | None, encoding: int, annotation: Any = None) -> Any:
    """Return the value that was encoded. UndecodableError: it does not fit, or its class is not imported."""
    return codec_for(annotation).decode(payload, encoding)


def codec_for(annotation: Any) -> Codec:
    """Return the codec of a type; kept, as making one costs a thousand times more than using it."""
    try:
        return _kept_codec(annotation)
    except TypeError:  # Some annotations are not hashable.
        return Codec(annotation)


class Codec:
    """Encodes and decodes values of one annotated type; None or an absent annotation means any type."""

    __slots__ = ("_decode_json", "_decoder", "_described", "_is_complete", "annotation")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self._decoder: msgspec.json.Decoder[Any] = _plain_decoder
        self._decode_json: Callable[[bytes], Any] = _plain_decoder.decode
        self._is_complete = False
        if annotation is None or annotation is Any or annotation is object:
            return
        try:
            described = shape.type_info(annotation)
            self._decoder = msgspec.json.Decoder(annotation, dec_hook=_from_json)
        except (TypeError, NameError, AttributeError):
            # JSON cannot tell the members of such a type apart (a union of two classes without tags, say), or part of
            # the annotation is only known to type checkers.
            return
        self._is_complete = _is_complete(described, set())
        self._decode_json = self._decoder.decode
        if has_hook(described):
            self._described = described
            self._decode_json = self._decode_old

    def encode(self, value: object, *, subject: str = "value") -> tuple[bytes | None, int]:
        """Return `value` as (payload, encoding). SerialisationError: it cannot be stored."""
        if value is None:
            return None, NONE
        plain = self._plain(value)
        payload, encoding = (to_tagged(value, subject), TAGGED_JSON) if plain is None else (plain, JSON)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise SerialisationError(
                f"{subject} is {len(payload) >> 20} MiB long as JSON; expected at most {PAYLOAD_BYTES_MAX >> 20} MiB:"
                " keep it in a store for files and hand on its address",
                path=subject,
            )
        return payload, encoding

    def decode(self, payload: bytes | None, encoding: int) -> Any:
        """Return the value that was encoded. UndecodableError: it does not fit the type, a class is not imported, or
        (SealedError) it is sealed and nobody has opened it.
        """
        if encoding == JSON:
            try:
                return self._decode_json(payload or b"")
            except UndecodableError:
                raise
            except Exception as error:  # The user's classes and hooks may raise anything.
                raise UndecodableError(
                    f"{_excerpt(payload)} is no {annotation_text(self.annotation)}: {text_of(error)}"
                ) from error
        if encoding == TAGGED_JSON:
            return self._untagged(payload or b"")
        if encoding == NONE:
            return None
        if encoding == SEALED:
            raise unopened(payload or b"", "the value cannot be read")
        raise UndecodableError(f"encoding {encoding} is unknown here; expected 0, 1 or 2: a newer SDK wrote this entry")

    def decode_sent(self, payload: bytes | None, encoding: int) -> Any:
        """Return what somebody outside the run sent. UndecodableError: as `decode`, or it is no value of the type."""
        value = self.decode(payload, encoding)
        if encoding != JSON and not self.accepts(value):
            raise UndecodableError(
                f"{_excerpt(payload)} was sent where {annotation_text(self.annotation)} is expected;"
                " accept it in the workflow's type and resume the run, or fork the run before it"
            )
        return value

    def accepts(self, value: object) -> bool:
        """False when the type is described completely and `value` is none of it."""
        if value is None or not self._is_complete or self._plain(value) is not None:
            return True
        try:  # What JSON cannot say, such as an infinite float, may be of the type all the same.
            read = msgspec.convert(msgspec.to_builtins(value, enc_hook=_to_json), self.annotation, dec_hook=_from_json)
            return to_tagged(read, "value") == to_tagged(value, "value")
        except Exception:  # noqa: BLE001 - as in `_plain`
            return False

    def embed(self, value: object, *, subject: str) -> bytes:
        """Return `value` as JSON that may stand inside other JSON, of which only `extract` need know the encoding."""
        if value is None:
            return b"null"
        plain = self._plain(value)
        if plain is not None and not plain.startswith(_MARK):
            return plain
        tagged = to_tagged(value, subject)
        if not self._is_complete and b'"$' not in tagged:
            return tagged
        return b"%b%b}" % (_MARK, tagged)

    def extract(self, embedded: bytes) -> Any:
        """Return what was embedded; plain JSON from another language is read by the annotation."""
        if embedded == b"null":
            return None
        if embedded.startswith(_MARK):
            return from_tagged(embedded[len(_MARK) : -1])
        return self.decode(embedded, JSON)

    def _decode_old(self, payload: bytes) -> Any:
        """Some class in the type knows how values of its earlier versions look."""
        stored = upcast(self._described, _plain_decoder.decode(payload))
        return msgspec.convert(stored, self.annotation, dec_hook=_from_json)

    def _untagged(self, payload: bytes) -> Any:
        """Plain JSON without a tag may come from a sender who does not know the type; what has tags says what it is."""
        if self._is_complete and b'"$' not in payload:
            try:
                return self._decode_json(payload)
            except Exception:  # noqa: BLE001 - as in `decode`
                pass  # Then it is what a step returned against its own annotation.
        return from_tagged(payload)

    def _plain(self, value: object) -> bytes | None:
        if not self._is_complete:
            return None
        try:
            payload = _encoder.encode(value)
            return payload if bool(self._decoder.decode(payload) == value) else None
        except Exception:  # noqa: BLE001
            # Equality may be anything (arrays compare by element), and the user's classes may raise anything: such
            # values are tagged. A SerialisationError has no path: whoever walks the value finds the part and names it.
            return None


def in_json(value: object) -> Any:
    """A value as plain JSON says it, in lists, tuples, dicts and scalars. SerialisationError: it cannot."""
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_to_json)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError, AttributeError) as error:
        raise SerialisationError(f"plain JSON has no form for it: {error}") from error


@lru_cache(maxsize=_CODECS_MAX, typed=True)
def _kept_codec(annotation: Any) -> Codec:
    return Codec(annotation)


def _to_json(value: Any) -> Any:
    cls: Any = cast("Any", type(value))
    if hasattr(cls, "model_dump") and hasattr(cls, "model_validate"):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    raise SerialisationError(f"objects of {cls} cannot be stored")


def _from_json(cls: Any, value: Any) -> Any:
    if hasattr(cls, "model_validate"):
        return cls.model_validate(value)
    if isinstance(cls, type) and issubclass(cls, PurePath):
        return cls(value)
    raise UndecodableError(f"values of {cls} cannot be decoded")


def _is_complete(described: shape.Type, seen: set[int]) -> bool:
    """Whether JSON plus this type is the whole value: no Any in it, and no class that only tags could name."""
    if id(described) in seen:  # A type that refers to itself.
        return True
    seen.add(id(described))
    if isinstance(described, shape.AnyType | shape.RawType | shape.ExtType):
        return False
    if isinstance(described, shape.CustomType):
        cls: Any = described.cls
        return hasattr(cls, "model_validate") or issubclass(cls, PurePath)
    return all(_is_complete(part, seen) for part in _parts(described))


def _parts(described: shape.Type) -> list[shape.Type]:
    match described:
        case shape.UnionType(types):
            return list(types)
        case shape.DictType(key, value) | shape.FrozenDictType(key, value):
            return [key, value]
        case shape.TupleType(types):
            return list(types)
        case shape.CollectionType(item):
            return [item]
        case shape.StructType() | shape.DataclassType() | shape.NamedTupleType() | shape.TypedDictType():
            return [field.type for field in described.fields]
        case _:
            return []


def _excerpt(payload: bytes | None) -> str:
    text = (payload or b"").decode(errors="replace")
    return text if len(text) <= 80 else text[:79] + "…"


_encoder = msgspec.json.Encoder(enc_hook=_to_json)
_plain_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
