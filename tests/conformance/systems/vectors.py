"""Stores of vectors, whose codes are read from an index, or from a file of it."""

import tempfile
from pathlib import Path

import numpy as np
from oracle import Case, Quantized, System


def usearch(x, case):
    """Add vectors to an index of "i8", which makes each as long as 127, and get them as codes."""
    from usearch.index import Index

    index = Index(ndim=x.shape[1], metric="ip", dtype="i8")
    keys = np.arange(len(x))
    index.add(keys, x)
    return Quantized(np.asarray(index.get(keys, np.int8)))


def by_length(x):
    """Return the scale of each vector for usearch."""
    lengths = np.linalg.norm(x.astype(np.float64), axis=1)
    return np.where(lengths > 0, lengths, 127) / 127, np.zeros(len(x), np.int8)


def voyager(x, case):
    """Add vectors to an index of Float8, and get values, which are codes times float32(1 / 127)."""
    import voyager as library

    vectors = x.reshape(-1, 1024)
    index = library.Index(
        library.Space.InnerProduct, num_dimensions=1024, storage_data_type=library.StorageDataType.Float8
    )
    values = index.get_vectors(index.add_items(vectors)).reshape(x.shape)
    return Quantized(np.rint(values * 127.0), values=values)


def sqlite_vec(x, case):
    """Call vec_quantize_int8."""
    import apsw
    import sqlite_vec as library

    database = apsw.Connection(":memory:")
    database.enable_load_extension(True)
    database.load_extension(library.loadable_path())
    rows = x.reshape(-1, 4096)
    words = [database.execute("SELECT vec_quantize_int8(?, 'unit')", (row.tobytes(),)).fetchone()[0] for row in rows]
    return Quantized(np.frombuffer(b"".join(words), np.int8).reshape(x.shape))


def lance(x, case):
    """Build an IVF_SQ index of one partition, and read codes and bounds of its file."""
    import lance as library
    import pyarrow
    from lance.file import LanceFileReader

    vectors = x.reshape(-1, 64)
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), vectors.shape[1])
    with tempfile.TemporaryDirectory() as folder:
        dataset = library.write_dataset(pyarrow.table({"v": column}), f"{folder}/vectors.lance")
        dataset.create_index("v", "IVF_SQ", num_partitions=1, metric="l2")
        (path,) = Path(folder).glob("vectors.lance/_indices/*/auxiliary.idx")
        table = LanceFileReader(str(path)).read_all().to_table()
    order = np.argsort(table["_rowid"].to_numpy())
    codes = table["__sq_code"].combine_chunks().flatten().to_numpy().reshape(vectors.shape)[order]
    return Quantized(codes.reshape(x.shape))


UNIT = np.float64(np.float32(2 / 255))

SYSTEMS = (
    System(
        "usearch",
        ("usearch",),
        usearch,
        (Case("int8", symmetric=True, per="channel", parameters=by_length),),
        neighbour="onnx",
        tie=0.0,
        except_for=("constant", "negative constant", "outlier", "negative outlier", "large", "nearly overflowing"),
        undefined="Vectors lose their lengths, whatever the metric. Where a number times 127 is the length times a "
        "whole number, as in a vector of one number and zeros, the code may be one less: usearch multiplies by "
        "the reciprocal of the length and by 127, in one order in its vector loop and in another for the "
        "last elements. A vector with NaN becomes zeros; of one with an infinity that becomes 127, and the "
        "others 0.",
    ),
    System(
        "voyager",
        ("voyager",),
        voyager,
        (Case("int8", symmetric=True, unit=True, parameters=lambda x: (np.float32(1 / 127), 0)),),
        neighbour="flac",
        tie=1.0,
        undefined="Numbers beyond 1 and below -1.007874 are an error; NaN becomes 0. Space.Cosine makes vectors of "
        "length 1 first. StorageDataType.E4M3 is float8_e4m3fn from 2**-6 on only: below, its codes are multiples of "
        "2**-10 and not in order, which no format here is.",
    ),
    System(
        "sqlite-vec",
        ("sqlite-vec", "apsw"),
        sqlite_vec,
        (Case("int8", unit=True, parameters=lambda x: (UNIT, 128 * UNIT - 1)),),
        neighbour="cf",
        tie=1.0,
        undefined="1.0 becomes 126, since 2 / 255 is rounded up to float32. NaN becomes -128. It does not decode.",
    ),
    System(
        "lance",
        ("pylance", "pyarrow"),
        lance,
        (Case("uint8"),),
        neighbour="sentence-transformers",
        tie=0.0,
        except_for=("large", "nearly overflowing"),
        undefined="Vectors whose distances overflow cannot be indexed; those with NaN or an infinity are left out. "
        "Cosine makes vectors of length 1 first. The range is kept as a scale, and of one range in 512 the scale "
        "gives the number before it: there float64 values next to a border may get the next code.",
    ),
)
