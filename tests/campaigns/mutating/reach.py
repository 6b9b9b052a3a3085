"""Which lines of the package each probe runs, which kernels it launches, and which lines these are compiled of.

A mutant is judged by the probes that reach it, and only kernels that depend on its change are compiled again.
"""

import contextlib
import functools
import hashlib
import json
import os
import random
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from kept import write
from mutating.probes import ALONE, TESTS, WHOLE, Around, Cases, Probe, clear_caches, file_of_tests, run_tests

ROOT = TESTS.parent / "fastq"
ROOMS = ("kernels", "engine/simd", "dispatch", "formats", "requests")
ROOMS += ("engine/runtime/driver.py", "system/arguments.py", "io/imatrix.py")
MOST_TESTS = 500  # of a file; a trace takes as long as tests ten times over
_PREFIXES = tuple(str(ROOT / room) for room in ROOMS)
FOLDER = TESTS.parent / ".pytest_cache" / "mutants"
TRACES = FOLDER / "traces"  # of kernels


def file_of(path):
    """Name of a file below the package."""
    return str(path)[len(str(ROOT)) + 1 :]


# --- lines ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tracing_by(trace):
    """Trace calls by a function, or none of them, and then as before."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Lines:
    """Lines of the package that run, of files whose names begin so."""

    def __init__(self, prefixes=_PREFIXES):
        self.seen, self._codes, self._prefixes = set(), {}, prefixes

    def called(self, frame, event, arg):
        code = frame.f_code
        watched = self._codes.get(code)
        if watched is None:
            watched = self._codes[code] = code.co_filename.startswith(self._prefixes)
        if watched:
            self.seen.add((code.co_filename, code.co_firstlineno))
            return self._line
        return None

    def _line(self, frame, event, arg):
        self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def start(self):
        self.seen = set()
        sys.settrace(self.called)

    def stop(self):
        """Lines since `start`, by file."""
        sys.settrace(None)
        found = {}
        for path, line in self.seen:
            found.setdefault(file_of(path), set()).add(line)
        return {file: sorted(lines) for file, lines in found.items()}


# --- kernels ----------------------------------------------------------------------------------------------------------


def kernel_name(function, result, arguments):
    """A name of a compiled function and its types."""
    function = getattr(function, "py_func", function)
    what = f"{function.__module__}.{function.__qualname__} {result} {arguments}"
    return hashlib.sha256(what.encode()).hexdigest()[:20]


class Kernels:
    """Notes the kernels that are asked for; traces how each is compiled, in a process of its own, once."""

    def __init__(self, traces=True):
        from fastq.engine import jit

        self.jit, self.asked, self.traced, self.traces = jit.compile, set(), {}, traces
        self.seconds = 0.0  # that traces took
        self.whole = jit.kernel
        jit.kernel = self._kernel

    def _kernel(self, function, result, *arguments):
        name = kernel_name(function, result, arguments)
        self.asked.add(name)
        function = getattr(function, "py_func", function)
        with tracing_by(None):
            if self.traces and name not in self.traced:
                began = time.perf_counter()
                self.traced[name] = self._traced(function, result, arguments)
                self.seconds += time.perf_counter() - began
            return self.whole(function, result, *arguments)

    def _traced(self, function, result, arguments):
        with self.jit.jit_enabled():
            file = self.jit._file(function, result, arguments)
        kept = TRACES / f"{file.path.stem}.json"
        if not kept.exists():
            in_child(lambda: _trace(self.jit, file, kept, function, result, arguments))
        return json.loads(kept.read_text())


def in_child(work):
    """Do some work in a process of its own, of which only files are left; raises RuntimeError if it fails."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError(f"a process of its own ended with exit code {code}")


def _trace(jit, file, kept, function, result, arguments):
    """Compile a kernel, and keep the lines that it is made of and how long that takes.

    Python runs the statements of compiled functions, by the numbers of their lines; of those that types rule out none.
    """
    from fastq.engine.jit import library

    lines = Lines()
    with jit.jit_enabled(), jit._without_collection():
        with tracing_by(lines.called):
            library.emitted_module(function, result, arguments)
        found = lines.stop()
        if file.load() is None:
            file.save(library.compile_library(function, result, arguments).machine_code())
    write(kept, json.dumps({"lines": found}).encode())


class Choosers:
    """Traces what the package runs in Python while a kernel is compiled: all of Numba would take five times as long."""

    def __init__(self):
        self.lines = None

    def install(self):
        """Wrap what compiled functions are declared by, before the modules that declare them are imported.

        Functions that Python runs on types are wrapped where they are run, and left where they call others.
        """
        from fastq.engine import jit
        from fastq.engine.jit import functions, tracing

        overload, intrinsic, on_values = functions.overload, functions.intrinsic, tracing._on_values

        def traced_overload(function, choose, **options):
            return overload(function, self.traced(choose), **options)

        def traced_intrinsic(function):
            @functools.wraps(function)
            def typed(*arguments):
                found = self.traced(function)(*arguments)
                return found and (found[0], self.traced(found[1]))

            return intrinsic(typed)

        functions.overload = jit.overload = traced_overload
        functions.intrinsic = jit.intrinsic = traced_intrinsic
        tracing._on_values = lambda function, trace: self.traced(on_values(function, trace))
        for step in ("operate", "call", "attribute"):
            setattr(tracing._Trace, step, tracing_by(None)(getattr(tracing._Trace, step)))

    def traced(self, function):
        """A function that is traced while `lines` are there."""

        @functools.wraps(function)
        def call(*arguments, **named):
            with tracing_by(sys.gettrace() or (self.lines and self.lines.called)):
                return function(*arguments, **named)

        return call


_choosers = Choosers()


# --- which cases ------------------------------------------------------------------------------------------------------


class _Stub:
    """Stands for compiled functions, to learn which ones a case needs; nothing is computed."""

    def __init__(self):
        from fastq.engine import jit
        from fastq.engine.runtime import driver, threadpool

        self.features = {}
        self.asked = set()
        jit.kernel = self._kernel
        # where `driver.bind` looks for them: other modules have `bind` itself
        driver._driver = lambda: lambda *operands: 0
        threadpool.pool_for = lambda threads: None

    def _kernel(self, function, result, *arguments):
        name = kernel_name(function, result, arguments)
        self.asked.add(name)
        if name not in self.features:
            self.features[name] = _features(arguments)
        return len(self.features) << 12


def _features(arguments):
    """What a kernel is: a set of names and values."""
    kernel = next((kind for kind in arguments if hasattr(kind, "loop")), None)
    if kernel is None:
        return {("function", str(arguments))}
    found = {("loop", kernel.loop.__qualname__), ("operands", str(kernel.operands))}
    found |= {("operand", str(each)) for each in kernel.operands}
    for name, value in vars(kernel.spec).items():
        fields = value._asdict() if hasattr(value, "_asdict") else {"": value} if not name.startswith("_") else {}
        for field_, inner in fields.items():
            nested = inner._asdict() if hasattr(inner, "_asdict") else {"": inner}
            found |= {(f"{name} {field_} {key}", str(each)) for key, each in nested.items()}
    return found


def choose_cases(combinations, kernels):
    """Seeds of cases that need few kernels of many sorts, which differ in as many pairs of features as can be."""
    import warnings

    from fuzzing.cases import Case
    from fuzzing.check import Settings
    from fuzzing.combinations import CASES
    from fuzzing.functions import function_of

    import fastq

    stub, now, needs, rng = _Stub(), Settings(), {}, random.Random(0)
    warnings.simplefilter("ignore")
    for number in range(combinations):
        for each in rng.sample(range(CASES), 30):
            case = Case(number * CASES + each)
            if case.size not in ("0 to 8", "to 60", "to 600", "to 5000") and not (case.size == "chunks" and each % 4):
                continue
            now.use(case)
            clear_caches()
            stub.asked = set()
            with contextlib.suppress(Exception):
                call = case.call()
                function_of(fastq, case.of.operation)(*call.args, **call.options)
            needs.setdefault(frozenset(stub.asked), []).append(case.seed)
    chosen = _greedy(needs, stub.features, kernels, rng)
    fitting = [seeds for group, seeds in needs.items() if group <= chosen]
    return [seed for seeds in fitting for seed in rng.sample(seeds, min(len(seeds), 12))]


def _pairs(features):
    return {hash((a, b)) for a in features for b in features if a <= b}


def _greedy(needs, features, kernels, rng):
    """Choose kernels, by groups that cases need, for the new pairs of features that each of them brings."""
    pairs = {name: _pairs(found) for name, found in features.items()}
    groups = [group for group in needs if group]
    chosen, covered = set(), set()
    while groups and len(chosen) < kernels:
        worth = {}
        for group in rng.sample(groups, min(150, len(groups))):
            new = group - chosen
            worth[group] = len(set().union(*(pairs[name] for name in new)) - covered) / len(new)
        best = max(worth, key=worth.get)
        chosen |= best
        covered |= set().union(*(pairs[name] for name in best))
        groups = [group for group in groups if group - chosen]
    return chosen


# --- the map ----------------------------------------------------------------------------------------------------------


@dataclass
class Reach:
    """What each probe runs, and what each kernel is compiled of."""

    probes: list = field(default_factory=list)
    seconds: list = field(default_factory=list)
    kernels: list = field(default_factory=list)  # of each probe, a set of names
    lines: dict = field(default_factory=dict)  # by file and line, a set of places of probes
    compiled: dict = field(default_factory=dict)  # by file and line, a set of names of kernels
    traced: set = field(default_factory=set)  # names of kernels of which it is known what they are compiled of
    dropped: list = field(default_factory=list)  # probes that fail as things are


@dataclass
class Recorded:
    """What some probes run, one after the other, and what the kernels are compiled of that they need."""

    probes: list = field(default_factory=list)  # with seconds, names of kernels, and lines by file
    traced: dict = field(default_factory=dict)  # kernels by name
    dropped: list = field(default_factory=list)  # probes that fail as things are


def record_cases(seeds, progress):
    """Run cases of the fuzzer under a trace; what they reach."""
    from fuzzing.check import settings

    _choosers.install()
    lines, kernels, recorded = Lines(), Kernels(), Recorded()
    with settings():
        cases = Cases(exactly=False)
        for done, seed in enumerate(seeds):
            progress("cases", done, len(seeds))
            clear_caches()
            kernels.asked = set()
            try:
                cases.run(seed)  # compiles what it needs
                clear_caches()
                lines.start()
                began = time.perf_counter()
                cases.run(seed)
                seconds = time.perf_counter() - began
            except Exception as error:
                lines.stop()
                recorded.dropped.append(f"{seed}: {error!r:.300}")
                continue
            recorded.probes.append((Probe("case", str(seed)), seconds, kernels.asked, lines.stop()))
    recorded.traced = kernels.traced
    return recorded


def record_probes(name):
    """Run the tests of one of FILES; other kernels than those of ALONE are those of cases, and would take as long."""
    return record_tests(file_of_tests(name), name in ALONE, ["--all"] if name in WHOLE else [])


def record_tests(path, traces=True, options=(), prefixes=_PREFIXES):
    """Run the tests of a file under a trace; what they reach."""
    _choosers.install()
    lines, kernels, recorded = Lines(prefixes), Kernels(traces), Recorded()

    def before(name):
        clear_caches()
        kernels.asked, kernels.seconds = set(), 0.0
        lines.start()

    def after(name, seconds, passed):
        found = lines.stop()
        if passed:
            recorded.probes.append((Probe("test", name), seconds - kernels.seconds, kernels.asked, found))
        else:
            recorded.dropped.append(name)

    run_tests([str(path)], Around(before, after, most=MOST_TESTS), *options)
    recorded.traced = kernels.traced
    return recorded


def joined(parts):
    """Join what was recorded."""
    reach = Reach()
    for part in parts:
        for probe, seconds, kernels, lines in part.probes:
            _note(reach.lines, lines, len(reach.probes))
            reach.probes.append(probe)
            reach.seconds.append(seconds)
            reach.kernels.append(set(kernels))
        for name, kernel in part.traced.items():
            _note(reach.compiled, kernel["lines"], name)
        reach.traced |= part.traced.keys()
        reach.dropped += part.dropped
    return reach


def _note(table, lines, what):
    for key in ((file, line) for file, found in lines.items() for line in found):
        table.setdefault(key, set()).add(what)


def sources_digest(*tests):
    """A checksum of the package, of the sources of probes, and of files of tests."""
    files = [*sorted(ROOT.rglob("*.py")), *sorted((TESTS / "campaigns" / "fuzzing").glob("*.py"))]
    files += [TESTS / "support" / "catalogue.py", TESTS / "conftest.py", *map(file_of_tests, tests)]
    files += [Path(__file__), Path(__file__).with_name("probes.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
