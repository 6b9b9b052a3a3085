"""`fastq.magnitudes`: the smallest magnitude but 0, and the largest; what a float format has to hold of an array."""

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes, values

import fastq
from fastq import reference
from fastq.kernels.args import MagnitudeOperands, MinMaxOperands
from fastq.plan.kernel_call import kernel_address

CUBE = 6, 20, 100
OF_CUBES = {}, {"axis": 0}, {"axis": 1}, {"axis": (0, 2)}, {"axis": 2, "block_size": 32}
PLACES = {  # by the traversal that takes them; cubes have NaN
    "runs": ((7, 1000), {"axis": 0}),
    "one run": ((1 << 18,), {}),
    "short runs": ((70, 5), {"axis": 0}),
    "columns": ((37, 100), {"axis": 1}),
    "rows as one": ((4096, 3), {"axis": 1}),
    "wide rows": ((3, 5000), {"axis": 1}),
} | {str(each): (CUBE, each) for each in OF_CUBES}


def by_numpy(x, axis=()):
    size = np.abs(np.nan_to_num(x.astype(np.float64)))
    kept = tuple(k for k in range(x.ndim) if k not in np.atleast_1d(axis))
    least = np.where(size > 0, size, np.inf).min(axis=kept)
    return np.where(least < np.inf, least, 0), size.max(axis=kept)


@pytest.mark.slow("compiles kernels for each dtype", quick=lambda dtype, name: dtype == np.float32)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("name", PLACES)
def test_magnitudes_are_those_of_the_reference(dtype, name, threads):
    # contract 1.7
    shape, where = PLACES[name]
    x = values("float32", int(np.prod(shape)), 5).reshape(shape).clip(-1000, 1000)
    x[..., ::3], x[..., 1::7] = 0.0, -0.0
    if shape == CUBE:
        x[4], x[5, 0, 0] = 0.0, np.nan
    options, x = where | {"nan": "zero" if shape == CUBE else "raise"}, x.astype(dtype)
    for laid in (x, np.asfortranarray(x), x[..., ::-1]):
        expected = reference.magnitudes(laid, **options)
        if "block_size" not in where:
            for found, right in zip(expected, by_numpy(laid, **where), strict=True):
                same_bytes(np.asarray(found, np.float64), np.asarray(right))
        for n in (1, 2, 4):
            threads(n)
            for found, right in zip(fastq.magnitudes(laid, **options), expected, strict=True):
                same_bytes(found, right)


@pytest.mark.parametrize("name", [name for name, (shape, _) in PLACES.items() if shape != CUBE])
def test_nan_is_refused_or_has_no_magnitude(name):
    shape, where = PLACES[name]
    x = np.full(shape, -2.0, np.float32)
    x.reshape(-1)[-1] = np.nan
    with pytest.raises(ValueError, match="x has 1 NaN"):
        fastq.magnitudes(x, **where)
    lo, hi = fastq.magnitudes(x, nan="zero", **where)
    assert (lo.min(), hi.max()) == (2.0, 2.0)


def test_operands_of_the_same_dtypes_have_kernels_of_their_own():
    """Named tuples are equal whatever their classes are."""
    dtypes = (np.dtype(np.float32),) * 3
    first, second = (
        kernel_address("traversal.runs.runs", kind(*dtypes), "minmax") for kind in (MinMaxOperands, MagnitudeOperands)
    )
    assert first != second


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
