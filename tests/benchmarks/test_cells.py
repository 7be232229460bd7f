"""What the passes of a cell are made by."""

import pytest

from bench_cells import Cell, Contest


@pytest.mark.parametrize(("are_new", "num_loaders"), [(False, 2), (True, 8)])
def test_each_pass_over_first_batches_is_by_a_new_loader(are_new, num_loaders, monkeypatch):
    made, make = [], Contest._make
    monkeypatch.setattr(Contest, "_make", lambda *given: made.append(make(*given)) or made[-1])
    contest = Contest(Cell(0, 1, 4, 0), are_new=are_new)

    for number in range(4):
        contest.measure_pair(number)

    assert len(made) == num_loaders
    assert len(made[0]) == contest.num_batches + 2 * are_new


def test_few_batches_of_a_new_loader_are_timed():
    assert Contest(Cell(0, 1, 4, 0), are_new=True).num_batches == 100
    assert Contest(Cell(0, 1, 4, 0)).num_batches > 100
