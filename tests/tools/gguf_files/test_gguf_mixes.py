"""Which type each tensor gets: what llama.cpp chose for the same files, stored with the version that chose."""

import json
import re
import struct

import gguf_lies
import gguf_models
import gguf_oracle
import pytest
from commands import run

from fastq.formats.gguf import BLOCK_FORMATS
from fastq.tools.gguf_files import mixes
from fastq.tools.gguf_files.gguf_file import GgufSpec, open_gguf
from fastq.tools.gguf_files.mixes import MIXES, RULES, Model, TypeOverrides, choose_types, in_order, model_of
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES

STORED = json.loads(gguf_oracle.STORED.read_text())
CASES = gguf_oracle.cases()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Each model as a file that was read, by its name."""
    folder = tmp_path_factory.mktemp("models")
    return {
        name: open_gguf(gguf_models.write(folder / f"{name}.gguf", model)) for name, model in gguf_models.MODELS.items()
    }


def chosen(source, mix, weighted):
    """Names of the types, in the order of the file that is written."""
    specs = in_order(source.tensors.values())
    types = choose_types(model_of(source), specs, MIXES[mix], TypeOverrides(), has_imatrix=weighted)
    return [kind.name for kind in types.values()]


def stored(name, mix, weighted):
    case = STORED["cases"][f"{name} {mix}{' weighted' * weighted}"]
    return case, [STORED["letters"][ord(letter) - ord("0")] for letter in case["types"]]


@pytest.mark.parametrize("mix", list(MIXES))
def test_types_are_those_that_llama_quantize_chose(sources, mix):
    for name, _, weighted in (case for case in CASES if case[1] == mix):
        assert chosen(sources[name], mix, weighted) == stored(name, mix, weighted)[1], name


@pytest.mark.slow("tries the comparison without each rule")
def test_a_rule_that_is_missing_is_noticed(sources, monkeypatch):
    unnoticed = []
    for rule in RULES:
        monkeypatch.setattr(mixes, "RULES", tuple(each for each in RULES if each is not rule))
        names = rule.mixes.split() or MIXES
        if all(
            chosen(sources[name], mix, weighted) == stored(name, mix, weighted)[1]
            for name, mix, weighted in CASES
            if mix in names
        ):
            unnoticed.append(rule)
    assert unnoticed == []


@pytest.mark.slow("tries the comparison without each row")
@pytest.mark.parametrize(
    "table", ["_NOT_QUANTIZED_WITHIN", "_NOT_QUANTIZED", "_NAMED", "_NAMED_WITHIN", "_RAISED_OF_70B", "FALLBACKS"]
)
def test_a_row_of_a_table_that_is_missing_is_noticed(sources, monkeypatch, table):
    rows, unnoticed = getattr(mixes, table), []
    cases = sorted(CASES, key=lambda case: case[0] != "odd")  # most of the rows are for names of this one
    for missing in rows:
        left = [row for row in rows if row != missing]
        monkeypatch.setattr(mixes, table, {row: rows[row] for row in left} if isinstance(rows, dict) else left)
        if of_96_columns() == OF_96_COLUMNS and all(
            chosen(sources[name], mix, weighted) == stored(name, mix, weighted)[1] for name, mix, weighted in cases
        ):
            unnoticed.append(missing)
    assert unnoticed == []


# src/llama-quant.cpp, tensor_type_fallback; where that refuses a tensor it is F16
OF_96_COLUMNS = {name: name for name, row in BLOCK_FORMATS.items() if row.size == 32}
OF_96_COLUMNS |= dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL")
OF_96_COLUMNS |= dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0")
OF_96_COLUMNS |= {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "Q1_0": "F16", "NVFP4": "F16"}


def of_96_columns():
    """What becomes of a tensor of 96 columns that is to be of each type."""
    found = {}
    for kind in BLOCK_FORMATS:
        named = TypeOverrides(tensor_types=[("a", kind)])
        (found[kind],) = choose_types(Model(), specs_of("a.weight", shape=(4, 96)), MIXES["Q4_0"], named).values()
    return {kind: chosen.name for kind, chosen in found.items()}


def test_types_of_single_tensors_whose_rows_are_no_blocks():
    assert of_96_columns() == OF_96_COLUMNS


@pytest.mark.slow("quantizes 16 models to each type")
@pytest.mark.parametrize("mix", list(MIXES))
def test_files_are_those_that_llama_quantize_wrote(sources, tmp_path, mix):
    cases = [case for case in CASES if case[1] == mix]
    for name, _, weighted in cases:
        source, out, options = sources[name].path, tmp_path / "out.gguf", []
        if weighted:
            model = gguf_models.MODELS[name]
            options = ["--imatrix", str(gguf_models.write_imatrix(tmp_path / "imatrix.gguf", model))]
        case, _ = stored(name, mix, weighted)
        if gguf_oracle.digest(source) != case["in"]:
            pytest.skip(f"the gguf package writes other files than version {STORED['gguf']}")
        run("gguf", source, out, "--type", mix, "--force", *options)
        assert gguf_oracle.digest(out) == case["out"], name


# What the library refuses, and what the metadata lacks


def specs_of(*names, shape=(4, 256)):
    return [GgufSpec(name, TENSOR_TYPES["F16"], shape) for name in names]


@pytest.mark.parametrize("mix", list(MIXES))
def test_rows_that_are_no_blocks(mix):
    for columns in (1, 31, 33, 80, 255):
        (kind,) = choose_types(Model(), specs_of("a.weight", shape=(4, columns)), MIXES[mix], TypeOverrides()).values()
        assert kind.name == "F16"
    for columns in (32, 96):
        (kind,) = choose_types(Model(), specs_of("a.weight", shape=(4, columns)), MIXES[mix], TypeOverrides()).values()
        assert kind.block == (1 if mix == "Q1_0" else 32)  # which has no smaller type to fall back on


@pytest.mark.parametrize("name", ["blk.9.ffn_down.0.weight", "ffn_down_exps.weight", "blk.x.ffn_down.weight"])
def test_experts_in_no_layer(name):
    with pytest.raises(ValueError, match=f"^tensor {re.escape(repr(name))} is in none of the 9 layers of 'llama'$"):
        choose_types(Model("llama", 9, 8), specs_of(name), MIXES["Q4_K_M"], TypeOverrides())


def test_type_overrides():
    names = ("token_embd.weight", "output.weight", "blk.0.attn_v.weight", "blk.0.ffn_down.weight")
    pattern = "attn_v|output"

    def types(mix="Q4_K_M", **overrides):
        found = choose_types(Model("llama", 1), specs_of(*names), MIXES[mix], TypeOverrides(**overrides))
        return [kind.name for kind in found.values()]

    assert types() == ["Q4_K", "Q6_K", "Q6_K", "Q6_K"]
    assert types(pure=True) == ["Q4_K"] * 4
    assert types(tensor_types=[(pattern, "Q2_K")]) == ["Q4_K", "Q2_K", "Q2_K", "Q6_K"]
    assert types(tensor_types=[(pattern, "Q2_K")], pure=True) == ["Q4_K", "Q2_K", "Q2_K", "Q4_K"]
    assert types(tensor_types=[(pattern, "Q2_K"), (".", "F16")]) == ["F16", "Q2_K", "Q2_K", "F16"]
    assert types(tensor_types=[(pattern, "Q2_K")], output_type="Q8_0") == ["Q4_K", "Q8_0", "Q2_K", "Q6_K"]
    assert types(embedding_type="F32") == ["F32", "Q6_K", "Q6_K", "Q6_K"]
    tied = [spec for spec in specs_of(*names) if spec.name != "output.weight"]
    for overrides, kind in (
        (TypeOverrides(), "Q6_K"),
        (TypeOverrides(output_type="Q8_0"), "Q8_0"),
        (TypeOverrides(pure=True), "Q4_K"),
    ):
        assert choose_types(Model("llama", 1), tied, MIXES["Q4_K_M"], overrides)["token_embd.weight"].name == kind


def test_embeddings_of_layers_follow_a_pattern_first():
    overrides = TypeOverrides(tensor_types=[("embd", "Q4_K")], embedding_type="Q8_0")
    found = choose_types(
        Model(), specs_of("token_embd.weight", "per_layer_token_embd.weight"), MIXES["Q2_K"], overrides
    )
    assert [kind.name for kind in found.values()] == ["Q8_0", "Q4_K"]


def test_names_of_one_architecture():
    names = ("blk.0.attn_q_a.weight", "blk.0.attn_k_b.weight", "blk.0.hc_fn.weight", "blk.0.attn_q.weight")
    for architecture, types in (
        ("glm5-next", ["Q8_0", "F16", "F16", "Q2_K"]),
        ("deepseek2", ["Q2_K", "Q2_K", "Q2_K", "Q2_K"]),
    ):
        found = choose_types(Model(architecture), specs_of(*names), MIXES["Q2_K"], TypeOverrides())
        assert [kind.name for kind in found.values()] == types


def test_experts_in_mxfp4():
    names = ("blk.0.ffn_up_exps.weight", "blk.0.attn_k_b.weight")  # one architecture has no second
    for architecture, kind in (("bailingmoe3", "Q8_0"), ("deepseek2", "MXFP4")):
        specs = specs_of(*names, shape=(3, 4, 256)) + specs_of("blk.0.attn_q.weight", "token_embd.weight")
        found = choose_types(Model(architecture), specs, MIXES["MXFP4_MOE"], TypeOverrides())
        assert [each.name for each in found.values()] == ["MXFP4", kind, "Q8_0", "Q8_0"]
        pure = choose_types(Model(architecture), specs, MIXES["MXFP4_MOE"], TypeOverrides(pure=True))
        assert {each.name for each in pure.values()} == {"MXFP4"}


def test_models_of_70b():
    large = {"architecture": "llama", "layers": 80, "heads": 64, "heads_kv": 8}
    assert Model(**large).is_70b
    for change in ({"layers": 79}, {"heads_kv": 64}, {"experts": 8}, {"architecture": "gemma"}):
        assert not Model(**(large | change)).is_70b
    for architecture, layers in (("qwen2", 80), ("deci", 80), ("olmo", 80), ("jais2", 68)):
        assert Model(architecture, layers, 0, 8, 8).is_70b


def test_numbers_of_a_model(tmp_path):
    def written(*fields):
        path = tmp_path / "in.gguf"
        path.write_bytes(gguf_lies.gguf(fields))
        return model_of(open_gguf(path))

    number, heads = gguf_lies.uint32, "llama.attention.head_count"
    assert written() == Model("llama")
    assert written(number(heads, 32), number("llama.block_count", 9)) == Model("llama", 9, 0, 32, 32)
    assert written(number(heads, 32), number(f"{heads}_kv", 8), number("llama.expert_count", 4)) == Model(
        "llama", 0, 4, 32, 8
    )
    for count, values in ((2, (12, 99)), (0, ())):  # a number a layer
        layers = gguf_lies.array(heads, gguf_lies.UINT32, count, struct.pack(f"<{count}I", *values))
        assert written(layers).heads == (12 if count else 0)
    assert written(gguf_lies.field(heads, gguf_lies.STRING, gguf_lies.text("8"))).heads == 0
    assert (Model(heads=32, heads_kv=8).group, Model(heads=8).group) == (4, 0)
