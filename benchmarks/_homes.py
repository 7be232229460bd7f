"""Where a configuration lives while it is measured: here, or in a process of its own."""

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeAlias

from _measurement import BenchmarkError, CannotRun, Measurement, Run, measure

__all__ = ["Apart", "Configuration", "Here", "Home"]

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
    """It is not run again where its first run takes far longer than the quickest one."""


class Here:
    """A configuration that runs in the process of the benchmark."""

    def __init__(self, configuration: Configuration) -> None:
        """Keep it."""
        self.pid = os.getpid()
        self._configuration = configuration
        self._run: Run | None = None

    def wait(self) -> None:
        """Prepare it."""
        self._run = self._configuration.prepare(**self._configuration.options)

    def measure(self) -> Measurement:
        """Run it once."""
        assert self._run is not None
        return measure(self._run)

    def close(self) -> None:
        """Let go of what it holds."""
        self._run = None


class Apart:
    """A configuration that runs in a process of its own, idle until asked."""

    def __init__(
        self, configuration: Configuration, start_method: Literal["spawn", "forkserver"]
    ) -> None:
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
        self.pid = self._process.pid or 0

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

    def close(self) -> None:
        """End the process; one that does not end by itself is killed."""
        self._connection.close()
        self._process.join(timeout=30)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


Home: TypeAlias = Here | Apart


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
