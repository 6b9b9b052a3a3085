"""Quantized models as their writers store them, with the values that readers compute, in plain NumPy."""

import json
import struct

import ml_dtypes
import numpy as np
from numpy import float32 as f32

E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
NAMES |= {"float8_e8m0fnu": "F8_E8M0", "int8": "I8", "uint8": "U8", "int16": "I16", "int32": "I32", "int64": "I64"}
NAMES |= {"uint32": "U32"}
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], f32)


def write_file(path, tensors, entries=None):
    """Write a .safetensors file, of dtypes that its library has no arrays for too; `entries` change its header."""
    header, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": NAMES.get(array.dtype.name), "shape": list(np.shape(array)), "data_offsets": offsets}
        header[name] |= (entries or {}).get(name, {})
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def rewrite_header(path, change):
    """Apply a change to the header of a .safetensors file."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[end:])


def respell(path, name, dtype, bits):
    """Let a header say that the bytes of a tensor are elements of a dtype in one row."""

    def change(header):
        start, stop = header[name]["data_offsets"]
        header[name] |= {"dtype": dtype, "shape": [(stop - start) * 8 // bits]}

    rewrite_header(path, change)


OTHERS = {"BOOL": 8, "C64": 64, "F4": 4}  # bits of dtypes that no part of a weight has


def write(folder, tensors, entry=None, files=None, config=None):
    """Write a model of one file; `entry` is its quantization_config, `files` are others of JSON."""
    folder.mkdir()
    write_file(folder / "model.safetensors", tensors)
    settings = {"model_type": "llama", "dtype": "float32", **(config or {})}
    (folder / "config.json").write_text(json.dumps(settings | ({"quantization_config": entry} if entry else {})))
    for name, content in (files or {}).items():
        (folder / name).write_text(json.dumps(content))
    return folder


# Float8: codes times the scale of their block


def spread(scale, shape, block):
    """The scale of each element."""
    return np.repeat(np.repeat(scale, block[0], -2), block[1], -1)[..., : shape[-2], : shape[-1]]


def float8(shape, block, kind=f32):
    """Codes of float8, scales of blocks in a dtype, and the values."""
    rng = np.random.default_rng(0)
    codes = rng.uniform(-448, 448, shape).astype(E4M3)
    grid = *shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1])
    scale = np.exp2(rng.integers(-9, -2, grid)).astype(f32)
    if kind not in (E8M0, np.uint8):
        scale *= rng.uniform(1, 2, grid).astype(f32)
    scale = scale.astype(E8M0 if kind is np.uint8 else kind)
    values = codes.astype(f32) * spread(scale.astype(f32), shape, block)
    return codes, scale.view(np.uint8) if kind is np.uint8 else scale, values


def float4(shape):
    """Codes of float4 in bytes, the first in the low half, powers of two for scales of 32, and the values."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, shape, np.uint8)
    scale = rng.integers(118, 130, (*shape[:-1], shape[-1] // 32), np.uint8)
    values = FLOAT4[codes] * np.repeat(np.exp2(scale.astype(f32) - 127), 32, -1)
    return codes[..., ::2] | codes[..., 1::2] << 4, scale, values


# AWQ and GPTQ: (code - zero point) * scale, along inputs


def in_words(rows, bits, order=range(8)):
    """Rows of integers in words of 32 bits, one bit after the other; AWQ has eights in an order of its own."""
    rows = rows.reshape(len(rows), -1, 8)[..., list(order)].reshape(rows.shape)
    stream = rows[..., None] >> np.arange(bits) & 1
    return np.packbits(stream.astype(np.uint8).reshape(len(rows), -1), axis=-1, bitorder="little").view("<i4")


def integers(columns, rows, group, bits, seed=0, symmetric=False, groups=None):
    """Codes and groups of (inputs, outputs), and the values of the weight: (outputs, inputs)."""
    rng, count = np.random.default_rng(seed), -(-columns // group)
    codes = rng.integers(0, 1 << bits, (columns, rows))
    zeros = np.full((count, rows), 1 << bits - 1) if symmetric else rng.integers(1, 1 << bits, (count, rows))
    scales = (rng.integers(1, 999, (count, rows)) / 1024).astype(np.float16)
    groups = np.arange(columns) // group if groups is None else groups
    values = (codes - zeros[groups]).astype(f32) * scales[groups].astype(f32)
    return codes, zeros, scales, groups.astype(np.int32), np.ascontiguousarray(values.T)


def awq(columns=64, rows=40, group=32, **options):
    """Tensors of AWQ, and the values."""
    codes, zeros, scales, _, values = integers(columns, rows, group, 4, **options)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {"qweight": in_words(codes, 4, order), "qzeros": in_words(zeros, 4, order), "scales": scales}, values


def gptq(columns=64, rows=64, group=32, bits=4, less=1, with_order=True, **options):
    """Tensors of GPTQ, and the values; `less` is what is taken from zero points."""
    codes, zeros, scales, groups, values = integers(columns, rows, group, bits, **options)
    qweight = np.ascontiguousarray(in_words(codes.T, bits).T)
    tensors = {"qweight": qweight, "qzeros": in_words(zeros - less, bits), "scales": scales}
    return tensors | ({"g_idx": groups} if with_order else {}), values


def named(module, tensors):
    return {f"{module}.{end}": array for end, array in tensors.items()}
