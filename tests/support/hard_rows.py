"""Rows that are hard to quantize: of few elements, of whole blocks and a rest, with scales that need a division."""

import ml_dtypes
import numpy as np
from catalogue import values

import fastq
from fastq.formats.codebooks import CODEBOOKS
from fastq.formats.qtypes import QTYPES

# where a scale needs a division, in every place next to those that need none
SCALES = np.array([0.02, 3.0, 2.0**-130, 0.5, 2.0**110, 1e-3, 1e-3, 2.0**-149, 0.25], np.float32)
UNEVEN = {"int8": 1, "uint16": 1, "float8_e4m3fn": 1, "int4": 2, "uint3": 8}  # codes that fill whole bytes
LENGTHS = (8, 15, 16, 17, 23, 24, 31, 32, 33, 48, 64, 240, 256, 272)


def parameters(code, runs, length, **where):
    """QParams of runs, for arrays of a number of them one after the other."""
    scale = np.resize(SCALES, runs)
    qtype = fastq.choose_qparams(np.ones(4, np.float32), code).dtype
    zero_point = np.zeros(runs) if qtype.element else np.resize([0, 1, 2, 3], runs)
    return fastq.QParams(scale, zero_point.astype(qtype.storage), code, **where)


def uneven(length, nan):
    """80 rows of which some have NaN, or a range so small that its scale needs a division."""
    x = values("float32", 80 * length, length).reshape(80, length)
    x[::11] *= np.float32(2.0**-120)
    x[5::17] = 0
    if nan:
        x[3::13, length // 2] = x[40, 0] = x[41, -1] = np.nan
    return x


# elements of a row and of a block: rests of less than a register, of one, and of more; odd blocks; many and few blocks
ROWS = [(24, 16), (17, 16), (31, 16), (40, 16), (40, 32), (33, 32), (63, 32), (96, 64), (136, 64), (60, 40), (100, 24)]
ROWS += [(1000, 32), (600, 256), (272, 256), (9, 8), (20, 8), (47, 16)]


def ragged_rows(dtype, rows, length, block):
    """Rows of which some have zeros, or a range so small that its scale needs a division."""
    x = values("float32", rows * length, length).clip(-100, 100).reshape(rows, length)
    x[::11] *= np.float32(2.0**-120)
    x[5::17] = 0
    x[7::19, block:] *= 9
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def where_of(code, block):
    """Options of blocks, None where a format has others."""
    own = QTYPES[code].block_size
    return {"axis": 1, "block_size": block} if own in (0, block) else None


def ragged_works(code):
    """Rows of which a format has such blocks."""
    return [(length, block) for length, block in ROWS if where_of(code, block)]


def hard_values(name, rows=40, columns=512):
    """Normal numbers of many magnitudes, thresholds and their neighbours, zeros, blocks of zeros and tiny scales."""
    rng, row = np.random.default_rng(0), CODEBOOKS[name]
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    near = np.array(row.thresholds, np.float32)[rng.integers(0, len(row.thresholds), (rows, columns))]
    beside = np.nextafter(near, rng.choice(np.array([-2, 2], np.float32), near.shape))
    x[::2] = np.where(rng.integers(0, 2, near.shape), near, beside)[::2]
    x[::2, ::32] = 1
    x[::8] *= rng.uniform(1, 2, (len(x[::8]), 1)).astype(np.float32)  # quotients and products then differ
    x[1::4] *= np.float32(2) ** rng.integers(-30, 31, x[1::4].shape).astype(np.float32)
    x[3], x[5], x[7] = 0, x[5] * np.float32(1e-40), -0.0
    return x
