"""The compiled driver: what it assumes of objects is checked, and it launches nothing on operands that do not fit."""

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from subprocesses import run as run_python

import fastq
from fastq.engine.runtime import boundary, driver, shared_records, threadpool
from fastq.engine.runtime.driver import UNFIT, VALUES, Checks, bind, plan_launch
from fastq.plan.call_modes import in_own_thread

# where compiled code reads


def test_fields_are_where_they_are_read():
    boundary.check_abi()


@pytest.mark.parametrize(
    ("name", "offset"), [("TYPE", -1), ("TYPE", 1), ("VALUE", -1), ("DATA", 1), ("DATA", 2), ("DATA", -1)]
)
def test_fields_that_are_elsewhere_are_refused(monkeypatch, name, offset):
    monkeypatch.setattr(boundary, name, getattr(boundary, name) + offset)
    boundary.keeps_value.cache_clear()
    with pytest.raises(ImportError, match="which this build keeps elsewhere"):
        boundary.check_abi()
    boundary.keeps_value.cache_clear()


@pytest.mark.parametrize(("name", "value"), [("byteorder", "big"), ("implementation", type("", (), {"name": "pypy"}))])
def test_other_machines_and_implementations_are_refused(monkeypatch, name, value):
    monkeypatch.setattr(boundary.sys, name, value)
    with pytest.raises(ImportError, match="keeps elsewhere"):
        boundary.check_abi()


def test_the_import_fails_where_fields_are_elsewhere(tmp_path):
    """With another head of objects the first call raises, and nothing is read."""
    source = Path(shared_records.__file__).read_text()
    assert source.count("DATA = VALUE\n") == 1
    code = f"""
    import importlib.util
    from pathlib import Path
    path = Path({str(tmp_path)!r}) / "shared_records.py"
    spec = importlib.util.spec_from_file_location("fastq.engine.runtime.shared_records", path)
    sys.modules["fastq.engine.runtime.shared_records"] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        import fastq.engine.runtime.boundary
    except ImportError as error:
        print(error)
    """
    (tmp_path / "shared_records.py").write_text(source.replace("DATA = VALUE\n", "DATA = VALUE + 1\n"))
    assert "fastq reads the fields of Python and NumPy objects" in run_python(code)


def test_free_threaded_builds_are_refused_by_name():
    code = """
    for name in [name for name in sys.modules if name.split(".")[0] == "fastq"]:
        del sys.modules[name]
    sys.abiflags += "t"
    try:
        import fastq
    except ImportError as error:
        print(error)
    """
    assert "fastq can't run on a free-threaded build of Python" in run_python(code)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn", "bfloat16", "int4"])
def test_scalars_of_ml_dtypes_have_their_value_there_too(dtype):
    assert boundary.keeps_value(np.dtype(getattr(ml_dtypes, dtype)))


# operands

STATUS = 0
SIZE = 5


@pytest.fixture(scope="module")
def kernel():
    """Address of a kernel that does nothing."""
    import ctypes

    kept = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 11)(lambda *words: STATUS)
    yield ctypes.cast(kept, ctypes.c_void_p).value
    del kept  # it can be called until here


@pytest.fixture
def launch(kernel):
    """Return a function that makes one that returns the status of a call with given checks."""

    def make(**checks):
        scale, zero = (checks.get(name) for name in ("scale", "zero_point"))
        nbytes = 4 * SIZE, SIZE, scale.itemsize if scale else 0, zero.itemsize if zero else 0
        scalars = tuple(each and each.type for each in (scale, zero))
        bound = bind(plan_launch(kernel, VALUES, None, SIZE, 1), Checks(nbytes, scalars=scalars, **checks))
        return lambda scale=None, zero_point=None, x=X, out=OUT: bound(x, out, scale, zero_point)

    return make


X, OUT = np.ones(SIZE, np.float32), np.empty(SIZE, np.int8)
F4, F8, I1, U1, I2 = (np.dtype(name) for name in ("f4", "f8", "i1", "u1", "i2"))


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize("x", [X.view(Subclass), None, 1.0, 1, np.float32(1), [1.0], "x", np.ones(5, "f4").data])
def test_arrays_are_ndarrays(launch, x):
    call = launch()
    assert call() == 0
    assert call(x=x) == UNFIT
    assert call(out=x) == UNFIT


@pytest.mark.parametrize("dtype", [F4, F8])
@pytest.mark.parametrize("signed", [False, True])
def test_scales(launch, dtype, signed):
    call, kind = launch(scale=dtype, signed=signed), dtype.type
    tiny, largest = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    for value in (1, tiny, largest):
        for scale in (kind(value), np.array(value, dtype), float(value), np.float64(value)):
            assert call(scale) == 0
            assert call(-scale) == (0 if signed else UNFIT)
    for value in (0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf):
        for scale in (kind(value), np.array(value, dtype), value, np.float64(value)):
            assert call(scale) == UNFIT
    for wrong in (1, True, None, "1", [1.0], np.float16(1), np.int8(1), np.longdouble(1), np.array(1.0).view(Subclass)):
        assert call(wrong) == UNFIT
    assert call(np.float32(1)) == (0 if dtype == F4 else UNFIT)


def test_floats_that_become_no_float32(launch):
    call = launch(scale=F4)
    assert [call(value) for value in (3e38, 4e38, 1e-45, 1e-46)] == [0, UNFIT, 0, UNFIT]


@pytest.mark.parametrize("dtype", [F4, F8])
def test_zero_points_that_are_floats(launch, dtype):
    call, kind = launch(zero_point=dtype), dtype.type
    for value in (0.0, -0.0, 1.5, -1e30, np.finfo(dtype).smallest_subnormal):
        for zero_point in (kind(value), np.array(value, dtype), float(value), np.float64(value)):
            assert call(None, zero_point) == 0
    for value in (math.nan, -math.nan, math.inf, -math.inf):
        for zero_point in (kind(value), np.array(value, dtype), value, np.float64(value)):
            assert call(None, zero_point) == UNFIT
    for wrong in (1, True, None, np.int8(1), np.float16(1)):
        assert call(None, wrong) == UNFIT


@pytest.mark.parametrize(
    ("dtype", "codes"), [(I1, (-128, 127)), (I1, (-8, 7)), (U1, (0, 15)), (U1, (0, 255)), (I2, (-32768, 32767))]
)
def test_zero_points_that_are_codes(launch, dtype, codes):
    call, (least, most) = launch(zero_point=dtype, codes=codes), codes
    for value in {least, most, 0, most // 2}:
        for zero_point in (value, dtype.type(value), np.array(value, dtype)):
            assert call(None, zero_point) == 0
    for value in (least - 1, most + 1, 2**63, -(2**70)):
        assert call(None, value) == UNFIT
    info = np.iinfo(dtype)
    for value in (least - 1, most + 1):
        if info.min <= value <= info.max:
            assert call(None, dtype.type(value)) == UNFIT
            assert call(None, np.array(value, dtype)) == UNFIT
    for wrong in (0.0, True, None, np.int64(0), np.float32(0)):
        assert call(None, wrong) == UNFIT


@pytest.mark.parametrize(("start", "shares"), [(0, True), (19, True), (20, False), (100, False)])
def test_output_that_shares_memory(launch, start, shares):
    memory = np.zeros(200, np.uint8)
    x, out = memory[:20].view(np.float32), memory[start : start + SIZE].view(np.int8)
    assert launch()(x=x, out=out) == (UNFIT if shares else 0)


def test_results_of_calls_from_other_pools():
    assert in_own_thread(divmod, 17, 5) == (3, 2)


def test_what_is_launched_is_recorded():
    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    fastq.quantize_linear(x, 0.1, 0, "int8")
    with driver.recorded_kernels() as first:
        fastq.quantize_linear(x, 0.1, 0, "int8")
        with driver.recorded_kernels() as second:
            fastq.minmax(x)
        within = len(first)
        fastq.minmax(x[2:])
        assert len(first) > within
    counts = len(first), len(second)
    fastq.minmax(x[1:])
    assert (len(first), len(second)) == counts
    assert len(set(second)) >= 1
    assert set(first) > set(second)


def test_checks_leave_other_words_as_they_are(kernel):
    before = plan_launch(kernel, VALUES, None, SIZE, 1)
    after = bind(before, Checks((1, 2, 3, 4), F4, True, I1, (-8, 7), (np.float32, np.int8), (-5, -6))).plan
    fields = after.words[: driver.HEAD.itemsize // 8].view(driver.HEAD)[0]
    names = (
        "scale_size",
        "scale_flags",
        "scale_type",
        "zero_size",
        "zero_is_float",
        "least_zero",
        "most_zero",
        "zero_type",
    )
    assert fields["nbytes"].tolist() == [1, 2, 3, 4]
    assert [fields[name] for name in names] == [4, 1, id(np.float32), 1, 0, -8, 7, id(np.int8)]
    assert (fields["lowest_x"], fields["lowest_out"]) == (-5, -6)
    for name in ("launches", "array", "float", "double", "int", "nothing"):
        assert fields[name] == before.words[: driver.HEAD.itemsize // 8].view(driver.HEAD)[0][name]
    assert after.launches.tobytes() == before.launches.tobytes()
    assert threadpool.get_num_threads() >= 1
