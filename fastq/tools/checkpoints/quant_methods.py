"""The quantized weights of a model, found by the names of their stored tensors: a row for each quant_method."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastq.system.arguments import shown
from fastq.tools.checkpoints import float8_weights, gptq_awq_weights
from fastq.tools.checkpoints.compressed_weights import compressed_weight
from fastq.tools.checkpoints.config_json import KEY, MLX
from fastq.tools.checkpoints.float8_weights import CODES, SCALES_OF_EXPERTS, float8_weight, mxfp4_weight
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.gptq_awq_weights import packed_weight
from fastq.tools.checkpoints.mlx_weights import mlx_options, mlx_weight
from fastq.tools.checkpoints.quantization_config import METHOD, StoredSchemes, check_undone
from fastq.tools.checkpoints.stored_weights import ORDER, RECIPROCAL, SUFFIXES, StoredWeight
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.quantized_elsewhere import (
    QuantizedElsewhere,
    parts_of_weights,
    quantized_elsewhere,
    weights_text,
)
from fastq.tools.files.tensor_specs import TensorSpec

Entry = Mapping[str, Any]  # the quantization_config
ADVICE = "if transformers loads it and model.dequantize() works, convert the result of save_pretrained"
# entries that have one meaning for the tensors that they describe; those of GPTQ and AWQ have several
UNAMBIGUOUS: tuple[Entry, ...] = (
    {"quant_method": "fp8"},
    {"quant_method": "mxfp4"},
    {"quant_method": "modelopt", "quant_algo": "NVFP4"},
)


@dataclass(frozen=True, kw_only=True)
class Method:
    """The way in which a quant_method stores weights."""

    ends: tuple[str, ...]  # ends of names by which a weight is found; the rest is the module
    read_options: Callable[[Entry], Any]  # reads its entry of config.json; raises ValueError if it can't be read
    # returns the weight to which a tensor of such a name belongs, if any
    read_weight: Callable[[ModelFolder, str, TensorSpec, Any], StoredWeight | None]
    parts: tuple[str, ...]  # ends of names that only parts of weights have


class StoredWeights(dict[str, StoredWeight]):
    """Quantized weights by module; `by_codes` has them by the names of their codes, `parts` lists all their tensors."""

    def __init__(self, weights: Iterable[StoredWeight] = ()) -> None:
        super().__init__({weight.module: weight for weight in weights})
        self.by_codes = {weight.codes.name: weight for weight in self.values()}
        self.parts = {spec.name for weight in self.values() for spec in weight.roles.values()}


def stored_weights(source: ModelFolder) -> StoredWeights:
    """Return the quantized weights of a model; raise ValueError if they are not stored as config.json says.

    A tensor that looks like a part of a weight, and is in none, is an error, too: it would be copied as plain numbers.
    """
    entry = source.quantization
    if not entry:
        raise ValueError(f"its config.json has no {KEY}: nothing in it is quantized")
    name_of_method = _method_of(source, entry)
    if name_of_method not in METHODS:
        raise ValueError(f"its {KEY} is of {shown(name_of_method)}; known are {', '.join(METHODS)}: {ADVICE}")
    check_undone(entry)
    method = METHODS[name_of_method]
    weights = StoredWeights(_read_weights(source, method, method.read_options(entry)))
    for name, spec in source.tensors.items():
        if name in weights.parts:
            continue
        if name.endswith((*method.parts, "pre_quant_scale")):
            raise ValueError(f"{name} in {source.files[name]} is not part of a weight that fastq knows")
        if spec.dtype in CODES and len(spec.shape) > 1 and not name.endswith(SCALES_OF_EXPERTS):
            raise ValueError(f"{name} in {source.files[name]} is {spec.dtype} and has no scale")
    other_tensors = [spec for name, spec in source.tensors.items() if name not in weights.parts]
    for weight in quantized_elsewhere(other_tensors):  # the first one is enough
        raise ValueError(f"{weight} in {source.files[weight.codes.name]} is not stored as {name_of_method} does")
    if not weights and not entry.get("kv_cache_scheme"):  # else only keys and values are quantized
        raise ValueError(f"nothing in it is quantized, although it has a {KEY}: no tensor is named {method.parts[0]}")
    return weights


def check_floats(source: ModelFolder) -> None:
    """Raise ValueError if weights of a model are codes that its config.json does not describe."""
    elsewhere = quantized_elsewhere(source.tensors.values())
    if not elsewhere:
        return
    entry = next((entry for entry in UNAMBIGUOUS if _describes(entry, source, elsewhere)), None)
    advice = "the config.json of its makers has one"
    if entry is not None:
        advice = f'"{KEY}": {json.dumps(entry)} in it would, as the names of its scales say'
    raise ValueError(
        f"it has {weights_text(elsewhere)}, and its config.json has no {KEY} that describes them; {advice}"
    )


def _describes(entry: Entry, source: ModelFolder, elsewhere: list[QuantizedElsewhere]) -> bool:
    """Return whether a quantization_config describes all codes of a model and their parameters."""
    method = METHODS[str(entry["quant_method"])]
    try:
        weights = StoredWeights(_read_weights(source, method, method.read_options(entry)))
    except ValueError:
        return False
    return parts_of_weights(elsewhere).keys() <= weights.parts


def _method_of(source: ModelFolder, entry: Entry) -> str:
    """Return the quant_method of an entry. MLX names none, and is recognized by its words of uint32."""
    if name := entry.get("quant_method"):
        return str(name)
    if "config_groups" in entry:
        return METHOD
    is_mlx = any(weight.codes.dtype == "U32" for weight in quantized_elsewhere(source.tensors.values()))
    return MLX if is_mlx else "no quant_method"


def _read_weights(source: ModelFolder, method: Method, options: Any) -> Iterator[StoredWeight]:
    """Yield the weights of a model; an error names the module and its file.

    A method with the end "" is asked about every tensor, and returns None for those that are no codes.
    """
    for name, spec in source.tensors.items():
        end = next((end for end in method.ends if name.endswith(end)), None)
        if end is None:
            continue
        module = name.removesuffix(end)
        with naming(lambda error: f"{module} in {source.files[name]}: {error}"):  # noqa: B023 (called at once)
            weight = method.read_weight(source, module, spec, options)
        if weight is not None:
            yield weight


def _float8_method(read_block: Callable[[Entry], float8_weights.BlockRule], parts: tuple[str, ...]) -> Method:
    """Return a method of float8 with a rule for blocks; `parts` are ends of names that only its parts have."""
    return Method(ends=(".weight", ""), read_options=read_block, read_weight=float8_weight, parts=parts)


def _packed_method(read_options: Callable[[Entry], gptq_awq_weights.PackedOptions]) -> Method:
    """Return a method with the tensors of GPTQ or AWQ; `read_options` reads its entry of config.json."""
    return Method(
        ends=(".qweight",),
        read_options=read_options,
        read_weight=packed_weight,
        parts=(".qweight", ".qzeros", ".scales", ".g_idx"),
    )


_COMPRESSED_TENSORS = Method(
    ends=(".weight_scale",),
    read_options=lambda entry: StoredSchemes({KEY: entry}),
    read_weight=compressed_weight,
    parts=tuple(f".{end}" for end in ("weight_scale", *SUFFIXES[1:], ORDER)),
)
_MODELOPT = _float8_method(float8_weights.modelopt_block, parts=(".weight_scale", f".{RECIPROCAL}"))
_AUTO_ROUND = _packed_method(gptq_awq_weights.auto_round_options)
# by quant_method
METHODS = {
    METHOD: _COMPRESSED_TENSORS,
    "sparseml": _COMPRESSED_TENSORS,  # the name that the first writers of compressed-tensors used
    "fp8": _float8_method(float8_weights.named_or_default_block, parts=("_scale_inv", ".qscale_weight")),
    "fbgemm_fp8": _float8_method(float8_weights.named_block, parts=(".weight_scale",)),
    "mxfp8": _float8_method(float8_weights.named_block, parts=("_scale_inv",)),
    "modelopt": _MODELOPT,
    "modelopt_fp4": _MODELOPT,
    "modelopt_mixed": _MODELOPT,
    "mxfp4": Method(
        ends=("_blocks",), read_options=lambda entry: entry, read_weight=mxfp4_weight, parts=("_blocks", "_scales")
    ),
    MLX: Method(
        ends=(".weight",),
        read_options=mlx_options,
        read_weight=mlx_weight,
        parts=(".scales", ".biases", ".global_scale"),
    ),
    "awq": _packed_method(gptq_awq_weights.awq_options),
    "gptq": _packed_method(gptq_awq_weights.gptq_options),
    "auto-round": _AUTO_ROUND,
    "intel/auto-round": _AUTO_ROUND,
}
