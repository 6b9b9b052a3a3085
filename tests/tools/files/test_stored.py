"""Files that fastq 0.1.0 wrote, in the folder `stored`: every later version reads them, with the same numbers.

A file is never written again. A change of a format adds files next to these.
"""

from pathlib import Path

import numpy as np
import pytest

import fastq

STORED = Path(__file__).parent / "stored"

# by the name of the file: dtype, axis, block size, symmetric, convention, scale, zero point, codes, values
ARRAYS = {
    "int8_rows": (
        *("int8", 0, 0, True, "onnx", [1.0, 2.0], [0, 0]),
        [[-127, 0, 64, 127], [127, -1, 0, 2]],
        [[-127, 0, 64, 127], [254, -2, 0, 4]],
    ),
    "uint8_torch": ("uint8", None, 0, False, "torch", 1.0, 1, [0, 1, 3, 255], [-1, 0, 2, 254]),
    "int4_blocks": (
        *("int4", 1, 4, True, "onnx", [[1.0, 0.5]], [[0, 0]]),
        [[7, -7, 1, 0, 7, -7, 1, 2]],
        [[7, -7, 1, 0, 3.5, -3.5, 0.5, 1]],
    ),
    "int8_5_bits": ("int8[5]", None, 0, True, "onnx", 1.0, 0, [-15, 15, 7, 0], [-15, 15, 7, 0]),
    "float8": ("float8_e4m3fn", None, 0, True, "onnx", 1.0, 0, [448, -448, 1, 0.3125], [448, -448, 1, 0.3125]),
    "nf4_block": ("nf4", 0, 32, True, "onnx", [2.0], [0], [0, 15] + 30 * [7], [-2, 2] + 30 * [0]),
    "mxfp4": ("mxfp4", -1, 32, True, "onnx", [1.0], None, [6, -6, 1, 0.5], [6, -6, 1, 0.5]),
    "nvfp4": ("nvfp4", -1, 16, True, "onnx", [448.0], None, [6, -6, 1, 3], [2688, -2688, 448, 1344]),
    "uint8_faiss": ("uint8", None, 0, False, "faiss", 0.5, 1.0, [0, 255, 0], [1.25, 128.75, 1.25]),
    "int16_float64": ("int16", None, 0, True, "onnx", 1.0, 0, [-32767, 2, 32767], [-32767, 2, 32767]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name):
    # contract 28.2
    dtype, axis, block_size, symmetric, convention, scale, zero_point, codes, values = ARRAYS[name]
    q = fastq.load(STORED / f"{name}.safetensors")
    assert (str(q.dtype), q.axis, q.block_size, q.symmetric) == (dtype, axis, block_size, symmetric)
    assert q.convention == convention
    assert q.scale.astype(float).tolist() == scale
    assert zero_point is None or q.zero_point.astype(float).tolist() == zero_point
    assert q.unpacked().astype(float).tolist() == codes
    assert q.dequantize().tolist() == values


def test_nvfp4_has_a_scale_of_the_array():
    assert fastq.load(STORED / "nvfp4.safetensors").tensor_scale == np.float32(1)


def test_parameters():
    p = fastq.QParams.load(STORED / "parameters.safetensors")
    assert (p.scale.tolist(), p.zero_point.tolist(), str(p.dtype), p.axis) == ([1, 2], [1, 0], "uint8", 0)
    assert fastq.quantize(np.array([[-1, 254], [0, 510]], np.float32), qparams=p).codes.tolist() == [[0, 255], [0, 255]]


def test_calibrator():
    calibrator = fastq.Calibrator.load(STORED / "calibrator")  # it has seen [[127, -1], [-3, 2]] and [[0, 254]]
    p = calibrator.qparams()
    assert (p.scale.tolist(), p.zero_point.tolist(), str(p.dtype), p.axis) == ([1, 2], [0, 0], "int8", 1)
    calibrator.update(np.array([[-254, 0]], np.float32))
    assert calibrator.qparams().scale.tolist() == [2, 2]
    squares = [(127**2 + 3**2 + 254**2) / 4, (1 + 2**2 + 254**2) / 4]
    # of 128 bins the middle is within a 32nd of each number, so its square within a 15th
    assert calibrator.importance() == pytest.approx(squares, rel=1 / 15)


WEIGHTS = np.tile(np.array([[-127, 0, 64, 127], [254, -2, 0, 4]], np.float32), 8)  # of the three files below


def test_a_file_of_tensors():
    # contract 28.4
    tensors = fastq.load(STORED / "tensors.safetensors")
    q = tensors["layer.weight"]
    assert (q.scale.ravel().tolist(), q.axis, str(q.dtype)) == ([1, 2], 0, "int8")
    assert np.array_equal(q.dequantize(), WEIGHTS)
    assert tensors["layer.bias"].tolist() == [1, 2]


def test_a_model():
    # contract 27.2
    tensors = fastq.load(STORED / "model")
    q = tensors["model.layers.0.mlp.up_proj.weight"]
    assert q.scale.ravel().tolist() == [np.float32(127 / 127.5), np.float32(254 / 127.5)]
    assert q.codes[:, :4].tolist() == [[-128, 0, 64, 127], [127, -1, 0, 2]]
    assert np.array_equal(q.dequantize(), q.codes * q.scale.reshape(2, 1))
    assert tensors["model.norm.weight"].tolist() == [1, 2]


def test_a_gguf_file():
    tensor = fastq.load(STORED / "model.gguf")["blk.0.ffn_up.weight"]
    assert np.array_equal(tensor, WEIGHTS)


def test_packed_data():
    # contract 25.6
    xarray = pytest.importorskip("xarray", reason="no xarray")
    pytest.importorskip("netCDF4", reason="no netCDF4")
    expected = np.array([[-53.5, 73.5], [10, np.nan]])
    with xarray.open_dataset(STORED / "packed.nc", mask_and_scale=False) as packed:
        attributes = {name: packed.t.attrs[name].item() for name in ("scale_factor", "add_offset", "_FillValue")}
        assert attributes["scale_factor"] == pytest.approx(127 / 65519, rel=1e-3)
        assert attributes["_FillValue"] == packed.t.values[1, 1] == -32768
        found = fastq.xarray.unpack(packed).t.values
    assert np.abs(found - expected)[expected == expected].max() <= attributes["scale_factor"]
    assert np.isnan(found[1, 1])


def test_a_store_of_zarr():
    # contract 24.1
    zarr = pytest.importorskip("zarr", reason="no zarr")
    fastq.zarr.register()
    assert zarr.open_array(STORED / "bitround.zarr", mode="r")[:].tolist() == [1, 1.25, -3.25, 96]


def test_every_file_is_read():
    read = {f"{name}.safetensors" for name in (*ARRAYS, "parameters", "tensors")}
    read |= {"calibrator", "model", "model.gguf", "packed.nc", "bitround.zarr"}
    assert {path.name for path in STORED.iterdir()} == read
