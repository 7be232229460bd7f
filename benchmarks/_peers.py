"""The loaders that are compared, each set up as its own documentation advises.

A factory takes a dataset, the size of a batch, a number of workers (threads or processes, as the
loader has them) and whether to shuffle; it returns a function, each call of which begins one pass.
"""

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from _measurement import CannotRun
from fastloader import FastLoader

__all__ = ["LOADERS", "OURS", "PEERS", "STOCK", "Epochs", "Factory", "import_peer"]

Epochs: TypeAlias = Callable[[], Iterator[Any]]
Factory: TypeAlias = Callable[[Any, int, int, bool], Epochs]

_AHEAD = 4
"""Batches that a tuned loader makes ahead, of each worker where it has any."""


def import_peer(name: str, package: str) -> ModuleType:
    """Return a module of a peer.

    Args:
        name: Of the module.
        package: That has it, as it is installed.

    Raises:
        CannotRun: If it is not installed, or does not work with what is.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = getattr(error, "name", None)
        if missing and name.startswith(missing):
            raise CannotRun(f"{package} is not installed") from None
        raise CannotRun(f"{package} cannot be imported: {error}") from None


def _stock(
    loader_class: Any,
    dataset: Any,
    batch_size: int,
    num_workers: int,
    shuffle: bool,
    *,
    is_tuned: bool = True,
) -> Epochs:
    options = {}
    if num_workers and is_tuned:
        options = {"persistent_workers": True, "prefetch_factor": _AHEAD}
    loader = loader_class(
        dataset, batch_size, shuffle=shuffle, num_workers=num_workers, **options
    )
    return functools.partial(iter, loader)


def _stateful(dataset: Any, batch_size: int, num_workers: int, shuffle: bool) -> Epochs:
    module = import_peer("torchdata.stateful_dataloader", "torchdata")
    return _stock(module.StatefulDataLoader, dataset, batch_size, num_workers, shuffle)


def _fast(dataset: Any, batch_size: int, num_workers: int, shuffle: bool) -> Epochs:
    loader: Any = FastLoader(dataset, batch_size, shuffle=shuffle, num_workers=num_workers)
    return functools.partial(iter, loader)


def _fast_by_itself(dataset: Any, batch_size: int, num_workers: int, shuffle: bool) -> Epochs:
    del num_workers
    return functools.partial(iter, FastLoader(dataset, batch_size, shuffle=shuffle))


def _fast_threads(dataset: Any, batch_size: int, num_workers: int, shuffle: bool) -> Epochs:
    loader: Any = FastLoader(
        dataset, batch_size, shuffle=shuffle, num_workers=num_workers, workers="threads"
    )
    return functools.partial(iter, loader)


def _batches_of(dataset: Any, batch_size: int, shuffle: bool) -> BatchSampler:
    sampler: Any = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return BatchSampler(sampler, batch_size, drop_last=False)


def _fetch(dataset: Any, indices: list[int]) -> Any:
    if hasattr(dataset, "__getitems__"):
        return default_collate(dataset.__getitems__(indices))
    return default_collate([dataset[index] for index in indices])


def _nodes(
    method: str, dataset: Any, batch_size: int, num_workers: int, shuffle: bool
) -> Epochs:
    nodes = import_peer("torchdata.nodes", "torchdata")
    node = nodes.SamplerWrapper(_batches_of(dataset, batch_size, shuffle))
    node = nodes.ParallelMapper(
        node,
        functools.partial(_fetch, dataset),
        num_workers=max(1, num_workers),
        method=method,
        multiprocessing_context="fork" if method == "process" else None,
    )
    node = nodes.Prefetcher(node, prefetch_factor=_AHEAD)
    return functools.partial(iter, nodes.Loader(node, restart_on_stop_iteration=True))


def _spdl_threads(dataset: Any, batch_size: int, num_workers: int, shuffle: bool) -> Epochs:
    pipeline = import_peer("spdl.pipeline", "spdl")
    num_threads = max(1, num_workers)
    batches = _batches_of(dataset, batch_size, shuffle)

    def epoch() -> Iterator[Any]:
        builder = pipeline.PipelineBuilder().add_source(batches)
        builder = builder.pipe(
            functools.partial(_fetch, dataset), concurrency=num_threads, output_order="input"
        )
        built = builder.add_sink(_AHEAD).build(num_threads=num_threads)
        with built.auto_stop():
            yield from built.get_iterator()

    return epoch


def _spdl_processes(dataset: Any, batch_size: int, num_workers: int, shuffle: bool) -> Epochs:
    loader = import_peer("spdl.dataloader", "spdl").get_pytorch_dataloader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=max(1, num_workers),
        prefetch_factor=_AHEAD,
        multiprocessing_context="fork",
        in_order=True,
    )
    return functools.partial(iter, loader)


def _monai(dataset: Any, batch_size: int, num_workers: int, shuffle: bool) -> Epochs:
    options: dict[str, Any] = {}
    if num_workers:
        options = {"use_thread_workers": True, "prefetch_factor": _AHEAD}
    loader = import_peer("monai.data", "monai").ThreadDataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        buffer_size=_AHEAD,
        collate_fn=default_collate,
        **options,
    )
    return functools.partial(iter, loader)


class _AsArrays:
    """The samples of a dataset as NumPy arrays, which Grain asks for."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return _as_arrays(self._dataset[int(index)])

    def __repr__(self) -> str:
        return type(self).__name__  # Grain prints it, and would print the data


def _as_arrays(sample: Any) -> Any:
    if isinstance(sample, torch.Tensor):
        return sample.numpy()
    if isinstance(sample, (tuple, list)):
        return tuple(_as_arrays(part) for part in sample)
    if isinstance(sample, dict):
        return {key: _as_arrays(part) for key, part in sample.items()}
    return sample


def _grain(
    has_processes: bool, dataset: Any, batch_size: int, num_workers: int, shuffle: bool
) -> Epochs:
    grain = import_peer("grain", "grain")
    flags = import_peer("absl.flags", "absl-py").FLAGS
    if not flags.is_parsed():
        flags(["benchmark"])  # its workers read flags, which are those of no absl program here
    batches = grain.MapDataset.source(_AsArrays(dataset))
    if shuffle:
        batches = batches.shuffle(seed=0)
    # A batch is made in one read, so that threads overlap whole batches.
    batches = batches.batch(batch_size, drop_remainder=False)
    num_threads = 1 if has_processes else max(1, num_workers)
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=_AHEAD)
    stream = batches.to_iter_dataset(options)
    if has_processes:
        stream = stream.mp_prefetch(
            grain.MultiprocessingOptions(
                num_workers=max(1, num_workers), per_worker_buffer_size=_AHEAD
            )
        )
    return functools.partial(iter, stream)


def _hugging_face(dataset: Any, batch_size: int, num_workers: int, shuffle: bool) -> Epochs:
    columns = getattr(dataset, "columns", None)
    if columns is None:
        raise CannotRun("holds its data in tables of its own, which these are not")
    datasets = import_peer("datasets", "datasets")
    features = {
        name: datasets.Array3D(array.shape[1:], str(array.dtype))
        if array.ndim == 4
        else datasets.Value(str(array.dtype))
        for name, array in columns.items()
    }
    table = datasets.Dataset.from_dict(
        {name: list(array) for name, array in columns.items()},
        features=datasets.Features(features),
    )
    return _stock(DataLoader, table.with_format("torch"), batch_size, num_workers, shuffle)


STOCK: Mapping[str, Factory] = {
    "DataLoader, as it comes": functools.partial(_stock, DataLoader, is_tuned=False),
    "DataLoader, tuned": functools.partial(_stock, DataLoader),
}
"""Tuned: workers that live on and make four batches ahead."""

PEERS: Mapping[str, Factory] = {
    "StatefulDataLoader": _stateful,
    "torchdata.nodes, threads": functools.partial(_nodes, "thread"),
    "torchdata.nodes, processes": functools.partial(_nodes, "process"),
    "MONAI ThreadDataLoader": _monai,
    "SPDL, threads": _spdl_threads,
    "SPDL, processes": _spdl_processes,
    "Grain, threads": functools.partial(_grain, False),
    "Grain, processes": functools.partial(_grain, True),
    "Hugging Face datasets": _hugging_face,
}

OURS: Mapping[str, Factory] = {
    "FastLoader": _fast_by_itself,
    "FastLoader, same workers": _fast,
    "FastLoader, threads": _fast_threads,
}
"""As it comes (it chooses the number of workers), and with as many as the others have."""

LOADERS: Mapping[str, Factory] = {**STOCK, **PEERS, **OURS}
