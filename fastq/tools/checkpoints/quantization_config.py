"""The quantization_config of config.json: written for a plan, and read from any compressed-tensors directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastq.system.arguments import shown
from fastq.tools.checkpoints.config_json import DTYPE_KEYS, KEY, LANGUAGE, MLX_KEY, OLD_KEY, entry_of
from fastq.tools.checkpoints.experts import EXPERT
from fastq.tools.checkpoints.fused_modules import fused_with
from fastq.tools.checkpoints.module_names import matches_target
from fastq.tools.checkpoints.rules import Plan, Rules
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, HEAD, OTHER_LAYER
from fastq.tools.files.patterns import check_pattern
from fastq.tools.files.tensor_specs import TensorSpec
from fastq.tools.layouts import schemes
from fastq.tools.layouts.schemes import E4M3, E8M0, FLOAT_CODES, PRESETS, LayerScheme, WeightScheme

METHOD = "compressed-tensors"
MIXED = "mixed-precision"
LINEAR = "Linear"
EXPERTS = r"re:(.*\.)?experts\.\d+\."  # the target of all matrices of experts
OFFLINE = {"weight_input", "weight_output"}  # transforms that are already applied to weights


def quantized_config(
    config: Mapping[str, Any], plan: Plan, rules: Rules, tensors: Mapping[str, TensorSpec]
) -> dict[str, Any]:
    """Return config.json of the quantized model."""
    modules_of: dict[LayerScheme, list[str]] = {}
    for matrix in plan.matrices:
        modules_of.setdefault(matrix.scheme, []).append(matrix.module)
    general_modules = modules_of.pop(rules.scheme, [])
    groups = [(modules, scheme) for scheme, modules in modules_of.items()]  # readers try patterns in their own order
    if general_modules:
        groups.append((_general_targets(general_modules, groups, plan), rules.scheme))
    ignored = plan.modules_to_ignore(tensors)
    ignored += [pattern for pattern in rules.ignore if pattern not in ignored]
    return {**config, KEY: quantized_entry(groups, ignored)}


def _general_targets(modules: list[str], groups: list[tuple[list[str], LayerScheme]], plan: Plan) -> list[str]:
    """Return the targets of the modules with the general scheme, next to the groups of other schemes.

    They are the class of layers, and the modules that are of another class or must be named: vLLM looks up the class of
    a layer before the names of matrices that it reads as one, and transformers uses the first group for experts unless
    a pattern names them.
    """
    has_experts = any(map(EXPERT.fullmatch, modules))
    other_modules = [module for targets, _ in groups for module in targets]
    needs_names = any(fused_with(module) != module for module in other_modules)
    if needs_names:
        names = [module for module in modules if not EXPERT.fullmatch(module)]
        return [EXPERTS, *names] if has_experts else names
    not_linear = {matrix.module for matrix in plan.matrices if matrix.kind in (HEAD, EMBEDDING, OTHER_LAYER)}
    names = [module for module in modules if module in not_linear]
    return [LINEAR, EXPERTS, *names] if groups and has_experts else [LINEAR, *names]


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
    plain: dict[str, Any] = {key: value for key, value in config.items() if key not in (KEY, OLD_KEY, MLX_KEY)}
    plain |= {key: dtype for key in DTYPE_KEYS if key in plain}
    inner = {key: _plain(plain[key], dtype) for key in LANGUAGE if isinstance(plain.get(key), dict)}
    return plain | inner


def check_undone(entry: Mapping[str, Any]) -> None:
    """Raise ValueError if the quantization_config describes more than weights, such as sparsity or rotated inputs.

    Rotations of weights alone are no obstacle: they are part of the stored weights, and cancel each other.
    """
    transforms = entry.get("transform_config")
    groups = transforms.get("config_groups") if isinstance(transforms, dict) else transforms
    locations = set(_locations_in(groups))
    is_of_weights_only = bool(locations) and locations <= OFFLINE
    if groups and not is_of_weights_only:
        names = f" of {', '.join(sorted(locations))}" if locations else ""
        raise ValueError(f"its {KEY} has a transform_config{names}: layers rotate their inputs, which can't be undone")
    # the formats of an entry that stores all numbers; one for experts always leaves some out
    for key, dense_formats in (("sparsity_config", (None, "dense")), ("moe_sparsity_config", ())):
        sparsity = entry.get(key)
        stored_format = sparsity.get("format") if isinstance(sparsity, dict) else sparsity
        if sparsity and stored_format not in dense_formats:
            raise ValueError(f"its {KEY} has a {key}, which fastq does not undo")


def _locations_in(value: Any) -> list[str]:
    """Return the values of all keys "location" in objects and lists of JSON."""
    if isinstance(value, dict):
        return [str(value["location"])] if "location" in value else _locations_in(list(value.values()))
    if isinstance(value, list):
        return [location for item in value for location in _locations_in(item)]
    return []


class StoredSchemes:
    """The schemes of the modules of a quantized model, as its config.json has them for targets.

    Raise ValueError if one is unknown, or there are none.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        entry = entry_of(config)
        check_undone(entry)
        groups = entry.get("config_groups")
        if not groups and entry.get("kv_cache_scheme"):  # only keys and values are quantized
            groups = {}
        elif not isinstance(groups, dict) or not groups:
            raise ValueError(f"its {KEY} has no config_groups")
        targets = [target for name, group in groups.items() for target in _targets_of(name, group, entry.get("format"))]
        # compressed-tensors tries targets in the order of their names
        targets.sort(key=lambda target_and_scheme: target_and_scheme[0])
        self._by_pattern = [(target, scheme) for target, scheme in targets if target.startswith("re:")]
        # the first of equal names counts
        self._by_name = {target: scheme for target, scheme in reversed(targets) if not target.startswith("re:")}
        # of classes of layers, which files do not name
        self._by_class = {target: scheme for target, scheme in targets if target[:1].isupper()}

    def scheme_of(self, module: str) -> LayerScheme:
        """Return the scheme of a module: by its name, else by the first matching pattern, else by its class."""
        matching = (scheme for target, scheme in self._by_pattern if matches_target(module, target))
        scheme = self._by_name.get(module) or next(matching, None)
        if scheme is not None:
            return scheme
        if LINEAR in self._by_class:
            return self._by_class[LINEAR]
        if len(set(self._by_class.values())) == 1:
            return next(iter(self._by_class.values()))
        raise ValueError(f"no config group of {KEY} matches {module}")


def _group_error(name: str, fault: str) -> ValueError:
    """Return the error about a config group, which has a fault."""
    return ValueError(f"config group {shown(name)} has {fault}")


def _targets_of(name: str, group: Any, general_format: Any) -> list[tuple[str, LayerScheme]]:
    """Return the targets of a config group, each with its scheme.

    A group without weights has no scheme, and so no targets here; a list has targets of the preset that `name` names.
    """
    if isinstance(group, list) and name.upper() in PRESETS:
        targets = list[Any](group)
        scheme = PRESETS[name.upper()]
    else:
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise _group_error(name, "no list of targets")
        targets = group["targets"]
        if group.get("weights") is None:
            return []
        weights = _weight_scheme(name, group["weights"])
        stored_format = group.get("format") or general_format
        if stored_format not in schemes.FORMATS:
            raise _group_error(name, f"format {shown(stored_format)}; known are {', '.join(schemes.FORMATS)}")
        activations = _as_tuples(group.get("input_activations") or {})
        scheme = LayerScheme(name=name, weights=weights, format=stored_format, activations=activations)
    for target in targets:
        try:
            check_pattern(str(target))
        except re.error as error:
            raise _group_error(name, f"target {shown(target)}, which is not a regular expression: {error}") from error
    return [(str(target), scheme) for target in targets]


def _as_tuples(entry: Any) -> Any:
    """Return objects and lists of JSON as tuples, which can be keys of dicts."""
    if isinstance(entry, dict):
        return tuple((str(key), _as_tuples(value)) for key, value in entry.items())
    return tuple(map(_as_tuples, entry)) if isinstance(entry, list) else entry


def _weight_scheme(name: str, entry: Any) -> WeightScheme:
    """Return the scheme of the weights of a config group; raise ValueError if fastq does not know it."""
    if not isinstance(entry, dict):
        raise ValueError(f"weights of config group {shown(name)} must be a JSON object")
    bits = entry.get("num_bits")
    kind = entry.get("type")
    codes = {"int": range(2, 9), "float": FLOAT_CODES}
    if type(bits) is not int or type(kind) is not str or bits not in codes.get(kind, ()):
        raise _group_error(name, f"{shown(kind)} weights of {shown(bits)} bits, which fastq does not know")
    size = entry.get("group_size") or 0
    strategy = _strategy_of(name, entry.get("strategy"), size)
    is_in_groups = strategy in ("group", "tensor_group")
    if type(size) is not int or (is_in_groups and size < 1):
        raise _group_error(name, f"group_size {shown(size)}, which must be a positive integer")
    symmetric = entry.get("symmetric", True)
    if type(symmetric) is not bool:
        raise _group_error(name, f"symmetric {shown(symmetric)}, which must be true or false")
    scale_dtype = entry.get("scale_dtype") or ""
    if kind == "float" and bits == 4 and not scale_dtype:  # older versions omit it
        scale_dtype = {16: E4M3, 32: E8M0}.get(size, "")
    if scale_dtype not in ("", E4M3, E8M0):
        raise _group_error(name, f"scales of {shown(scale_dtype)}, which fastq does not know")
    return WeightScheme(
        bits=bits,
        kind=kind,
        strategy=strategy,
        group_size=size if is_in_groups else 0,
        block=_block_of(name, entry.get("block_structure")) if strategy == "block" else (),
        symmetric=symmetric,
        scale_dtype=scale_dtype,
    )


def _strategy_of(name: str, strategy: Any, group_size: Any) -> str:
    """Return the strategy of the weights of a config group: if it names none, what the size of its groups means."""
    if strategy is None and type(group_size) is int:
        if group_size > 0:
            return "group"
        return "channel" if group_size == -1 else "tensor"
    if strategy not in schemes.STRATEGIES:
        raise _group_error(name, f"strategy {shown(strategy)}; known are {', '.join(schemes.STRATEGIES)}")
    return str(strategy)


def _block_of(name: str, structure: Any) -> tuple[int, ...]:
    """Return the rows and columns of a block of a config group; older writers write 128x128."""
    block = structure
    if isinstance(structure, str):
        block = [int(n) for n in structure.split("x") if n.isdecimal()]
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)):
        raise _group_error(name, f"block_structure {shown(block)}, which must be rows and columns")
    return tuple(block)
