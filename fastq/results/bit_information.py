"""BitInformation: the information that each bit of floats has about the same bit of their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.bitrounding import of_width
from fastq.system.arguments import as_dtype, as_float
from fastq.system.arrays_of_callers import as_array


@dataclass(frozen=True, eq=False)
class BitInformation:
    """Counts of the bits of neighbouring floats, and the information in them; ``a + b`` counts the pairs of both.

    Attributes
    ----------
    dtype : numpy.dtype
        Dtype of the floats.
    counts : ndarray of int64
        Number of pairs with bits (0, 0), (0, 1), (1, 0) and (1, 1), of shape ``(bits, 2, 2)``: sign, exponent as a sign
        and a magnitude, mantissa, each from its highest bit on.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.sin(np.linspace(0, 9, 10_000)).astype(np.float32)
    >>> found = fastq.bit_information(x[:5000]) + fastq.bit_information(x[5000:])
    >>> found.pairs, found.keepbits(0.99)
    (9998, 8)
    >>> {name: round(float(bits), 2) for name, bits in zip(found.names, found.information) if bits > 0.7}
    {'sign': 0.93, 'e7': 0.78, 'm1': 0.87, 'm2': 0.84, 'm3': 0.79}
    """

    dtype: np.dtype[Any]
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        dtype = as_dtype(self.dtype, "dtype", "a float dtype")
        counts = as_array(self.counts, "counts")
        shape = 8 * dtype.itemsize, 2, 2
        if dtype.kind != "f" or counts.dtype.kind not in "iu" or counts.shape != shape:
            raise TypeError(f"counts of {dtype} must be integers of shape {shape}, not {counts.dtype} {counts.shape}")
        vars(self).update(dtype=dtype, counts=counts)

    def __add__(self, other: BitInformation) -> BitInformation:
        """Return the information of the pairs of both; their dtypes must be equal."""
        if not isinstance(other, BitInformation):
            return NotImplemented
        if self.dtype != other.dtype:
            raise ValueError(f"other has bits of {other.dtype}, but this has bits of {self.dtype}")
        return BitInformation(self.dtype, self.counts + other.counts)

    def __repr__(self) -> str:
        return f"<BitInformation: {self.pairs:,} pairs of {self.dtype}, keepbits(0.99) = {self.keepbits()}>"

    @property
    def pairs(self) -> int:
        """Number of pairs that were counted; pairs with NaN are not."""
        return int(self.counts[0].sum())

    @property
    def names(self) -> list[str]:
        """Names of the bits: sign, exponent e1 and on, mantissa m1 and on."""
        mantissa = of_width(len(self.counts))[0]
        bits = len(self.counts)
        exponent = [f"e{k}" for k in range(1, bits - mantissa)]
        return ["sign", *exponent, *(f"m{k}" for k in range(1, mantissa + 1))]

    @property
    def information(self) -> NDArray[np.float64]:
        """Mutual information of each bit and the neighbour's bit, from 0 to 1; 0 if there are no pairs."""
        p = self.counts / max(self.pairs, 1)
        alone = p.sum(axis=2, keepdims=True) * p.sum(axis=1, keepdims=True)
        ratio = np.divide(p, alone, out=np.ones_like(p), where=p > 0)
        return np.asarray((p * np.log2(ratio)).sum(axis=(1, 2)))

    def keepbits(self, level: float = 0.99) -> int:
        """Return the fewest bits of the mantissa with a given share of the information, as xbitinfo chooses them.

        Bits with at most 1.5 times the information of the best of the last four bits count as noise, without
        information.

        Parameters
        ----------
        level : float
            The share, from 0 to 1; 1 keeps all bits.

        Returns
        -------
        int
            Number of bits, from 0 to that of the mantissa; the latter if no bit has information, as in a constant
            array.

        Raises
        ------
        TypeError, ValueError
            If level is not a number from 0 to 1.

        Examples
        --------
        >>> import numpy as np, fastq
        >>> fastq.bit_information(np.sin(np.linspace(0, 9, 10_000)).astype(np.float32)).keepbits(0.99)
        8
        """
        level = as_float(level, "level", 0.0, 1.0)
        mantissa = of_width(len(self.counts))[0]
        if level == 1.0:
            return mantissa
        information = self.information
        information = np.where(information > most_of_noise(information), information, 0.0).cumsum()
        reached = information > level * information[-1]
        return max(int(reached.argmax()) + 1 - (len(information) - mantissa), 0) if reached.any() else mantissa


def most_of_noise(information: NDArray[np.float64]) -> float:
    """Return the information up to which bits count as noise, given that of all bits."""
    return float(1.5 * information[-4:].max())


def information_of_counts(dtype: np.dtype[Any], size: int, counts: NDArray[np.int64]) -> BitInformation:
    """Return the information of `size` pairs from the bits that kernels counted.

    `counts` has, from the lowest bit on, the pairs whose first number has this bit, those whose second number has it,
    and those in which both have it; and last, the pairs that have a NaN, which are in none of these.
    """
    first, second, both = counts[:-1].reshape(3, -1)[:, ::-1]
    none = size - int(counts[-1]) - first - second + both
    return BitInformation(dtype, np.stack([none, second - both, first - both, both], axis=-1).reshape(-1, 2, 2))
