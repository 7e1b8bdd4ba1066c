"""Values are sealed where they are stored, opened where they are read, and bound to their place."""

from __future__ import annotations

import json
import os

import pytest

from pgwf_sdk import DefinitionError, SealedError, Sealing
from pgwf_sdk._sealing import SEALED

pytest.importorskip("cryptography")

OLD, NEW = os.urandom(32), os.urandom(32)
SECRET = b'{"card":"4111-1111"}'


def test_what_is_sealed_is_json_that_says_what_it_takes_to_read_it_and_nothing_else() -> None:
    payload, encoding = Sealing({"k1": OLD}).seal(SECRET, 2, "here")

    assert encoding == SEALED
    assert payload is not None
    told = json.loads(payload)
    assert (told["sealed"], told["key"], told["encoding"]) == ("aes256gcm", "k1", 2)
    assert b"4111" not in payload


@pytest.mark.parametrize("payload", [SECRET, b"[" + b"1," * 5000 + b"1]", os.urandom(5000)])
def test_what_was_sealed_is_opened_with_its_encoding(payload: bytes) -> None:
    for sealing in (Sealing({"k1": OLD}), Sealing(), Sealing({"k1": OLD}, compress_bytes_min=None)):
        assert sealing.open(*sealing.seal(payload, 2, "here"), "here") == (payload, 2)


def test_long_payloads_are_compressed_and_short_ones_left_as_they_are() -> None:
    long = b'"' + b"a" * 5000 + b'"'

    sealed, encoding = Sealing().seal(long, 1, "here")

    assert encoding == SEALED
    assert len(sealed or b"") < 200
    assert Sealing().seal(SECRET, 1, "here") == (SECRET, 1)
    assert Sealing().seal(None, 0, "here") == (None, 0)


def test_a_key_is_replaced_by_putting_another_in_front_of_it() -> None:
    before, after = Sealing({"k1": OLD}), Sealing({"k2": NEW, "k1": OLD})
    payload, encoding = before.seal(SECRET, 1, "here")

    assert after.open(payload, encoding, "here") == (SECRET, 1)
    assert json.loads(after.seal(SECRET, 1, "here")[0] or b"")["key"] == "k2"
    with pytest.raises(SealedError, match="sealed with key 'k2', which this reader does not have; it has k1"):
        before.open(*after.seal(SECRET, 1, "here"), "here")


def test_what_was_moved_or_changed_or_sealed_by_another_key_is_not_opened() -> None:
    sealing = Sealing({"k1": OLD})
    payload, encoding = sealing.seal(SECRET, 1, "here")
    told = json.loads(payload or b"")

    for changed, place in (
        (told, "there"),
        ({**told, "encoding": 2}, "here"),
        ({**told, "data": told["data"][:-8] + "AAAAAAA="}, "here"),
    ):
        with pytest.raises(SealedError, match="changed or moved"):
            sealing.open(json.dumps(changed).encode(), encoding, place)
    with pytest.raises(SealedError, match="another key has that name"):
        Sealing({"k1": NEW}).open(payload, encoding, "here")


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(DefinitionError, match="key 'k1' has 5 bytes; expected 32"):
        Sealing({"k1": b"short"})


def test_a_key_without_a_name_is_refused() -> None:
    with pytest.raises(DefinitionError, match="a key has no name"):
        Sealing({"": NEW})
