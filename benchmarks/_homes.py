"""Where a configuration lives while it is measured: here, in a process of its own, or in several."""

import contextlib
import multiprocessing
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from _cost import PeakMemory
from _measurement import BenchmarkError, CannotRun, Measurement, Run, measure

__all__ = ["Anew", "Apart", "Configuration", "Here", "Home", "StartMethod"]

StartMethod = Literal["fork", "forkserver", "spawn"]

_LONGEST_RUN_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """One thing that is measured."""

    name: str
    table: str
    """Configurations of one table take turns and are compared."""
    group: str
    """The fastest of a group can be the baseline."""
    prepare: Callable[..., Run]
    options: Mapping[str, Any]
    is_limit: bool
    may_fail: bool
    max_samples_per_second: float | None
    may_be_given_up: bool = False
    """It is not run again where it takes far longer than the quickest one."""
    runs_in_process: int = 0
    """If not 0, each measurement is the middle one of so many runs in a process of its own."""


class Home(ABC):
    """Runs a configuration when asked."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until it is prepared."""

    @abstractmethod
    def measure(self) -> Measurement:
        """Run it once."""

    @abstractmethod
    def peak_bytes(self, *, runs: bool) -> int:
        """Return the most memory that a run takes, or what is taken now if it is not to run."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what it holds."""

    def warm_up(self) -> None:
        """Run it once without a clock."""
        self.measure()


class Here(Home):
    """A configuration that runs in the process of the benchmark."""

    def __init__(self, configuration: Configuration) -> None:
        """Keep it."""
        self._configuration = configuration
        self._run: Run | None = None

    def wait(self) -> None:
        """Prepare it."""
        self._run = self._configuration.prepare(**self._configuration.options)

    def measure(self) -> Measurement:
        """Run it once."""
        assert self._run is not None
        return measure(self._run)

    def peak_bytes(self, *, runs: bool) -> int:
        """Return the most memory that one more run takes."""
        return _peak_bytes(self, os.getpid(), runs=runs)

    def close(self) -> None:
        """Let go of what it holds."""
        self._run = None


class Apart(Home):
    """A configuration that runs in a process of its own, idle until asked."""

    def __init__(self, configuration: Configuration, start_method: StartMethod) -> None:
        """Start the process, which prepares the configuration."""
        context: Any = multiprocessing.get_context(start_method)
        theirs: Connection
        self._connection: Connection
        self._connection, theirs = context.Pipe()
        self._name = configuration.name
        method = multiprocessing.get_start_method()
        # Not a daemon, which could not start workers.
        self._process = context.Process(target=_serve, args=(theirs, configuration, method))
        self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Wait until it is prepared.

        Raises:
            CannotRun: If it has no way to run here.
            BenchmarkError: If it failed.
        """
        self._receive()

    def _receive(self) -> Any:
        if not self._connection.poll(_LONGEST_RUN_SECONDS):
            self._process.kill()
            raise BenchmarkError(
                f"{self._name}: no end after {_LONGEST_RUN_SECONDS:.0f} seconds."
            )
        try:
            reply = self._connection.recv()
        except EOFError:
            self._process.join()
            raise BenchmarkError(
                f"{self._name}: the process ended with exit code {self._process.exitcode}."
            ) from None
        if isinstance(reply, CannotRun):
            raise reply
        if isinstance(reply, str):
            raise BenchmarkError(f"{self._name} failed:\n{reply}")
        return reply

    def measure(self) -> Measurement:
        """Run it once.

        Raises:
            BenchmarkError: If it failed.
        """
        with contextlib.suppress(BrokenPipeError):  # what it said last can still be received
            self._connection.send("run")
        measurement = self._receive()
        assert isinstance(measurement, Measurement)
        return measurement

    def peak_bytes(self, *, runs: bool) -> int:
        """Return the most memory that one more run takes."""
        return _peak_bytes(self, self._process.pid or 0, runs=runs)

    def close(self) -> None:
        """End the process; one that does not end by itself is killed."""
        with contextlib.suppress(OSError):  # it has ended
            self._connection.send("")  # forked later, another may hold this end open
        self._connection.close()
        self._process.join(timeout=30)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Anew(Home):
    """A configuration that gets a new process for each measurement, so that none is idle.

    Where the pages of a process happen to lie decides as much as settings do, if memory is what
    limits them.
    """

    def __init__(self, configuration: Configuration, start_method: StartMethod) -> None:
        """Start nothing yet."""
        self._configuration = configuration
        self._start_method: StartMethod = start_method
        self._peak_bytes = 0
        self._num_runs = 1

    def wait(self) -> None:
        """Do nothing: each process is prepared when it is measured."""

    def warm_up(self) -> None:
        """Do nothing, for the same reason."""

    def measure(self) -> Measurement:
        """Run it several times in a new process; return the run of median wall time.

        Once in the first process, which tells whether it is worth more.
        """
        home = Apart(self._configuration, self._start_method)
        try:
            home.wait()
            home.warm_up()
            runs = [home.measure() for _ in range(self._num_runs)]
            if self._num_runs > 1 and not self._peak_bytes:
                self._peak_bytes = home.peak_bytes(runs=True)
        finally:
            home.close()
        self._num_runs = self._configuration.runs_in_process
        return sorted(runs, key=lambda one: one.wall_seconds)[len(runs) // 2]

    def peak_bytes(self, *, runs: bool) -> int:  # noqa: ARG002
        """Return the most memory that a run of the second process took."""
        return self._peak_bytes

    def close(self) -> None:
        """Do nothing: no process is left."""


def _peak_bytes(home: Home, pid: int, *, runs: bool) -> int:
    with PeakMemory(pid) as memory:  # nobody times a run that is watched
        if runs:
            home.measure()
    return memory.peak_bytes


def _serve(connection: Connection, configuration: Configuration, start_method: str) -> None:
    """Prepare a configuration, then run it each time the benchmark asks."""
    # A spawned process starts its own children by spawn; loaders are to start their workers
    # as they do in any other program.
    multiprocessing.set_start_method(start_method, force=True)
    try:
        run = configuration.prepare(**configuration.options)
        connection.send(None)
        while connection.recv():
            connection.send(measure(run))
    except EOFError:
        pass  # the benchmark is done
    except CannotRun as reason:
        connection.send(reason)
    except BaseException:  # noqa: BLE001 - the benchmark reports it
        connection.send(traceback.format_exc())
