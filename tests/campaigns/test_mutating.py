"""The judge of mutants: what is wrong is killed, what is equivalent survives, and no source is ever touched."""

import ast
import hashlib
import json

import mutants
import pytest
from fuzzing.cases import Case
from mutating.operators import Mutant, changes, module_of, mutated
from mutating.operators import mutants as mutants_of
from mutating.probes import Around, files_about
from subprocesses import run
from test_fuzz import seeds

ROOT = mutants.ROOT


def found(source, module="fastq.plan.x"):
    """What becomes what in a source."""
    return {(each.before, each.after) for each in changes(ast.parse(source), module)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a, b):\n    g(a + b)", {("a + b", "a - b"), ("g(a + b)", "pass")}),
        ("x = a < b", {("a < b", "a <= b"), ("a < b", "a >= b")}),
        ("x = a <= b != c", {("a <= b != c", f"a {ops} c") for ops in ("< b !=", "> b !=", "<= b ==")}),
        ("x = f(a, b, c=d)", {("f(a, b, c=d)", "f(b, a, c=d)"), ("f(a, b, c=d)", "f(a, b)")}),
        ("x = min(a, 0)", {("min", "max"), ("0", "1")}),
        ("x = 7 if c else 0.5", {("7", "8"), ("7", "6"), ("0.5", "1.0"), ("7 if c else 0.5", "0.5 if c else 7")}),
        ("x = a and not b", {("a and (not b)", "a or not b"), ("not b", "b")}),
        ("def f(a):\n    a = g\n    b = g\n    a += h", {("a = g", "pass"), ("a += h", "pass"), ("a += h", "a -= h")}),
        ("if c:\n    raise ValueError(f'{x + 1}')", {("c", "not c"), ("raise ValueError(f'{x + 1}')", "pass")}),
        ("def f():\n    return a", {("return a", "return None")}),
    ],
)
def test_changes_of_a_source(source, expected):
    assert found(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Text of 1 + 1."""',
        "def f(x: 1 + 1) -> 2:\n    'text'",
        "@cache(4096)\ndef f(): pass",
        "assert x < 1",
        "def __repr__(self):\n    return 1 + 1",
        "prefetch(src, i + 1)",
        "x = tuning.current().rows[1]",
        "from a import b",
    ],
)
def test_what_no_test_could_notice_is_left_as_it_is(source):
    assert found(source) == set()


@pytest.mark.parametrize(
    ("call", "swapped"), [("g(spec, x, y)", "g(spec, y, x)"), ("v.select(x, y, z)", "v.select(x, z, y)")]
)
def test_compiled_code_is_not_changed_where_it_would_not_compile(call, swapped):
    assert found(f"def f(spec, x, y):\n    return {call}", "fastq.kernels.x") == {(call, swapped)}
    assert found("def f(x, y):\n    return v.convert(x, y.dtype)", "fastq.kernels.x") == set()


def test_a_name_stays_when_lines_are_added(tmp_path):
    path = tmp_path / "dispatch" / "x.py"
    path.parent.mkdir()
    path.write_text("def f(a):\n    return a + 1\n")
    before = mutants_of(path, tmp_path)
    path.write_text("import os\n\n\ndef f(a):\n    # why\n    return a + 1\n")
    after = mutants_of(path, tmp_path)
    assert [each.name for each in before] == [each.name for each in after]
    assert [each.lines.start + 4 for each in before] == [each.lines.start for each in after]


@pytest.mark.slow("changes every line")
def test_each_change_makes_another_source():
    """Also where the same change is made at several places."""
    made = [ast.dump(mutated(each)) for each in mutants_of(ROOT / "dispatch" / "reduction.py", ROOT)]
    assert len(set(made)) == len(made) > 100
    assert ast.dump(ast.parse((ROOT / "dispatch" / "reduction.py").read_bytes())) not in made


@pytest.mark.slow("changes every line")
def test_any_beginning_of_the_sample_is_of_all_files():
    order, counts = mutants.sample(0)
    assert len({each.name for each in order}) == len(order) == sum(counts.values())
    assert {each.path for each in order[:600]} == {each.path for each in order}
    assert [each.name for each in order[:50]] != [each.name for each in mutants.sample(1)[0][:50]]


def test_each_reason_is_that_of_a_mutant():
    """Whoever edits a statement with a reason learns it at once: a mutant's name has a checksum of its statement."""
    modules = {f"fastq.{name.partition(':')[0]}" for name in mutants.reasons()}
    files = [file for file in mutants.files() if module_of(file, ROOT) in modules]
    assert mutants.reasons().keys() <= {each.name for file in files for each in mutants_of(file, ROOT)}
    assert all(reason.startswith(("equivalent: ", "speed: ")) for reason in mutants.reasons().values())


JUDGE = """
from mutating import judge
judge.PROBE_SECONDS = 5
judge.prepare()
from mutating.operators import Mutant
from mutating.probes import Probe
from mutating.reach import ROOT
judge.mutated = lambda mutant: ast.parse(mutant.path.read_text().replace(*mutant.change))
seeds, tests, rows = arguments
cases, tests = [[Probe(kind, str(name)) for name in names] for kind, names in (("case", seeds), ("test", tests))]
for file, right, wrong in rows:
    path = ROOT / file
    module = "fastq." + file.removesuffix(".py").replace("/", ".")
    mutant = Mutant(module, path, 0, module, (right, wrong), range(1), "", False)
    plan = judge.Plan(cases, tests, set(), judge.is_compiled(mutant), False)
    print(json.dumps(vars(judge.judge(mutant, plan))))
"""

FIRST_LINE = "from __future__ import annotations"
# file, old text, new text, and the outcome
JUDGED = [
    ("dispatch/reduction.py", FIRST_LINE, f"{FIRST_LINE}\n\nnothing = None", "survived"),
    ("kernels/body/min_max.py", "v.minimum(x, los)", "v.maximum(x, los)", "result"),
    ("formats/qtypes.py", FIRST_LINE, "import nothing", "error"),
    ("dispatch/reduction.py", FIRST_LINE, "import os; os.abort()", "crash"),
    ("dispatch/reduction.py", FIRST_LINE, "while True: pass", "hang"),
]


def test_what_is_judged_is_in_the_package():
    assert all(right in (ROOT / file).read_text() for file, right, *_ in JUDGED)


def checksum():
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(ROOT.rglob("*.py")))).hexdigest()


def lines_of(code, *arguments):
    """What code prints in a process of its own, which has `arguments` and finds the tests: a value of JSON a line."""
    setup = f"import ast, json, tests.campaigns\nfrom pathlib import Path\narguments = {arguments!r}\n"
    return [json.loads(line) for line in run(code, setup=setup, package=ROOT, timeout=300).splitlines()]


@pytest.mark.slow("processes that compile")
def test_what_is_wrong_is_killed_and_what_is_not_survives():
    before = checksum()
    cases = [seed for seed in seeds("minmax", 40) if Case(seed).threads == 1][:8]
    tests = ["tests/ops/test_contract.py::test_dequantize_takes_a_quantized_array_alone"]
    verdicts = lines_of(JUDGE, cases, tests, [row[:3] for row in JUDGED])
    assert [verdict["outcome"] for verdict in verdicts] == [row[3] for row in JUDGED], verdicts
    assert checksum() == before


CONFIRM = """
import time
from mutating import judge
from mutating.operators import Mutant
from mutating.probes import Probe
from mutating.reach import ROOT

class Cases:
    def __init__(self, exactly):
        pass

    def run(self, seed):
        from fastq.plan import reduction
        assert seed != 1, "fails as things are"
        assert seed != 2 or not hasattr(reduction, "nothing"), "fails with the mutant"
        until = time.monotonic() + 6
        while seed == 3 and time.monotonic() < until:
            pass
        if seed == 4 and hasattr(reduction, "nothing"):
            time.sleep(60)

judge.Cases, judge.SILENCE = Cases, 3
judge.prepare()
module, path = "fastq.plan.reduction", ROOT / "dispatch" / "reduction.py"
judge.mutated = lambda mutant: ast.parse(path.read_text() + "nothing = None")
mutant = Mutant(module, path, 0, module, "", range(1), "", False)
for planned, more, exactly in arguments[0]:
    judge._like = lambda seeds: more
    plan = judge.Plan([Probe("case", str(seed)) for seed in planned], [], set(), False, exactly)
    verdict = judge.judge(mutant, plan)
    print(json.dumps([verdict.outcome, verdict.by]))
"""

# seeds that are planned and made up, whether they are compared exactly, and the verdict
CONFIRMED = [
    ([0], [0, 1, 0], False, ["survived", ""]),
    ([0], [1, 2], False, ["result", "2"]),
    ([1, 2], [0], True, ["result", "2"]),
    ([3, 0], [4], False, ["hang", "4"]),
]


@pytest.mark.slow("twelve processes")
def test_a_case_that_fails_as_things_are_does_not_kill_nor_one_that_is_slow():
    assert lines_of(CONFIRM, [row[:3] for row in CONFIRMED]) == [row[3] for row in CONFIRMED]


CHOOSE = """
from mutating import judge
judge.prepare()
import fuzzing.check  # which imports what launches kernels
from mutating.reach import choose_cases
seeds = choose_cases(12, 9)
assert len(seeds) == len(set(seeds)) > 20, seeds
"""


@pytest.mark.slow("three seconds")
def test_cases_are_chosen_without_a_kernel():
    """What stands for kernels is never called, nor are threads started, whatever the cases set for chunks and tiles."""
    assert lines_of(CHOOSE) == []


@pytest.mark.parametrize(("count", "most", "expected"), [(9, 3, 3), (10, 3, 3), (2, 3, 2), (0, 3, 0)])
def test_of_many_tests_some_are_run(count, most, expected):
    items = list(range(count))
    Around(most=most).pytest_collection_modifyitems(items)
    assert len(items) == expected


def test_a_change_within_a_row_of_a_table_names_it(tmp_path):
    (tmp_path / "a.py").write_text('A = {row.name: row for row in (Row("first", 1), Row("second", inner(2)))}\nB = 3\n')
    rows = {mutant.change: mutant.row for mutant in mutants_of(tmp_path / "a.py", tmp_path)}
    assert (rows["1 -> 2"], rows["2 -> 3"], rows["3 -> 4"]) == ("first", "second", "")


def test_figures_of_what_was_judged(tmp_path, monkeypatch):
    def mutant(name):
        return Mutant("fastq.a", ROOT / "a.py", 0, name, "", range(1), "", False)

    state = mutants.State(tmp_path / "state.json")
    outcomes = ("result", "error", "crash", "hang", "survived", "not reached", "survived")
    state.verdicts = {name: {"outcome": outcome} for name, outcome in zip("abcdefg", outcomes, strict=True)}
    state.save()
    monkeypatch.setattr(mutants, "reasons", lambda: {"g": "equivalent: it is"})
    order = [*map(mutant, "abcdefgh")]
    row, total = mutants.rows(mutants.State(tmp_path / "state.json"), order, {"a.py": 8})
    assert row == total | {"module": "a.py"}
    assert (row["tried"], row["other results"], row["errors"], row["crash or hang"]) == (7, 1, 1, 2)
    assert (row["equivalent"], row["survived"]) == (1, 2)
    assert row["killed of those not equivalent"] == "66.7 %"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("kernels.body.range_search", {"range_search", "corners"}),
        ("kernels.noise", {"stochastic"}),
        ("kernels.ggml.least_error", {"gguf_least_error"}),
        ("kernels.traversal.at_random", set()),
    ],
)
def test_files_about_a_module(module, names):
    found = set(files_about(f"fastq.{module}"))
    assert names <= found
    assert len(found) < 4


LINES = """
import inspect
from mutating.reach import Kernels, _choosers
_choosers.install()
kernels = Kernels()
import numpy, fastq
fastq.magnitudes(numpy.ones(5, numpy.float32))
from fastq.kernels.body import magnitudes
lines = {line for kernel in kernels.traced.values() for line in kernel["lines"].get("kernels/body/magnitudes.py", ())}
for function in (magnitudes._add, magnitudes._of_run.py_func):
    text, first = inspect.getsourcelines(inspect.unwrap(function))
    print(json.dumps([line - first for line in sorted(lines) if line in range(first, first + len(text))]))
"""


@pytest.mark.slow("compiles a kernel")
def test_a_kernel_is_made_of_what_is_compiled_and_of_what_runs_on_types():
    """A mutant of a line that no kernel seems to have would be judged by kernels without its change, and survive."""
    traced, compiled = lines_of(LINES)
    assert traced[-2:] == [2, 3]
    assert set(range(3, 21)) <= set(compiled)


REACH = """
from tests import reach
names = [path.name for path in reach.files_of_tests(arguments[0])]
rows = [("one[1]", set(), {"x.py": [1, 2]}), ("one[2]", {"k"}, {"x.py": [2]}), ("two", set(), {})]
probes = [(reach.probes.Probe("test", name), 0, *rest) for name, *rest in rows]
part = reach.reach.Recorded(probes, {"k": {"lines": {"x.py": [7]}}})
print(json.dumps([names, reach.lines_reached([part], "x.py")]))
"""


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("layouts/tensors.py", {"test_layouts.py"}),
        ("zarr/codecs.py", {"test_zarr.py"}),
        ("io/gguf/mixes.py", {"test_files.py", "test_gguf_mixes.py", "test_models.py"}),
        ("kernels/ranges.py", {"test_equality.py", "test_conventions.py"}),
    ],
)
def test_tests_that_reach_a_file(file, expected):
    """Lines that tests run themselves, and those of kernels that they launch."""
    ((names, lines),) = lines_of(REACH, file)
    assert expected <= set(names)
    assert ("test_conventions.py" in names) == file.startswith("kernels")
    assert lines == {"one": 3}
