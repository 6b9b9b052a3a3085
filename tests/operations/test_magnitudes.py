"""`fastq.magnitudes`: what a float format has to hold of an array."""

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes, values

import fastq
from fastq import reference

WHERE = [{}, {"axis": 0}, {"axis": 1}, {"axis": (0, 2)}, {"axis": 2, "block_size": 32}]


@pytest.mark.slow("compiles kernels for each dtype", quick=lambda dtype, where: dtype == np.float32)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("where", WHERE)
def test_magnitudes_are_those_of_the_reference(dtype, where, threads):
    # contract 1.7
    x = values("float32", 6 * 20 * 100, 3).reshape(6, 20, 100).clip(-1000, 1000)
    x[:, ::2, 1::3] = 0.0
    x[4] = 0.0
    x[5, 0, 0] = np.nan
    for laid in (x.astype(dtype), np.asfortranarray(x.astype(dtype))):
        expected = reference.magnitudes(laid, nan="zero", **where)
        for n in (1, 2):
            threads(n)
            for found, right in zip(fastq.magnitudes(laid, nan="zero", **where), expected, strict=True):
                same_bytes(found, right)


def test_labels_of_channels_are_kept():
    xarray = pytest.importorskip("xarray", reason="no xarray")
    x = xarray.DataArray(np.float32([[1.0, -4.0], [0.0, 0.5]]), dims=("c", "n"), coords={"c": ["a", "b"]})
    smallest, largest = fastq.magnitudes(x, axis=0)
    assert smallest.to_dict()["data"] == [1.0, 0.5]
    assert largest.sel(c="a") == 4.0


@pytest.mark.parametrize("api", [fastq, reference])
def test_what_has_no_magnitude_but_0_is_refused_or_0(api):
    # contract 1.7
    for x in (np.ones(3, np.int8), np.ones(3, bool), np.array(["1"])):
        with pytest.raises(TypeError, match=f"x must be float16, bfloat16, float32 or float64, not {x.dtype}"):
            api.magnitudes(x)
    with pytest.raises(ValueError, match="x has 1 NaN"):
        api.magnitudes(np.array([np.nan, 1.0]))
    assert [end.item() for end in api.magnitudes(np.array([np.nan, -0.0]), nan="zero")] == [0.0, 0.0]
    assert [end.item() for end in api.magnitudes(np.array([-np.inf, 2.0]))] == [2.0, np.inf]
