"""Attributes: what people and programs search runs by. Names with a text, a number or a truth value each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from pgwf_sdk._errors import SerialisationError
from pgwf_sdk._kinds import check_kind
from pgwf_sdk._names import check_name, check_storable
from pgwf_sdk._wording import shown

__all__ = ["VALUE_BYTES_MAX", "AttributeValue", "attribute_json", "attributes_json", "check_attributes"]

AttributeValue: TypeAlias = str | bool | int | float | Decimal | datetime | date | UUID | Enum
"""What an attribute can be. Lists compare it as the text that it is in JSON: `17` finds the number and the text."""

VALUE_BYTES_MAX: Final = 1024


def attribute_json(name: str, value: object, *, used: str) -> bytes:
    """Return the value as JSON. DefinitionError: no name. SerialisationError: none of the types, or too long."""
    check_name(name, used)
    if not isinstance(value, str | bool | int | float | Decimal | date | UUID | Enum):
        raise SerialisationError(
            f"{used}: attribute {name!r} is {shown(value)}; expected a text, number, bool, Decimal, datetime, date,"
            " UUID or Enum: lists compare attributes as texts"
        )
    found: object = value.value if isinstance(value, Enum) else value
    if isinstance(found, str):
        check_storable(found, used)
    if isinstance(found, float) and found - found != 0:
        raise SerialisationError(f"{used}: attribute {name!r} is {found}; expected a finite number")
    try:
        payload = msgspec.json.encode(found)
    except (TypeError, ValueError, OverflowError) as error:  # Of a class of the user's own, or of too many digits.
        raise SerialisationError(
            f"{used}: attribute {name!r} is {shown(found)}, which JSON has no form for ({error}); expected a plain"
            " text, number, bool, Decimal, datetime, date, UUID or Enum"
        ) from error
    if len(payload) > VALUE_BYTES_MAX:
        raise SerialisationError(
            f"{used}: attribute {name!r} is {len(payload)} bytes long; expected at most {VALUE_BYTES_MAX}: keep what is"
            " longer in the run's own values"
        )
    return payload


def attributes_json(attributes: Mapping[str, AttributeValue] | None, *, used: str) -> str | None:
    """Return attributes as one JSON object; None when there are none. Errors: as `attribute_json`, and TypeError."""
    check_attributes(attributes, used=used)
    if not attributes:
        return None
    encoded = {name: msgspec.Raw(attribute_json(name, value, used=used)) for name, value in attributes.items()}
    return msgspec.json.encode(encoded).decode()


def check_attributes(found: object, *, used: str) -> None:
    """TypeError: neither None nor values by their names."""
    if found is not None:
        check_kind(found, Mapping, used=used, expected="values by their names, such as {'customer': 17}")
