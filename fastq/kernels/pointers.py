"""The pointers that each kind of kernel gets, by name: first as dtypes and storage formats, then as Numba types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

HOMES: dict[type, str] = {}  # modules of `fastq.kernels.body`, by the operands for which they have the work
_Operands = TypeVar("_Operands", bound=type)


def with_body(module: str) -> Callable[[_Operands], _Operands]:
    """Name the module of the work on operands, which is imported when a kernel of them is compiled.

    It is a module of `fastq.kernels.body`; its last lines put a `Body` into `BODIES` for these operands.
    """

    def note_home(operands: _Operands) -> _Operands:
        HOMES[operands] = module
        return operands

    return note_home


@with_body("convert")
class ElementOperands(NamedTuple):
    """Pointers of a conversion of elements, or the types that they point to."""

    src: Any
    dst: Any
    scale: Any
    zero_point: Any


@with_body("convert")
class NoisyOperands(NamedTuple):
    """Pointers of a conversion of elements that rounds at random.

    `noise` points to the words that `NOISE_KEY` of sizes.py describes. Loops get the numbers that `in_pieces` has drawn
    by these in its place.
    """

    src: Any
    dst: Any
    scale: Any
    zero_point: Any
    noise: Any


@with_body("requantize")
class RequantizeOperands(NamedTuple):
    """Pointers of a requantization of accumulators.

    The parameters of a channel are two words of 64 bits, see requantization.py: `scale` has the first words,
    `zero_point` the second ones.
    """

    src: Any
    dst: Any
    scale: Any
    zero_point: Any


class ChannelOperands(NamedTuple):
    """Pointers of the step that makes those words: of multipliers, one zero point and biases, `first` and `second`."""

    multiplier: Any
    zero_point: Any
    bias: Any
    first: Any
    second: Any


class RangeOperands(NamedTuple):
    """Pointers of a conversion of ranges to scales and zero points."""

    lo: Any
    hi: Any
    scale: Any
    zero_point: Any


class ParameterOperands(NamedTuple):
    """Pointers of a rounding of scales and zero points in their place."""

    scale: Any
    zero_point: Any


@with_body("repack")
class CopyOperands(NamedTuple):
    """Pointers of a conversion that has no parameters, or has them among the elements."""

    src: Any
    dst: Any


@with_body("cf_pack")
class PackOperands(NamedTuple):
    """Pointers of the packing of floats as integers, in units of one scale from one zero point on."""

    src: Any
    dst: Any
    scale: Any
    zero_point: Any


@with_body("cf_unpack")
class UnpackOperands(NamedTuple):
    """Pointers of a conversion of integers to floats by one scale and one offset."""

    src: Any
    dst: Any
    scale: Any
    zero_point: Any


@with_body("bitround")
class BitRoundOperands(NamedTuple):
    """Pointers of a rounding of floats, whose elements are their bits; `table` has the dropped bits of each binade."""

    src: Any
    dst: Any
    table: Any


@with_body("bit_pairs")
class BitPairOperands(NamedTuple):
    """Pointers of a count of the bits of floats and of the ones that follow them, which is added to `counts`."""

    src: Any
    following: Any
    counts: Any


class WeightedOperands(NamedTuple):
    """Pointers of a conversion to blocks by the importance of columns."""

    src: Any
    dst: Any
    importance: Any


@with_body("compare")
class ErrorOperands(NamedTuple):
    """Pointers of a comparison, `approximation` being codes or values; sums of errors are added to `errors`."""

    src: Any
    approximation: Any
    scale: Any
    zero_point: Any
    errors: Any


@with_body("min_max")
class MinMaxOperands(NamedTuple):
    """Pointers of a reduction of elements to minima and maxima."""

    src: Any
    lo: Any
    hi: Any


@with_body("min_max")
class PartialOperands(NamedTuple):
    """Pointers to partial minima and maxima, which are merged in place."""

    lo: Any
    hi: Any


@with_body("range_search")
class SearchOperands(NamedTuple):
    """Pointers of a search for ranges, which are written in place of the minima and maxima in `lo` and `hi`.

    Nothing is read or written at `scale`: its type is that of the parameters of ranges that are tried.
    """

    src: Any
    lo: Any
    hi: Any
    scale: Any


@with_body("range_search")
class CandidateOperands(NamedTuple):
    """Pointers of a sum of the errors of all candidates of a search, which are added to `errors`.

    `scale` has the factors of the ranges that were found, where the candidates are those around.
    """

    src: Any
    lo: Any
    hi: Any
    scale: Any
    errors: Any


@with_body("histogram")
class HistogramOperands(NamedTuple):
    """Pointers of a histogram of elements: minima and maxima of float64, and counts, which are added to."""

    src: Any
    lo: Any
    hi: Any
    counts: Any
