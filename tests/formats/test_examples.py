"""Literal examples of every convention, format and table of numbers: the rows of examples.toml.

The numbers come from the systems themselves, from other libraries, or from the definition by hand, as each table says.
"""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq import reference
from fastq.formats.codebooks import CODEBOOKS
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES, as_qtype

EXAMPLES = tomllib.loads((Path(__file__).parent / "examples.toml").read_text(encoding="utf-8"))


def column(table, k, dtype=np.float32):
    """Return a column of a table as an array."""
    return np.array([row[k] for row in table["rows"]], dtype)


def options_of(table):
    """Return the arguments that say how parameters are taken from an array."""
    options = {name: table[name] for name in ("convention", "symmetric", "block_size") if name in table}
    return options | ({"axis": 0} if "block_size" in table else {})


def same_numbers(found, literals):
    """Assert that numbers are the literal ones as float32: zeros with their signs, NaN whatever its bits."""
    found, literals = (np.where(np.isnan(numbers), np.float32(np.nan), numbers) for numbers in (found, literals))
    same_bytes(found.astype(np.float32), literals.astype(np.float32))


def same_parameters(found, scale, zero_point):
    """Assert that the scale and the zero point of an array are the literal ones; other systems keep them in float32."""
    same_numbers(found.scale.reshape(-1)[:1], np.array([scale]))
    assert np.float32(found.zero_point.flat[0]) == np.float32(zero_point), f"different: {found}"


def check_ranges(api, table):
    size = 32 if "nbits" in table["convention"] else 2
    options = options_of(table) | ({"axis": 0, "block_size": size} if size > 2 else {})
    for lo, hi, scale, zero_point, _ in table["rows"]:
        x = np.tile(np.array([lo, hi], np.float32), size // 2)
        same_parameters(api.choose_qparams(x, table["dtype"], **options), scale, zero_point)


def check_arrays(api, table):
    q = api.quantize(column(table, 0), table["dtype"], **options_of(table))
    same_parameters(q, table["scale"], table["zero_point"])
    same_bytes(q.unpacked().astype(int), column(table, 1, int))
    same_numbers(api.dequantize(q), column(table, 2))


def check_codes(api, table):
    given = np.float32(table["scale"]), table["zero_point"]
    x, codes, values = np.tile(column(table, 0), 5), np.tile(column(table, 1, int), 5), np.tile(column(table, 2), 5)
    found = api.quantize_linear(x, *given, table["dtype"], convention=table["convention"], nan="zero")
    same_bytes(found.astype(int), codes)
    same_numbers(api.dequantize_linear(found, *given, convention=table["convention"]), values)


def check_floats(api, table):
    qtype = as_qtype(table["dtype"], casts=True)
    nan = "keep" if np.isnan(column(table, 0)).any() else "raise"
    x, codes, values = np.tile(column(table, 0), 5), np.tile(column(table, 1, int), 5), np.tile(column(table, 2), 5)
    found = api.quantize_linear(x, np.float32(1), None, table["dtype"], saturate=table["saturate"], nan=nan)
    whole = api.unpack(found, qtype, shape=x.shape) if qtype.packed else found
    same_bytes(whole.view(f"u{whole.itemsize}").astype(int), codes)
    if qtype.bits <= 8:
        same_numbers(api.dequantize_linear(whole, np.float32(1)), values)


def check_scales(api, table):
    scales = column(table, 0, np.uint8).view(FLOAT_FORMATS[table["dtype"]].dtype)
    for scale, value in zip(scales, column(table, 1), strict=True):
        same_numbers(api.dequantize_linear(np.array([-1, 1], np.int8), scale), np.array([-1, 1], np.float32) * value)


def block_of(table):
    """Return the x of a table, and zeros up to the end of a block."""
    x = np.zeros(64, np.float32)
    x[: len(table["rows"])] = column(table, 0)
    return x[: QTYPES[table["dtype"]].block_size or table["block_size"]]


def check_tables(api, table):
    q = api.quantize(block_of(table), table["dtype"], axis=0, block_size=table["block_size"])
    same_numbers(q.scale, np.array([table["scale"]]))
    same_bytes(q.unpacked().astype(int)[: len(table["rows"])], column(table, 1, int))
    same_numbers(api.dequantize(q)[: len(table["rows"])], column(table, 2))


def check_blocks(api, table):
    q = api.quantize(block_of(table), table["dtype"], convention=table.get("convention", "onnx"))
    whole = q.unpacked()
    codes = whole.view(f"{'i' if table['dtype'] == 'mxint8' else 'u'}1").astype(int)
    same_numbers(q.scale.astype(np.float32), np.array([table["scale"]]))
    same_bytes(codes[: len(table["rows"])], column(table, 1, int))
    same_numbers(api.dequantize(q)[: len(table["rows"])], column(table, 2))


def check_packing(api, table):
    for dtype, codes, packed, _ in table["rows"]:
        codes = np.array(codes, as_qtype(dtype).storage)
        if as_qtype(dtype).packed:
            same_bytes(api.pack(codes, dtype), np.array(packed, np.uint8))
            same_bytes(api.unpack(np.array(packed, np.uint8), dtype, shape=codes.shape), codes)
        else:
            same_bytes(codes.view(np.uint8), np.array(packed, np.uint8))


CHECKS = {
    "ranges": check_ranges,
    "arrays": check_arrays,
    "codes": check_codes,
    "floats": check_floats,
    "scales": check_scales,
    "tables": check_tables,
    "blocks": check_blocks,
    "packing": check_packing,
}


def name_of(kind, table):
    """Return what tells a table apart: its convention, format, scheme and scale."""
    keys = ("convention", "dtype", "symmetric", "saturate", "scale")
    return "-".join([kind, *(f"{table[key]}" for key in keys if key in table)])


TABLES = [pytest.param(kind, table, id=name_of(kind, table)) for kind in EXAMPLES for table in EXAMPLES[kind]]


# by ranges of arrays and blocks kernels agree with the reference in test_each_once.py, and the reference has all rows
BY_RANGES = "arrays", "blocks"


@pytest.mark.slow(
    "compiles a kernel or two a table",
    quick=lambda kind, table, api: api is reference or kind not in BY_RANGES or table.get("convention") == "onnx",
)
@pytest.mark.parametrize("api", [fastq, reference], ids=["fastq", "reference"])
@pytest.mark.parametrize(("kind", "table"), TABLES)
def test_rows(kind, table, api):
    # contract 2.11, 2.12, 2.13, 2.14, 5.9, 5.10, 5.11, 5.12, 5.21 and 5.23
    CHECKS[kind](api, table)


# --- what has to be there -----------------------------------------------------------------------------------------


def test_nothing_is_left_out():
    conventions = {table["convention"] for kind in ("ranges", "arrays", "codes") for table in EXAMPLES[kind]}
    assert conventions == {table["convention"] for table in EXAMPLES["ranges"]}
    own = {(table["convention"], table["dtype"]) for table in EXAMPLES["blocks"] if "convention" in table}
    named = {(row.name, name) for row in fastq.CONVENTIONS.values() for name in row.formats}
    named = {(row, name) for row, name in named if name in QTYPES and QTYPES[name].block_size}
    assert own <= named
    assert {row for row, _ in own} == {row for row, _ in named}
    assert conventions | {row for row, _ in own} == set(fastq.CONVENTIONS)
    dtypes = {table["dtype"] for kind in ("floats", "scales", "tables", "blocks") for table in EXAMPLES[kind]}
    assert dtypes == {*FLOAT_FORMATS, *CODEBOOKS, *(row.name for row in QTYPES.values() if row.block_size)}
    integers = {row.name for row in QTYPES.values() if row.bits <= 8 and not (row.element or row.block_size)}
    assert {row[0] for row in EXAMPLES["packing"][0]["rows"]} == integers


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_table_says_where_it_comes_from_and_each_row_what_it_shows(kind):
    for table in EXAMPLES[kind]:
        assert table["source"]
        assert len({len(row) for row in table["rows"]}) == 1
        assert all(isinstance(row[-1], str) and row[-1] for row in table["rows"])
    rows = [len(table["rows"]) for table in EXAMPLES[kind] if table.get("saturate", True)]
    assert min(rows) >= 5
