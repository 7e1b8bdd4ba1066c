"""Text in terminal cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgwf_sdk.cli._text import cells_of, fitted, printable, to_ascii
from pgwf_sdk.ops import count_words, duration_words, short_duration_words


@given(text=st.text(max_size=80), cells=st.integers(1, 60))
def test_fitted_text_takes_exactly_the_cells_it_is_given(text: str, cells: int) -> None:
    assert cells_of(fitted(printable(text), cells)) == cells


@given(text=st.text(max_size=80))
def test_printable_text_holds_nothing_that_drives_a_terminal(text: str) -> None:
    shown = printable(text)

    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in shown)
    assert to_ascii(shown).isascii()


def test_layout_is_kept_where_it_is_wanted() -> None:
    assert printable("a\n\tb\x1b", keep_layout=True) == "a\n\tb\\x1b"
    assert printable("a\nb") == "a\\x0ab"


def test_cells_are_counted_not_characters() -> None:
    assert cells_of("支払") == 4
    assert cells_of("e\u0301") == 1
    assert fitted("支払い", 4) == "支… "


@pytest.mark.parametrize(
    ("seconds", "words", "short"),
    [
        (0, "0 ms", "0ms"),
        (0.003, "3 ms", "3ms"),
        (0.9999, "1.0 s", "1s"),
        (1.25, "1.2 s", "1s"),
        (59.97, "1m 0s", "1m"),
        (250, "4m 10s", "4m"),
        (64_920, "18h 2m", "18h"),
        (273_600, "3d 4h", "3d"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, words: str, short: str) -> None:
    assert duration_words(seconds) == words
    assert short_duration_words(seconds) == short


def test_counts_agree_with_their_noun() -> None:
    assert [count_words(1, "entry"), count_words(2, "entry")] == ["1 entry", "2 entries"]
    assert [count_words(2, "branch"), count_words(0, "lease"), count_words(3, "day")] == [
        "2 branches",
        "0 leases",
        "3 days",
    ]
