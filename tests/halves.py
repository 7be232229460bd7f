"""Run the tests in two processes, each of which takes the files that the other has not taken.

``python -m tests.halves`` takes the arguments of pytest. One process goes through the files from the
first one on and the other from the last one, until they meet. Then the first tells what the second has
found as if it had been its own, so that what is printed is that of one run of all tests.
"""

import itertools
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import pytest


def pytest_addoption(parser):
    parser.addoption("--halves-folder", type=Path, help="what the two processes share")
    parser.addoption("--is-second", action="store_true", help="go from the last file on")


def pytest_configure(config):
    half = SecondHalf if config.getoption("is_second") else FirstHalf
    config.pluginmanager.register(half(config))


def part_of(item):
    """Return what one process takes as a whole: when it comes, and the file of its tests.

    Examples come after tests, as they leave loaders behind, and what leaves threads behind comes last.
    """
    file = item.nodeid.split("::")[0]
    if item.get_closest_marker("library_threads") is not None:
        return 2, file
    return 0 if file.startswith("tests/") else 1, file


class Half:
    """The tests of one process, which are known as it goes."""

    def __init__(self, config):
        self.config = config
        self.folder = config.getoption("halves_folder")
        self.is_own = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """Do as pytest does, but for what is not taken: what is set up for a test stays for the next."""
        if session.testsfailed or session.config.option.collectonly:
            return None  # files that cannot be imported: pytest says so
        own = itertools.chain(filter(self.takes, session.items), [None])
        for item, next_item in itertools.pairwise(own):
            self.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        return True

    def takes(self, item):
        """Return whether a test is of a file that this process has, taking it if nobody has it."""
        part = part_of(item)
        if part not in self.is_own:
            try:
                (self.folder / f"{part[0]}{quote(part[1], safe='')}").touch(exist_ok=False)
                self.is_own[part] = True
            except FileExistsError:
                self.is_own[part] = False
        return self.is_own[part]


class SecondHalf(Half):
    """Goes from the last file on, and writes down what it finds."""

    def __init__(self, config):
        super().__init__(config)
        self.reports = (self.folder / "reports").open("wb")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        parts = [list(part) for _, part in itertools.groupby(items, part_of)]
        parts.reverse()
        parts.sort(key=lambda part: part_of(part[0])[0])
        items[:] = [item for part in parts for item in part]

    def pytest_runtest_logreport(self, report):
        hook = self.config.hook
        data = hook.pytest_report_to_serializable(config=self.config, report=report)
        pickle.dump(data, self.reports)

    def pytest_unconfigure(self):
        self.reports.close()


class FirstHalf(Half):
    """Goes from the first file on, and tells of all tests."""

    def __init__(self, config):
        super().__init__(config)
        self.told = set()

    def pytest_runtest_logreport(self, report):
        self.told.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        if not super().pytest_runtestloop(session):
            return None
        while not (self.folder / "status").exists():
            time.sleep(0.1)
        self._tell_of_second()
        status = int((self.folder / "status").read_text(encoding="utf-8"))
        missing = [item.nodeid for item in session.items if item.nodeid not in self.told]
        if missing or status not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            self._tell_of_missing(status, missing)
        return True

    def _tell_of_second(self):
        hook, config = self.config.hook, self.config
        with (self.folder / "reports").open("rb") as reports:
            while reports.peek(1):
                data = pickle.load(reports)
                report = hook.pytest_report_from_serializable(config=config, data=data)
                where = {"nodeid": report.nodeid, "location": report.location}
                if report.when == "setup":
                    hook.pytest_runtest_logstart(**where)
                hook.pytest_runtest_logreport(report=report)
                if report.when == "teardown":
                    hook.pytest_runtest_logfinish(**where)

    def _tell_of_missing(self, status, missing):
        printed = (self.folder / "printed").read_text(encoding="utf-8", errors="replace")
        report = pytest.TestReport(
            nodeid="tests/halves.py",
            location=("tests/halves.py", None, ""),
            keywords={},
            outcome="failed",
            longrepr=f"The second process ended with {status}; {len(missing)} tests have not run: "
            f"{', '.join(missing[:5])}.\n\n{printed[-10_000:]}",
            when="setup",
        )
        self.config.hook.pytest_runtest_logreport(report=report)


def main(arguments):
    """Start both, and end as the first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-p", "tests.halves"]
        command += [f"--halves-folder={folder}", *arguments]
        first = subprocess.Popen(command)
        with Path(folder, "printed").open("w", encoding="utf-8") as printed:
            second = subprocess.run(
                [*command, "--is-second"], stdout=printed, stderr=printed, check=False
            )
        written = Path(folder, "status.part")
        written.write_text(str(second.returncode), encoding="utf-8")
        written.rename(Path(folder, "status"))
        return first.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
