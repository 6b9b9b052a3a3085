"""faiss: ScalarQuantizer.decode_c, which is the decoder under decode and writes into given memory."""

from __future__ import annotations

from functools import partial

import faiss
import numpy as np

from .. import data
from ..calls import Array, Operands
from . import Builders, Runner, own_threads

# With one scale. Vectors of 64 to 1024 numbers decode equally fast; 16 is half as fast, and 4096 leaves small arrays to
# one thread.
DIMENSION = 1024


def trained(o: Operands, dimension: int) -> Array:
    """Parameters with which faiss decodes lowest + (code + 0.5) / 255 * difference.

    These are the values (code - zero_point) * scale.
    """
    scales, zeros = (np.broadcast_to(each.ravel().astype(np.float64), dimension) for each in o.beside)
    return np.concatenate([-(128 + zeros + 0.5) * scales, 255 * scales]).astype(np.float32)


def decoder(kind: str, o: Operands) -> Runner:
    faiss.omp_set_num_threads(own_threads())
    codes = data.empty(o.shape, np.uint8, aligned=True)
    np.bitwise_xor(o.first.view(np.uint8), np.uint8(128), out=codes)
    values = o.result()
    dimension = o.shape[1] if o.symmetric else DIMENSION
    quantizer = faiss.ScalarQuantizer(dimension, getattr(faiss.ScalarQuantizer, kind))
    faiss.copy_array_to_vector(trained(o, 1 if kind == "QT_8bit_uniform" else dimension), quantizer.trained)
    count = codes.size // dimension
    run = partial(quantizer.decode_c, faiss.swig_ptr(codes), faiss.swig_ptr(values), count)
    return Runner(run, lambda: {"values": values}, keep=(codes, values, quantizer))


BUILDERS: Builders = {("dequantize_linear", kind): partial(decoder, kind) for kind in ("QT_8bit_uniform", "QT_8bit")}
