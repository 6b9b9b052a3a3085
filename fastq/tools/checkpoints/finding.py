"""The quantized weights of a model, found by the names of their stored tensors: a row for each quant_method."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.system.arguments import shown
from fastq.system.dtypes import Array
from fastq.tools.checkpoints import encoding
from fastq.tools.checkpoints.config import METHOD, StoredSchemes, check_undone
from fastq.tools.checkpoints.encoding import ORDER, POWERS, RECIPROCAL, SCALES, SUFFIXES, ZERO_POINT, StoredWeight
from fastq.tools.checkpoints.folder import KEY, MLX, ModelFolder
from fastq.tools.files.codes import QuantizedElsewhere, parts_of_weights, quantized_elsewhere, told_of
from fastq.tools.files.containers import TensorSpec, spec_of
from fastq.tools.files.pipeline import naming
from fastq.tools.layouts.compressed_tensors import StoredForm, form_of
from fastq.tools.layouts.schemes import PRESETS, WORDS, LayerScheme, WeightScheme

Entry = Mapping[str, Any]
Found = dict[str, TensorSpec]  # the stored tensors of a weight, by their roles
Pair = tuple[int, int]
INTEGERS = {"I8", "U8", "I16", "I32", "I64"}  # dtypes of zero points of older writers
# dtypes as which stored bytes and integers are read
CASTS = {(POWERS, "F32"), ("U8", "F32"), (POWERS, "U8"), ("I8", "U8"), ("I32", "I64")}
BLOCK = 128, 128  # blocks of float8 if config.json does not name them, as in transformers
CODES = ("F8_E4M3", "F8_E5M2", "I8")  # dtypes that plain matrices do not have
# scales of float8 weights, by the word that replaces "weight" in their names, and by the name of a tensor of experts
OF_WEIGHT = ("weight_scale_inv", "weight_scale", "scale", "qscale_weight")
OF_EXPERTS = ("_scale_inv", "_scale")
ADVICE = "if transformers loads it and model.dequantize() works, convert the result of save_pretrained"
# entries that have one meaning for the tensors that they describe; those of GPTQ and AWQ have several
UNAMBIGUOUS: tuple[Entry, ...] = (
    {"quant_method": "fp8"},
    {"quant_method": "mxfp4"},
    {"quant_method": "modelopt", "quant_algo": "NVFP4"},
)
RENAMED = f"rename {KEY} in config.json to quantization, then "  # which mlx_lm 0.32 reads
OF_MLX = "mlx_lm.convert --hf-path {} --mlx-path OUT --dequantize writes floats, which fastq convert reads"


class Method(NamedTuple):
    """The way in which a quant_method stores weights."""

    ends: tuple[str, ...]  # ends of names by which a weight is found; the rest is the module
    options: Callable[[Entry], Any]  # parses its entry of config.json; raises ValueError if it can't be read
    # returns the weight to which a tensor of such a name belongs, if any
    weight: Callable[[ModelFolder, str, TensorSpec, Any], StoredWeight | None]
    parts: tuple[str, ...]  # ends of names that only parts of weights have


class StoredWeights(dict[str, StoredWeight]):
    """Quantized weights by module; `by_codes` has them by their codes, `parts` the names of all their tensors."""

    def __init__(self, weights: Iterable[StoredWeight] = ()) -> None:
        super().__init__({weight.module: weight for weight in weights})
        self.by_codes = {weight.codes.name: weight for weight in self.values()}
        self.parts = {spec.name for weight in self.values() for spec in weight.found.values()}


def stored_weights(source: ModelFolder) -> StoredWeights:
    """Return the quantized weights of a model; raise ValueError if they are not stored as config.json says."""
    entry = source.quantization
    if not entry:
        raise ValueError(f"its config.json has no {KEY}: nothing in it is quantized")
    method = _method_of(source, entry)
    if method not in METHODS:
        advice = ADVICE
        if method == MLX:
            renamed = "" if "quantization" in source.config else RENAMED
            advice = f"{renamed}{OF_MLX.format(shlex.quote(str(source.path)))}"
        raise ValueError(f"its {KEY} is of {shown(method)}; known are {', '.join(METHODS)}: {advice}")
    check_undone(entry)
    row = METHODS[method]
    found = StoredWeights(_weights(source, row, row.options(entry)))
    for name, spec in source.tensors.items():
        if name in found.parts:
            continue
        if name.endswith((*row.parts, "pre_quant_scale")):
            raise ValueError(f"{name} in {source.files[name]} is not part of a weight that fastq knows")
        if spec.dtype in CODES and len(spec.shape) > 1 and not name.endswith(OF_EXPERTS):
            raise ValueError(f"{name} in {source.files[name]} is {spec.dtype} and has no scale")
    for weight in quantized_elsewhere(spec for name, spec in source.tensors.items() if name not in found.parts):
        raise ValueError(f"{weight} in {source.files[weight.codes.name]} is not stored as {method} does")
    if not found and not entry.get("kv_cache_scheme"):
        raise ValueError(f"nothing in it is quantized, although it has a {KEY}: no tensor is named {row.parts[0]}")
    return found


def check_floats(source: ModelFolder) -> None:
    """Raise ValueError if weights of a model are codes that its config.json does not describe."""
    elsewhere = quantized_elsewhere(source.tensors.values())
    if not elsewhere:
        return
    entry = next((each for each in UNAMBIGUOUS if _describes(each, source, elsewhere)), None)
    way = "the config.json of its makers has one"
    if entry is not None:
        way = f'"{KEY}": {json.dumps(entry)} in it would, as the names of its scales say'
    raise ValueError(f"it has {told_of(elsewhere)}, and its config.json has no {KEY} that describes them; {way}")


def _describes(entry: Entry, source: ModelFolder, elsewhere: list[QuantizedElsewhere]) -> bool:
    """Return whether all codes of a model and their parameters are read by a quantization_config."""
    row = METHODS[str(entry["quant_method"])]
    try:
        found = StoredWeights(_weights(source, row, row.options(entry)))
    except ValueError:
        return False
    return parts_of_weights(elsewhere).keys() <= found.parts


def _method_of(source: ModelFolder, entry: Entry) -> str:
    """Return the quant_method of an entry; that of MLX names none, and has its own words of uint32."""
    if named := entry.get("quant_method"):
        return str(named)
    if "config_groups" in entry:
        return METHOD
    of_mlx = any(each.codes.dtype == "U32" for each in quantized_elsewhere(source.tensors.values()))
    return MLX if of_mlx else "no quant_method"


def _weights(source: ModelFolder, row: Method, options: Any) -> Iterator[StoredWeight]:
    for name, spec in source.tensors.items():
        end = next((end for end in row.ends if name.endswith(end)), None)
        if end is None:
            continue
        module = name.removesuffix(end)
        with naming(lambda error: f"{module} in {source.files[name]}: {error}"):  # noqa: B023 (called at once)
            weight = row.weight(source, module, spec, options)
        if weight is not None:
            yield weight


# --- compressed-tensors -----------------------------------------------------------------------------------------------


def _compressed(source: ModelFolder, module: str, spec: TensorSpec, schemes: StoredSchemes) -> StoredWeight:
    scheme = schemes.scheme_of(module)
    tensors = source.tensors
    found = {end: tensors[f"{module}.{end}"] for end in SUFFIXES if f"{module}.{end}" in tensors}
    form = form_of(scheme, (1, 1), "")
    if form.codes not in found:
        raise ValueError(f"it has no {form.codes}, which {scheme.format} stores")
    codes = shape = found[form.codes].shape
    if scheme.format == WORDS:  # a file can say anything
        if "weight_shape" not in found or found["weight_shape"].dtype not in ("I64", "I32"):
            raise ValueError("it has no weight_shape of integers")
        shape = tuple(map(int, source.load(found["weight_shape"].name).reshape(-1)))
    elif len(codes) == 2 and form.packing:
        shape = codes[0], codes[1] * 8 // scheme.weights.bits
    if len(shape) != 2 or min(shape) < 1 or len(codes) != 2:
        raise ValueError(f"it has shape {shape} and is not a matrix")
    matrix = shape[0], shape[1]
    scheme = _as_zero_points_say(source, found, matrix, scheme)
    order = None
    if f"{module}.{ORDER}" in tensors:
        found[ORDER] = tensors[f"{module}.{ORDER}"]
        order = _order(source.load(found[ORDER].name), matrix[1])
    return _weight(source, module, found, matrix, scheme, name=f"{module}.weight", shape=matrix, order=order)


def _weight(
    source: ModelFolder, module: str, found: Found, matrix: Pair, scheme: LayerScheme, **more: Any
) -> StoredWeight:
    """Return a weight if its tensors have the dtypes and shapes of a scheme; else raise ValueError."""
    dtype = found["weight_scale"].dtype
    form = form_of(scheme, matrix, dtype if dtype in SCALES else "F32")
    specs = {end: spec_of(f"{module}.{end}", *each) for end, each in form.specs().items()}
    for end, spec in specs.items():
        held = found.get(end)
        if end == "weight_scale" and "scale_rows" in more:
            spec = spec_of(spec.name, spec.dtype, (int(more["scale_rows"][-1]) + 1, spec.shape[1]))
        if held is None or not _fits(held, spec, form if end == ZERO_POINT else None):
            text = "nothing" if held is None else f"{held.dtype} of shape {held.shape}"
            raise ValueError(f"{(held or spec).name!r} should be {spec.dtype} of shape {spec.shape}, not {text}")
    surplus = next((end for end in found if end not in (*specs, ZERO_POINT, ORDER)), None)
    if surplus is not None:
        raise ValueError(f"it has a {surplus}, which {scheme.weights} in {scheme.format} does not store")
    about: dict[str, Any] = {"source": source, "module": module, "matrix": matrix, "found": found, **more}
    about |= {"label": str(scheme.weights), "block_rows": (*scheme.weights.block, 1)[0]}
    return encoding.CompressedWeight(**about, codes=found[form.codes], scheme=scheme, specs=specs)


def _fits(spec: TensorSpec, wanted: TensorSpec, of_zero_points: StoredForm | None) -> bool:
    """Return whether a tensor is as expected; axes of one element don't matter, and experts are one below the other."""
    if of_zero_points and spec.dtype in INTEGERS and spec.size == math.prod(of_zero_points.stored_parameter_shape):
        return True
    same, other = ([n for n in shape if n != 1] for shape in (spec.shape, wanted.shape))
    stacked = len(spec.shape) > 2 and spec.size == wanted.size
    return (spec.dtype == wanted.dtype or (spec.dtype, wanted.dtype) in CASTS) and (same == other or stacked)


def _as_zero_points_say(source: ModelFolder, found: Found, matrix: Pair, scheme: LayerScheme) -> LayerScheme:
    """Return the scheme of a weight: symmetric if it has no zero points, or zeros from older writers."""
    weights = scheme.weights
    plain = replace(scheme, weights=replace(weights, symmetric=True))
    if ZERO_POINT not in found:
        return plain
    if weights.symmetric:
        form = form_of(replace(scheme, weights=replace(weights, symmetric=False)), matrix, "F32")
        if form.zero_points(source.load(found[ZERO_POINT].name)).astype(np.float32).any():
            raise ValueError(f"it has a {ZERO_POINT} with numbers other than 0, which {weights} does not store")
        return plain
    return scheme


def _order(groups: Array, columns: int) -> NDArray[np.intp] | None:
    """Return the columns in the order of their groups; None if that is their own order, or is not stored."""
    if groups.shape != (columns,) or groups.dtype.kind != "i":
        raise ValueError(f"it has groups of columns of shape {groups.shape}, not integers of shape {(columns,)}")
    if (groups < 0).any() or (np.diff(groups) >= 0).all():  # -1: the initial value, without an order
        return None
    return np.argsort(groups, kind="stable")


# --- float8 with scales of blocks, as in DeepSeek, Qwen and others, and float4 in bytes --------------------------


def _float8(source: ModelFolder, module: str, spec: TensorSpec, entry: Entry) -> StoredWeight | None:
    """Return a weight of float8, or of float4 in bytes: one matrix, or the matrices of experts in one tensor."""
    names = [f"{module}.{end}" for end in OF_WEIGHT] if module != spec.name else [module + end for end in OF_EXPERTS]
    scale = next((source.tensors[each] for each in names if each in source.tensors), None)
    if scale is None or spec.dtype not in (*CODES, "U8"):
        return None
    factor = source.tensors.get(f"{module}.{RECIPROCAL}")
    is_float4 = spec.dtype in ("I8", "U8")
    if len(spec.shape) not in (2, 3) or not spec.size or not (is_float4 or spec.dtype == "F8_E4M3"):
        raise ValueError(f"it is {spec.dtype} of shape {spec.shape}, not float8_e4m3fn of 2 or 3 dimensions")
    *outer, rows, columns = spec.shape
    experts = math.prod(outer)
    columns = columns * 2 if is_float4 else columns
    of_each = scale.shape[1:] if outer and scale.shape[:1] == (experts,) else scale.shape
    block = _block((rows, columns), of_each, experts, {} if is_float4 else entry)
    matrix = (experts * rows, columns)
    more = {}
    if experts > 1 and rows % block[0]:  # the last block of each matrix is cut off
        piece = math.gcd(rows, block[0])
        blocks = -(-rows // block[0])
        of_pieces = np.add.outer(np.arange(experts) * blocks, np.arange(0, rows, piece) // block[0])
        more["scale_rows"], block = of_pieces.reshape(-1), (piece, block[1])
    weights = WeightScheme(8, "float", "block", block=block)  # the name in compressed-tensors
    if block == matrix:
        weights = WeightScheme(8, "float", "tensor")
    elif block == (1, columns):
        weights = WeightScheme(8, "float", "channel")
    elif block[0] == 1:
        weights = WeightScheme(8, "float", "group", block[1])
    scheme = LayerScheme("", weights, "float-quantized")
    if is_float4:
        scheme = PRESETS["MXFP4A16" if factor is None else "NVFP4A16"]
        if block != (1, scheme.weights.group_size):
            wanted = f"1 x {scheme.weights.group_size}"
            raise ValueError(f"it is {spec.dtype} with scales of {block[0]} x {block[1]}: float4 needs {wanted}")
    elif weights.group_size == 32 and scale.dtype in (POWERS, "U8"):
        scheme = PRESETS["MXFP8A16"]
    found = {form_of(scheme, matrix, "").codes: spec, "weight_scale": scale}
    found |= {"weight_global_scale": factor} if factor is not None else {}
    return _weight(source, module, found, matrix, scheme, name=spec.name, shape=(*outer, rows, columns), **more)


def _block(matrix: Pair, scale: tuple[int, ...], experts: int, entry: Entry) -> Pair:
    """Return the rows and columns of a block that shares a scale: from config.json, or by cutting a matrix evenly."""
    if len(scale) == 4 and scale[1] == scale[3] == 1:  # blocks of modelopt
        scale = scale[::2]
    grid, (rows, columns), named = (*scale, 1, 1)[:2], matrix, entry.get("weight_block_size")
    is_named = isinstance(named, list) and len(named) == 2 and all(type(n) is int and n > 0 for n in named)
    blocks: Any = named if is_named else BLOCK if entry.get("quant_method") == "fp8" else matrix
    height, width = blocks
    needed = -(-rows // height), -(-columns // width)
    if len(scale) > 2 or any(n < 1 for n in grid):
        raise ValueError(f"it has scales of shape {scale}, which do not cut {rows} x {columns} into blocks")
    # transformers has one scale for each half of such rows
    if needed[0] == 1 and grid == (2, needed[1]) and rows % 2 == 0:
        return rows // 2, width
    if grid == needed and (grid != (1, 1) or (is_named and experts == 1)):
        return height if experts == 1 else min(rows, height), width
    told = is_named and grid[0] != rows and grid != (1, 1)  # scales of rows, or a single scale, need no entry
    if told or rows % grid[0] or columns % grid[1]:
        wanted = f" of {height} x {width}" if told else ""
        raise ValueError(f"it has scales of shape {scale}, which do not cut {rows} x {columns} into blocks{wanted}")
    return rows // grid[0], columns // grid[1]


IN_BLOCKS = "FP8_PB_WO"  # modelopt's name of float8 in blocks
MODELOPT = ("FP8", "NVFP4", "W4A16_NVFP4", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", IN_BLOCKS)


def _of_modelopt(entry: Entry) -> Entry:
    part = entry.get("quantization")
    part = part if isinstance(part, dict) else entry
    layers = part.get("quantized_layers") if part.get("quant_algo") == "MIXED_PRECISION" else None
    each = layers.values() if isinstance(layers, dict) else [part]
    names = [one.get("quant_algo") if isinstance(one, dict) else one for one in each]
    algorithms = {str(name) for name in names if name is not None or layers is None}  # of layers that are left alone
    for other in sorted(algorithms - {*MODELOPT}):
        raise ValueError(f"its {KEY} is of modelopt's {other!r}; only {', '.join(MODELOPT)} are read")
    return {"weight_block_size": list(BLOCK)} if IN_BLOCKS in algorithms else {}


# --- float4 of gpt-oss: blocks of 32 in 16 bytes, experts as (inputs, outputs) ----------------------------------------


def _mxfp4(source: ModelFolder, module: str, spec: TensorSpec, entry: Entry) -> StoredWeight:
    scale = source.tensors.get(f"{module}_scales")
    if scale is None or spec.dtype != "U8" or len(spec.shape) != 4 or spec.shape != (*scale.shape, 16):
        held = "no scales" if scale is None else f"scales of shape {scale.shape}"
        raise ValueError(f"its blocks are {spec.dtype} of shape {spec.shape}, with {held}")
    experts, rows, blocks, _ = spec.shape
    found = {"weight_packed": spec, "weight_scale": scale}
    matrix = (experts * rows, blocks * 32)
    more = {"name": module, "shape": (experts, blocks * 32, rows), "is_transposed": True}
    return _weight(source, module, found, matrix, PRESETS["MXFP4A16"], **more)


# --- AWQ and GPTQ -----------------------------------------------------------------------------------------------------

OWN_PACKINGS = "", "exllamav2", "triton", "tritonv2"  # of auto-round, as it calls them after its own name


OWN_WIDTHS = "dynamic", "extra_config"  # keys by which modules have widths of their own


class _Words(NamedTuple):
    """The layout of words of codes, and what quantization_config says of all modules."""

    layout: str
    group_size: Any
    bits: Any = None  # None where modules may have widths of their own


def _of_awq(entry: Entry) -> _Words:
    """Return the layout and the size of groups."""
    version = str(entry.get("version") or entry.get("format") or entry.get("checkpoint_format") or "gemm").lower()
    version = "llm-awq" if entry.get("backend") == "llm-awq" else version
    bits = entry.get("bits") or entry.get("w_bit") or 4
    if version != "gemm" or bits != 4:
        raise ValueError(f"its {KEY} is of AWQ's {version!r} with {bits!r} bits; only 'gemm' with 4 is read")
    return _Words("awq", entry.get("group_size") or entry.get("q_group_size"), bits)


def _of_gptq(entry: Entry) -> _Words:
    version = str(entry.get("checkpoint_format") or entry.get("format") or "gptq").lower()
    if version not in ("gptq", "gptq_v2") or entry.get("is_marlin_format"):
        found = "marlin" if entry.get("is_marlin_format") else version
        raise ValueError(f"its {KEY} is of GPTQ's {found!r}; only 'gptq' and 'gptq_v2' are read")
    bits = None if any(entry.get(key) for key in OWN_WIDTHS) else entry.get("bits")
    return _Words(version, entry.get("group_size"), bits)


def _of_auto_round(entry: Entry) -> _Words:
    packing = str(entry.get("packing_format") or entry.get("backend") or "auto_round:gptq").lower()
    told = {key: entry[key] for key in ("bits", "group_size", *OWN_WIDTHS) if key in entry}
    if "gptqmodel" in packing or packing.removeprefix("auto_round").lstrip(":") in OWN_PACKINGS:
        return _of_gptq(told | {"format": "gptq_v2"})  # with zero points as they are
    if "gptq" in packing:
        return _of_gptq(told)
    if "awq" in packing:
        return _of_awq(told)
    raise ValueError(f"its {KEY} is of auto-round's {packing!r}; only layouts of gptq and awq are read")


def _packed(source: ModelFolder, module: str, spec: TensorSpec, options: _Words) -> StoredWeight:
    """Return a weight in a layout; its zero points tell its width, which may differ between modules."""
    layout, group_size, told = options
    needed = ("qweight", "qzeros", "scales")
    is_awq = layout == "awq"
    names = {end: f"{module}.{end}" for end in (needed if is_awq else (*needed, "g_idx"))}
    found = {end: source.tensors[name] for end, name in names.items() if name in source.tensors}
    for end in needed:
        if end not in found or len(found[end].shape) != 2 or not found[end].size:
            held = f"of shape {found[end].shape}" if end in found else "missing"
            raise ValueError(f"{module}.{end} must be a matrix; it is {held}")
    zeros, (groups, outputs) = found["qzeros"].shape, found["scales"].shape
    bits = zeros[1] * 32 // outputs
    if bits not in ((4,) if is_awq else (2, 3, 4, 8)):
        raise ValueError(f"its qzeros of shape {zeros} are for {bits} bits, which {layout} does not have")
    if told is not None and told != bits:
        raise ValueError(f"its qzeros of shape {zeros} are for {bits} bits, but {KEY} has bits {told!r}: one is wrong")
    columns = spec.shape[0] if is_awq else spec.shape[0] * 32 // bits
    if (rows := spec.shape[1] * 32 // bits if is_awq else spec.shape[1]) != outputs:
        raise ValueError(f"its qweight of shape {spec.shape} has {rows} outputs in {layout}, its scales have {outputs}")
    size = group_size if type(group_size) is int and group_size > 0 and -(-columns // group_size) == groups else 0
    order = _order(source.load(found["g_idx"].name), columns) if "g_idx" in found else None
    about: dict[str, Any] = {"source": source, "module": module, "name": f"{module}.weight", "found": found}
    matrix = outputs, columns
    about |= {"shape": matrix, "matrix": matrix, "codes": spec, "order": order, "label": f"uint{bits} of {layout}"}
    return encoding.PackedWeight(**about, layout=layout, bits=bits, block_size=size)


_PARTS = tuple(f".{end}" for end in ("weight_scale", *SUFFIXES[1:], ORDER))
_COMPRESSED = Method((".weight_scale",), lambda entry: StoredSchemes({KEY: entry}), _compressed, _PARTS)
_OF_LAYOUTS = ".qweight", ".qzeros", ".scales", ".g_idx"
_FLOAT8 = (".weight", ""), lambda entry: entry, _float8
_MODELOPT = Method((".weight", ""), _of_modelopt, _float8, (".weight_scale", f".{RECIPROCAL}"))
# by quant_method
METHODS = {
    METHOD: _COMPRESSED,
    "sparseml": _COMPRESSED,  # the name that the first writers of compressed-tensors used
    "fp8": Method(*_FLOAT8, ("_scale_inv", ".qscale_weight")),
    "fbgemm_fp8": Method(*_FLOAT8, (".weight_scale",)),
    "mxfp8": Method(*_FLOAT8, ("_scale_inv",)),
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed"), _MODELOPT),
    "mxfp4": Method(("_blocks",), lambda entry: entry, _mxfp4, ("_blocks", "_scales")),
    "awq": Method((".qweight",), _of_awq, _packed, _OF_LAYOUTS),
    "gptq": Method((".qweight",), _of_gptq, _packed, _OF_LAYOUTS),
    **dict.fromkeys(("auto-round", "intel/auto-round"), Method((".qweight",), _of_auto_round, _packed, _OF_LAYOUTS)),
}
