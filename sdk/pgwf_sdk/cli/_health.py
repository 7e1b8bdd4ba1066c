"""The health of workers over HTTP, for probes: `/live` and `/ready`, on a port or a Unix socket."""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Self

import click

REQUEST_SECONDS_MAX = 5.0
"""How long a probe may take to say what it wants, and how long we wait for an answer."""
_UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class Vitals:
    """What probes are told: `report` is the body."""

    is_alive: bool
    is_ready: bool
    report: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Address:
    """Where health is served: a port of a host, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """`HOST:PORT`, `:PORT` for all interfaces, or `unix:PATH`. UsageError for anything else."""
        if text.startswith(_UNIX) and len(text) > len(_UNIX):
            return cls(path=Path(text.removeprefix(_UNIX)))
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise click.UsageError(f"{text!r} is no address; expected HOST:PORT, :PORT, or unix:PATH")
        return cls(host=host.strip("[]"), port=int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.path is None else f"{_UNIX}{self.path}"


class HealthServer:
    """Serves what `vitals` says until the block ends, from threads of its own: it answers while steps compute.

    `GET /live` is 200 while the process can go on by itself, `GET /ready` while it takes runs; otherwise they are 503.
    Either brings the report as JSON. OSError: the address cannot be had.
    """

    def __init__(self, address: Address, vitals: Callable[[], Vitals]) -> None:
        if address.path is not None:
            address.path.unlink(missing_ok=True)  # Left behind by a process that was killed.
        self._path = address.path
        self._server = _server_class(address)(
            (address.host, address.port) if address.path is None else str(address.path), _handler_class(vitals)
        )
        self._thread = threading.Thread(target=self._server.serve_forever, name="pgwf-health", daemon=True)

    @property
    def address(self) -> Address:
        """Where it is served; port 0 has become the one that was free."""
        if self._path is not None:
            return Address(path=self._path)
        host, port, *_ = self._server.server_address
        return Address(host=str(host), port=int(port))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def ask(address: Address, path: str) -> tuple[int, dict[str, Any]]:
    """Status and report of a health endpoint. OSError: nobody answers there."""
    connection = _Connection(address)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body: dict[str, Any] = json.loads(response.read())
    except (http.client.HTTPException, ValueError) as error:
        raise ConnectionError(f"what answers there is no worker: {error!r}") from error
    finally:
        connection.close()
    return response.status, body


class _Connection(http.client.HTTPConnection):
    """HTTP over a port or a Unix socket."""

    def __init__(self, address: Address) -> None:
        super().__init__(address.host or "localhost", address.port or None, timeout=REQUEST_SECONDS_MAX)
        self._path = address.path

    def connect(self) -> None:
        if self._path is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(REQUEST_SECONDS_MAX)
        self.sock.connect(str(self._path))


def _server_class(address: Address) -> Any:
    family = socket.AF_UNIX if address.path is not None else socket.AF_INET6 if ":" in address.host else socket.AF_INET

    class Server(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True
        block_on_close = False

        def server_bind(self) -> None:
            # Not HTTPServer's, which asks the name service for the name of the host.
            TCPServer.server_bind(self)
            self.server_name, self.server_port = "pgwf", address.port

    return Server


def _handler_class(vitals: Callable[[], Vitals]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS_MAX
        server_version = "pgwf"
        sys_version = ""

        def do_GET(self) -> None:
            found = vitals()
            answers = {"/live": found.is_alive, "/ready": found.is_ready}
            path = self.path.partition("?")[0]
            if path not in answers:
                self.send_error(HTTPStatus.NOT_FOUND, "expected /live or /ready")
                return
            body = json.dumps(found.report).encode() + b"\n"
            self.send_response(HTTPStatus.OK if answers[path] else HTTPStatus.SERVICE_UNAVAILABLE)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name http.server gives it
            """Probes come every few seconds; nobody wants to read of them."""

    return Handler
