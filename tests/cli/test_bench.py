"""fastloader bench and profile: what they print and return."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastloader.cli import main

MODULE = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

def make():
    return TensorDataset(torch.zeros(64, 3))

def make_loader():
    return DataLoader(make(), 16)

class Talking(TensorDataset):
    def __getitem__(self, index):
        print("sample", index)
        return super().__getitem__(index)

def make_talking():
    print("reading")
    return Talking(torch.zeros(64, 3))

def step(batch):
    time.sleep(0.001)

def yielding():
    yield 1

def broken(batch):
    raise ValueError("no such label")
"""
QUICK = ["--batch-size=8", "--seconds=0.1", "--rounds=1"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "cli_bench.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("cli_bench", None)


def test_a_dataset_is_measured_beside_a_stock_loader(capsys):
    assert main(["bench", "cli_bench:make", *QUICK]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line[:16].strip() for line in lines[1:]] == [
        "automatic",
        "no workers",
        "stock DataLoader",
    ]


def test_settings_are_compared_as_json_and_drawn(folder, capsys):
    pytest.importorskip("matplotlib")
    sets = ["--set", "num_workers=0", "--set", "num_workers=0,drop_last=true,transport=torch"]

    assert main(["bench", "cli_bench:make", *QUICK, *sets, "--json", "--plot=b.png"]) == 0

    printed = json.loads(capsys.readouterr().out)
    assert list(printed["loaders"]) == sets[1::2]
    assert (folder / "b.png").read_bytes().startswith(b"\x89PNG")


def test_a_loader_is_measured_as_it_is(capsys):
    assert main(["bench", "cli_bench:make_loader", *QUICK[1:]]) == 0
    assert capsys.readouterr().out.count("cli_bench:make_loader") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "cli_bench:make", "--set", "fast"], "expected NAME=VALUE"),
        (["bench", "cli_bench:make_loader", "--set", "num_workers=1"], "--set needs a dataset"),
        (["bench", "cli_bench:make", "--set", "workers=ants"], "ants"),
        (["bench", "cli_bench:make", "--set", "nosuch=1"], "has no option nosuch"),
        (
            ["bench", "cli_bench:make", "--set", "batch_size=0"],
            "--set batch_size=0: batch_size",
        ),
        (["profile", "cli_bench:nosuch"], "cannot be imported"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(arguments, message, capsys):
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("target", ["make", "make_loader"])
def test_profile_judges_a_loader(target, capsys):
    command = ["profile", f"cli_bench:{target}", "--step=cli_bench:step", "--seconds=0.3"]
    code = main(command)

    printed = capsys.readouterr().out
    assert f"cli_bench:{target}" in printed
    assert code == (0 if "Nothing to complain about" in printed else 1)


def test_profile_as_json(capsys):
    code = main(["profile", "cli_bench:make", "--seconds=0.2", "--json"])

    printed = json.loads(capsys.readouterr().out)
    assert code == (0 if printed["is_sound"] else 1)
    assert printed["measurement"]["num_batches"] > 1


def test_a_profile_is_drawn(folder):
    pytest.importorskip("matplotlib")

    main(["profile", "cli_bench:make", "--seconds=0.2", "--plot=p.png"])

    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seconds=-1"], "number of seconds of more than 0, but got '-1'"),
        (["--seconds=soon"], "number of seconds of more than 0, but got 'soon'"),
        (["--batch-size=0"], "whole number of 1 or more, but got '0'"),
        (["--batch-size=2.5"], "whole number of 1 or more, but got '2.5'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("command", ["bench", "profile"])
def test_numbers_that_make_no_sense_are_wrong_usage(capsys, command, arguments, expected):
    with pytest.raises(SystemExit) as ended:
        main([command, "cli_bench:make", *arguments])

    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench", "profile", "tune"])
@pytest.mark.parametrize(
    ("target", "given"), [("step.__doc__", "None"), ("yielding", "the iterator <generator")]
)
def test_what_is_neither_dataset_nor_loader_is_refused(capsys, command, target, given):
    assert main([command, f"cli_bench:{target}"]) == 1

    error = capsys.readouterr().err
    assert f"should be or return a dataset or a loader, but gave {given}" in error


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a.xyz", "xyz is no kind of picture"), ("no/a.png", "no such folder")],
)
@pytest.mark.parametrize("command", ["bench", "profile", "tune"])
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_measured(
    capsys, command, path, expected
):
    pytest.importorskip("matplotlib")

    assert main([command, "cli_bench:nosuch", f"--plot={path}"]) == 1

    assert expected in capsys.readouterr().err


def test_an_error_of_the_users_own_code_is_told_in_json_too(capsys):
    with pytest.raises(ValueError, match="no such label"):
        main(["bench", "cli_bench:make", "--step=cli_bench:broken", "--json", *QUICK])

    told = json.loads(capsys.readouterr().out)
    assert told == {"error": "ValueError", "message": "no such label"}


def test_a_reader_that_has_enough_is_no_error():
    command = (
        f"{sys.executable} -m fastloader completion bash | head -1; echo ${{PIPESTATUS[0]}}"
    )

    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[0] == "_fastloader() {"
    assert done.stdout.splitlines()[1] in {"0", "141"}  # it may have been quicker
    assert not done.stderr


@pytest.mark.multiprocess
def test_json_is_alone_on_standard_output_whatever_code_of_the_user_prints():
    workers = ["--set=num_workers=0", "--set=num_workers=1", "--set=num_workers=1"]
    workers[-1] += ",multiprocessing_context=spawn"
    command = [sys.executable, "-m", "fastloader", "bench", "cli_bench:make_talking", "--json"]

    done = subprocess.run(
        [*command, *QUICK, *workers], capture_output=True, text=True, check=True
    )

    assert len(json.loads(done.stdout)["loaders"]) == 3
    assert done.stderr.startswith("reading\n")
    assert "sample 63" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_result_that_cannot_be_written_is_one_line(options):
    command = [sys.executable, "-m", "fastloader", "doctor", *options]

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode == 1
    assert done.stderr.startswith("fastloader: the result cannot be written: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_an_error_that_cannot_be_written_as_json_is_still_told():
    command = [sys.executable, "-m", "fastloader", "profile", "nowhere:dataset", "--json"]

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode == 1
    told, unwritten = done.stderr.splitlines()
    assert told.startswith("fastloader: ")
    assert unwritten.startswith("fastloader: the result cannot be written: ")
