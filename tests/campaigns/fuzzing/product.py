"""The product: all values of each axis, from the tables that cases are drawn from, so that what no case met shows."""

from fuzzing import cases, combinations
from fuzzing.arrays import KINDS
from fuzzing.functions import KEPT_AS

import fastq
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import QTYPES
from fastq.formats.requantization import REQUANTIZATIONS

_EITHER = (False, True)
_PARAMETERS = {name: FLOAT_FORMATS[row.scale_element].dtype.name for name, row in QTYPES.items() if row.block_size}

_AXES = {
    "approximation": combinations.SCALES,
    "bias": (*cases.GIVEN, *cases.GIVEN_ONE),
    "bins": cases.BINS,
    "bits": cases.WIDTHS,
    "block size": (
        *combinations.BLOCKS,
        *cases.BLOCK_SIZES,
        *(cases.own_size(row) for row in QTYPES.values() if row.block_size),
    ),
    "convention": (*fastq.CONVENTIONS, *REQUANTIZATIONS, "own"),
    "format": (*combinations.ROWS, *BLOCK_FORMATS),
    "format of 2^24 and more": list(filter(combinations.share_streamed, (*combinations.ROWS, *BLOCK_FORMATS))),
    "granularity": cases.GRANULARITIES,
    "importance": cases.IMPORTANCES,
    "index": cases.PICKS,
    "input dtype": combinations.INPUTS,
    "kept as": KEPT_AS,
    "kind of value": KINDS,
    "layout": cases.PLACED,
    "layout of q": cases.PLACED,
    "method": cases.METHODS,
    "nan": combinations.NANS,
    "operation": combinations.OPERATIONS,
    "out": cases.OUTPUTS,
    "output dtype": combinations.SCALES,
    "range": combinations.RANGES,
    "rounding": ("nearest", "stochastic"),
    "saturate": _EITHER,
    "scale": (*cases.GIVEN, *cases.GIVEN_ONE),
    "scale dtype": (*combinations.SCALES, *_PARAMETERS.values()),
    "size": (*cases.SIZES, "streamed"),
    "small chunks": _EITHER,
    "streamed": _EITHER,
    "symmetric": _EITHER,
    "threads": cases.THREADS,
    "zero point": ("none", *cases.GIVEN, *cases.GIVEN_ONE),
}
PRODUCT = {axis: tuple(dict.fromkeys(map(str, values))) for axis, values in _AXES.items()}


def met(counts):
    """Rows of the table of the product: of all values of each axis how many were met, and how often the rarest was."""
    return [
        {
            "axis": axis,
            "values met": f"{sum(value in counts.get(axis, {}) for value in values)} of {len(values)}",
            "cases of the rarest": min(counts.get(axis, {}).get(value, 0) for value in values),
        }
        for axis, values in PRODUCT.items()
    ]
