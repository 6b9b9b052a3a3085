"""The quantized weights of a model, found by the names of what writers store for them: a row for each quant_method."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.compressed_tensors import PRESETS, WORDS, LayerScheme, WeightScheme
from fastq.io.checkpoints.config import METHOD, StoredSchemes, check_undone
from fastq.io.checkpoints.folder import KEY, ModelFolder
from fastq.io.checkpoints.stored import (
    ORDER,
    POWERS,
    RECIPROCAL,
    SCALES,
    SUFFIXES,
    ZERO_POINT,
    CompressedWeight,
    PackedWeight,
    StoredWeight,
)
from fastq.io.containers import TensorSpec, spec_of
from fastq.io.pipeline import naming
from fastq.layouts.compressed_tensors import StoredForm, form_of
from fastq.system.arguments import shown
from fastq.system.dtypes import Array

Entry = Mapping[str, Any]
Tensors = Mapping[str, TensorSpec]
INTEGERS = {"I8", "U8", "I16", "I32", "I64"}  # dtypes of zero points of older writers
# what stored bytes, and integers, are read as
CASTS = {(POWERS, "F32"), ("U8", "F32"), (POWERS, "U8"), ("I8", "U8"), ("I32", "I64")}
BLOCK = 128, 128  # of float8 where config.json has none, as transformers takes it
CODES = ("F8_E4M3", "F8_E5M2", "I8")  # dtypes that no plain matrix has
# scales of float8 weights, by what stands for "weight" in their names, and by the name of a tensor of experts
OF_WEIGHT = ("weight_scale_inv", "weight_scale", "scale", "qscale_weight")
OF_EXPERTS = ("_scale_inv", "_scale")
ADVICE = "where transformers loads it and model.dequantize() undoes it, convert what save_pretrained then writes"


def stored_weights(source: ModelFolder) -> dict[str, StoredWeight]:
    """Return the quantized weights of a model, by the name of the module.

    ValueError if config.json does not say how they are stored, they are not stored so, or the model is more than they.
    """
    entry = source.quantization
    if not entry:
        raise ValueError(f"its config.json has no {KEY}: nothing in it is quantized")
    method = str(entry.get("quant_method") or (METHOD if "config_groups" in entry else "no quant_method"))
    if method not in METHODS:
        raise ValueError(f"its {KEY} is of {shown(method)}; known are {', '.join(METHODS)}: {ADVICE}")
    check_undone(entry)
    find, *parts = METHODS[method]
    found = {weight.module: weight for weight in find(source, entry)}
    _check_others(source, {spec.name for weight in found.values() for spec in weight.found.values()}, tuple(parts))
    if not found and not entry.get("kv_cache_scheme"):
        raise ValueError(f"nothing in it is quantized, whatever its {KEY} says: no tensor is named {parts[0]}")
    return found


def _check_others(source: ModelFolder, used: set[str], parts: tuple[str, ...]) -> None:
    """Refuse tensors that are parts of a weight, by their names or dtypes, and were not found as such."""
    for name, spec in source.tensors.items():
        if name in used:
            continue
        if name.endswith((*parts, "pre_quant_scale")):
            raise ValueError(f"{name} in {source.files[name]} is part of no weight that is known here")
        if spec.dtype in CODES and len(spec.shape) > 1 and not name.endswith(OF_EXPERTS):
            raise ValueError(f"{name} in {source.files[name]} is {spec.dtype} and has no scale")


def _in(source: ModelFolder, spec: TensorSpec, module: str) -> AbstractContextManager[None]:
    """Name a weight and its file in what is wrong with it."""
    return naming(lambda error: f"{module} in {source.files[spec.name]}: {error}")


# --- compressed-tensors -----------------------------------------------------------------------------------------------


def _compressed(source: ModelFolder, entry: Entry) -> Iterator[StoredWeight]:
    schemes, tensors = StoredSchemes({KEY: entry}), source.tensors
    for name, spec in tensors.items():
        if name.endswith(".weight_scale"):
            module = name.removesuffix(".weight_scale")
            with _in(source, spec, module):
                yield _compressed_weight(source, tensors, module, schemes.scheme_of(module))


def _compressed_weight(source: ModelFolder, tensors: Tensors, module: str, scheme: LayerScheme) -> StoredWeight:
    found = {end: tensors[f"{module}.{end}"] for end in SUFFIXES if f"{module}.{end}" in tensors}
    codes = form_of(scheme, (1, 1), "").codes
    if codes not in found:
        raise ValueError(f"it has no {codes}, which {scheme.format} stores")
    matrix = _shape(source, found, scheme)
    scheme = _as_zero_points_say(source, found, matrix, scheme)
    order = None
    if f"{module}.{ORDER}" in tensors:
        found[ORDER] = tensors[f"{module}.{ORDER}"]
        order = _order(source.load(found[ORDER].name), matrix[1])
    return _weight(source, module, f"{module}.weight", matrix, found, matrix, scheme, order=order)


def _weight(
    source: ModelFolder,
    module: str,
    name: str,
    shape: tuple[int, ...],
    found: dict[str, TensorSpec],
    matrix: tuple[int, int],
    scheme: LayerScheme,
    **more: Any,
) -> StoredWeight:
    """Return a weight whose tensors are what a scheme stores, by their dtypes and shapes; else ValueError."""
    dtype = found["weight_scale"].dtype
    form = form_of(scheme, matrix, dtype if dtype in SCALES else "F32")
    specs = {end: spec_of(f"{module}.{end}", *each) for end, each in form.specs().items()}
    for end, spec in specs.items():
        held = found.get(end)
        if end == "weight_scale" and "scale_rows" in more:
            spec = spec_of(spec.name, spec.dtype, (int(more["scale_rows"][-1]) + 1, spec.shape[1]))
        if held is None or not (_alike(held, spec) or (end == ZERO_POINT and _one_by_one(held, form))):
            text = "nothing" if held is None else f"{held.dtype} of shape {held.shape}"
            raise ValueError(f"{(held or spec).name!r} should be {spec.dtype} of shape {spec.shape}, not {text}")
    surplus = next((end for end in found if end not in (*specs, ZERO_POINT, ORDER)), None)
    if surplus is not None:
        raise ValueError(f"it has a {surplus}, which {scheme.weights} in {scheme.format} does not store")
    return CompressedWeight(
        source=source,
        module=module,
        name=name,
        shape=shape,
        found=found,
        matrix=matrix,
        codes=found[form.codes],
        scheme=scheme,
        specs=specs,
        **more,
    )


def _alike(spec: TensorSpec, wanted: TensorSpec) -> bool:
    """Whether a tensor is as it should be; axes of one element don't matter, and experts are one below the other."""
    same = spec.shape == wanted.shape or _without_ones(spec.shape) == _without_ones(wanted.shape)
    stacked = len(spec.shape) > 2 and spec.size == wanted.size
    return (spec.dtype == wanted.dtype or (spec.dtype, wanted.dtype) in CASTS) and (same or stacked)


def _one_by_one(spec: TensorSpec, form: StoredForm) -> bool:
    """Whether zero points are integers, one for each scale, as older writers have them."""
    return spec.dtype in INTEGERS and spec.size == math.prod(form.stored_parameter_shape)


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]


def _as_zero_points_say(
    source: ModelFolder, found: dict[str, TensorSpec], matrix: tuple[int, int], scheme: LayerScheme
) -> LayerScheme:
    """Return the scheme as a weight has it: symmetric where it has no zero points, or older writers stored zeros."""
    weights = scheme.weights
    plain = replace(scheme, weights=replace(weights, symmetric=True))
    if ZERO_POINT not in found:
        return plain
    if weights.symmetric:
        form = form_of(replace(scheme, weights=replace(weights, symmetric=False)), matrix, "F32")
        if form.zero_points(source.load(found[ZERO_POINT].name)).astype(np.float32).any():
            raise ValueError(f"it has a {ZERO_POINT} with other numbers than 0, which {weights} does not store")
        return plain
    return scheme


def _order(groups: Array, columns: int) -> NDArray[np.intp] | None:
    """Return the columns in the order of their groups; None if that is their own, or there is none."""
    if groups.shape != (columns,) or groups.dtype.kind != "i":
        raise ValueError(f"it has groups of columns of shape {groups.shape}, not integers of shape {(columns,)}")
    if (groups < 0).any() or (np.diff(groups) >= 0).all():  # -1: as it was made, without an order
        return None
    return np.argsort(groups, kind="stable")


def _shape(source: ModelFolder, found: dict[str, TensorSpec], scheme: LayerScheme) -> tuple[int, int]:
    """Return the shape of a weight; a file can say anything."""
    form = form_of(scheme, (1, 1), "")
    codes = found[form.codes]
    shape = codes.shape
    if scheme.format == WORDS:
        if "weight_shape" not in found or found["weight_shape"].dtype not in ("I64", "I32"):
            raise ValueError("it has no weight_shape of integers")
        shape = tuple(map(int, source.load(found["weight_shape"].name).reshape(-1)))
    elif len(codes.shape) == 2 and form.packing:
        shape = codes.shape[0], codes.shape[1] * 8 // scheme.weights.bits
    if len(shape) != 2 or min(shape) < 1 or len(codes.shape) != 2:
        raise ValueError(f"it has shape {shape}, which is not that of a matrix")
    return shape[0], shape[1]


# --- float8 with scales of blocks, as DeepSeek, Qwen and others have it, and float4 in bytes -----------------------


def _float8(source: ModelFolder, entry: Entry) -> Iterator[StoredWeight]:
    tensors = source.tensors
    for name, spec in tensors.items():
        module = name.removesuffix(".weight")
        names = [f"{module}.{end}" for end in OF_WEIGHT] if name.endswith(".weight") else [name + x for x in OF_EXPERTS]
        scale = next((tensors[each] for each in names if each in tensors), None)
        if scale is not None and spec.dtype in (*CODES, "U8"):
            with _in(source, spec, module):
                factor = tensors.get(f"{module}.{RECIPROCAL}")
                yield _float8_weight(source, module, spec, scale, factor, entry)


def _float8_weight(
    source: ModelFolder, module: str, spec: TensorSpec, scale: TensorSpec, factor: TensorSpec | None, entry: Entry
) -> StoredWeight:
    """Return a weight of float8, or of float4 in bytes: one matrix, or some of experts in a tensor."""
    is_float4 = spec.dtype in ("I8", "U8")
    if len(spec.shape) not in (2, 3) or not spec.size or not (is_float4 or spec.dtype == "F8_E4M3"):
        raise ValueError(f"it is {spec.dtype} of shape {spec.shape}, not float8_e4m3fn of 2 or 3 dimensions")
    *outer, rows, columns = spec.shape
    experts, columns = math.prod(outer), columns * 2 if is_float4 else columns
    of_each = scale.shape[1:] if outer and scale.shape[:1] == (experts,) else scale.shape
    block = _block((rows, columns), of_each, experts, {} if is_float4 else entry)
    matrix, more = (experts * rows, columns), {}
    if experts > 1 and rows % block[0]:  # the last block of each is cut off: pieces of blocks that fit each other
        piece, blocks = math.gcd(rows, block[0]), -(-rows // block[0])
        more["scale_rows"] = np.add.outer(np.arange(experts) * blocks, np.arange(0, rows, piece) // block[0]).reshape(
            -1
        )
        block = piece, block[1]
    scheme = PRESETS["MXFP4A16" if factor is None else "NVFP4A16"] if is_float4 else None
    scheme = scheme or _float8_scheme(block, matrix, scale.dtype)
    if is_float4 and block != (1, scheme.weights.group_size):
        wanted = f"1 x {scheme.weights.group_size}"
        raise ValueError(f"it is {spec.dtype} with scales of {block[0]} x {block[1]}: float4 has those of {wanted}")
    found = {form_of(scheme, matrix, "").codes: spec, "weight_scale": scale}
    found |= {"weight_global_scale": factor} if factor is not None else {}
    return _weight(source, module, spec.name, (*outer, rows, columns), found, matrix, scheme, **more)


def _block(matrix: tuple[int, int], scale: tuple[int, ...], experts: int, entry: Entry) -> tuple[int, int]:
    """Return rows and columns that have a scale together: as config.json says, or as they cut a matrix evenly.

    ValueError if they cut it otherwise.
    """
    if len(scale) == 4 and scale[1] == scale[3] == 1:  # as modelopt has blocks
        scale = scale[::2]
    grid, (rows, columns), named = (*scale, 1, 1)[:2], matrix, entry.get("weight_block_size")
    is_named = isinstance(named, list) and len(named) == 2 and all(type(n) is int and n > 0 for n in named)
    blocks: Any = named if is_named else BLOCK if entry.get("quant_method") == "fp8" else matrix
    height, width = blocks
    needed = -(-rows // height), -(-columns // width)
    if len(scale) > 2 or any(n < 1 for n in grid):
        raise ValueError(f"it has scales of shape {scale}, which cut {rows} x {columns} into no blocks")
    if needed[0] == 1 and grid == (2, needed[1]) and rows % 2 == 0:  # transformers has one for each half of such rows
        return rows // 2, width
    if grid == needed and (grid != (1, 1) or (is_named and experts == 1)):
        return height if experts == 1 else min(rows, height), width
    told = is_named and grid[0] != rows and grid != (1, 1)  # scales of rows, or one, are so whatever is said
    if told or rows % grid[0] or columns % grid[1]:
        wanted = f" of {height} x {width}" if told else ""
        raise ValueError(f"it has scales of shape {scale}, which cut {rows} x {columns} into no blocks{wanted}")
    return rows // grid[0], columns // grid[1]


def _float8_scheme(block: tuple[int, int], matrix: tuple[int, int], dtype: str) -> LayerScheme:
    """Return how compressed-tensors calls float8 with scales of such blocks."""
    if block == matrix:
        return LayerScheme("", WeightScheme(8, "float", "tensor"), "float-quantized")
    if block == (1, matrix[1]):
        return LayerScheme("", WeightScheme(8, "float", "channel"), "float-quantized")
    if block == (1, 32) and dtype in (POWERS, "U8"):
        return PRESETS["MXFP8A16"]
    if block[0] == 1:
        return LayerScheme("", WeightScheme(8, "float", "group", block[1]), "float-quantized")
    return LayerScheme("", WeightScheme(8, "float", "block", block=block), "float-quantized")


# by modelopt's name of an algorithm, what config.json would say of its blocks
OF_BLOCKS: Entry = {"weight_block_size": list(BLOCK)}
MODELOPT: dict[str, Entry] = {
    "FP8": {},
    "NVFP4": {},
    "FP8_PER_CHANNEL_PER_TOKEN": {},
    "MXFP8": {},
    "FP8_PB_WO": OF_BLOCKS,
}


def _modelopt(source: ModelFolder, entry: Entry) -> Iterator[StoredWeight]:
    part = entry.get("quantization")
    part = part if isinstance(part, dict) else entry
    layers = part.get("quantized_layers") if part.get("quant_algo") == "MIXED_PRECISION" else None
    each = layers.values() if isinstance(layers, dict) else [part]
    algorithms = {str(one.get("quant_algo") if isinstance(one, dict) else one) for one in each}
    for other in sorted(algorithms - MODELOPT.keys()):
        raise ValueError(f"its {KEY} is of modelopt's {other!r}; only {', '.join(MODELOPT)} are read")
    return _float8(source, MODELOPT[algorithms.pop()] if len(algorithms) == 1 else {})


# --- float4 of gpt-oss: blocks of 32 in 16 bytes, experts as (inputs, outputs) ----------------------------------------


def _mxfp4(source: ModelFolder, entry: Entry) -> Iterator[StoredWeight]:
    tensors = source.tensors
    for name, spec in tensors.items():
        module = name.removesuffix("_blocks")
        if module == name:
            continue
        with _in(source, spec, module):
            scale = tensors.get(f"{module}_scales")
            if scale is None or spec.dtype != "U8" or len(spec.shape) != 4 or spec.shape != (*scale.shape, 16):
                held = "no scales" if scale is None else f"scales of shape {scale.shape}"
                raise ValueError(f"its blocks are {spec.dtype} of shape {spec.shape}, with {held}")
            experts, rows, blocks, _ = spec.shape
            found, matrix = {"weight_packed": spec, "weight_scale": scale}, (experts * rows, blocks * 32)
            shape = experts, blocks * 32, rows
            yield _weight(source, module, module, shape, found, matrix, PRESETS["MXFP4A16"], is_transposed=True)


# --- AWQ and GPTQ -----------------------------------------------------------------------------------------------------


def _packed_awq(source: ModelFolder, entry: Entry) -> Iterator[StoredWeight]:
    version = str(entry.get("version") or entry.get("format") or entry.get("checkpoint_format") or "gemm").lower()
    version = "llm-awq" if entry.get("backend") == "llm-awq" else version
    bits = entry.get("bits") or entry.get("w_bit") or 4
    if version != "gemm" or bits != 4:
        raise ValueError(f"its {KEY} is of AWQ's {version!r} with {bits!r} bits; only 'gemm' with 4 is read")
    return _packed(source, "awq", entry.get("group_size") or entry.get("q_group_size"))


def _packed_gptq(source: ModelFolder, entry: Entry) -> Iterator[StoredWeight]:
    version = str(entry.get("checkpoint_format") or entry.get("format") or "gptq").lower()
    if version not in ("gptq", "gptq_v2") or entry.get("is_marlin_format"):
        found = "marlin" if entry.get("is_marlin_format") else version
        raise ValueError(f"its {KEY} is of GPTQ's {found!r}; only 'gptq' and 'gptq_v2' are read")
    return _packed(source, version, entry.get("group_size"))


def _packed_auto_round(source: ModelFolder, entry: Entry) -> Iterator[StoredWeight]:
    packing = str(entry.get("packing_format") or entry.get("backend") or "auto_round:gptq").lower()
    for name, find in (("gptq", _packed_gptq), ("awq", _packed_awq)):
        if name in packing:
            return find(source, {key: entry[key] for key in ("bits", "group_size") if key in entry})
    raise ValueError(f"its {KEY} is of auto-round's {packing!r}; only layouts of gptq and awq are read")


def _packed(source: ModelFolder, layout: str, group_size: Any) -> Iterator[StoredWeight]:
    """Yield weights in a layout, whose width is what their zero points tell: modules may have another one each."""
    tensors = source.tensors
    for name, spec in tensors.items():
        module = name.removesuffix(".qweight")
        if module == name:
            continue
        with _in(source, spec, module):
            ends = ("qweight", "qzeros", "scales", *(["g_idx"] if layout != "awq" else []))
            found = {end: tensors[f"{module}.{end}"] for end in ends if f"{module}.{end}" in tensors}
            yield _packed_weight(source, module, found, layout, group_size)


def _packed_weight(
    source: ModelFolder, module: str, found: dict[str, TensorSpec], layout: str, group_size: Any
) -> StoredWeight:
    for end in ("qweight", "qzeros", "scales"):
        if end not in found or len(found[end].shape) != 2 or not found[end].size:
            held = f"of shape {found[end].shape}" if end in found else "missing"
            raise ValueError(f"{module}.{end} must be a matrix; it is {held}")
    words, outputs = found["qweight"].shape, found["scales"].shape[1]
    bits = found["qzeros"].shape[1] * 32 // outputs
    if bits not in ((4,) if layout == "awq" else (2, 3, 4, 8)):
        raise ValueError(
            f"its qzeros of shape {found['qzeros'].shape} are for {bits} bits, which {layout} does not have"
        )
    columns, groups = words[0] if layout == "awq" else words[0] * 32 // bits, found["scales"].shape[0]
    size = group_size if type(group_size) is int and group_size > 0 else 0
    size = size if size and -(-columns // size) == groups else 0
    order = _order(source.load(found["g_idx"].name), columns) if "g_idx" in found else None
    matrix = outputs, columns
    return PackedWeight(
        source=source,
        module=module,
        name=f"{module}.weight",
        shape=matrix,
        found=found,
        matrix=matrix,
        codes=found["qweight"],
        order=order,
        layout=layout,
        bits=bits,
        block_size=size,
    )


_PARTS = [f".{end}" for end in ("weight_scale", *SUFFIXES[1:], ORDER)]
_OF_LAYOUTS = ".qweight", ".qzeros", ".scales", ".g_idx"
# by quant_method what finds weights, and ends of names that nothing but a part of a weight has
METHODS: dict[str, tuple[Any, ...]] = {
    METHOD: (_compressed, *_PARTS),
    "sparseml": (_compressed, *_PARTS),  # as the first writers of compressed-tensors called it
    "fp8": (_float8, "_scale_inv", ".qscale_weight"),
    "fbgemm_fp8": (_float8, ".weight_scale"),
    "mxfp8": (_float8, "_scale_inv"),
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed"), (_modelopt, ".weight_scale", f".{RECIPROCAL}")),
    "mxfp4": (_mxfp4, "_blocks", "_scales"),
    "awq": (_packed_awq, *_OF_LAYOUTS),
    "gptq": (_packed_gptq, *_OF_LAYOUTS),
    **dict.fromkeys(("auto-round", "intel/auto-round"), (_packed_auto_round, *_OF_LAYOUTS)),
}
