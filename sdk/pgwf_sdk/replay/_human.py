"""What a workflow asks people, and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from pgwf_sdk._errors import DefinitionError
from pgwf_sdk._serial import Codec, codec_for

__all__ = ["Decision", "HumanRequest", "Vote"]

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Vote(Generic[T_co]):
    """What one person decided, and when."""

    value: T_co
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Decision(Generic[T_co]):
    """What people decided. `by` and `at` are those of the last vote; with `timed_out` nobody voted, `by` is empty."""

    value: T_co
    by: str
    at: datetime
    votes: Sequence[Vote[T_co]] = ()
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class HumanRequest:
    """A question to people: `subject` is what they look at, `decision` the type of the answer.

    `need` is the capability a reviewer must have; as a mapping, of one seat. `due` is when it should be decided, and
    goes to reviewers with the capability `escalate` if nobody holds it; `expires` is when the question is withdrawn.
    Both count from the moment it is opened.
    """

    name: str
    subject: object
    decision: Any
    need: str | Mapping[str, int]
    title: str | None = None
    due: timedelta | None = None
    escalate: str | None = None
    expires: timedelta | None = None
    on_expire: Any = None
    prefill: Any = None
    exclude: Sequence[str] = ()
    assign: str | None = None
    notify: Sequence[str] = field(default=())

    def encode_subject(self) -> tuple[bytes | None, int]:
        """Return the subject as (payload, encoding). SerialisationError: it cannot be stored."""
        return codec_for(type(self.subject)).encode(self.subject, subject=f"subject of {self.name}")

    def decision_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the decision, from which forms are made and answers are checked."""
        parts: dict[str, Any] = {}

        def of_model(cls: Any) -> dict[str, Any]:
            if not hasattr(cls, "model_json_schema"):
                raise TypeError(f"{cls.__qualname__} is not supported")
            schema: dict[str, Any] = cls.model_json_schema()
            parts.update(schema.pop("$defs", {}))  # References are from the root, wherever the model stands.
            return schema

        try:
            schema = msgspec.json.schema(self.decision, schema_hook=of_model)
            return {**schema, "$defs": {**parts, **schema.get("$defs", {})}} if parts else schema
        except TypeError as error:
            raise DefinitionError(
                f"human task {self.name!r}: no form can be made for {self.decision!r}: {error};"
                " expected dataclasses or Structs with a tag each, Pydantic models, Enums, Literals or plain types"
            ) from error

    @property
    def codec(self) -> Codec:
        """The codec of one answer."""
        return codec_for(self.decision)


class StoredDecision(msgspec.Struct):
    """The payload of a decided task's entry."""

    value: msgspec.Raw
    by: str = ""
    at: datetime | None = None
    votes: list[StoredDecision] = []


stored_decisions = msgspec.json.Decoder(StoredDecision)
