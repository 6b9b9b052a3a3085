"""Judge mutants: each in a process forked from one that has imported all but the package, changed in memory only."""

import contextlib
import functools
import importlib
import importlib.machinery
import json
import os
import random
import re
import resource
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path

from kept import reports_of
from mutating.operators import mentions, mutated
from mutating.probes import CORNERS, TESTS, Around, Cases, Probe, clear_caches, run_tests
from mutating.reach import ROOT, file_of, kernel_name

MEMORY = 12 << 30  # bytes of address space
SILENCE = 150  # seconds without a word, after which a process hangs that does not want to run
PROBE_SECONDS = 10  # of processor time for a probe
COMPILE_SECONDS = 15  # and for its kernels, where those change

MOST_CASES, MOST_TESTS = 150, 25  # for a mutant
MORE = 4  # seconds for cases like those of the plan
BUDGET = 6  # seconds of processor time for all cases of a mutant, and as many for the tests
MOST_SECONDS = {"case": 12.0, "test": 4.0}  # as it took under a trace
FEW_FILES = 4
FEW_KERNELS = 5  # that are compiled for a mutant
OF_A_GROUP = 6  # cases that need the same kernels, before others are compiled
SURVIVING = "survived", "not reached"


def prepare():
    """Import what the package imports, and let Numba fill its tables."""
    import numba
    from numba.core import entrypoints
    from numba.core.registry import cpu_target

    entrypoints._already_initialized = True  # an installed fastq would be imported here, which no mutant is

    for name in ("ml_dtypes", "pytest", "hypothesis.strategies", "onnx.backend.test.loader", "gguf"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    numba.njit(lambda x: x + 1)(1)
    assert not any(name.partition(".")[0] == "fastq" for name in sys.modules)


# --- which probes -----------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """Cases and tests that a mutant is judged by, in their order, and the kernels that it leaves as they are."""

    cases: list
    tests: list
    same: set
    compiled: bool  # whether kernels may change at all
    exactly: bool  # whether the reference is judged too
    patience: int = 1
    compiles: bool = True  # whether what is not compiled yet is compiled
    makes_more: bool = True  # whether cases like those are made up
    unsound: set = field(default_factory=set)  # seeds of cases that fail as things are


def is_compiled(mutant):
    """Whether kernels are compiled of a module."""
    return mutant.module.startswith(("fastq.kernels", "fastq.engine.simd", "fastq.engine.runtime", "fastq.formats"))


def plan_for(mutant, reach, patience=1):
    """Choose the probes that may notice a mutant: those that reach it, and need few kernels to be compiled."""
    rng, file = random.Random(mutant.name), file_of(mutant.path)
    where = [(file, line) for line in mutant.lines]
    if mutant.at_import:
        where = [(file_of(path), line) for path, line in mentions(mutant, sorted(ROOT.rglob("*.py")))]
        if not any(key in reach.lines or key in reach.compiled for key in where):  # anything in the file
            where = [key for table in (reach.lines, reach.compiled) for key in table if key[0] == file]
    places = set().union(*(reach.lines.get(key, ()) for key in where))
    kernels = set().union(*(reach.compiled.get(key, ()) for key in where))
    if mutant.at_import:  # tables that tests read themselves
        found = [place for place, probe in enumerate(reach.probes) if probe.kind == "test"]
        places |= {place for place in found if _mentions(reach.probes[place].name.partition("::")[0], mutant.module)}
    compiled = is_compiled(mutant)
    if mutant.function.endswith("__init__") or mutant.module == "fastq.formats.floats":
        # attributes of types, by whose names kernels are told apart, are computed before kernels are compiled
        kernels = kernels.union(*(reach.kernels[place] for place in places))
    if (mutant.at_import or mutant.module.startswith("fastq.engine.simd")) and not places and not kernels:
        places, kernels = set(range(len(reach.probes))), set(reach.traced)
    if not compiled:
        kernels = set()
    places = places | {place for place, asked in enumerate(reach.kernels) if asked & kernels}
    if not places:  # in kernels of tests that were not traced: what reaches the file may reach it too
        places = set().union(*(found for (each, _), found in reach.lines.items() if each == file))
    probes = sorted(places, key=lambda place: rng.random())
    cases = [place for place in probes if reach.probes[place].kind == "case"]
    tests = [place for place in probes if reach.probes[place].kind == "test"]
    far = {place: _is_far(mutant, reach.probes[place].name) for place in tests}
    if compiled:
        cases, made = _few_kernels(cases, kernels, reach, rng, FEW_KERNELS * patience)
        # tests of these kernels, and later of others: for kernels that few cases need
        nearest = [place for place in tests if patience > 1 and not all(far[place])]
        tests, _ = _few_kernels(tests, kernels - made, reach, rng, FEW_KERNELS * (patience - bool(cases)))
        tests = list(dict.fromkeys(nearest + tests))
    cases = _within(cases, MOST_CASES * patience, MOST_SECONDS["case"] * patience, reach)
    costs = {place: reach.seconds[place] + len(reach.kernels[place] & kernels) for place in tests}  # a second for each
    chances = {place: costs[place] * (0.5 + rng.random()) for place in tests}
    tests.sort(key=lambda place: (*far[place], chances[place]))
    tests = _of_few_files(tests, FEW_FILES * patience, reach)
    tests = _within(tests, MOST_TESTS * patience, MOST_SECONDS["test"] * patience, reach)
    exactly = mutant.module.startswith(("fastq.formats", "fastq.system"))
    probes = [[reach.probes[place] for place in chosen] for chosen in (cases, tests)]
    return Plan(*probes, reach.traced - kernels, compiled, exactly, patience)


def _is_far(mutant, test):
    """Whether a test is not about the changed row, corners, the subject of the module, or its names."""
    file, subjects = test.partition("::")[0], mutant.module.split(".")[1:]
    named = re.search(r"'(\w+)'", mutant.change)
    row = mutant.row or (named[1] if named else "")
    return (
        not row or row not in test,
        CORNERS not in file,
        not any(subject in file for subject in subjects),
        not _mentions(file, mutant.module),
    )


@functools.cache
def _mentions(file, module):
    """Whether a file of tests names a module: it tests that directly."""
    return module in (TESTS.parent / file).read_text(encoding="utf-8")


def _of_few_files(tests, most, reach):
    """Tests of the first few files, each of which takes a second to be collected."""
    files = dict.fromkeys(reach.probes[place].name.partition("::")[0] for place in tests)
    chosen = tuple(list(files)[:most])
    return [place for place in tests if reach.probes[place].name.startswith(chosen)]


def _within(places, most, seconds, reach):
    chosen = []
    for place in places:
        seconds -= reach.seconds[place]
        if len(chosen) >= most or (chosen and seconds < 0):
            break
        chosen.append(place)
    return chosen


def _few_kernels(places, kernels, reach, rng, most):
    """Order probes by the kernels that they need: one after the other is compiled, and serves a few probes first."""
    groups = {}
    for place in places:
        groups.setdefault(frozenset(reach.kernels[place] & kernels), []).append(place)
    ranks = {group: rng.random() for group in groups}
    made, order, left = set(), [], dict(groups)
    while left:
        group = min(left, key=lambda each: len(each - made) + ranks[each])
        if len(made | group) > most and order:
            break
        made |= group
        order += left.pop(group)[:OF_A_GROUP]
    rest = [place for group, of_group in groups.items() if group <= made for place in of_group[OF_A_GROUP:]]
    rng.shuffle(rest)
    return order + rest, made


# --- the process of a mutant ------------------------------------------------------------------------------------------


def _change_source(module, tree):
    """Have a module imported from a changed tree."""
    loader = importlib.machinery.SourceFileLoader
    right = loader.get_code

    def get_code(self, fullname):
        if fullname == module:
            return compile(tree, self.get_filename(fullname), "exec")
        return right(self, fullname)

    loader.get_code = get_code


def _compile_again(plan):
    """Have kernels compiled that a mutant changes, and none saved; others are loaded."""
    from fastq.engine.code.file import CachedFile
    from fastq.engine.jit import compile as jit

    right = jit._file

    def file(function, result, arguments):
        same = not plan.compiled or kernel_name(function, result, arguments) in plan.same
        found = right(function, result, arguments) if same else None
        if plan.compiles or (found and found.path.exists()):
            return found
        raise _TooLong

    jit._file = file
    CachedFile.save = lambda self, code: None


class _TooLong(BaseException):
    """A case needs a kernel that is not compiled yet."""


def _report(pipe, *what):
    """Tell the parent what happens, in a line of JSON."""
    os.write(pipe, (json.dumps(what) + "\n").encode())


def _limit_processor(seconds):
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, resource.RLIM_INFINITY))


def _run(mutant, plan, report):
    """Run the probes of a plan, until one fails."""
    if mutant is not None:
        _change_source(mutant.module, mutated(mutant))
    most = PROBE_SECONDS + COMPILE_SECONDS * plan.compiled
    _limit_processor(PROBE_SECONDS)
    try:
        from fuzzing import check  # noqa: F401

        import fastq  # noqa: F401

        if mutant is not None:
            _compile_again(plan)
    except Exception as error:
        return report("killed", "error", "import", _text(error))
    stages = [_run_cases, _run_tests]
    if plan.exactly:  # the reference uses the same tables
        stages.reverse()
    for stage in stages:
        if failure := stage(plan, report, most):
            return report("killed", *failure)
    return report("survived", len(plan.cases), len(plan.tests))


def _run_cases(plan, report, most):
    """Run cases until one fails; what it was."""
    from fuzzing.check import settings

    with settings():
        cases, plan.compiles = Cases(plan.exactly), True
        planned = [probe.seed for probe in plan.cases]
        if failure := _run_seeds(planned, plan, cases, report, most, BUDGET):
            return failure
        plan.compiles = False
        more = _like(planned) if plan.makes_more else ()
        return _run_seeds(more, plan, cases, report, most, MORE)


def _run_seeds(seeds, plan, cases, report, most, budget):
    until = time.process_time() + budget * plan.patience
    for seed in (each for each in seeds if each not in plan.unsound):
        if time.process_time() > until:
            break
        report("probe", str(seed))
        _limit_processor(most)
        try:
            with contextlib.suppress(_TooLong):
                cases.run(seed)
        except Exception as error:
            return _kind(error), str(seed), _text(error)
    return None


def _like(seeds):
    """Yield seeds of the combinations of some seeds, of small arrays, which need the same kernels for the most part."""
    from fuzzing.cases import Case
    from fuzzing.combinations import CASES

    rng = random.Random(str(seeds))
    combinations = list(dict.fromkeys(seed // CASES for seed in seeds))
    for _ in range(CASES if combinations else 0):
        for number in combinations:
            seed = number * CASES + rng.randrange(CASES)
            if Case(seed).size not in ("tiles", "streamed"):
                yield seed


def _run_tests(plan, report, most):
    """Run tests until one fails; what it was."""
    if not plan.tests:
        return None

    def before(name):
        report("probe", name)
        _limit_processor(most)

    clear_caches()
    plan.compiles = True
    around = Around(before, until=time.process_time() + BUDGET * plan.patience)
    run_tests([probe.name for probe in plan.tests], around, "-x")
    return ("result", around.failed.partition(": ")[0], around.failed) if around.failed else None


def _text(error):
    return "".join(traceback.format_exception(error)[-2:])[-700:]


def _kind(error):
    """Whether results differ, or a mutant does not even compile."""
    if not isinstance(error, AssertionError):
        return "error"
    return "error" if any(name in str(error) for name in ("TypingError", "LoweringError", "NumbaError")) else "result"


# --- the parent -------------------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What became of a mutant.

    Attributes
    ----------
    outcome : str
        "result", "error", "crash", "hang": killed by that; "survived"; "not reached": there is no probe.
    by, text : str
        The probe that noticed it, and what it said.
    seconds : float
    probes : int
        Probes that were run.
    """

    outcome: str
    by: str = ""
    text: str = ""
    seconds: float = 0.0
    probes: int = 0


def _child(mutant, plan, writing):
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.closerange(3, writing)  # pipes of others, which would not end with them
    os.closerange(writing + 1, 1024)
    try:
        _run(mutant, plan, functools.partial(_report, writing))
    except BaseException as error:
        _report(writing, "killed", "error", "harness", _text(error))
    finally:
        os._exit(0)


def judge(mutant, plan):
    """Judge a mutant by the probes of a plan; a case counts that does not fail as things are."""
    while True:
        verdict = _judge_once(mutant, plan)
        case = Probe("case", verdict.by)
        if not _is_in_doubt(verdict, plan) or _passes(case, plan):
            return verdict
        plan.unsound.add(case.seed)


def _is_in_doubt(verdict, plan):
    """Whether what noticed a mutant has not been seen to pass: a case that was made up, or is compared exactly."""
    is_case = verdict.outcome not in SURVIVING and verdict.by.isdecimal()
    return is_case and (plan.exactly or Probe("case", verdict.by) not in plan.cases)


def _passes(case, plan):
    """Whether a case passes as things are."""
    alone = replace(plan, cases=[case], tests=[], makes_more=False, unsound=set())
    return _judge_once(None, alone).outcome in SURVIVING


def _judge_once(mutant, plan):
    """Judge a mutant in a process of its own; None stands for the package as it is."""
    began, (reading, writing) = time.monotonic(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _child(mutant, plan, writing)
    os.close(writing)
    last, probes, silent = ["probe", "import"], 0, False
    for message in _messages(reading, pid):
        if message is None:
            silent = True
            break
        last, probes = message, probes + (message[0] == "probe")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = round(time.monotonic() - began, 2)
    if last[0] == "killed":
        return Verdict(last[1], last[2], last[3], seconds, probes)
    if last[0] == "survived":
        return Verdict("survived" if probes else "not reached", "", "", seconds, probes)
    hangs = silent or code == -signal.SIGXCPU
    return Verdict("hang" if hangs else "crash", str(last[1]), f"exit code {code}", seconds, probes)


def _messages(reading, pid):
    """Yield what a process reports until it ends; None if it falls silent and waits."""
    with open(reading, "rb", buffering=0) as pipe:
        for message in reports_of(pipe.fileno(), lambda: SILENCE):
            if message is None and _wants_to_run(pid):
                continue
            yield message
            if message is None or message[0] in ("killed", "survived"):
                return


def _wants_to_run(pid):
    """Whether a thread runs, is stopped, or waits for a processor or disk: its processor time has a limit anyway."""
    for thread in Path("/proc", str(pid), "task").glob("*/stat"):
        with contextlib.suppress(OSError):  # of one that has ended meanwhile
            if thread.read_text().rpartition(")")[2].split()[0] in "RTD":
                return True
    return False
