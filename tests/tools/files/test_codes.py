"""Codes of other programs are known by the names and dtypes of tensors next to each other, in every command."""

import json

import ml_dtypes
import numpy as np
import pytest
from commands import invoke, refused, run, told
from source_models import write, write_file

import fastq
from fastq.tools.files.containers import open_source
from fastq.tools.files.quantized_elsewhere import quantized_elsewhere

BF16, F8, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
f32, f16, i8, u8, i16, i32, u32, i64 = (np.dtype(name) for name in ("f4", "f2", "i1", "u1", "i2", "i4", "u4", "i8"))
# the tensors by which programs store one weight of 32 x 64, as files that they wrote have them: dtypes and shapes by
# names after the layer; those of MLX, torchao, quanto, HQQ and compressed-tensors are compared with these programs in
# tests/conformance/test_codes_of_writers.py
WRITERS = {
    "MLX": {".weight": (u32, (32, 8)), ".scales": (f16, (32, 2)), ".biases": (f16, (32, 2))},
    "MLX, mxfp4": {".weight": (u32, (32, 8)), ".scales": (u8, (32, 2))},
    "transformers' metal": {".weight": (u32, (32, 8)), ".scales": (f16, (32, 2)), ".qbiases": (f16, (32, 2))},
    "GPTQ": {
        ".qweight": (i32, (8, 32)),
        ".qzeros": (i32, (2, 4)),
        ".scales": (f16, (2, 32)),
        ".g_idx": (i32, (64,)),
    },
    "AWQ": {".qweight": (i32, (64, 4)), ".qzeros": (i32, (2, 4)), ".scales": (f16, (2, 32))},
    "compressed-tensors": {
        ".weight_packed": (i32, (32, 8)),
        ".weight_scale": (BF16, (32, 2)),
        ".weight_shape": (i64, (2,)),
    },
    "compressed-tensors, zero points": {
        ".weight_packed": (i32, (32, 8)),
        ".weight_scale": (BF16, (32, 2)),
        ".weight_zero_point": (i32, (4, 2)),
        ".weight_shape": (i64, (2,)),
    },
    "compressed-tensors, int8": {".weight": (i8, (32, 64)), ".weight_scale": (BF16, (32, 1))},
    "nvfp4-pack-quantized": {
        ".weight_packed": (u8, (32, 32)),
        ".weight_scale": (F8, (32, 4)),
        ".weight_global_scale": (f32, (1,)),
    },
    "modelopt's NVFP4": {".weight": (u8, (32, 32)), ".weight_scale": (F8, (32, 4)), ".weight_scale_2": (f32, ())},
    "Quark, a quantizer of the layer": {
        ".weight": (F8, (32, 64)),
        ".weight_quantizer.scale": (f32, (32, 1)),
        ".input_quantizer.scale": (f32, ()),
    },
    "Model Optimizer, as its modules are saved": {
        ".weight": (u8, (32, 32)),
        ".weight_quantizer._scale": (F8, (32, 4)),
        ".weight_quantizer._double_scale": (f32, ()),
        ".input_quantizer._amax": (f32, ()),
    },
    "PyTorch, with fake_quant": {
        ".weight": (i8, (32, 64)),
        ".weight_fake_quant.scale": (f32, (32,)),
        ".weight_fake_quant.zero_point": (i32, (32,)),
    },
    "torchao": {
        "._weight_qdata": (i8, (32, 64)),
        "._weight_scale": (f32, (32, 1)),
        "._weight_zero_point": (i8, (32, 1)),
    },
    "torchao, float8": {"._weight_qdata": (F8, (32, 64)), "._weight_scale": (f32, (32, 1))},
    "torchao, names of before": {".weight:qdata": (i8, (32, 64)), ".weight:scale": (f32, (32, 1))},
    "TensorRT-LLM, int8": {".weight": (i8, (32, 64)), ".per_channel_scale": (f32, (32,))},
    "TensorRT-LLM, float8": {
        ".weight": (F8, (32, 64)),
        ".weights_scaling_factor": (f32, (1,)),
        ".activation_scaling_factor": (f32, (1,)),
    },
    "float8 by rows": {".weight": (F8, (32, 64)), ".weight_scale": (f32, (32, 1))},
    "float8 in blocks": {".weight": (F8, (32, 64)), ".weight_scale_inv": (f32, (2, 2))},
    "float8, powers of two": {".weight": (F8, (32, 64)), ".scale": (E8M0, (32, 2))},
    "ComfyUI's fp8_scaled": {".weight": (F8, (32, 64)), ".scale_weight": (f32, ()), ".scale_input": (f32, ())},
    "ComfyUI's mixed": {".weight": (F8, (32, 64)), ".weight_scale": (f32, ()), ".comfy_quant": (u8, (27,))},
    "bitsandbytes, 4 bits": {
        ".weight": (u8, (1024, 1)),
        ".weight.absmax": (f32, (32,)),
        ".weight.quant_map": (f32, (16,)),
        ".weight.quant_state.bitsandbytes__nf4": (u8, (86,)),
    },
    "bitsandbytes, nested": {
        ".weight": (u8, (1024, 1)),
        ".weight.absmax": (u8, (32,)),
        ".weight.nested_absmax": (f32, (1,)),
        ".weight.nested_quant_map": (f32, (256,)),
        ".weight.quant_map": (f32, (16,)),
        ".weight.quant_state.bitsandbytes__fp4": (u8, (86,)),
    },
    "bitsandbytes, 8 bits": {".weight": (i8, (32, 64)), ".SCB": (f32, (32,)), ".weight_format": (u8, ())},
    "quanto": {".weight._data": (i8, (32, 64)), ".weight._scale": (f32, (32, 1))},
    "quanto, 4 bits": {
        ".weight._data._data": (u8, (32, 32)),
        ".weight._scale": (f32, (64, 1)),
        ".weight._shift": (f32, (64, 1)),
    },
    "HQQ": {".W_q": (u8, (16, 64)), ".scale": (f32, (32, 1)), ".zero": (f32, (32, 1))},
    "gpt-oss": {".gate_up_proj_blocks": (u8, (2, 32, 2, 16)), ".gate_up_proj_scales": (u8, (2, 32, 2))},
    "experts of float8": {".gate_up_proj": (F8, (2, 32, 64)), ".gate_up_proj_scale_inv": (f32, (2, 1, 1))},
    "EETQ": {".weight": (i8, (64, 32)), ".weight_scales": (f16, (32,))},
    "HIGGS": {
        ".weight": (i16, (8, 64)),
        ".scales": (f16, (32, 1)),
        ".tables": (f16, (16,)),
        ".tables2": (f16, (16, 16, 2)),
    },
    "AQLM": {".codes": (i16, (32, 8, 1)), ".codebooks": (f16, (1, 16, 1, 8)), ".scales": (f16, (32, 1, 1, 1))},
    "VPTQ": {".indices": (i32, (1, 8, 32)), ".centroids.weight": (BF16, (1, 512)), ".weight_scale": (BF16, (64,))},
    "QuIP#": {".Qidxs": (i64, (32, 8)), ".SU": (f16, (64,)), ".SV": (f16, (32,)), ".Wscale": (f32, ())},
    "ExLlamaV2": {
        ".q_weight": (i32, (8, 32)),
        ".q_scale": (i32, (2, 4)),
        ".q_scale_max": (f16, (2,)),
        ".q_groups": (i16, (4,)),
    },
    "ExLlamaV3": {".trellis": (i16, (4, 2, 64)), ".suh": (f16, (64,)), ".svh": (f16, (32,))},
    "BitNet": {".weight": (u8, (8, 64)), ".weight_scale": (BF16, (1,))},
    "FP-Quant": {".qweight": (u8, (32, 32)), ".scales": (u8, (32, 2)), ".weight_global_scale": (f32, (1,))},
    "gpt-fast, 4 bits": {".weight": (i32, (4, 1, 32, 4)), ".scales_and_zeros": (BF16, (2, 32, 2))},
    "Gemma's embedding": {".embedding_quantized": (u8, (32, 32)), ".embedding_scale": (f32, (32, 1))},
    "Flax": {".kernel": (i8, (64, 32)), ".kernel_scale": (f32, (1, 32))},
    "SVDQuant": {
        ".qweight": (i8, (32, 32)),
        ".wscales": (BF16, (2, 32)),
        ".smooth_factor": (BF16, (64,)),
        ".lora_down": (BF16, (64, 32)),
    },
    "SVDQuant, layers of AWQ": {".qweight": (i32, (8, 32)), ".wscales": (BF16, (2, 32)), ".wzeros": (BF16, (2, 32))},
    "Marlin": {".B": (i32, (4, 64)), ".s": (f16, (2, 32))},
    "AWQ of its authors": {".qweight": (i16, (8, 64)), ".scales": (f16, (8, 32)), ".scaled_zeros": (f16, (8, 32))},
    "SqueezeLLM": {".qweight": (i32, (8, 32)), ".lookup_table": (f16, (32, 16))},
    "Any-Precision": {".qweight": (i32, (4, 32, 2)), ".lut4": (f16, (32, 16))},
    "QTIP": {".trellis": (i16, (8, 64)), ".SU": (f16, (64,)), ".SV": (f16, (32,)), ".tlut": (f16, (512, 2))},
    "SINQ": {".W_q": (u8, (16, 64)), ".scale": (f16, (32, 2)), ".scale2": (f16, (1, 64)), ".zero": (f16, (32, 2))},
    "msModelSlim": {
        ".weight": (i8, (32, 64)),
        ".weight_scale": (f32, (32, 1)),
        ".weight_offset": (f32, (32, 1)),
        ".deq_scale": (f32, (32,)),
    },
    "golden-stick": {".weight": (i8, (32, 64)), ".w_scale": (f32, (32, 1)), ".w_zp": (i8, (32, 1))},
    "Four Over Six": {
        ".quantized_weight_values": (u8, (32, 32)),
        ".quantized_weight_scale_factors": (F8, (32, 4)),
        ".quantized_weight_amax": (f32, (1, 1)),
    },
    "palettes": {".weight_indices": (u8, (32, 32)), ".weight_lut": (f16, (1, 16))},
    "blocks of GPT-J": {".weight": (u8, (32, 64)), ".absmax": (f32, (4, 8)), ".code": (f32, (16, 16))},
    "torch-int": {".weight": (i8, (32, 64)), ".a": (f32, (1, 1)), ".b": (f32, (1, 1))},
    "modelopt, int4": {
        ".weight": (u8, (16, 64)),
        ".weight_scale": (f32, (32, 2)),
        ".pre_quant_scale": (f32, (1, 64)),
    },
    "by hand": {".w_q": (i8, (32, 64)), ".w_scale": (f32, (32, 1))},
    "by hand, with a minimum": {".data": (u8, (32, 64)), ".scale": (f32, (32, 1)), ".min": (f32, (32, 1))},
}
# tensors that are no codes of any program, with the numbers of those of two axes that fastq quantize quantizes
OTHERS = {
    "scales of layers": ({"a.scales": (f32, (8, 64)), "a.layer_scale": (f32, (8, 64)), "ls1.gamma": (f32, (64,))}, 2),
    "a norm": ({"norm.scale": (f32, (8, 64)), "norm.weight": (f32, (8, 64)), "norm.bias": (f32, (64,))}, 2),
    "CLIP": ({"logit_scale": (f32, ()), "text.position_ids": (i64, (1, 64)), "text.weight": (f32, (8, 64))}, 1),
    "Swin": ({"attn.relative_position_index": (i64, (8, 8)), "attn.logit_scale": (f32, (3, 1, 1))}, 1),
    "a mask": ({"attn.bias": (u8, (1, 1, 8, 8)), "attn.scale": (f32, (8, 8))}, 1),
    "observers": (
        {"a.weight": (f32, (8, 64)), "a.observer.scale": (f32, (8, 1)), "a.observer.zero_point": (i8, (8, 1))},
        2,
    ),
    "float weights with scales": ({"a.weight": (BF16, (8, 64)), "a.scales": (BF16, (8, 2))}, 2),
    "float8 without a scale": ({"a.weight": (F8, (8, 64)), "b.weight": (f32, (8, 64)), "b.scale": (f32, (8, 1))}, 2),
    "identifiers": ({"token_type.ids": (u8, (4, 8)), "token_type.scale": (f32, (8, 8))}, 1),
    "pictures and labels": ({"images": (u8, (8, 8)), "labels": (i8, (8, 1)), "w": (f32, (8, 8))}, 1),
    "a codebook with counts": ({"vq.codebook": (f32, (64, 8)), "vq.usage": (i32, (64, 1))}, 1),
    "integers of another layer": ({"a.weight": (i32, (8, 64)), "b.scales": (f32, (8, 64))}, 1),
}
ELSEWHERE = "quantized by another program: "


def arrays_of(table, layer=""):
    rng = np.random.default_rng(0)
    made = {}
    for name, (dtype, shape) in table.items():
        values = rng.standard_normal(shape) if np.dtype(dtype).kind in "fV" else rng.integers(0, 100, shape)
        made[layer + name] = np.abs(values).astype(dtype) if "scale" in name else values.astype(dtype)
    return made


@pytest.fixture(params=WRITERS)
def written(request, tmp_path):
    """A file with a weight of another program, and with one of floats."""
    codes = arrays_of(WRITERS[request.param], "h.0.layer")
    tensors = {"wide.weight": np.eye(32, 64, dtype=np.float32), "h.0.layer.bias": np.ones(32, np.float32)}
    write_file(tmp_path / "in.safetensors", tensors | codes)
    return tmp_path / "in.safetensors", codes


def test_codes_and_scales_stay_in_quantized_files(written, tmp_path):
    # contract 28.16
    path, codes = written
    said = told("quantize", path, tmp_path / "out.safetensors", "--all", exit_code=0)
    (line,) = [each for each in said.splitlines() if ELSEWHERE in each]
    assert line.startswith("copied with their scales as they are: 1 weight")
    out = open_source(tmp_path / "out.safetensors")
    for name, array in codes.items():
        assert out.raw(name).tobytes() == array.tobytes()
    assert any(name in line for name in codes)
    assert "wide.weight_scale" in out.tensors
    assert "h.0.layer.bias_scale" in out.tensors


@pytest.mark.parametrize("index", [None, {}, {"weight_map": 3}, {"weight_map": {"b": "b.safetensors"}}, "whole"])
def test_scales_of_codes_in_another_file_stay(tmp_path, index):
    """Shards are cut by size, so that a scale may lie in another file than its codes."""
    codes, *parameters = arrays_of(WRITERS["compressed-tensors, int8"], "h.0.layer").items()
    write_file(tmp_path / "a.safetensors", dict([codes]))
    write_file(tmp_path / "b.safetensors", dict(parameters) | {"wide.weight": np.eye(32, 64, dtype=np.float32)})
    if index == "whole":
        names = {"h.0.layer.weight": "a.safetensors", "h.0.layer.weight_scale": "b.safetensors"}
        index = {"weight_map": names | {"wide.weight": "b.safetensors", "x": "../c.safetensors"}}
    if index is not None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    is_known = index is not None and "h.0.layer.weight" in str(index)
    said = told("quantize", tmp_path / "b.safetensors", tmp_path / "out.safetensors", exit_code=0)
    assert (ELSEWHERE in said) == is_known
    found = open_source(tmp_path / "out.safetensors").tensors
    assert ("h.0.layer.weight_scale_scale" in found) == (not is_known)
    assert "wide.weight_scale" in found


def test_a_file_of_codes_only_is_refused(written, tmp_path):
    path, codes = written
    write_file(path, codes)
    line = refused("quantize", path, tmp_path / "out.safetensors", "--all")
    assert "no tensor to quantize: it has 1 weight quantized by another program: h.0.layer" in line
    assert not (tmp_path / "out.safetensors").exists()


def test_a_scale_is_not_included_by_name(written, tmp_path):
    path, codes = written
    for name in codes:
        line = refused("quantize", path, tmp_path / "out.safetensors", "--all", "--include", name)
        assert "quantized already" in line or ELSEWHERE in line


def test_codes_are_told_of_where_files_are_read(written):
    path, codes = written
    for command in (("inspect", path), ("compare", path, path)):
        lines = [line for line in told(*command, exit_code=0).splitlines() if ELSEWHERE in line]
        assert len(lines) == len(command) - 1
        assert all("are not multiplied by their scales" in line for line in lines)
    with pytest.warns(UserWarning, match=ELSEWHERE) as caught:
        tensors = fastq.load(path)
    assert [each.filename for each in caught] == [__file__]
    for name, array in codes.items():
        if array.dtype != E8M0:
            assert tensors[name].tobytes() == array.tobytes()
    said = told("suggest", path, "--sqnr", "5", exit_code=0)
    assert ELSEWHERE in said
    assert f"left out: {len(codes)} (quantized already)" in said or f"{len(codes)} (quantized already)" in said


def test_a_directory_with_codes_that_nothing_describes_is_refused(written, tmp_path):
    path, _ = written
    config = {"model_type": "llama", "hidden_size": 64}
    folder = tmp_path / "model"
    folder.mkdir()
    path.rename(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    line = refused("convert", folder, tmp_path / "out", "--scheme", "W8A16")
    assert ELSEWHERE in line
    assert "no quantization_config that describes them" in line
    assert not (tmp_path / "out").exists()
    assert ELSEWHERE in told("inspect", folder, exit_code=0)


DESCRIBED = (
    "float8 in blocks",
    "float8 by rows",
    "float8, powers of two",
    "experts of float8",
    "gpt-oss",
    "modelopt's NVFP4",
)


@pytest.mark.parametrize("name", WRITERS)
def test_the_entry_that_a_refusal_names_works(tmp_path, name):
    """Only where names say all: those of GPTQ, for one, have two meanings of zero points."""
    codes = arrays_of(WRITERS[name], "h.0.experts" if name == "gpt-oss" else "h.0.layer")
    if name == "float8 in blocks":
        codes["h.0.layer.weight_scale_inv"] = np.ones((1, 1), np.float32)
    folder = write(tmp_path / "m", codes | {"wide.weight": np.eye(32, 64, dtype=np.float32)})
    line = refused("convert", folder, tmp_path / "q", "--scheme", "W8A16")
    advised = line.partition("that describes them; ")[2].partition(" in it would")
    assert bool(advised[1]) == (name in DESCRIBED)
    if not advised[1]:
        assert advised[0] == "the config.json of its makers has one"
        return
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | json.loads(f"{{{advised[0]}}}")))
    run("convert", folder, tmp_path / "q", "--dequantize")
    out = open_source(tmp_path / "q" / "model.safetensors")
    assert {spec.dtype for spec in out.tensors.values()} == {"F32"}
    assert len(out.tensors) == 2


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_code_is_quantized(tmp_path, name):
    table, count = OTHERS[name]
    arrays = arrays_of(table)
    write_file(tmp_path / "in.safetensors", arrays)
    assert quantized_elsewhere(open_source(tmp_path / "in.safetensors").tensors.values()) == []
    result = invoke("quantize", tmp_path / "in.safetensors", tmp_path / "out.safetensors", "--json")
    assert result.exit_code == 0
    assert ELSEWHERE not in result.stderr
    rows = json.loads(result.stdout)["tensors"]
    assert sum("int8" in row["scheme"] for row in rows) == count
    fastq.load(tmp_path / "in.safetensors")  # without a warning


def test_float8_without_scales_is_told_of(tmp_path):
    arrays = {"a.weight": np.eye(8, 64).astype(F8), "b.weight": np.eye(8, 64, dtype=np.float32)}
    write_file(tmp_path / "in.safetensors", arrays)
    said = told("quantize", tmp_path / "in.safetensors", tmp_path / "out.safetensors", exit_code=0)
    assert "copied as they are: 1 matrix of F8_E4M3, not of F64, F32, F16, BF16: a.weight" in said
    said = told("quantize", tmp_path / "in.safetensors", tmp_path / "b.safetensors", "--exclude", "a", exit_code=0)
    assert "copied as they are" not in said


def test_convert_tells_of_float8_without_scales(tmp_path):
    name = "model.layers.0.self_attn.q_proj.weight"
    table = {name: np.eye(128).astype(F8), "model.layers.0.self_attn.o_proj.weight": np.eye(128).astype(BF16)}
    write(tmp_path / "model", table)
    said = told("convert", tmp_path / "model", tmp_path / "out", "--scheme", "W8A16", exit_code=0)
    assert f"copied as they are: 1 matrix of F8_E4M3, not of BF16, F16, F32: {name}" in said


def test_blocks_of_short_axes_are_told_of(tmp_path):
    arrays = {"conv.weight": np.ones((8, 32, 3, 3), np.float32), "lin.weight": np.ones((8, 64), np.float32)}
    write_file(tmp_path / "in.safetensors", arrays)
    options = ("--dtype", "int4", "--block-size", "32")
    said = told("quantize", tmp_path / "in.safetensors", tmp_path / "a.safetensors", *options, exit_code=0)
    assert "blocks shorter than 32" in said
    assert "conv.weight (3); --exclude leaves them" in said
    for more in (("--axis", "1"), ("--exclude", "conv")):
        out = tmp_path / f"{more[1]}.safetensors"
        assert "blocks shorter" not in told("quantize", tmp_path / "in.safetensors", out, *options, *more, exit_code=0)


# Next to a config.json

UNREAD = "if transformers loads it and model.dequantize() works"
ENTRIES = {  # of config.json, and what a command says of the way back
    "MLX": ({"quantization": {"group_size": 32, "bits": 4}}, "--dequantize restores"),
    "MLX, one key": ({"quantization_config": {"group_size": 32, "bits": 4}}, "--dequantize restores"),
    "torchao": ({"quantization_config": {"quant_method": "torchao"}}, UNREAD),
    "GPTQ": ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}, "--dequantize restores"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_the_way_back_of_a_shard_works(tmp_path, name):
    entry, way = ENTRIES[name]
    folder = tmp_path / "model"
    folder.mkdir()
    codes = arrays_of(WRITERS[name.split(",")[0]], "layer")
    if "layer.g_idx" in codes:
        codes["layer.g_idx"] = (np.arange(64) // 32).astype(np.int32)
    write_file(folder / "model.safetensors", codes | {"wide.weight": np.eye(32, 64, dtype=np.float32)})
    (folder / "config.json").write_text(json.dumps(entry))
    line = refused("quantize", folder / "model.safetensors", tmp_path / "out.safetensors")
    assert "it is quantized already; " in line
    assert way in line
    converted = invoke("convert", folder, tmp_path / "plain", "--dequantize")
    assert (converted.exit_code == 0) == ("--dequantize restores" in way)
    assert converted.exit_code == 0 or way in converted.stderr


def test_codes_that_a_quantization_config_does_not_describe_are_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    codes = arrays_of(WRITERS["float8 in blocks"], "a") | arrays_of(WRITERS["bitsandbytes, 4 bits"], "b")
    write_file(folder / "model.safetensors", codes)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 32]}}
    (folder / "config.json").write_text(json.dumps(config))
    line = refused("convert", folder, tmp_path / "plain", "--dequantize")
    assert "b.weight (U8, with b.weight.absmax" in line
    assert "is not stored as fp8 does" in line


def test_own_files_are_not_taken_for_those_of_others(tmp_path):
    np.savez(tmp_path / "in.npz", a=np.eye(8, 64, dtype=np.float32))
    run("quantize", tmp_path / "in.npz", tmp_path / "out.npz")
    assert "quantized by" not in told("inspect", tmp_path / "out.npz", exit_code=0)
    assert "fastq dequantize restores it" in refused("quantize", tmp_path / "out.npz", tmp_path / "again.npz")
