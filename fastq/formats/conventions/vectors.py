"""Conventions of embeddings and of indexes that search for vectors."""

from __future__ import annotations

from fastq.formats.conventions.convention import Convention

ROWS = (
    Convention(
        "sentence-transformers",
        "sentence-transformers: quantize_embeddings",
        formats=("uint8", "int8"),
        schemes=("asymmetric",),
        includes_zero=False,
        scale_floor=0.0,
        zero_point="offset",
        rounding="floor",
    ),
    Convention(
        "faiss",
        "faiss: ScalarQuantizer, QT_8bit, QT_8bit_uniform, QT_4bit, and QT_6bit with bits=6",
        formats=("uint8", "uint4"),
        schemes=("asymmetric",),
        includes_zero=False,
        parameter_type="float64",
        stored_type="float64",
        span_type="compute",
        scale_floor=0.0,
        degenerate=2.0**-200,  # its range is 0 in float32, like that of the constant it represents
        zero_point="offset",
        quotient="range",
        rounding="trunc",
        decode="middle",
    ),
)
