"""Decisions from the JSON Schema of a task: which variants there are, and one built from what a person typed.

The schema is what msgspec makes of a decision type: a tagged union of structs (each variant an object whose tag field
has one constant value), a single struct, or any plain type. Only that closed subset is understood; a keyword of another
origin is ignored here, and the workflow checks the value again with its type.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, cast
from uuid import UUID

import msgspec
from msgspec import Struct

Schema = Mapping[str, Any]

_DEPTH_MAX = 32  # A schema that refers to itself is followed so deep.


class DecisionError(ValueError):
    """A decision does not fit its schema; `path` names the field, '' the decision as a whole."""

    def __init__(self, path: str, expected: str) -> None:
        super().__init__(f"{path}: {expected}" if path else expected)
        self.path = path
        self.expected = expected


class Field(Struct, frozen=True, kw_only=True):
    """A field of a variant, as a person needs to know it. `type` is in words."""

    name: str
    type: str
    is_required: bool
    title: str | None


class Variant(Struct, frozen=True, kw_only=True):
    """One way to decide. `name` is what a person picks: the tag, or '' where there is nothing to pick.

    `type` says in words what it is. One without fields of its own, such as a number, is given whole.
    """

    name: str
    type: str
    help: str
    fields: tuple[Field, ...]
    tag_field: str | None
    schema: dict[str, Any]

    @property
    def has_fields(self) -> bool:
        """False for a plain value."""
        return self.tag_field is not None or "properties" in self.schema


class DecisionForm:
    """The decision a task asks for. `schema_text` is its JSON Schema as recorded.

    What people type is text that is read as what the schema asks for. Values of programs are `is_typed`: a text is a
    text, and fields that only a newer version of the type has are left out of account.
    """

    def __init__(self, schema_text: str, *, is_typed: bool = False) -> None:
        self._root: dict[str, Any] = msgspec.json.decode(schema_text)
        self._is_typed = is_typed
        self.variants = tuple(self._variant(schema) for schema in self._alternatives(self._root))

    def variant(self, name: str) -> Variant:
        """The variant of that name, upper and lower case alike. DecisionError lists those there are."""
        for variant in self.variants:
            if variant.name.casefold() == name.casefold():
                return variant
        known = ", ".join(variant.name for variant in self.variants if variant.name)
        expected = f"expected one of {known}" if known else "it takes none: give the value with -i"
        raise DecisionError("", f"no variant is called {name!r}; {expected}")

    @property
    def whole_types(self) -> tuple[str, ...]:
        """In words, what can only be given whole, as JSON: plain values, and objects that no tag tells apart."""
        is_lone = len(self.variants) == 1
        return tuple(
            variant.type for variant in self.variants if not (variant.name or (is_lone and variant.has_fields))
        )

    def build(self, variant: Variant, given: Mapping[str, Any]) -> dict[str, Any]:
        """The decision: the variant with these fields, texts turned into what the schema asks for.

        DecisionError names the first field that is missing, unknown or of another type.
        """
        fields = dict(given)
        if variant.tag_field is not None:
            fields[variant.tag_field] = variant.name
        built: dict[str, Any] = self._fitted(fields, variant.schema, "", depth=0)
        return built

    def check(self, value: Any) -> Any:
        """The value as a decision, when it is given whole. DecisionError names what does not fit."""
        return self._fitted(value, self._root, "", depth=0)

    def _alternatives(self, schema: Schema) -> list[dict[str, Any]]:
        resolved = self._resolved(schema)
        if "anyOf" in resolved:
            return [self._resolved(part) for part in resolved["anyOf"]]
        return [dict(resolved)]

    def _resolved(self, schema: Schema) -> dict[str, Any]:
        for _ in range(_DEPTH_MAX):
            reference = schema.get("$ref")
            if reference is None:
                break
            schema = self._root.get("$defs", {}).get(str(reference).rpartition("/")[2], {})
        return dict(schema)

    def _variant(self, schema: dict[str, Any]) -> Variant:
        properties: dict[str, Schema] = schema.get("properties", {})
        tag_field = next((name for name, part in properties.items() if _constant(part) is not None), None)
        name = _constant(properties[tag_field]) if tag_field is not None else ""
        required = set(schema.get("required", ()))
        return Variant(
            name=str(name),
            type=self._words(schema),
            help=str(schema.get("description", "")),
            fields=tuple(
                Field(
                    name=field,
                    type=self._words(part),
                    is_required=field in required,
                    title=part.get("title") or part.get("description"),
                )
                for field, part in properties.items()
                if field != tag_field
            ),
            tag_field=tag_field,
            schema=schema,
        )

    def _words(self, schema: Schema) -> str:
        """What a value may be, in a few words."""
        resolved = self._resolved(schema)
        if "enum" in resolved:
            return " | ".join(str(value) for value in resolved["enum"])
        if "const" in resolved:
            return str(resolved["const"])
        if "anyOf" in resolved:
            return " or ".join(self._words(part) for part in resolved["anyOf"])
        words = str(resolved.get("format") or resolved.get("type") or "anything")
        if words == "array":
            parts: Sequence[Schema] = resolved.get("prefixItems") or [_object(resolved.get("items")) or {}]
            words = f"list of {', '.join(map(self._words, parts))}"
        bounds = [f"{sign} {resolved[key]}" for key, sign in _BOUND_SIGNS.items() if key in resolved]
        return f"{words} {', '.join(bounds)}" if bounds else words

    def _fitted(self, value: Any, schema: Schema, path: str, *, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise DecisionError(path, f"it is nested more than {_DEPTH_MAX} deep")
        resolved = self._resolved(schema)
        if "anyOf" in resolved:
            return self._fitted_any(value, resolved["anyOf"], path, depth=depth)
        if "enum" in resolved or "const" in resolved:
            allowed: Sequence[Any] = resolved.get("enum", [resolved.get("const")])
            return _fitted_constant(value, allowed, path, is_typed=self._is_typed)
        match resolved.get("type"):
            case "object":
                return self._fitted_object(value, resolved, path, depth=depth)
            case "array":
                return self._fitted_array(value, resolved, path, depth=depth)
            case None:
                return value
            case str() as type_name:
                return _fitted_scalar(value, resolved, path, type_name, is_typed=self._is_typed)
            case _:
                return value

    def _fitted_any(self, value: Any, parts: Sequence[Schema], path: str, *, depth: int) -> Any:
        tagged = [part for part in parts if self._has_tag_of(part, value)]
        errors: list[DecisionError] = []
        # A text that could be several things is the most specific of them: 3 is a number before it is a text.
        for part in tagged or sorted(parts, key=lambda part: self._resolved(part).get("type") == "string"):
            try:
                return self._fitted(value, part, path, depth=depth + 1)
            except DecisionError as error:
                errors.append(error)
        deepest = max(errors, key=lambda error: len(error.path))
        if deepest.path != path:
            raise deepest
        raise DecisionError(path, f"expected {' or '.join(self._words(part) for part in parts)}, found {_shown(value)}")

    def _has_tag_of(self, schema: Schema, value: Any) -> bool:
        given = _object(value)
        properties: dict[str, Schema] = self._resolved(schema).get("properties", {})
        tags = {name: tag for name, part in properties.items() if (tag := _constant(part)) is not None}
        return given is not None and bool(tags) and all(given.get(name) == tag for name, tag in tags.items())

    def _fitted_object(self, value: Any, schema: Schema, path: str, *, depth: int) -> dict[str, Any]:
        given = _object(value)
        if given is None:
            raise DecisionError(path, f"expected an object, found {_shown(value)}")
        properties: dict[str, Schema] = schema.get("properties", {})
        others = _object(schema.get("additionalProperties"))
        for name in given:
            is_open = self._is_typed and schema.get("additionalProperties") is not False
            if name not in properties and properties and others is None and not is_open:
                raise DecisionError(_below(path, name), f"there is no such field; known are {', '.join(properties)}")
        for name in schema.get("required", ()):
            if name not in given:
                words = self._words(properties.get(name, {}))
                raise DecisionError(_below(path, name), f"it is missing; expected {words}")
        return {
            name: self._fitted(part, properties.get(name, others or {}), _below(path, name), depth=depth + 1)
            for name, part in given.items()
        }

    def _fitted_array(self, value: Any, schema: Schema, path: str, *, depth: int) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise DecisionError(path, f"expected a list, found {_shown(value)}; write {path or 'it'}:='[…]'")
        given = cast("Sequence[Any]", value)
        _check_bounds(len(given), schema, path, keys=("minItems", "maxItems"), what="number of items")
        heads: Sequence[Schema] = schema.get("prefixItems", ())
        rest = _object(schema.get("items")) or {}
        return [
            self._fitted(part, heads[index] if index < len(heads) else rest, _below(path, str(index)), depth=depth + 1)
            for index, part in enumerate(given)
        ]


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _constant(schema: Schema) -> Any:
    """The only value a tag field can have; None for an ordinary field."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return values[0] if len(values) == 1 else None


def _fitted_constant(value: Any, allowed: Sequence[Any], path: str, *, is_typed: bool) -> Any:
    for candidate in allowed:
        if value == candidate and isinstance(value, bool) == isinstance(candidate, bool):
            return candidate
    for candidate in () if is_typed else allowed:
        if isinstance(value, str) and not isinstance(candidate, str) and value == str(candidate):
            return candidate
    raise DecisionError(path, f"expected one of {', '.join(map(str, allowed))}, found {_shown(value)}")


def _fitted_scalar(value: Any, schema: Schema, path: str, type_name: str, *, is_typed: bool) -> Any:
    fitted = _READERS[type_name](value) if type_name in _READERS else value
    if fitted is _NOT_SO or (is_typed and isinstance(value, str) and not isinstance(fitted, str)):
        raise DecisionError(path, f"expected {_TYPE_WORDS[type_name]}, found {_shown(value)}")
    if isinstance(fitted, str):
        _check_text(fitted, schema, path)
    elif isinstance(fitted, int | float) and not isinstance(fitted, bool):
        _check_bounds(fitted, schema, path, keys=("minimum", "maximum"), what="value")
        _check_exclusive(fitted, schema, path)
    return fitted


_NOT_SO: Any = object()


def _read_integer(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,1000}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else _NOT_SO


def _read_number(value: Any) -> Any:
    if isinstance(value, str):
        whole = _read_integer(value)
        if whole is not _NOT_SO:
            return whole
        return float(value) if re.fullmatch(r"[+-]?\d*\.?\d+([eE][+-]?\d+)?", value) else _NOT_SO
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _NOT_SO


def _read_boolean(value: Any) -> Any:
    if isinstance(value, str):
        return {"true": True, "yes": True, "false": False, "no": False}.get(value.casefold(), _NOT_SO)
    return value if isinstance(value, bool) else _NOT_SO


def _read_text(value: Any) -> Any:
    return value if isinstance(value, str) else _NOT_SO


def _read_null(value: Any) -> Any:
    return None if value is None or value == "" else _NOT_SO


_READERS = {
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _read_boolean,
    "string": _read_text,
    "null": _read_null,
}
_TYPE_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "null": "nothing",
}
_BOUND_SIGNS = {"minimum": ">=", "maximum": "<=", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
_FORMAT_READERS = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "time": time.fromisoformat,
    "uuid": UUID,
}


def _check_text(text: str, schema: Schema, path: str) -> None:
    _check_bounds(len(text), schema, path, keys=("minLength", "maxLength"), what="number of characters")
    pattern = schema.get("pattern")
    if pattern is not None and not re.search(pattern, text):
        raise DecisionError(path, f"expected a text that matches {pattern}, found {_shown(text)}")
    read = _FORMAT_READERS.get(schema.get("format", ""))
    if read is not None:
        try:
            read(text)
        except ValueError as error:
            raise DecisionError(path, f"expected a {schema['format']}, found {_shown(text)}") from error


def _check_bounds(number: float, schema: Schema, path: str, *, keys: tuple[str, str], what: str) -> None:
    low, high = schema.get(keys[0]), schema.get(keys[1])
    if low is not None and number < low:
        raise DecisionError(path, f"expected a {what} of at least {low}, found {number}")
    if high is not None and number > high:
        raise DecisionError(path, f"expected a {what} of at most {high}, found {number}")


def _check_exclusive(number: float, schema: Schema, path: str) -> None:
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and number <= low:
        raise DecisionError(path, f"expected a value above {low}, found {number}")
    if high is not None and number >= high:
        raise DecisionError(path, f"expected a value below {high}, found {number}")


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:59]}…"
