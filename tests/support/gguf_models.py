"""Small models in GGUF files, written by the gguf package: random weights, real names and metadata.

Each is made for rules by which llama-quantize chooses types: layers in every eighth, shared keys, experts, tied
embeddings, rows that are not whole blocks. Rows have 256 values and are few. Nothing here imports fastq: the weights
have to be the same where only llama.cpp is installed.
"""

import struct
from dataclasses import dataclass, field

import gguf
import numpy as np

WIDTH = 256


@dataclass(frozen=True)
class Model:
    """Metadata and shapes, rows last."""

    architecture: str
    layers: int
    heads: tuple[int, int]  # of queries, of keys
    tensors: dict[str, tuple[int, ...]]
    numbers: dict[str, int] = field(default_factory=dict)
    dtype: str = "float16"
    forward: int = WIDTH  # values between the layers of a feed-forward network


def _blocks(layers, shapes):
    return {f"blk.{i}.{name}": shape for i in range(layers) for name, shape in shapes.items()}


ATTENTION = {
    "attn_norm.weight": (WIDTH,),
    "attn_q.weight": (8, WIDTH),
    "attn_k.weight": (4, WIDTH),
    "attn_v.weight": (4, WIDTH),
    "attn_output.weight": (8, WIDTH),
}
DENSE = {"ffn_norm.weight": (WIDTH,), "ffn_up.weight": (4, WIDTH), "ffn_gate.weight": (4, WIDTH)}
DENSE |= {"ffn_down.weight": (4, WIDTH)}
EXPERTS = {
    "ffn_gate_inp.weight": (8, WIDTH),
    "ffn_up_exps.weight": (8, 2, WIDTH),
    "ffn_gate_exps.weight": (8, 2, WIDTH),
}
EXPERTS |= {"ffn_down_exps.weight": (8, 2, WIDTH)}
EMBEDDING = {"token_embd.weight": (16, WIDTH), "output_norm.weight": (WIDTH,)}
OUTPUT = {"output.weight": (16, WIDTH)}
OF_LAYERS = {"per_layer_token_embd.weight": (16, WIDTH)}
# rows of 96 values are blocks of 32 only, those of 80 none; names that are exceptions
ODD = {
    "position_embd.weight": (8, WIDTH),
    "token_types.weight": (2, WIDTH),
    "embed": (4, WIDTH),
    "other": (WIDTH,),
    "blk.0.attn_v.weight": (4, 96),
    "blk.0.ffn_down.weight": (4, 96),
    "blk.0.attn_q.weight": (4, 80),
    "blk.0.attn_kv_b.weight": (4, WIDTH),
    "blk.0.attn_qkv.weight": (4, WIDTH),
    "blk.0.attn_q.bias": (4, WIDTH),
    "blk.1.ffn_down.weight": (1, WIDTH),
    "blk.1.ssm_conv1d.weight": (4, WIDTH),
    "blk.1.attn_v.weight": (4, WIDTH),
    "blk.10.attn_v.weight": (4, WIDTH),
    "blk.2.attn_v.weight": (4, 2, WIDTH),
    "mm.weight": (4, WIDTH),
}

# matrices that stay as they are, for their names
KEPT = (
    *("blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_tid2eid.weight", "altup_proj.weight"),
    *("blk.0.laurel_l.weight", "per_layer_model_proj.weight", "blk.0.ssm_conv1d.weight", "blk.0.shortconv.conv.weight"),
    *("blk.0.indexer.k_proj.weight", "blk.0.indexer.q_proj.weight", "dec.blk.0.attn_rel_b.weight"),
    *(f"blk.0.time_mix_{name}.weight" for name in ("first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2")),
    *(f"blk.0.time_mix_{name}.weight" for name in ("g1", "g2", "decay_w1", "decay_w2", "lerp_fused")),
    *("v.position_embd.weight", "v.sam.pos_embd.weight", "v.sam.neck.0.weight", "v.sam.net_2.weight"),
    *("v.blk.0.rel_pos_h.weight", "v.patch_embd.weight", "mm.patch_merger.weight", "a.rvq.codebook.weight"),
    *("mm.a.code_embd.weight",),
)

MODELS = {
    "llama": Model("llama", 16, (8, 8), EMBEDDING | OUTPUT | _blocks(16, ATTENTION | DENSE)),
    "grouped": Model("llama", 17, (8, 2), EMBEDDING | _blocks(17, ATTENTION | DENSE), dtype="float32"),
    "experts": Model("llama", 9, (8, 2), EMBEDDING | OUTPUT | _blocks(9, ATTENTION | EXPERTS), {"expert_count": 8}),
    "many": Model("llama", 9, (8, 8), EMBEDDING | OF_LAYERS | _blocks(9, ATTENTION | EXPERTS), {"expert_count": 4}),
    "falcon": Model(
        "falcon", 17, (8, 1),
        EMBEDDING | OUTPUT | _blocks(17, {"attn_qkv.weight": (8, WIDTH), "attn_output.weight": (8, WIDTH), **DENSE}),
    ),
    "large": Model(
        "llama", 80, (8, 1), OUTPUT | _blocks(80, {"attn_v.weight": (2, WIDTH), "ffn_down.weight": (2, WIDTH)})
    ),
    "odd": Model("llama", 11, (8, 8), EMBEDDING | OUTPUT | ODD | dict.fromkeys(KEPT, (2, WIDTH))),
    "narrow": Model("llama", 2, (4, 4), {
        "token_embd.weight": (16, 96), "output_norm.weight": (96,),
        **_blocks(2, {"attn_v.weight": (4, 96), "ffn_down.weight": (4, 160), "ffn_up.weight": (5, 96)}),
    }),
}  # fmt: skip

# complete: llama.cpp generates text with it
RUNS = Model(
    "llama", 4, (4, 2),
    {"token_embd.weight": (320, WIDTH), "output_norm.weight": (WIDTH,), "output.weight": (320, WIDTH)}
    | _blocks(4, {
        "attn_norm.weight": (WIDTH,), "attn_q.weight": (256, WIDTH), "attn_k.weight": (128, WIDTH),
        "attn_v.weight": (128, WIDTH), "attn_output.weight": (WIDTH, 256), "ffn_norm.weight": (WIDTH,),
        "ffn_up.weight": (512, WIDTH), "ffn_gate.weight": (512, WIDTH), "ffn_down.weight": (WIDTH, 512),
    }),
    forward=512,
)  # fmt: skip


def weights_of(model, seed=0):
    """Weights of a model by name; RandomState gives the same ones in every version of NumPy."""
    rng = np.random.RandomState(seed)
    for name, shape in model.tensors.items():
        values = rng.standard_normal(shape).astype(np.float32) * np.float32(0.05)
        yield name, values if len(shape) == 1 else _as(values, model.dtype)


def finished(writer, path):
    """Write what a writer of the gguf package has, and return the path."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as(values, dtype):
    """Values in a dtype; bfloat16 cut off, as an array of the bits."""
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values.astype(dtype)


def write(path, model, *, seed=0, extra=None):
    """Write a model; `extra` may add metadata to the writer."""
    writer = gguf.GGUFWriter(path, model.architecture)
    writer.add_name("a model, für Tests")
    writer.add_file_type(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(model.forward)
    writer.add_block_count(model.layers)
    writer.add_head_count(model.heads[0])
    writer.add_head_count_kv(model.heads[1])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    for key, value in model.numbers.items():
        writer.add_uint32(f"{model.architecture}.{key}", value)
    if "expert_count" in model.numbers:
        writer.add_expert_used_count(2)
    writer.add_array("test.numbers", [1.5, -2.5])
    writer.add_bool("test.yes", True)
    _add_vocabulary(writer, model.tensors.get("token_embd.weight", (16,))[0])
    if extra:
        extra(writer)
    raw = gguf.GGMLQuantizationType.BF16 if model.dtype == "bfloat16" else None
    for name, values in weights_of(model, seed):
        if values.dtype == np.uint16:
            writer.add_tensor(name, values.view(np.uint8), raw_dtype=raw)
        else:
            writer.add_tensor(name, values)
    return finished(writer, path)


def _add_vocabulary(writer, size):
    """Add tokens as SentencePiece has them: three of its own, all bytes, and as many words as there is room for."""
    special = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
    tokens = special + [(f"<0x{byte:02X}>", 6) for byte in range(256)] + [(f"▁{i}", 1) for i in range(size)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token for token, _ in tokens[:size]])
    writer.add_token_scores([0.0 if kind != 1 else -1.0 * i for i, (_, kind) in enumerate(tokens[:size])])
    writer.add_token_types([kind for _, kind in tokens[:size]])


# Importance matrices


def importance(model):
    """Sums of squares and counts for the tensors of two and more dimensions; one expert was never chosen."""
    rng = np.random.RandomState(1)
    for name, shape in model.tensors.items():
        if len(shape) > 1 and name.endswith(".weight"):
            matrices = int(np.prod(shape[:-2]))
            counts = np.full(matrices, 7, np.float32)
            counts[1:2] = 0
            yield name, (rng.random_sample((matrices, shape[-1])) * 9).astype(np.float32), counts


def means(model):
    """What llama-quantize makes of it."""
    return {
        name: np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], 1).astype(np.float32)
        for name, sums, counts in importance(model)
    }


def write_imatrix(path, model):
    """Write an importance matrix as llama-imatrix does now."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["some text.txt"])
    writer.add_uint32("imatrix.chunk_count", 5)
    writer.add_uint32("imatrix.chunk_size", 64)
    for name, sums, counts in importance(model):
        writer.add_tensor(f"{name}.in_sum2", sums)
        writer.add_tensor(f"{name}.counts", counts.reshape(-1, 1))
    return finished(writer, path)


def write_legacy(path, model):
    """Write an importance matrix as llama-imatrix did before: means times calls."""
    parts = []
    for name, sums, counts in importance(model):
        calls = int(counts[0])
        parts.append(_text(name) + struct.pack("<ii", calls, sums.size) + sums.tobytes())
    path.write_bytes(struct.pack("<i", len(parts)) + b"".join(parts) + struct.pack("<i", 5) + _text("some text.txt"))
    return path


def _text(text):
    return struct.pack("<i", len(text)) + text.encode()
