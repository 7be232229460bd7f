"""What a worker needs to start: inherited by a fork, else pickled once for all workers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, TypeAlias

from fastloader.engine._fetch import FetchPlan
from fastloader.engine._owned_generators import OwnedGenerators
from fastloader.engine._process_state import ProcessState
from fastloader.engine._variables import collect_variables, restore_variables
from fastloader.errors import UnpicklableError
from fastloader.pickling._main_script import main_without_file_hidden
from fastloader.pickling._pickling import dumps_for_worker, loads_from_parent
from fastloader.shm._memory_file import (
    MemoryFile,
    collecting_memory_files,
    providing_memory_files,
)
from fastloader.shm._sharing_in_place import place_in_file, write_sharing

if TYPE_CHECKING:
    from pickle import PickleBuffer

__all__ = [
    "Launch",
    "WorkerInit",
    "importable_main",
    "inherited_launch",
    "pickled_launch",
]

PRELOADED = ["torch", "fastloader._loader", "fastloader.engine._worker"]
"""What every worker needs, the main script among it, which names `FastLoader`: the fork server imports
it once instead of each worker anew, which takes a sixth of a second of CPU time."""

WorkerInit: TypeAlias = Callable[[int], None]

ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Launch:
    """Plan and worker_init_fn on their way to the workers.

    **Processes:** made once by the consumer, given to each worker as an argument, used there
    with `load`. The consumer keeps it for workers that start later.
    """

    direct: tuple[FetchPlan, WorkerInit | None] | None = None
    """As they are, for processes that inherit the consumer's memory."""
    file: MemoryFile | None = None
    """Pickle and large arrays; each worker maps it copy-on-write, so all share one copy."""
    places: tuple[slice, ...] = ()
    """Of the pickle in the file, then of each array, in bytes."""
    inherited: tuple[object, ...] = ()
    """Locks and the like, which only the arguments of a starting process may hold."""
    memory_files: tuple[MemoryFile, ...] = field(default=())
    """Those that the dataset holds itself."""
    variables: Mapping[str, object] = field(default_factory=dict)
    """Global variables of the user's code, where a fork would have taken them along."""
    state: ProcessState | None = None
    """Of the consumer, where a fork would have taken it along."""

    def find_generators(self) -> OwnedGenerators | None:
        """Return the generators of a plan that is inherited, to be given to a forked worker.

        **Processes:** the one that forks a worker: in the worker it takes several times as long,
        since each page that is looked at has to be copied first.
        """
        return None if self.direct is None else OwnedGenerators(self.direct[0].drawing_parts)

    def load(self) -> tuple[FetchPlan, WorkerInit | None]:
        """Return plan and worker_init_fn, in the worker."""
        if self.direct is not None or self.file is None:
            assert self.direct is not None  # noqa: S101 - one of the two is set
            return self.direct
        mapping = memoryview(self.file.map(private=True))
        parts = [mapping[place] for place in self.places]
        if self.state is not None:
            self.state.restore()
        with providing_memory_files(self.memory_files):
            loaded: tuple[FetchPlan, WorkerInit | None] = loads_from_parent(
                parts[0], buffers=parts[1:], inherited=self.inherited
            )
        restore_variables(self.variables)
        return loaded


def inherited_launch(plan: FetchPlan, worker_init_fn: WorkerInit | None) -> Launch:
    """Return what forked workers start from."""
    return Launch(direct=(plan, worker_init_fn))


def pickled_launch(
    plan: FetchPlan, worker_init_fn: WorkerInit | None, *, stands_for_fork: bool
) -> Launch:
    """Return what workers start from that inherit nothing.

    Args:
        plan: What they do.
        worker_init_fn: Called in each.
        stands_for_fork: Whether nobody has asked for workers that import modules anew.

    Raises:
        UnpicklableError: If dataset, collate_fn or worker_init_fn cannot be pickled; the
            message has the path of the attribute.
    """
    buffers: list[PickleBuffer] = []
    inherited: list[object] = []
    with collecting_memory_files() as memory_files:
        try:
            data = dumps_for_worker(
                (plan, worker_init_fn), "loader", buffers=buffers, inherited=inherited
            )
        except UnpicklableError:
            _raise_for_part(plan, worker_init_fn)
            raise
    parts = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    file, places = _written(parts)
    return Launch(
        file=file,
        places=places,
        inherited=tuple(inherited),
        memory_files=tuple(memory_files),
        variables=collect_variables(_called(plan, worker_init_fn)) if stands_for_fork else {},
        state=ProcessState.read() if stands_for_fork else None,
    )


def _called(plan: FetchPlan, worker_init_fn: WorkerInit | None) -> tuple[object, ...]:
    return *plan.drawing_parts, worker_init_fn


@contextmanager
def importable_main(context: BaseContext) -> Iterator[None]:
    """Let processes start in the block that import what they need, and quickly."""
    if context.get_start_method() == "fork":
        yield
        return
    if context.get_start_method() == "forkserver":
        _preload()
    with main_without_file_hidden():
        yield


def _preload() -> None:
    # Has no effect on a server that runs already; a list of the user's is left alone.
    server = forkserver._forkserver  # noqa: SLF001
    if getattr(server, "_preload_modules", None) == ["__main__"]:
        forkserver.set_forkserver_preload(["__main__", *PRELOADED])


def _raise_for_part(plan: FetchPlan, worker_init_fn: WorkerInit | None) -> None:
    parts = {
        "dataset": plan.dataset,
        "collate_fn": plan.collate_fn,
        "worker_init_fn": worker_init_fn,
    }
    for name, part in parts.items():
        dumps_for_worker(part, name, buffers=[], inherited=[])


def _written(parts: list[memoryview]) -> tuple[MemoryFile, tuple[slice, ...]]:
    places: list[slice] = []
    end = 0
    for part in parts:
        start = place_in_file(end, part, ALIGNMENT_BYTES)
        end = start + len(part)
        places.append(slice(start, end))
    file = MemoryFile.create(max(1, end))
    for place, part in zip(places, parts, strict=True):
        write_sharing(file, place.start, part)
    return file, tuple(places)
