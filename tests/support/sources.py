"""Quantized models of other writers: tensors, quantization_config, and the values that their readers compute."""

import ml_dtypes
import numpy as np
import source_models as models
from numpy import float32 as f32
from source_models import E8M0, awq, float4, float8, gptq, named

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
BLOCKS_OF_ITS_OWN = FP8 | {"weight_block_size": None}
BF16, PLAIN = ml_dtypes.bfloat16, np.arange(6, dtype=f32).reshape(2, 3)


def scaled(weight, entry=FP8, ends=("a.weight", "a.weight_scale_inv"), scale_shape=None, **more):
    """A folder's tensors and entry, and what they stand for: codes and scales of a name each."""
    codes, scale, values = weight
    scale = scale if scale_shape is None else scale.reshape(scale_shape)
    extra = {name.replace("__", "."): array for name, array in more.items()}
    return {ends[0]: codes, ends[1]: scale, "b.weight": PLAIN, **extra}, entry, {ends[0]: values}


def packed(layout, entry, files=None, **more):
    tensors, values = layout
    return {**named("a", tensors), "b.weight": PLAIN, **more}, entry, {"a.weight": values}, files


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
MODELOPT, OF_MODELOPT = {"quant_method": "modelopt"}, ("a.weight", "a.weight_scale")
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
ORDER = np.random.default_rng(3).permutation(np.arange(64) // 32)
EXPERTS = "experts.gate_up_proj", "experts.gate_up_proj_scale_inv"


def of_either_sign(layout):
    """As auto-round has it where codes are symmetric: the extreme of a group has the lowest code."""
    tensors, values = layout
    signs = np.random.default_rng(4).choice(f32([-1, 1]), tensors["scales"].shape)
    return tensors | {"scales": tensors["scales"] * signs.astype(np.float16)}, values * np.repeat(signs.T, 32, 1)


def of_gpt_oss():
    blocks, scales, values = float4((2, 6, 64))
    return (
        {"experts.gate_up_proj_blocks": blocks.reshape(2, 6, 2, 16), "experts.gate_up_proj_scales": scales},
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]},
        {"experts.gate_up_proj": values.swapaxes(1, 2)},
    )


def of_modelopt(number=0.37, **entry):
    """Float4 with scales of 16 in float8, in units of one number."""
    rng = np.random.default_rng(0)
    codes, scale = rng.integers(0, 16, (40, 64), np.uint8), rng.uniform(1, 448, (40, 4)).astype(models.E4M3)
    values = models.FLOAT4[codes] * np.repeat(scale.astype(f32) * f32(number), 16, 1)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    tensors = {"a.weight": packed, "a.weight_scale": scale, "a.weight_scale_2": np.array(number, f32)}
    entry = {"quant_method": "modelopt", "quant_algo": "NVFP4", **entry}
    return tensors | {"b.weight": PLAIN, "a.input_scale": np.ones((), f32)}, entry, {"a.weight": values}


def of_float4(kind):
    codes, scales, values = float4((40, 64))
    return scaled((codes.view(kind), scales.view(E8M0), values), ends=("a.weight", "a.scale"))


SOURCES = {
    "float8": lambda: scaled(float8((256, 384), (128, 128))),
    "float8, ragged": lambda: scaled(float8((200, 150), (128, 128))),
    "float8, less than a block": lambda: scaled(float8((3, 5), (128, 128))),
    "float8, scales of bfloat16": lambda: scaled(float8((200, 150), (128, 128), BF16)),
    "float8, powers of two": lambda: scaled(float8((200, 150), (128, 128), E8M0), FP8 | {"scale_fmt": "ue8m0"}),
    "float8, powers of two in bytes": lambda: scaled(float8((200, 150), (128, 128), np.uint8)),
    "float8, bytes for 32": lambda: scaled(float8((40, 64), (1, 32), np.uint8), FP8 | {"weight_block_size": [1, 32]}),
    "float8, powers for 32": lambda: scaled(float8((40, 64), (1, 32), E8M0)),
    "float8, rows of 16": lambda: scaled(float8((40, 64), (1, 16))),
    "float8, other blocks": lambda: scaled(float8((200, 150), (100, 60)), FP8 | {"weight_block_size": [100, 60]}),
    "float8, blocks by their number": lambda: scaled(float8((192, 64), (64, 32)), BLOCKS_OF_ITS_OWN),
    "float8, blocks of columns": lambda: scaled(float8((192, 64), (192, 32)), BLOCKS_OF_ITS_OWN),
    "float8, one scale": lambda: scaled(float8((200, 150), (200, 150)), BLOCKS_OF_ITS_OWN, scale_shape=()),
    "float8, one scale in an array": lambda: scaled(float8((20, 15), (20, 15)), BLOCKS_OF_ITS_OWN, scale_shape=1),
    "float8, one scale whatever is said": lambda: scaled(float8((300, 15), (300, 15)), scale_shape=()),
    "float8, one row": lambda: scaled(float8((1, 15), (1, 15)), BLOCKS_OF_ITS_OWN),
    "float8, a static scale": lambda: scaled(
        float8((20, 15), (128, 128)), a__activation_scale=np.ones(1, f32), a__input_scale=np.ones(1, f32)
    ),
    "DeepSeek V4": lambda: scaled(float8((200, 150), (128, 128), E8M0), ends=("a.weight", "a.scale")),
    "Mistral": lambda: scaled(
        float8((20, 15), (20, 15)), ends=("a.weight", "a.qscale_weight"), scale_shape=(), a__qscale_act=np.ones((), f32)
    ),
    "fbgemm": lambda: scaled(
        float8((20, 15), (1, 15)),
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        ("a.weight", "a.weight_scale"),
        a__input_scale_ub=np.ones(1, f32),
    ),
    "fbgemm, one axis": lambda: scaled(
        float8((20, 15), (1, 15)), {"quant_method": "fbgemm_fp8"}, ("a.weight", "a.weight_scale"), scale_shape=20
    ),
    "experts": lambda: scaled(float8((3, 256, 128), (128, 128)), ends=EXPERTS),
    "one expert": lambda: scaled(float8((1, 256, 100), (128, 128)), ends=EXPERTS),
    "experts, ragged columns": lambda: scaled(float8((3, 256, 100), (128, 128)), ends=EXPERTS),
    "experts, no more rows than a block": lambda: scaled(float8((3, 100, 200), (128, 128)), ends=EXPERTS),
    "experts, ragged rows": lambda: scaled(float8((3, 192, 256), (128, 128)), ends=EXPERTS),
    "experts, ragged rows and columns": lambda: scaled(float8((2, 330, 100), (128, 128), BF16), ends=EXPERTS),
    "experts, an odd row more, powers of two": lambda: scaled(float8((2, 129, 200), (128, 128), E8M0), ends=EXPERTS),
    "one expert, ragged": lambda: scaled(float8((1, 192, 256), (128, 128)), ends=EXPERTS),
    "experts, a scale for each half": lambda: scaled(float8((3, 64, 200), (32, 128)), ends=EXPERTS),
    "float8, blocks of none said": lambda: scaled(float8((192, 256), (128, 128)), {"quant_method": "fp8"}),
    "experts, one scale each": lambda: scaled(float8((3, 20, 15), (20, 15)), BLOCKS_OF_ITS_OWN, EXPERTS, 3),
    "experts, one scale each, three axes": lambda: scaled(float8((3, 20, 15), (20, 15)), BLOCKS_OF_ITS_OWN, EXPERTS),
    "experts, rows": lambda: scaled(float8((3, 20, 15), (1, 15)), BLOCKS_OF_ITS_OWN, EXPERTS),
    "experts, columns, as Llama 4 has them": lambda: scaled(
        float8((3, 20, 15), (20, 1)), {"quant_method": "fbgemm_fp8"}, ("experts.down_proj", "experts.down_proj_scale")
    ),
    "experts, a static scale": lambda: scaled(
        float8((3, 20, 15), (20, 15)), ends=EXPERTS, experts__gate_up_proj_activation_scale=np.ones(3, f32)
    ),
    "float4 in int8": lambda: of_float4(np.int8),
    "float4 in uint8": lambda: of_float4(np.uint8),
    "float4 of gpt-oss": of_gpt_oss,
    "modelopt, float4": of_modelopt,
    "modelopt, float4 that calibration never met": lambda: of_modelopt(0.0),
    "modelopt, float8": lambda: scaled(
        float8((20, 15), (20, 15)),
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        ("a.weight", "a.weight_scale"),
        scale_shape=(),
        a__input_scale=np.ones((), f32),
        a__k_scale=np.ones((), f32),
    ),
    "modelopt, a file": lambda: (
        of_modelopt()[0],
        None,
        of_modelopt()[2],
        {"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}},
    ),
    "modelopt, as vLLM calls it": lambda: of_modelopt(quant_method="modelopt_fp4"),
    "modelopt, blocks": lambda: scaled(
        float8((200, 150), (128, 128)), MODELOPT | {"quant_algo": "FP8_PB_WO"}, OF_MODELOPT, (2, 1, 2, 1)
    ),
    "modelopt, blocks in one layer": lambda: scaled(
        float8((200, 150), (128, 128)),
        MODELOPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": "FP8_PB_WO", "c": "FP8"}},
        OF_MODELOPT,
        (2, 1, 2, 1),
    ),
    "modelopt, rows": lambda: scaled(
        float8((20, 15), (1, 15)), MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, OF_MODELOPT, 20
    ),
    "modelopt, MXFP8": lambda: scaled(
        float8((40, 64), (1, 32), np.uint8), MODELOPT | {"quant_algo": "MXFP8"}, OF_MODELOPT
    ),
    "modelopt, an algorithm for each layer": lambda: of_modelopt(
        quant_method="modelopt_mixed", quant_algo="MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "NVFP4"}}
    ),
    "modelopt, a layer left alone": lambda: of_modelopt(
        quant_algo="MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "W4A16_NVFP4"}, "b": {"quant_algo": None}}
    ),
    "MXFP8": lambda: scaled(float8((40, 64), (1, 32), np.uint8), {"quant_method": "mxfp8"}),
    "AWQ": lambda: packed(awq(), AWQ),
    "AWQ, many rows": lambda: packed(awq(rows=264), AWQ),
    "AWQ, one group": lambda: packed(awq(group=64), AWQ | {"group_size": -1}),
    "AWQ, a shorter last group": lambda: packed(awq(columns=80), AWQ),
    "AWQ, without a version": lambda: packed(awq(), {"quant_method": "awq"}),
    "AWQ, GEMM": lambda: packed(awq(), AWQ | {"version": "GEMM"}),
    "AWQ, a format": lambda: packed(awq(), {"quant_method": "awq", "bits": 4, "group_size": 32, "format": "gemm"}),
    "AWQ, an older file": lambda: packed(
        awq(), None, {"quant_config.json": {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}}
    ),
    "GPTQ": lambda: packed(gptq(), GPTQ),
    "GPTQ, many rows": lambda: packed(gptq(rows=288), GPTQ),
    "GPTQ, version 2": lambda: packed(gptq(less=0), GPTQ | {"checkpoint_format": "gptq_v2"}),
    "GPTQ, a format of version 2": lambda: packed(gptq(less=0), GPTQ | {"format": "gptq_v2"}),
    "GPTQ, symmetric": lambda: packed(gptq(symmetric=True), GPTQ),
    "GPTQ, one group": lambda: packed(gptq(group=64), GPTQ | {"group_size": -1}),
    "GPTQ, a shorter last group": lambda: packed(gptq(columns=80), GPTQ),
    "GPTQ, without g_idx": lambda: packed(gptq(with_order=False), GPTQ),
    "GPTQ, order of activations": lambda: packed(gptq(groups=ORDER), GPTQ | {"desc_act": True}),
    "GPTQ, order of activations, many rows": lambda: packed(gptq(rows=160, groups=ORDER), GPTQ | {"desc_act": True}),
    "GPTQ, 2 bits": lambda: packed(gptq(bits=2), GPTQ | {"bits": 2}),
    "GPTQ, 3 bits": lambda: packed(gptq(bits=3, rows=160), GPTQ | {"bits": 3}),
    "GPTQ, 8 bits": lambda: packed(gptq(bits=8), GPTQ | {"bits": 8}),
    "GPTQ, 8 bits for this module": lambda: packed(gptq(bits=8), GPTQ | {"dynamic": {"+:a": {"bits": 8}}}),
    "GPTQ, another group for this module": lambda: packed(
        gptq(group=16), GPTQ | {"dynamic": {"+:a": {"group_size": 16}}}
    ),
    "GPTQ, groups in 64 bits": lambda: packed(
        (lambda tensors, values: (tensors | {"g_idx": tensors["g_idx"].astype(np.int64)}, values))(*gptq()), GPTQ
    ),
    "auto-round": lambda: packed(gptq(), GPTQ | {"quant_method": "auto-round", "packing_format": "auto_round:gptq"}),
    "auto-round, no layout said": lambda: packed(gptq(), GPTQ | {"quant_method": "auto-round"}),
    "auto-round, as it was called": lambda: packed(
        gptq(), GPTQ | {"quant_method": "intel/auto-round", "backend": "auto_round:gptq:exllamav2"}
    ),
    "auto-round, of gptqmodel": lambda: packed(
        gptq(less=0), GPTQ | {"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel"}
    ),
    "auto-round, its own packing": lambda: packed(
        gptq(less=0), GPTQ | {"quant_method": "auto-round", "packing_format": "auto_round"}
    ),
    "auto-round, asymmetric": lambda: packed(
        gptq(less=0), GPTQ | {"quant_method": "intel/auto-round", "sym": False, "backend": "auto_round:exllamav2"}
    ),
    "auto-round, scales of either sign": lambda: packed(
        of_either_sign(gptq(symmetric=True)),
        GPTQ | {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"},
    ),
    "auto-round, scales of either sign, 3 bits": lambda: packed(
        of_either_sign(gptq(bits=3, rows=160, symmetric=True)), GPTQ | {"bits": 3, "quant_method": "auto-round"}
    ),
    "AWQ, scales of either sign": lambda: packed(of_either_sign(awq(symmetric=True)), AWQ),
    "auto-round, as AWQ": lambda: packed(
        awq(), AWQ | {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}
    ),
    "GPTQ, an older file": lambda: packed(gptq(), None, {"quantize_config.json": {"bits": 4, "group_size": 32}}),
}
