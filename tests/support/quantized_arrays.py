"""Quantized arrays of every kind of storage."""

import ml_dtypes
import numpy as np

import fastq
from fastq.formats.qtypes import as_qtype

INTEGERS = np.arange(-8, 8, dtype=np.int8).reshape(2, 8)


def array(codes, scale, zero_point, dtype, shape=None, **options):
    params = fastq.QParams(scale, zero_point, dtype, **options)
    return fastq.QuantizedArray(codes, params, codes.shape if shape is None else shape)


def arrays():
    """Quantized arrays of every kind of storage, made without a kernel."""
    f4, e4m3, e8m0 = np.float32, np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e8m0fnu)
    e4fnuz, fp4 = np.dtype(ml_dtypes.float8_e4m3fnuz), np.dtype(ml_dtypes.float4_e2m1fn)
    bits = np.arange(64, dtype=np.uint8).reshape(2, 32)
    yield "int8", array(INTEGERS, f4(0.25), np.int8(3), "int8")
    yield "rank 0", array(np.array(7, np.uint8), f4(0.25), np.uint8(3), "uint8")
    yield "empty", array(np.zeros((0, 3), np.int8), f4(1), np.int8(0), "int8")
    yield "float64", array(INTEGERS, np.array([0.1, 1e-300]), np.zeros(2, np.int8), "int8", axis=0, symmetric=True)
    yield "computed", array(INTEGERS, np.array(0.1), np.int8(0), "int8", computed=f4, convention="torch-pt2e")
    yield "bits", array(INTEGERS, f4(1), np.int8(0), as_qtype("int8").with_bits(5))
    pairs, blocks = {"axis": 1, "block_size": 2}, {"axis": 1, "block_size": 32}
    own = fastq.Convention("own", zero_point="float", zero_point_inside=True, variants=(("blocks", "fused", True),))
    yield (
        "convention",
        array(INTEGERS, np.ones((2, 4), f4), np.ones((2, 4), f4), "int8", **pairs, convention=own),
    )
    yield (
        "packed",
        array(bits, np.ones((2, 2), f4), np.zeros((2, 2), np.uint8), "uint4", (2, 64), **blocks),
    )
    yield "axes", array(INTEGERS.reshape(2, 2, 4), np.ones((2, 2), f4), np.zeros((2, 2), np.int8), "int8", axis=(0, 1))
    yield "int16", array(INTEGERS.astype(np.int16).T, f4(1), np.int16(0), "int16")
    yield "float8", array(bits.view(e4m3), f4(1), np.zeros((), e4m3), "float8_e4m3fn")
    yield "float8 fnuz", array(bits.view(e4fnuz), f4(1), np.zeros((), e4fnuz), "float8_e4m3fnuz")
    scale = np.full((2, 2), 127, np.uint8)
    yield (
        "mxfp4",
        array(bits, scale.view(e8m0), np.zeros((2, 2), fp4), "mxfp4", (2, 64), **blocks, symmetric=True),
    )
    marked = np.array([[56, 127, 1, 126]] * 2, np.uint8).view(e4m3)
    zeros, tensor = np.zeros((2, 4), fp4), np.array(0.5, f4)
    options = {"axis": 1, "block_size": 16, "symmetric": True, "tensor_scale": tensor}
    yield "nvfp4", array(bits, marked, zeros, "nvfp4", (2, 64), **options)
    yield (
        "nf4",
        array(bits, np.array([[0, -1]] * 2, f4), np.zeros((2, 2), np.uint8), "nf4", (2, 64), **blocks),
    )


ARRAYS = dict(arrays())
