"""Combinations of compile-time parameters: many cases are drawn for each, since compiling takes most time."""

import functools
import itertools
from dataclasses import dataclass, fields, replace
from random import Random

from fuzzing.arrays import INTEGERS, REALS

import fastq
from fastq.formats.conventions.convention import Convention
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import CASTS as CAST_FORMATS
from fastq.formats.qtypes import QTYPES
from fastq.formats.range_methods import NORMS

CASES = 200  # of a combination
VARIANT = 10**12  # from one variant of a case to the next, in the numbers of cases

# how often each operation is drawn
OPERATIONS = {
    "quantize": 5,
    "quantize_given": 3,
    "fake_quantize": 4,
    "fake_quantize_given": 2,
    "choose_qparams": 3,
    "quantize_linear": 5,
    "dequantize_linear": 4,
    "dequantize": 2,
    "dequantize_method": 1,
    "part": 2,
    "reshape": 1,
    "explain": 1,
    "calibrate": 2,
    "nest_scale": 1,
    "unpack_array": 1,
    "minmax": 2,
    "compare": 3,
    "pack": 1,
    "unpack": 1,
    "binarize": 1,
    "bitround": 2,
    "bit_information": 1,
    "requantize": 2,
    "gguf_quantize": 2,
    "gguf_dequantize": 1,
}
INPUTS = {name: 6 if name == "float32" else 3 if name in REALS else 1 for name in (*REALS, *INTEGERS)}
FORMATS = {
    name: 6 if name in ("int8", "uint8") else 3 if name in ("int16", "uint16", "int4", "uint4") else 1
    for name in QTYPES
}
ROWS = QTYPES | CAST_FORMATS
SCALES = ("float32", "float32", "float64", "float16", "bfloat16")  # dtypes of raw scales, and of values asked for
CF_CODES = ("int8", "uint8", "int16", "uint16", "int32", "uint32")  # dtypes of packed science data
NANS = ("raise", "zero", "keep")
BLOCKS = (16, 32, 64, 128)  # sizes of which many blocks are computed side by side, by kernels of their own


@dataclass(frozen=True)
class Combination:
    """What is the same in all cases of a combination."""

    number: int
    operation: str
    dtype: str
    format: str
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


def in_turn(weights, place, of):
    """Return the key at a place of turns that have each key as often as it weighs, and how often it came before."""
    turn, place = divmod(place, sum(weights.values()))
    keys = _turn(turn, of, tuple(weights.items()))
    return keys[place], turn * weights[keys[place]] + keys[:place].count(keys[place])


@functools.lru_cache(4096)
def _turn(turn, of, weights):
    keys = [key for key, weight in weights for _ in range(weight)]
    Random(f"turn {turn} of {of}").shuffle(keys)
    return keys


SEARCHING, SEARCHED = ("quantize", "fake_quantize", "choose_qparams"), 0.3  # operations, and how often they search
RANGES = (
    "minmax",
    "mse",
    "mse-llm-compressor",
    *(
        fastq.MSERange(grid, shrink, grow, norm=norm)
        for grid, shrink, grow in ((1, 0.2, 1), (7, 0.8, 0.3), (20, 0.2, 0.1), (None, None, 0), (None, 0.8, None))
        for norm in NORMS
    ),
    fastq.MSERange(shares=(1.05, 0.97, 0.8, 0.9, 0.5)),
)
_FLAGS = ("includes_zero", "scale_rounded", "zero_point_inside", "fused", "reserves_fill", "reduce_range")
_OTHER = {
    "scale_floor": (None, 0.0, 2.0**-23, 1e-30, 0.5),
    "block_scale_floor": (0.0, 2.0**-6, 0.75),
    "narrow_range": (None, None, 0.0, 1e-4, 2.0),
    "degenerate": (1.0, "floor", "value", "epsilon", 0.5, 1e-10),
    "narrow": ("all", (), ("int8", "uint8", "int4")),
    "cut_from": (0, 9, 16, 32),
    "schemes": (("asymmetric",), ("symmetric",), ("asymmetric", "symmetric")),
}
_CHOICES = {each.name: each.metadata["choices"] for each in fields(Convention) if "choices" in each.metadata}
_FIELDS = _CHOICES | dict.fromkeys(_FLAGS, (True, False)) | _OTHER
_CONDITIONS = ("asymmetric", "symmetric", "array", "channels", "blocks", "int8", "uint8", "uint4")


_OF_BLOCKS = ("exponent", "zero_exponent", "tensor_scale", "block_scale_floor", "block_quotient", "float_ties")
_OF_BLOCKS += ("scale_quotient", "operation_type", "zero_point_inside")
_OF_FLOATS = ("float_ties", "scale_quotient", "operation_type", "zero_point_inside", "scale_floor")


def own_row_of_blocks(random, format):
    """A row that no system has for a format with scales of its own."""
    changed = {name: random.choice(_FIELDS[name]) for name in random.sample(_OF_BLOCKS, random.randint(1, 5))}
    return replace(fastq.CONVENTIONS["onnx"], name="own", formats=(format,), **changed)


def own_row_of_floats(random):
    """A row that no system has, other in what floats without blocks depend on."""
    changed = {name: random.choice(_FIELDS[name]) for name in random.sample(_OF_FLOATS, random.randint(1, 3))}
    return replace(fastq.CONVENTIONS["onnx"], name="own", **changed)


def own_row(random):
    """A row that no system has: one of the table with other fields, as far as a row may have them."""
    rows = list(fastq.CONVENTIONS.values())
    while True:
        row = random.choice(rows)
        changed = {name: random.choice(_FIELDS[name]) for name in random.sample(list(_FIELDS), random.randint(1, 5))}
        variants = ()
        if random.random() < 0.3:
            name = random.choice(sorted(set(_FIELDS) - {"schemes", "compute_type", "stored_type", "zero_point"}))
            variants = ((random.choice(_CONDITIONS), name, random.choice(_FIELDS[name])),)
        try:
            return replace(row, name="own", formats=(), variants=variants, **changed)
        except ValueError:
            continue


_UNBLOCKED = {name: weight for name, weight in FORMATS.items() if not QTYPES[name].block_size}
_PACKED = dict.fromkeys([name for name, row in QTYPES.items() if row.packed], 1)
# formats of operations, and how often each is drawn, where they are not those of most
_FORMATS_OF = {
    "pack": _PACKED,
    "unpack": _PACKED,
    "gguf_quantize": dict.fromkeys(BLOCK_FORMATS, 1),
    "gguf_dequantize": dict.fromkeys(BLOCK_FORMATS, 1),
    "nest_scale": {"dynamic8": 1},
    "requantize": {"int8": 2, "uint8": 2, "int16": 1},
    "unpack_array": dict.fromkeys(CF_CODES, 1),
    "quantize_linear": _UNBLOCKED | dict.fromkeys(CAST_FORMATS, 1),
    "dequantize_linear": _UNBLOCKED,
    "calibrate": _UNBLOCKED,
}


def _convention(random, format):
    row = ROWS.get(format)
    if row is not None and row.block_size and random.random() < 0.3:
        return own_row_of_blocks(random, format)
    if row is not None and row.float_format and not row.block_size and random.random() < 0.15:
        return own_row_of_floats(random)
    if row is None or ((row.element or row.block_size) and random.random() < 0.97):
        named = [name for name, c in fastq.CONVENTIONS.items() if format in c.formats]
        return random.choice([*named, "onnx"])
    kind = random.random()
    if kind < 0.25:
        return own_row(random)
    fitting = [name for name, c in fastq.CONVENTIONS.items() if not c.formats or format in c.formats]
    return "onnx" if kind < 0.4 else random.choice(fitting)


def _range(random, operation):
    """How ranges are taken: mostly all of them, since a search takes the reference many times as long."""
    if operation not in SEARCHING or random.random() >= SEARCHED:
        return "minmax"
    return random.choice(RANGES[1:])


@functools.lru_cache(4096)
def combination(number):
    """The combination of a number: always the same one."""
    random = Random(f"combination {number}")
    operation, place = in_turn(OPERATIONS, number, "operations")
    dtype = weighted(random, INPUTS)
    format, _ = in_turn(_FORMATS_OF.get(operation, FORMATS), place, operation)
    convention = _convention(random, format)
    qtype = ROWS.get(format)
    keeps = qtype is not None and (qtype.block_size or (qtype.float_format and qtype.float_format.nan is not None))
    row = convention if isinstance(convention, Convention) else fastq.CONVENTIONS[convention]
    symmetric = random.random() < 0.4
    if random.random() < 0.95:
        symmetric &= "symmetric" in row.schemes and (qtype is None or qtype.bits > 1)
        symmetric |= "asymmetric" not in row.schemes
    return Combination(
        number,
        operation,
        dtype,
        format,
        convention,
        symmetric,
        random.choice(NANS if keeps or random.random() < 0.02 else NANS[:2]),
        random.random() < 0.6,
        random.choice(SCALES),
        random.choice(SCALES),
        tuple(random.sample(BLOCKS, 2)),
        _range(random, operation),
    )


# operations that have no use for a format, or none in some cases, and for an input dtype
_WITHOUT = {
    "format": {"minmax", "compare", "binarize", "bitround", "bit_information", "unpack_array"},
    "dtype": {"dequantize", "dequantize_method", "dequantize_linear", "part", "reshape", "explain", "nest_scale"}
    | {"unpack_array", "pack", "unpack", "requantize", "gguf_dequantize"},
}


@functools.cache
def covering_combinations():
    """Numbers of combinations: few that together have every operation, dtype and format, then each pair of the two."""

    def seen(of):
        kinds = {("dtype", of.dtype), ("format", of.format), ("operation", of.operation)}
        return {(axis, value) for axis, value in kinds if of.operation not in _WITHOUT.get(axis, ())}

    def formats(of):
        return {(of.operation, of.format)} if of.operation not in _WITHOUT["format"] else set()

    formats_of = {name: _FORMATS_OF.get(name, FORMATS) for name in OPERATIONS if name not in _WITHOUT["format"]}
    pairs = {(name, format) for name, each in formats_of.items() for format in each}
    single = {("format", format) for _, format in pairs} | {("dtype", name) for name in INPUTS}
    few = _covering(single | {("operation", name) for name in OPERATIONS}, seen)
    return [*dict.fromkeys([*few, *_covering(pairs, formats)])]


def _covering(values, of):
    """The first combinations that have values which no earlier one has, until there are all."""
    left, found, numbers = set(values), [], itertools.count()
    while left:
        new = left & of(combination(number := next(numbers)))
        found += [number] * bool(new)
        left -= new
    return found


# --- the largest sizes ------------------------------------------------------------------------------------------------

# operations whose results go past the cache
STREAMING = {"quantize", "quantize_given", "fake_quantize", "fake_quantize_given", "quantize_linear"}
STREAMING |= {"dequantize_linear", "dequantize", "dequantize_method", "gguf_quantize", "gguf_dequantize"}


def streams(of):
    """Whether a combination has cases of the largest size: not where the reference would search for minutes."""
    return of.operation in STREAMING and of.range == "minmax"


@functools.cache
def share_streamed(format):
    """Which part of all cases is of a format and may be of the largest size."""
    share = 0.0
    for operation in STREAMING:
        formats = _FORMATS_OF.get(operation, FORMATS)
        part = formats.get(format, 0) / sum(formats.values()) * (1 - SEARCHED * (operation in SEARCHING))
        share += part * OPERATIONS[operation] / sum(OPERATIONS.values())
    return share
