"""Values from the command line."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from pgwf_sdk.cli._exit import CliError, ExitCode
from pgwf_sdk.cli._parameters import assembled, parse_parameters, read_input


def test_text_stays_text_and_json_keeps_its_type() -> None:
    found = assembled(parse_parameters(["city=Ghent", "zip=9000", "count:=3", "tags:=[1,2]", "note=", "eq=a=b"]))

    assert found == {"city": "Ghent", "zip": "9000", "count": 3, "tags": [1, 2], "note": "", "eq": "a=b"}


def test_dotted_names_reach_inside_and_numbers_make_lists() -> None:
    found = assembled(parse_parameters(["a.b=1", "a.c:=2", "items.0.sku=x", "items.1.sku=y", "years.2030=z"]))

    assert found == {"a": {"b": "1", "c": 2}, "items": [{"sku": "x"}, {"sku": "y"}], "years": {"2030": "z"}}


@pytest.mark.parametrize("text", ["novalue", "=x", "a..b=1", "n:=01", "n:={"])
def test_a_malformed_parameter_is_refused(text: str) -> None:
    with pytest.raises(CliError) as caught:
        parse_parameters([text])

    assert caught.value.code is ExitCode.INVALID_INPUT
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("texts", [["a=1", "a=2"], ["a=1", "a.b=2"], ["a.b=2", "a=1"], ["a=1", "a.b.c=2"]])
def test_a_name_that_is_given_twice_is_refused(texts: list[str]) -> None:
    with pytest.raises(CliError, match="given twice"):
        assembled(parse_parameters(texts))


def test_input_is_json_itself_or_a_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "order.json"
    file.write_bytes(b'{"big": 9223372036854775807}')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[1.10]")))

    assert read_input('{"a": 1}') == b'{"a": 1}'
    assert read_input(f"@{file}") == b'{"big": 9223372036854775807}'
    assert read_input("-") == b"[1.10]"
    assert read_input(None) is None


@pytest.mark.parametrize("text", ["{", "", "@/no/such/file", "NaN"])
def test_input_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(CliError) as caught:
        read_input(text)

    assert caught.value.code is ExitCode.INVALID_INPUT
