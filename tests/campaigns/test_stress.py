"""Short versions of the long runs of `tests.campaigns.stress`, each of which is shown to notice what it is for."""

import pytest
import stress
import stress_calls
import stress_files
import stress_interrupts
import stress_memory
from programs import follow
from subprocesses import SETUP

linux = pytest.mark.skipif(not stress_memory.LINUX, reason="memory of a process is read from /proc")


def count_of(rows):
    assert [each for each in rows if each["failures"]] == []
    return sum(each["times"] for each in rows)


def test_names_of_the_command():
    assert list(stress.KINDS) == ["threads", "forks", "processes", "exits", "interrupts", "memory", "files", "cache"]


@pytest.mark.slow("compiles 40 kernels")
def test_threads():
    assert count_of(stress_calls.threads(0.01, stress.silent)) == 3200


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


@pytest.mark.slow("imports everything in a process")
@stress_calls.needs_fork
def test_forks():
    assert count_of(stress_calls.forks(0.01, stress.silent)) == 10


@pytest.mark.slow("each process imports everything")
@stress_calls.needs_fork
def test_processes():
    assert count_of(stress_calls.processes(0.01, stress.silent)) >= 32


@pytest.mark.slow("ends of the interpreter")
@stress_calls.needs_fork
def test_exits():
    assert count_of(stress_calls.exits(0.001, stress.silent)) == 10


@pytest.mark.slow("compiles 40 kernels")
@stress_calls.needs_fork
def test_interrupts():
    assert count_of(stress_calls.interrupts(0.02, stress.silent)) == 40


@pytest.mark.slow("a process for each interrupt")
@stress_calls.needs_fork
def test_interrupts_of_processes():
    assert count_of(stress_interrupts.processes(0.005, stress.silent)) == 30


@linux
@pytest.mark.slow("20,000 calls")
def test_growth():
    assert count_of(stress_memory.growth(0.002, stress.silent)) == 12020


@pytest.mark.slow("five seconds")
@linux
def test_large_results_share_no_memory():
    assert count_of(stress_memory.sharing(0.004, stress.silent)) == 40


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


@linux
@pytest.mark.slow("compiles 20 kernels")
def test_limits_of_address_space():
    assert count_of(stress_memory.limits(0.05, stress.silent)) == 50


@pytest.mark.slow("forks of a process that imports everything")
@stress_calls.needs_fork
def test_kills():
    assert count_of(stress_files.kills(0.05, stress.silent)) == 10


@pytest.mark.slow("hundreds of damaged files")
def test_damaged_contents():
    assert count_of(stress_files.contents(0.05, stress.silent)) > 500


@pytest.mark.slow("hundreds of damaged files")
def test_damaged_gguf_files():
    assert count_of(stress_files.gguf_contents(0.05, stress.silent)) > 1000


@pytest.mark.slow("processes that compile the same kernels")
def test_cold_caches():
    assert count_of(stress_files.cold(0.1, stress.silent)) == 3


@pytest.mark.slow("seven processes")
def test_disks():
    rows = stress_files.disks(1, stress.silent)
    if not rows:
        pytest.skip("this user may not mount")
    assert count_of(rows) == 7
