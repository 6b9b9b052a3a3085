"""Schemes of compressed-tensors: the quantization and storage of weights, one table of presets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fastq.formats.qtypes import QType, as_qtype
from fastq.system.arguments import did_you_mean

# dtypes of scales
E4M3 = "torch.float8_e4m3fn"
E8M0 = "torch.uint8"
FLOAT_CODES = {8: "float8_e4m3fn", 4: "float4_e2m1fn"}  # by their bits
MICROSCALING = {8: "mxfp8_e4m3", 4: "mxfp4"}  # formats whose scales are powers of two, by the bits of their codes
WORDS = "pack-quantized"  # codes in words of int32
FORMATS = (
    WORDS,
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
)
SHARING = {  # the elements that share a scale, by the name of the strategy
    "tensor": "matrix",
    "channel": "row",
    "group": "group of columns",
    "tensor_group": "group of columns",
    "block": "block",
}
STRATEGIES = tuple(SHARING)


@dataclass(frozen=True)
class WeightScheme:
    """The quantization of the weights of a layer: the `weights` of a config group."""

    bits: int  # width of a code, and whether it is an "int" or a "float"
    kind: str
    # {"tensor", "channel", "group", "tensor_group", "block"}: the elements that share a scale: the matrix, each row,
    # each group of columns of a row (with "tensor_group" as a multiple of one scale for the matrix), or each block of
    # rows and columns
    strategy: str
    group_size: int = 0  # columns in a group, rows and columns of a block; 0 and () without
    block: tuple[int, ...] = ()
    symmetric: bool = True  # whether there are no zero points
    scale_dtype: str = ""  # dtype of stored scales, by its name in torch; empty: the model's

    @property
    def qtype(self) -> QType:
        """The code format."""
        return as_qtype(f"int{self.bits}" if self.kind == "int" else FLOAT_CODES[self.bits])

    def config(self) -> dict[str, Any]:
        """Return the entry of config.json."""
        entry: dict[str, Any] = {"num_bits": self.bits, "type": self.kind, "strategy": self.strategy}
        entry |= {"group_size": self.group_size} if self.group_size else {}
        entry |= {"block_structure": list(self.block)} if self.block else {}
        entry |= {"symmetric": self.symmetric, "dynamic": False}
        return entry | ({"scale_dtype": self.scale_dtype} if self.scale_dtype else {})

    def __str__(self) -> str:
        blocks = "x".join(map(str, self.block or (self.group_size,) * bool(self.group_size)))
        where = f"{self.strategy} {blocks}".strip()
        return f"{self.kind}{self.bits} {where}{'' if self.symmetric else ' asymmetric'}"


@dataclass(frozen=True)
class LayerScheme:
    """Weights, the format in which they are stored, and the quantization of activations when the model runs."""

    name: str
    weights: WeightScheme
    format: str
    activations: tuple[tuple[str, Any], ...] = ()

    @property
    def in_groups(self) -> bool:
        """Whether weights are integers in groups, which have a choice of sizes and zero points."""
        return self.weights.kind == "int" and self.weights.strategy == "group"

    def config(self, targets: list[str]) -> dict[str, Any]:
        """Return the config group of config.json."""
        group = {"targets": targets, "format": self.format, "weights": self.weights.config()}
        return group | {"input_activations": dict(self.activations) or None, "output_activations": None}

    def with_options(self, group_size: int | None, symmetric: bool | None) -> LayerScheme:
        """Return the scheme with groups of another size, or with zero points; raise ValueError if it has no choice."""
        weights = self.weights
        given = ["--group-size"] * (group_size is not None) + ["--asymmetric"] * (symmetric is False)
        if given and not self.in_groups:
            codes = f"{weights.kind}{weights.bits} with one scale for each {SHARING[weights.strategy]}"
            raise ValueError(f"{given[0]} applies to integers in groups; weights of {self.name} are {codes}")
        changed = replace(
            weights,
            group_size=weights.group_size if group_size is None else group_size,
            symmetric=weights.symmetric if symmetric is None else symmetric,
        )
        return replace(self, weights=changed)


def _dynamic(bits: int, kind: str, strategy: str, **more: Any) -> tuple[tuple[str, Any], ...]:
    entry = {"num_bits": bits, "type": kind, "strategy": strategy, **more, "symmetric": True, "dynamic": True}
    return tuple(entry.items())


def _integers(bits: int) -> LayerScheme:
    return LayerScheme(f"W{bits}A16", WeightScheme(bits, "int", "group", 128), WORDS)


_INT8 = WeightScheme(8, "int", "channel")
_FP8 = WeightScheme(8, "float", "channel")

_ROWS = (
    *map(_integers, (2, 4, 8)),
    replace(_integers(4), name="W4A16_ASYM", weights=WeightScheme(4, "int", "group", 128, symmetric=False)),
    LayerScheme("W8A8", _INT8, "int-quantized", _dynamic(8, "int", "token")),
    LayerScheme("FP8_DYNAMIC", _FP8, "float-quantized", _dynamic(8, "float", "token")),
    LayerScheme(
        "FP8_BLOCK",
        WeightScheme(8, "float", "block", block=(128, 128)),
        "float-quantized",
        _dynamic(8, "float", "group", group_size=128),
    ),
    LayerScheme("NVFP4A16", WeightScheme(4, "float", "tensor_group", 16, scale_dtype=E4M3), "nvfp4-pack-quantized"),
    LayerScheme("MXFP4A16", WeightScheme(4, "float", "group", 32, scale_dtype=E8M0), "mxfp4-pack-quantized"),
    LayerScheme("MXFP8A16", WeightScheme(8, "float", "group", 32, scale_dtype=E8M0), "mxfp8-quantized"),
)
PRESETS = {row.name: row for row in _ROWS}
# names of code formats, and of presets of llm-compressor
_SPELLINGS = {row.weights.qtype.name: row.name for row in reversed(_ROWS)}
_SPELLINGS |= dict.fromkeys(("fp8", "float8"), "FP8_DYNAMIC")


def as_scheme(name: str) -> LayerScheme:
    """Return the preset with a name; raise ValueError for another name."""
    found = PRESETS.get(name.upper())
    if found is None:
        meant = did_you_mean(name, PRESETS, _SPELLINGS)
        raise ValueError(f"scheme must be one of {', '.join(PRESETS)}, not {name!r}{meant}")
    return found
