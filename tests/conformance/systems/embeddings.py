"""sentence-transformers and faiss: one range for each dimension of an embedding, or for all."""

import numpy as np
from oracle import Case, Quantized, System


def sentence_transformers(x, case):
    """quantize_embeddings, whose dimensions are the rows here; it gives codes away and nothing else."""
    from sentence_transformers.util.quantization import quantize_embeddings

    return Quantized(quantize_embeddings(np.ascontiguousarray(x.T), case.dtype).T)


def faiss(x, case):
    """ScalarQuantizer: trained holds the lower ends and the widths of ranges."""
    import faiss as library

    kind = f"QT_{case.dtype.removeprefix('uint')}bit{'_uniform' if case.per == 'array' else ''}"
    # where the dimension is a multiple of 8 it decodes with a fused multiplication and addition: take one more
    vectors = np.vstack([x, x[:1]]).T.copy() if case.per == "channel" else x.reshape(-1, 1)
    quantizer = library.ScalarQuantizer(vectors.shape[1], getattr(library.ScalarQuantizer, kind))
    quantizer.train(vectors)
    packed = quantizer.compute_codes(vectors)
    codes = packed
    if case.dtype == "uint4":
        codes = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)[:, : vectors.shape[1]]
    values = quantizer.decode(packed)
    lowest, width = library.vector_to_array(quantizer.trained).reshape(2, -1)
    # the range of a constant has width 0, which is not a scale
    scale = np.where(width > 0, width.astype(np.float64), np.nan) / (255 if case.dtype == "uint8" else 15)
    if case.per == "array":
        return Quantized(codes.reshape(x.shape), scale[0], lowest[0], values.reshape(x.shape))
    return Quantized(codes[:, :-1].T, scale[:-1], lowest[:-1], values[:, :-1].T)


SYSTEMS = (
    System(
        "sentence-transformers",
        ("sentence-transformers",),
        sentence_transformers,
        (Case("uint8", per="channel"), Case("int8", per="channel")),
        neighbour="cf",
        tie=0.0,
        undefined="NaN and infinities in a dimension, or a range wider than float32, make a NaN of each of its "
        "values, whose conversion to an integer is undefined (0 on x86). It does not decode; fastq takes the lower "
        "edge of a code. Products of its codes rank badly, since each dimension has an offset of its own.",
    ),
    System(
        "faiss",
        ("faiss-cpu",),
        faiss,
        (
            Case("uint8", per="channel"),
            Case("uint4", per="channel"),
            Case("uint8", per="array"),
            Case("uint4", per="array"),
        ),
        neighbour="sentence-transformers",
        undefined="NaN is left out of the range and becomes code 0; an infinity or a range wider than float32 gives "
        "code 0 everywhere and NaN as values. QT_6bit is uint8 with bits=6, its codes packed from the lowest bit on. "
        "Where the dimension is a multiple of 8 it decodes with a fused "
        "operation, up to 1 ulp away from its own formula elsewhere, which is fastq's.",
    ),
)
