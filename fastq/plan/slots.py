"""The slots of launches: which operand of a call each pointer of a kernel is, by operation.

The driver takes operands by position. It knows the first four: the result, `OUT`, shares memory with none of the other
three, and the third and the fourth may be checked as scales and zero points (see `Checks`). All others are what the
operation says here, each under a name of its own.
"""

from __future__ import annotations

from fastq.engine.runtime.shared_records import NONE, OUT, SCALE, X
from fastq.engine.runtime.shared_records import ZERO as ZERO_POINT

# conversions by scale and zero point
CONVERT = X, OUT, SCALE, ZERO_POINT, NONE
NOISE = 4  # words by which random numbers are drawn
CONVERT_AT_RANDOM = X, OUT, SCALE, ZERO_POINT, NOISE

# copies, and conversions whose parameters are among the elements
COPY = X, OUT, NONE, NONE, NONE

# minima and maxima, which follow the operands of a conversion
LO = 5
HI = 6
REDUCE_TO_MINMAX = X, LO, HI, NONE, NONE
MERGE_MINMAX = LO, HI, NONE, NONE, NONE
PARAMETERS_OF_RANGES = LO, HI, SCALE, ZERO_POINT, NONE
PARAMETERS_IN_PLACE = SCALE, ZERO_POINT, NONE, NONE, NONE

# comparisons: the second operand is the approximation
APPROXIMATION = OUT
ERRORS = 4  # sums of errors
COMPARE = X, APPROXIMATION, SCALE, ZERO_POINT, ERRORS

# histograms, and bits of neighbours
COUNTS = 4
COUNT_IN_BINS = X, LO, HI, COUNTS, NONE
FOLLOWING = OUT  # the neighbour of each element
BIT_PAIRS = X, FOLLOWING, COUNTS, NONE, NONE

# the search for ranges
BEST_FACTORS = 2  # factors of the ranges that candidates are around
RANGE_SEARCH = X, LO, HI, BEST_FACTORS, ERRORS

# rounding of floats
TABLE = 2  # dropped bits of each binade
ROUND_BITS = X, OUT, TABLE, NONE, NONE

# blocks of GGUF, by the importance of columns
IMPORTANCE = 2
WEIGHTED_BLOCKS = X, OUT, IMPORTANCE, NONE, NONE

# requantization: first the words of channels are made, from multipliers and biases
MULTIPLIER = SCALE
BIAS = 4
FIRST_WORDS = 5
SECOND_WORDS = 6
CHANNELS = MULTIPLIER, ZERO_POINT, BIAS, FIRST_WORDS, SECOND_WORDS
REQUANTIZE_SUMS = X, OUT, FIRST_WORDS, SECOND_WORDS, NONE
