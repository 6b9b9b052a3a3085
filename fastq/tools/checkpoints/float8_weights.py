"""Weights of float8 with scales of blocks, as DeepSeek, Qwen and others store them, and of float4 in bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    is_named: bool = False  # whether config.json has the numbers; others are the default of readers


WHOLE_MATRIX = BlockRule(None)


def named_block(entry: Mapping[str, Any], default: Pair | None = None) -> BlockRule:
    """Return the block that the entry of config.json names, else the default; a default of None is a whole matrix."""
    shape = entry.get("weight_block_size")
    if isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape):
        return BlockRule((shape[0], shape[1]), is_named=True)
    return BlockRule(default)


def named_or_default_block(entry: Mapping[str, Any]) -> BlockRule:
    """Return the block that the entry of config.json names, else 128 x 128."""
    return named_block(entry, DEFAULT_BLOCK)


def modelopt_block(entry: Mapping[str, Any]) -> BlockRule:
    """Return the block of the algorithm that the entry of modelopt names; raise ValueError for an unknown one."""
    algorithms = _modelopt_algorithms(entry)
    for unknown in sorted(algorithms - {*MODELOPT_ALGORITHMS}):
        known = ", ".join(MODELOPT_ALGORITHMS)
        raise ValueError(f"its {KEY} is of modelopt's {unknown!r}; only {known} are read")
    return BlockRule(DEFAULT_BLOCK, is_named=True) if FLOAT8_IN_BLOCKS in algorithms else WHOLE_MATRIX


def _modelopt_algorithms(entry: Mapping[str, Any]) -> set[str]:
    """Return the names of the algorithm of an entry of modelopt, or of those of its layers, which may be mixed."""
    inner = entry.get("quantization")
    settings = inner if isinstance(inner, dict) else entry
    layers = settings.get("quantized_layers") if settings.get("quant_algo") == "MIXED_PRECISION" else None
    if layers is None:
        return {str(settings.get("quant_algo"))}
    settings_of_layers = layers.values() if isinstance(layers, dict) else [settings]
    names = [layer.get("quant_algo") if isinstance(layer, dict) else layer for layer in settings_of_layers]
    return {str(name) for name in names if name is not None}  # None: the layer is left alone


def float8_weight(source: ModelFolder, module: str, spec: TensorSpec, rule: BlockRule) -> CompressedWeight | None:
    """Return a weight of float8, or of float4 in bytes: one matrix, or the matrices of experts in one tensor.

    `spec` describes its codes: rows of float8, or rows of bytes with two float4 each, which are stored as integers.
    Return None if there is no scale for them, as for plain tensors.
    """
    scale = _scale_of(source, module, spec)
    if scale is None or spec.dtype not in (*CODES, "U8"):
        return None
    factor = source.tensors.get(f"{module}.{RECIPROCAL}")
    is_float4 = spec.dtype in ("I8", "U8")
    if len(spec.shape) not in (2, 3) or not spec.size or not (is_float4 or spec.dtype == "F8_E4M3"):
        raise ValueError(f"it is {spec.dtype} of shape {spec.shape}, not float8_e4m3fn of 2 or 3 dimensions")
    *outer, rows, bytes_of_row = spec.shape
    columns = bytes_of_row * 2 if is_float4 else bytes_of_row
    experts = math.prod(outer)
    # the scales of experts have their axis, too, or are shared by all
    scales_of_expert = scale.shape[1:] if outer and scale.shape[:1] == (experts,) else scale.shape
    block = block_shape((rows, columns), scales_of_expert, experts, WHOLE_MATRIX if is_float4 else rule)
    matrix = (experts * rows, columns)  # of all experts, one below the other
    fields: dict[str, Any] = {}
    if experts > 1 and rows % block[0]:
        block, fields["scale_rows"] = _cut_at_experts(experts, rows, block)
    scheme = _scheme_of(spec, scale, factor, matrix, block)
    roles: Roles = {form_of(scheme, matrix, "").codes: spec, "weight_scale": scale}
    if factor is not None:
        roles["weight_global_scale"] = factor
    return checked_weight(
        source, module, roles, matrix, scheme, name=spec.name, shape=(*outer, rows, columns), **fields
    )


def _scale_of(source: ModelFolder, module: str, codes: TensorSpec) -> TensorSpec | None:
    """Return the tensor with the scales of codes, None without one.

    "proj.weight" has its scale in "proj.weight_scale", and a tensor of experts, "experts.down_proj", in
    "experts.down_proj_scale".
    """
    is_of_experts = module == codes.name  # which does not end in ".weight": no module of its own has the tensor
    if is_of_experts:
        names = [module + end for end in SCALES_OF_EXPERTS]
    else:
        names = [f"{module}.{end}" for end in SCALES_OF_WEIGHT]
    return next((source.tensors[name] for name in names if name in source.tensors), None)


def _cut_at_experts(experts: int, rows: int, block: Pair) -> tuple[Pair, NDArray[np.intp]]:
    """Return smaller blocks that end where a matrix of an expert ends, and for each the index of its row of scales.

    The last block of each matrix has fewer rows, so blocks of the original height would reach into the next matrix. Two
    experts of 6 rows in blocks of 4 rows have blocks of 2 rows, with the rows of scales 0 0 1, 2 2 3.
    """
    height, width = block
    piece = math.gcd(rows, height)
    blocks = -(-rows // height)
    scale_rows = np.add.outer(np.arange(experts) * blocks, np.arange(0, rows, piece) // height)
    return (piece, width), scale_rows.reshape(-1)


def _scheme_of(
    codes: TensorSpec, scale: TensorSpec, factor: TensorSpec | None, matrix: Pair, block: Pair
) -> LayerScheme:
    """Return the scheme with which compressed-tensors has the same codes and scales.

    `factor` is the global scale of NVFP4, which MXFP4 lacks.
    """
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

    `scale` is the shape of the scales of one matrix, of which as many as `experts` are stacked. The shape (2, 3) says
    that a matrix is cut into 2 x 3 blocks, and the rule says how large these are, since the last ones may be smaller.
    """
    if len(scale) == 4 and scale[1] == scale[3] == 1:  # modelopt stores (2, 1, 3, 1)
        scale = scale[::2]
    grid = (*scale, 1, 1)[:2]
    rows, columns = matrix
    height, width = rule.shape or matrix
    grid_by_rule = -(-rows // height), -(-columns // width)
    if len(scale) > 2 or any(n < 1 for n in grid):
        raise ValueError(f"it has scales of shape {scale}, which do not cut {rows} x {columns} into blocks")
    # a matrix whose rows are a single block: transformers has one scale for each half of them
    if grid_by_rule[0] == 1 and grid == (2, grid_by_rule[1]) and rows % 2 == 0:
        return rows // 2, width
    # a single scale is that of the whole matrix, unless config.json has a block that is as large or larger
    is_single_scale = grid == (1, 1)
    if grid == grid_by_rule and (not is_single_scale or (rule.is_named and experts == 1)):
        # under a matrix of an expert lies that of the next one, which has scales of its own
        return height if experts == 1 else min(rows, height), width
    # scales of rows, or a single scale, need no entry in config.json
    is_contradiction = rule.is_named and grid[0] != rows and not is_single_scale
    if is_contradiction or rows % grid[0] or columns % grid[1]:
        expected = f" of {height} x {width}" if is_contradiction else ""
        raise ValueError(f"it has scales of shape {scale}, which do not cut {rows} x {columns} into blocks{expected}")
    return rows // grid[0], columns // grid[1]


def mxfp4_weight(source: ModelFolder, module: str, spec: TensorSpec, entry: Mapping[str, Any]) -> CompressedWeight:
    """Return a weight of gpt-oss: float4 in blocks of 32 in 16 bytes, experts as (inputs, outputs).

    The stored bytes have shape (experts, outputs, inputs / 32, 16), and the original tensor has (experts, inputs,
    outputs). Its name is the module. `entry` is not needed: config.json says no more than that it is mxfp4.
    """
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
