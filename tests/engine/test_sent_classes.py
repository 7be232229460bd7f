"""Classes that workers got by value are known again in batches and errors."""

import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import dataclasses
    import sys
    from typing import NamedTuple

    import torch
    from fastloader import FastLoader

    class Pair(NamedTuple):
        number: torch.Tensor
        double: torch.Tensor

    @dataclasses.dataclass
    class Plate:
        number: torch.Tensor

    class PlateError(Exception):
        def __init__(self, *, plate):
            super().__init__(f"no plate {plate}")

    class Pairs:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return Pair(index, 2 * index)

    class Missing(Pairs):
        def __getitem__(self, index):
            raise PlateError(plate=index)

    def make_plate(samples):
        return Plate(torch.tensor(samples))

    def of_a_function():
        class Local(NamedTuple):
            number: torch.Tensor

        class Locals(Pairs):
            def __getitem__(self, index):
                return Local(index)

        return Locals(), Local

    options = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": sys.argv[1]}
    [pair] = FastLoader(Pairs(), **options)
    print(type(pair) is Pair, pair.double.tolist())
    [plate] = FastLoader(range(4), collate_fn=make_plate, **options)
    print(type(plate) is Plate, plate.number.tolist())
    dataset, kind = of_a_function()
    [local] = FastLoader(dataset, **options)
    print(type(local) is kind, local.number.tolist())
    try:
        list(FastLoader(Missing(), **options))
    except PlateError as error:
        print(error)
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_a_session_defines_arrives_as_itself(method):
    done = subprocess.run(
        [sys.executable, "-", method],
        input=textwrap.dedent(SCRIPT),
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.stdout.splitlines() == [
        "True [0, 2, 4, 6]",
        "True [0, 1, 2, 3]",
        "True [0, 1, 2, 3]",
        "no plate 0",
    ], done.stderr
