"""fastloader doctor, tune and completion: what they print, write and return."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

from fastloader.cli import main
from fastloader.testing import MachineFinding, MachineReport

MODULE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.zeros(64, 3))
seen = []

def make():
    return data

def make_loader():
    return DataLoader(data, 16)

def broken():
    raise RuntimeError("no disk")

def step(batch):
    seen.append(batch)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "cli_training.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("FASTLOADER_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path
    sys.modules.pop("cli_training", None)


TUNE = ["tune", "cli_training:make", "--batch-size=8", "--budget=0.3", "--max-workers=0"]


def test_tune_prints_a_table_and_stores_the_result(folder, capsys):
    assert main(TUNE) == 0

    assert "best after 0 s: num_workers=0" in capsys.readouterr().out
    assert list((folder / "cache" / "tuned").glob("TensorDataset-*.json"))


def test_tune_as_json(folder, capsys):
    step = ["--step=cli_training:step", "--no-save", "--json"]
    assert main([*TUNE, *step]) == 0

    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"][0]["label"] == "no workers"
    assert sys.modules["cli_training"].seen
    assert not (folder / "cache").exists()


def test_tune_takes_a_loader_or_a_dataset_itself(capsys):
    for target in ("cli_training:make_loader", "cli_training:data"):
        assert main(["tune", target, "--budget=0.2", "--max-workers=0"]) == 0
        assert "no workers" in capsys.readouterr().out


def test_tune_draws(folder):
    pytest.importorskip("matplotlib")

    assert main([*TUNE, "--plot=rates.png"]) == 0
    assert (folder / "rates.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_an_error(capsys):
    pytest.importorskip("matplotlib")

    assert main([*TUNE, "--plot=nosuch/rates.png"]) == 1
    assert "nosuch/rates.png cannot be drawn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "nosuch:make"], "No module named 'nosuch'"),
        (["tune", "cli_training:nosuch"], "is it spelled right"),
        (["tune", "cli_training:broken"], "broken raised RuntimeError: no disk"),
        (["tune", "cli_training:make", "--step=cli_training:data"], "takes a batch"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(arguments, message, capsys):
    assert main(arguments) == 1

    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("fastloader: ")
    assert message in errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["tune", "cli_training"],
        ["profile", ":make"],
        ["bench", "cli_training:make", "--step=at"],
    ],
    ids=["no colon", "no module", "step"],
)
def test_what_names_no_object_is_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)

    assert "expected MODULE:NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--budget=0", "seconds of more than 0"),
        ("--budget=-3", "seconds of more than 0"),
        ("--budget=nan", "seconds of more than 0"),
        ("--max-workers=-1", "whole number of 0 or more"),
    ],
)
def test_a_number_that_makes_no_sense_is_wrong_usage(option, expected, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["tune", "cli_training:make", option])

    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(("outcome", "code"), [("ok", 0), ("note", 0), ("bites", 1)])
def test_doctor_fails_if_something_bites(outcome, code, capsys, monkeypatch):
    report = MachineReport((MachineFinding("memory", outcome, "so much", "more"),))
    monkeypatch.setattr("fastloader.testing.check_machine", lambda: report)

    assert main(["doctor"]) == code
    assert str(report) in capsys.readouterr().out

    assert main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == {
        "ok": code == 0,
        "findings": [
            {"name": "memory", "outcome": outcome, "detail": "so much", "remedy": "more"}
        ],
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fastloader d", ["doctor"]),
        ("fastloader tune --ba", ["--batch-size"]),
        ("fastloader convert --json", ["--json"]),
        ("fastloader completion z", ["zsh"]),
        ("fastloader tune cli_tr", ["cli_training.py"]),
    ],
)
def test_bash_completes(line, expected, capsys):
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    main(["completion", "bash"])
    words = " ".join(f'"{word}"' for word in line.split(" "))
    script = f"""{capsys.readouterr().out}
COMP_WORDS=({words}); COMP_CWORD={line.count(" ")}; _fastloader; echo "${{COMPREPLY[@]}}"
"""

    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)

    assert result.stdout.split() == expected


def test_zsh_uses_the_script_of_bash(capsys):
    main(["completion", "bash"])
    bash = capsys.readouterr().out

    main(["completion", "zsh", "--json"])

    zsh = json.loads(capsys.readouterr().out)["script"]
    assert zsh.endswith(bash)
    assert zsh.startswith("autoload")


def test_fish_has_a_script_of_its_own(capsys):
    main(["completion", "fish"])

    script = capsys.readouterr().out
    assert 'complete -c fastloader -f -n __fish_use_subcommand -a "doctor tune' in script
    of_tune = next(line for line in script.splitlines() if "subcommand_from tune" in line)
    assert "-l batch-size" in of_tune
    assert "-s h" in of_tune
    if shutil.which("fish") is not None:
        subprocess.run(["fish", "--no-execute", "-c", script], check=True)


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == version("fastloader")


@pytest.mark.multiprocess
def test_the_command_itself_runs(folder):
    command = [sys.executable, "-m", "fastloader", *TUNE, "--json"]

    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["settings"]["num_workers"] == 0
