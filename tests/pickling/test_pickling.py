"""What travels to a worker, how, and what is said of what cannot."""

import functools
import io
import multiprocessing
import pickle
import random
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloader.errors import UnpicklableError
from fastloader.pickling._pickling import dumps_for_worker, loads_from_parent


def round_trip(obj):
    return loads_from_parent(dumps_for_worker(obj))


def test_tensors_travel_whatever_the_default_device_is():
    tensors = [torch.arange(3), torch.arange(6.0).view(2, 3).T]
    with torch.device("meta"):
        sent = round_trip(tensors)

    assert [tensor.device.type for tensor in sent] == ["cpu", "cpu"]
    assert all(map(torch.equal, tensors, sent))


class Holder:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Guarded:
    def __init__(self, guard):
        self.guard = guard

    def get(self):
        return self.guard


class Slotted:
    __slots__ = ("guard",)


class Counted(list):
    pass


class Pair(NamedTuple):
    left: int
    right: object


@dataclass
class Sample:
    image: torch.Tensor
    extra: dict = field(default_factory=dict)


def test_an_importable_object_is_pickled_by_reference():
    assert round_trip(Holder) is Holder


def test_a_lambda_travels():
    assert round_trip(lambda x: x + 1)(2) == 3


def test_a_closure_takes_its_variables_along():
    offset = 5

    def shift(x):
        return x + offset

    assert round_trip(shift)(1) == 6


def test_an_instance_of_a_local_class_travels():
    class Local:
        def __init__(self):
            self.value = 3

        def double(self):
            return 2 * self.value

    assert round_trip(Local()).double() == 6


def test_views_of_one_tensor_stay_views_of_one_tensor():
    base = torch.arange(6.0).reshape(2, 3)

    whole, column = round_trip((base, base[:, 1]))
    whole[0, 1] = -1

    assert column.tolist() == [-1, 4]


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.empty(0, 3), id="empty"),
        pytest.param(torch.tensor(3, dtype=torch.uint8), id="scalar"),
        pytest.param(torch.arange(12).reshape(3, 4).T, id="transposed"),
        pytest.param(torch.arange(12)[3:9:2], id="strided"),
        pytest.param(torch.zeros(1).expand(4), id="expanded"),
        pytest.param(torch.randn(3, dtype=torch.complex64).conj(), id="conjugated"),
        pytest.param(torch.randn(3, requires_grad=True), id="requires grad"),
        pytest.param(torch.eye(3).to_sparse(), id="sparse"),
        pytest.param(torch.randn(3).bfloat16(), id="bfloat16"),
        pytest.param(torch.nn.Parameter(torch.ones(2)), id="parameter"),
    ],
)
def test_a_tensor_arrives_as_it_was(tensor):
    arrived = round_trip(tensor)

    assert type(arrived) is type(tensor)
    assert arrived.requires_grad == tensor.requires_grad
    torch.testing.assert_close(arrived, tensor, rtol=0, atol=0)


def test_a_generator_goes_on_where_it_was():
    generator = torch.Generator().manual_seed(4)
    torch.rand(3, generator=generator)

    arrived = round_trip(Holder(noise=generator)).noise

    assert (
        torch.rand(2, generator=arrived).tolist() == torch.rand(2, generator=generator).tolist()
    )


def test_a_generator_that_draws_from_the_system_travels():
    assert 0 <= round_trip(random.SystemRandom()).random() < 1


def test_large_buffers_stay_out_of_the_stream():
    data = Holder(array=np.arange(10_000), tensor=torch.arange(20_000.0), small=np.arange(3))
    buffers = []

    stream = dumps_for_worker(data, buffers=buffers)
    arrived = loads_from_parent(stream, buffers=buffers)

    assert [buffer.raw().nbytes for buffer in buffers] == [80_000, 80_000]
    assert len(stream) < 2_000
    assert np.shares_memory(arrived.array, data.array)
    assert arrived.tensor.data_ptr() == data.tensor.data_ptr()


def test_a_read_only_buffer_gives_a_tensor_that_can_be_written():
    buffers = []
    stream = dumps_for_worker(torch.zeros(50_000), buffers=buffers)

    tensor = loads_from_parent(stream, buffers=[bytes(buffer.raw()) for buffer in buffers])
    tensor += 1

    assert tensor.sum() == 50_000


def test_buffers_of_a_failed_attempt_are_forgotten():
    """The plain attempt passes the array and fails at the lambda; by value it is passed again."""
    buffers = []

    dumps_for_worker(Holder(array=np.arange(10_000), fn=lambda x: x), buffers=buffers)

    assert len(buffers) == 1


def test_what_a_process_must_inherit_is_put_aside_once():
    context = multiprocessing.get_context("spawn")
    lock, counter = context.Lock(), context.Value("i", 3)
    raw, shared = context.RawArray("i", 4), torch.zeros(3).share_memory_()
    inherited = []

    stream = dumps_for_worker(
        Holder(a=lock, b=lock, counter=counter, raw=raw, shared=shared), inherited=inherited
    )
    arrived = loads_from_parent(stream, inherited=inherited)

    assert arrived.a is arrived.b is lock
    assert arrived.counter is counter
    assert arrived.raw is raw
    assert arrived.shared is shared
    assert len(inherited) == 4


def make_guard():
    return threading.Lock()


def with_closure():
    guard = make_guard()
    return lambda: guard


def with_slot():
    slotted = Slotted()
    slotted.guard = make_guard()
    return slotted


def in_a_cycle():
    first, second = Holder(), Holder()
    first.friend, second.friend = second, first
    first.guard = make_guard()
    return second


def in_a_local_class():
    class Local:
        guard = make_guard()

    return Local()


@pytest.mark.parametrize(
    ("make", "path"),
    [
        pytest.param(lambda: Holder(guard=make_guard()), "dataset.guard", id="attribute"),
        pytest.param(lambda: [1, make_guard()], "dataset[1]", id="list"),
        pytest.param(
            lambda: Holder(transforms=[1, 2, Holder(fn=make_guard())]),
            "dataset.transforms[2].fn",
            id="nested",
        ),
        pytest.param(lambda: {"left": (make_guard(),)}, "dataset['left'][0]", id="mapping"),
        pytest.param(lambda: Pair(1, make_guard()), "dataset.right", id="namedtuple"),
        pytest.param(with_slot, "dataset.guard", id="slot"),
        pytest.param(with_closure, "dataset.<closure>.guard", id="closure"),
        pytest.param(
            lambda: functools.partial(print, make_guard()), "dataset.args[0]", id="partial"
        ),
        pytest.param(lambda: Guarded(make_guard()).get, "dataset.__self__.guard", id="method"),
        pytest.param(lambda: Counted([make_guard()]), "dataset[0]", id="list subclass"),
        pytest.param(
            lambda: Sample(torch.zeros(1), {"f": make_guard()}),
            "dataset.extra['f']",
            id="dataclass",
        ),
        pytest.param(in_a_cycle, "dataset.friend.guard", id="cycle"),
        pytest.param(in_a_local_class, "dataset.<argument 0>.guard", id="local class"),
    ],
)
def test_the_error_names_the_path(make, path):
    with pytest.raises(UnpicklableError) as caught:
        dumps_for_worker(make())

    assert f"but {path} (a " in str(caught.value)


def test_the_error_names_the_type_and_the_reason():
    with pytest.raises(
        UnpicklableError, match=r"collate_fn\.guard \(a _thread\.lock\).*cannot pickle '_thread"
    ):
        dumps_for_worker(Holder(guard=threading.Lock()), "collate_fn")


def test_a_lock_of_multiprocessing_that_cannot_be_put_aside_is_named():
    with pytest.raises(UnpicklableError, match=r"dataset\.lock \(a multiprocessing"):
        dumps_for_worker(Holder(lock=multiprocessing.get_context("spawn").Lock()))


STEPS = st.one_of(
    st.tuples(st.just("attribute"), st.sampled_from(["fn", "reader", "cache"])),
    st.tuples(st.just("list"), st.integers(0, 3)),
    st.tuples(st.just("dict"), st.sampled_from(["a", 1, (2, 3)])),
)


@given(st.lists(STEPS, max_size=6))
def test_the_path_leads_to_the_culprit(steps):
    value, path = io.BufferedReader(io.BytesIO()), ""
    culprit = value
    for kind, key in reversed(steps):
        if kind == "attribute":
            value, path = Holder(before=1, **{key: value}), f".{key}{path}"
        elif kind == "list":
            value, path = [*range(key), value, "after"], f"[{key}]{path}"
        else:
            value, path = {"before": 0, key: value}, f"[{key!r}]{path}"

    with pytest.raises(UnpicklableError) as caught:
        dumps_for_worker(value, "it")

    assert f"but it{path} (a _io.BufferedReader)" in str(caught.value)
    assert eval(f"it{path}", {"it": value}) is culprit


LEAVES = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.floats(allow_nan=False))


@given(st.recursive(LEAVES, lambda s: st.lists(s) | st.dictionaries(st.text(max_size=3), s)))
def test_plain_values_arrive_equal(value):
    assert value == pickle.loads(dumps_for_worker(value))


SCRIPT = """
import multiprocessing, sys
from fastloader.pickling._main_script import main_without_file_hidden
from fastloader.pickling._pickling import dumps_for_worker, loads_from_parent

factor = 10

class Typed:
    def __getitem__(self, i):
        return i * factor

if __name__ == "__main__":
    class Guarded(Typed):
        pass

    offset = 1
    context = multiprocessing.get_context(sys.argv[-1])
    ours, theirs = context.Pipe()
    from tests.pickling.answering import answer
    process = context.Process(
        target=answer,
        args=(theirs, dumps_for_worker([Typed(), Guarded(), {4: lambda: offset}])),
    )
    with main_without_file_hidden():
        process.start()
    theirs.close()
    print(ours.recv())
    process.join()
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("how", ["script", "stdin"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_what_stands_in_main_reaches_a_worker(method, how, tmp_path, pytestconfig):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script) if how == "script" else "-", method]

    done = subprocess.run(
        command,
        input=None if how == "script" else script.read_text(),
        cwd=pytestconfig.rootpath,
        env={"PYTHONPATH": ":".join([str(pytestconfig.rootpath), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "[40, 40, 1]\n"), done.stderr


def test_a_script_travels_by_reference_where_workers_import_it(tmp_path, pytestconfig):
    """Globals of the script, which may be huge or unpicklable, then need not travel."""
    script = tmp_path / "train.py"
    script.write_text(
        "import threading\n"
        "from fastloader.pickling._pickling import dumps_for_worker\n"
        "lock = threading.Lock()\n"
        "class Typed:\n"
        "    def __getitem__(self, i):\n"
        "        return lock\n"
        "print(len(dumps_for_worker([Typed(), lambda: 1])) < 1000)\n"
    )

    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.stdout == "True\n", done.stderr
