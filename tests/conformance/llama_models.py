"""Models that llama.cpp runs, with scales next to matrices or in parts, written by the gguf package."""

import gguf
import gguf_models
import numpy as np
from gguf_files import encoded

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down")


def finish(writer, plain):
    """Write the fields of another file and what the writer has."""
    for field in plain.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def scaled_model(path, kind):
    """A model whose matrices are in a type and have scales, some below 1 and some above, by llama.cpp's names."""
    r, scales = gguf_models.RUNS, np.random.default_rng(0)
    plain = gguf.GGUFReader(gguf_models.write(path.with_name("plain.gguf"), r))
    writer = gguf.GGUFWriter(path, "llama")
    for each in plain.tensors:
        module, x = each.name.removesuffix(".weight"), np.float32(each.data)
        if module.rpartition(".")[2] not in MATRICES:
            writer.add_tensor(each.name, x)
            continue
        scale = np.float32(scales.choice([0.3, 0.7, 1.5, 3]))
        stored = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(each.name, encoded(x / scale / np.abs(x).max() * 4, kind), raw_dtype=stored)
        writer.add_tensor(f"{module}.scale", np.array([scale * np.abs(x).max() / 4], np.float32))
        writer.add_tensor(f"{module}.input_scale", np.ones(1, np.float32))
    finish(writer, plain)
    return path


def in_parts(source, tensors):
    """Parts of a file, of a number of tensors each, as the gguf package writes them."""
    plain = gguf.GGUFReader(source)
    architecture = plain.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(source.with_name("part.gguf"), architecture, split_max_tensors=tensors)
    for each in plain.tensors:
        writer.add_tensor(each.name, np.array(each.data))
    finish(writer, plain)
    return sorted(source.parent.glob("part-*-of-*.gguf"))
