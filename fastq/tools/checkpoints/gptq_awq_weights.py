"""Weights of GPTQ, AWQ and auto-round that config.json describes; others: fastq/tools/files/quantized_elsewhere.py.

Here is which versions of the layouts are read, and with which tensors. Without a description in config.json such codes
are recognized there, by the names of their tensors, so that nothing takes them for plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastq.tools.checkpoints.compressed_weights import column_order
from fastq.tools.checkpoints.config_json import KEY
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.stored_weights import PackedWeight
from fastq.tools.files.tensor_specs import TensorSpec

# packings with the words of GPTQ and plain zero points, by what follows auto-round's own name: "auto_round:triton"
OWN_PACKINGS = "", "exllamav2", "triton", "tritonv2"
NEEDED = ("qweight", "qzeros", "scales")
GPTQ_BITS = (2, 3, 4, 8)
AWQ_BITS = (4,)
OWN_WIDTHS = ("dynamic", "extra_config")  # keys by which modules have widths of their own


class PackedOptions(NamedTuple):
    """What config.json says of all modules: the layout of their words of codes, and numbers that it may have wrong."""

    layout: str  # a name of `fastq.layouts.LAYOUTS`
    group_size: Any  # columns in a group, as config.json has it, which may be anything
    bits: Any  # of a code, as config.json has it; None where modules may have widths of their own


def awq_options(entry: Mapping[str, Any]) -> PackedOptions:
    """Return the options of AWQ; raise ValueError for a version that is not read. Writers use several keys for each."""
    if entry.get("backend") == "llm-awq":
        version = "llm-awq"
    else:
        version = str(entry.get("version") or entry.get("format") or entry.get("checkpoint_format") or "gemm").lower()
    bits = entry.get("bits") or entry.get("w_bit") or 4
    if version != "gemm" or bits != 4:
        raise ValueError(f"its {KEY} is of AWQ's {version!r} with {bits!r} bits; only 'gemm' with 4 is read")
    size = entry.get("group_size") or entry.get("q_group_size")
    return PackedOptions(layout="awq", group_size=size, bits=bits)


def gptq_options(entry: Mapping[str, Any]) -> PackedOptions:
    """Return the options of GPTQ; raise ValueError for a version that is not read.

    In gptq zero points are stored less 1, in gptq_v2 as they are.
    """
    version = str(entry.get("checkpoint_format") or entry.get("format") or "gptq").lower()
    if version not in ("gptq", "gptq_v2") or entry.get("is_marlin_format"):
        stored = "marlin" if entry.get("is_marlin_format") else version
        raise ValueError(f"its {KEY} is of GPTQ's {stored!r}; only 'gptq' and 'gptq_v2' are read")
    bits = None if any(entry.get(key) for key in OWN_WIDTHS) else entry.get("bits")
    return PackedOptions(layout=version, group_size=entry.get("group_size"), bits=bits)


def auto_round_options(entry: Mapping[str, Any]) -> PackedOptions:
    """Return the options of auto-round, which writes layouts of GPTQ and AWQ; raise ValueError for other layouts."""
    packing = str(entry.get("packing_format") or entry.get("backend") or "auto_round:gptq").lower()
    # without its keys for formats, in which `gptq_options` and `awq_options` would read other names
    numbers = {key: entry[key] for key in ("bits", "group_size", *OWN_WIDTHS) if key in entry}
    if "gptqmodel" in packing or packing.removeprefix("auto_round").lstrip(":") in OWN_PACKINGS:
        return gptq_options(numbers | {"format": "gptq_v2"})  # with zero points as they are
    if "gptq" in packing:
        return gptq_options(numbers)
    if "awq" in packing:
        return awq_options(numbers)
    raise ValueError(f"its {KEY} is of auto-round's {packing!r}; only layouts of gptq and awq are read")


def packed_weight(source: ModelFolder, module: str, spec: TensorSpec, options: PackedOptions) -> PackedWeight:
    """Return a weight, given its codes, the tensor qweight; raise ValueError if its tensors do not fit each other.

    The shape of its zero points tells the width of codes, which may differ by module.
    """
    layout = options.layout
    is_awq = layout == "awq"
    roles = _stored_tensors(source, module, with_g_idx=not is_awq)
    groups, outputs = roles["scales"].shape
    bits = _bits_of_zero_points(roles["qzeros"].shape, outputs, options)
    # a word has the codes of neighbouring outputs in AWQ, of neighbouring inputs in GPTQ
    if is_awq:
        columns = spec.shape[0]
        rows = spec.shape[1] * 32 // bits
    else:
        columns = spec.shape[0] * 32 // bits
        rows = spec.shape[1]
    if rows != outputs:
        raise ValueError(f"its qweight of shape {spec.shape} has {rows} outputs in {layout}, its scales have {outputs}")
    size = options.group_size  # of any type, and -1 for whole rows: then the tensors tell the size of groups
    is_size_of_groups = type(size) is int and size > 0 and -(-columns // size) == groups
    return PackedWeight(
        source=source,
        module=module,
        name=f"{module}.weight",
        roles=roles,
        shape=(outputs, columns),
        matrix=(outputs, columns),
        codes=spec,
        order=column_order(source.load(roles["g_idx"].name), columns) if "g_idx" in roles else None,
        label=f"uint{bits} of {layout}",
        layout=layout,
        bits=bits,
        block_size=size if is_size_of_groups else 0,
    )


def _stored_tensors(source: ModelFolder, module: str, *, with_g_idx: bool) -> dict[str, TensorSpec]:
    """Return the stored tensors of a module by their roles; raise ValueError if a matrix that is needed is missing."""
    ends = (*NEEDED, "g_idx") if with_g_idx else NEEDED
    names = {end: f"{module}.{end}" for end in ends}
    roles = {end: source.tensors[name] for end, name in names.items() if name in source.tensors}
    for end in NEEDED:
        if end not in roles or len(roles[end].shape) != 2 or not roles[end].size:
            stored = f"of shape {roles[end].shape}" if end in roles else "missing"
            raise ValueError(f"{module}.{end} must be a matrix; it is {stored}")
    return roles


def _bits_of_zero_points(shape: tuple[int, ...], outputs: int, options: PackedOptions) -> int:
    """Return the width of codes, given the shape of their zero points, one for each output, in words of 32 bits.

    In shape (groups, 16) a row of 16 words has those of 128 outputs, so each takes 4 bits. Raise ValueError if the
    layout has no such width, or config.json names another one.
    """
    bits = shape[1] * 32 // outputs
    if bits not in (AWQ_BITS if options.layout == "awq" else GPTQ_BITS):
        raise ValueError(f"its qzeros of shape {shape} are for {bits} bits, which {options.layout} does not have")
    if options.bits is not None and options.bits != bits:
        raise ValueError(
            f"its qzeros of shape {shape} are for {bits} bits, but {KEY} has bits {options.bits!r}: one is wrong"
        )
    return bits
