"""fastq under "mlx" and "nncf" gives the bytes of these for float16 and bfloat16, and packs codes as MLX does."""

import ml_dtypes
import numpy as np
import pytest
from systems import mlx, nncf

import fastq

VALUES = 1 << 20
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def weights(dtype, seed=0):
    """Rows of many magnitudes, on both sides of 0 and on one, with zeros, constants and subnormal numbers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((VALUES // 1024, 1024)) * 2.0 ** rng.integers(-12, 8, (VALUES // 1024, 1))
    x[::5] = np.abs(x[::5])
    x[1::5] = -np.abs(x[1::5])
    x[2::50] = np.rint(x[2::50] * 4) / 8
    x[3::50] = 0
    x[4::50] = 0.7
    x[5::50] *= 2.0**-18
    return x.astype(DTYPES[dtype])


def bytes_of(x):
    return np.ascontiguousarray(x).view(np.uint16 if x.dtype.itemsize == 2 else np.uint32)


def in_mlx(x):
    import mlx.core as mx

    return mx.array(bytes_of(x)).view(mx.bfloat16) if x.dtype == ml_dtypes.bfloat16 else mx.array(x)


def of_mlx(array, dtype):
    import mlx.core as mx

    if dtype == ml_dtypes.bfloat16:
        return np.array(array.view(mx.uint16)).view(dtype)
    return np.array(array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("code", mlx.FORMATS)
def test_mlx(code, dtype):
    mx = pytest.importorskip("mlx.core")
    x = weights(dtype)
    for group in mlx.GROUPS:
        words, scales, biases = mlx.words_of(in_mlx(x), code, group)
        q = fastq.quantize(x, code, axis=1, block_size=group, convention="mlx")
        packed = np.array(words).view(np.uint8)
        assert np.count_nonzero(q.codes != packed) == 0  # lowest bits first, as words of 32 bits in this byte order
        for ours, theirs in ((q.scale, scales), (q.zero_point, biases)):
            theirs = of_mlx(theirs, x.dtype)
            assert np.array_equal(ours.astype(x.dtype), theirs)
            assert np.array_equal(ours, theirs.astype(np.float32))
        values = mx.dequantize(words, scales, biases, group_size=group, bits=int(code.removeprefix("uint")))
        ours = q.dequantize(dtype=x.dtype)
        assert np.count_nonzero(bytes_of(ours) != bytes_of(of_mlx(values, x.dtype))) == 0
        assert np.array_equal(
            bytes_of(fastq.fake_quantize(x, code, axis=1, block_size=group, convention="mlx")), bytes_of(ours)
        )


@pytest.mark.parametrize("power", [-3, 0, 5])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_mlx_with_a_scale_of_the_array(dtype, power):
    """A power of two is a factor of the values; with another number other quotients are rounded."""
    mx = pytest.importorskip("mlx.core")
    x, factor = weights(dtype), 2.0**power
    for of_array in (2688 / factor, 0.7 * 2688 / factor):
        options = {"mode": "nvfp4", "global_scale": mx.array(of_array)}
        words, scales = mx.quantize(in_mlx(x), **options)
        values = np.array(mx.dequantize(words, scales, dtype=mx.float32, **options))
        q = fastq.quantize(x * x.dtype.type(factor), "nvfp4", convention="mlx-float")
        differ = np.count_nonzero(q.codes != np.array(words).view(np.uint8))
        if of_array == 2688 / factor:
            assert differ == 0
            assert np.array_equal(q.scale.view(np.uint8), np.array(scales))
            assert np.array_equal(q.dequantize() / np.float32(factor), values)
        else:
            assert differ > x.size / 20


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("code", "symmetric"), nncf.MODES)
@pytest.mark.filterwarnings("ignore")  # those of NNCF itself
def test_nncf(code, symmetric, dtype):
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    x = weights(dtype)
    kind = openvino.Type.bf16 if dtype == "bfloat16" else openvino.Type(x.dtype)
    constant = openvino.op.Constant(openvino.Tensor(bytes_of(x), x.shape, kind))
    group = 0 if "8" in code else 128
    codes, scale, *zero_point = nncf.compressed_constants(constant, nncf.MODES[code, symmetric], group)
    granularity = {"axis": 1, "block_size": group} if group else {"axis": 0}
    q = fastq.quantize(x, code, symmetric=symmetric, convention="nncf", **granularity)
    codes = codes.astype(np.int16) - (zero_point[0] if symmetric and zero_point else np.int16(0))
    assert np.count_nonzero(q.unpacked() != codes.reshape(x.shape)) == 0
    assert np.array_equal(q.scale, scale.reshape(q.scale.shape).astype(np.float32))
    if not symmetric:
        assert np.array_equal(q.zero_point, zero_point[0].reshape(q.zero_point.shape))
