"""Oracles of kernels: each compares with the reference, and has to refuse what wrong.toml makes of the package.

A script, for an edited copy of the package on PYTHONPATH: its folder, the name of an oracle and arguments.
"""

import dataclasses
import importlib
import itertools
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / room) for room in ("support", "kernels/ggml", "kernels/body", "plan", "ops", "formats")]

# ruff: noqa: E402 (tests are imported from where they lie)
import numpy as np
from catalogue import same_bytes, same_measures, same_quantized, specials, ties, values
from unpacked import unpack_array

import fastq
from fastq import reference
from fastq.formats.codebooks import CODEBOOKS
from fastq.formats.qtypes import QTYPES
from fastq.plan.cache import plans
from fastq.system import tuning

APIS = fastq, reference


def both(function, *arguments, **options):
    return [getattr(api, function)(*arguments, **options) for api in APIS]


def onnx():
    tiny, normal = np.finfo(np.float32).tiny, fastq.Convention("normal", scale_floor=None)
    x = np.concatenate([ties(np.float32, 0.1, 140), specials(np.float32), values("float32", 99)])
    for scale, zero_point in ((np.float32(0.1), 3), (np.float32(1), -128)):
        codes, expected = both("quantize_linear", x, scale, zero_point, "int8")
        same_bytes(codes, expected)
        each = np.full(x.shape, scale), np.full(x.shape, zero_point)
        same_bytes(fastq.quantize_linear(x, *each, "int8", axis=0), expected)
        same_bytes(*both("dequantize_linear", codes, scale, zero_point))
    for seed, symmetric in itertools.product((0, 2, 4), (False, True)):
        y = values("float32", 3 * 5 * 70, seed).reshape(3, 5, 70)
        y[0] = 0
        y[0, 0, 0] = tiny * 127 if symmetric else tiny * 255
        y[0, 1:] = np.arange(4)[:, None] * 127 * np.float32(2.0**-149)
        y[2] = np.abs(y[2]) + 1
        for axis in (0, (0, 1), 1):
            same_quantized(*both("quantize", y, "int8", axis=axis, symmetric=symmetric))
        same_quantized(*both("quantize", y, "int8", axis=(0, 1), symmetric=symmetric, convention=normal))
    z = values("float32", 4200, 6).reshape(7, 600)
    z[3, ::3] = np.nan
    for axis in (0, 1):
        for ends in zip(*both("minmax", z, nan="zero", axis=axis), strict=True):
            same_bytes(*ends)


def examples(*kinds):
    """Literal rows of these kinds, by the kernels."""
    import test_examples as tests

    for kind in kinds:
        for table in tests.EXAMPLES[kind]:
            tests.CHECKS[kind](fastq, table)


def rules(*wanted):
    below = np.nextafter(np.float32(0.5), np.float32(0)) * np.array([0.1, 1], np.float32)
    x = np.concatenate([ties(np.float32, 0.1, 140), ties(np.float32, 1.0, 140), below, values("float32", 99)])
    reduced = dataclasses.replace(fastq.CONVENTIONS["onnxruntime"], reduce_range=True)
    rows = dict(fastq.CONVENTIONS) | {"down": fastq.Convention("down", rounding="floor"), "reduced": reduced}
    rows["up"] = fastq.Convention("up", rounding="half_up")
    given, ranges = {"torch-fake-quantize", "torch", "tflite", "down", "up"}, {"torch", "reduced", "faiss"}
    for row in (rows[name] for name in sorted(given & {*wanted})):
        for scale in (np.float32(0.1), np.float32(1)):
            same_bytes(*both("quantize_linear", x, scale, 3, "int8", convention=row))
    for row in (rows[name] for name in sorted(ranges & {*wanted})):
        for y in (x, np.abs(x) * np.float32(1e-7), x * np.float32(0.37), np.abs(x) + 1):
            actual, expected = both("quantize", y, "uint8", convention=row)
            same_quantized(actual, expected)
            same_bytes(actual.dequantize(), reference.dequantize(expected))
    steps = np.arange(-300, 300) / 8  # ties of scales that are powers of two
    for name in sorted({"nibabel", "grib", "nco", "cdo"} & {*wanted}):
        codes = [code for code in rows[name].formats if code in QTYPES]
        for code in codes[:2] + codes[-1:]:
            for y in (x, x.astype(np.float64), steps, steps - 40, np.full(9, 3.7), np.linspace(0, 16.4, 99)):
                same_quantized(*both("quantize", y, code, convention=name))
    if "codes of 32 bits" in wanted:  # values clamped to (1 + 2**-23) * last code are of another code
        wide = [2147483392, 2147483520, 2147483584, 2147483648, 3e9, 4294967040, 1e30, -1e30, 1e9, -77]
        wide = np.array(wide, np.float32)
        for step in np.array([0.37, 1, 1 + 2.0**-23, 2.0**20], np.float32):
            y = np.concatenate([wide, np.float32(1e8) * x[:99]]) * step
            for code in ("int32", "uint32"):
                same_bytes(*both("quantize_linear", y, step, np.float32(0), code, convention="nibabel"))
    for step in (0.1, 0.01, 1e-5) if "hdf5-scaleoffset" in wanted else ():
        options = {"dtype": "uint16", "convention": "hdf5-scaleoffset", "computed": "float32"}
        params = fastq.QParams(np.float64(step), np.float64(np.float32(-0.7)), **options)
        for y in (x, x * np.float32(10 * step), np.arange(60_000) * (step / 2) - 0.7):
            qparams = params if y.dtype == np.float32 else dataclasses.replace(params, computed=None)
            actual, expected = both("quantize", y, qparams=qparams)
            same_quantized(actual, expected)
            same_bytes(actual.dequantize(), reference.dequantize(expected))
    for end in (160, 3) if "hdf5-scaleoffset" in wanted else ():  # whose steps in a unit are no whole number
        y = np.linspace(0, end, 1001, dtype=np.float32)
        same_quantized(*both("quantize", y, "uint8", convention="hdf5-scaleoffset"))
    if "pcm" in wanted:
        near = np.nextafter(np.arange(-40, 40, dtype=np.float32), np.float32(-99)) / np.float32(2**15)
        same_bytes(*both("quantize_linear", near, np.float32(2.0**-15), 0, "int16", convention="pcm"))
    if "lance" in wanted:
        for end in np.linspace(1.9925, 1.9999, 40):
            y = np.linspace(0, end, 256)
            same_quantized(*both("quantize", y, "uint8", convention="lance"))
    if "compressed-tensors" in wanted:
        for y in (x, -np.abs(x) * np.float32(2.0**-24), np.zeros(9)):
            for options in ({"axis": None}, {"axis": 0, "block_size": 32}):
                half = y.clip(-9e3, 9e3).astype(np.float16)
                same_quantized(*both("quantize", half, "int8", convention="compressed-tensors", **options))
    # in blocks of 32: zeros and ranges too small for a scale; ranges whose zero point depends on the end it is from
    tiny = np.concatenate([np.zeros(32), x[:64] * np.float32(1e-22)])
    ends = np.repeat([(-148, 148), (-20, 116), (-153, 153)], 16, axis=0).ravel()
    near = np.stack([x[:96] * np.float32(1e-12), np.abs(x[:96]) + 1, np.full(96, 3), np.arange(-95, 97, 2), tiny, ends])
    kept = fastq.Convention("kept", stored_type="float16", codes_by="unrounded")
    offsets = dataclasses.replace(rows["mlx"], name="kept offsets", stored_type="float16")
    kept_rows = [(rows["nncf"], "int8", True), (kept, "int8", True)]
    for row, code, symmetric in (*kept_rows, (rows["mlx"], "uint4", False), (offsets, "uint4", False)):
        if row.name in wanted:
            options = {"axis": 0, "symmetric": symmetric, "convention": row}
            for y in (near.astype(np.float32), near.clip(-9e3, 9e3).astype(np.float16)):
                same_quantized(*both("quantize", y, code, **options))
                same_bytes(*both("fake_quantize", y, code, **options))
    if "hqq" in wanted:
        for size in (1, 1e-2, 4e-4, 5e-5):
            y = np.abs(x).reshape(1, -1) * np.float32(size) / np.abs(x).max()
            for each in np.array_split(y[0, :960].reshape(10, 96), 2):
                same_quantized(*both("quantize", each, "uint4", axis=0, convention="hqq"))
    least = dataclasses.replace(rows["ai-edge"], name="least range", range_floor=0.5)
    for row, code in (
        (least, "int8"),
        (rows["ai-edge"], "int4"),
        (rows["coremltools"], "uint8"),
        (rows["qwix"], "int8"),
    ):
        for symmetric in (False, True) if row.name in wanted else ():
            options = {"axis": 1, "block_size": 32, "symmetric": symmetric, "convention": row}
            same_quantized(*both("quantize", near.clip(-9e3, 9e3).astype(np.float32), code, **options))
    if "kept" in wanted:
        refused(lambda: fastq.quantize(np.float32([1e7, -1e8]), "int8", symmetric=True, convention=kept))


def scales_of_blocks(*cases):
    """Cases of tests/formats/test_block_rules.py, float32 unless a dtype is named; and blocks that are infinite."""
    import test_block_rules as tests

    for case in cases:
        if case == "infinity":
            refused(lambda: fastq.quantize(np.full(32, np.inf, np.float32), "nvfp4", convention="mlx-float"))
            continue
        name, _, dtype = case.partition(", ")
        tests.test_codes_scales_and_values(name, dtype or "float32")


def requantizations(*conventions):
    import test_requantize as tests

    for convention in conventions:
        tests.test_one_multiplier(convention, "int16")
        tests.test_channels(convention, 2)
        too_large = 2.0**31 if convention != "torch" else 1e300
        refused(lambda row=convention, size=too_large: fastq.requantize(tests.ACC, size, 0, "int8", convention=row))
    if "torch" in conventions:
        tests.test_a_bias_that_is_a_float_is_added_in_float32()


def bits():
    """Bits that are kept, of numbers next to powers of two and ten too, and bits of neighbours."""
    rng = np.random.default_rng(0)
    known = np.concatenate([np.float32(10.0) ** np.arange(-30, 30), np.ldexp(np.float32(1), np.arange(-149, 120))])
    near = np.concatenate([known.view(np.int32) + step for step in range(-2, 3)])
    x = np.concatenate([near, rng.integers(-(2**31), 2**31, 4000, dtype=np.int32)]).view(np.float32)
    for convention in ("numcodecs", "netcdf"):
        for options in ({"keepbits": 0}, {"keepbits": 9}, {"keepbits": 23}, {"digits": 1}, {"digits": 5}):
            same_bytes(*both("bitround", x, convention=convention, **options))
    same_bytes(*(found.counts for found in both("bit_information", x)))


def at_random():
    import test_casts as casts
    import test_stochastic as tests

    for code, where in itertools.product(("int8", "float8_e4m3fn"), ({}, {"axis": 0})):
        tests.test_fast_equals_reference(code, where)
    tests.test_values_beyond_saturate("int16")
    tests.test_places_beyond_a_word()
    casts.test_patterns_around_ties_are_cast_as_by_ml_dtypes_and_numpy("bfloat16", "float32")
    casts.test_fast_equals_reference("bfloat16", "float32", 96)
    casts.test_the_least_number_that_goes_up("bfloat16")


def searches():
    from test_range_search import check

    x = np.random.default_rng(0).standard_t(3, (9, 5019)).astype(np.float32)
    short = x[:, :603].reshape(-1, 9)
    four = fastq.MSERange(grid=4, shrink=0.8, grow=0)  # which share a register
    few = np.repeat(np.array([[-9, 0, 1, 2, 9]], np.float32), 40, axis=0)
    many = fastq.MSERange(grid=100, shrink=0.79, grow=0)  # in several groups
    for options in ({"axis": 0}, {}, {"axis": 1, "block_size": 40}):
        for y, method, bits in itertools.product((x, short, few), ("mse", many, four), (3, 4)):
            check(y, "int8", range=method, **options, bits=bits)
    weighed, weights = x[:, :5016].copy(), np.random.default_rng(1).random(5016) ** 4
    weights[:40] *= 1e4  # whatever lies behind the weights in memory, it is noticed where it takes the place of these
    for options in ({"axis": 0}, {}):
        # fastq computes first: behind the weights there must not be an earlier copy of them
        given = {"range": "mse", "importance": weights} | options
        same_bytes(*(p.scale for p in both("choose_qparams", weighed, "int4", **given)))
    apart = fastq.MSERange(grid=8, shrink=0.5, grow=0.1)
    check(x[:, :80], "uint8", axis=0, range=apart, convention="sentence-transformers")
    signed = {"convention": "compressed-tensors", "symmetric": True}
    check(x[:, :80], "int4", axis=1, block_size=40, range="mse", **signed)
    # the first 21 candidates, in two groups, have errors of the same sum
    ends = fastq.MSERange(grid=40, shrink=0.9, grow=0, norm=1)
    check(np.array([1, 0.5], np.float32), "int2", symmetric=True, range=ends)


def unpacking():
    """Integers by the attributes of CF, in registers and in what is left."""
    codes = np.arange(-150, 151, dtype=np.int16)
    for scale, offset in ((np.float32(0.1), np.float32(3.7)), (0.1, 3.7)):
        for dtype, gaps in itertools.product((None, "float32"), ((), 5, (5, -7))):
            given = {"fill_value": gaps, "dtype": dtype}
            found = fastq.xarray.unpack_array(codes, scale, offset, **given)
            same_bytes(found, unpack_array(codes, scale, offset, **given))


def streamed():
    """Whatever the size goes past the cache, at several places next to the start of a line."""

    from test_past_the_cache import in_between, untouched

    row = dataclasses.replace(tuning.current(), stream_codes=True, stream_from=1, stream_run=1)
    whole = values("float32", 21 * 192, 8)
    for staged_run, shape in itertools.product((0, 1 << 40), ((20, 96), (20, 192), (20, 160))):
        tuning.current = lambda run=staged_run: dataclasses.replace(row, staged_run=run)
        plans.clear()
        x = whole[: shape[0] * shape[1]].reshape(shape)
        for offset, where in itertools.product((64, 69, 80), ({}, {"axis": 1}, {"axis": -1, "block_size": 32})):
            options = where | {"symmetric": True}
            expected = reference.quantize(x, "int8", **options)
            out, before_and_behind = in_between(np.int8, shape, offset)
            same_quantized(fastq.quantize(x, "int8", **options, out=out), expected)
            assert untouched(before_and_behind), "different: next to codes"
            out, before_and_behind = in_between(np.float32, shape, offset)
            same_bytes(expected.dequantize(out=out), reference.dequantize(expected))
            assert untouched(before_and_behind), "different: next to values"
    x[13, 77] = np.nan  # its row ends with a line, or five codes later
    for scale, offset in itertools.product((0.1, np.full(160, 0.1, np.float32)), (0, 5)):
        out, _ = in_between(np.int8, shape, offset)
        refused(lambda scale=scale, out=out: fastq.quantize_linear(x, scale, dtype="int8", axis=1, out=out))


def refused(call):
    """The message of the error that a call has to raise."""
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("different: it is accepted")


def errors():
    p = fastq.QParams(np.float32(0.5), np.int8(3), "int8")
    alone = np.ones((98, 16))  # zeros and others of the same register would be a reason to look at it
    alone[:, 7] = np.add.outer([-131, 124], np.linspace(-3, 3, 49)).reshape(-1) / 2
    x = np.concatenate([alone.reshape(-1), values("float32", 211), np.zeros(5)]).astype(np.float32)
    q = reference.quantize(x, qparams=p)
    same_measures(*both("compare", x, q))


def tables():
    x = values("float32", 64 * 64).reshape(64, 64).clip(-1e4, 1e4)
    x[:8] = np.resize(np.array(CODEBOOKS["fp4"].thresholds, np.float32), (8, 64))
    x[:8, 0], x[8] = 1, 0
    x[9:40] = x[0] * np.random.default_rng(0).uniform(1, 2, (31, 1)).astype(np.float32)
    actual, expected = both("quantize", x, "fp4", axis=-1, block_size=64)
    same_quantized(actual, expected)
    same_bytes(actual.dequantize(), reference.dequantize(expected))


def blocks32(*names):
    from gguf_blocks import oracle
    from test_gguf import blocks_of_all_kinds

    row = dataclasses.replace(tuning.current(), stream_codes=True, stream_from=1)
    tuning.current = lambda: row
    for name in names:
        x = blocks_of_all_kinds()[5:]
        x[7] = np.where(np.arange(32) == 0, 127, np.nextafter(np.float32(0.5), np.float32(0)))
        expected = oracle("quantize", x, name)
        same_bytes(fastq.gguf.quantize(x, name), expected)
        out = np.full(x.size + 64, 7, np.float32)[5:]
        found = fastq.gguf.dequantize(expected, name, out=out[: x.size].reshape(x.shape))
        same_bytes(found, oracle("dequantize", expected, name))
        x[-3, 7] = np.nan
        message = refused(lambda x=x, name=name: fastq.gguf.quantize(x, name))
        assert message.startswith(f"row {len(x) - 3} "), f"different: {message}"


def checked(module, *checks):
    """An oracle that calls checks of a file of tests, each with each argument."""

    def oracle(*cases):
        tests = importlib.import_module(module)
        for case in cases:
            for name, *first in checks:
                getattr(tests, name)(*first, case)

    return oracle


blocks = checked("test_gguf_formats", ("check_digests", fastq.gguf))
block_rules = checked("test_gguf_formats", ("check_digests", reference.gguf))
importance = checked(
    "test_gguf_formats", ("check_large_importance", fastq.gguf), ("check_large_importance", reference.gguf)
)
tiny_numbers = checked("test_gguf_formats", ("check_tiny_numbers", fastq.gguf), ("check_tiny_numbers", reference.gguf))
grids = checked("test_gguf_formats", ("check_values", fastq.gguf), ("check_values", reference.gguf))
least_error = checked("test_gguf_least_error", ("check_kernel",))
least_error_rules = checked("test_gguf_least_error", ("check_never_worse",), ("check_gain",))


def large(*names):
    from test_past_the_cache import LARGE, check_large, check_large_gguf

    row = dataclasses.replace(tuning.current(), stream_codes=True)  # on some CPUs codes stay in the cache
    tuning.current = lambda: row
    for name in names:
        check_large("int8", name) if name in LARGE else check_large_gguf(name)


if __name__ == "__main__":
    folder, name, *arguments = sys.argv[1:]
    assert fastq.__file__.startswith(folder), fastq.__file__
    globals()[name](*arguments)
