"""Changes of a dataset that workers would miss are seen."""

import threading
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fastloader.inspection._fingerprint import OwnFingerprint, fingerprint

OPTIONS = {"crop": 32}


def global_reader():
    return OPTIONS["crop"]


class Config:
    zoom = 2


class Slotted:
    __slots__ = ("size",)

    def __init__(self):
        self.size = 3


class Inner:
    flips = True

    def __init__(self):
        self.size = 3

    def read(self):
        return self.size * Config.zoom * global_reader()


def counter():
    count = 0

    def advance():
        nonlocal count
        count += 1

    return advance


class Holder:
    def __init__(self):
        self.epoch = 0
        self.names = ["a", "b"]
        self.options = {"crop": 32}
        self.weights = np.ones(4)
        self.images = torch.zeros(10)
        self.large = list(range(1000))
        self.inner = Inner()
        self.function = len
        self.method = Inner().read
        self.bound = partial(Inner().read)
        self.closure = counter()
        self.pixels = np.zeros(2_000_000, np.uint8)
        self.by_name = {str(i): i for i in range(1000)}
        self.slotted = Slotted()
        self.deep = [{"a": [[Inner()]]}]
        self.from_array = torch.from_numpy(np.zeros(10))
        self.objects = np.array([None] * 100)


class LiveHolder(Holder):
    def live_state(self):
        return self.epoch

    def load_live_state(self, state):
        self.epoch = state


class Other(Holder):
    pass


def set_class(holder):
    holder.__class__ = Other


@pytest.mark.parametrize(
    "change",
    [
        lambda h: setattr(h, "epoch", 1),
        lambda h: h.names.append("c"),
        lambda h: h.options.update(crop=64),
        lambda h: h.weights.fill(2.0),
        lambda h: h.images.add_(1),
        lambda h: h.large.pop(),
        lambda h: setattr(h.inner, "size", 5),
        lambda h: setattr(h, "function", max),
        lambda h: setattr(h, "images", torch.zeros(10)),
        lambda h: setattr(h.method.__self__, "size", 5),
        lambda h: setattr(h.bound.func.__self__, "size", 5),
        lambda h: h.closure(),
        lambda h: h.pixels.fill(1),
        lambda h: h.large.reverse(),
        lambda h: h.by_name.update({"7": 70}),
        lambda h: setattr(h.slotted, "size", 5),
        lambda h: setattr(h.deep[0]["a"][0][0], "size", 5),
        lambda h: h.from_array.numpy().fill(1),
        lambda h: h.objects.fill(0),
        set_class,
    ],
    ids=[
        "scalar",
        "list",
        "dict",
        "array",
        "tensor",
        "long",
        "nested",
        "function",
        "new",
        "object of a method",
        "object of a partial method",
        "closure",
        "large array",
        "order of a long list",
        "value in a long dict",
        "slot",
        "deep",
        "array of a tensor",
        "array of objects",
        "class",
    ],
)
def test_a_change_is_seen(change):
    holder = Holder()
    before = fingerprint(holder)

    change(holder)

    assert fingerprint(holder) != before


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Inner, "flips"), (Config, "zoom")],
    ids=["class attribute", "class that a method names"],
)
def test_a_change_of_a_class_attribute_is_seen(owner, name, monkeypatch):
    holder = Holder()
    before = fingerprint(holder)

    monkeypatch.setattr(owner, name, 7)

    assert fingerprint(holder) != before


def test_a_change_of_a_global_variable_is_seen_wherever_code_names_it(monkeypatch):
    holder = Holder()
    before = fingerprint(holder)

    monkeypatch.setitem(OPTIONS, "crop", 64)

    assert fingerprint(holder) != before


def test_arrays_in_files_and_shared_memory_are_not_read(tmp_path):
    holder = Holder()
    holder.pixels = np.memmap(tmp_path / "pixels", np.uint8, "w+", shape=(100,))
    before = fingerprint(holder)

    holder.pixels[:] = 1

    assert fingerprint(holder) == before


def test_what_becomes_of_a_tensor_in_shared_memory_is_no_change():
    dataset = SimpleNamespace(size=torch.zeros(4).share_memory_())
    before = fingerprint(dataset)

    dataset.size.fill_(5)  # which workers see
    assert fingerprint(dataset) == before

    dataset.size = dataset.size.clone().share_memory_()
    assert fingerprint(dataset) != before


def test_without_a_change_it_is_equal():
    holder = Holder()

    assert fingerprint(holder) == fingerprint(holder)


def test_plain_values_of_a_live_dataset_do_not_count():
    holder = LiveHolder()
    before = fingerprint(holder)

    holder.epoch = 7

    assert fingerprint(holder) == before


def test_tensors_of_inference_mode_can_be_looked_at():
    holder = Holder()
    with torch.inference_mode():
        holder.images = torch.zeros(10)

    assert fingerprint(holder) == fingerprint(holder)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        lambda: torch.zeros(3, dtype=torch.complex64).conj().imag,
        lambda: torch.zeros(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.quint8),
    ],
    ids=["nested", "negative", "sparse", "quantized"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_without_plain_memory_can_be_looked_at(make):
    tensor = make()

    assert fingerprint([tensor]) == fingerprint([tensor])


def test_a_variable_without_a_value_can_be_looked_at():
    holder = Holder()

    def read():
        return later

    holder.function = read
    before = fingerprint(holder)
    later = 1

    assert fingerprint(holder) != before


def test_cycles_end():
    holder = Holder()
    holder.me = holder

    assert fingerprint(holder) == fingerprint(holder)


class Raising:
    def __getattr__(self, name):
        raise ImportError(name)


def test_objects_are_not_asked_for_what_they_do_not_have():
    assert fingerprint([Raising()])


def test_a_thread_is_not_looked_into():
    inner = Inner()
    thread = threading.Thread(target=inner.read)
    before = fingerprint([thread])

    inner.size = 4

    assert fingerprint([thread]) == before


class Versioned(OwnFingerprint):
    def __init__(self):
        self.version, self.buffers = 1, []

    def own_fingerprint(self):
        return self.version


def test_what_has_a_fingerprint_of_its_own_is_asked_for_it():
    holder = Holder()
    holder.inner = Versioned()
    before = fingerprint(holder)

    holder.inner.buffers.append(0)
    assert fingerprint(holder) == before

    holder.inner.version = 2
    assert fingerprint(holder) != before

    other = Holder.__new__(Holder)
    other.__dict__ = holder.__dict__ | {"inner": Versioned()}
    assert fingerprint(other) != before


class Closed:
    """Holds a file that a finalizer closes."""

    def __init__(self):
        self.close = weakref.finalize(self, int)


def test_finalizers_of_others_do_not_count():
    dataset, other = Closed(), Closed()
    before = fingerprint(dataset)

    weakref.finalize(other, int)

    assert fingerprint(dataset) == before
