"""Arrays of real libraries that know of missing elements or units: nothing becomes a number that nobody gave."""

import re

import numpy as np
import pytest

import fastq
from fastq.system.arrays_of_callers import as_array

X = np.linspace(1, 8, 8, dtype=np.float32).reshape(2, 4)
MASK = X > 6
GAP = -9999.0
BELOW = np.where(MASK, np.float32(GAP), X)  # what lies below the mask
MASKED = np.ma.MaskedArray(BELOW, MASK)


def refused(x):
    """Take what the refusal of an array says to pass instead."""
    with pytest.raises(TypeError, match="masked array, whose mask would be lost") as raised:
        fastq.minmax(x)
    for call in (lambda: fastq.quantize(x, "int8"), lambda: fastq.compare(X, x), lambda: fastq.bitround(x, keepbits=3)):
        with pytest.raises(TypeError, match="masked array, whose mask would be lost"):
            call()
    filled = re.search(r"pass (.*), or numpy", str(raised.value))[1]
    return eval(filled, {"numpy": np, "x": x, "value": 77.0})


def same_with(filled, name="x"):
    np.testing.assert_array_equal(as_array(filled, name), MASKED.filled(77.0))


def test_variables_of_netcdf4(tmp_path):
    netcdf4 = pytest.importorskip("netCDF4", reason="no netCDF4")
    with netcdf4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("y", 2)
        file.createDimension("x", 4)
        variable = file.createVariable("t", "f4", ("y", "x"), fill_value=GAP)
        variable[:] = MASKED
        same_with(refused(variable))
        variable.set_auto_mask(False)  # as a user asks for the numbers in the file
        assert fastq.minmax(variable)[0] == GAP


@pytest.mark.filterwarnings("ignore:The unit of the quantity is stripped")
def test_quantities_of_pint():
    pint = pytest.importorskip("pint", reason="no pint, which no extra installs")
    quantity = pint.UnitRegistry().Quantity
    same_with(refused(quantity(MASKED, "K")))
    refused([quantity(row, "K") for row in MASKED][:1])
    assert fastq.minmax(quantity(X, "K"))[1] == 8


def test_quantities_of_pint_tell_their_unit_once():
    pint = pytest.importorskip("pint", reason="no pint, which no extra installs")
    with pytest.warns(pint.UnitStrippedWarning) as told:
        fastq.minmax(pint.UnitRegistry().Quantity(X, "K"))
    assert len(told) == 1


def test_masked_of_astropy():
    masked = pytest.importorskip("astropy.utils.masked", reason="no astropy, which no extra installs").Masked
    units = pytest.importorskip("astropy.units")
    nddata = pytest.importorskip("astropy.nddata")
    same_with(refused(masked(BELOW, mask=MASK)))
    refused([masked(row, mask=gaps) for row, gaps in zip(BELOW, MASK, strict=True)][1:])
    same_with(refused(nddata.CCDData(BELOW, mask=MASK, unit="adu")))
    with pytest.warns(UserWarning, match="^x has the unit K, which results will not have"):
        assert fastq.minmax(X * units.K)[1] == 8
    with pytest.warns(UserWarning, match="^x has the unit adu, which results will not have"):
        assert fastq.minmax(nddata.CCDData(X, unit="adu"))[1] == 8
    assert fastq.minmax(X * units.dimensionless_unscaled)[1] == 8
    with pytest.raises(TypeError, match="out must be an ndarray, not MaskedNDArray"):
        fastq.fake_quantize(X, "int8", out=masked(BELOW.copy(), mask=MASK))


def test_arrays_of_unyt():
    unyt = pytest.importorskip("unyt", reason="no unyt, which no extra installs")
    with pytest.warns(UserWarning, match="^x has the unit K, which results will not have"):
        assert fastq.minmax(unyt.unyt_array(X, "K"))[1] == 8
    assert fastq.minmax(unyt.unyt_array(X, "dimensionless"))[1] == 8


def nulls_of_pandas():
    pandas = pytest.importorskip("pandas", reason="no pandas")
    yield from (pandas.array([1, None, 3], dtype=dtype) for dtype in ("Int64", "UInt8", "Float32", "Float64"))
    yield from (pandas.Series([1, None, 3], dtype=dtype) for dtype in ("Int64", "Float32", "category"))
    yield pandas.DataFrame({"a": pandas.array([1, None], dtype="Int32")})
    yield pandas.arrays.SparseArray([0, 0, np.nan])


def nulls_of_pyarrow():
    pyarrow = pytest.importorskip("pyarrow", reason="no pyarrow, which at 55 MB no extra installs")
    yield from (pyarrow.array([1, None, 3], dtype) for dtype in (pyarrow.int64(), pyarrow.uint8(), pyarrow.float32()))
    yield pyarrow.array([1, None, 3]).dictionary_encode()
    yield pyarrow.chunked_array([[1, None], [3]])
    yield pyarrow.table({"a": [1, None]})
    yield pyarrow.array([[1, None], [3, 4]], pyarrow.list_(pyarrow.int32(), 2))


def nulls_of_polars():
    polars = pytest.importorskip("polars", reason="no polars, which no extra installs")
    yield from (polars.Series([1, None, 3], dtype=dtype) for dtype in (polars.Int64, polars.UInt8, polars.Float32))
    yield polars.DataFrame({"a": [1, None], "b": [1.0, 2.0]})
    yield polars.Series([[1, None], [3, 4]], dtype=polars.Array(polars.Int32, 2))


def nulls_of_torch():
    torch = pytest.importorskip("torch", reason="no torch")
    yield torch.masked.masked_tensor(torch.from_numpy(BELOW.copy()), torch.from_numpy(~MASK))


@pytest.mark.filterwarnings("ignore:.*MaskedTensor", "ignore:is_pinned is not implemented")
@pytest.mark.parametrize("nulls", [nulls_of_pandas, nulls_of_pyarrow, nulls_of_polars, nulls_of_torch])
def test_nulls_are_no_numbers(nulls):
    """They are NaN by a library's own conversion, which is refused like any other NaN, or no numbers at all."""
    for x in nulls():
        with pytest.raises((TypeError, ValueError), match=r"x has \d NaN|x must be an (array|object)"):
            fastq.minmax(x)
        with pytest.raises((TypeError, ValueError), match=r"x has \d NaN|x must be an (array|object)"):
            fastq.quantize(x, "int8")
