"""Names a client makes up when it is given none: its own, and those of runs."""

import os
import secrets
import socket
import time
from uuid import UUID, uuid4


def client_name() -> str:
    """Who started, cancelled or decided something, when nobody says: the host and process it came from."""
    return f"client {socket.gethostname()}:{os.getpid()}"


def listener_name() -> str:
    """A name for one wait."""
    return f"wait-{uuid4()}"


def new_run_id() -> str:
    """A UUID version 7 (RFC 9562, section 5.7) as text: unique, and ids made later sort later."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | secrets.randbits(80)
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return str(UUID(int=value))
