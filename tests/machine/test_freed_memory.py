"""Memory of arrays that are freed stays for the next ones, which then fault no pages in."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fastloader.machine import _freed_memory

COUNT_FAULTS = """
import importlib.util, json, resource, sys
import numpy as np

spec = importlib.util.spec_from_file_location("freed_memory", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

def count():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(1 << 17) for _ in range(8)]  # of 1 MB
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def count_twice():
    count()  # the first takes memory in any case
    return count()

before = count_twice()
getattr(module, sys.argv[2])()
print(json.dumps([before, count_twice()]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's malloc")
@pytest.mark.parametrize("how", ["keep_some_freed_memory", "keep_all_freed_memory"])
def test_arrays_of_the_next_sample_take_no_new_pages(how):
    command = [sys.executable, "-c", COUNT_FAULTS, str(Path(_freed_memory.__file__)), how]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    before, after = json.loads(printed)

    assert before > 20 * 8 * 200  # nearly all of 256 pages each
    assert after < 100
