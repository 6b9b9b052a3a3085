"""faiss: ScalarQuantizer.decode_c, which is the decoder under decode and writes into given memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import faiss
import numpy as np
import works
from works import SCALE, ZERO_POINT, Array, Runner

THREADS = 2
# Vectors of 64 to 1024 numbers decode equally fast; 16 is half as fast, and 4096 leaves small arrays to one thread.
DIMENSION = 1024


def trained(kind: str) -> Array:
    """Parameters with which faiss decodes lowest + (code + 0.5) / 255 * difference.

    These are the values (code - zero_point) * scale.
    """
    lowest, difference = -(128 + ZERO_POINT + 0.5) * SCALE, 255 * SCALE
    repeats = 1 if kind == "QT_8bit_uniform" else DIMENSION
    return np.repeat(np.array([lowest, difference], np.float32), repeats)


def decoder(kind: str, size: str) -> Runner:
    faiss.omp_set_num_threads(THREADS)
    codes = works.flat_codes(size, aligned=True).view(np.uint8)
    codes ^= np.uint8(128)
    y = works.like(codes, np.float32, aligned=True)
    quantizer = faiss.ScalarQuantizer(DIMENSION, getattr(faiss.ScalarQuantizer, kind))
    faiss.copy_array_to_vector(trained(kind), quantizer.trained)
    run = partial(quantizer.decode_c, faiss.swig_ptr(codes), faiss.swig_ptr(y), codes.size // DIMENSION)
    return Runner(run, lambda: {"values": y}, keep=(codes, y, quantizer))


BUILDERS: dict[tuple[str, str], Callable[[str], Runner]] = {
    ("dequantize_linear", kind): partial(decoder, kind) for kind in ("QT_8bit_uniform", "QT_8bit")
}
