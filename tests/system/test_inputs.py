"""Arrays and dtypes of other libraries: taken without a copy, or refused with a reason."""

import array
import re

import ml_dtypes
import numpy as np
import pytest

import fastq
from fastq import reference
from fastq.formats.conventions.table import as_convention
from fastq.formats.qtypes import QTYPES, as_qtype
from fastq.system.arguments import as_dtype
from fastq.system.arrays_of_callers import as_array

VALUES = np.linspace(-2, 3, 24, dtype=np.float32).reshape(4, 6)


class OnlyDLPack:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, values, device=(1, 0)):
        self.values, self.device = values, device

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


class OnACard(OnlyDLPack):
    """An array of a device, which NumPy would make a copy of."""

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("copied unasked")


def address(x):
    return as_array(x, "x").__array_interface__["data"][0]


@pytest.mark.parametrize(
    "of",
    [memoryview, OnlyDLPack, lambda values: array.array("f", values.ravel()), lambda values: values.view(np.recarray)],
    ids=["memoryview", "DLPack", "array.array", "subclass"],
)
def test_memory_is_shared(of):
    x = of(VALUES)
    taken = as_array(x, "x")
    assert taken.tobytes() == VALUES.tobytes()
    other = np.asarray(x) if not isinstance(x, OnlyDLPack) else VALUES
    assert np.shares_memory(taken, other)


def test_arrays_of_dlpack_are_quantized():
    # contract 15.3
    assert (
        fastq.quantize(OnlyDLPack(VALUES), "int8").codes.tobytes() == reference.quantize(VALUES, "int8").codes.tobytes()
    )


@pytest.mark.parametrize("device", [(2, 0), (10, 1), (8, 0)])
@pytest.mark.parametrize("kind", [OnlyDLPack, OnACard])
def test_memory_of_a_device_is_refused(kind, device):
    # contract 15.3
    with pytest.raises(TypeError, match=rf"x lies in the memory of a device, {device[0]} {device[1]} of DLPack: copy"):
        fastq.quantize(kind(VALUES, device), "int8")


def test_pinned_memory_is_taken():
    assert np.shares_memory(as_array(OnlyDLPack(VALUES, (3, 0)), "x"), VALUES)


def test_dlpack_that_fails_is_refused_by_name():
    class Broken(OnlyDLPack):
        def __dlpack__(self, **options):
            raise BufferError("exported already")

    with pytest.raises(
        TypeError, match="x must be an object that NumPy can turn into an array; Broken: exported already"
    ):
        fastq.quantize(Broken(VALUES), "int8")


class TestTorch:
    """Tensors of PyTorch."""

    @pytest.fixture(autouse=True)
    def _library(self):
        type(self).torch = pytest.importorskip("torch", reason="no torch, which the extra conformance installs")

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int32"])
    def test_memory_is_shared(self, dtype):
        tensor = self.torch.arange(12).reshape(3, 4).to(getattr(self.torch, dtype))
        assert address(tensor) == tensor.data_ptr()
        assert as_array(tensor, "x").dtype.name == dtype
        assert as_array(tensor.T, "x").astype(float).tolist() == np.arange(12.0).reshape(3, 4).T.tolist()

    @pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
    def test_codes_of_float8_have_their_bits(self, dtype):
        tensor = self.torch.linspace(-9, 9, 7).to(getattr(self.torch, dtype))
        taken = as_array(tensor, "codes")
        assert taken.dtype.name == dtype
        assert taken.astype(np.float32).tolist() == tensor.float().tolist()
        assert address(tensor) == tensor.data_ptr()

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_tensor_with_a_gradient_is_refused(self, dtype):
        tensor = self.torch.ones(3, dtype=getattr(self.torch, dtype), requires_grad=True)
        with pytest.raises(TypeError, match=r"x must be .*detach"):
            fastq.quantize(tensor, "int8")

    def test_a_tensor_without_memory_is_refused(self):
        with pytest.raises(TypeError, match=r"x must be an object that NumPy can turn into an array; Tensor: .*meta"):
            fastq.quantize(self.torch.ones(3, device="meta"), "int8")

    def test_pairs_of_float4_are_codes_of_half_their_bytes(self):
        pairs = self.torch.arange(32, dtype=self.torch.uint8).reshape(4, 8).view(self.torch.float4_e2m1fn_x2)
        with pytest.raises(TypeError, match=r"x must be an object that NumPy .* two codes in a byte") as raised:
            fastq.quantize(pairs, "int8")
        call = re.search(r"fastq\.unpack\(.*?\)\)", str(raised.value))[0]
        codes = eval(call, {"fastq": fastq, "torch": self.torch, "x": pairs})
        assert codes.astype(np.float32)[0].tolist() == [0, 0, 0.5, 0, 1, 0, 1.5, 0, 2, 0, 3, 0, 4, 0, 6, 0]

    def test_dtypes_are_taken_by_name(self):
        assert as_qtype(self.torch.int8) is QTYPES["int8"]
        assert as_qtype(self.torch.float8_e4m3fn) is QTYPES["float8_e4m3fn"]
        assert as_dtype(self.torch.bfloat16, "dtype", "any") == ml_dtypes.bfloat16
        with pytest.raises(TypeError, match=r"dtype must be one of the formats .*not torch.quint8"):
            as_qtype(self.torch.quint8)
        q = fastq.quantize(self.torch.from_numpy(VALUES), self.torch.uint8)
        assert q.codes.tobytes() == reference.quantize(VALUES, "uint8").codes.tobytes()


def test_pairs_of_float4_without_torch():
    class Pairs(OnlyDLPack):
        dtype = "torch.float4_e2m1fn_x2"
        shape = (4, 8)

    with pytest.raises(TypeError, match=r"two codes in a byte: fastq.unpack\(x.view.*, shape=\(4, 16\)\) has one"):
        fastq.quantize(Pairs(VALUES), "int8")


class TestMlx:
    """Arrays of MLX, whose bfloat16 NumPy takes neither from their buffers nor from DLPack."""

    @pytest.fixture(autouse=True)
    def _library(self):
        reason = "no mlx, which the extra conformance installs"
        type(self).mlx = pytest.importorskip("mlx.core", reason=reason, exc_type=ImportError)

    def test_memory_of_bfloat16_is_shared(self):
        x = self.mlx.array(VALUES).astype(self.mlx.bfloat16)
        self.mlx.eval(x)
        assert address(x) == address(x)
        assert as_array(x, "x").tobytes() == VALUES.astype(ml_dtypes.bfloat16).tobytes()
        assert as_array(x, "x").shape == VALUES.shape

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
    def test_views_have_their_elements(self, dtype):
        x = self.mlx.array(VALUES).astype(getattr(self.mlx, dtype))
        expected = VALUES.astype(dtype if dtype != "bfloat16" else ml_dtypes.bfloat16)
        views = (lambda a: a.T, lambda a: a[:, ::2], lambda a: a[1:3], lambda a: a[:0], lambda a: a[1, 2])
        for view in views:
            taken = as_array(view(x), "x")
            assert (taken.dtype, taken.shape) == (expected.dtype, view(expected).shape)
            assert taken.tobytes() == view(expected).tobytes()

    def test_codes_are_those_of_numpy(self):
        x = self.mlx.array(VALUES).astype(self.mlx.bfloat16)
        q = fastq.quantize(x, "int8", axis=0)
        expected = reference.quantize(VALUES.astype(ml_dtypes.bfloat16), "int8", axis=0)
        assert q.codes.tobytes() == expected.codes.tobytes()
        assert q.scale.tobytes() == expected.scale.tobytes()


@pytest.mark.parametrize(
    ("nan", "message"),
    [
        ("zer", "nan must be one of 'raise', 'zero', 'keep', not 'zer': did you mean zero?"),
        ("Keep", "nan must be one of 'raise', 'zero', 'keep', not 'Keep': did you mean keep?"),
        ("", "nan must be one of 'raise', 'zero', 'keep', not ''"),
        (0, "nan must be one of 'raise', 'zero', 'keep', not 0"),
    ],
)
def test_a_choice_that_is_none_is_told_the_nearest(nan, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fastq.quantize(VALUES, "float8_e4m3fn", nan=nan)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_arrays_of_jax(dtype):
    jax = pytest.importorskip("jax", reason="no jax, which the extra bench installs")
    x = jax.numpy.arange(12).reshape(3, 4).astype(dtype)
    assert address(x) == x.unsafe_buffer_pointer()
    assert as_array(x, "x").dtype.name == dtype
    assert as_dtype(getattr(jax.numpy, dtype), "dtype", "any").name == dtype


def test_arrays_of_pyarrow():
    pyarrow = pytest.importorskip("pyarrow", reason="no pyarrow, which at 55 MB no extra installs")
    x = pyarrow.array(VALUES.ravel())
    assert address(x) == x.buffers()[1].address
    tensor = pyarrow.Tensor.from_numpy(VALUES)
    assert np.shares_memory(as_array(tensor, "x"), VALUES)
    with pytest.raises(ValueError, match="x has 1 NaN"):
        reference.quantize(pyarrow.array([1.0, None]), "int8")


def test_arrays_of_the_array_api():
    xp = pytest.importorskip("array_api_strict", reason="no array-api-strict")
    x = xp.asarray(VALUES, copy=False)
    assert np.shares_memory(as_array(x, "x"), VALUES)
    assert as_qtype(xp.uint16) is QTYPES["uint16"]
    assert as_dtype(xp.float64, "dtype", "any") == np.float64
    with pytest.raises(TypeError, match=r"dtype must be one of .*not 'complex64'"):
        as_qtype(xp.complex64)
    with pytest.raises(TypeError, match=r"x must be an object that NumPy can turn into an array; Array: .*device1"):
        reference.quantize(xp.asarray(VALUES, device=xp.Device("device1")), "int8")


class Sparse:
    """What NumPy makes one object of, as of sparse matrices of SciPy."""


@pytest.mark.parametrize(
    "x", [None, {"a": 1.0}, {1.0}, (n for n in range(3)), Sparse()], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("api", [reference, fastq], ids=["reference", "fastq"])
def test_what_is_no_array_is_refused_by_its_type(api, x):
    with pytest.raises(TypeError, match=r"^x must be an array of numbers, not "):
        api.quantize(x, "int8")
    with pytest.raises(TypeError, match=r"^scale must be an array of numbers, not "):
        api.dequantize_linear(np.zeros(3, np.int8), x)


# Names that are nearly right


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("fp8", "float8_e4m3fn"),
        ("e5m2", "float8_e5m2"),
        ("float4", "float4_e2m1fn"),
        ("INT8", "int8"),
        ("u4", "uint4"),
        ("i1", "int8"),
        ("i2", "int16"),
        ("u1", "uint8"),
        ("mxfp8", "mxfp8_e4m3"),
        ("nvfp_4", "nvfp4"),
        ("float8_e4m3", "float8_e4m3fn"),
    ],
)
def test_a_format_that_was_meant_is_named(given, meant):
    with pytest.raises(TypeError, match=rf"mxint8, nvfp4, not '{given}': did you mean {meant}\?$"):
        as_qtype(given)


@pytest.mark.parametrize("given", ["float32", "uint32", "xyz", np.int64, "f4"])
def test_nothing_is_named_that_was_hardly_meant(given):
    with pytest.raises(TypeError) as raised:
        as_qtype(given)
    assert "did you mean" not in str(raised.value)


def test_messages_name_families():
    with pytest.raises(TypeError) as raised:
        as_qtype("xyz")
    words = str(raised.value)
    assert len(words) < 200
    for family in ("int1 to int8", "uint16", "float8_*", "float6_*", "float4_*", "mxfp8_*", "mxint8", "nvfp4"):
        assert family in words


def test_a_convention_that_was_meant_is_named():
    for given, meant in (("pytorch", "torch"), ("onnx-runtime", "onnxruntime"), ("Faiss", "faiss")):
        with pytest.raises(ValueError, match=rf"not '{given}': did you mean {meant}\?$"):
            as_convention(given)
    with pytest.raises(ValueError, match=r"not 3$"):
        as_convention(3)
