"""Equal calls on dask arrays have equal names, in any process; calls that differ, and those at random, do not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import fastq
from fastq import reference

X = da.from_array(np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32), chunks=(4, 32))
SUMS = da.from_array(np.arange(512, dtype=np.int32).reshape(8, 64), chunks=(4, 32))
Q = reference.quantize(np.ones((8, 64), np.float32), "int8", axis=0)
CODES = da.from_array(Q.codes, chunks=(4, 32))
NVFP4 = reference.choose_qparams(np.ones((8, 64), np.float32), "nvfp4", axis=1)


def calls():
    """A lazy result of each function, by what is asked for."""
    from fastq import dask

    whole = X.rechunk(-1)
    return {
        "quantize": dask.quantize(X, "int8").codes,
        "quantize, rows": dask.quantize(X, "int8", axis=0).codes,
        "quantize, uint8": dask.quantize(X, "uint8").codes,
        "quantize, blocks": dask.quantize(X, "int4", axis=1, block_size=16).codes,
        "quantize, symmetric": dask.quantize(X, "int8", symmetric=True).codes,
        "quantize, torch": dask.quantize(X, "int8", convention="torch").codes,
        "quantize, mse": dask.quantize(whole, "int8", range="mse").codes,
        "quantize, a range": dask.quantize(whole, "int8", range=fastq.MSERange(grid=9)).codes,
        "quantize, importance": dask.quantize(whole, "int8", range="mse", importance=np.ones(64)).codes,
        "quantize, NaN": dask.quantize(X, "int8", nan="zero").codes,
        "quantize, nvfp4": dask.quantize(whole, "nvfp4", axis=1).codes,
        "quantize, qparams": dask.quantize(X, qparams=Q.qparams).codes,
        "quantize, qparams of nvfp4": dask.quantize(X, qparams=NVFP4).codes,
        "quantize, rng=3": dask.quantize(X, "int8", rounding="stochastic", rng=3).codes,
        "quantize, rng=4": dask.quantize(X, "int8", rounding="stochastic", rng=4).codes,
        "fake_quantize": dask.fake_quantize(X, "int8"),
        "choose_qparams, scale": dask.choose_qparams(X, "int8").scale,
        "choose_qparams, zero point": dask.choose_qparams(X, "int8").zero_point,
        "quantize_linear": dask.quantize_linear(X, 0.5, 3, dtype="int8"),
        "quantize_linear, rows": dask.quantize_linear(X, Q.scale, axis=0, dtype="int8"),
        "dequantize_linear": dask.dequantize_linear(CODES, 0.5, 3),
        "dequantize": dask.QuantizedArray(CODES, Q.qparams, Q.shape).dequantize(),
        "minmax": dask.minmax(X)[0],
        "requantize": dask.requantize(SUMS, 0.5, 1, "int8"),
        "compare": dask.compare(X, Q),
        "compare, values": dask.compare(X, X),
        "calibrate": dask.calibrate(X, "int8"),
        "calibrate, rows": dask.calibrate(X, "int8", axis=0),
        "calibrate, bins": dask.calibrate(X, "int8", bins=64),
        "bitround": fastq.bitround(X, keepbits=3),
        "bitround, digits": fastq.bitround(X, digits=3),
    }


def names():
    """The name of each result: of arrays, and of values that are not."""
    return {call: each.name if isinstance(each, da.Array) else each.key for call, each in calls().items()}


def test_equal_calls_have_equal_names_and_others_have_others():
    first = names()
    assert first == names()
    assert len({*first.values()}) == len(first)


@pytest.mark.parametrize("junk", [1, 254])
def test_names_depend_on_no_process(junk):
    """Nor on what is in memory that nobody wrote to, with which glibc fills it here."""
    code = "import json, test_names; print(json.dumps(test_names.names()))"
    environment = {**os.environ, "MALLOC_PERTURB_": str(junk), "PYTHONHASHSEED": str(junk)}
    folder = Path(__file__).parent
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    assert json.loads(found.stdout) == names()


def test_calls_at_random_are_never_the_same():
    from fastq import dask

    found = {dask.quantize(X, "int8", rounding="stochastic").codes.name for _ in range(3)}
    assert len(found) == 3
