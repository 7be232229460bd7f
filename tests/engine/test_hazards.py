"""What goes wrong in workers without an error is said before they start."""

import sqlite3
import tarfile
import threading
import zipfile

import numpy as np
import pytest

from fastloader.engine._hazards import warn_of_hazards


class Holder:
    def __init__(self, **parts):
        self.__dict__.update(parts)


@pytest.fixture
def _zarrs():
    pytest.importorskip("zarrs")
    import zarr

    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        yield


@pytest.mark.usefixtures("_zarrs")
def test_a_pipeline_that_does_not_live_through_a_fork_brings_a_warning():
    with pytest.warns(
        UserWarning, match=r"zarr decodes by zarrs.*hangs for ever.*'forkserver'"
    ):
        warn_of_hazards(Holder(), forks=True)


@pytest.mark.usefixtures("_zarrs")
def test_such_a_pipeline_is_no_matter_where_nothing_is_inherited():
    warn_of_hazards(Holder(), forks=False)


def test_an_open_file_brings_a_warning_with_its_path(tmp_path):
    path = tmp_path / "records.bin"
    path.touch()
    with path.open("rb") as file:
        dataset = Holder(inner=Holder(records_file=file))

        with pytest.warns(UserWarning, match=r"dataset\.inner\.records_file is an open file"):
            warn_of_hazards(dataset, forks=True)


def _h5py_dataset():
    return type("Dataset", (), {"__module__": "h5py._hl.dataset"})()


def _lmdb_environment():
    return type("Environment", (), {"__module__": "lmdb.cpython"})()


@pytest.mark.parametrize(
    "make",
    [_h5py_dataset, _lmdb_environment, lambda: sqlite3.connect(":memory:")],
    ids=["h5py", "lmdb", "sqlite3"],
)
def test_what_stands_for_an_open_file_brings_a_warning_too(make):
    with pytest.warns(UserWarning, match=r"dataset\.records is an open file .* or locks"):
        warn_of_hazards(Holder(records=make()), forks=True)


def test_an_open_file_is_no_matter_where_nothing_is_inherited(tmp_path):
    path = tmp_path / "records.bin"
    path.touch()
    with path.open("rb") as file:
        warn_of_hazards(Holder(file=file), forks=False)


def test_a_log_that_is_written_to_is_no_matter(tmp_path):
    with (tmp_path / "log").open("a") as file:
        warn_of_hazards(Holder(file=file), forks=True)


def test_the_streams_that_a_thread_knows_are_no_matter(tmp_path):
    thread = threading.Thread()
    with (tmp_path / "log").open("w+") as thread._stderr:
        warn_of_hazards(Holder(thread=thread), forks=True)


def test_a_closed_file_is_no_matter(tmp_path):
    path = tmp_path / "records.bin"
    path.touch()
    with path.open("rb") as file:
        pass

    with zipfile.ZipFile(tmp_path / "plates.zip", "w") as archive:
        pass
    with tarfile.open(tmp_path / "plates.tar", "w") as tape:
        pass

    warn_of_hazards(Holder(file=file, archive=archive, tape=tape), forks=True)


@pytest.mark.parametrize(
    "objects",
    [
        [f"plate/{number:08d}/{'x' * 64}" for number in range(150_000)],
        {number: {"path": "a" * 40, "label": number} for number in range(60_000)},
        np.array([f"plate/{number:08d}/{'x' * 64}" for number in range(150_000)], object),
    ],
    ids=["list", "dict-of-dicts", "array"],
)
def test_many_python_objects_bring_a_warning(objects):
    with pytest.warns(
        UserWarning, match=r"dataset\.paths is a (list|dict|ndarray) of .* objects"
    ):
        warn_of_hazards(Holder(paths=objects), forks=True)


@pytest.mark.parametrize(
    "held",
    [np.zeros(10_000_000), [np.zeros(1_000_000)] * 200, list(range(1000)), "x" * 20_000_000],
    ids=["array", "arrays", "short", "text"],
)
def test_what_workers_share_is_no_matter(held):
    warn_of_hazards(Holder(held=held), forks=True)
