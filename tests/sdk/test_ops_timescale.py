"""The time axis: order is kept, work is never folded, and folds leave room for it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pgwf_sdk.ops import time_scale
from tests.sdk.story import START, at

SECONDS = st.floats(0, 1e7, allow_nan=False)
SPANS = st.lists(st.tuples(SECONDS, SECONDS).map(sorted), max_size=20)


def test_the_longest_idle_gaps_are_folded_until_work_takes_most_of_the_axis() -> None:
    busy = [(at(0), at(10)), (at(3_610), at(3_620)), (at(3_625), at(3_630))]
    instants = [instant for span in busy for instant in span]

    scale = time_scale(instants, busy, width=60, fold_width=6)

    assert [fold.seconds for fold in scale.folds] == [3600]
    assert scale.place(at(3_610)) - scale.place(at(10)) == 6
    assert scale.place(at(3_630)) == 60


def test_a_run_that_never_idles_is_drawn_true_to_scale() -> None:
    scale = time_scale([at(0), at(1), at(100)], [(at(0), at(100))], width=100, fold_width=6)

    assert scale.folds == ()
    assert scale.place(at(50)) == 50


def test_one_instant_is_an_axis_too() -> None:
    scale = time_scale([START], [], width=40, fold_width=6)

    assert scale.place(START) == 0
    assert scale.place(at(5)) == 0


def test_a_run_that_only_waited_is_one_fold() -> None:
    scale = time_scale([at(0), at(86_400)], [], width=40, fold_width=6)

    assert len(scale.folds) == 1
    assert scale.place(at(86_400)) == 40


@given(spans=SPANS, more=st.lists(SECONDS, min_size=1, max_size=30))
def test_places_keep_the_order_of_instants_and_fill_the_axis(spans: list[list[float]], more: list[float]) -> None:
    busy = [(at(start), at(end)) for start, end in spans]
    instants = sorted({*(instant for span in busy for instant in span), *map(at, more)})

    scale = time_scale(instants, busy, width=80, fold_width=6)

    places = [scale.place(instant) for instant in instants]
    assert places == sorted(places)
    assert places[0] == 0
    assert len(instants) == 1 or abs(places[-1] - 80) < 1e-6
    for fold in scale.folds:
        assert not any(start < fold.end and fold.start < end for start, end in busy)
    for before, after in pairwise(scale.folds):
        assert before.end <= after.start


def test_gaps_of_seconds_are_drawn_as_they_are() -> None:
    """A run of a second is looked at for its milliseconds."""
    busy = [(at(0), at(0.02)), (at(1.02), at(1.04))]
    instants = [instant for span in busy for instant in span]

    scale = time_scale(instants, busy, width=60, fold_width=6)

    assert scale.folds == ()


def test_idle_time_is_folded_only_where_it_is_much_longer_than_the_work() -> None:
    def folds(idle_seconds: float) -> list[float]:
        busy = [(at(0), at(10)), (at(10 + idle_seconds), at(20 + idle_seconds))]
        instants = [instant for span in busy for instant in span]
        return [fold.seconds for fold in time_scale(instants, busy, width=60, fold_width=6).folds]

    assert folds(80) == []
    assert folds(81) == [81]
