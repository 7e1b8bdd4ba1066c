"""When a `parallel` or `map` has enough: its policies, and what it tells of each branch.

A tally is told how branches end, one at a time and in journal order, so the same branches win in every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, cast, overload

from pgwf_sdk import _failure
from pgwf_sdk._errors import BranchesFailedError
from pgwf_sdk._kinds import check_counts, check_kind
from pgwf_sdk._wording import shown

__all__ = [
    "AllSettled",
    "BranchFailed",
    "BranchResult",
    "BranchResults",
    "BranchSucceeded",
    "BranchUnfinished",
    "MinSuccessful",
    "Policy",
    "Tally",
    "ToleratedFailures",
    "checked_policy",
]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class AllSettled:
    """Let every branch end, however it does."""


@dataclass(frozen=True, slots=True)
class MinSuccessful:
    """Go on as soon as `count` branches have succeeded, and cancel the others.

    BranchesFailedError, from the call that has this policy: so many can no longer succeed.
    """

    count: int

    def __post_init__(self) -> None:
        check_counts("MinSuccessful", count=self.count)
        if self.count < 1:
            raise ValueError(f"MinSuccessful({self.count}): expected 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToleratedFailures:
    """Let every branch end as long as no more than `count`, or no more than the `share` (0 to 1) of all, have failed.

    BranchesFailedError, from the call that has this policy: more have failed, and the others were cancelled.
    """

    count: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if (self.count is None) == (self.share is None):
            raise ValueError("ToleratedFailures: expected either a count or a share")
        check_counts("ToleratedFailures", count=self.count)
        if self.share is not None:
            check_kind(self.share, (int, float), used="ToleratedFailures(share=…)", expected="a share from 0 to 1")
        if (self.count is not None and self.count < 0) or (self.share is not None and not 0 <= self.share <= 1):
            raise ValueError(f"{self}: expected a count of 0 or more, or a share from 0 to 1")

    def failures_max(self, branches: int) -> int:
        """Return how many of so many branches may fail."""
        return self.count if self.count is not None else int((self.share or 0.0) * branches + _ROUNDING)


_ROUNDING: Final = 1e-9  # 0.29 * 100 is 28.999999999999996.

Policy: TypeAlias = AllSettled | MinSuccessful | ToleratedFailures
"""When a `parallel` or `map` has enough. Without one, the first failure cancels the other branches and is raised."""


@dataclass(frozen=True, slots=True)
class BranchSucceeded(Generic[R_co]):
    """A branch that returned `value`."""

    value: R_co
    status: Literal["succeeded"] = "succeeded"


@dataclass(frozen=True, slots=True)
class BranchFailed:
    """A branch that raised `error`."""

    error: BaseException
    status: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class BranchUnfinished:
    """A branch that was cancelled, or never began, because the others were enough."""

    status: Literal["unfinished"] = "unfinished"


BranchResult: TypeAlias = BranchSucceeded[R] | BranchFailed | BranchUnfinished
"""What became of one branch; `status` and `match` tell which."""


class BranchResults(Sequence[BranchSucceeded[R] | BranchFailed | BranchUnfinished], Generic[R]):
    """What became of each item of a `map` with a policy, in the order of the items."""

    __slots__ = ("_results",)

    def __init__(self, results: Iterable[BranchResult[R]]) -> None:
        self._results: tuple[BranchResult[R], ...] = tuple(results)

    @property
    def values(self) -> list[R]:
        """What the branches that succeeded returned, in the order of their items."""
        return [result.value for result in self._results if isinstance(result, BranchSucceeded)]

    @property
    def errors(self) -> list[BaseException]:
        """What the branches that failed raised, in the order of their items."""
        return [result.error for result in self._results if isinstance(result, BranchFailed)]

    @property
    def is_complete(self) -> bool:
        """True when no branch is unfinished."""
        return not any(isinstance(result, BranchUnfinished) for result in self._results)

    @overload
    def __getitem__(self, index: int) -> BranchResult[R]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[BranchResult[R], ...]: ...
    def __getitem__(self, index: int | slice) -> BranchResult[R] | tuple[BranchResult[R], ...]:
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return f"BranchResults({list(self._results)!r})"


class Tally:
    """How the branches of one `parallel` or `map` have ended so far. `shape` makes its value of the list of results."""

    __slots__ = ("_count", "_error", "_failed", "_failures_max", "_path", "_policy", "_results", "_shape", "_succeeded")

    def __init__(self, policy: Policy | None, count: int, *, path: str, shape: Callable[[list[Any]], Any]) -> None:
        self._policy = policy
        self._path = path
        self._shape = shape
        self._count = count
        self._results: list[Any] = [None if policy is None else BranchUnfinished()] * count
        self._succeeded = 0
        self._failed = 0
        self._error: BaseException | None = None
        match policy:
            case AllSettled():
                self._failures_max = count
            case MinSuccessful(needed):
                self._failures_max = count - needed
            case ToleratedFailures():
                self._failures_max = policy.failures_max(count)
            case None:
                self._failures_max = 0

    @property
    def is_over(self) -> bool:
        """True when what is not over yet can change nothing more, and is to be cancelled."""
        return self._failed > self._failures_max or self._has_enough

    @property
    def _has_enough(self) -> bool:
        return isinstance(self._policy, MinSuccessful) and self._succeeded >= self._policy.count

    @property
    def why_over(self) -> str:
        """What a branch that is cancelled now is told."""
        if self._has_enough:
            return f"enough other branches of {self._path} have succeeded"
        return f"another branch of {self._path} failed: {shown(self._error)}"

    def succeeded(self, index: int, value: Any) -> None:
        """A branch returned."""
        self._succeeded += 1
        self._results[index] = value if self._policy is None else BranchSucceeded(value)

    def failed(self, index: int, error: BaseException) -> None:
        """A branch raised."""
        self._failed += 1
        self._error = error if self._error is None else self._error
        if self._policy is not None:
            self._results[index] = BranchFailed(error)

    def ends_needed(self, open_count: int) -> int:
        """How many more branches must end before anything can go on, when no further one is to begin.

        Negative: however they end; positive: if they succeed, and a failure changes things at once.
        """
        if self._policy is None:
            return open_count
        needed = min(open_count, self._failures_max + 1 - self._failed)
        if isinstance(self._policy, MinSuccessful):
            needed = min(needed, self._policy.count - self._succeeded)
        return -max(needed, 1)

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return the value and the error of the whole, once every branch has ended or is out of the game."""
        if self._failed <= self._failures_max:
            return self._shape(self._results), None
        if self._policy is None:
            return None, self._error
        found = f"{self._failed} of {self._count} branches failed"
        expected = (
            f"expected {self._policy.count} to succeed"
            if isinstance(self._policy, MinSuccessful)
            else f"expected at most {self._failures_max}"
        )
        said = "" if self._error is None else f"; the first with {_failure.line_of(self._error)}"
        error = BranchesFailedError(f"{self._path}: {found}, {expected}{said}", failures=self._failed)
        error.__cause__ = self._error
        return None, error


def checked_policy(policy: object, used: str) -> Policy | None:
    """Return the policy. TypeError: it is none."""
    if policy is None or isinstance(policy, AllSettled | MinSuccessful | ToleratedFailures):
        return policy
    name = cast("Any", policy).__name__ if isinstance(policy, type) else repr(policy)
    raise TypeError(
        f"{used}(policy={name}): expected AllSettled(), MinSuccessful(2), ToleratedFailures(count=3) or"
        " ToleratedFailures(share=0.1); without a policy the first failure cancels the others and is raised"
    )
