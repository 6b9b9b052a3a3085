"""What `fastq.xarray.unpack_array` gives, by its words in plain NumPy."""

import numpy as np


def plainly(codes, computed, values, scale, offset, gaps):
    """Return ``codes * scale + offset`` computed in one dtype and rounded to another, NaN for gaps."""
    kind = np.dtype(computed).type
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = np.asarray(codes.astype(computed) * kind(scale) + kind(offset))
        return np.where(np.isin(codes, gaps), np.nan, result).astype(values)


def unpack_array(codes, scale_factor=1.0, add_offset=0.0, *, fill_value=(), dtype=None):
    """Do the same from the arguments of the function, which are right."""
    codes, kinds = np.asarray(codes), {getattr(each, "dtype", None) for each in (scale_factor, add_offset)}
    single = np.dtype(np.float32) in kinds and np.dtype(np.float64) not in kinds and codes.itemsize < 4
    values = np.dtype(dtype or ("f4" if single else "f8"))
    computed = "f4" if single and values == "f4" else "f8"
    return plainly(codes, computed, values, scale_factor, add_offset, np.ravel(fill_value))
