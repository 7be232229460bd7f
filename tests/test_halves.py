"""Tests in two processes are each run once, and told of as those of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

FIRST = """
import os, time
from pathlib import Path

import pytest

def test_that_waits_for_the_other_process():
    Path("here").touch()
    while not Path("other").exists():
        time.sleep(0.01)
    Path("first").write_text(str(os.getpid()))

@pytest.mark.skip(reason="of a reason")
def test_that_is_skipped():
    pass
"""
LAST = """
import os, time
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(3))
def test_that_another_waits_for(number):
    while not Path("here").exists():
        time.sleep(0.01)
    {ending}
    Path("other").write_text(str(os.getpid()))
    assert number < 2
"""


def run(folder, ending):
    """Run the tests of a folder, and return what was printed and the status."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_a.py").write_text(FIRST)
    (folder / "test_b.py").write_text(LAST.format(ending=ending))
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "tests.halves", "-ra", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout, done.returncode


def test_each_test_runs_in_one_of_two_processes_and_the_closing_line_is_of_all(tmp_path):
    printed, status = run(tmp_path, "pass")

    assert "1 failed, 3 passed, 1 skipped" in printed.splitlines()[-1]
    assert "FAILED test_b.py::test_that_another_waits_for[2] - assert 2 < 2" in printed
    assert "SKIPPED [1] test_a.py:13: of a reason" in printed
    assert (tmp_path / "first").read_text() != (tmp_path / "other").read_text()
    assert status == 1


def test_tests_that_did_not_run_are_an_error(tmp_path):
    ending = "Path('other').touch(); os.write(2, b'so it ends'); os._exit(3)"

    printed, status = run(tmp_path, ending)

    assert "1 passed, 1 skipped, 1 error" in printed.splitlines()[-1]
    assert "ended with 3; 3 tests have not run: test_b.py::test_that_another" in printed
    assert status == 1
