"""ggml's C code, from a library of llama-cpp-python or xllamacpp: what blocks of GGUF are compared with."""

import ctypes
import functools
import importlib.util
from importlib import metadata
from pathlib import Path

import numpy as np

from fastq.formats.gguf import as_block_format

_QUANTIZE = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]


LIBRARIES = {"llama_cpp": "lib/libggml-base.so", "xllamacpp": "xllamacpp.abi3.so"}  # the first that is there


@functools.cache
def package():
    """The package that has the library, None if none is installed; to import it is not needed."""
    return next((name for name in LIBRARIES if importlib.util.find_spec(name)), None)


@functools.cache
def library():
    """The library, None if it is not installed."""
    if package() is None:
        return None
    (folder,) = importlib.util.find_spec(package()).submodule_search_locations
    loaded = ctypes.CDLL(str(Path(folder) / LIBRARIES[package()]))
    loaded.ggml_quantize_chunk.argtypes, loaded.ggml_quantize_chunk.restype = _QUANTIZE, ctypes.c_size_t
    loaded.ggml_type_name.argtypes, loaded.ggml_type_name.restype = [ctypes.c_int], ctypes.c_char_p
    loaded.ggml_type_size.argtypes, loaded.ggml_type_size.restype = [ctypes.c_int], ctypes.c_size_t
    return loaded


def version():
    """Version of the package that the library is part of."""
    distribution = package().replace("llama_cpp", "llama-cpp-python")
    return f"{distribution} {metadata.version(distribution)}"


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
