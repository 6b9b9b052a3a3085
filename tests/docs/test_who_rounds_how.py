"""docs/who-rounds-how.md: it has every convention, names are found in it, and its words are what is computed."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq import reference
from fastq.formats.describe import (
    PARTS,
    ends_words,
    in_every_case,
    of_own_formats,
    own_formats,
    rounding_of_format,
    rounding_words,
)
from fastq.formats.qtypes import QTYPES, as_qtype

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

SPEC = importlib.util.spec_from_file_location("who_rounds_how", DOCS / "who_rounds_how.py")
made = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(made)

PAGE = made.PAGE.read_text(encoding="utf-8")
ROWS = re.split(r"^\* - ", PAGE, flags=re.MULTILINE)[1:]
ENTRIES = [entry for those in made.entries().values() for entry in those]


def name_of(entry):
    return entry.get("convention") or entry["system"]


def test_each_convention_has_an_entry():
    assert made.unmatched() == []


def test_a_convention_without_an_entry_is_named(monkeypatch):
    monkeypatch.setattr(made, "CONVENTIONS", {**fastq.CONVENTIONS, "new": fastq.Convention("new")})
    with pytest.raises(
        ValueError, match=r"^who-rounds-how.toml needs an \[\[entry\]\] with calls for convention 'new'$"
    ):
        made.page()
    monkeypatch.setattr(made, "CONVENTIONS", {name: row for name, row in fastq.CONVENTIONS.items() if name != "hqq"})
    assert made.unmatched() == ["who-rounds-how.toml has an entry for 'hqq', which is no convention"]


def test_the_pages_are_those_of_the_data():
    assert made.page() == PAGE, "run python docs/who_rounds_how.py"
    calls = made.CALLS.read_text(encoding="utf-8")
    assert made.calls_page(calls) == calls, "run python docs/who_rounds_how.py"


def test_each_convention_and_each_other_system_has_a_row_and_a_line_of_calls():
    assert len(ROWS) == len(ENTRIES) > len(fastq.CONVENTIONS) + 20
    lines = made.CALLS.read_text(encoding="utf-8").splitlines()
    for name in fastq.CONVENTIONS:
        assert sum(row.startswith(f"**[{name}]") for row in ROWS) == 1
        assert any(f'convention="{name}"' in line or name == "onnx" for line in lines if line.startswith("| ")), name
    assert sum(line.count(" | ") == 1 for line in lines) >= sum(len(entry["calls"]) for entry in ENTRIES)


FOUND = {
    "quantize_embeddings": "sentence-transformers",
    "grid_simple": "grib",
    "binaryScaleFactor": "grib",
    "img_as_ubyte": "scikit-image: bytes and words",
    "img_as_int": "scikit-image: signed words",
    "quantize_4bit": "bitsandbytes: nf4 and fp4",
    "scl_slope": "nibabel",
    "ncpdq": "nco",
    "cdo pack": "cdo",
    "convertScaleAbs": "OpenCV: by a factor",
    "to_dtype": "torchvision",
    "gdal_translate": "GDAL: bytes",
    "QuantizeLinear": "onnx",
    "quantize_per_tensor": "torch",
    "fake_quantize_per_tensor_affine": "torch-fake-quantize",
    "Int8WeightOnlyConfig": "torchao-int8",
    "compress_weights": "nncf",
    "mx.quantize": "mlx",
    "Quantizer.quantize": "hqq",
    "QT_8bit": "faiss",
    "vec_quantize_int8": "sqlite-vec",
    "binary_quantize": "Bits, the first in the highest: sentence-transformers, pgvector, NumPy",
    "score_brute_force": "ScaNN: brute force with int8",
    "halfvec": "pgvector: halfvec",
    "VADD": "Redis: vector sets",
    "TINYINT": "DuckDB: casts to TINYINT",
    "llama-quantize": "llama.cpp and gguf: blocks of GGUF",
    "astype(np.int8)": "NumPy: casts to integers",
    "PCM_16": "pcm",
    "CompImageHDU": "fits",
    "physical_min": "edf",
    "significant_digits": "netCDF-C: quantize",
    "scaleoffset": "hdf5-scaleoffset",
    "ScaleCalculationMode.RCEIL": "torchao-rceil",
    'mode="mxfp4"': "mlx-float",
}


@pytest.mark.parametrize("term", FOUND)
def test_names_are_found(term):
    """As the search of the page finds them: in the text of a row, whatever the case of letters."""
    rows = [row for row in ROWS if term.lower() in re.sub(r"[`*]", "", row).lower()]
    assert any(re.match(rf"\*\*\[?{re.escape(FOUND[term])}\b", row) for row in rows), [row[:40] for row in rows]


@pytest.mark.parametrize("entry", ENTRIES, ids=name_of)
def test_words_are_known(entry):
    assert entry["ends"].startswith(made.ENDS)
    assert entry["order"].startswith(made.ORDERS)
    assert entry["nan"]
    assert entry["calls"]
    cells = made.cells_of(entry)
    assert all(cells[:-1])
    if "convention" in entry:
        row = fastq.CONVENTIONS[entry["convention"]]
        assert {words for words, _ in in_every_case(row, rounding_words)} <= set(ROUNDING)
        assert {words for words, _ in of_own_formats(row, rounding_of_format)} <= set(OF_FLOATS)
    else:
        assert cells.rounding in {*ROUNDING, *OTHERS}


def test_cells_of_blocks_name_their_formats():
    row = fastq.Convention("blocks", formats=("mxfp4", "mxfp8_e4m3", "nvfp4"), schemes=("symmetric",))
    code, scale, zero_point, rounding, ends = made._of_convention(row)
    assert code == "`nearest(x / scale)` (mxfp8_e4m3, mxfp4); `nearest(x * ((1 / tensor_scale) / scale))` (nvfp4)"
    assert scale.startswith("`2**(floor(log2(largest)) - 8)` (mxfp8_e4m3); `2**(floor(log2(largest)) - 2)` (mxfp4); ")
    assert (zero_point, rounding, ends) == ("none", "nearest, ties to even", "")


@pytest.mark.parametrize("entry", ENTRIES, ids=name_of)
def test_pages_and_tests_of_entries_are_there(entry):
    domain = next(domain for domain, those in made.entries().items() if entry in those)
    for link in (made.page_of(entry, domain), *re.findall(r"\]\(((?!http)[^)]+)", str(entry["calls"]))):
        page, _, anchor = link.partition("#")
        text = (DOCS / page).read_text(encoding="utf-8")
        headings = [re.sub(r"[^\w\s-]", "", each.lower()) for each in re.findall(r"^##* (.*)$", text, re.MULTILINE)]
        assert not anchor or anchor in [each.strip().replace(" ", "-") for each in headings], link
    if "convention" not in entry:
        assert entry["version"]
        assert ("values" in entry) == ("test" in entry)
    if "test" in entry:
        path, _, test = entry["test"].partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


# What the words say, computed with numbers on ties and beyond the codes -----------------------------------------------

STEPS = np.array([-2.5, -1.5, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.5, 2.5, 3.0], np.float32)


def away(x):
    return np.trunc(x + np.copysign(0.5, x))


# codes of steps, with a zero point z
ROUNDING = {
    "nearest, ties to even": lambda x, z: np.rint(x) + z,
    "nearest, ties to the even code": lambda x, z: np.rint(x + z),
    "nearest, ties away from zero": lambda x, z: away(x) + z,
    "nearest, ties away from code 0": lambda x, z: away(x + z),
    "nearest, ties up": lambda x, z: np.floor(x + z + 0.5),
    "down": lambda x, z: np.floor(x + z),
    "towards zero": lambda x, z: np.trunc(x) + z,
    "towards code 0": lambda x, z: np.trunc(x + z),
    "nearest, ties to even, to 32 bits, and then down": lambda x, z: np.floor(x) + z,
}
# codes of the middles of floats that follow each other, the first one that of codes 1 and 2
OF_FLOATS = {
    "nearest, ties to even": [2, 2, 4, 4],
    "nearest, ties to the smaller magnitude": [1, 2, 3, 4],
}
OTHERS = (
    *OF_FLOATS,
    "nearest, ties to the lower number",  # tests/kernels compares tables with their thresholds
    "nearest, ties away from zero (Q8_0); other types by their own rules",
    "none: one bit",
)


def integers(row):
    """The widest integers of a convention, and those that it treats in a way of their own."""
    known = [QTYPES[name] for name in row.formats or ("int8", "uint8") if name in QTYPES]
    known = [qtype for qtype in known if not qtype.element]
    own = [name for name, *_ in row.variants if name in QTYPES and QTYPES[name].bits > 1 and not QTYPES[name].element]
    return {max(known, key=lambda qtype: qtype.bits).name: None, **dict.fromkeys(own)} if known else {}


CASES = [
    (name, dtype, scheme, part)
    for name, row in fastq.CONVENTIONS.items()
    for dtype in integers(row)
    for scheme in row.schemes
    for part in PARTS
]


def codes_on_ties(api, row, dtype, scheme, part):
    """Codes of STEPS, and what is added to whole steps: a zero point of 1 where there can be one."""
    qtype, offset = QTYPES[dtype], row.zero_point == "offset"
    zero_point = qtype.middle if scheme == "symmetric" else (0.0 if offset else 1)
    shape, options = {
        "array": ((), {}),
        "channels": ((2,), {"axis": 0}),
        "blocks": ((2, 2), {"axis": 1, "block_size": STEPS.size}),
    }[part]
    x = np.tile(STEPS, (2, 2))
    scale, zero_points = np.ones(shape, np.float32), np.full(shape, zero_point)
    codes = api.quantize_linear(x, scale, zero_points, dtype, convention=row, **options)
    codes = fastq.unpack(codes, dtype, shape=x.shape) if qtype.packed else codes
    assert np.array_equal(codes[0], codes[1])
    return codes[0, : STEPS.size].astype(np.float64), start_of(row, qtype) if offset else zero_point


def start_of(row, qtype):
    """The code of an offset."""
    return qtype.qmin if row.offset_code == "lowest" else 0


@pytest.mark.slow("compiles a kernel a case", quick=lambda api, name, dtype, scheme, part: api is reference)
@pytest.mark.parametrize("api", [fastq, reference])
@pytest.mark.parametrize(("name", "dtype", "scheme", "part"), CASES)
def test_ties_are_as_the_words_say(api, name, dtype, scheme, part):
    row = fastq.CONVENTIONS[name]
    words = rounding_words(row.under(scheme == "symmetric", part, dtype))
    codes, start = codes_on_ties(api, row, dtype, scheme, part)
    expected = np.clip(ROUNDING[words](STEPS.astype(np.float64), start), QTYPES[dtype].qmin, QTYPES[dtype].qmax)
    assert np.array_equal(codes, expected), words


@pytest.mark.parametrize("words", ROUNDING)
def test_a_wrong_word_is_found(words):
    """Codes of one word are those of no other, so a wrong one fails the test above."""
    steps = STEPS.astype(np.float64)
    same = [other for other, rule in ROUNDING.items() if np.array_equal(rule(steps, 1), ROUNDING[words](steps, 1))]
    cut = {"down", "nearest, ties to even, to 32 bits, and then down"}
    assert same == [words] or set(same) == cut


def test_a_wrong_word_of_a_convention_is_found(monkeypatch):
    wrong = {"half_even": "nearest, ties away from zero", "half_away": "nearest, ties to even"}
    monkeypatch.setattr("fastq.formats.describe._OF_NUMBERS", wrong)
    for name, dtype, scheme in (
        ("onnx", "int8", "asymmetric"),
        ("tflite", "int8", "symmetric"),
        ("flac", "int16", "symmetric"),
    ):
        with pytest.raises(AssertionError, match="nearest, ties"):
            test_ties_are_as_the_words_say(reference, name, dtype, scheme, "array")


BLOCKS = [
    (name, qtype.name)
    for name, row in fastq.CONVENTIONS.items()
    for qtype in own_formats(row)
    if qtype.element and not qtype.has_tensor_scale
]


@pytest.mark.parametrize(("name", "dtype"), BLOCKS)
def test_ties_of_blocks_are_as_the_words_say(name, dtype):
    """Of a block of positive and one of negative numbers, each with the largest number of the format as well."""
    row, qtype = fastq.CONVENTIONS[name], QTYPES[dtype]
    numbers = np.array([qtype.float_format.number(code) for code in range(1, 6)])
    x = np.zeros((1, 64), np.float32)
    x[0, 31], x[0, 63] = qtype.largest_element, -qtype.largest_element
    scale = float(reference.quantize(x, dtype, convention=row).scale.reshape(-1)[0])
    x[0, :4] = (numbers[1:] + numbers[:-1]) / 2 * scale
    x[0, 32:36] = -x[0, :4]
    codes = reference.quantize(x, dtype, convention=row).unpacked().view(np.uint8)[0]
    expected = OF_FLOATS[rounding_of_format(qtype, row.under(True, "blocks", dtype))]
    assert np.array_equal(codes[:4], expected)
    assert np.array_equal(codes[32:36], np.array(expected) + (1 << (qtype.bits - 1)))


def named_ends(row, scheme, qtype):
    """The ends that the words name, else those of the format."""
    words = ends_words(row)
    of_scheme = re.search(rf"\b{scheme}: ([^;]*)", words)
    words = of_scheme[1] if of_scheme else words
    if named := re.search(rf"\b{qtype} (-?\d+) to (-?\d+)", words):
        return tuple(map(int, named.groups()))
    return qtype.qmin + words.endswith("others alike"), qtype.qmax


@pytest.mark.parametrize(("name", "scheme"), [(n, s) for n, row in fastq.CONVENTIONS.items() for s in row.schemes])
def test_ends_are_as_the_words_say(name, scheme):
    row = fastq.CONVENTIONS[name]
    ramp, beyond = np.linspace(-2, 3, 64, dtype=np.float32), np.array([[-1e30, 1e30]], np.float32)
    for qtype in (QTYPES[each] for each in row.formats or ("int8", "uint8", "int4", "uint4") if each in QTYPES):
        if not (qtype.element or (qtype.bits == 1 and scheme == "symmetric")):
            q = reference.quantize(ramp, qtype.name, symmetric=scheme == "symmetric", convention=row)
            codes = reference.quantize(beyond, qparams=q.qparams).unpacked()
            assert sorted(codes[0].tolist()) == list(named_ends(row, scheme, qtype)), qtype


def test_the_words_name_ends_that_differ():
    assert named_ends(fastq.CONVENTIONS["onnx"], "symmetric", QTYPES["int8"]) == (-127, 127)
    assert named_ends(fastq.CONVENTIONS["onnx"], "symmetric", QTYPES["int4"]) == (-7, 7)
    assert named_ends(fastq.CONVENTIONS["onnx"], "asymmetric", QTYPES["int8"]) == (-128, 127)
    assert named_ends(fastq.CONVENTIONS["nco"], "asymmetric", QTYPES["int16"]) == (-32766, 32766)


@pytest.mark.parametrize("name", fastq.CONVENTIONS)
def test_nan_is_refused_or_0(name):
    """What the page says of fastq, whatever a system does."""
    row = fastq.CONVENTIONS[name]
    dtype, symmetric = (row.formats or ("int8",))[0], "asymmetric" not in row.schemes
    x = np.array([[1.0, np.nan, -2.0, 0.5]], np.float32)
    options = {"symmetric": symmetric, "convention": row}
    with pytest.raises(ValueError, match="NaN"):
        reference.quantize(x, dtype, **options)
    zero = reference.quantize(np.nan_to_num(x), dtype, **options)
    same_bytes(reference.quantize(x, dtype, nan="zero", **options).codes, zero.codes)


NAMES = {"np": np, "replace": replace, "CONVENTIONS": fastq.CONVENTIONS, "quantize_linear": reference.quantize_linear}
GIVEN = {"scale": 1.0, "scales": np.ones(1), "lengths": np.full(1, 127.0)}
GIVEN |= {"offset": 0.0, "zero_point": np.int8(1), "zero_points": np.ones(1, np.int8)}
LINEAR = [call for call in dict.fromkeys(made.our_calls()) if re.match(r"quantize_linear\(x[,.]", call)]
CASTS = [call for call in LINEAR if as_qtype(made.asked(call)[1]["dtype"], casts=True).element]


@pytest.mark.parametrize("call", [call for call in LINEAR if call not in CASTS])
def test_ties_of_calls_are_as_the_words_say(call):
    """STEPS of the scale that a call names."""
    function, arguments, written = made.asked(call)
    qtype, row = as_qtype(arguments["dtype"], casts=True), made._under(arguments, "asymmetric")
    scale, zero_point = (float(np.max(eval(written.get(name, "0"), NAMES | GIVEN))) for name in ("scale", "zero_point"))
    offset = row.zero_point == "offset"
    steps = STEPS.astype(np.float64)
    codes = eval(call, NAMES | GIVEN | {"x": steps[None] * scale + offset * zero_point})[0]
    rounded = ROUNDING[made._OF_CALLS[function](arguments, written).rounding]
    expected = rounded(steps, start_of(row, qtype) if offset else zero_point)
    assert np.array_equal(codes, np.clip(expected, qtype.qmin, qtype.qmax))


@pytest.mark.parametrize("call", CASTS)
def test_ties_of_casts_are_as_the_words_say(call):
    """The middles of the smallest numbers of the format, of whose codes every second one is even."""
    function, arguments, written = made.asked(call)
    qtype = as_qtype(arguments["dtype"], casts=True)
    codes = np.arange(1, 9, dtype=f"u{qtype.storage.itemsize}")
    numbers = codes.view(qtype.storage).astype(np.float64)
    x = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    found = eval(call, NAMES | {"x": x}).view(codes.dtype)
    assert made._OF_CALLS[function](arguments, written).rounding == "nearest, ties to even"
    assert np.array_equal(found, [2, 2, 4, 4, 6, 6, 8])


# Systems that are installed wherever these tests run ------------------------------------------------------------------


@pytest.mark.slow("compiles two kernels", quick=lambda dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_casts_of_numpy(dtype):
    x = np.random.default_rng(0).uniform(-129, 128, 1 << 20)
    x[::2] = np.rint(2 * x[::2]) / 2
    x = np.clip(x, -128, 127).astype(dtype)
    towards_zero, nearest = next(entry for entry in ENTRIES if "NumPy: casts" in name_of(entry))["calls"]
    for (_, ours), theirs in ((towards_zero, x.astype(np.int8)), (nearest, np.rint(x).astype(np.int8))):
        same_bytes(eval(ours.strip("`"), NAMES | {"x": x, "quantize_linear": fastq.quantize_linear}), theirs)
    assert np.array([300.0], dtype).astype(np.int8).tolist() == [44]


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "bfloat16"])
def test_casts_of_ml_dtypes(name):
    x = np.arange(1 << 16).astype(np.uint16).view(np.float16).astype(np.float32)
    x = x[~np.isnan(x)]
    theirs = x.astype(getattr(ml_dtypes, name))
    ours = reference.quantize_linear(x, 1.0, dtype=name, saturate=False)
    width = f"u{theirs.itemsize}"
    assert np.array_equal(ours.view(width)[~np.isnan(theirs)], theirs.view(width)[~np.isnan(theirs)])
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
