"""Arrays with masks as libraries make them: of NumPy, and stand-ins for those of netCDF4, astropy and pint."""

import collections

import numpy as np

GAP = -9999  # what lies below a mask


class OfArray:
    """An object whose `__array__` gives a masked array, as a netCDF4.Variable does."""

    mask = True  # of a netCDF4.Variable, this says that it makes masked arrays

    def __init__(self, values):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def __array__(self, dtype=None, copy=None):
        return self.values


class OfLibrary(np.ndarray):
    """A subclass with a mask that is not NumPy's, as Masked of astropy."""

    mask = None

    def __array_finalize__(self, other):
        self.mask = getattr(other, "mask", None)

    def filled(self, value):
        return np.where(self.mask, value, self.view(np.ndarray))


class Holder:
    """An object with a mask whose `__array__` gives the numbers alone, as a Quantity of pint does."""

    def __init__(self, values):
        self.held, self.mask, self.shape = values, values.mask, values.shape

    def __array__(self, dtype=None, copy=None):
        return self.held.data


def masked_array(values):
    """A masked array with these values, the first of which is missing."""
    values = np.array(values)
    mask = np.zeros(values.shape, bool)
    mask.flat[:1] = True
    masked = np.ma.MaskedArray(values, mask)
    with np.errstate(all="ignore"):
        masked.data.flat[:1] = np.array(GAP).astype(values.dtype)
    return masked


def of_library(masked):
    made = masked.data.view(OfLibrary)
    made.mask = masked.mask
    return made


# what makes an array with a mask of a masked array of NumPy; sequences need an axis
KINDS = {
    "of NumPy": lambda masked: masked,
    "without a missing element": lambda masked: np.ma.MaskedArray(masked.data),
    "__array__": OfArray,
    "subclass": of_library,
    "holder": Holder,
}
SEQUENCES = {
    "list": list,
    "tuple": tuple,
    "deque": collections.deque,
    "list of __array__": lambda masked: [OfArray(masked[k : k + 1][0:1]) for k in range(len(masked))],
    "list of holders": lambda masked: [Holder(np.ma.atleast_1d(each)) for each in masked],
    "list in a list": lambda masked: [list(masked)],
    "masked in the list of numbers": lambda masked: [np.ma.masked, *masked.data.tolist()],
}
