"""The quantization_config of config.json: written for a plan, and read from any compressed-tensors directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastq.system.arguments import shown
from fastq.tools.checkpoints.config_json import DTYPE_KEYS, KEY, LANGUAGE, OLD_KEY, entry_of
from fastq.tools.checkpoints.experts import EXPERT
from fastq.tools.checkpoints.fused_modules import fused_with
from fastq.tools.checkpoints.module_names import matches
from fastq.tools.checkpoints.rules import Plan, Rules
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, HEAD
from fastq.tools.files.patterns import check_pattern
from fastq.tools.files.tensor_specs import TensorSpec
from fastq.tools.layouts import schemes
from fastq.tools.layouts.schemes import E4M3, E8M0, FLOAT_CODES, PRESETS, LayerScheme, WeightScheme

METHOD = "compressed-tensors"
MIXED = "mixed-precision"
LINEAR = "Linear"
EXPERTS = r"re:(.*\.)?experts\.\d+\."
OFFLINE = {"weight_input", "weight_output"}  # transforms that are already applied to weights


def quantized_config(
    config: Mapping[str, Any], plan: Plan, rules: Rules, tensors: Mapping[str, TensorSpec]
) -> dict[str, Any]:
    """Return config.json of the quantized model."""
    targets: dict[LayerScheme, list[str]] = {}
    by_name = {matrix.module for matrix in plan.matrices if matrix.kind in (HEAD, EMBEDDING)}
    for matrix in plan.matrices:
        targets.setdefault(matrix.scheme, []).append(matrix.module)
    main = targets.pop(rules.scheme, [])
    groups = [(modules, scheme) for scheme, modules in targets.items()]  # readers try patterns in their own order
    named = [module for modules, _ in groups for module in modules]
    experts = any(map(EXPERT.fullmatch, main))
    # The general scheme names the class of layers, and the modules that are of another class or must be named: vLLM
    # looks up the class of a layer before the names of matrices that it reads as one, and transformers uses the first
    # group for experts unless a pattern names them.
    if any(fused_with(module) != module for module in named):
        general = [*[EXPERTS] * experts, *(each for each in main if not EXPERT.fullmatch(each))]
    else:
        others = [module for module in main if module in by_name]
        general = [LINEAR, *[EXPERTS] * bool(groups and experts), *others]
    groups += [(general, rules.scheme)] if main else []
    ignored = plan.ignored(tensors)
    ignored += [pattern for pattern in rules.ignore if pattern not in ignored]
    return {**config, KEY: quantized_entry(groups, ignored)}


def quantized_entry(
    groups: list[tuple[list[str], LayerScheme]], ignore: list[str], kv_cache: Any = None
) -> dict[str, Any]:
    """Return the quantization_config of targets with their schemes."""
    formats = {scheme.format for _, scheme in groups}
    return {
        "quant_method": METHOD,
        "format": formats.pop() if len(formats) == 1 else MIXED,
        "quantization_status": "compressed",
        "ignore": ignore,
        "kv_cache_scheme": kv_cache,
        "config_groups": {f"group_{k}": scheme.config(targets) for k, (targets, scheme) in enumerate(groups)},
    }


def plain_config(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return config.json of the model without quantization, with a dtype by its name in config.json."""
    plain = _plain(config, dtype)
    return plain if any(key in plain for key in DTYPE_KEYS) else {**plain, "dtype": dtype}


def _plain(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return config.json of plain weights, and for the language model within it; the dtypes in them are replaced."""
    plain: dict[str, Any] = {key: value for key, value in config.items() if key not in (KEY, OLD_KEY)}
    plain |= {key: dtype for key in DTYPE_KEYS if key in plain}
    inner = {key: _plain(plain[key], dtype) for key in LANGUAGE if isinstance(plain.get(key), dict)}
    return plain | inner


def check_undone(entry: Mapping[str, Any]) -> None:
    """Raise ValueError if the quantization_config says that a model is more than its weights.

    Rotations of weights only are part of the weights, and each undoes another one.
    """
    transforms = entry.get("transform_config")
    groups = transforms.get("config_groups") if isinstance(transforms, dict) else transforms
    places = set(_locations(groups))
    if groups and (not places or places - OFFLINE):
        where = f" of {', '.join(sorted(places))}" if places else ""
        raise ValueError(f"its {KEY} has a transform_config{where}: layers rotate their inputs, which can't be undone")
    for key, plain in (("sparsity_config", (None, "dense")), ("moe_sparsity_config", ())):
        part = entry.get(key)
        if part and (part.get("format") if isinstance(part, dict) else part) not in plain:
            raise ValueError(f"its {KEY} has a {key}, which fastq does not undo")


def _locations(part: Any) -> list[str]:
    if isinstance(part, dict):
        return [str(part["location"])] if "location" in part else _locations(list(part.values()))
    return [place for each in part for place in _locations(each)] if isinstance(part, list) else []


class StoredSchemes:
    """The schemes of a quantized model by the names of modules; raise ValueError if one is unknown or none there."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        entry = entry_of(config)
        check_undone(entry)
        groups = entry.get("config_groups") or ({} if entry.get("kv_cache_scheme") else None)
        if not isinstance(groups, dict):
            raise ValueError(f"its {KEY} has no config_groups")
        rows = [row for name, group in groups.items() for row in _rows(name, group, entry.get("format"))]
        rows.sort(key=lambda row: row[0])
        self._patterns = [row for row in rows if row[0].startswith("re:")]
        self._named = {row[0]: row[1] for row in reversed(rows) if not row[0].startswith("re:")}  # the first one counts
        self._classes = {target: scheme for target, scheme in rows if target[:1].isupper()}  # files do not name it

    def scheme_of(self, module: str) -> LayerScheme:
        """Return the scheme of a module by its name, the first pattern in alphabetical order, or its class."""
        patterns = (scheme for target, scheme in self._patterns if matches(module, target))
        found = self._named.get(module) or next(patterns, None)
        classes = self._classes
        if found is not None:
            return found
        if LINEAR in classes or len(set(classes.values())) == 1:
            return classes.get(LINEAR) or next(iter(classes.values()))
        raise ValueError(f"no config group of {KEY} matches {module}")


def _wrong(name: str, what: str) -> ValueError:
    return ValueError(f"config group {shown(name)} has {what}")


def _rows(name: str, group: Any, general_format: Any) -> list[tuple[str, LayerScheme]]:
    """Return targets and scheme of a config group: without weights it has no scheme, and a list names a preset."""
    if isinstance(group, list) and name.upper() in PRESETS:
        targets = list[Any](group)
        scheme = PRESETS[name.upper()]
    else:
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise _wrong(name, "no list of targets")
        targets = group["targets"]
        if group.get("weights") is None:
            return []
        weights = _weights(name, group["weights"])
        form = group.get("format") or general_format
        if form not in schemes.FORMATS:
            raise _wrong(name, f"format {shown(form)}; known are {', '.join(schemes.FORMATS)}")
        scheme = LayerScheme(name, weights, form, _frozen(group.get("input_activations") or {}))
    for target in targets:
        try:
            check_pattern(str(target))
        except re.error as error:
            raise _wrong(name, f"target {shown(target)}, which is not a regular expression: {error}") from error
    return [(str(target), scheme) for target in targets]


def _frozen(entry: Any) -> Any:
    """Return objects and lists of JSON as tuples, which can be keys of dicts."""
    if isinstance(entry, dict):
        return tuple((str(key), _frozen(value)) for key, value in entry.items())
    return tuple(map(_frozen, entry)) if isinstance(entry, list) else entry


def _weights(name: str, entry: Any) -> WeightScheme:
    if not isinstance(entry, dict):
        raise ValueError(f"weights of config group {shown(name)} must be a JSON object")
    bits = entry.get("num_bits")
    kind = entry.get("type")
    strategy = entry.get("strategy")
    size = entry.get("group_size") or 0
    block: Any = entry.get("block_structure")
    codes = {"int": range(2, 9), "float": FLOAT_CODES}
    if type(bits) is not int or type(kind) is not str or bits not in codes.get(kind, ()):
        raise _wrong(name, f"{shown(kind)} weights of {shown(bits)} bits, which fastq does not know")
    if strategy is None and type(size) is int:
        strategy = "group" if size > 0 else "channel" if size == -1 else "tensor"
    if strategy not in schemes.STRATEGIES:
        raise _wrong(name, f"strategy {shown(strategy)}; known are {', '.join(schemes.STRATEGIES)}")
    in_groups = strategy in ("group", "tensor_group")
    if type(size) is not int or (in_groups and size < 1):
        raise _wrong(name, f"group_size {shown(size)}, which must be a positive integer")
    symmetric = entry.get("symmetric", True)
    scales = entry.get("scale_dtype") or ""
    if type(symmetric) is not bool:
        raise _wrong(name, f"symmetric {shown(symmetric)}, which must be true or false")
    if kind == "float" and bits == 4 and not scales:  # older versions omit it
        scales = {16: E4M3, 32: E8M0}.get(size, "")
    if scales not in ("", E4M3, E8M0):
        raise _wrong(name, f"scales of {shown(scales)}, which fastq does not know")
    if isinstance(block, str):  # older writers write 128x128
        block = [int(n) for n in block.split("x") if n.isdecimal()]
    fits = isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    if strategy == "block" and not fits:
        raise _wrong(name, f"block_structure {shown(block)}, which must be rows and columns")
    blocks = tuple(block) if strategy == "block" else ()
    return WeightScheme(bits, kind, strategy, size if in_groups else 0, blocks, symmetric, scales)
