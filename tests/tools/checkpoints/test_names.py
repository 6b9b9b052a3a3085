"""Names of modules: what stays, what is quantized by wish, what readers fuse, and what a pattern probably meant."""

import re
import shlex
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from commands import invoke, refused, run
from model_folders import BF16, all_of, config_of, sqnr_db, write_single

from fastq.tools.checkpoints.quantization_config import StoredSchemes, quantized_config
from fastq.tools.checkpoints.rules import Rules, make_plan
from fastq.tools.checkpoints.skipped_modules import ignore_list, kind_of
from fastq.tools.files.tensor_specs import spec_of
from fastq.tools.layouts.schemes import as_scheme

W8A8, W4A16, W8A16 = map(as_scheme, ("W8A8", "W4A16", "W8A16"))
BODY = "model.layers.1.mlp.down_proj"

# as the classes of transformers and other readers have them
KINDS = {
    "output head": """
lm_head embed_out output score classifier qa_outputs cls.predictions.decoder cls.predictions.transform.dense
cls.seq_relationship lm_head.decoder lm_head.dense language_model.lm_head text_model.lm_head generator_lm_head
proj_out output_projection decoder.output_projection predictions.decoder predictions.dense vocab_projector
vocab_transform pre_classifier classifier.dense classifier.out_proj classifier.1 head head.dense head.decoder decoder
decoder.lm_heads.3 pred_layer.proj lm_loss logits_proj sequence_summary.summary classification_head.out_proj
span_classifier qa_classifier.output.dense sop_classifier.classifier generator_predictions.dense
discriminator_predictions.dense_prediction entity_predictions.decoder answer_head.logit_fc.0 mlm_head.decoder ctc_head
class_predictor bbox_predictor.layers.0 model.decoder.bbox_embed.0.layers.1 splinter_qass.start_classifier
v_head.summary transformer.output_layer objective cls_classifier distillation_classifier
decoder.cls.predictions.decoder model.layers.61.shared_head.head regression_head reward_head talker.codec_head fc
joint.head""",
    "any other": """
query model.query_feat transformer.w mask_decoder.iou_token mask_decoder.mask_tokens audio_tower.audio_bos_eos_token
freq_emb layers.0.self_attn.rel_pos_emb quantizer.quantizers.0.codebook encoder.embed_positions.pe_k queries_features
canine.char_embeddings.HashBucketCodepointEmbedder_0 detr_decoder.reference_points backbone.norm.scale""",
    "embedding": """
shared encoder.block.0.layer.0.SelfAttention.relative_attention_bias decoder.embed_tokens.1
bert.embeddings.word_embeddings""",
    "router": "model.layers.0.block_sparse_moe.router.layer encoder.block.1.layer.1.mlp.router.classifier",
    "normalization": "encoder.norm",
    None: """
bert.encoder.layer.0.attention.self.query model.layers.0.self_attn.q_proj bert.pooler.dense
encoder.blocks.0.mlp.proj_out funnel.encoder.blocks.0.0.attention.q_head h.0.multi_head_attention.Wq
shared_head.q_proj predictor.layer.0.mlp.fc1 decoder.layers.0.fc1 encoder.layer.0.output.dense
model.decoder.layers.3.encoder_attn.out_proj transformer.h.1.mlp.c_fc language_model.model.layers.0.self_attn.o_proj
vision_tower.encoder.layers.0.mlp.fc2 model.layers.0.mlp.gate_up_proj encoder.layers.0.output_projection
model.layers.0.cls_attn.q_proj backbone.layers.0.mixer.in_proj multi_modal_projector.linear_1
text_embedder.layers.0.q_proj model.router_model.layers.0.q_proj""",
}
HEADS, BODIES = (KINDS[kind].split() for kind in ("output head", None))


@pytest.mark.parametrize(("kind", "module"), [(kind, name) for kind, names in KINDS.items() for name in names.split()])
def test_what_stays_by_its_name(kind, module):
    left = plan_of(module).copied.get(f"{module}.weight")
    assert left == kind_of(module) not in (None, "output head") if kind == "any other" else left == kind


def specs_of(*modules, shape=(128, 128)):
    return {f"{module}.weight": spec_of(f"{module}.weight", "BF16", shape) for module in modules}


def plan_of(*modules, rules=None, config=None):
    return make_plan(specs_of(*modules, BODY), config or {}, rules or Rules(W4A16))


def test_readers_are_told_of_heads_that_no_file_has():
    patterns = [each.removeprefix("re:") for each in plan_of().modules_to_ignore({}) if each.startswith("re:")]
    for head in HEADS:
        assert any(re.match(pattern, head) for pattern in patterns), head
    for module in BODIES:
        assert not any(re.match(pattern, module) for pattern in patterns), module


def test_patterns_for_what_stays_are_for_nothing_that_is_quantized():
    left, quantized = ["model.a.extra", "model.layers.3.mlp.special"], ["model.b.a.extra", "m.layers.3.mlp.other"]
    found = ignore_list(left, quantized)
    assert found[:3] == ["lm_head", *left]
    assert r"re:.*mlp\.special$" in found
    assert not any(re.match(each.removeprefix("re:"), name) for each in found for name in quantized if "re:" in each)


# Fused matrices

ATTENTION, MLP, EXPERT = "model.layers.0.self_attn", "model.layers.0.mlp", "model.layers.0.mlp.experts"
GROUPS = [
    [f"{ATTENTION}.{name}" for name in ("q_proj", "k_proj", "v_proj")],
    [f"{MLP}.{name}" for name in ("gate_proj", "up_proj")],
    [f"bert.encoder.layer.0.attention.self.{name}" for name in ("query", "key", "value")],
    [f"blocks.0.attn.{name}" for name in ("to_q", "to_k", "to_v")],
    [f"{MLP}.{name}" for name in ("w1", "w3")],
    [f"{ATTENTION}.{name}" for name in ("q_a_proj", "kv_a_proj_with_mqa")],
    [f"model.layers.0.linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z")],
    [f"model.layers.0.linear_attn.{name}" for name in ("in_proj_b", "in_proj_a")],
    [f"{EXPERT}.{k}.{name}" for k in (0, 1) for name in ("gate_proj", "up_proj", "down_proj")],
    [f"model.layers.0.block_sparse_moe.experts.{k}.{name}" for k in (0, 1) for name in ("w1", "w2", "w3")],
]
CHANGES = [
    lambda name: Rules(W4A16, (name,)),
    lambda name: Rules(W4A16, (), ((name, W8A16),)),
    lambda name: Rules(W4A16, (), ((name, W4A16.with_options(64, None)),)),
    lambda name: Rules(W4A16, (), ((name, W4A16.with_options(None, False)),)),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0])
def test_fused_matrices_have_one_scheme(group, change):
    with pytest.raises(ValueError, match="read as one have unequal schemes") as refusal:
        plan_of(*group, rules=change(group[0]))
    assert all(name in str(refusal.value) for name in group)
    option, pattern, asked = re.search(r"--(\S+) '(re:[^'=]+)=?(\S*)'", str(refusal.value)).groups()
    assert all(re.match(pattern.removeprefix("re:"), name) for name in group)
    rules = change(group[0])
    if option == "ignore":
        advised = replace(rules, ignore=(*rules.ignore, pattern))
    else:
        advised = replace(rules, schemes=((pattern, as_scheme(asked)), *rules.schemes))
    assert not plan_of(*group, rules=advised).notes
    whole = "re:" + re.escape(group[0].rpartition(".")[0].partition(".experts")[0])
    assert not plan_of(*group, rules=change(whole)).notes


def test_unequal_schemes_by_wish():
    rules = Rules(W4A16, (GROUPS[0][0],), unequal=True)
    (note,) = plan_of(*GROUPS[0], rules=rules).notes
    assert f"{ATTENTION}.q_proj as it is" in note
    assert f"{ATTENTION}.k_proj W4A16" in note
    with pytest.raises(ValueError, match="except experts"):
        plan_of(*GROUPS[-1], rules=Rules(W4A16, (GROUPS[-1][0],), unequal=True))


def test_matrices_with_other_inputs_are_not_fused():
    """Keys and values of another model have as many columns as that model's states."""
    specs = specs_of(*GROUPS[0][1:], BODY) | specs_of(GROUPS[0][0], shape=(128, 256))
    assert not make_plan(specs, {}, Rules(W4A16, (GROUPS[0][0],))).notes


def test_vllm_does_not_find_the_class_before_the_names():
    """It takes a matrix that it reads as one for Linear, by its class, unless no target is that."""
    specs = specs_of(*GROUPS[0], BODY, "lm_head")
    for pattern, expected in (("re:.*self_attn", [GROUPS[0], [BODY]]), ("lm_head", [["lm_head"], ["Linear"]])):
        rules = Rules(W4A16, (), ((pattern, W8A16),))
        config = quantized_config({}, make_plan(specs, {}, rules), rules, specs)
        groups = config["quantization_config"]["config_groups"].values()
        assert [group["targets"] for group in groups] == expected
    assert StoredSchemes(config).scheme_of("lm_head").weights == W8A16.weights


# By wish


@pytest.mark.parametrize(
    "options",
    [
        "--scheme-for lm_head=W8A16",
        "--include lm_head",
        "--include re:.*head",
        "--include re:.* --ignore model.embed_tokens --ignore re:.*gate$",
        "--include re:lm --scheme-for re:lm=W8A16",
    ],
)
def test_the_head_by_wish(model, tmp_path, options):
    run("convert", model, tmp_path / "q", "--scheme", "W4A16", "--group-size", "32", *options.split())
    assert "lm_head.weight" not in all_of(tmp_path / "q")
    entry = config_of(tmp_path / "q")["quantization_config"]
    assert not any(re.match(each.removeprefix("re:"), "lm_head") for each in entry["ignore"])
    assert any("lm_head" in group["targets"] for group in entry["config_groups"].values())
    run("convert", tmp_path / "q", tmp_path / "plain", "--dequantize")
    sqnr = sqnr_db(*(all_of(each)["lm_head.weight"] for each in (model, tmp_path / "plain")))
    assert sqnr > (35 if "W8A16" in options else 15)


TIED = [
    ("lm_head", {"tie_word_embeddings": True}, True),
    ("lm_head", {"text_config": {"tie_word_embeddings": True}}, True),
    ("lm_head", {"tie_word_embeddings": False}, False),
    ("lm_head", {}, False),
    ("model.embed_tokens", {}, True),  # the default of many types
    ("model.embed_tokens", {"tie_word_embeddings": True}, True),
    ("model.embed_tokens", {"tie_word_embeddings": False}, False),
    ("embeddings.word_embeddings", {"architectures": ["BertModel"]}, False),
    ("embeddings.word_embeddings", {"architectures": ["BertModel"], "tie_word_embeddings": True}, False),
]


@pytest.mark.parametrize(("module", "config", "is_tied"), TIED)
def test_tied_matrices_stay(module, config, is_tied):
    rules = Rules(W8A16, include=(module,))
    if is_tied:
        with pytest.raises(ValueError, match=f"{module} stays as it is: embedding and output head are one matrix"):
            plan_of(module, rules=rules, config=config)
    else:
        assert not plan_of(module, rules=rules, config=config).copied


def test_experts_of_one_tensor_by_wish():
    specs = specs_of("q")
    specs |= {f"{EXPERT}.{n}": spec_of(f"{EXPERT}.{n}", "BF16", (2, 128, 128)) for n in ("gate_up_proj", "down_proj")}
    config = {"model_type": "mistral4", "hidden_size": 128}
    plan = make_plan(specs, config, Rules(W8A8))
    assert set(plan.copied.values()) == {"experts that are read from one tensor"}
    assert not make_plan(specs, config, Rules(W8A8, include=("re:.*experts",))).copied


# Groups

RAGGED = [["a.dt_proj"], ["layers.0.dt_proj", "layers.1.dt_proj"], ["layers.0.dt_proj", "layers.1.x.fc"]]


@pytest.mark.parametrize("modules", RAGGED)
def test_all_matrices_that_groups_do_not_fill_are_told(modules):
    with pytest.raises(ValueError, match="8 columns, not a multiple of the group size 128") as refusal:
        make_plan(specs_of(*modules, shape=(128, 8)) | specs_of("b.even", shape=(8, 256)), {}, Rules(W4A16))
    for option in ("--ignore", "--scheme-for"):
        advice = re.search(rf"{option} '?([^', =]+)", str(refusal.value))[1]
        assert all(re.match(advice.removeprefix("re:"), name) for name in modules)
    assert ("others" in str(refusal.value)) == (len(modules) > 1)


def test_what_leaves_nothing_to_quantize_is_not_advised(tmp_path):
    with pytest.raises(ValueError, match="not a multiple") as refusal:
        make_plan(specs_of("a.odd", shape=(8, 96)), {}, Rules(W4A16))
    assert str(refusal.value).endswith(": a --group-size that divides 96, or --scheme-for a.odd=W8A8")


def test_what_leaves_an_infinite_matrix_leaves_those_that_readers_fuse(tmp_path):
    names = [f"{ATTENTION}.{name}" for name in ("q_proj", "k_proj", "v_proj")]
    names += [f"{MLP}.experts.{k}.up_proj" for k in range(4)]
    for infinite, leaves in ((0, 3), (5, 4)):
        arrays = {f"{name}.weight": np.ones((32, 32), BF16) for name in (*names, BODY)}
        arrays[f"{names[infinite]}.weight"][3, 3] = np.inf
        write_single(tmp_path / f"m{infinite}", arrays, {"model_type": "llama"})
        line = refused("convert", tmp_path / f"m{infinite}", tmp_path / "q", "--scheme", "W8A8")
        assert f"{names[infinite]} can't be quantized: " in line
        options = shlex.split(line.partition("; ")[2].removesuffix(" leaves them"))
        run("convert", tmp_path / f"m{infinite}", tmp_path / f"q{infinite}", "--scheme", "W8A8", *options)
        found = all_of(tmp_path / f"q{infinite}")
        assert sum(found[f"{name}.weight"].dtype == BF16 for name in names) == leaves
    arrays = {f"{BODY}.weight": np.full((32, 32), np.inf, BF16)}
    write_single(tmp_path / "only", arrays, {"model_type": "llama"})
    assert "--ignore" not in refused("convert", tmp_path / "only", tmp_path / "r", "--scheme", "W8A8")


def test_the_size_of_groups_that_is_advised_suits_all_matrices():
    """Those that fill the groups that they have, too; no size is advised where none would help."""
    specs = specs_of("a.wide", shape=(8, 640)) | specs_of("a.even", shape=(8, 256)) | specs_of("a.odd", shape=(8, 96))
    with pytest.raises(ValueError, match=r"a\.wide has 640 .*: a --group-size that divides 32, or --ignore"):
        make_plan(specs, {}, Rules(W4A16.with_options(256, None)))
    assert len(list(make_plan(specs, {}, Rules(W4A16.with_options(32, None))).matrices)) == 3
    floats = Rules(as_scheme("NVFP4A16")), Rules(W4A16, schemes=(("a.odd", as_scheme("MXFP4A16")),))
    for rules, columns in ((floats[0], 24), (floats[1], 24), (Rules(W4A16), 25)):
        message = rf"a\.odd has {columns} columns, .* group size [0-9]+: --ignore a\.odd, or"
        with pytest.raises(ValueError, match=message):
            make_plan(specs_of("a.odd", shape=(8, columns)) | specs_of("a.even"), {}, rules)


def test_options_for_groups_are_for_all_schemes(model, tmp_path):
    options = ["--scheme", "W8A8", "--scheme-for", "lm_head=W4A16", "--group-size", "32", "--asymmetric"]
    run("convert", model, tmp_path / "q", *options)
    stored = all_of(tmp_path / "q")
    assert stored["lm_head.weight_scale"].shape == (32, 4)
    assert "lm_head.weight_zero_point" in stored


# What a pattern probably meant

PATTERNS = [
    (["--ignore", "embed_tokens"], "--ignore '*embed_tokens*' matches 1 of them: model.embed_tokens"),
    (["--ignore", "experts"], "--ignore '*experts*' matches 8 of them: model.layers.0.mlp.experts."),
    (["--ignore", "re:q_proj"], "--ignore '*q_proj*' matches 1 of them"),
    (["--ignore", "re:self.*q_proj"], "--ignore 're:.*self.*q_proj' matches 1 of them"),
    (["--ignore", "[qk]_proj$"], "--ignore 're:.*[qk]_proj$' matches 2 of them"),
    (["--ignore", "Q_PROJ"], "--ignore 're:(?i).*Q_PROJ' matches 1 of them"),
    (["--ignore", "re:Q_"], "--ignore 're:(?i).*Q_' matches 1 of them"),
    (["--ignore", "q_prj"], "the nearest are model.layers.0.self_attn.q_proj"),
    (["--ignore", "re:.*no_such_thing_at_all"], "no module has a name that matches 're:.*no_such_thing_at_all'"),
    (["--scheme-for", "self_attn=W8A8"], "--scheme-for '*self_attn*' matches 3 of them"),
    (["--scheme-for", "re:.*embed=W8A8"], "matches model.embed_tokens, which is not quantized (embedding) as W8A8"),
    (["--scheme-for", "re:.*v_proj=W8A8", "--ignore", "re:.*v_proj"], "which is not quantized (ignored) as W8A8"),
    (["--include", "head"], "--include '*head*' matches 1 of them: lm_head"),
    (["--include", "input_layernorm"], "no matrix has a name that matches 'input_layernorm'"),
]


@pytest.mark.parametrize(("options", "message"), PATTERNS)
def test_patterns_that_are_for_nothing(model, tmp_path, options, message):
    line = refused("convert", model, tmp_path / "out", "--scheme", "W8A8", *options)
    assert message in line
    advised = re.search(r"(--\S+) '(\S+)' matches", line)
    if advised:
        name, scheme = options[0], options[1].rpartition("=")[2]
        again = f"{advised[2]}={scheme}" if name == "--scheme-for" else advised[2]
        result = invoke("convert", model, tmp_path / "out", "--scheme", "W8A8", name, again, "--allow-unequal")
        assert "has a name that matches" not in result.stderr


def test_matrices_of_other_dtypes_are_no_heads_by_wish(tmp_path):
    arrays = {"lm_head.weight": np.ones((4, 64), ml_dtypes.float8_e4m3fn), "a.weight": np.ones((4, 64), BF16)}
    folder = write_single(tmp_path / "m", arrays, {})
    line = refused("convert", folder, tmp_path / "out", "--scheme", "W8A8", "--scheme-for", "lm_head=W8A8")
    assert "lm_head matches lm_head, which is not quantized (F8_E4M3) as W8A8" in line
