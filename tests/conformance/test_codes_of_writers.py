"""Files that other programs quantized: their codes are known, nothing of them is quantized again."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from catalogue import same_bytes
from commands import invoke, refused, told

from fastq.tools.files.containers import open_source
from fastq.tools.files.quantized_elsewhere import quantized_elsewhere

torch = pytest.importorskip("torch", reason="torch is not installed")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # those of these programs
ROWS, COLUMNS = 64, 256


def layers():
    """A model of two layers, of which a program quantizes the first one."""
    torch.manual_seed(0)
    parts = {"l": torch.nn.Linear(COLUMNS, ROWS), "m": torch.nn.Sequential(torch.nn.Linear(ROWS, 24))}
    return torch.nn.ModuleDict(parts)


def saved(path, tensors, metadata=None):
    held = {name: tensor.contiguous().clone() for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
    safetensors_torch.save_file(held, path, metadata)


def of_mlx(path, mode="affine", group_size=64, bits=4):
    mx = pytest.importorskip("mlx.core", reason="mlx is not installed", exc_type=ImportError)
    import mlx.nn
    import mlx.utils

    layer = mlx.nn.QuantizedLinear(COLUMNS, ROWS, group_size=group_size, bits=bits, mode=mode)
    tensors = {f"l.{name}": array for name, array in mlx.utils.tree_flatten(layer.parameters())}
    mx.save_safetensors(str(path), tensors | {"m.weight": mx.zeros((24, ROWS))})


def of_torchao(path, config):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    support = pytest.importorskip(
        "torchao.prototype.safetensors.safetensors_support", reason="torchao writes no safetensors"
    )
    model = layers()
    quantization.quantize_(model["l"], getattr(quantization, config)())
    saved(path, *support.flatten_tensor_state_dict(model.state_dict()))


def of_quanto(path, dtype):
    quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed")
    model = layers()
    quanto.quantize(model, weights=getattr(quanto, dtype), exclude="m*")
    quanto.freeze(model)
    saved(path, model.state_dict())


def of_hqq(path):
    hqq = pytest.importorskip("hqq.core.quantize", reason="hqq is not installed")
    model = layers()
    config = hqq.BaseQuantizeConfig(nbits=4, group_size=64)
    made = hqq.HQQLinear(copy.deepcopy(model["l"]), config, compute_dtype=torch.float32, device="cpu")
    tensors = {f"l.{name}": tensor for name, tensor in made.state_dict().items()}
    saved(path, tensors | {"m.weight": model["m"][0].weight.detach()})


def of_bitsandbytes(path, kind):
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    model = layers()
    codes, state = functional.quantize_4bit(model["l"].weight.detach(), quant_type=kind, compress_statistics=True)
    tensors = {f"l.weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    saved(path, {"l.weight": codes, **tensors, "m.weight": model["m"][0].weight.detach()})


def of_compressed_tensors(path, preset):
    library = pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    model = layers()
    scheme = quantization.preset_name_to_scheme(preset, ["re:l$"])
    config = quantization.QuantizationConfig(config_groups={"group_0": scheme}, format="pack-quantized")
    quantization.apply_quantization_config(model, config)
    weight = model["l"].weight.detach()
    for name, parameter in model["l"].named_parameters():
        if name == "weight_scale":
            groups = weight.reshape(ROWS, parameter.shape[1], -1)
            parameter.data.copy_(groups.abs().amax(-1) / (2 ** (scheme.weights.num_bits - 1) - 1))
    library.ModelCompressor(quantization_config=config).compress_model(model)
    saved(path, model.state_dict())


WRITERS = {
    "MLX": of_mlx,
    "MLX, 8 bits": lambda path: of_mlx(path, bits=8, group_size=32),
    "MLX, mxfp4": lambda path: of_mlx(path, "mxfp4", 32, 4),
    "MLX, nvfp4": lambda path: of_mlx(path, "nvfp4", 16, 4),
    "MLX, mxfp8": lambda path: of_mlx(path, "mxfp8", 32, 8),
    "torchao, int8": lambda path: of_torchao(path, "Int8WeightOnlyConfig"),
    "torchao, float8": lambda path: of_torchao(path, "Float8WeightOnlyConfig"),
    "torchao, integers": lambda path: of_torchao(path, "IntxWeightOnlyConfig"),
    "quanto, int8": lambda path: of_quanto(path, "qint8"),
    "quanto, int4": lambda path: of_quanto(path, "qint4"),
    "quanto, float8": lambda path: of_quanto(path, "qfloat8"),
    "HQQ": of_hqq,
    "bitsandbytes, nf4": lambda path: of_bitsandbytes(path, "nf4"),
    "bitsandbytes, fp4": lambda path: of_bitsandbytes(path, "fp4"),
    "compressed-tensors, W4A16": lambda path: of_compressed_tensors(path, "W4A16"),
    "compressed-tensors, W8A16": lambda path: of_compressed_tensors(path, "W8A16"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_codes_are_known(tmp_path, writer):
    path = tmp_path / "in.safetensors"
    WRITERS[writer](path)
    source = open_source(path)
    (weight,) = quantized_elsewhere(source.tensors.values())
    assert weight.codes.name.startswith("l.")
    said = told("quantize", path, tmp_path / "out.safetensors", exit_code=0)
    assert "1 weight quantized by another program: l." in said
    out = open_source(tmp_path / "out.safetensors")
    for name in source.tensors:
        if name.startswith("l."):
            assert out.raw(name).tobytes() == source.raw(name).tobytes()
    assert any(name.startswith("m.") and name.endswith("weight_scale") for name in out.tensors)
    (tmp_path / "model").mkdir()
    path.rename(tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text("{}")
    assert "no quantization_config" in refused("convert", tmp_path / "model", tmp_path / "q", "--scheme", "W8A16")


@pytest.mark.parametrize("both_keys", [True, False])
def test_a_directory_of_mlx_is_restored_as_by_its_own_program(tmp_path, both_keys):
    """The floats are those of mlx_lm, and fastq converts the directory itself."""
    mx = pytest.importorskip("mlx.core", reason="mlx is not installed", exc_type=ImportError)
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 1}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, vocab_size=32, tie_word_embeddings=False)
    transformers.LlamaForCausalLM(config).to(torch.float16).save_pretrained(tmp_path / "plain")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    folder = tmp_path / "mlx"
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    source = open_source(tmp_path / "plain" / "model.safetensors")
    tensors = {}
    for name in source.tensors:
        array = mx.array(source.load(name))
        if array.ndim == 2:
            module = name.removesuffix(".weight")
            tensors[name], tensors[f"{module}.scales"], tensors[f"{module}.biases"] = mx.quantize(array, 64, 4)
        else:
            tensors[name] = array
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    entry = {"group_size": 64, "bits": 4}
    settings = json.loads((tmp_path / "plain" / "config.json").read_text())
    settings |= {"quantization_config": entry} | ({"quantization": entry} if both_keys else {})
    (folder / "config.json").write_text(json.dumps(settings))
    command = shutil.which("mlx_lm.convert", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if command is None:
        pytest.skip("mlx_lm.convert is not on the path")
    assert invoke("convert", folder, tmp_path / "ours", "--dequantize").exit_code == 0
    assert invoke("convert", folder, tmp_path / "q", "--scheme", "W8A16", "--group-size", "64").exit_code == 0
    if not both_keys:  # mlx_lm reads the other one
        settings["quantization"] = settings.pop("quantization_config")
        (folder / "config.json").write_text(json.dumps(settings))
    command = [command, "--hf-path", folder, "--mlx-path", tmp_path / "theirs", "--dequantize"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    ours, theirs = (open_source(tmp_path / each / "model.safetensors") for each in ("ours", "theirs"))
    assert set(ours.tensors) == set(theirs.tensors) == set(source.tensors)
    for name in source.tensors:
        same_bytes(ours.load(name), theirs.load(name))
    name = "model.layers.0.mlp.up_proj.weight"
    x, y = (each.load(name).astype(np.float64) for each in (source, theirs))
    assert 10 * np.log10((x**2).sum() / ((x - y) ** 2).sum()) > 15  # of 4 bits
