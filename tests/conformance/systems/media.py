"""soundfile: files of sound in memory, written as floats and read as integers."""

from io import BytesIO

import numpy as np
from oracle import Case, Quantized, System

# container, encoding, dtype to read, and the bits that are read below those of a code
_FILES = {
    "uint8": ("WAV", "PCM_U8", "int16", 8),
    "int8": ("AIFF", "PCM_S8", "int16", 8),
    "int16": ("WAV", "PCM_16", "int16", 0),
}
_FLAC = {"int8": ("FLAC", "PCM_S8", "int16", 8), "int16": ("FLAC", "PCM_16", "int16", 0)}


def _by_file(x, case, container, encoding, read, below):
    import soundfile as library

    stream = BytesIO()
    library.write(stream, x.reshape(-1), 48_000, format=case.option or container, subtype=encoding)
    stream.seek(0)
    codes = library.read(stream, dtype=read)[0] >> below
    stream.seek(0)
    values = library.read(stream, dtype=x.dtype.name)[0]
    return Quantized((codes + (128 if case.dtype == "uint8" else 0)).reshape(x.shape), values=values.reshape(x.shape))


def pcm(x, case):
    """Write a file of PCM, and read codes and values of it."""
    return _by_file(x, case, *_FILES[case.dtype])


def flac(x, case):
    """Write a FLAC file, and read codes and values of it."""
    return _by_file(x, case, *_FLAC[case.dtype])


def _case(dtype, values, option=""):
    scale = np.dtype(values).type(2.0**-7 if dtype.endswith("int8") else 2.0**-15)
    return Case(
        dtype,
        symmetric=True,
        values=values,
        option=option,
        unit=True,
        parameters=lambda x: (scale, 128 if dtype == "uint8" else 0),
    )


BOTH = "float32", "float64"

SYSTEMS = (
    System(
        "pcm",
        ("soundfile",),
        pcm,
        (
            *(_case("int16", values, container) for values in BOTH for container in ("WAV", "AIFF", "CAF")),
            *(_case("uint8", values) for values in BOTH),
            _case("int8", "float32"),  # for float64 libsndfile computes in float32
        ),
        neighbour="flac",
        tie=0.0,
        undefined="NaN becomes the lowest code. Codes of 24 and 32 bits are no formats here. For PCM_S8 of float64 "
        "libsndfile computes in float32: pass float32.",
    ),
    System(
        "flac",
        ("soundfile",),
        flac,
        tuple(_case(dtype, values) for dtype in ("int16", "int8") for values in BOTH),
        neighbour="pcm",
        undefined="Codes of 24 bits are no format here.",
    ),
)
