"""Schemes of compressed-tensors: the quantization and storage of weights, one table of presets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fastq.formats.qtypes import QType, as_qtype
from fastq.system.arguments import did_you_mean

# dtypes of scales
E4M3 = "torch.float8_e4m3fn"
E8M0 = "torch.uint8"  # bytes, in which powers of two are stored as exponents plus 127
FLOAT_CODES = {8: "float8_e4m3fn", 6: "float6_e2m3fn", 4: "float4_e2m1fn"}  # by their bits
MICROSCALING = {
    8: "mxfp8_e4m3",
    6: "mxfp6_e2m3",
    4: "mxfp4",
}  # formats whose scales are powers of two, by the bits of their codes
# formats of weights, as config.json names them
WORDS = "pack-quantized"  # codes in words of int32
INTEGERS = "int-quantized"  # codes that replace the weight
FLOATS = "float-quantized"  # codes that replace the weight
NVFP4 = "nvfp4-pack-quantized"
MXFP4 = "mxfp4-pack-quantized"
MXFP6 = "mxfp6-pack-quantized"
MXFP8 = "mxfp8-quantized"
FORMATS = (WORDS, INTEGERS, FLOATS, "naive-quantized", NVFP4, MXFP4, MXFP6, MXFP8)
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

    bits: int  # width of a code
    kind: str  # what a code is: "int" or "float"
    # {"tensor", "channel", "group", "tensor_group", "block"}: the elements that share a scale: the matrix, each row,
    # each group of columns of a row (with "tensor_group" as a multiple of one scale for the matrix), or each block of
    # rows and columns
    strategy: str
    group_size: int = 0  # columns in a group; 0 without groups
    block: tuple[int, ...] = ()  # rows and columns of a block; empty without blocks
    symmetric: bool = True  # whether there are no zero points
    scale_dtype: str = ""  # dtype of stored scales, by its name in torch; empty: the model's

    @property
    def qtype(self) -> QType:
        """The code format."""
        return as_qtype(f"int{self.bits}" if self.kind == "int" else FLOAT_CODES[self.bits])

    def config(self) -> dict[str, Any]:
        """Return the entry of config.json."""
        entry: dict[str, Any] = {"num_bits": self.bits, "type": self.kind, "strategy": self.strategy}
        if self.group_size:
            entry["group_size"] = self.group_size
        if self.block:
            entry["block_structure"] = list(self.block)
        entry |= {"symmetric": self.symmetric, "dynamic": False}
        if self.scale_dtype:
            entry["scale_dtype"] = self.scale_dtype
        return entry

    def __str__(self) -> str:
        sizes = self.block or ((self.group_size,) if self.group_size else ())
        words = [f"{self.kind}{self.bits}", self.strategy, "x".join(map(str, sizes))]
        if not self.symmetric:
            words.append("asymmetric")
        return " ".join(filter(None, words))


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
        asks_for_zero_points = symmetric is False  # to ask for none is no change for other schemes
        if not self.in_groups and (group_size is not None or asks_for_zero_points):
            option = "--group-size" if group_size is not None else "--asymmetric"
            codes = f"{weights.kind}{weights.bits} with one scale for each {SHARING[weights.strategy]}"
            raise ValueError(f"{option} applies to integers in groups; weights of {self.name} are {codes}")
        changed = replace(
            weights,
            group_size=weights.group_size if group_size is None else group_size,
            symmetric=weights.symmetric if symmetric is None else symmetric,
        )
        return replace(self, weights=changed)


def _dynamic(bits: int, kind: str, strategy: str, **options: Any) -> tuple[tuple[str, Any], ...]:
    """Return the entry of activations that are quantized while the model runs, as pairs, since schemes are hashed."""
    entry = {"num_bits": bits, "type": kind, "strategy": strategy, **options, "symmetric": True, "dynamic": True}
    return tuple(entry.items())


def _integers(bits: int) -> LayerScheme:
    """Return the scheme of integers in groups of 128 columns, with activations as they are."""
    weights = WeightScheme(bits=bits, kind="int", strategy="group", group_size=128)
    return LayerScheme(name=f"W{bits}A16", weights=weights, format=WORDS)


def _microscaling(bits: int) -> WeightScheme:
    """Return the weights of an MX format: floats in groups of 32 columns, with powers of two for scales."""
    return WeightScheme(bits=bits, kind="float", strategy="group", group_size=32, scale_dtype=E8M0)


_ROWS = (
    *map(_integers, (2, 4, 8)),
    LayerScheme(
        name="W4A16_ASYM",
        weights=WeightScheme(bits=4, kind="int", strategy="group", group_size=128, symmetric=False),
        format=WORDS,
    ),
    LayerScheme(
        name="W8A8",
        weights=WeightScheme(bits=8, kind="int", strategy="channel"),
        format=INTEGERS,
        activations=_dynamic(8, "int", "token"),
    ),
    LayerScheme(
        name="FP8_DYNAMIC",
        weights=WeightScheme(bits=8, kind="float", strategy="channel"),
        format=FLOATS,
        activations=_dynamic(8, "float", "token"),
    ),
    LayerScheme(
        name="FP8_BLOCK",
        weights=WeightScheme(bits=8, kind="float", strategy="block", block=(128, 128)),
        format=FLOATS,
        activations=_dynamic(8, "float", "group", group_size=128),
    ),
    LayerScheme(
        name="NVFP4A16",
        weights=WeightScheme(bits=4, kind="float", strategy="tensor_group", group_size=16, scale_dtype=E4M3),
        format=NVFP4,
    ),
    LayerScheme(name="MXFP4A16", weights=_microscaling(4), format=MXFP4),
    LayerScheme(name="MXFP6A16", weights=_microscaling(6), format=MXFP6),
    LayerScheme(
        name="MXFP6A8",
        weights=_microscaling(6),
        format=MXFP6,
        activations=_dynamic(8, "float", "group", group_size=32, scale_dtype=E8M0),
    ),
    LayerScheme(name="MXFP8A16", weights=_microscaling(8), format=MXFP8),
)
PRESETS = {row.name: row for row in _ROWS}
# other names and the presets that are meant, for hints: code formats, of which the first preset counts, and the names
# of llm-compressor
_SPELLINGS = {row.weights.qtype.name: row.name for row in reversed(_ROWS)}
_SPELLINGS |= dict.fromkeys(("fp8", "float8"), "FP8_DYNAMIC")
_SPELLINGS |= {f"mxfp{bits}": f"MXFP{bits}A16" for bits in MICROSCALING}


def as_scheme(name: str) -> LayerScheme:
    """Return the preset with a name; raise ValueError for another name."""
    scheme = PRESETS.get(name.upper())
    if scheme is None:
        hint = did_you_mean(name, PRESETS, _SPELLINGS)
        raise ValueError(f"scheme must be one of {', '.join(PRESETS)}, not {name!r}{hint}")
    return scheme
