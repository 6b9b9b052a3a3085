"""What the gguf package makes of blocks."""

import gguf as gguf_package
import numpy as np
from catalogue import same_bytes


def oracle(function, data, name):
    """What the gguf package computes; it warns where the arithmetic overflows."""
    with np.errstate(all="ignore"):
        return getattr(gguf_package.quants, function)(
            np.ascontiguousarray(data), gguf_package.GGMLQuantizationType[name]
        )


def same_values(actual, expected):
    """Assert the same bits, except that one NaN is as good as another."""
    assert actual.dtype == expected.dtype == np.float32
    same_bytes(np.where(np.isnan(actual), np.float32(np.nan), actual), np.where(expected != expected, np.nan, expected))
