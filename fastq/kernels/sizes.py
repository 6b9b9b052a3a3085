"""Sizes and modes that plans and kernels agree on."""

from __future__ import annotations

from fastq.system.cpu import REGISTER_BITS

# how results go past the cache: from registers; by way of the stack, where runs share lines with their neighbours; from
# registers those rows of columns that share none
STRAIGHT = 1
STAGED = 2
WHOLE_ROWS = 3
PIECE_BYTES = 1 << 13  # of results that are staged at a time: a quarter of the smallest L1 cache

# Most elements of a short run, which fill no register, except for `compare`: decision D27
LONGEST = 15
RUNS_TOGETHER = 64  # whose elements are visited as a row: whole lines of any type
BATCHED_REGISTERS = 16  # of a run at most whose parameters are prepared with those of others: decision D26
BLOCK_SIZES = (16, 32, 64, 128)  # elements in a block of the loop over blocks
COLUMN_REGISTERS = 4  # registers side by side: rows are read 256 bytes at a time, which keeps the prefetchers going
COLUMN_BYTES = COLUMN_REGISTERS * REGISTER_BITS // 8
# Elements at most of rows that are taken as one where many have the same parameters, which kernels repeat: see
# `rows_as_one` in fastq/plan/policy.py, and decision D38
MOST_ROW = 512
GGUF_GROUP = 16  # blocks whose parameters are computed side by side, one a lane

# sums of one chunk of errors: of error**2, x**2, |error|, |error| / |x|; largest |error| and |error| / |x|; how many x
# are 0, how many codes were clamped; each of them lane by lane, so that short runs need not add up lanes
TOTALS = 8
SUM_LANES = 8
AT_A_TIME = 8  # elements, which sums take as one Vec or two
MOST_ERROR = 2.0**53  # of a candidate of a search for ranges
# Bins are at least as wide as the smallest normal number of float64: 1 / width is a number too.
LEAST_EXPONENT = -1022
# Number of histograms in which neighbours are counted, so that no addition waits for one to the same bin: counting is
# unrolled for all of them.
PARTIALS = 4

# Words of int64 that random numbers of elements are drawn by: the key; the place of the first element in the array that
# they belong to, in C order; and of each axis of the traversal, the fastest first, how many elements it has and how
# many places these are apart. The last axis has no end.
NOISE_KEY, NOISE_FIRST, NOISE_AXES = range(3)
NOISE_BITS = 15  # of a random number: with the 16 bits of a step and a sign they fill an int32
ENDLESS = 1 << 62
DRAWN_TOGETHER = 4096  # elements: their numbers, of two bytes, stay in the first cache
