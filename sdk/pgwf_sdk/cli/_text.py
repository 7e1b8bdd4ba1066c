"""Text as a terminal shows it: its width in cells, cut to fit, and free of anything that could drive the
terminal.
"""

import re
import unicodedata
from datetime import datetime
from types import MappingProxyType

# C0 and C1 controls move the cursor or open OSC sequences; bidi controls can make one name look like another.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_BUT_LAYOUT = re.compile(f"(?![\n\t]){_UNSAFE.pattern}")

_ASCII_OF_MARK = MappingProxyType({"\N{MULTIPLICATION SIGN}": "x", "…": "...", "\N{EN DASH}": "-", "→": "->"})


def printable(text: str, *, keep_layout: bool = False) -> str:
    """`text` with every control character replaced by its escape, so that no payload can drive the terminal.

    `keep_layout` leaves line ends and tabs as they are.
    """
    return (_UNSAFE_BUT_LAYOUT if keep_layout else _UNSAFE).sub(_escaped, text)


def cells_of(text: str) -> int:
    """How many terminal cells `text` takes: two for wide characters, none for combining ones."""
    return len(text) if text.isascii() else sum(map(_cells_of_character, text))


def fitted(text: str, cells: int, *, ascii_only: bool = False) -> str:
    """`text` in exactly `cells` cells: padded, or cut with an ellipsis."""
    taken = cells_of(text)
    if taken <= cells:
        return text + " " * (cells - taken)
    ellipsis = "~" if ascii_only else "…"
    kept, room = "", cells - 1
    for character in text:
        room -= _cells_of_character(character)
        if room < 0:
            break
        kept += character
    return kept + ellipsis + " " * (cells - 1 - cells_of(kept)) if cells > 0 else ""


def to_ascii(text: str) -> str:
    """`text` for a terminal that shows ASCII only: known marks by their look, the rest as escapes."""
    for mark, replacement in (
        ("\N{MULTIPLICATION SIGN}", "x"),
        ("…", "..."),
        ("\N{EN DASH}", "-"),
        ("→", "->"),
    ):
        text = text.replace(mark, replacement)
    return text.encode("ascii", "backslashreplace").decode("ascii")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _cells_of_character(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Cf", "Me", "Mn"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"F", "W"} else 1


def when(instant: datetime | None) -> str:
    """An instant to the second, as it stands in a column; nothing for None."""
    return instant.strftime("%Y-%m-%d %H:%M:%S") if instant is not None else ""
