"""The fuzzer's own tests, and some cases of it: `python -m tests.fuzz` runs many."""

import ctypes
import json
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import fuzz
import numpy as np
import pytest
from fuzzing import exact
from fuzzing.arrays import as_dtype
from fuzzing.cases import Case
from fuzzing.check import Different, Settings, check, check_call, function_of, settings
from fuzzing.combinations import CASES, OPERATIONS, combination

import fastq
from fastq import reference

# the first combination of each operation whose kernels other tests need too
FIRST = {}
for number in range(2000):
    of = combination(number)
    if of.convention == "onnx" and of.dtype == "float32" and (of.format in ("int8", "uint8") or "gguf" in of.operation):
        FIRST.setdefault(of.operation, number)
QUICK = ("quantize_linear", "minmax")


def seeds(operation, count, size=None):
    """Seeds of an operation's combination, of arrays of one size or any but the largest."""
    first = FIRST[operation] * CASES
    wanted = [
        seed
        for seed in range(first, first + CASES)
        if Case(seed).size in ([size] if size else ["0 to 8", "to 60", "to 600"])
    ]
    return wanted[:count]


def outcomes(seeds):
    with settings():
        now = Settings()
        return Counter(check(seed, now)[1] for seed in seeds)


@pytest.mark.slow("compiles 10 kernels each", quick=lambda operation: operation in QUICK)
@pytest.mark.parametrize("operation", sorted(FIRST))
def test_cases_of_an_operation(operation):
    assert outcomes(seeds(operation, 12)).total() == 12


@pytest.mark.slow("compiles 60 kernels")
def test_cases_anywhere():
    """Of any convention, format and dtype, one in so many."""
    assert outcomes(range(7, 10 * CASES, CASES // 2)).total() == 20


def test_a_seed_is_one_case():
    for seed in range(0, 30 * CASES, 173):
        one, other = Case(seed).call(), Case(seed).call()
        assert repr(one.options.keys()) == repr(other.options.keys())
        assert [memory.tobytes() for memory in one.memories] == [memory.tobytes() for memory in other.memories]
        for name in ("args", "options"):
            shapes = [
                [
                    getattr(a, "strides", None)
                    for a in (getattr(call, name) if name == "args" else call.options.values())
                ]
                for call in (one, other)
            ]
            assert shapes[0] == shapes[1]
    assert Case(0).call().memories != Case(1).call().memories


def test_all_of_the_product_is_drawn():
    """Each operation, format, dtype, convention, layout, granularity and kind of output."""
    drawn = [combination(number) for number in range(3000)]
    assert {of.operation for of in drawn} == set(OPERATIONS)
    assert {of.row.name for of in drawn} == {*fastq.CONVENTIONS, "own"}
    assert {of.format for of in drawn} >= set(fastq.formats.qtypes.QTYPES)
    assert {of.nan for of in drawn} == {"raise", "zero", "keep"}
    found = {}
    for seed in range(0, 300 * CASES, 97):
        case = Case(seed)
        if case.size in ("0 to 8", "to 60"):
            case.call()
            for axis, value in case.axes.items():
                found.setdefault(axis, set()).add(value)
    assert {len(found[axis]) >= n for axis, n in (("layout", 13), ("out", 12), ("granularity", 4), ("threads", 4))} == {
        True
    }


@pytest.mark.parametrize(
    ("module", "name", "operation"),
    [
        (reference.codes, "rounded", "quantize_linear"),
        (reference.search, "from_range", "choose_qparams"),
        (reference.operations, "extremes", "minmax"),
    ],
)
def test_a_wrong_rule_is_found(module, name, operation, monkeypatch):
    right = getattr(module, name)

    def wrong(x, *args):
        result = right(x, *args)
        if name == "rounded":
            return np.floor(x) if args == ("half_even",) else result
        return tuple(np.nextafter(part, 9).astype(part.dtype) if part.dtype.kind == "f" else part for part in result)

    monkeypatch.setattr(module, name, wrong)
    with pytest.raises((Different, exact.NotExact)):
        outcomes(seeds(operation, 40))


def test_what_is_written_beside_an_output_is_found(monkeypatch):
    right = fastq.quantize_linear

    def careless(*args, **options):
        result = right(*args, **options)
        if (out := options.get("out")) is not None and out.size:
            ctypes.memset(np.lib.array_utils.byte_bounds(out)[0] - 1, 0, 1)
        return result

    monkeypatch.setattr(fastq, "quantize_linear", careless)
    with pytest.raises(Different, match="memory"):
        outcomes(seeds("quantize_linear", 60))


def test_other_errors_are_found(monkeypatch):
    def refuse(*args, **options):
        raise ValueError("axis is not to our liking")

    monkeypatch.setattr(fastq, "minmax", refuse)
    with settings(), pytest.raises(Different, match="not a tuple"):
        check_call(Case(seeds("minmax", 1)[0]))


# --- fractions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["quantize", "quantize_linear", "dequantize_linear", "choose_qparams"])
def test_fractions_agree_with_the_reference(operation):
    """In every convention and format that they know: no kernel is compiled."""
    tried = Counter()
    for number in range(90):
        if (of := combination(number)).operation != operation:
            continue
        for seed in range(number * CASES, number * CASES + 40):
            if (case := Case(seed)).size not in ("0 to 8", "to 60"):
                continue
            call = case.call()
            try:
                result = function_of(reference, operation)(*call.args, **call.options)
            except (TypeError, ValueError):
                continue
            if exact.knows(operation, call):
                exact.check(operation, case.call(), result)
                tried[of.row.name] += 1
    assert tried.total() > 40
    assert len(tried) >= (1 if operation in ("quantize", "choose_qparams") else 2)


@pytest.mark.parametrize(
    ("name", "bits"), [("float16", "u2"), ("bfloat16", "u2"), ("float32", "u4"), ("float64", "u8")]
)
def test_fractions_are_rounded_as_floats_are(name, bits):
    """Numbers halfway between two floats and beside, subnormal ones and those that overflow, against NumPy's casts."""
    dtype, rng = as_dtype(name), np.random.default_rng(4)
    with np.errstate(invalid="ignore"):
        x = rng.integers(0, 2 ** (8 * dtype.itemsize) - 1, 300, np.uint64).astype(bits).view(dtype).astype(np.float64)
    x = np.abs(x[np.isfinite(x)])
    for value in x:
        assert exact.rounded(Fraction(float(value)), name) == Fraction(float(value))
    if name == "float64":
        assert exact.rounded(Fraction(1) + Fraction(1, 2**53), name) == 1
        assert exact.rounded(Fraction(1) + Fraction(3, 2**53), name) == 1 + Fraction(1, 2**51)
        assert exact.rounded(Fraction(1, 2**1075), name) == 0
        assert exact.rounded(Fraction(2) ** 1024, name) == exact.INF
        return
    wide = np.concatenate([rng.standard_normal(300) * 10.0 ** rng.integers(-45, 39, 300), (x[:-1] + x[1:]) / 2])
    with np.errstate(all="ignore"):
        for value in wide[np.isfinite(wide)]:
            if name != "bfloat16":  # to which ml_dtypes casts by way of float32
                assert float(exact.rounded(Fraction(float(value)), name)) == float(np.array(value).astype(dtype))


@pytest.mark.parametrize("operation", ["quantize_linear", "choose_qparams", "dequantize_linear"])
def test_fractions_find_a_wrong_result(operation):
    found = 0
    for seed in seeds(operation, 20):
        case = Case(seed)
        call = case.call()
        try:
            result = function_of(reference, operation)(*call.args, **call.options)
        except (TypeError, ValueError):
            continue
        if not exact.knows(operation, call):
            continue
        if operation == "choose_qparams":
            wrong = result.with_values(np.nextafter(result.scale, np.float32(9)), result.zero_point)
        else:
            wrong = result.copy()
            wrong.reshape(-1).view(np.uint8)[-1] ^= 1
        with pytest.raises(exact.NotExact):
            exact.check(operation, case.call(), wrong)
        found += 1
    assert found > 2


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_process_that_dies_is_a_failure_of_its_case(tmp_path, monkeypatch):
    """The next one goes on after it, and what was counted is kept."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, sys\n"
        "seed = int(sys.argv[1])\n"
        "while True:\n"
        "    print(json.dumps(['seed', seed]), flush=True)\n"
        "    if seed == 3: os.abort()\n"
        "    if seed == 5: print(json.dumps(['failure', 5, 'wrong']), flush=True)\n"
        "    if seed == 8: print(json.dumps(['counts', [['outcome', 'values', 7]]]), flush=True); sys.exit()\n"
        "    seed += 1\n"
    )
    monkeypatch.setattr(fuzz, "command", lambda seed: [sys.executable, str(script), str(seed)])
    state = fuzz.State(tmp_path / "state.json")
    messages = []
    worker = fuzz.Worker(state)
    for kind, *what in worker.messages(time.monotonic() + 30):
        messages.append((kind, what[0]))
        if kind == "seed":
            state.next = what[0]
        if kind == "counts":
            break
    worker.process.kill()
    worker.process.communicate()
    assert [seed for kind, seed in messages if kind == "failure"] == [3, 5]
    assert messages[-2:] == [("seed", 8), ("counts", [["outcome", "values", 7]])]


def test_state_goes_on(tmp_path):
    state = fuzz.State(tmp_path / "state.json")
    state.add(
        [
            ["outcome", "values", 3],
            ["operation", "quantize", 3],
            ["outcome of quantize", "values", 3],
            ["nan", "zero", 3],
        ]
    )
    state.next, state.failing = 17, {"4": "wrong"}
    state.save()
    again = fuzz.State(Path(tmp_path / "state.json"))
    assert (again.next, again.cases, again.failing) == (17, 3, {"4": "wrong"})
    operations, axes = again.rows()
    assert operations[0]["cases"] == operations[0]["same bytes"] == 3
    assert operations[-1]["failures"] == 1
    assert axes == [{"axis": "nan", "values": 1, "cases of the rarest": 3}]
    assert json.loads((tmp_path / "state.json").read_text())["next"] == 17
