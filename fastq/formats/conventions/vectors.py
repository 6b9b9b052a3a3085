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
    Convention(
        "usearch",
        "usearch: floats added to an index of dtype='i8', each vector by its length / 127",
        formats=("int8",),
        schemes=("symmetric",),
        compute_type="float64",
        quotient="reciprocal",
        rounding="trunc",
    ),
    Convention(
        "voyager",
        "voyager: StorageDataType.Float8, with a scale of 1 / 127",
        formats=("int8",),
        schemes=("symmetric",),
        quotient="reciprocal",
        rounding="trunc",
        clamp="format",
    ),
    Convention(
        "sqlite-vec",
        "sqlite-vec: vec_quantize_int8(x, 'unit'), with a scale of float32(2 / 255) and an offset of 128 * scale - 1",
        formats=("int8",),
        schemes=("asymmetric",),
        includes_zero=False,
        compute_type="float64",
        scale_floor=0.0,
        zero_point="offset",
        offset_code="zero",
        rounding="trunc",
    ),
    Convention(
        "lance",
        "Lance and LanceDB: IVF_SQ, one range for all vectors and dimensions",
        formats=("uint8",),
        schemes=("asymmetric",),
        includes_zero=False,
        compute_type="float64",
        scale_floor=0.0,
        degenerate=2.0**-1000,  # later values than the constant get the first or the last code, as beyond its bounds
        zero_point="offset",
        quotient="range_of_multiple",
        rounding="floor",
    ),
)
