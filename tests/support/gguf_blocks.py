"""What the gguf package makes of blocks, and blocks in any memory."""

import gguf as gguf_package
import numpy as np
from catalogue import LAYOUTS, same_bytes

import fastq
from fastq import reference
from fastq.formats.gguf import BLOCK_FORMATS


def any_blocks(name, *shape, seed=0):
    """Blocks of any bytes, a number of them in a row."""
    width = BLOCK_FORMATS[name].nbytes
    return np.random.default_rng(seed).integers(0, 256, (*shape[:-1], shape[-1] * width), np.uint8)


def needed_importance(name, columns):
    """The same importance for all columns if a format is written with one alone, else None."""
    return np.ones(columns, np.float32) if BLOCK_FORMATS[name].needs_importance else None


def some_blocks(x, name, **options):
    """What an array is quantized to."""
    return reference.gguf.quantize(x, name, **{"importance": needed_importance(name, x.shape[-1]), **options})


def oracle(function, data, name):
    """What the gguf package computes; it warns where the arithmetic overflows."""
    with np.errstate(all="ignore"):
        return getattr(gguf_package.quants, function)(
            np.ascontiguousarray(data), gguf_package.GGMLQuantizationType[name]
        )


def same_values(actual, expected):
    """Assert the same bits, except that one NaN is as good as another."""
    assert actual.dtype == expected.dtype == np.float32
    same_bytes(np.where(np.isnan(actual), np.float32(np.nan), actual), np.where(expected != expected, np.nan, expected))


def check_memory(x, name, threads, layouts=LAYOUTS, **options):
    """Compare with the reference what is written and read in layouts by threads, also next to sevens and into gaps."""
    options = {"importance": needed_importance(name, x.shape[-1]), **options}
    for layout, laid in layouts.items():
        source, placed = laid(x), LAYOUTS["strided"] if layout in ("broadcast", "read_only") else laid
        wanted = some_blocks(source, name, **options)
        blocks = wanted if layout == "swapped" else laid(wanted)  # bytes have no order
        values = reference.gguf.dequantize(blocks, name)

        def made(given, like, placed=placed):
            """What is read, and memory for the result, which has gaps or the layout; or no gaps in what is read."""
            for each, way in ((given, LAYOUTS["strided"]), (given, placed), (np.ascontiguousarray(given), placed)):
                yield each, way(np.zeros_like(like))

        for n in (1, 2, 4):
            threads(n)
            same_bytes(fastq.gguf.dequantize(blocks, name), values)
            for given, out in made(blocks, values) if layout != "swapped" else ():
                assert fastq.gguf.dequantize(given, name, out=out) is out
                same_bytes(out, values)
            same_bytes(fastq.gguf.quantize(source, name, **options), wanted)
            memory = np.full(wanted.size + 40, 7, np.uint8)
            for given, out in ((source, memory[20:-20].reshape(wanted.shape)), *made(source, wanted)):
                assert fastq.gguf.quantize(given, name, out=out, **options) is out
                same_bytes(out, wanted)
            assert (np.delete(memory, slice(20, -20)) == 7).all()
