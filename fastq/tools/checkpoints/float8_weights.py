"""Weights of float8 with scales of blocks, as DeepSeek, Qwen and others store them, and of float4 in bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fastq.tools.checkpoints.compressed_weights import Roles, checked_weight
from fastq.tools.checkpoints.config_json import KEY
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.row_chunks import Pair
from fastq.tools.checkpoints.stored_weights import POWERS, RECIPROCAL, CompressedWeight
from fastq.tools.files.tensor_specs import TensorSpec
from fastq.tools.layouts.compressed_tensors import form_of
from fastq.tools.layouts.schemes import FLOATS, PRESETS, LayerScheme, WeightScheme

DEFAULT_BLOCK = 128, 128  # of quant_method fp8 if config.json does not name it, as in transformers
CODES = ("F8_E4M3", "F8_E5M2", "I8")  # dtypes that plain matrices do not have
# names of the scales of a weight: the word that replaces "weight", and the end of the name of a tensor of experts
SCALES_OF_WEIGHT = ("weight_scale_inv", "weight_scale", "scale", "qscale_weight")
SCALES_OF_EXPERTS = ("_scale_inv", "_scale")
FLOAT8_IN_BLOCKS = "FP8_PB_WO"  # as modelopt calls it
MODELOPT_ALGORITHMS = ("FP8", "NVFP4", "W4A16_NVFP4", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", FLOAT8_IN_BLOCKS)


class BlockRule(NamedTuple):
    """The rows and columns that share a scale, as far as config.json says."""

    shape: Pair | None  # None: all of a matrix, unless its scales cut it evenly
    is_named: bool = False  # whether config.json has the numbers


WHOLE_MATRIX = BlockRule(None)


def named_block(entry: Mapping[str, Any], default: Pair | None = None) -> BlockRule:
    """Return the block that the entry of config.json names, else the default."""
    shape = entry.get("weight_block_size")
    if isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape):
        return BlockRule((shape[0], shape[1]), is_named=True)
    return BlockRule(default)


def named_or_default_block(entry: Mapping[str, Any]) -> BlockRule:
    """Return the block that the entry of config.json names, else 128 x 128."""
    return named_block(entry, DEFAULT_BLOCK)


def modelopt_block(entry: Mapping[str, Any]) -> BlockRule:
    """Return the block of the algorithm that the entry of modelopt names; raise ValueError for an unknown one."""
    inner = entry.get("quantization")
    settings = inner if isinstance(inner, dict) else entry
    layers = settings.get("quantized_layers") if settings.get("quant_algo") == "MIXED_PRECISION" else None
    rows = layers.values() if isinstance(layers, dict) else [settings]
    names = [row.get("quant_algo") if isinstance(row, dict) else row for row in rows]
    algorithms = {str(name) for name in names if name is not None or layers is None}  # None: the layer is left alone
    for other in sorted(algorithms - {*MODELOPT_ALGORITHMS}):
        known = ", ".join(MODELOPT_ALGORITHMS)
        raise ValueError(f"its {KEY} is of modelopt's {other!r}; only {known} are read")
    return BlockRule(DEFAULT_BLOCK, is_named=True) if FLOAT8_IN_BLOCKS in algorithms else WHOLE_MATRIX


def float8_weight(source: ModelFolder, module: str, spec: TensorSpec, rule: BlockRule) -> CompressedWeight | None:
    """Return a weight of float8, or of float4 in bytes: one matrix, or the matrices of experts in one tensor.

    `spec` describes its codes. Return None if there is no scale for them, as for plain tensors.
    """
    if module == spec.name:
        names = [module + end for end in SCALES_OF_EXPERTS]
    else:
        names = [f"{module}.{end}" for end in SCALES_OF_WEIGHT]
    scale = next((source.tensors[name] for name in names if name in source.tensors), None)
    if scale is None or spec.dtype not in (*CODES, "U8"):
        return None
    factor = source.tensors.get(f"{module}.{RECIPROCAL}")
    is_float4 = spec.dtype in ("I8", "U8")
    if len(spec.shape) not in (2, 3) or not spec.size or not (is_float4 or spec.dtype == "F8_E4M3"):
        raise ValueError(f"it is {spec.dtype} of shape {spec.shape}, not float8_e4m3fn of 2 or 3 dimensions")
    *outer, rows, columns = spec.shape
    experts = math.prod(outer)
    columns = columns * 2 if is_float4 else columns
    scales_of_expert = scale.shape[1:] if outer and scale.shape[:1] == (experts,) else scale.shape
    block = block_shape((rows, columns), scales_of_expert, experts, WHOLE_MATRIX if is_float4 else rule)
    matrix = (experts * rows, columns)
    fields: dict[str, Any] = {}
    if experts > 1 and rows % block[0]:  # the last block of each matrix is cut off
        piece = math.gcd(rows, block[0])
        blocks = -(-rows // block[0])
        scale_of_piece = np.add.outer(np.arange(experts) * blocks, np.arange(0, rows, piece) // block[0])
        fields["scale_rows"] = scale_of_piece.reshape(-1)
        block = piece, block[1]
    scheme = _scheme_of(spec, scale, factor, matrix, block)
    roles: Roles = {form_of(scheme, matrix, "").codes: spec, "weight_scale": scale}
    if factor is not None:
        roles["weight_global_scale"] = factor
    return checked_weight(
        source, module, roles, matrix, scheme, name=spec.name, shape=(*outer, rows, columns), **fields
    )


def _scheme_of(
    codes: TensorSpec, scale: TensorSpec, factor: TensorSpec | None, matrix: Pair, block: Pair
) -> LayerScheme:
    """Return the scheme with which compressed-tensors has the same codes and scales."""
    if codes.dtype in ("I8", "U8"):
        scheme = PRESETS["MXFP4A16" if factor is None else "NVFP4A16"]
        if block != (1, scheme.weights.group_size):
            needed = f"1 x {scheme.weights.group_size}"
            raise ValueError(f"it is {codes.dtype} with scales of {block[0]} x {block[1]}: float4 needs {needed}")
        return scheme
    if block == matrix:
        weights = WeightScheme(bits=8, kind="float", strategy="tensor")
    elif block == (1, matrix[1]):
        weights = WeightScheme(bits=8, kind="float", strategy="channel")
    elif block == (1, 32) and scale.dtype in (POWERS, "U8"):
        return PRESETS["MXFP8A16"]
    elif block[0] == 1:
        weights = WeightScheme(bits=8, kind="float", strategy="group", group_size=block[1])
    else:
        weights = WeightScheme(bits=8, kind="float", strategy="block", block=block)
    return LayerScheme(name="", weights=weights, format=FLOATS)


def block_shape(matrix: Pair, scale: tuple[int, ...], experts: int, rule: BlockRule) -> Pair:
    """Return the rows and columns that share a scale: the block of the rule, or one that cuts the matrix evenly.

    `scale` is the shape of the scales of one matrix.
    """
    if len(scale) == 4 and scale[1] == scale[3] == 1:  # blocks of modelopt
        scale = scale[::2]
    grid = (*scale, 1, 1)[:2]
    rows, columns = matrix
    height, width = rule.shape or matrix
    needed = -(-rows // height), -(-columns // width)
    if len(scale) > 2 or any(n < 1 for n in grid):
        raise ValueError(f"it has scales of shape {scale}, which do not cut {rows} x {columns} into blocks")
    # transformers has one scale for each half of such rows
    if needed[0] == 1 and grid == (2, needed[1]) and rows % 2 == 0:
        return rows // 2, width
    if grid == needed and (grid != (1, 1) or (rule.is_named and experts == 1)):
        return height if experts == 1 else min(rows, height), width
    # scales of rows, or a single scale, need no entry in config.json
    contradicts = rule.is_named and grid[0] != rows and grid != (1, 1)
    if contradicts or rows % grid[0] or columns % grid[1]:
        expected = f" of {height} x {width}" if contradicts else ""
        raise ValueError(f"it has scales of shape {scale}, which do not cut {rows} x {columns} into blocks{expected}")
    return rows // grid[0], columns // grid[1]


def mxfp4_weight(source: ModelFolder, module: str, spec: TensorSpec, entry: Mapping[str, Any]) -> CompressedWeight:
    """Return a weight of gpt-oss: float4 in blocks of 32 in 16 bytes, experts as (inputs, outputs)."""
    scale = source.tensors.get(f"{module}_scales")
    if scale is None or spec.dtype != "U8" or len(spec.shape) != 4 or spec.shape != (*scale.shape, 16):
        scales = "no scales" if scale is None else f"scales of shape {scale.shape}"
        raise ValueError(f"its blocks are {spec.dtype} of shape {spec.shape}, with {scales}")
    experts, rows, blocks, _ = spec.shape
    return checked_weight(
        source,
        module,
        {"weight_packed": spec, "weight_scale": scale},
        (experts * rows, blocks * 32),
        PRESETS["MXFP4A16"],
        name=module,
        shape=(experts, blocks * 32, rows),
        is_transposed=True,
    )
