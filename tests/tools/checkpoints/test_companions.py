"""Folders that go with a model, what stays behind, and the call that loads what was written."""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import invoke, refused, run, told
from model_folders import CONFIG, write_model, write_single

from fastq.system.arguments import shown
from fastq.tools.checkpoints.config_json import dtype_of
from fastq.tools.checkpoints.readers import loading_lines
from fastq.tools.checkpoints.rules import Matrix
from fastq.tools.checkpoints.skipped_modules import kind_of
from fastq.tools.layouts.schemes import PRESETS, as_scheme

OPTIONS = ("--scheme", "W8A8")
OTHERS = ("--group-size", "32", "--scheme-for", "re:.*[qkv]_proj=W8A16")
SENTENCES = [
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    {"idx": 3, "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},  # has no files
]
# files of a model, whether they come along, and what standard error says of them
# files of a model that come along, and those that do not and of which standard error tells
COME = (
    *("1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "tokenizer/vocab.json"),
    *("tokenizer/deep/er/merges.txt", "assets/picture.png", "generation_config.json"),
)  # modules.json names 2_Dense: its weights are not matrices of the model
STAY = (
    *("original/params.json", "original/consolidated.00.pth", "onnx/model.onnx", "openvino/openvino_model.xml"),
    *("checkpoints/model.safetensors", "gguf/model.gguf", "pytorch_model.bin", "tf_model.h5", "model.gguf"),
)
HIDDEN = (".git/config", ".cache/huggingface/x.lock", "assets/.DS_Store", ".gitattributes")  # and nothing is said


@pytest.fixture
def whole(model, tmp_path):
    """A copy of a model with all these files."""
    folder = shutil.copytree(model, tmp_path / "whole")
    for name in (*COME, *STAY, *HIDDEN):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "modules.json").write_text(json.dumps(SENTENCES))
    return folder


def converted(folder, out, *options):
    said = told("convert", folder, out, *(options or OPTIONS), exit_code=0)
    return [line for line in said.splitlines() if "copied, " in line or "not copied" in line or "modules.json" in line]


def test_folders_come_along(whole, tmp_path):
    (line,) = converted(whole, tmp_path / "out")
    said = line.split("not copied: ")[1].split(", ")
    for name in COME:
        assert (tmp_path / "out" / name).read_bytes() == name.encode()
    assert not any((tmp_path / "out" / name).exists() for name in (*STAY, *HIDDEN))
    for name in (*COME, *STAY):
        first = name.split("/")[0]
        assert ((f"{first}/" if "/" in name else first) in said) == (name in STAY), name
    assert converted(tmp_path / "out", tmp_path / "back", "--dequantize") == []
    assert (tmp_path / "back" / "1_Pooling" / "config.json").exists()


def test_reports_replace_no_file_of_a_folder(whole, tmp_path):
    converted(whole, tmp_path / "out")
    report = tmp_path / "out" / "1_Pooling" / "config.json"
    line = refused("convert", whole, tmp_path / "out", *OPTIONS, "--force", "--report", report)
    assert "'config.json' is a file of the model in OUT" in line
    converted(whole, tmp_path / "out", *OPTIONS, "--force", "--report", report.with_name("report.json"))
    assert report.read_bytes() == b"1_Pooling/config.json"


def test_large_folders_stay_behind(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("fastq.tools.checkpoints.copied_files.LARGEST", 17)
    (line,) = converted(whole, tmp_path / "out")
    assert "assets/" in line  # 18 bytes
    assert (tmp_path / "out" / "1_Pooling").is_dir()


OTHER_WEIGHTS = (  # names of files of weights that other programs write next to those of transformers
    *("pytorch_model-00001-of-00002.bin", "model.pt", "consolidated.00.pth", "model.ckpt", "tf_model.h5"),
    *("model.ckpt-1.data-00000-of-00001", "saved_model.pb", "flax_model.msgpack", "rust_model.ot", "model.gguf"),
    *("model.onnx", "model.onnx_data", "model.onnx.data", "model.onnx_data_1", "MODEL.ONNX", "model.ort"),
    *("model.tflite", "model.litertlm", "model.task", "model.keras", "model.pdparams", "model.nemo", "model.mlmodel"),
    *("weights.npz", "model.engine", "model.pte", "model.mnn", "model.rknn", "model.pkl", "model.fp16.safetensors"),
    *("model-0000.params", "model.dlc", "model.hef", "model.rkllm", "model.axmodel", "net.caffemodel", "__0_0.distcp"),
    *("model.Q8_0.gguf-split-a", "model.gguf.part1of2", "model.safetensors.part-b", "model.joblib"),
    *("openvino_model.xml", "openvino_model.bin", "model.ncnn.param", "model.ncnn.bin", "model.caffemodel"),
    *("model.prototxt", "model.qnn", "model.xmodel", "model.om", "model.rten", "model.vmfb", "model.safetensors.bak"),
)
NEEDED = (  # and of files that readers need
    *("tokenizer.model", "vocab.bpe", "merges.txt", "chat_template.jinja", "modeling_x.py", "README.md", "LICENSE"),
    *("spiece.model", "tokenizer.json", "special_tokens_map.json", "adapter_model.bin", "model.py", "vocab.json"),
    *("LICENSE.llama3", "Modelfile", "openvino_config.json", "vocab.xml", "cl100k.tiktoken", "example.wav", "a.png"),
    # tokenizers of Mistral, OpenCLIP, NLLB, Marian, XLM, ChatGLM, Qwen, of MeCab, and of speech
    *("tokenizer.model.v3", "tokenizer.model.v7m1", "mistral_instruct_tokenizer_240323.model.v3", "tekken.json"),
    *(
        "bpe_simple_vocab_16e6.txt.gz",
        "flores200_sacrebleu_tokenizer_spm.model",
        "source.spm",
        "target.spm",
        "codes.bpe",
    ),
    *("ice_text.model", "qwen.tiktoken", "vocab.json.gz", "char.def", "sys.dic", "tokens.lst", "am.mvn", "lm.arpa"),
    *("tokenize_and_classify.far", "zh.fst", "jieba.dict.utf8", "lang_char.units", "bpe.codes", "dict.phn"),
    # code, examples and others
    *("cache_autogptq_cuda_256.cpp", "cache_autogptq_cuda_kernel_256.cu", "sentencepiece_model.proto", "uv.lock"),
    *("model.sig", "config.json.bak", "config.yaml.example", "demo.m4a", "License_Agreement.docx", "grammar.gbnf"),
    "events.out.tfevents.1700000000.host.1.0",
)


def test_weights_in_other_formats_stay_and_are_listed(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "own")
    for name in (*OTHER_WEIGHTS, *NEEDED, "pytorch_model.bin.index.json", "model-00009.safetensors.part"):
        (folder / name).write_bytes(b"x")
    (line,) = converted(folder, tmp_path / "out")
    assert line.split("not copied: ")[1].split(", ") == sorted(OTHER_WEIGHTS)
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert there == {path.name for path in model.iterdir()} | set(NEEDED)


def test_files_of_unknown_kinds_are_copied_and_told(model, tmp_path):
    """They may be the model in another format."""
    folder = shutil.copytree(model, tmp_path / "own")
    (folder / "inner").mkdir()
    unknown = ("model.of_a_new_format", "model.v3", "tokenizer.model.v3.new", "inner/another.kind")
    for name in (*unknown, "inner/vocab.txt"):
        (folder / name).write_bytes(b"x")
    (line,) = converted(folder, tmp_path / "out")
    told_of = "model.of_a_new_format, model.v3, tokenizer.model.v3.new and 1 more"
    assert line.endswith(f"copied, of kinds that fastq does not know: {told_of}")
    assert (tmp_path / "out" / "inner" / "another.kind").read_bytes() == b"x"


def test_large_files_stay_and_are_listed(model, tmp_path, monkeypatch):
    folder = shutil.copytree(model, tmp_path / "own")
    (folder / "weights.of_a_new_format").write_bytes(b"x" * 5000)
    monkeypatch.setattr("fastq.tools.checkpoints.copied_files.LARGEST", 4999)
    (line,) = converted(folder, tmp_path / "out")
    assert line.endswith("not copied: weights.of_a_new_format")
    assert (tmp_path / "out" / "tokenizer.json").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_pipes_are_not_read(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "own")
    os.mkfifo(folder / "pipe")
    assert converted(folder, tmp_path / "out") == []
    assert not (tmp_path / "out" / "pipe").exists()


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links")
@pytest.mark.parametrize("name", ["vocab.json", "modeling_x.py", "templates/tool.jinja", "1_Pooling/config.json"])
def test_links_to_nothing_are_refused(model, tmp_path, name):
    """A snapshot in the cache of the hub has links to blobs; one that is missing is not left out in silence."""
    folder, out = shutil.copytree(model, tmp_path / "own"), tmp_path / "out"
    (folder / name).parent.mkdir(exist_ok=True)
    (tmp_path / "blob").write_text("{}")
    (folder / name).symlink_to(tmp_path / "blob")
    converted(folder, out)
    assert (out / name).read_text() == "{}"
    assert not (out / name).is_symlink()
    (tmp_path / "blob").unlink()
    line = refused("convert", folder, tmp_path / "again", *OPTIONS)
    assert f"{folder / name} is a link to a file that is missing" in line
    assert not (tmp_path / "again").exists()
    (folder / name).unlink()  # as the message says
    converted(folder, tmp_path / "again")


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links")
def test_links_of_weights_that_are_not_read_may_lead_to_nothing(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "own")
    for name in ("pytorch_model.bin", "onnx/model.onnx"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(tmp_path / "nothing")
    (line,) = converted(folder, tmp_path / "out")
    assert line.endswith(("not copied: onnx/, pytorch_model.bin", "not copied: pytorch_model.bin, onnx/"))


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links")
def test_links_to_folders_are_not_followed(model, tmp_path):
    # contract 28.8
    folder, out = shutil.copytree(model, tmp_path / "own"), tmp_path / "out"
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.txt").write_text("mine")
    (folder / "inner").mkdir()
    for link in ("extra", "inner/deep", "1_Pooling"):
        (folder / link).symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)  # which has OUT
    (folder / "modules.json").write_text(json.dumps(SENTENCES[:2]))
    (line,) = converted(folder, out)
    assert "not copied: 1_Pooling/ (a link), extra/ (a link), inner/deep/ (a link), up/ (a link)" in line
    assert not [path for path in out.rglob("*") if path.name == "key.txt"]


def test_nothing_is_said_where_nothing_stays_behind(model, tmp_path):
    assert converted(model, tmp_path / "out") == []


@pytest.mark.parametrize("path", ["1_Pooling", "../elsewhere", "/tmp", "a/b", "a" * 5000])
def test_modules_that_are_missing_are_told(model, tmp_path, path):
    folder = shutil.copytree(model, tmp_path / "own")
    (folder / "modules.json").write_text(json.dumps([SENTENCES[0], {"path": path, "type": "Pooling"}]))
    (line,) = converted(folder, tmp_path / "out")
    assert f"modules.json names {shown(path)}, which is not a folder in it" in line


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[1]", '[{"path": 3}]', '[{"idx": 0}]', "null"])
def test_modules_that_say_nothing(model, tmp_path, text):
    folder = shutil.copytree(model, tmp_path / "own")
    (folder / "modules.json").write_text(text)
    assert converted(folder, tmp_path / "out") == []
    assert (tmp_path / "out" / "modules.json").read_text() == text


def test_what_is_written_into_the_model_is_no_part_of_it(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "own")
    assert converted(folder, folder / "out") == []
    assert not (folder / "out" / "out").exists()
    (line,) = converted(folder, tmp_path / "other")
    assert "not copied: out/" in line


# How it is loaded

FLOATS = "quantization_config=CompressedTensorsConfig(dequantize=True)"
OWN = "trust_remote_code=True"
OF_AUTO_MAP = [  # the class of transformers that finds the model by such an auto_map
    ("AutoModelForCausalLM", {"AutoModelForCausalLM": "m.LlamaForCausalLM"}),
    ("AutoModelForCausalLM", {"AutoModel": "m.Model", "AutoModelForCausalLM": "m.Other"}),
    ("AutoModel", {"AutoModel": "m.LlamaForCausalLM", "AutoModelForCausalLM": "m.Other"}),
    ("AutoModelForMaskedLM", {"AutoModel": "m.Model", "AutoModelForMaskedLM": "m.Masked"}),
    ("AutoModelForImageTextToText", {"AutoModelForImageTextToText": "owner/code--m.LlamaForCausalLM"}),
    ("AutoModel", {"AutoModel": "m.Model", "AutoModel;import os": "m.LlamaForCausalLM"}),
]
LLAMA = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
CALLS = [
    (LLAMA, ["W4A16"], [f"LlamaForCausalLM.from_pretrained('q', {FLOATS})"]),
    (LLAMA, ["W4A16_ASYM"], [f"LlamaForCausalLM.from_pretrained('q', {FLOATS})"]),
    (LLAMA, ["W8A8"], ["LlamaForCausalLM.from_pretrained('q')"]),
    (LLAMA, ["FP8_DYNAMIC"], ["LlamaForCausalLM.from_pretrained('q')"]),
    (LLAMA, ["NVFP4A16"], [f"LlamaForCausalLM.from_pretrained('q', {FLOATS})"]),
    (LLAMA, ["W4A16", "W8A16"], ["LlamaForCausalLM.from_pretrained('q')"]),
    (LLAMA, ["NVFP4A16", "W8A16"], ["LlamaForCausalLM.from_pretrained('q')"]),
    ({**LLAMA, "dtype": "float32"}, ["NVFP4A16"], ["in bfloat16, and the model is float32", FLOATS]),
    ({**LLAMA, "dtype": "float16"}, ["MXFP4A16"], ["in bfloat16, and the model is float16", FLOATS]),
    ({**LLAMA, "dtype": "float32"}, ["MXFP8A16", "W8A16"], ["the model is float32", "'q', dtype=torch.bfloat16)"]),
    ({**LLAMA, "dtype": "float32"}, ["W8A16"], [f"LlamaForCausalLM.from_pretrained('q', {FLOATS})"]),
    (LLAMA, ["W4A16_ASYM", "W8A16"], ["reads zero points with CompressedTensorsConfig(dequantize=True) only"]),
    (
        {**LLAMA, "model_type": "gte"},
        ["W8A16"],
        ["of type gte, whose matrices it splits or joins; it does so with FP8"],
    ),
    ({**LLAMA, "model_type": "gte"}, ["FP8_DYNAMIC"], ["LlamaForCausalLM.from_pretrained('q')"]),
    ({**LLAMA, "model_type": "qwen4_exp_text"}, ["W8A16"], ["LlamaForCausalLM.from_pretrained('q')"]),
    ({**LLAMA, "model_type": "radio"}, ["FP8_DYNAMIC"], ["of type radio, whose matrices it splits or joins"]),
    ({**LLAMA, "text_config": {"model_type": "gte"}}, ["W8A16"], ["does not load such a model of type gte"]),
    ({}, ["W8A8"], ["AutoModel.from_pretrained('q')"]),
    ({"architectures": ["A;import os"]}, ["W8A8"], ["to load it: AutoModel.from_pretrained('q')"]),
    ({"architectures": [3]}, ["W8A8"], ["to load it: AutoModel.from_pretrained('q')"]),
    ({"architectures": []}, ["W8A8"], ["AutoModel.from_pretrained('q')"]),
    ({**LLAMA, "auto_map": {"AutoModel": "m.M"}}, ["W8A8"], ["AutoModel.from_pretrained('q', trust_remote_code=True)"]),
    *(
        (
            {**LLAMA, "auto_map": {"AutoConfig": "m.C", **dict(entries)}},
            ["W8A8"],
            [f"{name}.from_pretrained('q', {OWN})"],
        )
        for name, entries in OF_AUTO_MAP
    ),
    ({**LLAMA, "auto_map": {"AutoTokenizer": ["m.T", None]}}, ["W8A8"], ["LlamaForCausalLM.from_pretrained('q')"]),
]


@pytest.mark.parametrize(("config", "names", "lines"), CALLS)
def test_how_it_is_loaded(tmp_path, monkeypatch, config, names, lines):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q").mkdir()
    matrices = [matrix_of(f"layers.{k}.proj", name) for k, name in enumerate(names)]
    said = loading_lines(Path("q"), source_of(config), matrices)
    found = [line for line in said if not line.startswith("to import: ")]  # which the conformance tests run
    assert all(line in each for line, each in zip(lines, found, strict=True))


@pytest.mark.parametrize("name", ["W8A8", "FP8_DYNAMIC", "W8A16"])
def test_embeddings_are_read_as_floats(name):
    matrices = [matrix_of("model.embed_tokens", name), matrix_of("layer", name)]
    assert loading_lines(Path("q"), source_of(LLAMA), matrices)[-1] == (
        f"to load it: LlamaForCausalLM.from_pretrained('q', {FLOATS})"
    )
    (line,) = loading_lines(Path("q"), source_of(LLAMA), [*matrices, matrix_of("other", "W4A16")])
    assert "reads embeddings with CompressedTensorsConfig(dequantize=True) only, and several schemes" in line
    assert line.endswith("; fastq convert q FLOATS --dequantize writes floats for any reader")


@pytest.mark.parametrize("own_code", [False, True])
def test_sentence_transformers_are_told_of_code(tmp_path, monkeypatch, own_code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "modules.json").write_text(json.dumps(SENTENCES))
    config = LLAMA | ({"auto_map": {"AutoModel": "m.M"}} if own_code else {})
    (line,) = loading_lines(Path("q"), source_of(config), [matrix_of("layer", "W8A8")])[-1:]
    assert line.startswith("to load it: SentenceTransformer('q', ")
    assert ("trust_remote_code=True" in line) == own_code


EMBEDDED = {"lm_head": 512, "model.embed_tokens": 512, "a.embeddings": 100, "b.embeddings": 512, "c.embeddings": 512}
LEFT = {  # options for as many of these as there are, and what config.json says
    "one": (["lm_head"], {"tie_word_embeddings": False}, "--include lm_head quantizes them"),
    "three": (["lm_head", "model.embed_tokens", "b.embeddings"], {"tie_word_embeddings": False}, "--include b.embed"),
    "all": (
        list(EMBEDDED),
        {"tie_word_embeddings": False},
        r"--include 're:.*(b\.embeddings|c\.embeddings|lm_head|model\.embed_tokens)$'",
    ),
    "tied": (["model.embed_tokens"], {"tie_word_embeddings": True}, "one matrix"),
    "none": ([], {}, ""),
    "no group fills": (["a.embeddings"], {"tie_word_embeddings": False}, ""),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_as_floats_is_said(tmp_path, name):
    modules, config, way = LEFT[name]
    arrays = {f"{module}.weight": np.ones((4, EMBEDDED[module]), np.float32) for module in modules}
    write_model(tmp_path / "m", [{"a.weight": np.ones((8, 128), np.float32)} | arrays], CONFIG | config)
    said = told("convert", tmp_path / "m", tmp_path / "q", "--scheme", "W8A16", exit_code=0)
    lines = [line for line in said.splitlines() if line.startswith("left as floats: ")]
    nbytes = sum(4 * 4 * EMBEDDED[module] for module in modules if module != "a.embeddings")
    assert len(lines) == bool(way)
    if way:
        assert way in lines[0]
        assert f" {nbytes:,} bytes" in lines[0]
    if "quantizes" in said:
        again = re.findall(r"--include '?([^ ']+)", lines[0])
        options = [text for pattern in again for text in ("--include", pattern)]
        said = told("convert", tmp_path / "m", tmp_path / "p", "--scheme", "W8A16", *options, exit_code=0)
        assert "left as floats" not in said


# what transformers reads of experts
OF_EXPERTS = {
    **dict.fromkeys(("W2A16", "W4A16", "W8A16", "FP8_DYNAMIC", "MXFP4A16"), True),
    **dict.fromkeys(("W4A16_ASYM", "W8A8", "FP8_BLOCK", "NVFP4A16", "MXFP6A16", "MXFP6A8", "MXFP8A16"), False),
}


@pytest.mark.parametrize("name", PRESETS)
def test_experts_that_are_not_loaded(name):
    matrices = [matrix_of("model.layers.0.mlp.experts.0.up_proj", name)]
    last = loading_lines(Path("q"), source_of(LLAMA), matrices)[-1]
    assert ("to load it: " in last) == OF_EXPERTS[name]
    assert OF_EXPERTS[name] or f"does not load experts in {name}" in last
    matrices.append(matrix_of("model.layers.1.mlp.experts.0.up_proj", "W8A16" if name == "W4A16" else "W4A16"))
    assert "does not load experts in " in loading_lines(Path("q"), source_of(LLAMA), matrices)[-1]


def matrix_of(module, name):
    scheme, kind = as_scheme(name), kind_of(module)
    return Matrix(module=module, tensor=f"{module}.weight", shape=(128, 128), scheme=scheme, kind=kind)


def source_of(config):
    return SimpleNamespace(config=config, dtype=dtype_of(config) or "BF16")


@pytest.mark.slow("compiles 2 kernels", quick=lambda name: name == "W4A16")
@pytest.mark.parametrize("name", ["FP8_DYNAMIC", "W4A16"])
def test_how_sentence_transformers_loads_it(whole, tmp_path, name):
    inner = '{"quantization_config": CompressedTensorsConfig(dequantize=True)}'
    imports = "from sentence_transformers import SentenceTransformer; from transformers import CompressedTensorsConfig"
    call = f"SentenceTransformer({str(tmp_path / 'q')!r}, model_kwargs={inner})"
    said = told("convert", whole, tmp_path / "q", "--scheme", name, exit_code=0)
    assert said.splitlines()[-2:] == [f"to import: {imports}", f"to load it: {call}"]


def test_several_schemes_of_a_model_of_sentence_transformers(whole, tmp_path):
    """Its models need floats, and floats need one scheme: the call is that of transformers."""
    out = tmp_path / "a b"
    said = told("convert", whole, out, "--scheme", "W4A16", *OTHERS, exit_code=0)
    assert f"fastq convert '{out}' FLOATS --dequantize writes floats for any reader\n" in said
    assert said.splitlines()[-1] == f"to load it: AutoModel.from_pretrained({str(out)!r})"


def test_the_report_is_there_before_the_table_is_read(whole, tmp_path, monkeypatch):
    def ended(*args, **options):
        raise SystemExit(1)

    monkeypatch.setattr("fastq.tools.cli.tables.print_table", ended)
    invoke("convert", whole, tmp_path / "q", "--scheme", "W8A8", "--report", tmp_path / "r.csv")
    assert (tmp_path / "r.csv").read_text().startswith("name,")


def test_it_is_said_after_converting(tmp_path):
    write_model(tmp_path / "m", [{"a.weight": np.ones((8, 128), np.float32)}], CONFIG)
    said = told("convert", tmp_path / "m", tmp_path / "q", "--scheme", "W8A16", exit_code=0)
    assert f"to load it: AutoModel.from_pretrained({str(tmp_path / 'q')!r}, {FLOATS})" in said
    assert "to import: from transformers import AutoModel, CompressedTensorsConfig\n" in said
    assert "to load it" not in invoke("convert", tmp_path / "q", tmp_path / "p", "--dequantize").output


def test_a_config_that_is_a_link_to_nothing_is_told(tmp_path):
    """As in a cache of the hub that lacks a file: without it a quantized model would be read as plain tensors."""
    folder = write_single(tmp_path / "m", {"a.weight": np.ones((4, 4), np.float32)})
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("nothing")
    convert = ["convert", folder, tmp_path / "q", "--scheme", "W8A16"]
    for command in (["inspect", folder], ["suggest", folder], ["compare", folder, folder], convert):
        line = refused(*command)
        assert "config.json is a link to a file that is missing; fetch it again, or remove the link" in line
    (folder / "config.json").unlink()
    assert "a.weight" in run("inspect", folder)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("nothing")
    for command in (["inspect", folder], convert):
        assert "model.safetensors is a link to a file that is missing" in refused(*command)


def test_a_snapshot_is_found_in_the_cache_of_the_hub(tmp_path):
    folder = tmp_path / "hub" / "models--owner--name" / "snapshots" / "abc"
    folder.parent.mkdir(parents=True)
    write_single(folder, {"a.weight": np.ones((4, 4), np.float32)})
    for above in (folder.parent, folder.parents[1], folder.parents[2]):
        assert f", but {folder} has one" in refused("convert", above, tmp_path / "q", "--scheme", "W8A16")
