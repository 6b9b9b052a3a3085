"""Masks of chunks: refused when the graph is made if dask knows of them, else when the chunk is computed."""

import re

import dask
import dask.array as da
import numpy as np
import pytest
import xarray
from masked import KINDS, masked_array

import fastq
from fastq import reference

X = np.linspace(-3, 3, 64, dtype=np.float32).reshape(8, 8)
Q = reference.quantize(X, "int8", axis=0)
SUMS = np.arange(64, dtype=np.int32).reshape(8, 8)


def known(values):
    """A dask array whose chunks are known to be masked."""
    return da.from_array(np.ma.MaskedArray(values, values == values.flat[0]), chunks=4)


def unknown(values, kind="of NumPy"):
    """A dask array with chunks that turn out to have a mask."""

    def of_chunk(chunk):
        return KINDS[kind](masked_array(chunk))

    return da.from_array(values, chunks=4).map_blocks(of_chunk, dtype=values.dtype, meta=np.empty((0, 0), values.dtype))


def plain(values):
    return da.from_array(values, chunks=4)


def parts_of(found):
    """What to compute of a result."""
    return found.codes if isinstance(found, fastq.QuantizedArray) else found.scale if hasattr(found, "scale") else found


P = Q.qparams
WEIGHED = {"axis": 0, "range": "mse"}
# a call for each operand of each operation that works by chunks, given what makes the array with a mask
CALLS = {
    "quantize x": lambda of: fastq.quantize(of(X), "int8", axis=0),
    "quantize x, one scale": lambda of: fastq.quantize(of(X), "int8"),
    "quantize x, in blocks": lambda of: fastq.quantize(of(X), "int8", axis=1, block_size=4),
    "quantize x, qparams": lambda of: fastq.quantize(of(X), qparams=P),
    "quantize importance": lambda of: fastq.quantize(plain(X).rechunk((4, -1)), "int8", importance=of(X), **WEIGHED),
    "choose_qparams x": lambda of: fastq.choose_qparams(of(X), "int8", axis=0),
    "fake_quantize x": lambda of: fastq.fake_quantize(of(X), "int8", axis=0),
    "fake_quantize x, qparams": lambda of: fastq.fake_quantize(of(X), qparams=P),
    "quantize_linear x": lambda of: fastq.quantize_linear(of(X), 0.5, 0, "int8"),
    "quantize_linear scale": lambda of: fastq.quantize_linear(plain(X), of(X * X + 1), 0, "int8"),
    "quantize_linear zero_point": lambda of: fastq.quantize_linear(plain(X), X * X + 1, of(Q.codes), "int8"),
    "dequantize_linear codes": lambda of: fastq.dequantize_linear(of(Q.codes), 0.5),
    "dequantize_linear scale": lambda of: fastq.dequantize_linear(plain(Q.codes), of(X * X + 1)),
    "requantize acc": lambda of: fastq.requantize(of(SUMS), 0.5, 0, "int8"),
    "requantize multiplier": lambda of: fastq.requantize(plain(SUMS), of(X * X + 1), 0, "int8", axis=(0, 1)),
    "minmax x": lambda of: fastq.minmax(of(X), axis=0)[0],
    "bitround x": lambda of: fastq.bitround(of(X), keepbits=3),
    "bitround x, max_error": lambda of: fastq.bitround(of(X), max_error=0.1),
    "bit_information x": lambda of: fastq.bit_information(of(X)),
    "compare x": lambda of: fastq.compare(of(X), plain(X)),
    "compare q": lambda of: fastq.compare(plain(X), of(X)),
    "compare x with codes": lambda of: fastq.compare(of(X), Q),
    "compare codes": lambda of: fastq.compare(plain(X), fastq.dask.QuantizedArray(of(Q.codes), P, X.shape)),
    "dequantize codes": lambda of: fastq.dask.QuantizedArray(of(Q.codes), P, X.shape).dequantize(),
    "QParams scale": lambda of: fastq.dask.QParams(of(X * X + 1), 0, "int8", axis=(0, 1)).compute(),
    "calibrate x": lambda of: fastq.dask.calibrate(of(X), "int8", axis=0),
    "xarray.pack ds": lambda of: fastq.xarray.pack(dataset(of(X))).t.data,
    "xarray.bitround ds": lambda of: fastq.xarray.bitround(dataset(of(X)), keepbits=3).t.data,
    "xarray.bitround ds, max_error": lambda of: fastq.xarray.bitround(dataset(of(X)), max_error=0.1).t.data,
    "xarray.bitround ds, information": lambda of: fastq.xarray.bitround(dataset(of(X)), information=0.9).t.data,
    "DataArray": lambda of: fastq.quantize(xarray.DataArray(of(X)), "int8").codes.data,
}


def dataset(values):
    return xarray.Dataset({"t": (("a", "b"), values)})


# calls on arrays of xarray, which itself makes NaN of what it knows to be missing
OF_XARRAY = [name for name in CALLS if name.startswith("xarray") or name == "DataArray"]


@pytest.mark.parametrize("name", [name for name in CALLS if name not in OF_XARRAY])
def test_known_to_dask(name):
    # contract 1.3
    if "importance" not in name and name != "QParams scale":
        CALLS[name](plain)  # which is how it works otherwise
    with pytest.raises(TypeError, match=r"whose masks? would be lost"):
        CALLS[name](known)


# calls for which dask itself joins chunks, which it can do with masked arrays of NumPy
JOINED = "quantize importance", "QParams scale"


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in CALLS for kind in KINDS if kind == "of NumPy" or name not in JOINED]
)
def test_found_when_computed(name, kind):
    with pytest.raises(TypeError, match=r"whose masks? would be lost"):
        dask.compute(parts_of(CALLS[name](lambda values: unknown(values, kind))), scheduler="sync")


@pytest.mark.parametrize("made", [known, unknown])
def test_advice_works(made):
    x = made(X)
    with pytest.raises(TypeError) as raised:
        dask.compute(fastq.minmax(x), scheduler="sync")
    filled = re.search(r"pass (.*)$", str(raised.value))[1]
    lo, _ = dask.compute(fastq.minmax(eval(filled, {"dask": dask, "x": x, "value": -77.0})), scheduler="sync")[0]
    assert lo == -77
