"""Being a worker, or the parent of several: what `pgwf worker run` and `pgwf dev` do once they know what is wanted."""

import importlib
import logging
import os
import signal
import sys
import tempfile
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pgwf_sdk._wording import count_words
from pgwf_sdk.cli._exit import CliError, ExitCode
from pgwf_sdk.cli._health import Address, HealthServer, Vitals, ask
from pgwf_sdk.cli._memory import settle_collector
from pgwf_sdk.cli._output import talk
from pgwf_sdk.cli._session import DSN_VARIABLES, session
from pgwf_sdk.cli._supervisor import Supervisor

if TYPE_CHECKING:
    from pgwf_sdk._definition import Workflow
    from pgwf_sdk.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How to run one worker; None is the worker's own default."""

    capabilities: Sequence[str] = ()
    concurrency: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    step_threads: int | None = None
    grace: timedelta | None = None
    build: str | None = None
    name: str | None = None
    health: Address | None = None
    uses_uvloop: bool = False
    detects: bool = False
    told_code: int = ExitCode.OK
    """What the process ends with when it is told to stop once more, after the worker has."""


def serve(workflows: "Sequence[Workflow[..., Any]]", options: WorkerOptions) -> None:
    """Run a worker on the session's database until it is told to stop."""
    from pgwf_sdk.worker import Worker

    chosen = {
        "concurrency": options.concurrency,
        "step_threads": options.step_threads,
        "grace": options.grace,
        "build": options.build,
        "worker_id": options.name,
    }
    known: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    worker = Worker(
        session().client,
        workflows=list(workflows),
        capabilities=list(options.capabilities),
        limits=options.limits,
        detect=options.detects,
        **known,
    )
    settle_collector()
    for workflow in workflows:
        if workflow.need not in worker.capabilities:
            talk(
                f"workflow {workflow.name} needs {workflow.need!r}, which this worker does not offer, so it is never "
                f"handed one; add --capability {workflow.need} if it should be"
            )
    loop_factory = _uvloop() if options.uses_uvloop else None
    with _ended_by_signals(options.told_code), _served(options.health, lambda: _vitals(worker)):
        talk(f"worker {worker.worker_id} runs {', '.join(sorted(w.name for w in workflows))}; Ctrl-C stops it")
        worker.run(loop_factory=loop_factory)


def supervise(
    processes_count: int,
    command: Callable[[int, int, Address | None], Sequence[str]],
    health: Address | None,
) -> int:
    """Run workers as processes of their own until they are told to stop; the exit code.

    `command` makes the command line of the k-th (from 1), from the pipe it has to watch and where to serve its health.
    """
    with _ended_by_signals(), ExitStack() as stack:
        addresses: dict[int, Address] = {}
        if health is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgwf-health-")))
            addresses = {number: Address(path=folder / str(number)) for number in range(1, processes_count + 1)}
        supervisor = Supervisor(
            processes_count,
            lambda number, watched: command(number, watched, addresses.get(number)),
            # In the environment, where other accounts cannot read it: it may hold a password.
            {**os.environ, DSN_VARIABLES[0]: session().dsn},
        )
        stack.enter_context(_served(health, lambda: _vitals_of_all(supervisor, addresses)))
        talk(f"{count_words(processes_count, 'worker process')}; Ctrl-C stops them")
        return supervisor.run()


@contextmanager
def _ended_by_signals(code: int = ExitCode.OK) -> Generator[None]:
    """SIGTERM and SIGINT end this process at once, with `code`, wherever its workers or their parent do not take them.

    Beyond the block too: by then workers have handed everything back, and a plain step that outlasted its grace period
    is all that the process still waits for. An error leaves the signals as they were.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        os.write(sys.stderr.fileno(), b"told to stop again: ends at once\n")
        os._exit(code)

    caught = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, end) for number in caught}
    try:
        yield
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise


def configure_logging(level: str) -> None:
    """Log lines of this process go to stderr; OpenTelemetry, when installed, sees them as well."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )


@contextmanager
def _served(address: Address | None, vitals: Callable[[], Vitals]) -> Generator[None]:
    if address is None:
        yield
        return
    try:
        server = HealthServer(address, vitals)
    except OSError as error:
        raise CliError(f"--health {address}: cannot be served there: {error}") from error
    with server:
        yield


def _vitals(worker: "Worker") -> Vitals:
    health = worker.health()
    return Vitals(health.is_alive, health.is_ready, asdict(health))


def _vitals_of_all(supervisor: Supervisor, addresses: Mapping[int, Address]) -> Vitals:
    """All together are alive while those that run are, and ready when each of them is."""
    reports: list[dict[str, Any]] = []
    live: list[bool] = []
    for number in supervisor.running:
        try:
            live_status, _ = ask(addresses[number], "/live")
            _, report = ask(addresses[number], "/ready")
        except OSError:  # It is about to serve, or about to end; one that is stuck answers, from a thread of its own.
            reports.append({"state": "starting"})
        else:
            live.append(live_status == 200)
            reports.append(report)
    states = {str(report["state"]) for report in reports}
    is_ready = states == {"ready"}
    state = "ready" if is_ready else next(iter(sorted(states - {"ready"})), "stopped")
    return Vitals(all(live), is_ready, {"state": state, "workers": reports})


def _uvloop() -> Callable[[], AbstractEventLoop]:
    try:
        loop_factory: Callable[[], AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ModuleNotFoundError:
        raise CliError("--uvloop: uvloop is not installed; pip install 'pgwf[uvloop]'", ExitCode.USAGE) from None
    return loop_factory
