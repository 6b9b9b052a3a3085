"""Probes: cases of the fuzzer and ordinary tests, run one by one; what fails in one of them notices a mutant.

All of this runs in a process that was forked before the package was imported.
"""

import ast
import contextlib
import functools
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

# files with ordinary tests of results and refusals, of which the quick ones are run, except for WHOLE: files of some
# rooms, except those whose tests run for long or in other processes
_ROOMS = "dispatch", "formats", "kernels", "layouts", "operations", "reference", "results"
_NOT_THESE = {"compiled", "other_cpu", "overlap", "properties", "quotient", "works"}
_OTHERS = (
    "bit_layouts",
    "driver",
    "gguf_files",
    "gguf_mixes",
    "imatrix",
    "inputs",
    "junk",
    "simd",
    "tiles",
    "unpacking",
)
_OTHERS += "what_is_said", "zarr"
_IN_ROOMS = {path.stem.removeprefix("test_") for room in _ROOMS for path in (TESTS / room).rglob("test_*.py")}
FILES = *sorted(_IN_ROOMS - _NOT_THESE), *_OTHERS
CORNERS = "/test_corners"  # in the names of files whose tests were written for mutants that survived
WHOLE = "gguf_formats", "zarr", "binarize", "requantize", "bitround", "corners"
# whose kernels few cases of the fuzzer need
ALONE = (
    "calibrator",
    "table",
    "codebooks",
    "range_search",
    "corners_of_memory",
    "row_lengths",
    "bit_information",
    "stochastic",
    "unpacking",
    "gguf_least_error",
    *WHOLE,
)
_NO_PROBES = "bench", "campaigns", "conformance", "docs", "platforms"  # folders of tests of other things
# whose caches are not cleared
_KEPT = "fastq.engine.jit", "fastq.engine.runtime.threadpool", "fastq.engine.runtime.boundary", "fastq.system"


@dataclass(frozen=True)
class Probe:
    """A case, by its seed, or a test, by its name for pytest."""

    kind: str
    name: str

    @property
    def seed(self):
        return int(self.name)


# --- caches -----------------------------------------------------------------------------------------------------------


def clear_caches():
    """Forget what the package has cached, so that the next call runs all that a first one runs."""
    from fastq.formats.conventions import CONVENTIONS
    from fastq.formats.floats import FLOAT_FORMATS
    from fastq.formats.gguf import BLOCK_FORMATS
    from fastq.formats.qtypes import QTYPES
    from fastq.plan.cache import plans
    from fastq.system import lazy

    plans.clear()
    modules = [each for name, each in list(sys.modules.items()) if name.startswith("fastq.")]
    for value in [value for module in modules for value in vars(module).values()]:
        if isinstance(value, functools._lru_cache_wrapper) and not value.__module__.startswith(_KEPT):
            value.cache_clear()
    for row in [row for rows in (CONVENTIONS, FLOAT_FORMATS, BLOCK_FORMATS, QTYPES) for row in rows.values()]:
        for name, value in [each for kind in type(row).__mro__ for each in vars(kind).items()]:
            if isinstance(value, lazy.cached_property):
                row.__dict__.pop(name, None)


# --- cases ------------------------------------------------------------------------------------------------------------


class Cases:
    """Runs cases of the fuzzer one after the other."""

    def __init__(self, exactly):
        from fuzzing import check, exact

        self.check, self.now = check, check.Settings()
        if not exactly:  # the reference was compared with fractions before
            exact.knows = lambda operation, call: False

    def run(self, seed):
        """Run the case of a seed; raises what it finds."""
        return self.check.check(seed, self.now)[1]


# --- tests ------------------------------------------------------------------------------------------------------------


class Around:
    """A plugin of pytest that runs something around each test, and keeps the outcome.

    It stops when the process has used a number of seconds. If there are more tests than `most`, it runs `most` of them,
    evenly spaced.
    """

    def __init__(
        self, before=lambda name: None, after=lambda name, seconds, passed: None, until=math.inf, most=sys.maxsize
    ):
        self.before, self.after, self.until, self.most = before, after, until, most
        self.failed, self.passed, self.stopped = "", set(), False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = items[:: -(-len(items) // self.most) or 1]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.before(item.nodeid)
        began = time.perf_counter()
        outcome = yield
        self.after(item.nodeid, time.perf_counter() - began, item.nodeid in self.passed)
        if time.process_time() > self.until:
            self.stopped, item.session.shouldstop = True, "enough"
        return outcome

    def pytest_runtest_logreport(self, report):
        self.pytest_collectreport(report)
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid}: {str(report.longrepr)[-600:]}"


def file_of_tests(name):
    """The file of the tests that FILES names so."""
    (path,) = TESTS.rglob(f"test_{name}.py")
    return path


def files_about(module):
    """Names of the files of tests that have the name of a module in their own, or import a module of that name."""
    name = module.rpartition(".")[2]
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if path.relative_to(TESTS).parts[0] not in _NO_PROBES]
    about = [path for path in files if name in path.stem or name in _imported(path)]
    return [path.stem.removeprefix("test_") for path in about]


@functools.cache
def _imported(path):
    """Last names of the modules of the package that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_bytes())))
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    for node in [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]:
        names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    modules = [name for name in names if (TESTS.parent / name.replace(".", "/")).with_suffix(".py").exists()]
    return {name.rpartition(".")[2] for name in modules if name.startswith("fastq.")}


def run_tests(names, around, *options):
    """Run tests in this process; the exit code of pytest."""
    arguments = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:benchmark", "-o", "addopts=", *options]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # modules that were imported before
    with open("/dev/null", "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        return int(pytest.main([*arguments, *names], plugins=[around]))
