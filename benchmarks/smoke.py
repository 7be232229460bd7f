"""Run every benchmark once and small, so that none rots.

    python benchmarks/smoke.py            # the data, then all
    python benchmarks/smoke.py rows items # those with one of these in their name

Each is a process of its own, forked from this one before it does anything: it has imported what all of
them use, for which each would take seconds.
"""

import argparse
import os
import runpy
import sys
from pathlib import Path

import fastloader.tuning  # noqa: F401 - imports all that benchmarks use, torch included

HERE = Path(__file__).parent


def run_small(script: Path) -> int:
    """Run a script by itself; return its exit code."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        sys.argv = [str(script), "--smoke"]
        runpy.run_path(str(script), run_name="__main__")
        sys.exit()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Run the script that makes the data, then all others, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of the names of those to run")
    names = parser.parse_args().names
    for script in [HERE / "make_data.py", *sorted(HERE.glob("bench_*.py"))]:
        if not names or any(name in script.stem for name in names):
            print(f"{HERE.name}/{script.name}")
            if code := run_small(script):
                sys.exit(f"{script.name} ended with exit code {code}.")


if __name__ == "__main__":
    main()
