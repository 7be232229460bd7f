"""Rows that several threads copy without the interpreter arrive whole, whoever comes when."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from fastloader.threads._crew import Crew, RowCopy, copy_rows, row_team, working_with

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.skipif(row_team() is None, reason="was not compiled"),
]

LARGE = 3 << 20


def rows_of(row_bytes, num_sources=40, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (num_sources, row_bytes), np.uint8)


def aligned(num_rows, row_bytes):
    """Return rows that begin at a multiple of 64, with one more before and after."""
    memory = np.full((num_rows + 2) * row_bytes + 64, 77, np.uint8)
    start = -(memory.ctypes.data + row_bytes) % 64
    return memory[start : start + (num_rows + 2) * row_bytes].reshape(-1, row_bytes)


def copy_of(source, positions, target, is_past_cache=False):
    row_bytes = source.shape[1]
    positions = np.asarray(positions, np.int64)
    address, target_address = source.ctypes.data, target.ctypes.data
    return RowCopy(
        address, row_bytes, len(source), positions, row_bytes, target_address, is_past_cache
    )


@pytest.fixture(params=[0, 1, 4])
def crew(request):
    made = Crew(request.param)
    yield made
    made.close()


@pytest.mark.parametrize(
    "row_bytes", [1, 8, 63, 3072, 32_768, 262_144, 262_208, 602_112, 700_001]
)
@pytest.mark.parametrize("num_rows", [1, 2, 7, 50])
def test_all_rows_arrive_and_no_others_are_touched(row_bytes, num_rows, crew):
    source = rows_of(row_bytes)
    positions = np.random.default_rng(1).integers(0, 40, num_rows)

    for is_past_cache in {False, row_bytes % 64 == 0}:
        target = aligned(num_rows, row_bytes)
        for _ in range(3):
            crew.copy_rows(copy_of(source, positions, target[1:], is_past_cache), 4)
        assert (target[1:-1] == source[positions]).all()
        assert (target[[0, -1]] == 77).all()


def test_small_jobs_are_shared_where_they_follow_one_another():
    crew, source = Crew(1), rows_of(4096)
    target = aligned(300, 4096)
    positions = np.arange(300) % 40

    crew.copy_rows(copy_of(source, positions, target[1:]), 1)
    assert not crew._copiers  # nobody knows yet whether more will come
    end = time.monotonic() + 20
    while not crew._copiers and time.monotonic() < end:
        crew.copy_rows(copy_of(source, positions, target[1:]), 1)

    assert len(crew._copiers) == 1
    crew.close()


def test_small_jobs_now_and_then_start_no_threads():
    crew, source = Crew(1), rows_of(4096)
    target = aligned(300, 4096)

    for _ in range(5):
        crew.copy_rows(copy_of(source, np.arange(300) % 40, target[1:]), 1)
        time.sleep(0.002)

    assert not crew._copiers
    crew.close()


def test_no_more_help_than_may():
    crew, source = Crew(4), rows_of(LARGE, 4)
    target = aligned(4, LARGE)

    crew.copy_rows(copy_of(source, range(4), target[1:]), 2)

    assert len(crew._copiers) == 2
    crew.close()


def test_a_crew_that_was_closed_copies_without_threads(crew, no_leaks):
    source, target = rows_of(LARGE, 4), aligned(4, LARGE)
    crew.copy_rows(copy_of(source, range(4), target[1:]), 4)
    crew.close()
    crew.close()

    crew.copy_rows(copy_of(source, [3, 2, 1, 0], target[1:]), 4)
    done = []
    crew.do([lambda: done.append(1)] * 3)

    assert (target[1:-1] == source[::-1]).all()
    assert done == [1, 1, 1]
    no_leaks()


def test_several_callers_of_one_team_do_not_get_into_each_other_s_way():
    team, source = row_team().Team(1), rows_of(LARGE // 8)
    helper = threading.Thread(target=team.stand_by)
    helper.start()
    failed = []

    def work(seed):
        draws = np.random.default_rng(seed)
        for _ in range(30):
            positions = draws.integers(0, 40, 9)
            target = aligned(9, LARGE // 8)
            team.copy(*copy_of(source, positions, target[1:]), 1)
            if not (target[1:-1] == source[positions]).all():
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    team.close()
    helper.join()
    assert failed == []


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("lends", [False, True])
def test_rows_are_copied_with_the_lent_crew_or_one_of_its_own(num_threads, lends):
    source, target = rows_of(LARGE, 4), aligned(4, LARGE)
    crew = Crew(3) if lends else None

    with working_with(crew):
        copy_rows(copy_of(source, [3, 1, 1, 0], target[1:]), num_threads)

    assert (target[1:-1] == source[[3, 1, 1, 0]]).all()
    if crew is not None:
        assert len(crew._copiers) == num_threads - 1
        crew.close()


@pytest.mark.parametrize("positions", [[0, 40], [-1, 3]])
def test_a_position_outside_is_an_error_and_nothing_is_copied(positions, crew):
    source, target = rows_of(LARGE // 2), aligned(2, LARGE // 2)

    with pytest.raises(IndexError, match=r"of 40 rows: expected 0 to 39\."):
        crew.copy_rows(copy_of(source, positions, target[1:]), 4)

    assert (target == 77).all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"positions": b"1234567"}, ValueError),
        ({"row_bytes": 0}, ValueError),
        ({"row_bytes": -64}, ValueError),
        ({"row_bytes": 63, "is_past_cache": True}, ValueError),
        ({"target": 8, "is_past_cache": True}, ValueError),
        ({"positions": np.arange(8)[::2]}, (BufferError, ValueError)),
        ({"positions": None}, TypeError),
        ({"base": "0"}, TypeError),
        ({"stride": 1 << 64}, OverflowError),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_what_does_not_fit_is_refused(change, error, crew):
    source, target = rows_of(64), aligned(1, 64)
    copy = copy_of(source, [0], target[1:])
    if "target" in change:
        change = {**change, "target": copy.target + change["target"]}

    with pytest.raises(error):
        crew.copy_rows(copy._replace(**change), 1)


@pytest.mark.multiprocess
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_copies_alone(crew):
    source, target = rows_of(LARGE, 4), aligned(4, LARGE)
    crew.copy_rows(copy_of(source, range(4), target[1:]), 4)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        target[:] = 77
        crew.copy_rows(copy_of(source, [1, 0, 3, 2], target[1:]), 4)
        crew.close()
        crew.copy_rows(copy_of(source, [1, 0, 3, 2], target[1:]), 4)
        os._exit(0 if (target[1:-1] == source[[1, 0, 3, 2]]).all() else 1)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


def test_only_as_many_stand_by_as_are_wanted():
    team = row_team().Team(0)

    with pytest.raises(RuntimeError, match="All 0 helpers"):
        team.stand_by()


@pytest.mark.parametrize("num_helpers", [-1, 1 << 20])
def test_a_team_of_no_sense_is_refused(num_helpers):
    with pytest.raises(ValueError, match="helpers"):
        row_team().Team(num_helpers)


def test_who_stands_by_leaves_the_interpreter_to_others_and_ends_with_the_team():
    team = row_team().Team(2)
    threads = [threading.Thread(target=team.stand_by) for _ in range(2)]
    for thread in threads:
        thread.start()

    team.close()
    for thread in threads:
        thread.join(20)

    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.stress
def test_rows_arrive_whole_with_pauses_of_all_lengths():
    crew, source = Crew(3), rows_of(3072, 2000)
    draws = np.random.default_rng(0)
    target = aligned(256, 3072)

    for _ in range(100_000):
        positions = draws.integers(0, 2000, 256)
        crew.copy_rows(copy_of(source, positions, target[1:]), 3)
        assert (target[1:-1, ::512] == source[positions, ::512]).all()
        if draws.random() < 0.1:
            time.sleep(draws.random() * 3e-4)
    crew.close()
