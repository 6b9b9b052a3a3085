"""Tiny models with random weights of every type that transformers knows, made of its default configurations."""

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

MOST = 40_000_000  # parameters
SIZES = {
    64: "hidden_size d_model n_embd dim embed_dim hidden_dim embedding_size word_embed_proj_dim decoder_hidden_size "
    "encoder_hidden_size projection_dim emb_dim model_dim out_hidden_size text_hidden_size vision_hidden_size "
    "audio_hidden_size output_dim n_embed embedding_dim cross_attention_hidden_size text_embed_dim "
    "hidden_size_per_layer_input query_hidden_size qformer_hidden_size pooler_hidden_size encoder_hidden_dim lru_width "
    "attention_hidden_size entity_emb_size codebook_size",
    128: "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff n_inner mlp_dim moe_intermediate_size "
    "shared_expert_intermediate_size decoder_intermediate_size d_inner dim_feedforward ffn_hidden_size "
    "shared_intermediate_size moe_shared_expert_intermediate_size mlp_hidden_size intermediate_dim "
    "ffn_intermediate_size expert_intermediate_size projector_hidden_size max_position_embeddings n_positions "
    "max_source_positions max_target_positions n_ctx max_seq_len context_length seq_length",
    2: "num_hidden_layers encoder_layers decoder_layers num_layers depth n_layer n_layers num_decoder_layers "
    "num_encoder_layers encoder_num_hidden_layers decoder_num_hidden_layers encoder_num_layers decoder_num_layers "
    "num_key_value_heads num_kv_heads n_kv_heads multi_query_group_num num_experts_per_tok num_experts_per_token "
    "moe_topk moe_k n_group topk_group linear_num_key_heads",
    4: "num_attention_heads num_heads n_head n_heads encoder_attention_heads decoder_attention_heads attention_heads "
    "decoder_num_attention_heads num_attn_heads num_local_experts num_experts n_routed_experts moe_num_experts "
    "linear_num_value_heads index_n_heads",
    16: "head_dim d_kv attention_head_dim kv_channels d_head head_size attention_head_size qk_nope_head_dim v_head_dim "
    "qk_rope_head_dim index_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim swa_head_dim "
    "mamba_head_dim mamba_d_head global_head_dim mamba_chunk_size chunk_size num_mel_bins time_step_rank",
    32: "q_lora_rank kv_lora_rank image_size qk_head_dim",
    8: "patch_size mamba_n_heads mamba_num_heads state_size index_topk",
    256: "vocab_size decoder_vocab_size encoder_vocab_size",
    1: "num_hidden_groups first_k_dense_replace",
    0: "num_nextn_predict_layers",
}
SIZE_OF = {name: size for size, names in SIZES.items() for name in names.split()}
# what follows from the number of layers
LEFT_OUT = ("layer_types", "mlp_layer_types", "layers_block_type", "transformers_version", "per_layer_config")
LEFT_OUT += ("block_types", "architectures", "attention_types", "model_type")
KEPT = ("layer", "vocab", "depth", "expert")  # parts of the names that a second attempt shrinks alone
TASKS = "CAUSAL_LM MULTIMODAL_LM SEQ_TO_SEQ_CAUSAL_LM SPEECH_SEQ_2_SEQ MASKED_LM SEQUENCE_CLASSIFICATION"
TASKS += " IMAGE_CLASSIFICATION CTC AUDIO_CLASSIFICATION OBJECT_DETECTION UNIVERSAL_SEGMENTATION PRETRAINING"


def classes():
    """The class of each type: that of the first task which it has, else that without a head."""
    tables = [getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in TASKS.split()]
    found = {}
    for table in reversed([*tables, modeling_auto.MODEL_MAPPING_NAMES]):
        found |= {kind: name if isinstance(name, str) else name[0] for kind, name in table.items()}
    return {kind: found[kind] for kind in CONFIG_MAPPING_NAMES if kind in found}


def all_classes():
    """All classes of models, each with a type that it is for."""
    found = {}
    for table in (each for each in dir(modeling_auto) if each.startswith("MODEL") and each.endswith("_NAMES")):
        for kind, names in getattr(modeling_auto, table).items():
            for name in [names] if isinstance(names, str) else names:
                if kind in CONFIG_MAPPING_NAMES and hasattr(transformers, str(name)):
                    found.setdefault(name, kind)
    return found


def small(name, value, everything):
    """A setting of a tiny model."""
    if isinstance(value, list | tuple) and value and all(type(each) is int for each in value):
        if "token" in name:
            return [small(f"{name}_id", each, everything) for each in value]
        return [min(each, 1) for each in value] if name in ("depths", "num_layers", "n_layers") else value
    if type(value) is not int:
        return value
    if name.endswith(("_id", "_index")):  # of tokens
        return value if value < 200 else 200 + value % 50
    if name in SIZE_OF:
        shrinks = everything or any(part in name for part in KEPT)
        return min(value, SIZE_OF[name]) if shrinks and value > 0 else value
    if "vocab" in name:
        return min(value, 256)
    return 64 if everything and value >= 512 and ("size" in name or "dim" in name) else value


def tiny_config(kind, *, everything=True):
    """The default configuration of a type, with all sizes small or with few layers, tokens and experts alone."""

    def shrunk(entries):
        nested = {key: value for key, value in entries.items() if isinstance(value, dict) and "model_type" in value}
        kept = {key: value for key, value in entries.items() if key not in LEFT_OUT and key not in nested}
        sizes = {key: small(key, value, everything) for key, value in kept.items()}
        return sizes | {key: shrunk(value) for key, value in nested.items()}

    config = CONFIG_MAPPING[kind]
    return config(**shrunk(config().to_dict()))


def on_meta(kind, name, **settings):
    """A model without memory for weights, as small as it can be made; ValueError if it can't be made of defaults."""
    for everything in (True, False):
        try:
            config = tiny_config(kind, everything=everything)
            for key, value in settings.items():
                setattr(config, key, value)
            with torch.device("meta"):
                model = getattr(transformers, name)(config)
            if sum(each.numel() for each in model.parameters()) <= MOST:
                return model
        except Exception:
            continue
    raise ValueError(f"{name} can't be made of a default configuration")


def tiny_model(kind, name):
    """A model with random weights in bfloat16."""
    config = on_meta(kind, name).config
    torch.manual_seed(0)
    return getattr(transformers, name)(config).to(torch.bfloat16).eval()
