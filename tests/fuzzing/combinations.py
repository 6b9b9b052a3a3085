"""Combinations of what kernels are compiled for: many cases are drawn for each, since compiling takes most time."""

from dataclasses import dataclass, fields, replace
from random import Random

import fastq
from fastq.formats.conventions import _CHOICES, Convention
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import QTYPES
from fastq.formats.range_methods import NORMS
from fuzzing.arrays import INTEGERS, REALS

CASES = 500  # of a combination

# how often each operation is drawn
OPERATIONS = {
    "quantize": 5,
    "quantize_given": 3,
    "fake_quantize": 4,
    "fake_quantize_given": 2,
    "choose_qparams": 3,
    "quantize_linear": 5,
    "dequantize_linear": 4,
    "dequantize": 3,
    "minmax": 2,
    "compare": 3,
    "pack": 1,
    "unpack": 1,
    "binarize": 1,
    "gguf_quantize": 2,
    "gguf_dequantize": 1,
}
INPUTS = {name: 6 if name == "float32" else 3 if name in REALS else 1 for name in (*REALS, *INTEGERS)}
FORMATS = {
    name: 6 if name in ("int8", "uint8") else 3 if name in ("int16", "uint16", "int4", "uint4") else 1
    for name in QTYPES
}
BLOCKS = (16, 32, 64, 128)  # sizes of which many blocks are computed side by side, by kernels of their own


@dataclass(frozen=True)
class Combination:
    """What is the same in all cases of a combination."""

    number: int
    operation: str
    dtype: str
    format: str
    bits: int | None
    convention: str | Convention
    symmetric: bool
    nan: str
    saturate: bool
    scale_dtype: str
    values_dtype: str
    blocks: tuple
    range: object

    @property
    def row(self):
        """The row of the convention."""
        return self.convention if isinstance(self.convention, Convention) else fastq.CONVENTIONS[self.convention]


def weighted(random, weights):
    """One of the keys, by their weights."""
    return random.choices(list(weights), list(weights.values()))[0]


_FLAGS = ("includes_zero", "scale_rounded", "zero_point_inside", "fused", "reserves_fill", "reduce_range")
_OTHER = {
    "scale_floor": (None, 0.0, 2.0**-23, 1e-30, 0.5),
    "degenerate": (1.0, "floor", "value", "epsilon", 0.5, 1e-10),
    "narrow": ("all", (), ("int8", "uint8", "int4")),
    "schemes": (("asymmetric",), ("symmetric",), ("asymmetric", "symmetric")),
}
_FIELDS = dict(_CHOICES) | dict.fromkeys(_FLAGS, (True, False)) | _OTHER
_CONDITIONS = ("asymmetric", "symmetric", "array", "channels", "blocks")


def own_row(random):
    """A row that no system has: one of the table with other fields, as far as a row may have them."""
    names = {field.name for field in fields(Convention)}
    assert names >= set(_FIELDS)
    while True:
        row = random.choice(list(fastq.CONVENTIONS.values()))
        changed = {name: random.choice(_FIELDS[name]) for name in random.sample(list(_FIELDS), random.randint(1, 5))}
        variants = ()
        if random.random() < 0.3:
            name = random.choice(sorted(set(_FIELDS) - {"schemes", "stored_type", "zero_point"}))
            variants = ((random.choice(_CONDITIONS), name, random.choice(_FIELDS[name])),)
        try:
            return replace(row, name="own", formats=(), variants=variants, **changed)
        except ValueError:
            continue


def _format(random, operation, dtype):
    if operation in ("pack", "unpack"):
        return random.choice([name for name, row in QTYPES.items() if row.packed])
    if operation.startswith("gguf"):
        return random.choice(list(BLOCK_FORMATS))
    if operation in ("quantize_linear", "dequantize_linear"):
        weights = {name: weight for name, weight in FORMATS.items() if not QTYPES[name].block_size}
        return weighted(random, weights)
    return weighted(random, FORMATS)


def _convention(random, format):
    row = QTYPES.get(format)
    if row is None or ((row.element or row.block_size) and random.random() < 0.97):
        named = [name for name, c in fastq.CONVENTIONS.items() if format in c.formats]
        return random.choice([*named, "onnx"])
    kind = random.random()
    if kind < 0.25:
        return own_row(random)
    fitting = [name for name, c in fastq.CONVENTIONS.items() if not c.formats or format in c.formats]
    return "onnx" if kind < 0.4 else random.choice(fitting)


def _range(random, operation):
    """How ranges are taken: mostly all of them, since a search takes the reference so many times as long."""
    if operation not in ("quantize", "fake_quantize", "choose_qparams") or random.random() < 0.7:
        return "minmax"
    searches = [fastq.MSERange(grid, shrink, norm) for grid in (1, 7, 100) for shrink in (0.2, 0.8) for norm in NORMS]
    return random.choice(["mse", *searches])


def combination(number):
    """The combination of a number: always the same one."""
    random = Random(f"combination {number}")
    operation = weighted(random, OPERATIONS)
    dtype = weighted(random, INPUTS)
    format = _format(random, operation, dtype)
    convention = _convention(random, format)
    qtype = QTYPES.get(format)
    keeps = qtype is not None and (qtype.block_size or (qtype.float_format and qtype.float_format.nan is not None))
    row = convention if isinstance(convention, Convention) else fastq.CONVENTIONS[convention]
    symmetric = random.random() < 0.4
    if random.random() < 0.95:
        symmetric &= "symmetric" in row.schemes and (qtype is None or qtype.bits > 1)
        symmetric |= "asymmetric" not in row.schemes
    bits = (
        random.randint(2, qtype.bits)
        if format in ("int8", "uint8", "int16", "uint16") and random.random() < 0.2
        else None
    )
    return Combination(
        number,
        operation,
        dtype,
        format,
        bits,
        convention,
        symmetric,
        random.choice(["raise", "zero", "keep"] if keeps or random.random() < 0.02 else ["raise", "zero"]),
        random.random() < 0.6,
        random.choice(["float32", "float32", "float64", "float16", "bfloat16"]),
        random.choice(["float32", "float32", "float64", "float16", "bfloat16"]),
        tuple(random.sample(BLOCKS, 2)),
        _range(random, operation),
    )
