"""What the cells of a picture of an array show: of each the element of the largest magnitude, band by band of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fastq.results import QuantizedArray
from fastq.results.elements import codes_at
from fastq.system.arguments import as_array, is_a
from fastq.system.dtypes import Array

Rows = QuantizedArray | Array  # a matrix of which rows can be taken

CELLS = 256  # cells a side at most: fewer than a panel of the default figure has pixels, so that none is left out
STACKED = 4  # an array this many times wider than high has its panels under each other
# elements decoded, and looked at together; bound the temporaries. Those of the latter stay in cache
BAND, AT_ONCE = 1 << 20, 1 << 18


class Cells(NamedTuple):
    """What each cell of the picture shows; arrays of one shape, at most CELLS a side; codes of 0 where there are none.

    A cell has `step` rows and columns of a matrix of shape `shape`.
    """

    shape: tuple[int, int]
    step: tuple[int, int]
    original: Array
    codes: Array
    decoded: Array
    error: Array


def folded(a: Array) -> Array:
    """Return `a` as a matrix of rows along its last axis."""
    return a.reshape(-1, a.shape[-1] if a.ndim else 1)


def cells_of(x: Array, q: QuantizedArray | ArrayLike) -> Cells:
    """Return what to show of an array and its approximation."""
    matrix = folded(x)
    shape, step = (matrix.shape[0], matrix.shape[1]), _step((matrix.shape[0], matrix.shape[1]))
    shown = np.zeros((4, math.ceil(shape[0] / step[0]), math.ceil(shape[1] / step[1])))
    places = np.empty(shown.shape[1:], np.intp)
    approximation = _by_rows(q, shape, step[0])
    for row, rows in _bands(shape, step):
        decoded = approximation[rows]
        values = decoded.dequantize() if isinstance(decoded, QuantizedArray) else decoded
        for cell, tile in _tiles(row, values.shape, step):
            original, other = _as_float(matrix[rows][tile]), _as_float(values[tile])
            largest = _largest(original, step)
            shown[0][cell], shown[2][cell] = original[largest], other[largest]
            furthest = _largest(original - other, step)
            shown[3][cell] = original[furthest].astype(np.float64) - other[furthest].astype(np.float64)
            places[cell] = (largest[0] + (rows.start + tile[0].start)) * shape[1] + largest[1] + tile[1].start
    if is_a(q, QuantizedArray):
        where = np.unravel_index(places, x.shape) if x.ndim else ()
        shown[1] = codes_at(as_array(q.codes, "q.codes"), q.dtype, where)
    return Cells(shape, step, *shown)


def _by_rows(q: QuantizedArray | ArrayLike, shape: tuple[int, int], step: int) -> Rows:
    """Return an approximation as a matrix; decoded, if it can't be cut after each `step` rows."""
    if not is_a(q, QuantizedArray):
        return folded(as_array(q, "q"))
    try:
        matrix = q.reshape(shape)
        matrix[step:]
    except ValueError:  # parameters belong to several axes that are one here, or to blocks of rows
        return folded(q.dequantize())
    return matrix


def is_stacked(shape: tuple[int, int]) -> bool:
    """Return whether panels are drawn under each other."""
    return shape[1] >= STACKED * shape[0]


def is_square(shape: tuple[int, int]) -> bool:
    """Return whether elements are drawn as high as wide, rather than the picture filling its place."""
    return shape[0] / STACKED < shape[1] < STACKED * shape[0]


def _step(shape: tuple[int, int]) -> tuple[int, int]:
    """Return how many elements a cell is high and wide, so that it gets a pixel at least."""
    if is_square(shape):
        return (math.ceil(max(shape) / CELLS),) * 2
    return math.ceil(shape[0] / (CELLS // STACKED if is_stacked(shape) else CELLS)), math.ceil(shape[1] / CELLS)


def _bands(shape: tuple[int, int], step: tuple[int, int]) -> Iterator[tuple[int, slice]]:
    """Yield bands of rows, and the row of cells that each begins with."""
    height = step[0] * max(BAND // (step[0] * shape[1]), 1)
    for start in range(0, shape[0], height):
        yield start // step[0], slice(start, min(start + height, shape[0]))


def _tiles(
    row: int, shape: tuple[int, ...], step: tuple[int, int]
) -> Iterator[tuple[tuple[int, slice], tuple[slice, slice]]]:
    """Yield the tiles of a band, each a piece of a row of cells: where it is among the cells, and in the band."""
    width = max(AT_ONCE // (step[0] * step[1]), 1)
    for k, top in enumerate(range(0, shape[0], step[0])):
        for column in range(0, math.ceil(shape[1] / step[1]), width):
            elements = (slice(top, top + step[0]), slice(column * step[1], (column + width) * step[1]))
            yield (row + k, slice(column, column + width)), elements


def _as_float(tile: Array) -> Array:
    return tile if tile.dtype in (np.float32, np.float64) else tile.astype(np.float64)


def _largest(tile: Array, step: tuple[int, int]) -> tuple[Array, Array]:
    """Return row and column of the element of the largest magnitude in each cell of a row of cells."""
    magnitude = np.abs(tile)
    heights = magnitude.max(axis=0)  # and of few columns the row, later: 5 times as fast as `argmax` of all
    if missing := -heights.size % step[1]:
        heights = np.append(heights, np.full(missing, -1.0, heights.dtype))
    column = heights.reshape(-1, step[1]).argmax(axis=1) + np.arange(0, heights.size, step[1])
    return magnitude[:, column].argmax(axis=0), column
