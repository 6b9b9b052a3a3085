"""transformers loads what `fastq convert` writes: the same weights as `--dequantize`, logits as near as upstream's."""

import json
import re

import pytest
from commands import told

from fastq.tools.layouts.schemes import PRESETS

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
from safetensors.torch import load_file, save_file  # noqa: E402

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
# what transformers 5.23 reads for experts: it leaves out their zero points, global scales and scales of blocks, and
# cannot load int8 or MXFP8 there
OF_EXPERTS = ("W2A16", "W4A16", "W8A16", "FP8_DYNAMIC", "MXFP4A16")
CHANCE = 1.05  # logits of random weights move by a few percent with any change of a few codes
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
WHOLE = [("llama", name, ()) for name in PRESETS] + [("moe", name, ()) for name in OF_EXPERTS]
# it does not load others of the mixture next to experts in floats either
BUT_EXPERTS = [("moe", name, ("--ignore", "re:.*experts")) for name in ("FP8_BLOCK", "MXFP8A16")]


def llama():
    config = transformers.LlamaConfig(**SIZES, intermediate_size=512, num_hidden_layers=3)
    return transformers.LlamaForCausalLM(config)


def mixture():
    sizes = {"intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 64}
    config = transformers.Qwen3MoeConfig(**SIZES, **sizes, num_experts=4, num_experts_per_tok=2)
    return transformers.Qwen3MoeForCausalLM(config)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of seeded models in several shards, by name."""
    folder = tmp_path_factory.mktemp("models")
    for name, make in {"llama": llama, "moe": mixture}.items():
        torch.manual_seed(0)
        make().to(torch.bfloat16).save_pretrained(folder / name, max_shard_size="1MB")
        assert len(list((folder / name).glob("*.safetensors"))) > 2
    return folder


def convert(*arguments):
    return told("convert", *arguments, exit_code=0)


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def as_floats():
    return transformers.CompressedTensorsConfig(dequantize=True)


def logits(model):
    with torch.no_grad():
        return model(torch.arange(64).reshape(2, 32) * 7 % 512).logits.float()


def noise(model, original):
    pairs = zip(model.state_dict().values(), original.state_dict().values(), strict=True)
    return sum(float(((a.float() - b.float()) ** 2).sum()) for a, b in pairs)


def error(model, original):
    expected = logits(original)
    return float((logits(model) - expected).norm() / expected.norm())


@pytest.mark.parametrize(("model", "name", "options"), [*WHOLE, *BUT_EXPERTS])
def test_transformers_loads_it(models, tmp_path, model, name, options):
    convert(models / model, tmp_path / "q", "--scheme", name, *options)
    convert(tmp_path / "q", tmp_path / "plain", "--dequantize")
    convert(models / model, tmp_path / "theirs", "--scheme", name, *options, "--convention", "compressed-tensors")
    plain, loaded = load(tmp_path / "plain"), load(tmp_path / "q", quantization_config=as_floats())
    expected = plain.state_dict()
    assert set(loaded.state_dict()) == set(expected)
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, expected[key]), key
    original = load(models / model)
    changed = [key for key, value in original.state_dict().items() if not torch.equal(value, expected[key])]
    assert changed
    assert not any("norm" in key or "embed" in key or "lm_head" in key for key in changed)
    theirs = load(tmp_path / "theirs", quantization_config=as_floats())
    assert noise(plain, original) <= 1.003 * noise(theirs, original)  # 0.01 dB, which NVFP4 loses
    assert error(plain, original) <= CHANCE * error(theirs, original)


def stacked(path, out, parts):
    """Write a mixture with the matrices of its experts in tensors of three axes, of the parts that are named."""
    tensors = {name: value for file in sorted(path.glob("*.safetensors")) for name, value in load_file(file).items()}
    experts = {name: tensors.pop(name) for name in sorted(tensors) if ".experts." in name}
    for layer in sorted({name.partition(".experts.")[0] for name in experts}):
        for stack, names in parts.items():
            rows = [
                torch.cat([experts[f"{layer}.experts.{expert}.{name}.weight"] for name in names]) for expert in range(4)
            ]
            tensors[f"{layer}.experts.{stack}"] = torch.stack(rows)
    out.mkdir()
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_bytes((path / "config.json").read_bytes())
    return out


STACKS = {
    "two": {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)},
    "three": {name: (name,) for name in ("gate_proj", "up_proj", "down_proj")},
}


@pytest.mark.parametrize("name", ["W4A16", "FP8_DYNAMIC"])
@pytest.mark.parametrize("stacks", STACKS)
def test_experts_of_tensors_are_those_of_matrices(models, tmp_path, stacks, name):
    """However a mixture has its experts, transformers reads the same values of what is written of it."""
    convert(models / "moe", tmp_path / "expected", "--scheme", name)
    convert(stacked(models / "moe", tmp_path / "m", STACKS[stacks]), tmp_path / "q", "--scheme", name)
    expected = load(tmp_path / "expected", quantization_config=as_floats()).state_dict()
    found = load(tmp_path / "q", quantization_config=as_floats()).state_dict()
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert torch.equal(value, found[key]), key
    convert(tmp_path / "q", tmp_path / "plain", "--dequantize")
    names = load_file(tmp_path / "plain" / "model.safetensors").keys()
    assert names == load_file(tmp_path / "m" / "model.safetensors").keys()
    if stacks == "two":  # which are its own names
        for key, value in load(tmp_path / "plain").state_dict().items():
            assert torch.equal(value, expected[key]), key


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].weights.symmetric])
def test_transformers_runs_it_compressed(models, tmp_path, name):
    """Zero points are not read so: transformers 5.23 expects them unpacked, though compressed-tensors packs them."""
    convert(models / "llama", tmp_path / "q", "--scheme", name)
    convert(tmp_path / "q", tmp_path / "plain", "--dequantize")
    activations = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]["config_groups"]
    run, plain = load(tmp_path / "q"), load(tmp_path / "plain")
    same = torch.equal(logits(run), logits(plain))
    assert same is (activations["group_0"]["input_activations"] is None)
    for key, value in run.state_dict().items():
        if key in plain.state_dict():
            assert torch.equal(value.to(torch.bfloat16), plain.state_dict()[key]), key


@pytest.mark.parametrize(("model", "name"), [("llama", "W4A16"), ("llama", "W2A16"), ("moe", "W4A16")])
def test_scales_of_either_sign_are_read_and_run(models, tmp_path, model, name):
    """A search takes them for codes in words; the values are what fastq says, decompressed or as the model runs."""
    convert(models / model, tmp_path / "q", "--scheme", name, "--range", "mse")
    convert(tmp_path / "q", tmp_path / "plain", "--dequantize")
    files = [load_file(path) for path in (tmp_path / "q").glob("*.safetensors")]
    scales = [tensor for file in files for key, tensor in file.items() if key.endswith("weight_scale")]
    negative = sum(int((scale < 0).sum()) for scale in scales) / sum(scale.numel() for scale in scales)
    assert 0.3 < negative < 0.7
    plain = load(tmp_path / "plain")
    for loaded in (load(tmp_path / "q", quantization_config=as_floats()), load(tmp_path / "q")):
        assert torch.equal(logits(loaded), logits(plain))
    for key, value in load(tmp_path / "q", quantization_config=as_floats()).state_dict().items():
        assert torch.equal(value, plain.state_dict()[key]), key
    convert(models / model, tmp_path / "minmax", "--scheme", name)
    original = load(models / model)
    assert noise(plain, original) < 0.9 * noise(load(tmp_path / "minmax", quantization_config=as_floats()), original)


@pytest.mark.parametrize("name", ["W8A8", "FP8_DYNAMIC", "W4A16_ASYM", "NVFP4A16"])
def test_heads_and_embeddings_are_read_by_the_call_that_is_printed(models, tmp_path, name):
    said = convert(models / "llama", tmp_path / "first", "--scheme", name)
    options = re.search(r"left as floats: .*; (.*) quantizes them", said)[1].split()
    said = convert(models / "llama", tmp_path / "q", "--scheme", name, *options)
    convert(tmp_path / "q", tmp_path / "plain", "--dequantize", "--dtype", "bfloat16")
    imports, call = (line.partition(": ")[2] for line in said.splitlines()[-2:])
    names = {}
    exec(imports, names)
    loaded, plain = eval(call, names).state_dict(), load(tmp_path / "plain").state_dict()
    original = load(models / "llama").state_dict()
    assert loaded.keys() == plain.keys()
    for key, value in plain.items():
        assert torch.equal(loaded[key].to(torch.bfloat16), value), key
    assert not any(torch.equal(plain[key], original[key]) for key in ("lm_head.weight", "model.embed_tokens.weight"))


def test_directories_of_compressed_tensors_are_read(models, tmp_path):
    """What its own compressor writes, not fastq, is turned back into the values that it decompresses itself."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from compressed_tensors.quantization.utils import calculate_qparams

    model = load(models / "llama")
    config = QuantizationConfig(config_groups={"W4A16": ["Linear"]}, ignore=["lm_head"])
    apply_quantization_config(model, config)
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None:
            groups = module.weight.unflatten(-1, (-1, scheme.weights.group_size))
            scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights)
            module.weight_scale.data.copy_(scale)
            module.quantization_status = "frozen"
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path / "theirs")
    compressor.update_config(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "plain", "--dequantize")
    expected = load(tmp_path / "theirs", quantization_config=as_floats()).state_dict()
    files = [load_file(path) for path in (tmp_path / "plain").glob("*.safetensors")]
    plain = {key: value for file in files for key, value in file.items()}
    assert len(plain) > 20
    for key, value in plain.items():
        assert torch.equal(value, expected[key]), key
