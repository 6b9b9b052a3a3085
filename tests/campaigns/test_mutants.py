"""The oracle can fail: each deliberately wrong kernel differs from the reference."""

import itertools
import runpy
from pathlib import Path

import pytest
from edited import check_refused, copy_of_package, run_oracle

import fastq

KERNELS = Path(fastq.__file__).parent / "kernels"
TESTS = Path(__file__).parents[1]

ORACLE = """
import itertools
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from catalogue import same_bytes, same_quantized, specials, ties, values
import fastq
from fastq import reference

assert fastq.__file__.startswith(sys.argv[2]), fastq.__file__
tiny = np.finfo(np.float32).tiny
x = np.concatenate([ties(np.float32, 0.1, 140), specials(np.float32), values("float32", 99)])
for scale, zero_point in ((np.float32(0.1), 3), (np.float32(1), -128)):
    codes = fastq.quantize_linear(x, scale, zero_point, "int8")
    same_bytes(codes, reference.quantize_linear(x, scale, zero_point, "int8"))
    each = np.full(x.shape, scale)
    codes = fastq.quantize_linear(x, each, np.full(x.shape, zero_point), "int8", axis=0)
    same_bytes(codes, reference.quantize_linear(x, scale, zero_point, "int8"))
    values_ = fastq.dequantize_linear(codes, scale, zero_point)
    same_bytes(values_, reference.dequantize_linear(codes, scale, zero_point))
for seed, symmetric in itertools.product((0, 2, 4), (False, True)):
    y = values("float32", 3 * 5 * 70, seed).reshape(3, 5, 70)
    y[0] = 0
    y[0, 0, 0] = tiny * 127 if symmetric else tiny * 255
    y[0, 1:] = np.arange(4)[:, None] * 127 * np.float32(2.0**-149)
    y[2] = np.abs(y[2]) + 1
    for options in ({"axis": 0}, {"axis": (0, 1)}, {"axis": 1}):
        options = options | {"symmetric": symmetric}
        same_quantized(fastq.quantize(y, "int8", **options), reference.quantize(y, "int8", **options))
z = values("float32", 4200, 6).reshape(7, 600)
z[3, ::3] = np.nan
for options in ({"axis": 0}, {"axis": 1}):
    for actual, expected in zip(fastq.minmax(z, nan="zero", **options), reference.minmax(z, nan="zero", **options)):
        same_bytes(actual, expected)
"""

RULES = """
import dataclasses
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from catalogue import same_bytes, same_quantized, ties, values
import fastq
from fastq import reference

assert fastq.__file__.startswith(sys.argv[2]), fastq.__file__
below = np.nextafter(np.float32(0.5), np.float32(0)) * np.array([0.1, 1], np.float32)
x = np.concatenate([ties(np.float32, 0.1, 140), ties(np.float32, 1.0, 140), below, values("float32", 99)])
down = fastq.Convention("down", rounding="floor")
reduced = dataclasses.replace(fastq.CONVENTIONS["onnxruntime"], reduce_range=True)
rows = dict(fastq.CONVENTIONS) | {"down": down, "reduced": reduced}
given, ranges = {"torch-fake-quantize", "torch", "tflite", "down"}, {"torch", "reduced", "faiss"}
wanted = set(sys.argv[3:]) or given | ranges
for row in (rows[name] for name in sorted(given & wanted)):
    for scale in (np.float32(0.1), np.float32(1)):
        codes = fastq.quantize_linear(x, scale, 3, "int8", convention=row)
        same_bytes(codes, reference.quantize_linear(x, scale, 3, "int8", convention=row))
for row in (rows[name] for name in sorted(ranges & wanted)):
    for y in (x, np.abs(x) * np.float32(1e-7), x * np.float32(0.37), np.abs(x) + 1):
        actual, expected = fastq.quantize(y, "uint8", convention=row), reference.quantize(y, "uint8", convention=row)
        same_quantized(actual, expected)
        same_bytes(actual.dequantize(), reference.dequantize(expected))
if "compressed-tensors" in wanted:
    for y in (x, -np.abs(x) * np.float32(2.0**-24), np.zeros(9)):
        for options in ({"axis": None}, {"axis": 0, "block_size": 32}):
            y = y.clip(-9e3, 9e3).astype(np.float16)
            q = [impl.quantize(y, "int8", convention="compressed-tensors", **options) for impl in (fastq, reference)]
            same_quantized(*q)
"""

SEARCHES = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from catalogue import same_bytes
import fastq
from fastq import reference

assert fastq.__file__.startswith(sys.argv[2]), fastq.__file__
x = np.random.default_rng(0).standard_t(3, (9, 5016)).astype(np.float32)
few = np.repeat(np.array([[-9, 0, 1, 2, 9]], np.float32), 40, axis=0)
for options in ({"axis": 0}, {}, {"axis": 1, "block_size": 40}):
    for y in (x, few):
        actual, expected = (api.choose_qparams(y, "int8", range="mse", **options, bits=4) for api in (fastq, reference))
        same_bytes(actual.scale, expected.scale)
        same_bytes(actual.zero_point, expected.zero_point)
equal = np.array([1, -0.25, -0.375, 0.875], np.float32)  # the first two candidates have errors of the same sum, not 0
search = {"symmetric": True, "range": fastq.MSERange(grid=8, shrink=0.9)}
same_bytes(*(api.choose_qparams(equal, "int3", **search).scale for api in (fastq, reference)))
"""

STREAMED = """
import dataclasses
import itertools
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from catalogue import same_bytes, same_quantized, values
import fastq
from fastq import reference
from fastq.dispatch.cache import plans
from fastq.system import tuning

assert fastq.__file__.startswith(sys.argv[2]), fastq.__file__
row = dataclasses.replace(tuning.current(), stream_codes=True, stream_from=1, stream_run=1)
whole = values("float32", 21 * 192, 8)
shapes = (20, 96), (20, 192), (20, 160)
for staged_run, (rows, columns) in itertools.product((0, 1 << 40), shapes):
    tuning.current = lambda run=staged_run: dataclasses.replace(row, staged_run=run)
    plans.clear()
    x = whole[: rows * columns].reshape(rows, columns)
    for offset in (64, 69, 80):
        for options in ({}, {"axis": 1}, {"axis": -1, "block_size": 32}):
            expected = reference.quantize(x, "int8", symmetric=True, **options)
            memory = np.full(x.size + 320, 7, np.int8)
            first = -memory.ctypes.data % 64 + offset
            out = memory[first : first + x.size].reshape(x.shape)
            same_quantized(fastq.quantize(x, "int8", symmetric=True, **options, out=out), expected)
            assert (memory[:first] == 7).all() and (memory[first + x.size :] == 7).all(), "different: outside"
            memory = np.full(x.size + 320, 7, np.float32)
            first = -memory.ctypes.data % 64 // 4 + offset
            expected.dequantize(out=memory[first : first + x.size].reshape(x.shape))
            same_bytes(memory[first : first + x.size].reshape(x.shape), reference.dequantize(expected))
            assert (memory[:first] == 7).all() and (memory[first + x.size :] == 7).all(), "different: outside"
x[13, 77] = np.nan  # its row ends with a line, or five codes later
memory = np.zeros(x.size + 128, np.int8)
first = -memory.ctypes.data % 64
for scale, offset in itertools.product((0.1, np.full(160, 0.1, np.float32)), (0, 5)):
    out = memory[first + offset :][: x.size].reshape(x.shape)
    try:
        fastq.quantize_linear(x, scale, dtype="int8", axis=1, out=out)
    except ValueError:
        pass
    else:
        raise AssertionError("different: NaN is accepted")
"""

ERRORS = """
import dataclasses
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from catalogue import values
import fastq
from fastq import reference

assert fastq.__file__.startswith(sys.argv[2]), fastq.__file__
p = fastq.QParams(np.float32(0.5), np.int8(3), "int8")
alone = np.ones((98, 16))  # zeros and others of the same register would be a reason to look at it
alone[:, 7] = np.add.outer([-131, 124], np.linspace(-3, 3, 49)).reshape(-1) / 2
x = np.concatenate([alone.reshape(-1), values("float32", 211), np.zeros(5)]).astype(np.float32)
q = reference.quantize(x, qparams=p)
actual, expected = (dataclasses.astuple(i.compare(x, q)) for i in (fastq, reference))
assert np.allclose(actual, expected, rtol=1e-11, atol=0), f"different: {actual}, {expected}"
"""

TABLES = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from catalogue import same_bytes, same_quantized, values
import fastq
from fastq import reference
from fastq.formats.codebooks import CODEBOOKS

assert fastq.__file__.startswith(sys.argv[2]), fastq.__file__
x = values("float32", 64 * 64).reshape(64, 64).clip(-1e4, 1e4)
x[:8] = np.resize(np.array(CODEBOOKS["fp4"].thresholds, np.float32), (8, 64))
x[:8, 0], x[8] = 1, 0
x[9:40] = x[0] * np.random.default_rng(0).uniform(1, 2, (31, 1)).astype(np.float32)
actual, expected = (api.quantize(x, "fp4", axis=-1, block_size=64) for api in (fastq, reference))
same_quantized(actual, expected)
same_bytes(actual.dequantize(), reference.dequantize(expected))
"""

MUTANTS = {
    "subnormal scales to the nearest": [
        (
            "ranges.py",
            "return v.select(short, few + v.constant(unit, scale), scale)",
            "return scale",
        )
    ],
    "floor for round, one scale a run": [
        ("formulas.py", "return v.round_to_int32(x)", "return v.round_to_int32(v.floor(x))")
    ],
    "floor for round, one scale a lane": [
        ("formulas.py", '"rint" if rounding == "half_even"', '"floor" if rounding == "half_even"')
    ],
    "reciprocal for quotient": [
        ("formulas.py", "return v.fma(v.fma(-first, s.scale, x), s.factor, first)", "return first")
    ],
    "no upper clamp": [
        (
            "formulas.py",
            "v.minimum(v.maximum(distance, s.below), s.above)",
            "v.maximum(distance, s.below)",
        )
    ],
    "no lower clamp, one scale a lane": [
        (
            "formulas.py",
            "v.maximum(unclamped_code(spec, x, s), v.convert(lowest, dtype))",
            "unclamped_code(spec, x, s)",
        )
    ],
    "zero point inside the rounding": [
        (
            "formulas.py",
            "return round_by_rule(spec, steps_from_base(spec, x, s)) + s.base",
            "return round_by_rule(spec, steps_from_base(spec, x, s) + s.base)",
        )
    ],
    "< for <= at the smallest scale": [
        ("ranges.py", "(magnitude >= v.constant(least, scale))", "(magnitude > v.constant(least, scale))")
    ],
    "zero point rounded down": [("ranges.py", "round_as(ranged.rounding, in_half", 'round_as("floor", in_half')],
    "range not widened to zero": [
        (
            "ranges.py",
            "lo, hi = v.minimum(lo, zero), v.maximum(hi, zero)",
            "lo, hi = lo, hi",
        )
    ],
    "largest value for largest magnitude": [
        ("ranges.py", "v.maximum(v.maximum(-lo, hi), zero)", "v.maximum(hi, zero)")
    ],
    "products before the difference": [
        (
            "formulas.py",
            "return value_of_steps(spec, code - s.base, s)",
            "return value_of_steps(spec, code, s) - value_of_steps(spec, s.base, s)",
        )
    ],
    "tail dropped": [
        (
            "body/convert.py",
            "i = min(i + n, last)\n    return found | v.any_lane(nans)",
            "i = min(i + n, last)\n        if i == last:\n            break\n    return found | v.any_lane(nans)",
        )
    ],
    "NaN kept in a minimum": [
        ("body/min_max.py", "v.minimum(x, los), v.maximum(x, his)", "v.minimum(los, x), v.maximum(his, x)")
    ],
    "one of four rows dropped": [
        (
            "traversal/row_group.py",
            "add_to_state(operands, y, add_to_state(operands, x, state))",
            "add_to_state(operands, x, state)",
        )
    ],
    "NaN in one of four rows dropped": [("parameters.py", "v.select(nans, v.minimum(los, zero), los)", "los")],
    "neighbour's parameter": [
        ("traversal/columns.py", "+ block - row) * args.inner", "+ block - row) * args.inner + 1")
    ],
}


RULE_MUTANTS = {
    "half to even for half away from zero": (
        "tflite",
        [
            (
                "formulas.py",
                'if rounding == "half_even":\n        return v.round_to_int32(x)',
                'if rounding.startswith("half"):\n        return v.round_to_int32(x)',
            )
        ],
    ),
    "a half for the number before it": (
        "tflite",
        [
            (
                "formulas.py",
                "half = 0.5 - (2.0**-25 if v.lane_type(x) == types.float32 else 2.0**-54)",
                "half = 0.5",
            )
        ],
    ),
    "truncated for rounded down": (
        "down",
        [
            (
                "formulas.py",
                'elif rounding != "trunc":\n        x = getattr(v, rounding)(x)',
                'elif rounding != "trunc":\n        x = x',
            )
        ],
    ),
    "quotient for product with the reciprocal": (
        "torch-fake-quantize",
        [("formulas.py", "ratio = x * s.factor", "ratio = x / s.scale")],
    ),
    "product rounded before the sum": (
        "torch",
        [("formulas.py", "fma(x, s.factor, s.zero_point)", "x * s.factor + s.zero_point")],
    ),
    "scale for range": ("faiss", [("formulas.py", "x / s.factor * s.above", "x / s.scale")]),
    "edge for middle of a bucket": (
        "faiss",
        [("formulas.py", "steps = steps + v.constant(0.5, steps)", "steps = steps")],
    ),
    "parameters made for the codes that are clamped to": (
        "reduced",
        [("parameters.py", "(args.lowest, args.highest) if codes is None else codes", "args.lowest, args.highest")],
    ),
    "a quotient that is not rounded": (
        "compressed-tensors",
        [("formulas.py", "ratio = in_half(spec, ratio)", "ratio = ratio")],
    ),
    "a span that is not rounded": (
        "compressed-tensors",
        [("ranges.py", "in_half(spec, hi - lo) / divisor", "(hi - lo) / divisor")],
    ),
    "epsilon of float32": (
        "compressed-tensors",
        [("ranges.py", "2.0**-stored.mantissa if stored else 2.0**-23", "2.0**-23")],
    ),
    "no end beside a scale of 0": (
        "compressed-tensors",
        [
            (
                "ranges.py",
                "v.select(lo < zero, v.full_like(highest, lo), v.full_like(beside, lo))",
                "beside",
            )
        ],
    ),
    "smallest normal number for the floor": (
        "torch",
        [
            (
                "ranges.py",
                "if ranged.floor is None else ranged.floor",
                "if True else 0.0",
            )
        ],
    ),
}


TABLE_MUTANTS = {
    "the next number on a threshold": [("codebooks.py", 'fcmp_ordered(">", x', 'fcmp_ordered(">=", x')],
    "places for codes": [("codebooks.py", "return place if sorted_codes else", "return place if True else")],
    "quotient for product": [("apply.py", "return x * s.factor", "return x / s.scale")],
    "the reciprocal of 0": [("codebooks.py", "v.maximum(scale, v.constant(LEAST_SCALE, scale))", "scale")],
}


ERROR_MUTANTS = {
    "inside for clipped": [("body/errors.py", "(low - reach)", "(low - constant(1, low))")],
    "no zeros": [("body/errors.py", "_count(zeros, zero)", "zeros")],
    "difference for its magnitude": [("body/errors.py", "error = v.absolute(wide - ", "error = (wide - ")],
}


SEARCH_MUTANTS = {
    "a smaller range of the same error": [("body/range_search.py", "if errors[k] < least:", "if errors[k] <= least:")],
    "candidates passed over": [("body/range_search.py", "any_lane(bound < least)", "any_lane(bound + bound < least)")],
    "a part of a run": [("body/range_search.py", "i += 2", "i += 3")],
    "another unit": [("body/range_search.py", "STEP_BITS = 10", "STEP_BITS = 1")],
    "the last piece": [("body/range_search.py", "[sums + first + k] += errors", "[sums + first + k] = errors")],
}


STREAMED_MUTANTS = {
    "every other magnitude": [
        ("traversal/block_extremes.py", "most = v.maximum(v.even(high), v.odd(high))", "most = v.even(high)")
    ],
    "parameters of the next blocks": [("traversal/blocks.py", "out, p, now)", "out, p, following)")],
    "part of a line lost": [("traversal/stores.py", "v.store(memory, 0, v.load(memory, k, _GRANULE))", "pass")],
    "what is before the first line": [("traversal/stores.py", "if first > 0:", "if False:")],
    "what is left": [
        ("traversal/stores.py", "range(stage.first, stage.filled)", "range(stage.first, stage.filled - 1)")
    ],
    "a line too many": [("traversal/stores.py", "while i <= end - v.count(line):", "while i < end:")],
    "a staged piece lost": [("traversal/runs.py", "stage = advanced(stage,", "advanced(stage,")],
    "what is left of staged pieces": [
        ("traversal/runs.py", "    store_tail(stage)\n    return status", "    return status")
    ],
    "staged beside where it belongs": [("traversal/runs.py", "advance(dst, start))", "advance(dst, start + 1))")],
    "NaN passed over": [("traversal/stores.py", "found |= v.any_lane(reported)", "pass")],
    "NaN of a row that ends with a line passed over": [
        ("traversal/columns.py", "return status_of(found, False)", "return status_of(False, False)")
    ],
    "the last granules": [("traversal/stores.py", "while k <= filled - v.GRANULE:", "while k <= filled - v.LINE:")],
    "NaN of a row passed over": [
        ("traversal/columns.py", "status_of(found | v.any_lane(nans), False)", "status_of(v.any_lane(nans), False)")
    ],
}


@pytest.mark.slow("compiles 30 kernels each", quick=lambda oracle: oracle is ERRORS)
@pytest.mark.parametrize(
    "oracle",
    [ORACLE, RULES, TABLES, ERRORS, SEARCHES, STREAMED],
    ids=["onnx", "rules", "tables", "errors", "searches", "streamed"],
)
def test_the_oracle_accepts_the_kernels_as_they_are(oracle, tmp_path):
    done = run_oracle(copy_of_package(tmp_path), tmp_path, oracle)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow("compiles again what the edit changes")
@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_refuses(name, tmp_path):
    check_refused(tmp_path, MUTANTS[name], ORACLE)


@pytest.mark.slow("compiles again what the edit changes")
@pytest.mark.parametrize("name", RULE_MUTANTS)
def test_the_oracle_of_rules_refuses(name, tmp_path):
    convention, changes = RULE_MUTANTS[name]
    check_refused(tmp_path, changes, RULES, convention)


@pytest.mark.slow("compiles again what the edit changes")
@pytest.mark.parametrize("name", TABLE_MUTANTS)
def test_the_oracle_of_tables_refuses(name, tmp_path):
    check_refused(tmp_path, TABLE_MUTANTS[name], TABLES)


@pytest.mark.slow("compiles again what the edit changes")
@pytest.mark.parametrize("name", ERROR_MUTANTS)
def test_the_oracle_of_errors_refuses(name, tmp_path):
    check_refused(tmp_path, ERROR_MUTANTS[name], ERRORS)


@pytest.mark.slow("compiles again what the edit changes")
@pytest.mark.parametrize("name", SEARCH_MUTANTS)
def test_the_oracle_of_searches_refuses(name, tmp_path):
    check_refused(tmp_path, SEARCH_MUTANTS[name], SEARCHES)


@pytest.mark.slow("compiles again what the edit changes")
@pytest.mark.parametrize("name", STREAMED_MUTANTS)
def test_the_oracle_of_what_goes_past_the_cache_refuses(name, tmp_path):
    check_refused(tmp_path, STREAMED_MUTANTS[name], STREAMED)


def all_changes():
    """Yield every change of a kernel that an oracle is asked to refuse, here and in other files."""
    files = "kernels/ggml/test_gguf.py", "kernels/ggml/test_gguf_formats.py", "dispatch/test_past_the_cache.py"
    for table in (MUTANTS, TABLE_MUTANTS, ERROR_MUTANTS, SEARCH_MUTANTS, STREAMED_MUTANTS):
        yield from itertools.chain(*table.values())
    for mutants in (RULE_MUTANTS, *(runpy.run_path(str(TESTS / file))["MUTANTS"] for file in files)):
        for _, changes in mutants.values():
            yield from changes


def test_what_is_changed_is_in_the_package():
    """Of slow tests CI takes a part: what a change left of these would be seen late."""
    changes = list(all_changes())
    assert len(changes) > 50
    missing = [change for change in changes if change[1] not in (KERNELS / change[0]).read_text()]
    assert not missing
