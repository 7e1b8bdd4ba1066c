"""Bars on a logarithmic scale around 1, as an SVG picture."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DECADES = 2.0  # to each side of 1
NAME_PIXELS, SCALE_PIXELS, NOTE_PIXELS = 210, 480, 210
ROW_PIXELS, TITLE_PIXELS, TOP_PIXELS = 16, 26, 34
STYLE = "text{font:11px sans-serif;fill:black}.t{font-weight:bold}.g{stroke:gainsboro}.one{stroke:black}"


@dataclass(frozen=True)
class Bar:
    """`value` 1 is as good as the reference, more is better."""

    name: str
    value: float
    note: str


def plot(groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """A picture with a titled group of bars for each of `groups`."""
    height = TOP_PIXELS + sum(TITLE_PIXELS + ROW_PIXELS * len(bars) for _, bars in groups) + ROW_PIXELS
    width = NAME_PIXELS + SCALE_PIXELS + NOTE_PIXELS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" fill="white"/>',
    ]
    for power in range(-int(DECADES), int(DECADES) + 1):
        x, kind = _x(10.0**power), "one" if power == 0 else "g"
        parts.append(f'<line class="{kind}" x1="{x}" x2="{x}" y1="{TOP_PIXELS - 10}" y2="{height}"/>')
        parts.append(f'<text x="{x}" y="{TOP_PIXELS - 16}" text-anchor="middle">{10.0**power:g} times</text>')
    y = TOP_PIXELS
    for title, bars in groups:
        parts.append(f'<text class="t" x="4" y="{y + TITLE_PIXELS - 8}">{escape(title)}</text>')
        y += TITLE_PIXELS
        for bar in bars:
            parts.append(_bar(bar, y))
            y += ROW_PIXELS
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(bar: Bar, y: int) -> str:
    one, end = _x(1.0), _x(bar.value)
    left, length = min(one, end), max(abs(end - one), 1)
    colour = "seagreen" if bar.value >= 1 else "indianred"
    text_y = y + ROW_PIXELS - 4
    return (
        f'<text x="{NAME_PIXELS - 6}" y="{text_y}" text-anchor="end">{escape(bar.name)}</text>'
        f'<rect x="{left}" y="{y + 2}" width="{length}" height="{ROW_PIXELS - 4}" fill="{colour}"/>'
        f'<text x="{NAME_PIXELS + SCALE_PIXELS + 6}" y="{text_y}">{bar.value:.2f} times, {escape(bar.note)}</text>'
    )


def _x(value: float) -> int:
    share = min(max(log10(value), -DECADES), DECADES) / DECADES
    return round(NAME_PIXELS + SCALE_PIXELS / 2 * (1 + share))
