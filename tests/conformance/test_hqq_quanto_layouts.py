"""Tensors of HQQ and optimum-quanto: values are those that these packages decode, and they read what is written."""

import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq.layouts import from_tensors, to_tensors

torch = pytest.importorskip("torch", reason="torch is not installed")

SHAPE = (480, 2304)  # 1,105,920 values; for 3 bits neither number of groups is a multiple of ten


def weights(seed=0):
    """A matrix with outliers, rows of zeros and of one value, and magnitudes of 2**-12 to 2**5."""
    rng = np.random.default_rng(seed)
    w = rng.standard_t(3, SHAPE) * np.exp2(rng.integers(-12, 6, (SHAPE[0], 1)))
    w[3], w[4], w[5] = 0, 0.3, -7
    return w.astype(np.float32)


def as_numpy(tensors):
    return {name: tensor.numpy() for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}


def hqq():
    return pytest.importorskip("hqq.core.quantize", reason="hqq is not installed", exc_type=ImportError)


def layer_of_hqq(w, bits, group_size, axis, optimize=False):
    """A layer of HQQ in float32."""
    package = hqq()
    config = package.BaseQuantizeConfig(nbits=bits, group_size=group_size, axis=axis)
    config["weight_quant_params"]["optimize"] = optimize
    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data = torch.from_numpy(w)
    return package.HQQLinear(layer, config, compute_dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("group_size", [64, None])
@pytest.mark.parametrize("bits", [8, 6, 5, 4, 3, 2, 1])
def test_hqq(bits, group_size, optimize):
    # contract 11.5
    if group_size is None and bits == 3:
        pytest.skip("HQQ does not decode 3 bits without groups")
    layer = layer_of_hqq(weights(), bits, group_size, 1, optimize)
    q = from_tensors(as_numpy(layer.state_dict()), "hqq", dtype=f"uint{bits}")
    expected = layer.dequantize().numpy()
    assert q.shape == SHAPE
    same_bytes(q.dequantize(), expected)
    read = hqq().HQQLinear(None, None, compute_dtype=torch.float32, device="cpu")
    read.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in to_tensors(q, "hqq").items()})
    same_bytes(read.dequantize().numpy(), expected)


@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
def test_groups_of_hqq_across_rows(bits):
    # contract 11.5
    w = weights()
    layer = layer_of_hqq(w, bits, 64, 0)
    shape = (64, w.size // 64)
    q = from_tensors(as_numpy(layer.state_dict()), "hqq", dtype=f"uint{bits}", shape=shape)
    same_bytes(q.dequantize().reshape(SHAPE), layer.dequantize().numpy())


@pytest.mark.parametrize("bits", [4, 2])
def test_unsigned_codes_of_fastq_are_read_by_hqq(bits):
    # contract 11.5
    q = fastq.quantize(weights(), f"uint{bits}", axis=1, block_size=64)
    read = hqq().HQQLinear(None, None, compute_dtype=torch.float32, device="cpu")
    read.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in to_tensors(q, "hqq").items()})
    same_bytes(read.dequantize().numpy(), q.dequantize())


FORMATS = {
    "qint8": "int8",
    "qfloat8_e4m3fn": "float8_e4m3fn",
    "qfloat8_e5m2": "float8_e5m2",
    "qfloat8_e4m3fnuz": "float8_e4m3fnuz",
    "qint4": "uint4",
    "qint2": "uint2",
}


@pytest.mark.parametrize("columns", [2304, 24])  # the second have no groups
@pytest.mark.parametrize("name", FORMATS)
def test_quanto(name, columns):
    # contract 11.6
    quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed", exc_type=ImportError)
    w = np.ascontiguousarray(weights()[:, :columns])
    layer = torch.nn.Linear(columns, SHAPE[0], bias=False)
    layer.weight.data = torch.from_numpy(w)
    model = torch.nn.Sequential(layer)
    quanto.quantize(model, weights=quanto.qtypes[name])
    quanto.freeze(model)
    expected = model[0].weight.dequantize().detach().numpy()
    if not np.isfinite(expected).all():  # zeros of float8 are NaN there: their scale is 0
        assert not w[np.isnan(expected)].any()
        expected = np.where(np.isnan(expected), np.float32(0), expected)
    state = model.state_dict()
    tensors = {end.removeprefix("0.weight."): tensor for end, tensor in state.items() if end.startswith("0.weight.")}
    dtype = FORMATS[name]
    if dtype.startswith("float8"):
        values = tensors["_data"]
        tensors["_data"] = values.view(torch.uint8)
    arrays = as_numpy(tensors)
    if dtype.startswith("float8"):
        arrays["_data"] = arrays["_data"].view(fastq.reference.quantize(w[:1], dtype).codes.dtype)
    q = from_tensors(arrays, "quanto", dtype=dtype, shape=w.shape)
    same_bytes(q.dequantize(), expected)
    assert q.block_size == (128 if columns == 2304 and q.dtype.packed else 0)
    written = to_tensors(q, "quanto")
    assert written.keys() == arrays.keys()
    if (arrays["_scale"] != 0).all():
        for end, array in arrays.items():
            same_bytes(written[end], array)
