"""Outputs upon inputs, whoever made the arrays: that an array has no base does not say that it owns its memory."""

import ctypes
import functools
import math
import types

import numba
import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq import reference

BEGIN = 4096  # of an input within its memory, in bytes


@numba.extending.intrinsic
def _pointer(context, address):
    def emit(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(numba.types.voidptr))

    return numba.types.voidptr(address), emit


@functools.cache
def _compiled(dtype):
    return numba.njit(lambda address, shape: numba.carray(_pointer(address), shape, dtype))


def _carray(memory, offset, shape, dtype):
    """An array that compiled code makes of an address: neither has it a base, nor does it own its memory."""
    return _compiled(dtype)(memory.ctypes.data + offset, shape)


def _ctypes(memory, offset, shape, dtype):
    pointer = ctypes.cast(memory.ctypes.data + offset, ctypes.POINTER(ctypes.c_uint8))
    return np.ctypeslib.as_array(pointer, (math.prod(shape) * dtype.itemsize,)).view(dtype).reshape(shape)


def _interface(memory, offset, shape, dtype):
    interface = {"version": 3, "data": (memory.ctypes.data + offset, False), "typestr": dtype.str, "shape": shape}
    return np.asarray(types.SimpleNamespace(__array_interface__=interface))


def _view(memory, offset, shape, dtype):
    return memory[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _frombuffer(memory, offset, shape, dtype):
    return np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape)


# from an array of bytes, an offset in it, a shape and a dtype to an array of that memory
MAKERS = {
    "carray": _carray,
    "ctypes": _ctypes,
    "frombuffer": _frombuffer,
    "memoryview": lambda *given: np.asarray(memoryview(_view(*given))),
    "interface": _interface,
    "dlpack": lambda memory, *given: _view(np.from_dlpack(memory), *given),
    "view": _view,
}

_RNG = np.random.default_rng(0)
X = _RNG.standard_normal((20, 64)).astype(np.float32)
SCALE, ZERO = _RNG.uniform(0.1, 1, 20).astype(np.float32), _RNG.integers(-9, 9, 20, np.int8)
IMPORTANCE = _RNG.uniform(0.1, 1, 64).astype(np.float32)
GIVEN, PACKED = reference.quantize(X, "int8", axis=0), reference.quantize(X, "uint4", axis=1, block_size=16)
Q8_0 = reference.gguf.quantize(X, "Q8_0")


def _with_qparams(operation):
    def call(module, x, scale, zero_point, **out):
        qparams = fastq.QParams(scale, zero_point, "int8", axis=0)
        return getattr(module, operation)(x, qparams=qparams, **out)

    return call, (X, GIVEN.scale, GIVEN.zero_point)


def _dequantize(q):
    def call(module, codes, scale, zero_point, **out):
        qparams = fastq.QParams(scale, zero_point, q.dtype, axis=q.axis, block_size=q.block_size)
        return module.dequantize(fastq.QuantizedArray(codes, qparams, q.shape), **out)

    return call, (q.codes, q.scale, q.zero_point)


def _of_x(operation, *arguments, **options):
    return lambda module, x, **out: getattr(module, operation)(x, *arguments, **options, **out), (X,)


# each operation with `out=`: a call of a module with arrays, and the arrays
OPERATIONS = {
    "quantize": _of_x("quantize", "int8"),
    "quantize rows": _of_x("quantize", "int8", axis=0),
    "quantize packed": _of_x("quantize", "uint4", axis=1, block_size=32),
    "quantize odd blocks": _of_x("quantize", "int8", axis=1, block_size=5),
    "quantize mse": _of_x("quantize", "int8", axis=0, range="mse"),
    "quantize nvfp4": _of_x("quantize", "nvfp4"),
    "quantize qparams": _with_qparams("quantize"),
    "fake_quantize": _of_x("fake_quantize", "int8"),
    "fake_quantize columns": _of_x("fake_quantize", "int8", axis=1),
    "fake_quantize blocks of rows": _of_x("fake_quantize", "int8", axis=0, block_size=7),
    "fake_quantize qparams": _with_qparams("fake_quantize"),
    "quantize_linear": _of_x("quantize_linear", 0.1, dtype="int8"),
    "quantize_linear list": _of_x("quantize_linear", [0.1], dtype="int8"),
    "quantize_linear rows": (
        lambda module, x, scale, zero, **out: module.quantize_linear(x, scale, zero, "int8", axis=0, **out),
        (X, SCALE, ZERO),
    ),
    "dequantize_linear": (
        lambda module, codes, scale, zero, **out: module.dequantize_linear(codes, scale, zero, axis=0, **out),
        (GIVEN.codes, SCALE, ZERO),
    ),
    "dequantize": _dequantize(GIVEN),
    "dequantize packed": _dequantize(PACKED),
    "binarize": _of_x("binarize"),
    "bitround": _of_x("bitround", keepbits=5),
    "bitround digits": _of_x("bitround", digits=2),
    "requantize rows": (
        lambda module, acc, multiplier, bias, **out: module.requantize(
            acc, multiplier, 3, "int8", axis=0, bias=bias, **out
        ),
        (X.view(np.int32), SCALE / 1e6, np.arange(len(SCALE), dtype=np.int32)),
    ),
    "gguf.quantize": (
        lambda module, x, importance, **out: module.gguf.quantize(x, "Q4_K", importance=importance, **out),
        (_RNG.standard_normal((5, 256)).astype(np.float32), np.resize(IMPORTANCE, 256)),
    ),
    "gguf.quantize scaled": (lambda module, x, **out: module.gguf.quantize(x, "Q8_0", **out), (X,)),
    "gguf.dequantize": (lambda module, data, **out: module.gguf.dequantize(data, "Q8_0", **out), (Q8_0,)),
}


def _result(found):
    return found.codes if isinstance(found, fastq.QuantizedArray) else found


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("maker", MAKERS)
def test_an_output_upon_an_input(operation, maker):
    call, arrays = OPERATIONS[operation]
    expected = _result(call(reference, *(x.copy() for x in arrays)))
    size, step = expected.nbytes, expected.itemsize
    makers_of_out = {maker, "carray", "view"} - {"dlpack"}  # whose arrays are read-only before NumPy 2.1
    for place, given in enumerate(arrays):
        for offset in (0, 12 * step, 1, -8 * step, step - size, given.nbytes - step, given.nbytes, -size):
            for maker_of_out in makers_of_out:
                memory = np.zeros(2 * BEGIN + given.nbytes + 2 * size, np.uint8)
                begin = BEGIN + size
                _view(memory, begin, given.shape, given.dtype)[...] = given
                taken = [each.copy() for each in arrays]
                taken[place] = MAKERS[maker](memory, begin, given.shape, given.dtype)
                out = MAKERS[maker_of_out](memory, begin + offset, expected.shape, expected.dtype)
                assert _result(call(fastq, *taken, out=out)) is out
                same_bytes(out, expected)


def test_an_output_upon_an_input_that_owns_its_memory():
    x = X.copy()
    out = _carray(x.reshape(-1).view(np.uint8), 256, x.shape, np.dtype(np.int8))
    assert x.flags.owndata
    assert out.base is None
    same_bytes(fastq.quantize_linear(x, 0.1, dtype="int8", out=out), reference.quantize_linear(X, 0.1, dtype="int8"))


@pytest.mark.parametrize("step", [-1, 2])
@pytest.mark.parametrize("count", [1, 300])
def test_a_scale_of_the_whole_array_is_that_of_the_copy(step, count):
    """In place on strided memory: what is copied before has other strides than the array that the plan was made for."""
    values = np.random.default_rng(9).standard_normal(16 * count).astype(np.float32)
    x = np.zeros(2 * values.size, np.float32)[::step][: values.size]
    x[...] = values
    assert fastq.fake_quantize(x, "nvfp4", out=x) is x
    np.testing.assert_array_equal(x, reference.fake_quantize(values, "nvfp4"))
