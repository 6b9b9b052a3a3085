"""nibabel, ecCodes, pyEDFlib, NCO and CDO: files of science, in memory or in a temporary folder."""

import math
import subprocess
import tempfile
from io import BytesIO
from pathlib import Path

import numpy as np
from oracle import Case, Quantized, System


def nibabel(x, case):
    """A NIfTI image saved with integers, and read again in the dtype of the data."""
    import nibabel as library

    image = library.Nifti1Image(x.reshape(-1, 256), np.eye(4))  # no side may be longer than int16 holds
    image.set_data_dtype(case.dtype)
    stream = BytesIO()
    image.to_stream(stream)
    read = library.Nifti1Image.from_bytes(stream.getvalue())
    slope, offset = read.dataobj.slope, read.dataobj.inter
    codes = np.asarray(read.dataobj.get_unscaled())
    values = read.get_fdata().reshape(x.shape) if x.dtype == np.float64 else None  # always computed in float64
    return Quantized(codes.reshape(x.shape), np.float32(slope), np.float32(offset), values)


def _sections(message):
    """Return the sections of a GRIB message of edition 2 by their numbers."""
    found, start = {}, 16
    while (size := int.from_bytes(message[start : start + 4], "big")) and message[start : start + 4] != b"7777":
        found[message[start + 4]] = message[start : start + size]
        start += size
    return found


def grib(x, case):
    """A message of grid_simple: its codes lie in section 7, the highest bit first."""
    import eccodes as library

    bits = int(case.dtype.removeprefix("uint"))
    message = library.codes_grib_new_from_samples("GRIB2")
    try:
        library.codes_set(message, "packingType", "grid_simple")
        library.codes_set(message, "bitsPerValue", bits)
        library.codes_set_values(message, x.reshape(-1).astype(np.float64))
        reference = library.codes_get_double(message, "referenceValue")
        exponent = library.codes_get_long(message, "binaryScaleFactor")
        values = library.codes_get_values(message)
        packed = np.frombuffer(_sections(library.codes_get_message(message))[7][5:], np.uint8)
    finally:
        library.codes_release(message)
    codes = np.zeros(x.shape, np.int64)
    if packed.size:  # a constant has no codes
        places = np.unpackbits(packed)[: x.size * bits].reshape(*x.shape, bits)
        codes = places @ (1 << np.arange(bits)[::-1])
    return Quantized(codes, np.float64(2.0**exponent), np.float64(reference), values.reshape(x.shape))


def edf(x, case):
    """A file of one signal: its codes, from the bytes of the file.

    Reading needs limits that the 8 characters of the header can hold, which data of these tests do not have.
    """
    import pyedflib as library

    samples = x.reshape(-1).astype(np.float64)
    limits = {"physical_min": samples.min(), "physical_max": samples.max()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conformance.edf"
        with library.EdfWriter(str(path), 1, file_type=library.FILETYPE_EDFPLUS) as file:
            header = {"label": "x", "dimension": "uV", "sample_frequency": 256, "prefilter": "", "transducer": ""}
            file.setSignalHeader(0, header | limits | {"digital_min": -32768, "digital_max": 32767})
            file.writeSamples([samples])
        content = path.read_bytes()
    signals = int(content[252:256])
    first_length = 256 + 216 * signals  # of a list with 8 characters for each signal
    lengths = [int(content[first_length + 8 * k : first_length + 8 * k + 8]) for k in range(signals)]
    records = np.frombuffer(content, "<i2", offset=int(content[184:192])).reshape(-1, sum(lengths))
    return Quantized(records[:, : lengths[0]].reshape(-1)[: x.size].reshape(x.shape))


def packed_by(x, command):
    """Write an array to a netCDF file, run a command on it, and return codes, scale_factor and add_offset."""
    import netCDF4 as library

    with tempfile.TemporaryDirectory() as folder:
        before, after = (str(Path(folder) / name) for name in ("in.nc", "out.nc"))
        with library.Dataset(before, "w") as file:
            for name, size in zip("yx", x.shape, strict=True):
                file.createDimension(name, size)
            file.createVariable("v", x.dtype, ("y", "x"), fill_value=False)[:] = x
        subprocess.run([*command, before, after], check=True, capture_output=True)
        with library.Dataset(after) as file:
            variable = file["v"]
            variable.set_auto_maskandscale(False)
            one = x.dtype.type(1)
            attributes = {name: variable.getncattr(name) for name in variable.ncattrs()}
            return variable[:].copy(), attributes.get("scale_factor", one), attributes.get("add_offset", 0 * one)


def nco(x, case):
    """Call ncpdq with the map of a packed type; a constant has no scale_factor, a middle of 0 no add_offset."""
    names = {"int8": "flt_byt", "int16": "flt_sht"}
    return Quantized(*packed_by(x, ["ncpdq", "-O", "-P", "all_new", "-M", names[case.dtype]]))


def cdo_pack(dtype):
    """Return the command that packs into integers, without the files."""
    return ["cdo", "-s", "-O", "-f", "nc4", "-b", dtype.replace("uint", "U").replace("int", "I"), "pack"]


def cdo(x, case):
    """Call cdo pack with a packed type; it fails where rounding puts the lowest value below code 0 of uint16."""
    try:
        return Quantized(*packed_by(x, cdo_pack(case.dtype)))
    except subprocess.CalledProcessError as error:
        if case.dtype != "uint16" or b"Numeric conversion not representable" not in error.stderr:
            raise
        return Quantized()


def fits(x, case, scale, zero_point):
    """Tiles of CompImageHDU, a row each, by a step that is given: astropy rounds it to float32, and chooses ZZERO."""
    from astropy.io.fits.hdu.compressed._quantization import Quantize

    del zero_point
    tiles = []
    for tile, step in zip(x, scale, strict=True):
        system = Quantize(row=0, dither_method=-1, quantize_level=-float(step), bitpix=-8 * x.itemsize)
        codes, used, offset = system.encode_quantized(tile)
        tiles.append((codes, used, offset, system.decode_quantized(codes, used, offset)))
    return Quantized(*map(np.array, zip(*tiles, strict=True)))


def decimals_of(bits):
    """Return a function from an array to the most decimal digits that codes of so many bits have, as fastq takes them.

    They are a scale, 10**-D, and the smallest value. The filter leaves out the highest code, and h5py negative D.
    """

    def parameters(x):
        span = float(x.max()) - float(x.min())
        digits = math.floor(math.log10((2**bits - 2) / span)) if span else 2
        return np.float64(f"1e{-max(digits, 0)}"), np.float64(x.min())

    return parameters


def hdf5(x, case, scale, zero_point):
    """A chunk of a dataset in memory; the bits of its codes follow 21 bytes, the highest bit first."""
    import h5py as library

    del zero_point, case
    settings = library.h5p.create(library.h5p.DATASET_CREATE)
    settings.set_chunk(x.shape)
    settings.set_fill_value(np.asarray(3e38 if x.dtype == np.float32 else 1e300, x.dtype))
    settings.set_scaleoffset(library.h5z.SO_FLOAT_DSCALE, -round(math.log10(float(scale))))
    stream = BytesIO()
    with library.File(stream, "w") as file:
        kind, space = library.h5t.py_create(x.dtype), library.h5s.create_simple(x.shape)
        library.Dataset(library.h5d.create(file.id, b"x", kind, space, settings))[...] = x
    with library.File(stream) as file:  # the first one has the chunk in its cache, as it was
        stored = file["x"]
        values = stored[...]
        chunk = np.frombuffer(stored.id.read_direct_chunk((0, 0))[1], np.uint8)
    bits = int(chunk[:4].view("<u4")[0])
    assert bits < 8 * x.itemsize, "values as they are, without codes"
    places = np.unpackbits(chunk[21:], count=x.size * bits).reshape(*x.shape, bits)
    lowest = chunk[5 : 5 + x.itemsize].view(x.dtype)[0]
    return Quantized(places @ (1 << np.arange(bits)[::-1]), zero_point=lowest, values=values)


BOTH = "float32", "float64"

SYSTEMS = (
    System(
        "nibabel",
        ("nibabel",),
        nibabel,
        tuple(Case(dtype, values=values) for dtype in ("int8", "uint8", "int16", "uint16") for values in BOTH),
        neighbour="cf",
        undefined="NaN gets the code nearest to 0 and widens the range to 0, as with nan='zero'; infinities are left "
        "out of the range and clipped. Its parameters are computed in long double, here in float64, and may "
        "differ in the last bit. A slope that rounds to 0 is an error; integers that fit are stored as they "
        "are. get_fdata computes in float64, also for float32: fastq does with QParams of computed='float64'. Codes of "
        "int32 are computed in the dtype of the data, too, with slope (hi - lo) / 4294967168 and inter lo + 2**31 * "
        "slope, both float32; those of uint32 with slope (hi - lo) / 4294967040 and inter lo, or where -lo > hi with "
        "-slope and hi: quantize_linear takes them.",
    ),
    System(
        "grib",
        ("eccodes",),
        grib,
        tuple(Case(f"uint{bits}", values=values) for bits in (16, 8, 5, 2) for values in BOTH),
        neighbour="cf",
        except_for=("subnormal scale", "subnormal"),
        undefined="NaN becomes the smallest value, or is an error where it comes first; an infinity is an error. A "
        "constant has no codes, and its value is the reference value; here it has codes, 0 below 2**23. Where"
        " the scale would be below 2**-126 or above 2**127, ecCodes multiplies values by a power of ten. With"
        " the key decimalPrecision D the values are x * 10**D, the scale is 1 and values are products by "
        "10**-D. Codes of 17 to 32 bits are those of uint32 by quantize_linear, whose clamp takes no notice of their "
        "width. Codes are packed with the highest bit first.",
    ),
    System(
        "edf",
        ("pyedflib",),
        edf,
        tuple(Case("int16", values=values) for values in BOTH),
        neighbour="cf",
        except_for=(
            *("zeros", "constant", "negative constant", "large", "nearly overflowing", "small", "very small"),
            *("subnormal scale", "subnormal"),
        ),
        undefined="The range is that of physical_min and physical_max, which must differ. The header has 8 characters "
        "for each, and cuts off what does not fit: codes are made with the limits as given, and read with "
        "those of the header; limits with an exponent may be refused. NaN, infinities and 1e10 become -32768;"
        " here infinities saturate.",
    ),
    System(
        "nco",
        ("netCDF4",),
        nco,
        tuple(Case(dtype, values=values) for dtype in ("int8", "int16") for values in BOTH),
        neighbour="cf",
        programs=("ncpdq",),
        except_for=("subnormal",),
        undefined="NaN is not looked for. Missing values become code 0. Where the scale is a subnormal number, codes "
        "beyond the last one are not clamped. scale_factor is left out if it is 1, add_offset if it is 0.",
    ),
    System(
        "cdo",
        ("netCDF4",),
        cdo,
        tuple(Case(dtype, values=values) for dtype in ("int8", "uint8", "int16", "uint16") for values in BOTH),
        neighbour="cf",
        programs=("cdo",),
        except_for=("subnormal scale", "subnormal"),
        undefined='A code beyond its type is an error, "Numeric conversion not representable": that of a constant that '
        "does not fit, of ranges whose scale is subnormal, and with U16 that of the smallest value where it lies below "
        "add_offset by rounding. Codes of U16 and U32 are cut off by netCDF; the others are rounded by CDO. "
        "quantize_linear takes scale_factor and add_offset of I32 and U32. There the largest value of float32 is "
        "beyond the last code by rounding: with I32 that is an error, with U32 netCDF stores code 0, that of the "
        "smallest value; here it is the last code.",
    ),
    System(
        "hdf5-scaleoffset",
        ("h5py",),
        hdf5,
        tuple(
            Case(f"uint{bits}", values=values, parameters=decimals_of(bits), unit=bits < 16)
            for bits in (16, 8, 5, 2)
            for values in BOTH
        ),
        neighbour="cf",
        given=True,
        except_for=("very small", "subnormal scale", "subnormal", "large", "nearly overflowing"),
        undefined="The scale is 10**-D of the caller, 0.01 for D=2; h5py takes no negative D. For D=18 and some beyond "
        "i is another float64 than 10**D. The filter takes as many bits as a chunk needs, the highest first, "
        "and leaves values as they are where they need all bits, as with an infinity. Its highest code is "
        "that of values nearer to the fill value than a step. NaN gets code 0.",
    ),
    System(
        "fits",
        ("astropy",),
        fits,
        tuple(Case("int16", per="channel", values=values) for values in BOTH),
        neighbour="cf",
        given=True,
        leads=True,
        except_for=("subnormal",),
        undefined="The scale is the caller's, or of the noise; the offset is astropy's, trunc(lo / scale + 0.5) * "
        "scale, and codes are int32: here a range of int16 begins at 0, and quantize_linear takes ZSCALE and "
        "ZZERO. NaN becomes "
        "ZBLANK; a tile with an infinity, or a constant one, is stored without loss. Dithering adds to the quotient "
        "what it takes away from the code: quantize_linear with scale 1 of (x - ZZERO) / ZSCALE + r - 0.5. "
        "SUBTRACTIVE_DITHER_2 has ZZERO = lo + 2147483637 * ZSCALE, and code -2147483646 for zeros.",
    ),
)
