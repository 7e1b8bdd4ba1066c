"""Where a run is at home: the need it goes on with whenever nothing it does just now needs something else."""

import json

from pgwf_journal import ENCODING_JSON, Phase
from pgwf_sdk._definition import pinned
from pgwf_sdk.replay import Hop
from pgwf_sdk.worker._advance import Claim, Disposition
from pgwf_sdk.worker._batch import Batch
from pgwf_sdk.worker._waits import draft


class Home:
    """The home of a leased run, and the hop its code asked for."""

    def __init__(self, claim: Claim) -> None:
        self.need = claim.need
        self._current_need = claim.current_need
        self._build = claim.build
        self._hop: Hop | None = None

    @property
    def is_away(self) -> bool:
        """True when something else than its home need brought the run here."""
        return self._current_need != self.need

    @property
    def codes(self) -> set[tuple[str, int]]:
        """The user's line that the entry of a hop will name."""
        return set() if self._hop is None or self._hop.id.code is None else {self._hop.id.code}

    def ask(self, hop: Hop) -> None:
        """The code goes on only with a worker that offers the need of `hop`."""
        self._hop = hop

    def move(self, batch: Batch) -> Disposition | None:
        """Say in `batch` that the run has moved, if its code asked for that, and what is to become of the lease.

        The run is given back together with that entry: whoever claims it next finds it at its new home.
        """
        if self._hop is None:
            return None
        hop, self._hop = self._hop, None
        self.need = pinned(hop.need, self._build)
        batch.drafts.append(draft(hop.id, Phase.COMPLETED, json.dumps(self.need).encode(), ENCODING_JSON))
        return "hop" if self.is_away else "keep"
