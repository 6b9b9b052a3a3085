"""Tuning constants: a row for each CPU family, with the measurement behind each number.

They change how long a call takes, but never its result. Throughput is in elements/s of float32 unless stated; out of
cache for arrays of 2**25 elements.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fastq.system import cpu

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def _cache_size() -> int:
    """Return the bytes of the largest cache, from 8 MiB to 32: larger caches are shared by many cores or guests."""
    sizes = [8 << 10]
    with contextlib.suppress(OSError, ValueError):
        sizes += [int(path.read_text().strip().removesuffix("K")) for path in _CACHES.glob("index*/size")]
    return min(max(sizes), 32 << 10) << 10


@dataclass(frozen=True)
class Tuning:
    """Numbers for each CPU; the defaults were measured on a Xeon, and are used for CPUs without measurements."""

    # how far ahead loops over values prefetch, in elements; 0 if the CPU prefetches better by itself. One core, without
    # and with 256: minimum and maximum 3.6 and 5.4 Gelem/s, quantize 2.7 and 4.2, blocks of 32 1.5 and 2.9; in cache no
    # difference. 128 to 512 are alike on two cores, 2048 is a tenth slower
    prefetch: int = 256
    prefetch_codes: int = 256  # how far ahead loops over codes of a byte or less prefetch, in elements
    # how far ahead the blocks of GGUF prefetch, at least, in elements. One core, median: 768 against 256 while extremes
    # are looked for 1.2 times as fast (Q8_0) and 1.4 (Q4_0)
    prefetch_blocks: int = 768
    # most elements of a row that is prefetched while the row before it is converted from the cache. Rows of float32 to
    # int8 on two threads of a Xeon, against `prefetch` ahead: 2**22 elements in rows of 2**10 1.30 times as fast, 2**12
    # 1.31, 2**14 1.16, 2**16 1.15; 2**26 elements 1.24, 1.0, 0.97, 1.0. Only some of the next row in each of the two
    # passes over this one: 0.75 to 0.9
    prefetch_row: int = 1 << 15
    # whether results past the cache size are stored with streaming stores where they are codes; values always are.
    # 2**26 float32 to int8 on two cores 0.86 times as fast with them
    stream_codes: bool = False
    # bytes that a call moves, from which on its results are streamed: by default 1.5 times the largest cache.
    # Dequantize on two cores is 1.1 to 2.1 times as fast with it from 80 MiB on; of 40 MiB 0.8 times where the cache
    # has 32, of 20 MiB 0.3 times there, 0.98 where it has 480
    stream_from: int = field(default_factory=lambda: _cache_size() * 3 // 2)
    # bytes of a row whose neighbours have other parameters, from which on it is streamed although its first and its
    # last line are stored in the ordinary way by other rows, and cost a stall each. int8 to float32 on two threads of a
    # busy Zen 4, against ordinary stores: 128 B 0.02 times as fast, 4 KiB 0.43, 16 KiB 0.93, 32 KiB 1.30, 256 KiB 1.27
    stream_run: int = 1 << 15
    # bytes of a run of one parameter, from which on it is streamed straight from registers; shorter ones by way of the
    # stack, several at a time. 2**26 int8 to float32 on one and on two threads of a Xeon, against ordinary stores:
    # blocks of 32 1.5 and 2.1 times as fast, of 64 2.1 and 2.7, of 128 2.3 and 3.0, rows of 2**10 2.4, 3.3; against
    # streaming straight: rows of 2**12 1.35 times as fast on one thread, 2**13 1.18, 2**14 1.06, the whole array 0.91
    staged_run: int = 1 << 17
    # elements of a part that is quantized right after it was reduced, while it is in the L2 cache
    fused_block: int = 1 << 17
    # most rows of such a part, of some columns each, if the array has at least a quarter of `stream_from`: they are
    # read in pieces of 256 bytes; whole rows are read only in two passes
    fused_rows: int = 1 << 17
    # most rows of such a part if they begin a multiple of this many bytes apart, since caches hold fewer of those.
    # Gelem/s in one pass and in two on Zen 5: 1024 rows of 4096 float32 5.9 and 6.8, of 4000 11.2 and 6.5, of 2048 9.7
    # and 6.9; 512 rows of 4096 10.9 and 6.9. On a Xeon: 1024 rows of 4096 in one pass 4.0, 4096 rows in two 5.4
    aliased_rows: int = 512
    aliased_stride: int = 1 << 14
    # bytes of the scales of a row, or of its values for minima and maxima, from which on several rows are visited at a
    # time though the array outgrows the cache. Minima of columns of 2**26 float32, eight rows at a time against one,
    # two threads of a Zen 4: rows of 1 KiB 0.58 times as fast, of 4 KiB 0.73, 8 KiB 1.05, 16 KiB 1.4, 32 KiB 1.35 and
    # more; four at a time 1.2, of 32 KiB 1.3. int8 by columns to float32, one thread, 2**25 elements, four rows against
    # one: scales of 2 KiB 0.51 times as fast, 4 KiB 0.69, 8 KiB 0.63 to 0.74, 16 KiB 1.2; float32 to int8: 16 KiB 1.5,
    # 64 KiB 1.7
    wide_row: int = 12 << 10
    # elements of a reduction that cost as much as one element of a quantization: 2**17 take 4.6 us alone, 4.9 with two
    reduction_cost: int = 8
    # most minima and maxima of all threads that are kept side by side: 512 KiB of float32
    merged_partials: int = 1 << 16
    # most bytes of the histograms that threads, or neighbouring elements, have for themselves
    partial_histograms: int = 1 << 24
    # most columns that a thread reduces at a time in wide rows, so that minima and maxima stay in the L2 cache. 2**15
    # of 2**18 columns are 1.2 to 3 times as fast as 2**11 to 2**14
    range_columns: int = 1 << 15
    # blocks, or ranges, from which on the kernel is used that computes the parameters of several side by side; fewer
    # are not worth the time that it takes to compile
    batched_blocks: int = 16
    # elements that two threads share, the second of them awake: 2**14 take 2.0 us alone and 2.1 with two, 2**15 3.4 and
    # 2.9
    parallel_from: int = 1 << 15
    # elements for which a parked worker is woken, which takes 20 us on a virtual machine: 2**18, once in 300 us, still
    # take 25 us alone and 43 with two
    wake_from: int = 1 << 19
    # nanoseconds within which a call follows another one, so that it wakes a worker for fewer elements too
    series: int = 200_000
    # elements of a chunk, at least and at most: 2**26 on two cores take 12.2 ms in chunks of 2**16, 11.2 of 2**18, 10.9
    # in halves, which leave most undone when a thread is held up
    chunk: tuple[int, int] = (1 << 14, 1 << 18)
    # seconds that an idle worker watches the gate before it parks, and a caller those inside before it sleeps
    spin: float = 100e-6
    # nanoseconds, at least and at most, for which callers work alone after one waited for a worker longer than it had
    # worked. 2**22 elements next to a process that wants the same CPUs, 99th percentile: 4.2 to 4.7 ms without, 0.7 to
    # 1.6 with. A virtual machine takes a CPU away for 1 to 4 ms twice a second; at least 100 ms left a sixth of all
    # calls alone there
    backoff: tuple[int, int] = (10_000_000, 1_000_000_000)
    # a backoff is four times the one before where the wait comes within this many nanoseconds of its end or after at
    # most this many calls with help, else half as long
    backoff_repeat_within: int = 50_000_000
    backoff_min_calls: int = 16
    # bytes of a result from which on its memory is pooled: the system clears fresh pages at their first touch, which
    # takes 30 to 60 ms of 2**26 float32, and dequantizing into pages that are there 6. The C library keeps smaller
    # blocks itself
    pooled_from: int = 1 << 22


_DEFAULT = Tuning()

# prefetch: 2048 ahead against nothing ahead, two cores, 2**26 elements, with both cores on one complex and on two:
# minimum and maximum 0.83 to 0.92 times as fast, rows of 1024 0.88, of 4096 0.99, blocks of 32 0.88, of 4 bits 0.89,
# given parameters 0.95 to 0.97, columns 0.88 to 0.98; 2**22: minima and maxima 0.79, others 0.95 to 1.08; 2**18 alike.
# 256 ahead is between the two, for minimum and maximum the slowest. The CPU fetches ahead by itself.
# prefetch_blocks: Q8_0 and Q4_0 of 2**26, two cores, against 2048: 1024 1.10 and 1.19 times as fast, 512 0.98 and 1.06;
# in cache alike.
# prefetch_codes: 2**22 int8 to float32, two cores, against 2048: 64 to 512 are 1.11 to 1.23 times as fast, 1024 0.94,
# nothing 0.90; out of cache all are alike.
# stream_codes: 2**26 float32 to int8, two cores: 1.17 times as fast, from float16 1.2, rows 0.93 to 1.03, blocks 1.0.
# fused_rows: float32 to int8, two threads, Gelem/s in one pass and in two: 2**25 elements in 256 rows of 512 3.3 and
# 4.8, of 4096 3.4 and 2.8, 512 rows of 8192 2.5 and 2.8, 1024 of 512 2.3 and 3.6, 4096 of 1000 2.3 and 4.2, 64 of 4096
# 3.9 and 2.4; 2**22 in 1024 rows of 512 3.1 and 7.4, 2**21 8.8 and 4.8.
_ZEN4 = replace(_DEFAULT, prefetch=0, prefetch_blocks=1024, stream_codes=True, fused_rows=256)

# prefetch: two cores, against 256: quantize, rows, blocks of 32 1.2 times as fast, minima and maxima 1.1, columns 1.4;
# 1024 and 4096 are a little slower than 2048, and 256 is slower than nothing.
# stream_codes: 2**26 float32 to int8, two cores: 1.13 to 1.19 times as fast, from float16 1.3, rows 1.1, blocks of 32
# 1.02 to 1.2.
# aliased_rows: float32 to int8, two threads, against 512: 256 rows of 32768, 512 of 16384 and of 8192 1.4 to 1.5 times
# as fast, 256 of 4096 1.15; with 64 0.9 to 1.1. fused_rows of 64 to 512 lose up to a third where rows begin otherwise.
_ZEN5 = replace(_DEFAULT, prefetch=2048, prefetch_blocks=2048, stream_codes=True, aliased_rows=128)

# prefetch: two cores, against 256, in two runs: 2048 is 1.05 and 1.11 times as fast, 4096 1.11 and 1.14, 128 slower.
# prefetch_blocks: against 768: 2048 1.04 times as fast, 4096 1.03, 256 0.77.
# stream_from: against 1.5 times the cache of 32 MiB: 24 MiB 1.11 times as fast, 12 MiB 0.84, 96 MiB 0.93.
# stream_codes is 0.96 times as fast.
_ZEN3 = replace(_DEFAULT, prefetch=4096, prefetch_blocks=2048, stream_from=24 << 20)

# A Xeon in a virtual machine, which LLVM takes for this CPU; each value in turns with others, two cores.
# prefetch_blocks: against 768: 2048 1.1 times as fast, 4096 1.4, 256 0.78.
# stream_run: 2**26 int8 to float32 by 4096 columns 1.35 times as fast with 16 KiB as with 64 KiB.
# aliased_rows: against 512: 128 and 256 1.09 times as fast, 1024 0.8.
# prefetch from 1024 on, stream_codes, and other sizes of tiles are 1.1 to 1.6 times as slow.
_ROCKETLAKE = replace(_DEFAULT, prefetch_blocks=4096, stream_run=1 << 14, aliased_rows=256)

TUNING = {  # by LLVM's name of the CPU
    "default": _DEFAULT,
    "rocketlake": _ROCKETLAKE,
    "znver3": _ZEN3,
    "znver4": _ZEN4,
    "znver5": _ZEN5,
}


# LLVM's names of the CPUs with a row, by vendor, family and models
_CPUS: tuple[tuple[str, str, str, tuple[range, ...]], ...] = (
    ("znver4", "AuthenticAMD", "25", (range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0))),
    ("znver3", "AuthenticAMD", "25", (range(0x100),)),
    ("znver5", "AuthenticAMD", "26", (range(0x100),)),
    ("rocketlake", "GenuineIntel", "6", (range(0xA7, 0xA8),)),
)


@functools.cache
def cpu_name() -> str:
    """Return LLVM's name of this CPU, or of the one for which Numba is set to compile; "default" if it has no row."""
    facts = cpu.facts()
    vendor_and_family = (facts.get("vendor_id", ""), facts.get("cpu family", ""))
    model = int(facts.get("model") or 0)
    names = (
        name
        for name, vendor, family, ranges_of_models in _CPUS
        if (vendor, family) == vendor_and_family and any(model in models for models in ranges_of_models)
    )
    return os.environ.get("NUMBA_CPU_NAME") or next(names, "default")


@functools.cache
def current() -> Tuning:
    """Return the row of this CPU, or the default row."""
    return TUNING.get(cpu_name(), TUNING["default"])


# --- the numbers that kernels read ------------------------------------------------------------------------------------

RECORD = "fastq_tuning"  # the name of the record in machine code
READ_BY_KERNELS = ("prefetch", "prefetch_codes", "prefetch_blocks", "prefetch_row", "wide_row")


@functools.cache
def numbers() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the numbers of this CPU that kernels read at run time, since their code serves many CPUs."""
    return np.array([getattr(current(), name) for name in READ_BY_KERNELS], np.int64)
