"""What a worker is told when it is made, checked once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pgwf_sdk._definition import Workflow, pinned
from pgwf_sdk._errors import DefinitionError
from pgwf_sdk._kinds import check_counts, check_kind, check_texts, check_timedelta
from pgwf_sdk._misuse import check_names, check_workflows
from pgwf_sdk._names import HUMAN_PREFIX, check_id
from pgwf_sdk._sealing import Sealing
from pgwf_sdk._wording import without_addresses

CONCURRENCY: Final = 64
"""Runs one worker works on at a time, unless told otherwise."""
STEP_THREADS: Final = 16
"""Plain (not async) steps one worker runs at a time, unless told otherwise."""
STEP_PROCESSES: Final = 4
"""Steps with a process of their own that one worker runs at a time, unless told otherwise."""
LEASE: Final = timedelta(seconds=15)
"""Three missed keepalives; then another worker may take the run."""
POLL: Final = timedelta(seconds=5)
"""How often an idle worker looks for work when nobody tells it of any."""
GRACE: Final = timedelta(seconds=30)
"""How long a draining worker waits for steps that are running."""


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """How long the journal of one run may become, in entries and in bytes of payload.

    At `entries_warn` or `bytes_warn` a worker warns, once an activation that gets there; at `entries_max` or
    `bytes_max` it blocks the run, which people then mend (`ctx.continue_as_new`) and resume. DefinitionError: a bound
    below 2 entries or 1 byte, or a warning above its limit.
    """

    entries_warn: int = 10_000
    entries_max: int = 50_000
    bytes_warn: int = 16 << 20
    bytes_max: int = 128 << 20

    def __post_init__(self) -> None:
        check_counts(
            "JournalLimits",
            entries_warn=self.entries_warn,
            entries_max=self.entries_max,
            bytes_warn=self.bytes_warn,
            bytes_max=self.bytes_max,
        )
        for name, least, warn, most in (
            ("entries", 2, self.entries_warn, self.entries_max),
            ("bytes", 1, self.bytes_warn, self.bytes_max),
        ):
            if not least <= warn <= most:
                raise DefinitionError(
                    f"JournalLimits: {name}_warn is {warn} and {name}_max {most}; expected {least} or more, and the"
                    " warning at or below the limit"
                )

    @property
    def max_words(self) -> str:
        """The limits as people read them."""
        return f"{self.entries_max} entries or {self.bytes_max} bytes"


JOURNAL_LIMITS: Final = JournalLimits()
"""Unless told otherwise: a replay of the longest takes about a second."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A worker's settings; `capabilities` is everything it offers, sorted. DefinitionError: they make no sense."""

    dsn: str
    worker_id: str
    workflows: Mapping[str, Workflow[..., Any]]
    capabilities: tuple[str, ...]
    concurrency: int
    step_threads: int
    lease: timedelta
    poll: timedelta
    grace: timedelta
    build: str
    listen_dsn: str | None = None
    detects: bool = False
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    sealing: Sealing | None = None
    step_processes: int = STEP_PROCESSES
    journal_limits: JournalLimits = JOURNAL_LIMITS

    def __post_init__(self) -> None:
        limits = {f"the limit of {need!r}": count for need, count in self.limits.items()}
        counts = {
            "concurrency": self.concurrency,
            "step_threads": self.step_threads,
            "step_processes": self.step_processes,
            **limits,
        }
        for name, count in counts.items():
            check_kind(count, int, used=f"Worker: {name}", expected="a whole number, such as 4")
            if count < 1:
                raise DefinitionError(f"Worker: {name} is {count}; expected 1 or more")
        for need in self.limits:
            if need not in self.capabilities:
                raise DefinitionError(
                    f"Worker: there is a limit for {need!r}, which it does not offer; expected one of"
                    f" {', '.join(map(repr, self.capabilities))}"
                )
        for name, duration, least in (
            ("lease", self.lease, timedelta(seconds=1)),
            ("poll", self.poll, timedelta(milliseconds=50)),
            ("grace", self.grace, timedelta(0)),
        ):
            check_timedelta(duration, used=f"Worker({name}=…)")
            if duration < least:
                raise DefinitionError(f"Worker: {name} is {duration}; expected {least} or longer")


def by_name(workflows: Iterable[Workflow[..., Any]]) -> dict[str, Workflow[..., Any]]:
    """Workflows by their names. DefinitionError: two have the same. TypeError: they are none."""
    known: dict[str, Workflow[..., Any]] = {}
    for workflow in check_workflows(workflows, used="Worker(workflows=…)"):
        if known.setdefault(workflow.name, workflow) is not workflow:
            both = without_addresses(f"{known[workflow.name].fn!r} and {workflow.fn!r}")
            raise DefinitionError(
                f'two workflows are called {workflow.name!r}: {both}; give one a name of its own: @workflow(name="…")'
            )
    return known


def offered(workflows: Mapping[str, Workflow[..., Any]], capabilities: Iterable[str], build: str) -> tuple[str, ...]:
    """Everything a worker offers: its capabilities, the names of its workflows, and each of them for its build."""
    check_texts("Worker", build=build)
    wanted = set(check_names(capabilities, used="Worker(capabilities=…)", such_as="gpu"))
    if not wanted and not workflows:
        raise DefinitionError(
            "Worker: found no workflows and no capabilities, so no run would ever come to it; expected one of them at"
            " least: Worker(client, workflows=[checkout])"
        )
    for capability in wanted:
        if check_id(capability, "Worker(capabilities=…)").startswith(HUMAN_PREFIX):
            raise DefinitionError(
                f"capability {capability!r}: those that begin with {HUMAN_PREFIX!r} belong to people; a program"
                " decides tasks through client.human"
            )
    offers = wanted | set(workflows)
    if build:
        offers |= {pinned(need, build) for need in offers}
    return tuple(sorted(offers))
