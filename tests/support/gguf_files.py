"""Small GGUF files, written by the gguf package, and what that package reads of files."""

import math

import gguf
import numpy as np
from gguf_models import finished

KINDS = gguf.GGMLQuantizationType


def encoded(x, kind):
    """The bytes that the gguf package, or ggml's rule for NVFP4 and the like as in fastq, gives for values."""
    import fastq.gguf

    if kind in ("F32", "F16"):
        return x.astype({"F32": np.float32, "F16": np.float16}[kind])
    return gguf.quants.quantize(x, KINDS.BF16) if kind == "BF16" else fastq.gguf.quantize(x, kind)


def decoded(blocks, kind):
    """The values that the gguf package reads of blocks."""
    return gguf.quants.dequantize(blocks, KINDS[kind])


def values(shape, seed=0):
    """Random numbers of a shape."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def write(path, tensors, *, fields=None, parts=0, architecture="llama"):
    """Write tensors by name, arrays or (array, name of a type), and fields; in parts of that many tensors, if any."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=parts)
    writer.add_block_count(2)
    for key, value in (fields or {}).items():
        kind = {str: "string", float: "float32", list: "array"}.get(type(value), "uint32")
        getattr(writer, f"add_{kind}")(key, value)
    for name, each in tensors.items():
        array, kind = each if isinstance(each, tuple) else (each, None)
        writer.add_tensor(name, array, raw_dtype=None if kind is None else KINDS[kind])
    return finished(writer, path)


def read(path):
    """Fields and tensors of a file by the gguf package."""
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    return fields, {each.name: each for each in reader.tensors}


def meant(path, name, *, is_scaled=True):
    """The values that llama.cpp computes with: those of the tensor times its scale, if the file still has that."""
    tensors = read(path)[1]
    each = tensors[name]
    found = decoded(each.data, each.tensor_type.name).reshape(each.shape[::-1].tolist())
    scale = tensors.get(name.removesuffix(".weight") + ".scale")
    if scale is None or not is_scaled:
        return found
    numbers = decoded(scale.data, scale.tensor_type.name).reshape(-1)
    matrices = math.prod(found.shape[:-2])
    return (found.reshape(matrices, -1) * np.broadcast_to(numbers, matrices)[:, None]).reshape(found.shape)
