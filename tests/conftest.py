"""Settings that must stand before Numba is imported, which tests are slow, and the fixtures that all tests share."""

import dataclasses
import functools
import gc
import os
import sys
import zlib
from pathlib import Path

# one cache of kernels for all workers and processes, which the next session finds; pytest --cache-clear empties it
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "d" / "kernels"))
os.environ.setdefault("NUMBA_NUM_THREADS", "4")  # more than the machine may have: results must not depend on it
os.environ["MPLBACKEND"] = "Agg"  # pictures are drawn into memory
os.environ.pop("COLUMNS", None)  # set in workers of xdist: tables are as wide as in a pipe

sys.path.append(str(Path(__file__).parents[1]))  # for `bench`; behind an installed fastq, which is what is tested then

import comparing
import pytest
import refusals

from fastq.engine.runtime import threadpool
from fastq.plan import cache, policy
from fastq.system import tuning

# pytest alone takes the quick tests of the library, the folders of testpaths; pytest tests those of the house, too.
# Slow tests: pytest leaves them out, --all runs all tests, --rest those that are left out otherwise. CI takes an 80th
# of them, pytest tests --rest --part K/80, another one at each commit


def pytest_addoption(parser):
    group = parser.getgroup("fastq")
    group.addoption("--all", action="store_true", help="run the slow tests too")
    group.addoption("--rest", action="store_true", help="run the slow tests only")
    group.addoption("--part", type=part, default=(0, 1), metavar="K/N", help="with --rest: every Nth slow test, from K")


def part(text):
    """Return K and N of "K/N"; K counts on, whatever N is."""
    k, n = map(int, text.split("/"))
    return k % n, n


def is_slow(item):
    """Whether a test is marked as slow, and its parameters are not those for which it is quick."""
    marker = item.get_closest_marker("slow")
    return marker is not None and not ("quick" in marker.kwargs and marker.kwargs["quick"](**item.callspec.params))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among modules and tests, which all stay: that is a third of the time to collect them."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000)  # most objects of tests and of Numba are gone by then


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Close the pictures of a test, and set aside what is left after the tests of a file.

    To look at all that Numba keeps takes 2 s each time.
    """
    outcome = yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")  # tests count those of a call
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return outcome


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leave out the slow tests, unless they are asked for by an option or by their names."""
    rest = config.option.rest
    if rest or not config.option.all:
        k, n = config.option.part
        named = [] if rest else [each.split("[")[0].split("::") for each in config.args if "::" in each]
        names = {(Path(config.invocation_params.dir, path), parts[-1]) for path, *parts in named}
        wanted = [
            (item.path, getattr(item, "originalname", None)) in names
            or (is_slow(item) == rest and zlib.crc32(item.nodeid.encode()) % n == k)
            for item in items
        ]
        config.hook.pytest_deselected(items=[item for item, is_in in zip(items, wanted, strict=True) if not is_in])
        items[:] = [item for item, is_in in zip(items, wanted, strict=True) if is_in]


# Errors: pytest without arguments fails if it has not reached every statement that refuses an argument


def pytest_configure():
    refusals.record()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    refusals.reached.update(map(tuple, getattr(node, "workeroutput", {}).get("reached", ())))


def pytest_sessionfinish(session, exitstatus):
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["reached"] = list(refusals.reached)
        return
    choices = ("keyword", "markexpr", "rest", "collectonly", "lf", "deselect")
    chosen = any(getattr(config.option, choice, None) for choice in choices)
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen
    if whole and exitstatus == pytest.ExitCode.OK and (missing := refusals.not_reached()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        config.stash[refusals.MISSING] = missing


def pytest_terminal_summary(terminalreporter, config):
    if missing := config.stash.get(refusals.MISSING, None):
        terminalreporter.section("errors that no test reaches, or only slow ones", red=True)
        terminalreporter.line("\n".join(missing))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def threads():
    """Set how many threads work, on arrays of any size; put back afterwards."""
    before, bounds = threadpool.get_num_threads(), (policy.PARALLEL_FROM, threadpool.WAKE_FROM)

    def use(n):
        policy.PARALLEL_FROM, threadpool.WAKE_FROM = (1, 1) if n > 1 else bounds
        threadpool.set_num_threads(n)

    yield use
    policy.PARALLEL_FROM, threadpool.WAKE_FROM = bounds
    threadpool.set_num_threads(before)


@pytest.fixture
def chunks(monkeypatch):
    """Set the least and the most elements that a thread takes at once."""
    return lambda least, most: monkeypatch.setattr(threadpool, "CHUNK", (least, most))


@pytest.fixture
def compare(threads):
    """Compare operations with the reference on a `comparing.Work`."""
    return functools.partial(comparing.compare_with_reference, threads)


@pytest.fixture
def small_cache(monkeypatch):
    """Results go past the cache however few they are; what was planned so is forgotten again."""

    def use(**settings):
        tuned = dataclasses.replace(tuning.current(), **settings)
        monkeypatch.setattr(tuning, "current", lambda: tuned)
        forget()

    def forget():
        cache.plans.clear()

    yield use
    forget()
