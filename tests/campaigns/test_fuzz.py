"""The fuzzer's own tests, and some cases of it: `python -m tests.campaigns.fuzz` runs many."""

import copy
import ctypes
import functools
import itertools
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from unittest.mock import Mock

import called_elsewhere
import fuzz
import numpy as np
import pytest
from fuzzing import check as checking
from fuzzing import exact
from fuzzing.arrays import Granularity, as_dtype
from fuzzing.cases import Call, Case
from fuzzing.check import Different, Settings, check, check_call, parts, settings
from fuzzing.combinations import (
    CASES,
    INPUTS,
    OPERATIONS,
    VARIANT,
    combination,
    covering_combinations,
    in_turn,
    share_streamed,
    streams,
)
from fuzzing.functions import function_of
from fuzzing.product import PRODUCT, met
from refusals import counts_nothing

import fastq
from fastq import reference
from fastq.formats.qtypes import QTYPES, as_qtype

OWN = ("gguf_quantize", "gguf_dequantize", "nest_scale", "pack", "unpack")  # that have formats of their own


@functools.cache
def first(operation):
    """The first combination of an operation whose kernels other tests need too."""

    def usual(number):
        of = combination(number)
        kind = of.convention, of.dtype, of.range
        return kind == ("onnx", "float32", "minmax") and (of.format in ("int8", "uint8") or operation in OWN)

    numbers = (each for each in itertools.count() if in_turn(OPERATIONS, each, "operations")[0] == operation)
    return next(filter(usual, numbers))


def seeds(operation, count):
    """Seeds of an operation's combination, of small arrays."""
    begin = first(operation) * CASES
    wanted = (seed for seed in range(begin, begin + CASES) if Case(seed).size in ("0 to 8", "to 60", "to 600"))
    return list(itertools.islice(wanted, count))


def outcomes(seeds):
    with settings():
        now = Settings()
        return Counter(check(seed, now)[1] for seed in seeds)


@pytest.mark.slow("compiles 10 kernels each", quick=lambda operation: operation == "minmax")
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_cases_of_an_operation(operation):
    assert outcomes(seeds(operation, 12)).total() == 12


@pytest.mark.slow("compiles 60 kernels")
def test_cases_anywhere():
    """Of any convention, format and dtype, one in this many."""
    assert outcomes(range(7, 10 * CASES, CASES // 2)).total() == 20


def test_a_seed_is_one_case():
    for seed in range(0, 30 * CASES, 173):
        one, other = Case(seed).call(), Case(seed).call()
        assert repr(one.options.keys()) == repr(other.options.keys())
        assert [memory.tobytes() for memory in one.memories] == [memory.tobytes() for memory in other.memories]
        strides = [[getattr(a, "strides", None) for a in (*c.args, *c.options.values())] for c in (one, other)]
        assert strides[0] == strides[1]
    memories = [[memory.tobytes() for memory in Case(number).call().memories] for number in (0, 1, VARIANT)]
    assert all(one != other for one, other in itertools.combinations(memories, 2))


def test_all_of_the_product_is_drawn():
    """Cases have no value that the tables lack, and small ones have all but what belongs to large arrays."""
    known = {(axis, value) for axis, values in PRODUCT.items() for value in values}
    large = {("size", size) for size in PRODUCT["size"] if size not in ("0 to 8", "to 60")}
    large |= {("format of 2^24 and more", format) for format in PRODUCT["format of 2^24 and more"]}
    found, seed = set(), 0
    while found < known - large and seed < 40000 * CASES:
        if (case := Case(seed)).size in ("0 to 8", "to 60"):
            case.call()
            found |= {(axis, value) for axis, values in case.axes.items() for value in values}
        seed += 487
    assert found == known - large


def test_what_no_case_met_shows():
    row = next(row for row in met({"nan": {"zero": 3, "keep": 1}}) if row["axis"] == "nan")
    assert row == {"axis": "nan", "values met": "2 of 3", "cases of the rarest": 0}


def test_each_format_is_as_often_of_the_largest_size():
    """By the tables each has the share of cases that combinations have, within five standard deviations."""
    count = 4000
    found = Counter(of.format for of in map(combination, range(count)) if streams(of))
    for format in PRODUCT["format"]:
        share = share_streamed(format)
        assert share > 0
        assert abs(found[format] - share * count) < 5 * (share * count) ** 0.5


def spoiled(result, which):
    """A result of which one array, number or text is wrong by a bit; None if it has no such."""
    result = copy.deepcopy(result)
    if isinstance(result, fastq.Comparison):
        found = result.max_abs_error
        return replace(result, max_abs_error=np.nextafter(found, 9)) if which == 0 and np.isfinite(found) else None
    arrays = [each for each in parts(result).values() if isinstance(each, np.ndarray) and each.size]
    if which >= len(arrays):
        return None
    arrays[which].flags.writeable = True
    last = np.array(arrays[which].reshape(-1)[-1:])
    last.view(np.uint8)[0 if last.dtype.byteorder != ">" else -1] ^= 1
    arrays[which][np.unravel_index(arrays[which].size - 1, arrays[which].shape)] = last[0]
    return result


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_wrong_bit_is_found(operation, monkeypatch):
    """In each part of each result: the reference stands for the fast function, right and wrong. No kernel is needed."""
    plain, which, found = function_of(reference, operation), None, Counter()

    def stand_in(operation, *args, **options):
        result = plain(*args, **options)
        return result if which is None else spoiled(result, which)

    monkeypatch.setattr("fuzzing.functions.fast", stand_in)
    monkeypatch.setattr(exact, "knows", lambda *_: False)
    for seed in seeds(operation, 60):
        which = None
        if found.total() > 9:
            break
        if check_call(Case(seed)) == "refused" or Case(seed).call().out is not None:
            continue
        call = Case(seed).call()
        result = plain(*call.args, **call.options)
        for which in itertools.count():
            if spoiled(result, which) is None:
                break
            with pytest.raises(Different):
                check_call(Case(seed))
            found[which] += 1
    assert found


def test_a_message_that_counts_nothing_is_found(monkeypatch):
    refuse = Mock(side_effect=ValueError("x has 0 infinite values: their range has no scale"))
    monkeypatch.setattr("fuzzing.functions.fast", refuse)
    monkeypatch.setattr(checking, "plain", refuse)
    with pytest.raises(Different, match="counts 0 of the faults that it reports"):
        check_call(Case(seeds("minmax", 1)[0]))


@pytest.mark.parametrize("value", [-np.nan, 1.0])
@pytest.mark.parametrize("there", ["as fast", "as here"])
def test_the_sign_of_a_nan_is_left_to_another_cpu_where_its_reference_agrees(monkeypatch, value, there):
    """A value is not, and neither is a NaN that the reference on that CPU has with the other sign."""
    result = np.array([np.nan, 2.0])
    other = np.array([value, 2.0])
    monkeypatch.setenv(called_elsewhere.VARIABLE, "")
    monkeypatch.setattr(checking, "plain", lambda operation, *args, **options: result)
    found = {"fast": other, "plain": other if there == "as fast" else result}
    monkeypatch.setattr(called_elsewhere, "function", lambda module, name: lambda *args, **options: found[name])
    monkeypatch.setattr(exact, "knows", lambda *_: False)
    case = next(case for case in map(Case, seeds("dequantize", 60)) if case.call().out is None)
    if there == "as fast" and np.isnan(value):
        assert check_call(case) == "left to the CPU"
        return
    with pytest.raises(Different):
        check_call(case)


@pytest.mark.parametrize(("method", "expected"), [("entropy", True), ("mse", False)])
def test_ties_of_entropy_are_left_to_another_cpu(monkeypatch, method, expected):
    call, pair = Call((), {"method": (method, {})}), (np.float32(1), np.float32(2))
    assert not checking.left_to_the_cpu("calibrate", call, pair, pair[::-1])
    monkeypatch.setenv(called_elsewhere.VARIABLE, "")
    assert checking.left_to_the_cpu("calibrate", call, pair, pair[::-1]) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("x has 0 NaN; pass nan='zero' to treat them as 0.0", True),
        ("scale has 0 values that are not finite", True),
        ("arrays that have 0 infinite values", True),
        ("x has 10 NaN; pass nan='zero'", False),
        ("x has 0.5, which is out of range", False),
        ("q has 0 axes, but the index is for 2", False),
        ("weight has 0 bytes, but shape (3,) needs 2", False),
    ],
)
def test_which_messages_count_nothing(message, expected):
    assert counts_nothing(message) == expected


@pytest.mark.parametrize(
    ("module", "name", "operation"),
    [
        (reference.codes, "round_to_integers", "quantize_linear"),
        (reference.search, "from_range", "choose_qparams"),
        (reference.operations, "extremes", "minmax"),
    ],
)
def test_a_wrong_rule_is_found(module, name, operation, monkeypatch):
    right = getattr(module, name)

    def wrong(x, *args):
        result = right(x, *args)
        if name == "round_to_integers":
            return np.floor(x) if args[0] == "half_even" else result
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
    monkeypatch.setattr(fastq, "minmax", Mock(side_effect=ValueError("axis is not to our liking")))
    with settings(), pytest.raises(Different, match="not a tuple"):
        check_call(Case(seeds("minmax", 1)[0]))


# --- fractions --------------------------------------------------------------------------------------------------------


def known(operation, cases):
    """Cases whose results the fractions say, found right, and the results of the reference."""
    for case in cases:
        call = case.call()
        try:
            result = function_of(reference, operation)(*call.args, **call.options)
        except (TypeError, ValueError):
            continue
        if exact.knows(operation, call) and exact.check(operation, case.call(), result):
            yield case, result


@pytest.mark.parametrize("operation", exact.OPERATIONS)
def test_fractions_agree_with_the_reference(operation):
    """In every convention and format that they know: no kernel is compiled."""
    tried = Counter()
    for number in range(1500):
        if (of := combination(number)).operation != operation or tried[of.row.name] > 20 or len(tried) > 4:
            continue
        small = (Case(number * CASES + k) for k in range(40))
        found = known(operation, (case for case in small if case.size in ("0 to 8", "to 60")))
        tried.update(of.row.name for _ in found)
    assert len(tried) > 4


HALF = fastq.Convention("scales of float16", stored_type="float16", formats=("int8",))


@pytest.mark.parametrize("convention", [*fastq.CONVENTIONS, HALF.name])
@pytest.mark.parametrize("symmetric", [False, True])
def test_fractions_find_a_wrong_number_of_a_convention(convention, symmetric):
    """Of scales and zero points, of codes and of values, by the formulas of each row."""
    row = fastq.CONVENTIONS.get(convention, HALF)
    if ("symmetric" if symmetric else "asymmetric") not in row.schemes:
        return
    if row.formats and as_qtype(row.formats[0]).element:
        pytest.skip("the fractions know ranges of float codes under onnx alone")
    x = np.array([[-0.3, 0.7, 2.5], [1.25, -1.75, 0.1]], np.float32)
    options = {"axis": 0, "symmetric": symmetric, "convention": row}
    call = Call([x, row.formats[0] if row.formats else "uint8"], options)
    q = reference.quantize(*call.args, **options)
    p, decoding, values = q.qparams, Call([q], {}), reference.dequantize(q)
    assert exact.check("quantize", call, q)
    assert exact.check("dequantize", decoding, values)
    values[1, 2] = np.nextafter(values[1, 2], np.float32(9))
    codes = q.codes.copy()
    codes[1, 0] ^= 1
    other = p.zero_point.copy()
    other[0] += 1
    wrong = [
        ("quantize", call, fastq.QuantizedArray(codes, p, q.shape)),
        ("choose_qparams", call, p.with_values(np.nextafter(p.scale, p.scale.dtype.type(9)), p.zero_point)),
        ("choose_qparams", call, p.with_values(p.scale, other)),
        ("dequantize", decoding, values),
    ]
    for operation, of, result in wrong:
        with pytest.raises(exact.NotExact):
            exact.check(operation, of, result)


@pytest.mark.parametrize("options", [{"nan": "zero"}, {"nan": "keep", "saturate": False}])
def test_fractions_of_float_formats_with_scales_below_zero(options):
    """The one convention with such scales and a float format."""
    x = np.array([-6, 6, 0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e9, -1e-9], np.float32)
    call = Call([x, np.float32(-0.856), None, "float8_e4m3fn"], options | {"convention": "compressed-tensors"})
    codes = reference.quantize_linear(*call.args, **call.options)
    assert exact.knows("quantize_linear", call)
    assert exact.check("quantize_linear", call, codes)


@pytest.mark.parametrize(
    ("name", "bits"), [("float16", "u2"), ("bfloat16", "u2"), ("float32", "u4"), ("float64", "u8")]
)
def test_fractions_are_rounded_as_floats_are(name, bits):
    """Numbers halfway between two floats and next to it, subnormal ones and overflow, compared with NumPy's casts."""
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


def with_an_axis_more(result):
    """A result of which the arrays that the fractions look at have another shape."""
    if isinstance(result, fastq.QParams):
        return result.with_values(result.scale[None], result.zero_point[None])
    if isinstance(result, fastq.QuantizedArray):
        return SimpleNamespace(codes=result.codes[None], qparams=result.qparams)
    return tuple(each[None] for each in result) if isinstance(result, tuple) else np.asarray(result)[None]


@pytest.mark.parametrize("operation", exact.OPERATIONS)
@pytest.mark.parametrize("wrong", [lambda result: spoiled(result, 0), with_an_axis_more], ids=["bit", "shape"])
def test_fractions_find_a_wrong_result(operation, wrong):
    results = list(known(operation, map(Case, seeds(operation, 30))))
    assert len(results) > 2
    for case, result in results:
        with pytest.raises(exact.NotExact):
            exact.check(operation, case.call(), wrong(result))


@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
def test_parameters_that_do_not_fit_are_refused(shape):
    """Except one for all elements."""
    each = functools.partial(Granularity(0, 2).each, shape=(4, 3))
    assert each(np.full((2, 3), 0.5)).tolist() == each(np.array(0.5)).tolist() == [0.5] * 12
    with pytest.raises(ValueError, match="parameters of shape"):
        each(np.full((*shape, 2), 0.5))


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_process_that_dies_is_a_failure_of_its_case(tmp_path, monkeypatch):
    """The next one goes on after it, and what was counted is kept."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, sys\n"
        "seed = sum(map(int, sys.argv[1:3]))\n"
        "while True:\n"
        "    print(json.dumps(['case', seed]), flush=True)\n"
        "    if seed == 3: os.abort()\n"
        "    if seed == 5: print(json.dumps(['failure', 5, 'wrong']), flush=True)\n"
        "    if seed == 8: print(json.dumps(['counts', [['outcome', 'values', 7]]]), flush=True); sys.exit()\n"
        "    seed += 1\n"
    )
    monkeypatch.setattr(fuzz, "command", lambda kind, *numbers: [sys.executable, str(script), *map(str, numbers[:2])])
    messages = []
    worker = fuzz.Worker(0)
    for kind, *what in worker.messages(time.monotonic() + 30):
        messages.append((kind, what[0]))
        if kind == "counts":
            break
    worker.process.kill()
    worker.process.communicate()
    assert [seed for kind, seed in messages if kind == "failure"] == [3, 5]
    assert messages[-2:] == [("case", 8), ("counts", [["outcome", "values", 7]])]
    assert (worker.next, worker.cases) == (8, 9)


def test_workers_share_the_combinations():
    """Beside each other they run all cases from a seed on, once; what each of them reports arrives."""
    shares = [list(itertools.islice(fuzz.numbers_from(1234, place, 3), 2 * CASES)) for place in range(3)]
    assert {seed // CASES % 3 for seed in shares[1]} == {1}
    assert sorted(seed for share in shares for seed in share)[: 4 * CASES] == list(range(1234, 1234 + 4 * CASES))

    class Reporting:
        def __init__(self, name):
            self.name = name

        def messages(self, until):
            yield from ([self.name, k] for k in range(until))

    assert Counter(name for name, _ in fuzz.messages_of([Reporting("a"), Reporting("b")], 50)) == {"a": 50, "b": 50}


def test_all_functions_of_the_reference_are_tried():
    assert set(reference.operations.__all__) <= set(OPERATIONS)


def test_turns_cover_all_operations_dtypes_and_formats():
    """Each worker has its share of the combinations, some cases of each at a time, and goes on where it was."""
    numbers = covering_combinations()
    for axis, values in (("operation", OPERATIONS), ("dtype", INPUTS), ("format", PRODUCT["format"])):
        assert {getattr(combination(number), axis) for number in numbers} >= set(values)
    share = list(itertools.islice(fuzz.numbers_from(0, 1, 2, covering=True), len(numbers[1::2]) * CASES + 1))
    assert [seed // CASES for seed in share[: len(numbers[1::2]) * fuzz.TURN : fuzz.TURN]] == numbers[1::2]
    assert sorted(share[:-1]) == sorted(number * CASES + k for number in numbers[1::2] for k in range(CASES))
    assert share[-1] // CASES > max(numbers)
    assert next(fuzz.numbers_from(share[700], 1, 2, covering=True)) == share[700]


def test_covering_turns_begin_with_every_operation_and_format():
    """By combinations that use them; each format with each operation follows."""
    formats = set(PRODUCT["format"])
    for number in (numbers := covering_combinations()[:100]):
        case = Case(number * CASES)
        case.call()
        formats -= set(case.axes.get("format", ()))
    assert not formats
    assert {combination(number).operation for number in numbers} == set(OPERATIONS)
    pairs = {(of.operation, of.format) for of in map(combination, covering_combinations())}
    assert pairs >= set(itertools.product(("quantize", "dequantize", "explain"), QTYPES))


def test_variants_follow_their_case():
    """Each case and its variants once, in the order of seeds or of turns, and from any of them on."""
    for covering in (False, True):
        run = list(itertools.islice(fuzz.numbers_from(0, 0, 1, covering, 4), 100))
        seeds = [number % VARIANT for number in run[::4]]
        assert run == [seed + k * VARIANT for seed in seeds for k in range(4)]
        assert list(itertools.islice(fuzz.numbers_from(run[30], 0, 1, covering, 4), 70)) == run[30:]
        assert next(fuzz.numbers_from(run[31], 0, 1, covering, 2)) == run[29]
    assert len({number % VARIANT // CASES for number in run}) == -(-25 // (fuzz.TURN // 4))


def test_variants_differ_in_sizes_alone():
    """They are calls with the same dtypes, granularity and layouts, where none of these depends on the size."""
    own = {"size", "kind of value", "index", "threads", "small chunks", "bins", "rounding"}
    same = differ = 0
    for number in covering_combinations()[:40]:
        cases = [Case(number * CASES + 7 + k * VARIANT) for k in range(5)]
        calls = [case.call() for case in cases]
        differ += len({tuple(memory.size for memory in call.memories) for call in calls}) > 1
        kinds = {repr(sorted(pair for pair in case.axes.items() if pair[0] not in own)) for case in cases}
        same += len(kinds) == 1
    assert same > 20
    assert differ > 35


@pytest.mark.parametrize("covering", [False, True])
def test_a_few_operations_and_formats_alone(covering):
    seeds = itertools.islice(fuzz.numbers_from(0, 1, 2, covering, only="requantize|gguf_.* IQ3"), 3 * CASES)
    found = {(of.operation, of.format[:3]) for of in map(combination, {seed // CASES for seed in seeds})}
    assert found <= {("requantize", "int"), ("requantize", "uin"), ("gguf_quantize", "IQ3"), ("gguf_dequantize", "IQ3")}
    assert found


def test_a_run_from_a_seed_leaves_state_and_figures_alone(monkeypatch):
    """It fails where a case does."""
    runs = []

    def run(hours, state, jobs, **chosen):
        runs.append((hours, state.path, state.next, jobs, chosen))
        state.failing["7"] = "wrong"
        state.save()

    monkeypatch.setattr(fuzz, "run_for", run)
    monkeypatch.setattr("figures.store", lambda *_: pytest.fail("stored"))
    monkeypatch.setattr(sys, "argv", ["fuzz", "--first", "1500", "--hours", "0.05", "--jobs", "2", "--only", "pack"])
    assert fuzz.main() == 1
    assert runs == [(0.05, None, 1500, 2, {"covering": False, "variants": 1, "only": "pack"})]


def test_state_goes_on(tmp_path):
    state = fuzz.State(tmp_path / "state.json")
    met_by = (("outcome", "values"), ("operation", "quantize"), ("outcome of quantize", "values"), ("nan", "zero"))
    state.add([(*each, 3) for each in met_by])
    state.next, state.failing = 17, {"4": "wrong"}
    state.save()
    again = fuzz.State(tmp_path / "state.json")
    assert (again.next, again.cases, again.failing) == (17, 3, {"4": "wrong"})
    operations, axes = again.rows()
    assert operations[0]["cases"] == operations[0]["same bytes"] == 3
    assert operations[-1]["failures"] == 1
    assert axes == met({"operation": {"quantize": 3}, "nan": {"zero": 3}})
    assert json.loads((tmp_path / "state.json").read_text())["next"] == 17
