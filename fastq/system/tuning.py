"""Tuning constants: a row for each CPU family, with the measurement behind each number.

Throughput is in elements/s of float32 unless stated, of arrays of 2**25 elements where it is out of cache.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from llvmlite import binding
from numba.core import config


@dataclass(frozen=True)
class Tuning:
    """What is set by CPU.

    Attributes
    ----------
    prefetch : int
        How far ahead loops over values prefetch, in elements.
    prefetch_codes : int
        How far ahead loops over codes of a byte or less prefetch, in elements.
    stream_codes : bool
        Whether results past the cache size are stored with streaming stores where they are codes; values always are.
    """

    prefetch: int
    prefetch_codes: int
    stream_codes: bool


# Measured on a Xeon, and taken for every CPU that nobody measured.
# prefetch: one core, without and with 256: minimum and maximum 3.6 and 5.4 Gelem/s, quantize 2.7 and 4.2, blocks of 32
# 1.5 and 2.9; in cache no difference. 128 to 512 are alike on two cores, 2048 is a tenth slower.
# stream_codes: 2**26 float32 to int8 on two cores 0.86 times as fast.
_DEFAULT = Tuning(prefetch=256, prefetch_codes=256, stream_codes=False)

# prefetch: two cores, beside 256: quantize, minimum and maximum 1.1 times as fast, columns 1.2, blocks of 32 1.26.
# prefetch_codes: 2**22 int8 to float32, two cores, beside 2048: 64 to 512 are 1.11 to 1.23 times as fast, 1024 0.94,
# nothing 0.90; out of cache all are alike.
# stream_codes: 2**26 float32 to int8, two cores: 1.17 times as fast, from float16 1.2, rows 0.93 to 1.03, blocks 1.0.
_ZEN4 = replace(_DEFAULT, prefetch=2048, stream_codes=True)

# prefetch: two cores, beside 256: quantize, rows, blocks of 32 1.2 times as fast, minimum and maximum 1.1, columns 1.4;
# 1024 and 4096 are a little slower than 2048, and 256 is slower than nothing.
# stream_codes: 2**26 float32 to int8, two cores: 1.13 to 1.19 times as fast, from float16 1.3, rows 1.1, blocks of 32
# 1.02 to 1.2.
_ZEN5 = replace(_DEFAULT, prefetch=2048, stream_codes=True)

TUNING = {"default": _DEFAULT, "znver4": _ZEN4, "znver5": _ZEN5}  # by LLVM's name of the CPU


@functools.cache
def current() -> Tuning:
    """Return the row of this CPU, or of the one that Numba is told to compile for."""
    return TUNING.get(config.CPU_NAME or binding.get_host_cpu_name(), TUNING["default"])
