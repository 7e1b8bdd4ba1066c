"""A story played again and again, each time with the worker cut off somewhere else."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from pgwf_journal import Kind, Phase
from pgwf_sdk.testing._crashes import Appends, CrashReport, Cut, Side
from pgwf_sdk.testing._differences import CrashDifferenceError
from pgwf_sdk.testing._recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from pgwf_journal import Entry
    from pgwf_sdk.testing._environment import Environment

Scopes: TypeAlias = dict[str, list[tuple[int, str, str, str]]]
"""What each scope did, in the order of its calls: number, key, phase, and the payload in words."""


def explore(
    environment: Environment, story: Callable[[Environment], object], now: datetime | None, cuts_max: int | None
) -> CrashReport:
    """Play `story` with every cut there is, or with so many of them; see Environment.crash_everywhere."""
    environment.reset_story(now, Appends())
    begun_at = environment.now()
    appends = environment.reset_story(begun_at, Appends())
    value = story(environment)
    journals = _journals(environment)
    cuts: list[Cut] = []
    for cut in _spread(list(_cuts(appends.count)), cuts_max):
        disturbed = environment.reset_story(begun_at, Appends(cut))
        try:
            found = story(environment)
        except Exception as error:
            raise CrashDifferenceError(
                f"with the worker killed {cut} the story ended with {type(error).__name__}: {error}; without, it ended"
                f" with {value!r}"
            ) from error
        if found != value:
            raise CrashDifferenceError(f"with the worker killed {cut} the story gave {found!r}; without, {value!r}")
        _compare(cut, journals, _journals(environment))
        if disturbed.is_cut:
            cuts.append(cut)
    return CrashReport(appends.count, tuple(cuts))


def _cuts(append_count: int) -> Iterator[Cut]:
    sides: tuple[Side, ...] = ("before", "after")
    for append in range(1, append_count + 1):
        for side in sides:
            yield Cut(append, side)


def _spread(cuts: list[Cut], cuts_max: int | None) -> list[Cut]:
    """So many of the cuts, the first and the last among them."""
    if cuts_max is None or len(cuts) <= cuts_max:
        return cuts
    return [cuts[round(index * (len(cuts) - 1) / max(cuts_max - 1, 1))] for index in range(cuts_max)]


def _journals(environment: Environment) -> dict[str, Scopes]:
    return {run_id: by_scope(Recording.of(environment.client, run_id).entries) for run_id in environment.run_ids()}


def by_scope(entries: Sequence[Entry]) -> Scopes:
    """What each scope of a journal did. That a wait was opened or withdrawn is bookkeeping of parking, and left out."""
    scopes: Scopes = defaultdict(list)
    for entry in entries:
        is_withdrawn = entry.phase is Phase.CANCELLED and entry.kind in (Kind.TIMER, Kind.SIGNAL)
        if entry.phase is not Phase.OPENED and not is_withdrawn:
            scopes[entry.scope].append((entry.call, entry.key, entry.phase.name.lower(), _words(entry)))
    return {scope: sorted(done) for scope, done in scopes.items()}


def _words(entry: Entry) -> str:
    if entry.phase is Phase.FAILED and entry.payload is not None:
        envelope: dict[str, Any] = msgspec.json.decode(entry.payload)
        return f"{envelope.get('type')}: {envelope.get('message')}"
    return (entry.payload or b"").decode(errors="replace")


def _compare(cut: Cut, expected: dict[str, Scopes], found: dict[str, Scopes]) -> None:
    if expected.keys() != found.keys():
        raise CrashDifferenceError(
            f"with the worker killed {cut} there were the runs {sorted(found)}; without, {sorted(expected)}"
        )
    for run_id, scopes in expected.items():
        for scope in scopes.keys() | found[run_id].keys():
            before, after = scopes.get(scope, []), found[run_id].get(scope, [])
            if before != after:
                only = [line for line in after if line not in before], [line for line in before if line not in after]
                raise CrashDifferenceError(
                    f"with the worker killed {cut} scope {scope or '/'!r} of run {run_id} has other entries:"
                    f" {only[0]} instead of {only[1]}"
                )
