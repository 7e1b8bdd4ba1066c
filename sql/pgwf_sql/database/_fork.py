"""A forked process shares its parent's connections, threads and locks. It must not touch them, and makes its own."""

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something that belongs to the process that made it."""

    def forget(self) -> None:
        """Called in a child process, before anything else runs there: leave what the parent has, start empty."""


_made: WeakSet[Forked] = WeakSet()


def forget_when_forked(one: Forked) -> None:
    """Call `one.forget()` in each child process that is forked from now on, as long as somebody refers to `one`."""
    _made.add(one)


def _forget() -> None:
    for one in list(_made):
        one.forget()


os.register_at_fork(after_in_child=_forget)
