"""transformers loads the output of `fastq convert` for all of its architectures, by the call that the command prints.

Models are tiny, with random weights, made of the default configuration of each type (`tests/support/architectures.py`).
architectures.json names those for which it is otherwise, and why; a test fails where that is no longer so.
"""

import json
import re
from pathlib import Path

import pytest
import safetensors
from commands import invoke

from fastq.tools.checkpoints.experts import EXPERT
from fastq.tools.checkpoints.readers import NOT_BY_ROWS, SPLIT_BY_READERS
from fastq.tools.checkpoints.rules import OTHER_LAYERS
from fastq.tools.checkpoints.skipped_modules import kind_of

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
compressors = pytest.importorskip("compressed_tensors.compressors", reason="compressed-tensors is not installed")
from architectures import all_classes, classes, on_meta, tiny_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
CLASSES = classes()
OF_VERSION = "5.24"  # of transformers: what architectures.json is of
EXCEPTIONS = {
    kind: reason
    for reason, kinds in json.loads(Path(__file__).with_name("architectures.json").read_text()).items()
    for kind in kinds
}
# what is raised for each reason; models that are not made are skipped
RAISED = {
    "not made of a default configuration": None,
    "not loaded as it was saved": "automatic conversion of the weights|ignore_mismatched|normal_kernel_cpu",
    "no matrix of a Linear layer": "it has no matrix to quantize",
    "layers that are not Linear": "have Conv1D layers|have layers with their own integer arithmetic",
    "matrices that the reader splits or joins": "automatic conversion|ignore_mismatched_sizes|source keys|^keys: ",
    "zero points of few rows": "automatic conversion of the weights",  # which the reader can't unpack
}
SCHEMES = {
    kind: ("W8A16", "W4A16", "W4A16_ASYM", "W8A8", "FP8_DYNAMIC")[k % 5] for k, kind in enumerate(sorted(CLASSES))
}
EACH = 9  # one of this many is quick, with those below
QUICK = {"llama", "bert", "t5", "whisper", "clip", "mixtral", "fuyu", "ctrl", "eomt", "phimoe", "modernbert", "falcon"}
QUICK |= set(sorted(CLASSES)[::EACH])
PARTS = 16
LABELS = 11  # rows of a head that nothing else has
OF_EXPERTS = ("W4A16", "W8A16", "FP8_DYNAMIC")  # what transformers 5.24 reads of experts
NUMBERED = re.compile(r"\.\d+\.")


def convert(*arguments):
    """What the command says; where groups do not fill the columns of such small matrices, rows have scales."""
    result = invoke("convert", *arguments)
    if "not a multiple of the group size" in result.stderr:
        return convert(*arguments[:2], "--scheme", "FP8_DYNAMIC")
    assert result.exit_code == 0, result.stderr.strip().splitlines()[-1:] or repr(result.exception)
    return result.stderr


def load(kind, folder, *, as_floats=False):
    config = {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)} if as_floats else {}
    reader = getattr(transformers, CLASSES[kind])
    model, told = reader.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True, **config)
    if any(hasattr(module, "quantization_scheme") for module in model.modules()):
        compressors.ModelCompressor.from_pretrained_model(model).decompress_model(model)
    return model, {key: sorted(map(str, told[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}


def logits(model):
    """The first result for some tokens; None for models that take something else."""
    torch.manual_seed(0)  # some draw numbers
    try:
        with torch.no_grad():
            return model(torch.arange(16).reshape(1, 16) + 4)[0]
    except Exception:
        return None


def has_experts(folder):
    with safetensors.safe_open(folder / "model.safetensors", "np") as file:
        return any(EXPERT.fullmatch(name) or "experts" in name.split(".") for name in file.keys())  # noqa: SIM118


def check(kind, folder, scheme):
    """Convert a model, load the result, and compare it with that of --dequantize."""
    tiny_model(kind, CLASSES[kind]).save_pretrained(folder / "model")
    scheme = scheme if scheme in OF_EXPERTS or not has_experts(folder / "model") else "W4A16"
    said = convert(folder / "model", folder / "q", "--scheme", scheme, *["--group-size", "16"] * ("A16" in scheme))
    convert(folder / "q", folder / "plain", "--dequantize")
    before, _ = load(kind, folder / "model")
    plain, told = load(kind, folder / "plain")
    loaded, of_quantized = load(kind, folder / "q", as_floats="(dequantize=True)" in said)
    assert of_quantized == told, f"keys: {of_quantized}"
    assert "to load it: " in said, "it loads, and the command says that it does not"
    compare(before.state_dict(), plain.state_dict(), loaded.state_dict())
    results = logits(loaded), logits(plain)
    if "A16" in scheme and all(torch.is_tensor(each) for each in results):  # others quantize activations
        assert torch.allclose(*(each.float() for each in results), atol=0.05, equal_nan=True), "results"


def compare(before, expected, found):
    """Same tensors, of which some have changed, and the same values as those of --dequantize."""
    names = {key for key in found if not key.endswith(("weight_scale", "weight_shape"))}
    assert names == set(expected) == set(before), f"names: {names ^ set(expected)}"
    for key, value in expected.items():
        assert torch.equal(found[key].to(torch.bfloat16), value.to(torch.bfloat16)), f"values of {key}"
    changed = [key for key, value in before.items() if not torch.equal(value, expected[key])]
    assert changed, "nothing is quantized"
    assert all(before[key].ndim > 1 for key in changed), f"vectors: {changed}"


@pytest.mark.slow("minutes for hundreds of models", quick=lambda kind: kind in QUICK)
@pytest.mark.parametrize("kind", sorted(CLASSES))
def test_each_architecture_loads(kind, tmp_path):
    reason = EXCEPTIONS.get(kind)
    if reason and (RAISED[reason] is None or not transformers.__version__.startswith(OF_VERSION)):
        pytest.skip(f"{CLASSES[kind]}: {reason}, in transformers {OF_VERSION}")
    if reason is None:
        check(kind, tmp_path, SCHEMES[kind])
    else:
        with pytest.raises(Exception, match=RAISED[reason]):  # AssertionError, RuntimeError and others of transformers
            check(kind, tmp_path, "W8A16" if kind in SPLIT_BY_READERS else SCHEMES[kind])


@pytest.mark.slow("for some models of each kind", quick=lambda kind: kind == "gte")
@pytest.mark.parametrize("kind", sorted(SPLIT_BY_READERS & set(CLASSES)))
def test_rows_with_scales_are_split_and_joined(kind, tmp_path):
    if not transformers.__version__.startswith(OF_VERSION):
        pytest.skip(f"what is split is of transformers {OF_VERSION}")
    if kind not in NOT_BY_ROWS:
        check(kind, tmp_path, "FP8_DYNAMIC")
    else:
        with pytest.raises(Exception, match=RAISED["matrices that the reader splits or joins"]):
            check(kind, tmp_path, "FP8_DYNAMIC")


def test_what_the_command_knows_of_readers():
    found = {kind for kind, reason in EXCEPTIONS.items() if reason == "matrices that the reader splits or joins"}
    assert found == SPLIT_BY_READERS & set(CLASSES)
    assert {kind for kind, reason in EXCEPTIONS.items() if reason == "layers that are not Linear"} >= {"gpt2", "ibert"}


@pytest.mark.slow("minutes for all classes", quick=lambda part: part == 0)
@pytest.mark.parametrize("part", range(PARTS))
def test_heads_and_embeddings_of_all_classes_are_known(part):
    """Other layers than Linear stay, and so do the output embedding and what has a row for each label or token."""
    seen = 0
    for name, kind in sorted(all_classes().items())[part::PARTS]:
        try:
            model = on_meta(kind, name, num_labels=LABELS)
        except ValueError:
            continue
        modules = dict(model.named_modules())
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        rows = {model.config.num_labels, getattr(model.config, "vocab_size", 0)}
        inner = model.base_model_prefix if hasattr(model, model.base_model_prefix or "-") else None
        for module, layer in modules.items():
            weight = getattr(layer, "weight", None)
            if not module or not torch.is_tensor(weight) or weight.ndim != 2 or kind in OTHER_LAYERS:
                continue
            seen += 1
            known = kind_of(module)
            if not isinstance(layer, torch.nn.Linear):
                assert known or type(layer).__name__ == "Conv1D", (name, module, type(layer).__name__)
            elif layer is head:
                assert known, (name, module)
            elif inner and module.split(".")[0] != inner and weight.shape[0] in rows and not NUMBERED.search(module):
                assert known == "output head", (name, module, known)
    assert seen > 500
