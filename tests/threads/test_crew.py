"""Jobs are all done, by a few threads, and errors come back."""

import os
import threading
from functools import partial

import pytest

from fastloader.threads._crew import Crew, current_crew, working_with

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(params=[0, 1, 3])
def crew(request):
    made = Crew(request.param)
    yield made
    made.close()


def test_all_jobs_are_done(crew):
    done = []

    for count in (1, 2, 50):
        crew.do([partial(done.append, number) for number in range(count)])

    assert sorted(done) == sorted([0, 0, 1, *range(50)])


def test_an_error_is_raised_when_all_are_over(crew):
    done = []

    def fail():
        raise KeyError("third")

    with pytest.raises(KeyError, match="third"):
        crew.do([lambda: done.append(1), fail])
    crew.do([lambda: done.append(2), lambda: done.append(3)])

    assert sorted(done) == [1, 2, 3]


def test_jobs_run_at_the_same_time():
    crew = Crew(2)
    barrier = threading.Barrier(3, timeout=5)

    crew.do([barrier.wait] * 3)

    crew.close()


def test_threads_are_started_once():
    crew, threads = Crew(2), set()
    barrier = threading.Barrier(3, timeout=5)

    def note():
        barrier.wait()
        threads.add(threading.get_ident())

    for _ in range(5):
        crew.do([note] * 3)

    crew.close()
    assert len(threads) == 3


def test_a_crew_that_was_closed_does_all_in_the_caller(no_leaks):
    crew, threads = Crew(2), []
    crew.do([lambda: None] * 4)
    crew.close()
    crew.close()

    crew.do([lambda: threads.append(threading.get_ident())] * 4)

    assert threads == [threading.get_ident()] * 4
    no_leaks()


@pytest.mark.multiprocess
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_the_jobs_itself():
    crew = Crew(2)
    crew.do([lambda: None] * 3)
    child = os.fork()
    if child == 0:
        done = []
        crew.do([lambda: done.append(1)] * 3)
        crew.close()
        os._exit(len(done))

    _, status = os.waitpid(child, 0)

    crew.close()
    assert os.waitstatus_to_exitcode(status) == 3


def test_a_crew_is_lent_to_one_thread():
    before = current_crew()  # tests of interrupts leave theirs, which is closed
    crew, seen = Crew(1), []
    with working_with(crew):
        assert current_crew() is crew
        thread = threading.Thread(target=lambda: seen.append(current_crew()))
        thread.start()
        thread.join()

    assert seen == [None]
    assert current_crew() is before
