"""Calibrate: ranges of data that arrives piece by piece, on one machine or many."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.formats.conventions.convention import Convention
from fastq.formats.conventions.table import as_convention
from fastq.formats.qtypes import QType
from fastq.ops import calibration_methods, calibrator_file, histogram
from fastq.ops.calibration_methods import CalibrationTarget
from fastq.ops.file_parts import as_path, as_path_to_write
from fastq.plan.cache import run_operation
from fastq.requests.quantization import compute_dtype
from fastq.results import Axis, Histogram, QParams
from fastq.system.arguments import as_choice, as_float, as_int, reason, shown
from fastq.system.arrays_of_callers import as_array
from fastq.system.attributes import Forwarded
from fastq.system.callers import warn_caller
from fastq.system.dtypes import Array

MOST_RANGES = 10_000
_ARGUMENTS = "dtype", "axis", "symmetric", "convention", "bins", "nan"


class Calibrator:
    """Ranges and histograms of data that arrives piece by piece, and the parameters for it.

    A calibrator keeps little and is exact: the result is the same to the bit however the data is split, and in whatever
    order and on whatever machines pieces are added and calibrators merged.

    Parameters
    ----------
    dtype : str, dtype or QType
        Code format, without blocks of its own.
    axis : int, tuple of int or None
        Channel axis or axes, as in `quantize`; each channel has a histogram of its own.
    symmetric : bool
        Whether there are as many codes below the zero point as above it.
    convention : str or Convention
        Whose arithmetic the parameters follow.
    bins : int, optional
        Number of histogram bins on either side of 0: a power of two from 16 to 2**20; by default 4096, or 1024 with an
        axis. They are narrow near 0 and wide further out. Each channel takes ``16 * bins`` bytes, so 4096 channels take
        64 MiB by default. While it runs, `update` needs two and a half times as much memory.
    nan : {"raise", "zero", "keep", "omit"}
        What to do with NaN: "raise" refuses it, "zero" treats it as 0.0, "keep" (for formats with a NaN) treats it as
        0.0 in ranges, and "omit" leaves it out, such as padding that is not data.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> calibrator = fastq.Calibrator("int8", symmetric=True)
    >>> for batch in np.linspace(-1, 3, 100, dtype=np.float32).reshape(10, 10):
    ...     calibrator.update(batch)
    >>> calibrator.count, calibrator.minimum, calibrator.maximum
    (array(100), array(-1., dtype=float32), array(3., dtype=float32))
    >>> calibrator.qparams().scale
    array(0.02362205, dtype=float32)
    """

    def __init__(
        self,
        dtype: str | QType | DTypeLike,
        *,
        axis: Axis = None,
        symmetric: bool = False,
        convention: str | Convention = "onnx",
        bins: int | None = None,
        nan: str = "raise",
    ) -> None:
        self._target: CalibrationTarget
        self._nan: str
        self._target, self._nan = calibration_methods.target_of(dtype, axis, symmetric, convention, nan)
        default = histogram.DEFAULT_BINS if self._target.axis is None else histogram.DEFAULT_BINS_OF_CHANNELS
        self._bins = default if bins is None else as_int(bins, "bins")
        is_power_of_two = self._bins & (self._bins - 1) == 0
        if not (histogram.LEAST_BINS <= self._bins <= histogram.MOST_BINS and is_power_of_two):
            ends = f"{histogram.LEAST_BINS} to {histogram.MOST_BINS}"
            raise ValueError(f"bins must be a power of two from {ends}, not {self._bins}")
        self._histogram: Histogram | None = None
        self._compute = np.dtype(np.float32)

    dtype = Forwarded[QType]("_target.dtype", "The code format.")
    axis = Forwarded[Axis]("_target.axis", "Channel axis or axes.")
    symmetric = Forwarded[bool](
        "_target.symmetric", "Whether there are as many codes below the zero point as above it."
    )
    convention = Forwarded[str | Convention]("_target.convention", "Whose arithmetic the parameters follow.")
    bins = Forwarded[int]("_bins", "Bins of a histogram on either side of 0.")
    nan = Forwarded[str]("_nan", "What becomes of NaN.")

    @property
    def count(self) -> NDArray[np.int64]:
        """The number of elements seen, for each channel."""
        return np.asarray(self._data.counts.sum(axis=-1))

    @property
    def minimum(self) -> Array:
        """The smallest element seen, for each channel, in the compute type."""
        return self._in_compute_type(self._data.lo)

    @property
    def maximum(self) -> Array:
        """The largest element seen, for each channel, in the compute type."""
        return self._in_compute_type(self._data.hi)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of elements in each bin: shape ``(*channels, 2 * bins)``."""
        return self._data.counts.copy()

    @property
    def edges(self) -> NDArray[np.float64]:
        """Edges of the bins: shape ``(*channels, 2 * bins + 1)``; a bin has its lower edge."""
        exponents = histogram.exponents(self._data)
        return np.asarray(histogram.edges_of(self._bins, exponents[..., None]))

    def _in_compute_type(self, ends: Array) -> Array:
        """Return minima or maxima, kept in float64, in the compute type, in which all of them are exact."""
        return np.asarray(calibration_methods.in_compute_type(ends, self._compute))

    @property
    def _data(self) -> Histogram:
        """The histograms of all channels; an error before the first `update`."""
        if self._histogram is None:
            raise ValueError("this Calibrator has no data yet: call update")
        return self._histogram

    def update(self, x: ArrayLike) -> None:
        """Add the elements of an array.

        Parameters
        ----------
        x : array_like
            Finite elements of dtype float16, bfloat16, float32, float64 or an integer dtype; with the same channels as
            earlier arrays.

        Raises
        ------
        TypeError, ValueError, AxisError
            If x is not as described, or has NaN that is refused; the calibrator is then unchanged.
        """
        x = as_array(x, "x")
        axis = self.axis
        nan = "zero" if self._nan == "keep" else self._nan
        new_histogram = run_operation(histogram.HISTOGRAM, x, options=(axis, self._bins, nan), types=(type(axis), int))
        self._add(new_histogram, compute_dtype(x.dtype), "x")

    def _add(self, new_histogram: Histogram, compute: np.dtype[Any], name: str) -> None:
        """Add histograms of an array, or of another calibrator, which errors call `name`."""
        data_so_far = self._histogram or histogram.empty(new_histogram.lo.shape, self._bins)
        if new_histogram.lo.shape != data_so_far.lo.shape:
            raise ValueError(
                f"{name} has channels of shape {new_histogram.lo.shape}, earlier arrays {data_so_far.lo.shape}"
            )
        self._histogram = histogram.merge(data_so_far, new_histogram)
        self._compute = max(self._compute, compute)

    def merge(self, other: Calibrator) -> None:
        """Add the data of another calibrator; ``a | b`` returns a new calibrator with the data of both.

        Parameters
        ----------
        other : Calibrator
            A calibrator with the same arguments.

        Raises
        ------
        TypeError, ValueError
            If other is not a Calibrator, or has other arguments or channels.
        """
        if not isinstance(other, Calibrator):
            raise TypeError(f"other must be a Calibrator, not {shown(other)}")
        for name in _ARGUMENTS:
            ours, theirs = self._rule(name), other._rule(name)
            if ours != theirs:
                raise ValueError(f"other has {name}={shown(theirs)}, this Calibrator has {shown(ours)}")
        if other._histogram is None:
            return
        alike = self._histogram is not None and self._histogram.lo.shape == other._histogram.lo.shape
        if alike and (self.count + other.count >= calibrator_file.MOST_ELEMENTS).any():
            raise ValueError(f"other has {other.count.max()} elements, and a Calibrator counts less than 2**62")
        self._add(other._histogram, other._compute, "other")

    def _rule(self, name: str) -> Any:
        """Return an argument by its name; for a convention, its row."""
        argument = getattr(self, name)
        return as_convention(argument) if name == "convention" else argument

    def __or__(self, other: Calibrator) -> Calibrator:
        if not isinstance(other, Calibrator):
            return NotImplemented
        joined = copy.copy(self)  # the data is replaced, never written to
        joined.merge(other)
        return joined

    def __ior__(self, other: Calibrator) -> Calibrator:
        self.merge(other)
        return self

    def clipping_range(
        self, method: str = "minmax", *, percentile: float = 99.999, quantized_bins: int = 128, grid: int = 100
    ) -> tuple[Array, Array]:
        """Return the smallest and the largest number that a method keeps, for each channel; numbers beyond are clipped.

        Parameters
        ----------
        method : {"minmax", "percentile", "mse", "entropy"}
            How to choose the range: "minmax" takes all of it, "percentile" keeps a share of the elements, "mse" has the
            least squared error, and "entropy" keeps most of the information about the distribution. No range is wider
            than the data. A warning says if bins are too few for "percentile" or "entropy".
        percentile : float
            Percentage of the elements that "percentile" keeps at least, from 0 to 100.
        quantized_bins : int
            Bins of the coarse histogram by which "entropy" judges a range; even, from 2 to 2**20. If the histogram has
            no more bins than this, the whole range is taken.
        grid : int
            Number of ranges that "mse" tries, from 1 to 10,000: minimum and maximum times 1 / grid, 2 / grid, .., 1.

        Returns
        -------
        lo, hi : ndarray
            The range, in the compute type and the shape of the channels.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as described, or a channel has no elements yet.
        """
        return self._range(method, percentile, quantized_bins, grid)

    def _range(self, method: str, percentile: float, quantized_bins: int, grid: int) -> tuple[Array, Array]:
        """Return the range of each channel; warn callers of public methods where bins can't tell it."""
        method = as_choice(method, "method", calibration_methods.METHODS)
        options = calibration_methods.Options(
            as_float(percentile, "percentile", 0.0, 100.0),
            as_int(quantized_bins, "quantized_bins"),
            as_int(grid, "grid"),
        )
        if not 2 <= options.quantized_bins <= histogram.MOST_BINS or options.quantized_bins % 2:
            raise ValueError(
                f"quantized_bins must be even and from 2 to {histogram.MOST_BINS}, not {options.quantized_bins}"
            )
        if not 1 <= options.grid <= MOST_RANGES:
            raise ValueError(f"grid must be from 1 to {MOST_RANGES}, not {options.grid}")
        ends, doubtful = calibration_methods.ranges(self._complete, self._target, self._compute, method, options)
        if doubtful:
            where = f" of {len(doubtful)} channels, the first of which is {list(doubtful[0])}," if doubtful[0] else ""
            warn_caller(
                f"bins={self._bins} can't tell the {method} range{where} well: nearly all elements are in few bins, of"
                " which the last one ends with the largest magnitude; clip x, or pass more bins to Calibrator"
            )
        return ends

    @property
    def _complete(self) -> Histogram:
        """The data; every channel must have elements."""
        data = self._data
        if len(none := np.argwhere(data.lo > data.hi)):
            first = f"the first of which is [{', '.join(map(str, none[0]))}]"
            of = f" of {len(none)} of {data.lo.size} channels, {first}" if data.lo.ndim else ""
            raise ValueError(f"this Calibrator has no elements yet{of}: call update")
        return data

    def importance(self) -> Array:
        """Return the mean of the squares of the elements, for each channel: the importance of columns of weights.

        If the channel axis is the last one, channels are the columns of activations and of the weights that they are
        multiplied with. Pass the result as ``importance=`` to `quantize` or `fastq.gguf.quantize`.

        Returns
        -------
        ndarray
            Means in the shape of the channels and in the compute type, which is float64 for float64 arrays
            (`fastq.gguf.quantize` takes float32). Each element counts as the middle of its bin, at most half a bin
            away: with 1024 bins that is less than a hundredth of it, or a four-millionth of the largest magnitude.

        Raises
        ------
        ValueError
            If a channel has no elements yet.

        Examples
        --------
        >>> import numpy as np, fastq
        >>> calibrator = fastq.Calibrator("int8", axis=-1)
        >>> for batch in np.random.default_rng(0).standard_normal((10, 500, 3)) * [1, 2, 30]:
        ...     calibrator.update(batch)
        >>> calibrator.importance().round(1)
        array([  1. ,   3.9, 907.4])
        """
        means: Array = calibration_methods.mean_squares(self._complete, self._compute)
        return means

    def qparams(
        self, method: str = "minmax", *, percentile: float = 99.999, quantized_bins: int = 128, grid: int = 100
    ) -> QParams:
        """Return the scale and the zero point for the data.

        Parameters
        ----------
        method, percentile, quantized_bins, grid
            How to choose the range: see `clipping_range`.

        Returns
        -------
        QParams
            For "minmax" the same as `choose_qparams` of all arrays together, in float32 or float64. Scales are not
            rounded to the dtype of half-precision arrays, not even for conventions with ``stored_type="input"`` or
            ``operation_type="input"``.

        Raises
        ------
        TypeError, ValueError
            If an argument is not as described, or a channel has no elements yet.
        """
        ends = self._range(method, percentile, quantized_bins, grid)
        return self._target.of_ranges(*ends)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the data and the arguments of this calibrator to a file, which appears whole or not at all.

        Parameters
        ----------
        path : str or path
            File to write; an existing file is replaced. Equal calibrators have equal files.

        Raises
        ------
        TypeError, ValueError, OSError
            If path is not as described or can't be written, or a file can't store the format or convention.
        """
        arguments = {name: getattr(self, name) for name in _ARGUMENTS}
        content = calibrator_file.Content(arguments, self._histogram, self._compute.name)
        calibrator_file.write(as_path_to_write(path, ".calibrator"), content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibrator:
        """Read a calibrator from a file of `save`. No code in the file is run.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        Calibrator
            The calibrator that was saved.

        Raises
        ------
        TypeError, ValueError, OSError
            If path is not as described, can't be read, or is not a calibrator file.
        """
        path = as_path(path)
        arguments, data, compute = calibrator_file.read(path)
        try:
            calibrator = cls(**arguments)
        except Exception as error:
            raise ValueError(f"path is not a file of a Calibrator: {shown(str(path))}: {reason(error)}") from error
        calibrator._histogram = data
        calibrator._compute = np.dtype(compute)
        return calibrator

    def __repr__(self) -> str:
        axis_text = "" if self.axis is None else f", axis={self.axis}"
        count = 0 if self._histogram is None else int(self._histogram.counts.sum())
        return f"Calibrator({self.dtype}{axis_text}, bins={self.bins}): {count} elements"


def join_calibrators(grid: Any, axes: int) -> Calibrator:
    """Return a calibrator with the channels of others, given as nested lists with one level for each channel axis.

    Each has other channels of the same arrays, as chunks of a dask array do.
    """
    first_calibrator: Any = grid
    for _ in range(axes):
        first_calibrator = first_calibrator[0]
    joined: Calibrator = copy.copy(first_calibrator)
    # lists are joined along the last axes, which are those of channels, so the axis of bins comes before these
    counts = _join_channels(grid, lambda calibrator: np.moveaxis(calibrator._data.counts, -1, 0))
    lo = _join_channels(grid, lambda calibrator: calibrator._data.lo)
    hi = _join_channels(grid, lambda calibrator: calibrator._data.hi)
    joined._histogram = Histogram(lo, hi, np.moveaxis(counts, 0, -1))
    return joined


def _join_channels(grid: Any, array_of: Callable[[Calibrator], Array]) -> Array:
    """Return the arrays of nested lists of calibrators as one: those of the innermost lists side by side."""

    def arrays(nested: Any) -> Any:
        return [arrays(inner) for inner in nested] if isinstance(nested, list) else array_of(nested)

    return np.block(arrays(grid))
