"""Codes that other programs quantized, known by the names and dtypes of tensors next to each other.

Every program stores a quantized weight as codes, whose numbers mean nothing alone, and as parameters: scales, zero
points, tables. Their names begin with the name of the layer and end in words of quantization. So codes are tensors of
integers or of narrow floats with a scale or a table of the same layer. Floats without codes are weights, whatever their
names: scales of layers, `logit_scale`, `scale` of a norm. All other floats of a module with codes belong to the codes,
except biases: programs find new names for parameters all the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fastq.tools.files.tensor_specs import TensorSpec
from fastq.tools.files.texts import count_text, some_of

# ends of names of codes: MLX, GPTQ, AWQ, compressed-tensors, torchao, bitsandbytes, quanto, HQQ, gpt-oss, exllama,
# AQLM, VPTQ, QuIP#, QTIP, SqueezeLLM, FP-Quant, Flax, Marlin; parameters also those of TensorRT-LLM
CODES = (
    r"d?q?weights?|q_weight|weight_q|W_q|kernel|packed|q?data|blocks|codes|quantized|dense_weights|trellis|indices|"
    r"qidxs|B"
)
# ends of names without which no codes have values: scales, and tables of values
NEEDED = (
    r"(?:weight_|nested_|double_|global_|block_|channel_|per_tensor_|q_)?scales?(?:_inv|_2|_max|_and_zeros?|_weight)?|"
    r"per_channel_scale|(?:weights?_)?scaling_factor|qscale(?:_weight)?|wscale|absmax|amax|scb|codebooks?|"
    r"centroids(?:\.weight)?|tables2?|suh|t?lut\d*|lookup_table|s"
)
# ends of names of their other parameters
OTHERS = (
    r"q?zeros?|zero_points?|q?biases|shift|shape|g_idx|perm|invperm|q_perm|q_invperm|q_groups|nested_absmax|quant_map|"
    r"nested_quant_map|quant_state|bitsandbytes|nf4|fp4|weight_format|comfy_quant|svh|s[uv]|meta|nbits|group_size|"
    r"act_pre_scale|(?:input|output|act|activation|smooth)_scale|"
    r"(?:activation|prequant)_scaling_factor|scale_input|res_centroids|res_indices|weight_bias|tune_metadata"
)
# modules of a layer that hold parameters: Model Optimizer, Quark, Brevitas, PyTorch's quantization-aware training
HOLDERS = r"\w*quantizer|(?:\w*_)?fake_quant|(?:weight_|quant_?|q_?)params"
_JOINED = r"(?:^|[._:/]+)"  # what separates words
_END = re.compile(rf"(?:{_JOINED}(?:{CODES}|{NEEDED}|{OTHERS}|{HOLDERS}))+$", re.IGNORECASE)
_NEEDED = re.compile(rf"(?:.*{_JOINED})?(?:{NEEDED})$", re.IGNORECASE)
_PARAMETER = re.compile(rf"(?:.*{_JOINED})?(?:{NEEDED}|{OTHERS})$", re.IGNORECASE)
# the same for the last words of names in any spelling, and for integers that are numbers of themselves
_SCALE = re.compile(r".*(scal(e|ing)|absmax|amax|lut|table|codebook|centroid|zero)", re.IGNORECASE)
_CODES = re.compile(rf"(.*_)?({CODES})", re.IGNORECASE)
_ZERO_POINTS = re.compile(r"(.*_)?(zeros?|zero_points?|zp)", re.IGNORECASE)
_NOT_CODES = re.compile(r"(.*_)?(bias|mask|ids?|index|indices|positions?|labels?|types?)", re.IGNORECASE)
NARROW_FLOATS = "F8_", "F6_", "F4"  # starts of dtypes that hold codes, or values of themselves
_INTEGERS = {"I8", "U8", "I16", "U16", "I32", "U32", "I64", "uint16", "uint32"}
# dtypes of codes whose names have no word of quantization: indices of positions and masks have wide integers
_UNNAMED = {"I8", "U8"}


class QuantizedElsewhere(NamedTuple):
    """A weight that another program quantized."""

    codes: TensorSpec
    parameters: tuple[str, ...]  # names of its other tensors

    def __str__(self) -> str:
        return f"{self.codes.name} ({self.codes.dtype}, with {some_of(self.parameters)})"


def is_narrow(spec: TensorSpec) -> bool:
    """Return whether a tensor has floats of 8 bits or fewer."""
    return spec.dtype.startswith(NARROW_FLOATS)


def line_on_narrow(specs: Iterable[TensorSpec], floats: Iterable[str]) -> str:
    """Return a line on floats that are too narrow to be quantized, next to the dtypes that are; empty without any."""
    narrow = [spec for spec in specs if is_narrow(spec) and len(spec.shape) > 1]
    if not narrow:
        return ""
    dtypes = ", ".join(sorted({spec.dtype for spec in narrow}))
    counted = count_text(len(narrow), "matrix")
    names = some_of([spec.name for spec in narrow])
    return f"copied as they are: {counted} of {dtypes}, not of {', '.join(floats)}: {names}"


def quantized_elsewhere(tensors: Iterable[TensorSpec]) -> list[QuantizedElsewhere]:
    """Find weights that another program quantized: codes next to their scales."""
    tensors = list(tensors)
    weights = _by_layers(tensors)
    taken = set(parts_of_weights(weights))
    modules: dict[str, list[TensorSpec]] = {}
    for spec in tensors:
        modules.setdefault(spec.name.rpartition(".")[0], []).append(spec)
    modules.pop("", None)  # names without a module say nothing of what belongs together
    for specs in modules.values():
        others = [spec for spec in specs if spec.name not in taken]
        first, parameters = _in_module(others)
        if first is not None:
            weights.append(QuantizedElsewhere(first, tuple(spec.name for spec in parameters)))
    return [_with_others(weight, modules) for weight in weights]


def _by_layers(tensors: Iterable[TensorSpec]) -> list[QuantizedElsewhere]:
    """Return the weights whose tensors have names of one layer before the words of quantization."""
    layers: dict[str, list[tuple[TensorSpec, str]]] = {}
    for spec in tensors:
        end = _END.search(spec.name)
        layer = spec.name if end is None else spec.name[: end.start()]
        word = "" if end is None else end[0]
        layers.setdefault(layer, []).append((spec, word))
    weights = []
    for tensors_of_layer in layers.values():
        codes = [spec for spec, word in tensors_of_layer if _are_codes(spec, word)]
        parameters = [spec for spec, word in tensors_of_layer if _PARAMETER.match(word)]
        if codes and any(_NEEDED.match(spec.name) for spec in parameters):
            first, *other_codes = codes
            names = tuple(spec.name for spec in (*other_codes, *parameters))
            weights.append(QuantizedElsewhere(codes=first, parameters=names))
    return weights


def _in_module(specs: Iterable[TensorSpec]) -> tuple[TensorSpec | None, list[TensorSpec]]:
    """Return codes among the tensors of one module, None without any, and the others of them.

    Narrow integers called weight, or the like, are codes beside any float; others need a scale or a table.
    """
    codes, parameters = [], []
    for spec in specs:
        word = _last_word(spec)
        if _is_float(spec) or _ZERO_POINTS.fullmatch(word):
            if not _is_bias(word):
                parameters.append(spec)
        elif _are_integer_codes(spec, word):
            codes.append(spec)
    floats = [_last_word(spec) for spec in parameters if _is_float(spec)]
    are_weights = any(_CODES.fullmatch(_last_word(spec)) for spec in codes)
    if not (codes and floats and (are_weights or any(map(_SCALE.match, floats)))):
        return None, []
    first, *others = codes
    return first, [*others, *parameters]


def _with_others(weight: QuantizedElsewhere, modules: Mapping[str, list[TensorSpec]]) -> QuantizedElsewhere:
    """Return a weight with the other floats of its module, except biases, or of its layer if that is a part of one."""
    module = weight.codes.name.rpartition(".")[0]
    layer = _END.sub("", weight.codes.name)
    named = (weight.codes.name, *weight.parameters)
    beside = [spec.name for spec in modules.get(module, ()) if _is_float(spec) and spec.name not in named]
    others = [name for name in beside if layer == module or re.match(r"[._:/]", name.removeprefix(layer))]
    parameters = (*weight.parameters, *(name for name in others if not _is_bias(name)))
    return QuantizedElsewhere(codes=weight.codes, parameters=parameters)


def _last_word(spec: TensorSpec) -> str:
    """Return the name of a tensor without that of its module."""
    return spec.name.rpartition(".")[2]


def _are_integer_codes(spec: TensorSpec, word: str) -> bool:
    """Return whether a tensor whose last word is known has integers that can be codes."""
    if len(spec.shape) < 2 or not spec.size or spec.dtype not in _INTEGERS or _NOT_CODES.fullmatch(word):
        return False
    return spec.dtype in _UNNAMED or _CODES.fullmatch(word) is not None


def _is_float(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("F", "BF"))


def _is_bias(name: str) -> bool:
    return re.fullmatch(r"(.*[._])?bias", name, re.IGNORECASE) is not None


def _are_codes(spec: TensorSpec, word: str) -> bool:
    """Return whether a tensor can be codes; `word` is the end of its name that consists of words of quantization."""
    if not (spec.shape and spec.size):
        return False
    if not word:
        return is_narrow(spec) or (spec.dtype in _UNNAMED and len(spec.shape) > 1)
    return not _PARAMETER.match(word) and (is_narrow(spec) or spec.dtype in _INTEGERS)


def weights_text(weights: Sequence[QuantizedElsewhere]) -> str:
    """Return a text with the number of some weights and the names of the first ones."""
    return f"{count_text(len(weights), 'weight')} quantized by another program: {some_of([*map(str, weights)])}"


def parts_of_weights(weights: Iterable[QuantizedElsewhere]) -> Mapping[str, str]:
    """Return the name of the codes for each tensor of some weights."""
    return {name: weight.codes.name for weight in weights for name in (weight.codes.name, *weight.parameters)}
