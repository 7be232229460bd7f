"""fastloader convert: what it writes, prints and returns."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fastloader import OMEArrowDataset
from fastloader.cli import main
from fastloader.errors import SettingsError
from tests.ome_arrow_tables import ome_arrow_value, random_image, write_images


@pytest.fixture
def source(tmp_path):
    values = [ome_arrow_value(random_image((1, 1, 1, 4, 3), seed=seed)) for seed in range(5)]
    return write_images(tmp_path / "source.parquet", values, n=range(5))


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_it_says_what_it_wrote(source, tmp_path, capsys):
    assert run("convert", source, tmp_path / "out.parquet") == 0

    assert "out.parquet: 5 images, 0.0 MB" in capsys.readouterr().out
    expected, actual = OMEArrowDataset(source), OMEArrowDataset(tmp_path / "out.parquet")
    np.testing.assert_array_equal(expected.get_batch(range(5)), actual.get_batch(range(5)))


def test_json_is_all_there_is_on_standard_output(source, tmp_path, capsys):
    assert run("convert", source, tmp_path / "out.arrow", "--json", "--compression=none") == 0

    printed = json.loads(capsys.readouterr().out)
    assert printed["path"] == str(tmp_path / "out.arrow")
    assert printed["num_images"] == 5
    assert printed["num_bytes"] == (tmp_path / "out.arrow").stat().st_size
    assert printed["seconds"] >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch.parquet", "out.parquet"], "nosuch.parquet cannot be read"),
        (["SOURCE", "out.txt"], "does not tell its format"),
        (["SOURCE", "SOURCE"], "exists already"),
        (["SOURCE", "out.parquet", "--option", "level"], "expected NAME=VALUE"),
        (["SOURCE", "out.parquet", "--option", "nosuch=3"], "has no option nosuch"),
        (["SOURCE", "out.parquet", "--option", "level=x"], "level=x: expected a whole number"),
        (["SOURCE", "out.parquet", "--option", "join_files=x"], "expected true or false"),
        (["SOURCE", "out.parquet", "--image-column", "n"], "is no OME-Arrow image"),
        (["SOURCE", "out.parquet", "--rows-per-group", "0"], "expected 1 or more"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(
    source, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    arguments = ["source.parquet" if word == "SOURCE" else word for word in arguments]

    assert run("convert", *arguments) == 1
    output, errors = capsys.readouterr()
    assert not output
    assert errors.startswith("fastloader: ")
    assert message in errors

    assert run("convert", *arguments, "--json") == 1
    assert message in json.loads(capsys.readouterr().out)["message"]


def test_options_of_the_source_have_the_type_that_it_asks_for(tmp_path, monkeypatch):
    given = []

    def keep(*_arguments, source_options, **_others):
        given.append(source_options)
        raise SettingsError("seen")

    monkeypatch.setattr("fastloader.writing.convert", keep)
    texts = (
        "pixel_size=0.65",
        "level=-1",
        "join_files=False",
        "table=7",
        "version=7",
        "pattern=7",
    )
    options = [f"--option={text}" for text in texts]

    assert run("convert", "images", tmp_path / "out.parquet", *options) == 1

    expected = {
        "pixel_size": 0.65,
        "level": -1,
        "join_files": False,
        "table": "7",
        "version": 7,
    }
    assert given == [{**expected, "pattern": "7"}]


@pytest.mark.parametrize("arguments", [[], ["nosuch"], ["convert", "one"], ["convert", "--x"]])
def test_wrong_usage_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)

    assert caught.value.code == 2
    assert "usage: fastloader" in capsys.readouterr().err


def test_an_interrupt_is_exit_code_130_and_leaves_nothing(
    source, tmp_path, capsys, monkeypatch
):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fastloader.writing._write.image_column", interrupt)

    assert run("convert", source, tmp_path / "out.parquet") == 130
    assert [file.name for file in tmp_path.iterdir()] == ["source.parquet"]


@pytest.mark.multiprocess
def test_python_runs_the_package(source, tmp_path):
    command = [sys.executable, "-m", "fastloader", "convert", source, tmp_path / "out.parquet"]

    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0
    assert result.stderr == ""
    assert (tmp_path / "out.parquet").exists()
