"""Journal entries as values: what one says, and the key that names the call it belongs to."""

from datetime import datetime
from enum import IntEnum

from msgspec import Struct

ENCODING_NONE = 0
"""The entry has no payload."""
ENCODING_JSON = 1
"""JSON; the annotation of the step, signal or workflow says which type to decode it into."""
ENCODING_TAGGED_JSON = 2
"""JSON in which values JSON does not know carry a tag, so that no annotation is needed."""


class Kind(IntEnum):
    """What sort of call an entry belongs to. The numbers are stored; they never change."""

    RUN = 1
    STEP = 2
    TIMER = 3
    SIGNAL = 4
    AWAKEABLE = 5
    CHILD = 6
    HUMAN = 7
    VALUE = 8
    PATCH = 9
    ATTRIBUTE = 10
    CANCEL = 11
    COMPENSATION = 12
    BRANCH = 13
    SELECT = 14
    HOP = 15
    ATTACH = 16

    @property
    def label(self) -> str:
        """The lower-case name, as keys and the SQL views show it."""
        return _KIND_LABELS[self]


class Phase(IntEnum):
    """How far the call had come when the entry was written. The numbers are stored; they never change."""

    OPENED = 1
    COMPLETED = 2
    FAILED = 3
    TIMED_OUT = 4
    CANCELLED = 5
    TERMINATED = 6
    CONTINUED = 7

    @property
    def label(self) -> str:
        """The lower-case name, as the SQL views show it."""
        return _PHASE_LABELS[self]

    @property
    def is_resolving(self) -> bool:
        """True when an entry of this phase gives its call an outcome (a call has at most one)."""
        return Phase.COMPLETED <= self <= Phase.CANCELLED


_KIND_LABELS = {kind: kind.name.lower() for kind in Kind}
_PHASE_LABELS = {phase: phase.name.lower() for phase in Phase}


def key_of(scope: str, kind: Kind, name: str, occurrence: int) -> str:
    """The key of a call: its scope, kind, name and how often that name has been called in the scope so far.

    `occurrence` counts from 1. The root scope is ''; a branch's scope is the key of its `parallel` or `map` and the
    index of the branch: `/branch:parallel#1[0]`.
    """
    return f"{scope}/{_KIND_LABELS[kind]}:{name}#{occurrence}"


class Entry(Struct, frozen=True, gc=False):
    """One immutable line of a journal, as it was read. Fields stand in the order of the table's columns.

    `seq` counts from 1 without gaps. `call` is the ordinal of the call inside its scope, from 1; 0 means that the entry
    belongs to no call (the run itself, a cancel request). `payload` holds exactly the bytes that were appended, None
    when `encoding` is 0. `recorded_at` is the database's clock. `code` numbers the interned source line, None if
    unknown; `lease_no` the lease under which it was written, None for a journal without a job.
    """

    seq: int
    call: int
    kind: Kind
    phase: Phase
    scope: str
    name: str
    occurrence: int
    payload: bytes | None
    encoding: int
    recorded_at: datetime
    lease_no: int | None = None
    code: int | None = None

    @property
    def key(self) -> str:
        """The key of the call this entry belongs to."""
        return key_of(self.scope, self.kind, self.name, self.occurrence)


class NewEntry(Struct, frozen=True, gc=False):
    """An entry that is yet to be appended: the journal gives it its `seq` and its time, the lease its `lease_no`."""

    call: int
    kind: Kind
    phase: Phase
    scope: str
    name: str
    occurrence: int
    payload: bytes | None = None
    encoding: int = ENCODING_NONE
    code: int | None = None

    @property
    def key(self) -> str:
        """The key of the call this entry belongs to."""
        return key_of(self.scope, self.kind, self.name, self.occurrence)
