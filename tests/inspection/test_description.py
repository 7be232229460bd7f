"""A dataset is described alike in every run, and another one differently."""

import json
import runpy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from fastloader.inspection._description import describe


class Files:
    def __init__(self, size=16, paths=("a", "b"), transform=None):
        self.size = size
        self.paths = list(paths)
        self.transform = transform
        self.epoch = 0
        self.handle = None

    def __len__(self):
        return len(self.paths)

    def __getstate__(self):
        return {**self.__dict__, "handle": None}


def test_a_description_is_json():
    dataset = Subset(TensorDataset(torch.zeros(4, 2), torch.arange(4)), [1, 2])
    dataset.more = {
        "folder": Path("images"),
        "array": np.zeros(3),
        "kinds": {"a"},
        "f": partial(max),
    }

    assert json.loads(json.dumps(describe(dataset))) == describe(dataset)


@pytest.mark.parametrize(
    "other",
    [Files(size=17), Files(paths="abc"), Files(transform=len), Subset(Files(), [0]), [1, 2]],
    ids=["a value", "the length", "a function", "a wrapper", "the type"],
)
def test_what_is_another_dataset_is_described_differently(other):
    assert describe(other) != describe(Files())


def test_neither_the_epoch_nor_what_was_opened_counts():
    used = Files()
    used.epoch = 3
    used.handle = object()

    assert describe(used) == describe(Files())


def test_a_dataset_that_holds_itself_comes_to_an_end():
    dataset = Files()
    dataset.transform = dataset

    assert describe(dataset)


def test_deeply_nested_lists_do_not_multiply_without_end():
    nested = 1
    for _ in range(8):
        nested = [nested] * 100

    assert len(json.dumps(describe(nested))) < 50_000


def test_what_cannot_tell_its_state_is_described_by_its_attributes():
    class Locked(Files):
        def __getstate__(self):
            raise TypeError("not now")

    assert describe(Locked(size=1)) != describe(Locked(size=2))


def test_a_script_describes_its_dataset_as_an_importer_does(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("class Cells:\n    def __init__(self):\n        self.size = 3\n")

    run, imported = (
        describe(runpy.run_path(str(script), run_name=name)["Cells"]())
        for name in ("__main__", "train")
    )

    assert run == imported
    assert run[:3] == ["Cells", None, {"size": 3}]


def of_code(text, name="Cells"):
    place = {}
    exec(text, place)
    return describe(place[name]() if name == "Cells" else place[name])


CELLS = "class Cells:\n    def __getitem__(self, index):\n        return {0}\n"


def test_code_counts_but_not_where_it_stands():
    assert of_code(CELLS.format("index + 1")) == of_code("\n\n" + CELLS.format("index + 1"))
    assert of_code(CELLS.format("index + 1")) != of_code(CELLS.format("index + 2"))
    assert of_code(CELLS.format("[x for x in index]")) != of_code(
        CELLS.format("[x * 2 for x in index]")
    )
    assert of_code("f = lambda x: x", "f") != of_code("f = lambda x: x + 1", "f")
    assert of_code("f = lambda x: x in {'a', 'b'}", "f") == of_code(
        "f = lambda x: x in {'b', 'a'}", "f"
    )


def test_code_of_libraries_does_not_count():
    assert describe(TensorDataset(torch.zeros(2)))[3:] == []
