"""Directories of MLX: the values that `fastq convert --dequantize` writes are those of `mlx.core.dequantize`."""

import json

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes

from fastq.tools.checkpoints.dequantization import as_floats
from fastq.tools.checkpoints.folder import ModelFolder

mx = pytest.importorskip("mlx.core", reason="mlx is not installed", exc_type=ImportError)

ROWS, COLUMNS = 512, 1024
NUMPY = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
AFFINE = [{"mode": "affine", "bits": b, "group_size": g} for b in (1, 2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
BYTES = [{"mode": mode, "bits": b, "group_size": g} for mode, b, g in (("mxfp4", 4, 32), ("mxfp8", 8, 32))]
BYTES += [{"mode": "nvfp4", "bits": 4, "group_size": 16}]


def weights(dtype):
    """A matrix with outliers, rows of zeros and of one value, and magnitudes of 2**-20 to 2**10."""
    rng = np.random.default_rng(4)
    w = rng.standard_t(3, (ROWS, COLUMNS)) * np.exp2(rng.integers(-20, 11, (ROWS, 1)))
    w[3], w[4], w[5] = 0, 0.3, -7
    return mx.array(w.astype(np.float32)).astype(getattr(mx, dtype))


def as_numpy(array, dtype):
    return np.array(array.view(mx.uint32 if dtype == "float32" else mx.uint16)).view(NUMPY[dtype])


def compared(folder, w, form, dtype, global_scale=None):
    given = {} if global_scale is None else {"global_scale": global_scale}
    codes, scales, *biases = mx.quantize(w, **form, **given)
    tensors = {"l.weight": codes, "l.scales": scales, **dict(zip(["l.biases"], biases, strict=False))}
    tensors |= {} if global_scale is None else {"l.global_scale": global_scale.reshape(1)}
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    config = {"model_type": "llama", "dtype": dtype, "quantization": form}
    (folder / "config.json").write_text(json.dumps(config))
    (shard,) = as_floats(ModelFolder.open(folder)).shards.values()
    values = mx.dequantize(codes, scales, *biases, **form, **given, dtype=getattr(mx, dtype))
    values = values.astype(getattr(mx, dtype))  # with a scale for the tensor they are float32
    expected = as_numpy(values, dtype)
    assert expected.shape == (ROWS, COLUMNS)
    same_bytes(shard.load("l.weight"), expected)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("form", [*AFFINE, *BYTES], ids=lambda form: "{mode}-{bits}-{group_size}".format(**form))
def test_values(tmp_path, form, dtype):
    # contract 27.11
    compared(tmp_path / "m", weights(dtype), form, dtype)


@pytest.mark.parametrize("dtype", NUMPY)
def test_a_scale_for_the_tensor(tmp_path, dtype):
    # contract 27.11
    w = weights(dtype)
    compared(tmp_path / "m", w, BYTES[2], dtype, mx.abs(w).max().astype(mx.float32))
