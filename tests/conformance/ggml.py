"""ggml's C code, from the library of llama-cpp-python or of xllamacpp: what blocks of GGUF are compared with."""

import ctypes
import functools
import importlib.util
from importlib import metadata
from pathlib import Path

import numpy as np

from fastq.formats.gguf import as_block_format

_QUANTIZE = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]

# distributions, their packages and where in these the library is; the first one that is installed counts
_LIBRARIES = (
    ("llama-cpp-python", "llama_cpp", "lib/libggml-base.so"),
    ("xllamacpp", "xllamacpp", "xllamacpp.abi3.so"),
)


def _installed():
    return next((row for row in _LIBRARIES if importlib.util.find_spec(row[1])), None)


@functools.cache
def library():
    """The library, None if it is not installed; to import the package is not needed, and would hinder others."""
    if (found := _installed()) is None:
        return None
    _, package, place = found
    loaded = ctypes.CDLL(str(Path(importlib.util.find_spec(package).submodule_search_locations[0]) / place))
    loaded.ggml_quantize_chunk.argtypes, loaded.ggml_quantize_chunk.restype = _QUANTIZE, ctypes.c_size_t
    loaded.ggml_type_name.argtypes, loaded.ggml_type_name.restype = [ctypes.c_int], ctypes.c_char_p
    loaded.ggml_type_size.argtypes, loaded.ggml_type_size.restype = [ctypes.c_int], ctypes.c_size_t
    return loaded


def version():
    """Version of the package that the library is part of."""
    distribution, *_ = _installed()
    return f"{distribution} {metadata.version(distribution)}"


def is_built_here():
    """Whether the library is that of llama-cpp-python, which pip builds from its source."""
    return library() is not None and version().startswith("llama-cpp-python")


def has(name):
    """Whether this version of the library knows a format."""
    row = as_block_format(name)
    known = library().ggml_type_name(row.number)
    return known is not None and known.decode().upper() == name.upper()


def quantize(x, name, imatrix=None):
    """Quantize rows of float32 with the importance of their columns."""
    row = as_block_format(name)
    assert library().ggml_type_size(row.number) == row.nbytes
    blocks = np.empty((len(x), x.shape[1] // row.size * row.nbytes), np.uint8)
    weights = None if imatrix is None else imatrix.ctypes.data
    written = library().ggml_quantize_chunk(row.number, x.ctypes.data, blocks.ctypes.data, 0, *x.shape, weights)
    assert written == blocks.nbytes
    return blocks


def dequantize(blocks, name):
    """Decode rows of blocks."""
    row = as_block_format(name)
    values = np.empty((len(blocks), blocks.shape[1] // row.nbytes * row.size), np.float32)
    function = getattr(library(), f"dequantize_row_{name.lower().replace('_k', '_K')}")
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    function(blocks.ctypes.data, values.ctypes.data, values.size)
    return values
