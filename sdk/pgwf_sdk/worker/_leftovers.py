"""What runs leave behind in memory when they are over here.

The objects of a run, and often those of its code, refer to each other in circles, so only Python's collector frees
them. It looks when many objects were made, however large they are: a run is some 70 of them, and holds its payloads.
"""

import gc
from typing import Final

BYTES_MAX: Final = 64 << 20
"""Payload of runs that are over, after which the collector looks. They hold two to three times that, as it was stored
and as it was read."""


class Leftovers:
    """Counts what runs leave behind, and lets the collector free it in time."""

    def __init__(self) -> None:
        self._payload_bytes = 0

    def add(self, payload_bytes: int) -> None:
        """A run is over here whose journal carries so much."""
        self._payload_bytes += payload_bytes
        if self._payload_bytes >= BYTES_MAX:
            self._payload_bytes = 0
            gc.collect()
