"""Recognize codes of other writers, such as GPTQ, AWQ, MLX and bitsandbytes, by the names and dtypes of their tensors.

No config.json is needed, so that such codes are not taken for plain numbers anywhere. They are only recognized here;
fastq/tools/checkpoints/quant_methods.py lists what reads them, given a config.json that describes them.

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
# ends of names of the parameters that codes need to have values: scales, and tables of values
SCALES_AND_TABLES = (
    r"(?:weight_|nested_|double_|global_|block_|channel_|per_tensor_|q_)?scales?(?:_inv|_2|_max|_and_zeros?|_weight)?|"
    r"per_channel_scale|(?:weights?_)?scaling_factor|qscale(?:_weight)?|wscale|absmax|amax|scb|codebooks?|"
    r"centroids(?:\.weight)?|tables2?|suh|t?lut\d*|lookup_table|s"
)
# ends of names of their other parameters
OTHER_PARAMETERS = (
    r"q?zeros?|zero_points?|q?biases|shift|shape|g_idx|perm|invperm|q_perm|q_invperm|q_groups|nested_absmax|quant_map|"
    r"nested_quant_map|quant_state|bitsandbytes|nf4|fp4|weight_format|comfy_quant|svh|s[uv]|meta|nbits|group_size|"
    r"act_pre_scale|(?:input|output|act|activation|smooth)_scale|"
    r"(?:activation|prequant)_scaling_factor|scale_input|res_centroids|res_indices|weight_bias|tune_metadata"
)
# modules of a layer that hold parameters: Model Optimizer, Quark, Brevitas, PyTorch's quantization-aware training
HOLDERS = r"\w*quantizer|(?:\w*_)?fake_quant|(?:weight_|quant_?|q_?)params"
_SEPARATOR = r"(?:^|[._:/]+)"  # what separates words
# the words of quantization at the end of a name: ".weight_scale" of "layers.0.up_proj.weight_scale"
_WORDS_AT_END = re.compile(
    rf"(?:{_SEPARATOR}(?:{CODES}|{SCALES_AND_TABLES}|{OTHER_PARAMETERS}|{HOLDERS}))+$", re.IGNORECASE
)
# names, or these words, that end as those of scales and tables, and as those of any parameters
_SCALE_OR_TABLE = re.compile(rf"(?:.*{_SEPARATOR})?(?:{SCALES_AND_TABLES})$", re.IGNORECASE)
_PARAMETER = re.compile(rf"(?:.*{_SEPARATOR})?(?:{SCALES_AND_TABLES}|{OTHER_PARAMETERS})$", re.IGNORECASE)
# the same for the last words of names in any spelling, and for integers that are numbers of themselves
_LIKE_SCALE = re.compile(r".*(scal(e|ing)|absmax|amax|lut|table|codebook|centroid|zero)", re.IGNORECASE)
_LIKE_CODES = re.compile(rf"(.*_)?({CODES})", re.IGNORECASE)
_LIKE_ZERO_POINTS = re.compile(r"(.*_)?(zeros?|zero_points?|zp)", re.IGNORECASE)
_NOT_CODES = re.compile(r"(.*_)?(bias|mask|ids?|index|indices|positions?|labels?|types?)", re.IGNORECASE)
NARROW_FLOATS = "F8_", "F6_", "F4"  # starts of dtypes that hold codes, or values of themselves
_INTEGERS = {"I8", "U8", "I16", "U16", "I32", "U32", "I64", "uint16", "uint32"}
# integers that are codes whatever their names are: indices of positions and masks have wide integers
_NARROW_INTEGERS = {"I8", "U8"}


class QuantizedElsewhere(NamedTuple):
    """A weight that another program quantized."""

    codes: TensorSpec
    parameters: tuple[str, ...]  # names of its other tensors

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all its tensors."""
        return (self.codes.name, *self.parameters)

    def __str__(self) -> str:
        return f"{self.codes.name} ({self.codes.dtype}, with {some_of(self.parameters)})"


def is_narrow(spec: TensorSpec) -> bool:
    """Return whether a tensor has floats of 8 bits or fewer, which may be codes or values of their own."""
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
    """Find weights that another program quantized: codes next to their scales.

    They are found by the words of quantization in names; where a program has other words, by dtypes within a module. An
    empty list means that the integers and narrow floats among the tensors are plain numbers.
    """
    tensors = list(tensors)
    weights = _weights_by_words(tensors)
    found = set(parts_of_weights(weights))
    modules: dict[str, list[TensorSpec]] = {}
    for spec in tensors:
        modules.setdefault(spec.name.rpartition(".")[0], []).append(spec)
    modules.pop("", None)  # names without a module say nothing of what belongs together
    for specs in modules.values():
        weight = _weight_in_module([spec for spec in specs if spec.name not in found])
        if weight is not None:
            weights.append(weight)
    return [_with_floats_beside(weight, modules) for weight in weights]


def _weights_by_words(tensors: Iterable[TensorSpec]) -> list[QuantizedElsewhere]:
    """Return the weights whose tensors have names of one layer before the words of quantization.

    "up_proj.qweight" and "up_proj.weight.absmax" are of "up_proj", with the words ".qweight" and ".weight.absmax".
    """
    layers: dict[str, list[tuple[TensorSpec, str]]] = {}
    for spec in tensors:
        end = _WORDS_AT_END.search(spec.name)
        layer = spec.name if end is None else spec.name[: end.start()]
        words = "" if end is None else end[0]
        layers.setdefault(layer, []).append((spec, words))
    weights = []
    for tensors_of_layer in layers.values():
        codes = [spec for spec, words in tensors_of_layer if _are_codes(spec, words)]
        parameters = [spec for spec, words in tensors_of_layer if _PARAMETER.match(words)]
        if codes and any(_SCALE_OR_TABLE.match(spec.name) for spec in parameters):
            weights.append(_weight_of(codes, parameters))
    return weights


def _weight_of(codes: list[TensorSpec], parameters: list[TensorSpec]) -> QuantizedElsewhere:
    """Return a weight that is named for the first of its codes; further codes of the layer count as parameters."""
    first, *other_codes = codes
    return QuantizedElsewhere(codes=first, parameters=tuple(spec.name for spec in (*other_codes, *parameters)))


def _weight_in_module(specs: Iterable[TensorSpec]) -> QuantizedElsewhere | None:
    """Return the weight among the tensors of one module, by their dtypes; None without codes.

    Narrow integers called weight, or the like, are codes beside any float; others need a scale or a table.
    """
    codes = []
    parameters = []
    for spec in specs:
        word = _last_word(spec)
        if _is_float(spec) or _LIKE_ZERO_POINTS.fullmatch(word):
            if not _is_bias(word):
                parameters.append(spec)
        elif _are_integer_codes(spec, word):
            codes.append(spec)
    words_of_floats = [_last_word(spec) for spec in parameters if _is_float(spec)]
    are_named_codes = any(_LIKE_CODES.fullmatch(_last_word(spec)) for spec in codes)
    has_scale = any(map(_LIKE_SCALE.match, words_of_floats))
    is_weight = codes and words_of_floats and (are_named_codes or has_scale)
    return _weight_of(codes, parameters) if is_weight else None


def _with_floats_beside(weight: QuantizedElsewhere, modules: Mapping[str, list[TensorSpec]]) -> QuantizedElsewhere:
    """Return a weight with the other floats of its module, except biases, or of its layer if that is a part of one.

    Programs have names for parameters that are not listed here, and copied as weights they would be wrong. A layer is a
    part of a module that has several weights, as "experts.gate_up_proj_blocks" and "experts.down_proj_blocks".
    """
    module = weight.codes.name.rpartition(".")[0]
    layer = _WORDS_AT_END.sub("", weight.codes.name)
    parameters = list(weight.parameters)
    for spec in modules.get(module, ()):
        is_of_layer = layer == module or re.match(r"[._:/]", spec.name.removeprefix(layer))
        if _is_float(spec) and spec.name not in weight.names and is_of_layer and not _is_bias(spec.name):
            parameters.append(spec.name)
    return QuantizedElsewhere(codes=weight.codes, parameters=tuple(parameters))


def _last_word(spec: TensorSpec) -> str:
    """Return the name of a tensor without that of its module."""
    return spec.name.rpartition(".")[2]


def _are_integer_codes(spec: TensorSpec, word: str) -> bool:
    """Return whether a tensor whose last word is known has integers that can be codes."""
    if len(spec.shape) < 2 or not spec.size or spec.dtype not in _INTEGERS or _NOT_CODES.fullmatch(word):
        return False
    return spec.dtype in _NARROW_INTEGERS or _LIKE_CODES.fullmatch(word) is not None


def _is_float(spec: TensorSpec) -> bool:
    """Return whether a tensor has floats of any width."""
    return spec.dtype.startswith(("F", "BF"))


def _is_bias(name: str) -> bool:
    """Return whether a name ends as that of a bias."""
    return re.fullmatch(r"(.*[._])?bias", name, re.IGNORECASE) is not None


def _are_codes(spec: TensorSpec, words: str) -> bool:
    """Return whether a tensor can be codes; `words` are the words of quantization at the end of its name, or empty.

    Without such words only narrow numbers can be: others are indices, masks or weights.
    """
    if not (spec.shape and spec.size):
        return False
    if not words:
        return is_narrow(spec) or (spec.dtype in _NARROW_INTEGERS and len(spec.shape) > 1)
    return not _PARAMETER.match(words) and (is_narrow(spec) or spec.dtype in _INTEGERS)


def weights_text(weights: Sequence[QuantizedElsewhere]) -> str:
    """Return a text with the number of some weights and the names of the first ones."""
    return f"{count_text(len(weights), 'weight')} quantized by another program: {some_of([*map(str, weights)])}"


def parts_of_weights(weights: Iterable[QuantizedElsewhere]) -> Mapping[str, str]:
    """Return the name of the codes for each tensor of some weights."""
    return {name: weight.codes.name for weight in weights for name in weight.names}
