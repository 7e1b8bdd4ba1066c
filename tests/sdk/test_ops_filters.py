"""The filter language: what each word means, and what is said about one that means nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pgwf_sdk.ops import FilterError, RunFilter, parse_duration, parse_filter


def test_an_empty_filter_narrows_nothing() -> None:
    assert parse_filter([]) == RunFilter()


def test_words_of_different_keys_narrow_together() -> None:
    found = parse_filter(["status:failed,cancelled", "-workflow:ping", "need:gpu", "age:<1h", "dur:>5m", "order-"])

    assert found == RunFilter(
        statuses=("failed", "cancelled"),
        not_workflows=("ping",),
        needs=("gpu",),
        younger_than=timedelta(hours=1),
        longer_than=timedelta(minutes=5),
        id_prefix="order-",
    )


@pytest.mark.parametrize("word", ["id:order-*", "id:order-", "order-*", "order-"])
def test_an_id_is_given_by_its_beginning(word: str) -> None:
    assert parse_filter([word]).id_prefix == "order-"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("statsu:failed", "unknown key; known are age, attr, build"),
        ("status:fialed", "no status is called 'fialed'"),
        ("status:", "the key has no value"),
        ("status:failed,,ready", "a value between the commas is empty"),
        ("age:", "quote it, as in 'age:<1h': a shell takes < and > for itself"),
        ("age:1h", "expected < or > before the duration"),
        ("age:<1y", "expected a duration such as 90s"),
        ("age:<99999999w", "expected a duration such as 90s"),
        ("-parent:any", "parent cannot be negated"),
        ("-order", "only key:value words can be negated"),
    ],
)
def test_a_word_that_means_nothing_is_refused_by_name(word: str, said: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter([word])

    assert word in str(caught.value)
    assert said in str(caught.value)


def test_a_filter_is_bounded() -> None:
    with pytest.raises(FilterError, match="at most 32 words"):
        parse_filter(["a"] * 33)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("1.5h", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("0s", timedelta()),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration
