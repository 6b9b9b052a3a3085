"""What transformers and compressed-tensors read of quantized models of many writers, `fastq convert` reads."""

import json

import numpy as np
import pytest
from commands import run
from folder_cases import READ, folder
from source_models import E4M3, E8M0, awq, gptq, named, write_file

import fastq.io
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.quant_methods import stored_weights
from fastq.tools.layouts.schemes import PRESETS

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
TINY = {"hidden_size": 2, "intermediate_size": 2, "num_attention_heads": 1, "num_hidden_layers": 1, "vocab_size": 2}
# what transformers reads when it is told the name only, and an index that it does not read
OF_FASTQ = ("one of another name", "only a variant", "an index without metadata")


@pytest.mark.parametrize("case", READ)
def test_the_files_of_a_folder(tmp_path, case):
    """The values of each tensor tell of which file it is."""
    config = transformers.LlamaConfig(**TINY, tie_word_embeddings=True).to_dict()
    files = {name: content for name, content in READ[case][0].items() if not name.startswith("adapter")}
    path = folder(tmp_path / "model", files, config)
    found = ModelFolder.open(path)
    if case in OF_FASTQ:
        with pytest.raises((OSError, KeyError), match=r"no file named model\.safetensors|metadata"):
            transformers.LlamaForCausalLM.from_pretrained(path)
        return
    loaded = transformers.LlamaForCausalLM.from_pretrained(path).state_dict()
    for name in found.tensors:
        np.testing.assert_array_equal(loaded[name].numpy(), found.load(name))


SIZES = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "num_hidden_layers": 2,
}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, intermediate_size=512))


def mixture():
    sizes = {"moe_intermediate_size": 128, "intermediate_size": 512, "num_experts": 2, "num_experts_per_tok": 1}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SIZES, **sizes, head_dim=64))


def as_float8(weight, block, kind):
    """Codes, and scales of blocks in a dtype."""
    rows, columns = weight.shape
    height, width = block or weight.shape
    blocks = weight.reshape(rows // height, height, columns // width, width)
    scale = np.abs(blocks).max((1, 3)) / np.float32(448)
    scale = np.exp2(np.ceil(np.log2(scale))).astype(E8M0) if kind is E8M0 else scale.astype(np.float32)
    codes = (blocks / scale.astype(np.float32)[:, None, :, None]).astype(E4M3).reshape(rows, columns)
    return codes, scale if block else scale.reshape(())


FP8 = [  # model, rows and columns of a block, scales, end of their names
    ("llama", (128, 128), np.float32, "_scale_inv"),
    ("llama", (128, 128), E8M0, "_scale_inv"),
    ("llama", (64, 32), np.float32, "_scale_inv"),
    ("llama", None, np.float32, "_scale_inv"),
    ("moe", (128, 128), np.float32, "_scale_inv"),
    ("moe", (128, 128), E8M0, "_scale_inv"),
]


def converted(path, out):
    run("convert", path, out, "--dequantize")
    return out


def saved(model, tmp_path):
    """Write a model; return its tensors in float32."""
    model.to(torch.bfloat16).save_pretrained(tmp_path / "plain")
    source = ModelFolder.open(tmp_path / "plain")
    return {name: source.load(name) for name in source.tensors}, source.config


@pytest.mark.parametrize(("name", "block", "kind", "end"), FP8)
def test_float8_of_transformers(tmp_path, name, block, kind, end):
    """Without a GPU it turns float8 back into bfloat16 itself."""
    torch.manual_seed(0)
    tensors, config = saved({"llama": llama, "moe": mixture}[name](), tmp_path)
    for weight in [each for each in tensors if "proj" in each]:
        tensors[weight], tensors[weight + end] = as_float8(tensors[weight].astype(np.float32), block, kind)
    entry = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block and list(block)}
    entry |= {"scale_fmt": "ue8m0"} if kind is E8M0 else {}
    same_as_transformers(tmp_path, tensors, config | {"quantization_config": entry})


def same_as_transformers(tmp_path, tensors, config, **options):
    (tmp_path / "q").mkdir()
    write_file(tmp_path / "q" / "model.safetensors", tensors)
    (tmp_path / "q" / "config.json").write_text(json.dumps(config))
    load = transformers.AutoModelForCausalLM.from_pretrained
    expected = load(tmp_path / "q", **options).state_dict()
    plain = load(converted(tmp_path / "q", tmp_path / "back")).state_dict()
    assert plain.keys() == expected.keys()
    for key, value in plain.items():
        assert torch.equal(value, expected[key]), key


def test_float4_of_gpt_oss(tmp_path):
    sizes = {"intermediate_size": 64, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 32}
    torch.manual_seed(0)
    tensors, config = saved(transformers.GptOssForCausalLM(transformers.GptOssConfig(**SIZES, **sizes)), tmp_path)
    rng = np.random.default_rng(0)
    for name in [each for each in tensors if each.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = rng.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
        tensors[f"{name}_scales"] = rng.integers(110, 125, (experts, outputs, inputs // 32), np.uint8)
    entry = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    config |= {"quantization_config": entry}
    same_as_transformers(tmp_path, tensors, config, quantization_config=transformers.Mxfp4Config(dequantize=True))


# What compressed-tensors decompresses itself


def zero_points(weights, scale, value):
    """Zero points of a number, packed where it packs them."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    plain = torch.full(tuple(scale.shape), value, dtype=torch.int8)
    return plain if weights.symmetric else pack_to_int32(plain, weights.num_bits, packed_dim=0).contiguous()


@pytest.mark.parametrize("change", ["as it is", "zero points", "scales of zero"])
@pytest.mark.parametrize("name", PRESETS)
def test_what_compressed_tensors_decompresses(tmp_path, name, change):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from safetensors.torch import load_file, save_file

    rng = np.random.default_rng(0)
    source = {"l.proj.weight": rng.standard_normal((128, 256), np.float32)}
    (tmp_path / "plain").mkdir()
    write_file(tmp_path / "plain" / "model.safetensors", source)
    (tmp_path / "plain" / "config.json").write_text(json.dumps({"dtype": "float32"}))
    run("convert", tmp_path / "plain", tmp_path / "q", "--scheme", name)
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    entry = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]
    scheme = QuantizationScheme.model_validate(entry["config_groups"]["group_0"])
    scale = tensors["l.proj.weight_scale"]
    if change == "zero points":
        tensors["l.proj.weight_zero_point"] = zero_points(scheme.weights, scale, 0 if scheme.weights.symmetric else 3)
    elif change == "scales of zero":
        if name.startswith("MX"):
            return  # powers of two are never 0
        scale[:1] = 0
    save_file(tensors, tmp_path / "q" / "model.safetensors", {"format": "pt"})
    state = {key.removeprefix("l.proj."): tensor for key, tensor in tensors.items()}
    theirs = BaseCompressor.get_value_from_registry(scheme.format).decompress(state, scheme)["weight"]
    (weight,) = stored_weights(ModelFolder.open(tmp_path / "q")).values()
    assert torch.equal(torch.from_numpy(weight.all_values()).to(theirs.dtype), theirs)


@pytest.mark.parametrize("kind", ["awq", "gptq"])
def test_awq_and_gptq_become_compressed_tensors(tmp_path, kind):
    """What was opened and saved transformers reads as the values that --dequantize writes; the codes are the same."""
    torch.manual_seed(0)
    tensors, config = saved(llama(), tmp_path)
    for seed, weight in enumerate([each for each in tensors if "proj" in each]):
        rows, columns = tensors.pop(weight).shape
        parts, _ = {"awq": awq, "gptq": gptq}[kind](columns, rows, 128, seed=seed)
        tensors |= named(weight.removesuffix(".weight"), parts)
    entry = {"quant_method": kind, "bits": 4, "group_size": 128, "zero_point": True, "desc_act": False}
    (tmp_path / "q").mkdir()
    write_file(tmp_path / "q" / "model.safetensors", tensors)
    (tmp_path / "q" / "config.json").write_text(json.dumps(config | {"quantization_config": entry}))
    opened = fastq.io.open_checkpoint(tmp_path / "q")
    fastq.io.save_checkpoint(tmp_path / "saved", opened, opened.config)
    load = transformers.AutoModelForCausalLM.from_pretrained
    loaded = load(tmp_path / "saved", quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    expected = load(converted(tmp_path / "q", tmp_path / "back")).state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, expected[key]), key
