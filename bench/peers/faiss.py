"""faiss: ScalarQuantizer.decode_c, which is the decoder under decode and writes into given memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import faiss
import numpy as np

from .. import data
from ..cases import Case
from ..data import SCALE, ZERO_POINT, Array
from . import Runner, own_threads

# Vectors of 64 to 1024 numbers decode equally fast; 16 is half as fast, and 4096 leaves small arrays to one thread.
DIMENSION = 1024


def trained(kind: str) -> Array:
    """Parameters with which faiss decodes lowest + (code + 0.5) / 255 * difference.

    These are the values (code - zero_point) * scale.
    """
    lowest, difference = -(128 + ZERO_POINT + 0.5) * SCALE, 255 * SCALE
    repeats = 1 if kind == "QT_8bit_uniform" else DIMENSION
    return np.repeat(np.array([lowest, difference], np.float32), repeats)


def decoder(kind: str, case: Case) -> Runner:
    faiss.omp_set_num_threads(own_threads())
    codes = data.out(case, "bytes", aligned=True).view(np.uint8)
    np.bitwise_xor(data.codes(case, aligned=True).view(np.uint8), np.uint8(128), out=codes)
    values = data.out(case, "values", aligned=True)
    quantizer = faiss.ScalarQuantizer(DIMENSION, getattr(faiss.ScalarQuantizer, kind))
    faiss.copy_array_to_vector(trained(kind), quantizer.trained)
    count = codes.size // DIMENSION
    run = partial(quantizer.decode_c, faiss.swig_ptr(codes), faiss.swig_ptr(values), count)
    return Runner(run, lambda: {"values": values}, keep=(codes, values, quantizer))


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("dequantize_linear", kind): partial(decoder, kind) for kind in ("QT_8bit_uniform", "QT_8bit")
}
