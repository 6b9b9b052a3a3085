"""Directories of MLX: words of codes written out bit by bit, values by its two roundings, and what is refused."""

import json

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes
from commands import invoke, run
from safetensors.numpy import save_file

import fastq
from fastq import reference
from fastq.tools.checkpoints.dequantization import Dequantization, as_floats
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.quant_methods import stored_weights

BF16 = np.dtype(ml_dtypes.bfloat16)
MODULE = "model.layers.0.mlp.down_proj"
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def words_of(codes, bits):
    """Words of uint32: the codes of a row, the first in the lowest bits, as one long number."""
    rows = codes.reshape(-1, codes.shape[-1])
    numbers = [sum(int(code) << (bits * k) for k, code in enumerate(row)) for row in rows]
    size = codes.shape[-1] * bits // 8
    words = np.frombuffer(b"".join(number.to_bytes(size, "little") for number in numbers), "<u4")
    return words.reshape(*codes.shape[:-1], -1).copy()


def write(folder, tensors, quantization, dtype="bfloat16", **config):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "mlx"})
    known = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": dtype, **config}
    (folder / "config.json").write_text(json.dumps(known | ({"quantization": quantization} if quantization else {})))
    return folder


def affine(bits, group_size, dtype, shape=(6, 128), seed=0):
    """Tensors of a weight, and its values: the product and the sum are rounded, one after the other."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, shape)
    groups = (*shape[:-1], shape[-1] // group_size)
    scales = (rng.standard_normal(groups) / (1 << bits)).astype(dtype)
    biases = rng.standard_normal(groups).astype(dtype)
    steps = codes.reshape(*groups, group_size).astype(np.float32)
    product = (steps * scales.astype(np.float32)[..., None]).astype(dtype)
    values = (product.astype(np.float32) + biases.astype(np.float32)[..., None]).astype(dtype)
    tensors = {"weight": words_of(codes, bits), "scales": scales, "biases": biases}
    return {f"{MODULE}.{role}": array for role, array in tensors.items()}, values.reshape(shape)


def restored(folder, name=f"{MODULE}.weight", **options):
    """The tensor that `fastq convert --dequantize` writes."""
    source = ModelFolder.open(folder)
    (shard,) = source.shards
    plain = as_floats(source).shards[shard]
    assert {task.name for tasks in Dequantization(source).tasks(shard) for task in tasks} == set(plain.tensors)
    return plain.load(name)


DTYPES = {"bfloat16": BF16, "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}


GROUPS = [(1, 32), (2, 64), (3, 32), (4, 64), (5, 128), (6, 32), (8, 64)]  # bits, and elements of a group


@pytest.mark.slow("compiles 2 kernels a case", quick=lambda bits, group_size, dtype: bits == 4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bits", "group_size"), GROUPS)
def test_affine(tmp_path, bits, group_size, dtype):
    # contract 27.11
    tensors, values = affine(bits, group_size, DTYPES[dtype])
    folder = write(tmp_path / "m", tensors, {"bits": bits, "group_size": group_size}, dtype)
    same_bytes(restored(folder), values)
    q = fastq.load(folder)[f"{MODULE}.weight"]
    same_bytes(q.dequantize(), reference.dequantize(q))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bits", "group_size"), GROUPS)
def test_affine_codes_are_loaded(tmp_path, bits, group_size, dtype):
    # contract 27.11
    tensors, values = affine(bits, group_size, DTYPES[dtype])
    q = fastq.load(write(tmp_path / "m", tensors, {"bits": bits, "group_size": group_size}, dtype))[f"{MODULE}.weight"]
    assert (q.dtype.name, q.block_size, q.shape) == (f"uint{bits}", group_size, values.shape)
    exact = [np.repeat(tensors[f"{MODULE}.{role}"].astype(np.float32), group_size, -1) for role in ("scales", "biases")]
    codes = reference.unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes
    same_bytes(reference.dequantize(q), codes.astype(np.float32) * exact[0] + exact[1])


@pytest.mark.parametrize(
    ("mode", "factor"), [("mxfp4", None), ("mxfp8", None), ("nvfp4", None), ("nvfp4", np.float32(0.7))]
)
def test_modes_with_scales_in_bytes(tmp_path, mode, factor):
    # contract 27.11
    bits, group_size = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}[mode]
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 1 << bits, (8, 64))
    codes[codes & 0x7F == 0x7F] = 0  # NaN of 8 bits
    scales = rng.integers(1 if mode == "nvfp4" else 120, 126 if mode == "nvfp4" else 134, (8, 64 // group_size))
    if mode == "nvfp4":
        scale = scales.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        scale = scale if factor is None else scale * (factor / np.float32(2688))
    else:
        scale = np.exp2(scales - 127.0).astype(np.float32)
    units = np.array(E2M1, np.float32)[codes & 15]
    units = codes.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32) if bits == 8 else units
    values = (units * np.repeat(scale, group_size, 1)).astype(BF16)
    tensors = {f"{MODULE}.weight": words_of(codes, bits), f"{MODULE}.scales": scales.astype(np.uint8)}
    if factor is not None:
        tensors[f"{MODULE}.global_scale"] = np.array([factor])
    folder = write(tmp_path / "m", tensors, {"bits": bits, "group_size": group_size, "mode": mode})
    same_bytes(restored(folder), values)


def test_forms_of_modules_and_stacked_experts(tmp_path):
    # contract 27.11
    tensors, values = affine(3, 32, BF16, (4, 6, 64))  # experts
    own = {"bits": 8, "group_size": 64}
    others, of_other = affine(8, 64, BF16, seed=5)
    tensors |= {name.replace("down_proj", "up_proj"): array for name, array in others.items()}
    tensors["model.norm.weight"] = np.ones(64, BF16)
    form = {
        "bits": 3,
        "group_size": 32,
        "mode": "affine",
        "lm_head": False,
        MODULE.replace("down_proj", "up_proj"): own,
    }
    folder = write(tmp_path / "m", tensors, form)
    same_bytes(restored(folder), values)
    same_bytes(restored(folder, f"{MODULE.replace('down_proj', 'up_proj')}.weight"), of_other)
    assert fastq.load(folder)[f"{MODULE}.weight"].shape == (4, 6, 64)


def test_an_older_key_without_a_method(tmp_path):
    tensors, values = affine(4, 64, BF16)
    folder = write(tmp_path / "m", tensors, None, quantization_config={"bits": 4, "group_size": 64})
    same_bytes(restored(folder), values)


def refused(folder, message):
    with pytest.raises(ValueError, match=message):
        stored_weights(ModelFolder.open(folder))


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"bits": 8, "group_size": 64}, r"down_proj in model.safetensors: its weight of shape \(6, 16\) and scales of"),
        ({"bits": 7, "group_size": 64}, "its quantization has 7 bits and a group_size of 64, which affine lacks"),
        ({"bits": 4, "group_size": 64, "mode": "mxfp4"}, "has 4 bits and a group_size of 64, which mxfp4 lacks"),
        ({"bits": 4, "group_size": 32, "mode": "fp2"}, "mode 'fp2'; only affine, mxfp4, mxfp8, nvfp4 are read"),
        ({"bits": 4, "group_size": 64, MODULE: {"bits": 9}}, f"its quantization of {MODULE} has 9 bits"),
        ({"bits": 4, "group_size": -64}, "a group_size of -64, which affine lacks"),
    ],
)
def test_entries_that_do_not_fit(tmp_path, form, message):
    tensors, _ = affine(4, 64, BF16)
    refused(write(tmp_path / "m", tensors, form), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"biases": None}, "with biases of the same dtype and shape.*biases: none"),
        ({"biases": np.zeros((6, 2), np.float16)}, "biases: F16 of shape"),
        ({"weight": np.zeros((6, 16), np.int32)}, "its weight is I32 of shape"),
        ({"global_scale": np.ones(1, np.float32)}, "only nvfp4 has one, a float32 for each matrix"),
        ({"scales": None}, "biases in model.safetensors is not part of a weight that fastq knows"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, changes, message):
    tensors, _ = affine(4, 64, BF16)
    for role, array in changes.items():
        tensors[f"{MODULE}.{role}"] = array
    tensors = {name: array for name, array in tensors.items() if array is not None}
    refused(write(tmp_path / "m", tensors, {"bits": 4, "group_size": 64}), message)


def test_a_scale_of_zero_is_a_group_of_biases(tmp_path):
    tensors, values = affine(4, 64, np.dtype(np.float32))
    tensors[f"{MODULE}.scales"][2, 1] = 0
    tensors[f"{MODULE}.biases"][2, 1] = 3.5
    values[2, 64:] = tensors[f"{MODULE}.biases"][2, 1]
    folder = write(tmp_path / "m", tensors, {"bits": 4, "group_size": 64}, "float32")
    same_bytes(restored(folder), values)


def test_a_scale_for_each_expert(tmp_path):
    # contract 27.11
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 16, (3, 4, 32))
    scales = rng.integers(1, 126, (3, 4, 2)).astype(np.uint8)
    factors = np.array([0.7, 3, 100], np.float32)
    units = np.array(E2M1, np.float32)[codes]
    scale = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * (factors / np.float32(2688))[:, None, None]
    tensors = {"weight": words_of(codes, 4), "scales": scales, "global_scale": factors}
    tensors = {f"{MODULE}.{role}": array for role, array in tensors.items()}
    folder = write(tmp_path / "m", tensors, {"bits": 4, "group_size": 16, "mode": "nvfp4"})
    same_bytes(restored(folder), (units * np.repeat(scale, 16, -1)).astype(BF16))


def test_what_is_written_has_no_entry_of_mlx(tmp_path):
    """As mlx-lm has it twice."""
    tensors, values = affine(4, 64, BF16)
    form = {"bits": 4, "group_size": 64}
    folder = write(tmp_path / "m", tensors, form, quantization_config=form)
    run("convert", folder, tmp_path / "plain", "--dequantize")
    same_bytes(fastq.load(tmp_path / "plain")[f"{MODULE}.weight"], values)
    (row,) = json.loads(invoke("compare", folder, tmp_path / "plain", "--json").stdout)["tensors"]
    assert row["max_abs_error"] == 0
    run("convert", folder, tmp_path / "q", "--scheme", "W8A16", "--group-size", "64")
    assert fastq.load(tmp_path / "q")[f"{MODULE}.weight"].dtype.name == "int8"
    for name in ("plain", "q"):
        assert "quantization" not in json.loads((tmp_path / name / "config.json").read_text())
