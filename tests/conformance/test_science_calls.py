"""What nibabel, ecCodes, pyEDFlib and astropy do beyond their rows, and which calls of fastq do the same."""

import dataclasses
import shutil
import subprocess
import tempfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from systems import science

import fastq

X = np.random.default_rng(0).normal(280, 15, (50, 40))


def saved(x, dtype):
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed; its calls are not compared")
    image = nibabel.Nifti1Image(x, np.eye(4))
    image.set_data_dtype(dtype)
    stream = BytesIO()
    image.to_stream(stream)
    return nibabel.Nifti1Image.from_bytes(stream.getvalue())


@pytest.mark.parametrize("dtype", ["int16", "uint8"])
def test_nibabel_reads_in_float64(dtype):
    x = X.astype(np.float32)
    p = fastq.choose_qparams(x, dtype, convention="nibabel")
    q = fastq.quantize(x, qparams=p)
    wide = dataclasses.replace(q, qparams=dataclasses.replace(p, computed="float64"))
    assert np.array_equal(wide.dequantize(), saved(x, dtype).get_fdata())


@pytest.mark.parametrize("dtype", ["int16", "uint8"])
@pytest.mark.parametrize("sign", [1, -1])
def test_nan_under_nibabel_counts_as_0(dtype, sign):
    x = sign * X.astype(np.float32)
    x[3, 7] = np.nan
    read, q = saved(x, dtype), fastq.quantize(x, dtype, convention="nibabel", nan="zero")
    assert np.array_equal(read.dataobj.get_unscaled(), q.codes)
    assert (np.float32(read.dataobj.slope), np.float32(read.dataobj.inter)) == (q.scale, q.zero_point)


def images():
    rng = np.random.default_rng(5)
    yield from (rng.normal(0, 1, (1024, 256)), rng.uniform(3, 9, (1024, 256)), rng.uniform(-9, 2, (1024, 256)))
    yield from (rng.normal(0, 1e37, (512, 256)), rng.normal(0, 1e-36, (512, 256)), rng.integers(-9, 9, (512, 256)) / 4)


@pytest.mark.parametrize("code", ["int32", "uint32"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nibabel_with_codes_of_32_bits(dtype, code):
    for image in images():
        x = image.astype(dtype)
        read = saved(x, code)
        codes = np.asarray(read.dataobj.get_unscaled())
        lo, hi = float(x.min()), float(x.max())
        step = (hi - lo) / (2.0**32 - {"int32": 128, "uint32": 256}[code])
        if code == "int32":
            lo += 2.0**31 * step
        elif -lo > hi:  # codes count from the end that is nearer to 0
            lo, step = hi, -step
        slope, offset = np.float32(step), np.float32(lo)
        assert (np.float32(read.dataobj.slope), np.float32(read.dataobj.inter)) == (slope, offset)
        found = fastq.quantize_linear(x, x.dtype.type(slope), x.dtype.type(offset), code, convention="nibabel")
        assert np.array_equal(found, codes)
        values = fastq.dequantize_linear(found, np.float64(slope), np.float64(offset), convention="nibabel")
        assert np.array_equal(values, read.get_fdata())


@pytest.mark.parametrize(("dtype", "code"), [("float64", "int32"), ("float64", "uint32"), ("float32", "uint32")])
def test_cdo_with_codes_of_32_bits(dtype, code):
    """The last step of float32 may be beyond the codes: with int32 an error of CDO, with uint32 stored as 0."""
    pytest.importorskip("netCDF4", reason="netCDF4 is not installed; CDO gets no files")
    if shutil.which("cdo") is None:
        pytest.skip("cdo is not installed")
    compared = 0
    for image in images():
        x = image.astype(dtype)
        try:
            codes, scale, offset = science.packed_by(x, science.cdo_pack(code))
        except subprocess.CalledProcessError:  # of 1e-36 in float32
            continue
        found = fastq.quantize_linear(x, scale, offset, code, convention="cdo")
        steps = ((x.astype(np.float64) - np.float64(offset)) / np.float64(scale)).astype(dtype)
        lost = steps.astype(np.float64) >= 2.0**32
        assert not codes[lost].any()
        assert np.array_equal(found[~lost], codes[~lost])
        compared += np.count_nonzero(~lost)
    assert compared > 10**6


def message(x, **keys):
    """The reference value, the exponents of 2 and 10, the bits and the values of a message of GRIB."""
    eccodes = pytest.importorskip("eccodes", reason="eccodes is not installed; its calls are not compared")
    handle = eccodes.codes_grib_new_from_samples("GRIB2")
    try:
        for name, value in ({"packingType": "grid_simple"} | keys).items():
            eccodes.codes_set(handle, name, value)
        eccodes.codes_set_values(handle, x.reshape(-1).astype(np.float64))
        names = "referenceValue", "binaryScaleFactor", "decimalScaleFactor", "bitsPerValue"
        found = (eccodes.codes_get(handle, name) for name in names)
        return *found, eccodes.codes_get_values(handle).reshape(x.shape)
    finally:
        eccodes.codes_release(handle)


@pytest.mark.parametrize("digits", [0, 1, 2])
def test_decimal_precision_of_grib(digits):
    reference, exponent, decimals, _, values = message(X, decimalPrecision=digits)
    assert (exponent, decimals) == (0, digits)
    power = 10.0**digits
    smallest = fastq.choose_qparams(X * power, "uint16", convention="grib").zero_point
    assert smallest == reference
    codes = fastq.quantize_linear(X * power, 1.0, reference, "uint16", convention="grib")
    steps = fastq.dequantize_linear(codes, np.float64(1), reference, convention="grib")
    assert np.array_equal(steps * 10.0**-digits, values)


def codes_of_message(x, bits):
    """The codes of section 7 of a message, the highest bit first, as int64."""
    eccodes = pytest.importorskip("eccodes", reason="eccodes is not installed; its calls are not compared")
    handle = eccodes.codes_grib_new_from_samples("GRIB2")
    try:
        eccodes.codes_set(handle, "packingType", "grid_simple")
        eccodes.codes_set(handle, "bitsPerValue", bits)
        eccodes.codes_set_values(handle, x.reshape(-1).astype(np.float64))
        content = eccodes.codes_get_message(handle)
    finally:
        eccodes.codes_release(handle)
    packed = np.frombuffer(content, np.uint8)[: -len(b"7777")][-(x.size * bits // 8) :]
    return np.unpackbits(packed).reshape(*x.shape, bits).astype(np.int64) @ (1 << np.arange(bits)[::-1])


@pytest.mark.parametrize("bits", [17, 24, 31, 32])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_grib_with_more_than_16_bits(dtype, bits):
    for image in images():
        x = image.astype(dtype)
        if not 1e-30 < np.abs(x).max() < 1e30:  # ecCodes multiplies some of these by a power of ten
            continue
        reference, exponent, _, _, values = message(x, bitsPerValue=bits)
        scale = np.float64(2.0**exponent)
        codes = fastq.quantize_linear(x, scale, reference, "uint32", convention="grib")
        assert codes.max() >= 2 ** (bits - 1)
        assert np.array_equal(codes, codes_of_message(x, bits))
        assert np.array_equal(fastq.dequantize_linear(codes, scale, reference, convention="grib"), values)


@pytest.mark.parametrize("bits", [1, 9, 12, 15])
def test_other_widths_of_grib(bits):
    format_of_codes = {"dtype": "uint1"} if bits == 1 else {"dtype": "uint16", "bits": bits}
    for low in np.linspace(200, 270, 40):
        x = np.clip(X, low, None)
        reference, exponent, decimals, found, values = message(x, bitsPerValue=bits)
        q = fastq.quantize(x, convention="grib", **format_of_codes)
        assert (decimals, found) == (0, bits)
        assert (q.scale, q.zero_point) == (2.0**exponent, reference)
        assert np.array_equal(q.dequantize(), values)


@pytest.mark.parametrize("value", [0.001, -0.001, 3.7, 1e6 / 7, -1e-40, 1e-40])
def test_a_constant_of_grib_is_its_reference_value(value):
    reference, exponent, _, bits, values = message(np.full((3, 4), value), bitsPerValue=16)
    q = fastq.quantize(np.full((3, 4), value), "uint16", convention="grib")
    assert bits == 0
    assert (q.scale, q.zero_point) == (2.0**exponent, reference)
    assert np.array_equal(q.dequantize(), values)
    assert reference <= value


@pytest.mark.filterwarnings("ignore:Physical m")
def test_edf_reads_by_limits_of_8_characters():
    library = pytest.importorskip("pyedflib", reason="pyedflib is not installed; its calls are not compared")
    x = np.random.default_rng(1).uniform(-99, 99, 5120)
    limits = {"physical_min": -123.25, "physical_max": 150.5}
    x[:7] = [-123.25, 150.5, 200.0, -200.0, 1e10, np.nan, np.inf]
    p = fastq.choose_qparams(np.array([*limits.values()]), "int16", convention="edf")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "x.edf")
        with library.EdfWriter(path, 1, file_type=library.FILETYPE_EDFPLUS) as file:
            header = {"label": "x", "dimension": "uV", "sample_frequency": 256, "prefilter": "", "transducer": ""}
            file.setSignalHeader(0, header | limits | {"digital_min": -32768, "digital_max": 32767})
            file.writeSamples([x])
        with library.EdfReader(path) as file:
            codes, values = file.readSignal(0, digital=True), file.readSignal(0)
    q = fastq.quantize(x, qparams=p, nan="zero")
    assert codes[4:7].tolist() == [-32768] * 3
    same = np.r_[:4, 7 : x.size]
    assert np.array_equal(q.codes[same], codes[same])
    assert np.array_equal(q.dequantize()[same], values[same])


def tiles_of_fits(x, **options):
    """ZSCALE and ZZERO of an image compressed by rows, and the values that are read."""
    fits = pytest.importorskip("astropy.io.fits", reason="astropy is not installed; its calls are not compared")
    stream = BytesIO()
    image = fits.CompImageHDU(x, compression_type="GZIP_1", **options)
    fits.HDUList([fits.PrimaryHDU(), image]).writeto(stream)
    with fits.open(BytesIO(stream.getvalue())) as file:
        values = file[1].data.copy()
    with fits.open(BytesIO(stream.getvalue()), disable_image_compression=True) as file:
        table = file[1].data
        return table["ZSCALE"].astype(np.float64), table["ZZERO"].astype(np.float64), values


IMAGE = np.random.default_rng(2).normal(50, 9, (1024, 1024))


@pytest.mark.parametrize("level", [16.0, -0.01])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fits_without_dithering(dtype, level):
    x = IMAGE.astype(dtype)
    scale, offset, values = tiles_of_fits(x, quantize_level=level)
    codes = fastq.quantize_linear(x, scale, offset, "int16", axis=0, convention="fits")
    found = fastq.dequantize_linear(codes, scale, offset, axis=0, convention="fits")
    assert np.array_equal(found.astype(dtype), values)
    assert np.array_equal(np.trunc(x.min(axis=1) / scale + 0.5) * scale, offset)


def numbers_of_dithering(rows, columns, seed):
    """The numbers that FITS adds to each row: of a generator by Park and Miller, from a place of their own."""
    numbers = np.empty(10_000)
    state = 1
    for k in range(10_000):
        state = 16807 * state % (2**31 - 1)
        numbers[k] = np.float32(state / (2**31 - 1))
    assert state == 1043618065  # which the standard says
    found = np.empty((rows, columns))
    for row in range(rows):
        start = (row + seed - 1) % 10_000
        taken = 0
        place = int(numbers[start] * np.float32(500))
        while taken < columns:
            part = numbers[place : place + columns - taken]
            found[row, taken : taken + part.size] = part
            taken += part.size
            start = (start + 1) % 10_000
            place = int(numbers[start] * np.float32(500))
    return found


@pytest.mark.parametrize("seed", [5, 9955])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fits_with_subtractive_dithering(dtype, seed):
    x = IMAGE.astype(dtype)
    scale, offset, values = tiles_of_fits(x, quantize_level=-0.01, quantize_method=1, dither_seed=seed)
    scale, offset = scale[:, None], offset[:, None]
    noise = numbers_of_dithering(*x.shape, seed) - 0.5
    codes = fastq.quantize_linear((x - offset) / scale + noise, 1.0, 0.0, "int16", convention="fits")
    found = (codes - noise) * scale + offset
    assert np.array_equal(found.astype(dtype), values)


@pytest.mark.parametrize("seed", [5, 9955])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fits_with_zeros_that_are_kept(dtype, seed):
    """The second way of dithering has a code for zeros alone, -2147483646, and its offset puts all others above it."""
    x = IMAGE.astype(dtype)
    x[::3, ::7] = 0
    scale, offset, values = tiles_of_fits(x, quantize_level=-0.01, quantize_method=2, dither_seed=seed)
    scale, offset = scale[:, None], offset[:, None]
    assert np.array_equal(x.min(axis=1, keepdims=True) + scale * 2147483637, offset)
    noise = numbers_of_dithering(*x.shape, seed) - 0.5
    codes = fastq.quantize_linear((x - offset) / scale + noise, 1.0, 0.0, "int32", convention="fits")
    assert codes.min() > -2147483646
    found = np.where(x == 0, 0, (codes - noise) * scale + offset)
    assert np.array_equal(found.astype(dtype), values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fits_with_codes_of_32_bits(dtype):
    x = IMAGE.astype(dtype)
    scale, offset, values = tiles_of_fits(x, quantize_level=-1e-6)
    codes = fastq.quantize_linear(x, scale, offset, "int32", axis=0, convention="fits")
    assert codes.max() > 2**25
    found = fastq.dequantize_linear(codes, scale, offset, axis=0, convention="fits")
    assert np.array_equal(found.astype(dtype), values)
