"""Only code that leaves nothing behind is taken for plain."""

import functools
import inspect
import math
import multiprocessing
import os
import random
import threading
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fastloader._torch_internals import default_collate_fn_map
from fastloader.inspection._plain_code import has_plain_collate, is_plain

SCALE = 2.0
TABLE = {"mean": [0.5, 0.5]}
SEEN = []
RNG = np.random.default_rng(0)


def halved(value, by=2):
    return value / by


def remembered(value):
    SEEN.append(value)
    return value


def recursive(value):
    return value if value < 1 else recursive(value - 1)


class Rows(Dataset):
    size = 3

    def __init__(self, **attributes):
        self.images = torch.arange(24.0).reshape(4, 6)
        self.arrays = np.arange(24).reshape(4, 6)
        self.labels = [1, 2, 3, 4]
        self.names = {"a": (1, "x"), "b": (2, None)}
        self.transform = None
        self.count = 0
        self.__dict__.update(attributes)

    def __len__(self):
        return 4

    def shifted(self, value):
        return value + self.size

    def leaking(self):
        return self


def of(function, **attributes):
    """Return rows that are read by a function of dataset and index."""
    return type("Made", (Rows,), {"__getitem__": function})(**attributes)


def full(self, index):
    return torch.full((3, 8, 8), float(index)), index


def indexed(self, index):
    return self.images[index], self.labels[index]


def guarded(self, index):
    image = self.images[index]
    if self.transform is not None:
        image = self.transform(image)
    return {"image": image, "label": self.labels[index], "name": f"{index}"}


def computed(self, index):
    if index >= len(self.labels):
        raise IndexError(f"no row {index}")
    row = torch.from_numpy(self.arrays[index].astype(np.float32)) / 255 * SCALE
    first, _second = self.names["a"]
    return (
        row.reshape(2, 3),
        first,
        self.shifted(halved(self.labels[-1])),
        math.pi,
        recursive(2),
    )


def looped(self, index):
    total = 0
    for label in self.labels[:index]:
        total = total + label
    return np.zeros((2, 2), dtype=np.float32), max(total, TABLE["mean"][0])


PLAIN = [full, indexed, guarded, computed, looped]


@pytest.mark.parametrize("function", PLAIN)
def test_code_that_only_makes_new_values_is_plain(function):
    dataset = of(function)

    dataset[1]

    assert is_plain(dataset)


def test_a_transform_of_such_code_is_plain():
    assert is_plain(of(guarded, transform=lambda image: (image - 0.5) / 0.25))


def stores_attribute(self, index):
    self.count = index
    return index


def adds_to_attribute(self, index):
    self.count += 1
    return index


def stores_item(self, index):
    self.images[index] = 0
    return index


def adds_in_place(self, index):
    image = self.images[index]
    image += 1
    return image


def appends(self, index):
    self.labels.append(index)
    return index


def calls_in_place(self, index):
    return self.images[index].add_(1)


def deletes(self, index):
    del self.labels[0]
    return index


def stores_global(self, index):
    global SCALE  # noqa: PLW0603
    SCALE = 1.0
    return index


def appends_to_global(self, index):
    SEEN.append(index)
    return index


def calls_what_remembers(self, index):
    return remembered(index)


def opens(self, index):
    with open("/dev/null") as file:  # noqa: PTH123
        return file.read()


def reads_file(self, index):
    return np.fromfile("/dev/null")


def writes_file(self, index):
    self.arrays.tofile("/dev/null")
    return index


def imports(self, index):
    import json

    return json.loads("1")


def prints(self, index):
    print(index)  # noqa: T201
    return index


def draws_torch(self, index):
    return torch.rand(3)


def draws_numpy(self, index):
    return np.random.rand(3)


def draws_python(self, index):
    return random.random()


def draws_owned(self, index):
    return RNG.random()


def draws_own(self, index):
    return self.rng.random()


def draws_in_place(self, index):
    return self.images[index].uniform_()


def asks_worker(self, index):
    return torch.utils.data.get_worker_info()


def asks_system(self, index):
    return os.getpid()


def asks_environment(self, index):
    return os.environ["HOME"]


def decodes(self, index):
    return zlib.decompress(b"")


def evaluates(self, index):
    return eval("1")


def gets_attribute(self, index):
    return getattr(self, "images")[index]  # noqa: B009


def sets_attribute(self, index):
    setattr(self, "count", index)  # noqa: B010
    return index


def leaks_itself(self, index):
    return [self]


def leaks_by_method(self, index):
    return self.leaking()


def leaks_by_name(self, index):
    other = self
    other.count = 1
    return index


def renames_itself(self, index):
    self = self.names
    return self["a"]


def chooses_module(self, index):
    return (np if index else torch).zeros(3)


def writes_to_out(self, index):
    return torch.stack([self.images[0]], out=self.images)


def writes_to_out_by_place(self, index):
    return np.add(self.arrays[0], 1, self.arrays[0])


def concatenates_to_out(self, index):
    return np.concatenate([self.arrays[0]], 0, self.arrays[1])


def goes_to_device(self, index):
    return torch.zeros(3, device="cuda")


def moves_to_device(self, index):
    return self.images[index].cuda()


def moves_to(self, index):
    return self.images[index].to("cuda")


def starts_thread(self, index):
    threading.Thread(target=print).start()
    return index


def catches(self, index):
    try:
        return self.images[index]
    except IndexError:
        return None


def yields(self, index):
    yield index


async def waits(self, index):
    return index


def has_lambda(self, index):
    read = lambda: index  # noqa: E731
    return read()


def has_closure(self, index):
    return [self.labels[index] for _ in range(2)]


def takes_any(self, *indices):
    return indices


def unpacks_call(self, index):
    return torch.zeros(*[3, 3])


def calls_super(self, index):
    return super(Rows, self).__getitem__(index)


def looks_up_late(self, index):
    return undefined_name  # noqa: F821


def reads_docs(self, index):
    return self.__class__


def reads_module(self, index):
    return torch.utils.data


HARMFUL = [
    value
    for name, value in list(globals().items())
    if inspect.isfunction(value)
    and list(inspect.signature(value).parameters)[:1] == ["self"]
    and value not in PLAIN
]


@pytest.mark.parametrize("function", HARMFUL)
def test_code_that_may_leave_something_behind_is_not_plain(function):
    assert len(HARMFUL) > 50
    assert not is_plain(of(function, rng=np.random.default_rng(0)))


class Handle:
    """Whatever a dataset may hold."""

    def __getitem__(self, index):
        SEEN.append(index)


class Numbers(list):
    def __getitem__(self, index):
        SEEN.append(index)


class Subtensor(torch.Tensor):
    pass


HELD = {
    "handle": Handle(),
    "subclass of list": Numbers([1]),
    "list": [Handle()],
    "nested": {"a": (1, [Handle()])},
    "key": {Path(): 1},
    "defaultdict": defaultdict(list),
    "counter": Counter(),
    "iterator": iter([1]),
    "file": open(os.devnull),  # noqa: SIM115, PTH123
    "path": Path(),
    "objects": np.array([Handle()], dtype=object),
    "subclass of ndarray": np.zeros(3).view(np.recarray),
    "subclass of tensor": torch.zeros(3).as_subclass(Subtensor),
    "differentiable": torch.zeros(3, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
    "on a device": torch.zeros(3, device="meta"),
    "lock": multiprocessing.RLock(),
    "generator": np.random.default_rng(0),
    "too long to look at": list(range(5000)),
}


@pytest.mark.parametrize("images", HELD.values(), ids=HELD)
def test_what_is_read_must_be_plain_too(images):
    assert not is_plain(of(indexed, images=images))


def test_a_loop_of_containers_ends():
    endless = []
    endless.append(endless)

    assert not is_plain(of(indexed, images=endless))


class Property(Rows):
    @property
    def scans(self):
        SEEN.append(1)

    @staticmethod
    def helper():
        SEEN.append(1)

    def __getitem__(self, index):
        return self.scans


class Lookup(Rows):
    __getitem__ = indexed

    def __getattribute__(self, name):
        SEEN.append(name)
        return super().__getattribute__(name)


class Fallback(Rows):
    def __getattr__(self, name):
        SEEN.append(name)

    def __getitem__(self, index):
        return self.missing


class Batches(Rows):
    __getitem__ = indexed

    def __getitems__(self, indices):
        SEEN.extend(indices)


class Wrapped(Rows):
    __getitem__ = functools.cache(indexed)


class Slots:
    __slots__ = ()

    def __getitem__(self, index):
        return index


class Default(Rows):
    def __getitem__(self, index, cache=Handle()):  # noqa: B008
        return cache[index]


class OfClass(Rows):
    handle = Handle()

    def __getitem__(self, index):
        return self.handle[index]


FOUND_OTHERWISE = {
    "property": Property(),
    "getattribute": Lookup(),
    "getattr": Fallback(),
    "getitems": Batches(),
    "wrapped": Wrapped(),
    "slots": Slots(),
    "default": Default(),
    "class attribute": OfClass(),
    "list": [1, 2],
    "range": range(3),
    "batched": TensorDataset(torch.zeros(3)),
    "object to call": of(guarded, transform=Handle()),
    "module": of(guarded, transform=torch.nn.Identity()),
    "partial": of(guarded, transform=functools.partial(halved, by=3)),
    "function": of(guarded, transform=remembered),
}


@pytest.mark.parametrize("dataset", FOUND_OTHERWISE.values(), ids=FOUND_OTHERWISE)
def test_what_is_found_otherwise_than_by_plain_lookup_is_not_plain(dataset):
    SEEN.clear()

    assert not is_plain(dataset)
    assert SEEN == []  # nothing of it was run to find out


def test_tensors_that_are_made_on_a_device_are_not_plain():
    with torch.device("meta"):
        assert not is_plain(of(full))


def test_what_stands_in_for_a_known_function_is_not_plain(monkeypatch):
    monkeypatch.setattr(torch, "full", lambda *_: SEEN.append(1))

    assert not is_plain(of(full))


def test_a_collate_function_of_somebody_else_is_noticed(monkeypatch):
    assert has_plain_collate()

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, remembered)

    assert not has_plain_collate()


def test_other_builtins_than_pythons_are_noticed():
    names = {"__builtins__": {"float": remembered}, "torch": torch}
    exec("def read(self, index):\n    return torch.full((2,), float(index))", names)

    assert not is_plain(of(names["read"]))
