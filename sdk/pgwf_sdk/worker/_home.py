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
        self.hop: Hop | None = None
        """What the code asked for: it goes on only with a worker that offers the need of this."""

    @property
    def is_away(self) -> bool:
        """True when something else than its home need brought the run here."""
        return self._current_need != self.need

    def move(self, batch: Batch, hop: Hop) -> Disposition:
        """Say in `batch` that the run has moved, as its code asked, and what is to become of the lease.

        The run is given back together with that entry: whoever claims it next finds it at its new home.
        """
        self.hop = None
        self.need = pinned(hop.need, self._build)
        batch.drafts.append(draft(hop.id, Phase.COMPLETED, json.dumps(self.need).encode(), ENCODING_JSON))
        return "hop" if self.is_away else "keep"
