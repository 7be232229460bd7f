"""Settings are compared in turns, as a table and a picture."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fastloader.errors import DestinationError, SettingsError
from fastloader.tuning import compare_settings, plot_comparison, plot_rates

DATA = TensorDataset(torch.arange(64))
SETTINGS = {"few": {"batch_size": 4}, "stock": DataLoader(DATA, 16)}


def compare(settings=SETTINGS, **options):
    return compare_settings(DATA, settings, **{"seconds": 0.1, "num_rounds": 2, **options})


def test_each_setting_is_a_row_and_is_measured_in_each_round():
    seen = []

    result = compare(step=lambda batch: seen.append(len(batch[0])))

    assert [len(rounds) for rounds in result.measurements.values()] == [2, 2]
    assert set(seen) == {4, 16}
    assert "few" in str(result)


def test_rounds_go_forwards_and_backwards():
    order = []

    def step(batch):
        if not order or order[-1] != len(batch[0]):
            order.append(len(batch[0]))

    compare(step=step)

    assert order == [4, 16, 4]


@pytest.mark.parametrize("wrong", [{"settings": {}}, {"num_rounds": 0}], ids=str)
def test_nothing_to_compare_is_refused(wrong):
    with pytest.raises(SettingsError, match="There must be a"):
        compare(**wrong)


def test_a_picture_has_a_bar_for_each_and_a_dot_for_each_round(tmp_path):
    pytest.importorskip("matplotlib")

    ax = plot_comparison(compare(), tmp_path / "rates.svg")

    assert [label.get_text() for label in ax.get_yticklabels()] == ["few", "stock"]
    assert len(ax.patches) == 2
    assert [len(line.get_xdata()) for line in ax.lines] == [2, 2]
    assert (tmp_path / "rates.svg").stat().st_size > 1000


def test_a_picture_can_go_into_given_axes(tmp_path):
    figure = pytest.importorskip("matplotlib.figure")
    ax = figure.Figure().add_subplot()

    assert plot_rates({"a": [1.0, 3.0, 2.0]}, ax=ax) is ax
    assert ax.patches[0].get_width() == 2.0


@pytest.mark.parametrize("name", ["nosuch/rates.png", "rates.nosuch"])
def test_a_picture_that_cannot_be_written_is_an_error(tmp_path, name):
    pytest.importorskip("matplotlib")

    with pytest.raises(DestinationError, match="cannot be drawn"):
        plot_rates({"a": [1.0]}, tmp_path / name)
