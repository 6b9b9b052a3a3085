"""Short versions of the long runs of `tests.campaigns.stress`, each of which is shown to notice what it is for."""

import sys

import pytest
import stress
import stress_calls
import stress_files
import stress_interrupts
import stress_memory
from programs import follow
from subprocesses import SETUP

linux = pytest.mark.skipif(not stress_memory.LINUX, reason="memory of a process is read from /proc")


def at_least(times):
    return range(times, sys.maxsize)


# what is run, at which scale, and how often it does that
SHORT = [
    (stress_calls.threads, 0.01, [3200]),
    pytest.param(stress_calls.forks, 0.01, [10], marks=stress_calls.needs_fork),
    pytest.param(stress_calls.processes, 0.01, at_least(32), marks=stress_calls.needs_fork),
    pytest.param(stress_calls.exits, 0.001, [10], marks=stress_calls.needs_fork),
    pytest.param(stress_calls.interrupts, 0.02, [40], marks=stress_calls.needs_fork),
    pytest.param(stress_interrupts.processes, 0.005, [30], marks=stress_calls.needs_fork),
    pytest.param(stress_memory.growth, 0.002, [12020], marks=linux),
    pytest.param(stress_memory.sharing, 0.004, [40], marks=linux),
    pytest.param(stress_memory.limits, 0.05, [50], marks=linux),
    pytest.param(stress_files.kills, 0.05, [10], marks=stress_calls.needs_fork),
    (stress_files.contents, 0.05, at_least(501)),
    (stress_files.gguf_contents, 0.05, at_least(1001)),
    (stress_files.cold, 0.1, [3]),
    (stress_files.disks, 1, [7]),
]


@pytest.mark.slow("processes that import everything and compile many kernels")
@pytest.mark.parametrize(("work", "scale", "times"), SHORT)
def test_a_short_run(work, scale, times):
    rows = work(scale, stress.silent)
    if work is stress_files.disks and not rows:
        pytest.skip("this user may not mount")
    assert [each for each in rows if each["failures"]] == []
    assert sum(each["times"] for each in rows) in times


def test_names_of_the_command():
    assert list(stress.KINDS) == ["threads", "forks", "processes", "exits", "interrupts", "memory", "files", "cache"]


@pytest.mark.slow("eight seconds")
def test_a_wrong_result_is_a_failure():
    code = """
    made = cases(3)
    made = [(name, function, expected[:-1] + [(np.dtype("f4"), (), bytes(4))]) for name, function, expected in made]
    in_threads(2, lambda: [attempted(lambda: check(case)) for case in made])
    attempted(lambda: 1 // 0)
    """
    wrong, _ = follow(code, setup=SETUP + stress_calls.CASES)
    assert sorted(each.split(" of ")[0] for each in wrong[:-1]) == sorted(2 * ["array", "columns", "rows"])
    assert "ZeroDivisionError" in wrong[-1]


@pytest.mark.slow("waits for processes that hang", quick=lambda code, expected: "sleep" not in code)
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os._exit(3)", "exit code 3"),
        ("os.abort()", "Fatal Python error: Aborted"),
        ("time.sleep(60)", "Fatal Python error: Aborted"),
        ("print('!no')", "no"),
        ("sys.stderr.write('a word')", "a word"),
    ],
)
def test_what_a_program_does_wrong(code, expected):
    wrong, _ = follow(code, setup="import os, sys, time\n", timeout=5)
    assert len(wrong) == 1
    assert expected in wrong[0]


@pytest.mark.slow("five seconds")
@linux
def test_large_results_that_share_memory_are_found():
    """A loan that ends with the result, and not with the last view of it."""
    early = """
    class Early(result_pool._Loan):
        def __init__(self, block, nbytes):
            super().__init__(block, nbytes)
            self.pool.put(block)

        def __del__(self):
            pass

    result_pool._Loan = Early
    """
    (row,) = stress_memory.sharing(0.004, stress.silent, early)
    assert row["failures"] > 0
