"""Conventions of sound."""

from __future__ import annotations

from fastq.formats.conventions.convention import Convention

ROWS = (
    Convention(
        "pcm",
        "libsndfile: WAV, AIFF and CAF files of PCM, as of soundfile, with a scale of 2**-15 or 2**-7",
        formats=("int8", "uint8", "int16"),
        schemes=("symmetric",),
        divisor="codes",
        rounding="floor",
        cut_from=32,
        narrow=(),
    ),
    Convention(
        "flac",
        "libsndfile: FLAC files, as of soundfile, with a scale of 2**-15 or 2**-7",
        formats=("int8", "int16"),
        schemes=("symmetric",),
        divisor="codes",
        narrow=(),
    ),
)
