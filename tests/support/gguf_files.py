"""Small GGUF files, written by the gguf package, and what that package reads of files."""

import math

import gguf
import numpy as np

KINDS = gguf.GGMLQuantizationType


def encoded(x, kind):
    """The bytes that the gguf package, or ggml's rule for NVFP4 and the like as fastq has it, makes of values."""
    import fastq.gguf

    if kind in ("F32", "F16"):
        return x.astype({"F32": np.float32, "F16": np.float16}[kind])
    if kind == "BF16":
        return gguf.quants.quantize(x, KINDS.BF16)
    return fastq.gguf.quantize(x, kind)


def values(shape, seed=0):
    """Random numbers of a shape."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def write(path, tensors, *, fields=None, parts=0):
    """Write tensors, (array, name of a type or None) by name, and fields; in parts of that many tensors, if any."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=parts)
    writer.add_block_count(2)
    for key, value in (fields or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for name, (array, kind) in tensors.items():
        if array.ndim > 1 and array.dtype == np.uint8:
            writer.add_tensor(name, array, raw_dtype=KINDS[kind])
        else:
            writer.add_tensor(name, array, raw_dtype=None if kind is None else KINDS[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path):
    """Fields and tensors of a file by the gguf package."""
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    return fields, {each.name: each for each in reader.tensors}


def meant(path, name, *, is_scaled=True):
    """The values that llama.cpp computes with: those of the tensor times its scale, if the file still has that."""
    tensors = read(path)[1]
    each = tensors[name]
    found = gguf.quants.dequantize(each.data, each.tensor_type).reshape(each.shape[::-1].tolist())
    scale = tensors.get(name.removesuffix(".weight") + ".scale")
    if scale is None or not is_scaled:
        return found
    numbers = gguf.quants.dequantize(scale.data, scale.tensor_type).reshape(-1)
    matrices = math.prod(found.shape[:-2])
    return (found.reshape(matrices, -1) * np.broadcast_to(numbers, matrices)[:, None]).reshape(found.shape)
