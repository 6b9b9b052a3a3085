"""Encoders of systems beside fastq under the convention of each, in turns: the table of docs/performance.md.

Each pair has the same numbers in memory and gives the same codes and parameters, which is looked at first. Systems that
are not installed are left out; all that take part are in one process, and none works while another one is timed.
"""

from __future__ import annotations

import importlib.util
import statistics
import textwrap
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import fastq

from . import compressed, machine
from .markdown import Cell, Row, listed, number
from .signals import rounded
from .timing import settle

Array = NDArray[Any]

STORED = Path(__file__).parents[1] / "bench" / "results" / "signal" / "systems.json"
SIDE = 2048  # values of a row and rows
GROUP = 64
RUNS = 3  # of all systems, one after the other
TURNS = 7  # of each system in a run


class Pair(NamedTuple):
    """One work made ready twice, and what of both results has to be the same."""

    theirs: Callable[[], Any]
    ours: Callable[[], Any]
    parts: Callable[[Any, Any], Iterable[tuple[Array, Array]]]


class System(NamedTuple):
    """A row of the table: what is called of which distribution, and of fastq."""

    convention: str
    call: str
    distribution: str  # and its module
    pair: Callable[[Array], Pair]
    ours: str = "quantize"


def nibabel(x: Array) -> Pair:
    """An array of a NIfTI image, scaled and written to memory."""
    from nibabel.arraywriters import SlopeInterArrayWriter

    def theirs() -> Any:
        writer, stream = SlopeInterArrayWriter(x, np.int16), BytesIO()
        writer.to_fileobj(stream, order="C")
        return writer, stream

    def parts(found: Any, q: Any) -> Iterable[tuple[Array, Array]]:
        writer, stream = found
        yield np.frombuffer(stream.getbuffer(), np.int16).reshape(x.shape), q.codes
        yield from zip(map(np.float32, (writer.slope, writer.inter)), (q.scale, q.zero_point), strict=True)

    return Pair(theirs, lambda: fastq.quantize(x, "int16", convention="nibabel"), parts)


def grib(x: Array) -> Pair:
    """The values of a message of grid_simple, 16 bits."""
    import eccodes

    values = x.reshape(-1).astype(np.float64)
    message = eccodes.codes_grib_new_from_samples("GRIB2")
    eccodes.codes_set(message, "packingType", "grid_simple")
    eccodes.codes_set(message, "bitsPerValue", 16)

    def parts(_: Any, q: Any) -> Iterable[tuple[Array, Array]]:
        last = eccodes.codes_get_message(message)[-4 - 2 * x.size : -4]
        yield np.frombuffer(last, ">u2"), q.codes
        yield np.float64(2.0 ** eccodes.codes_get_long(message, "binaryScaleFactor")), q.scale
        yield np.float64(eccodes.codes_get_double(message, "referenceValue")), q.zero_point

    return Pair(
        lambda: eccodes.codes_set_values(message, values),
        lambda: fastq.quantize(values, "uint16", convention="grib"),
        parts,
    )


def fits(x: Array) -> Pair:
    """Rows as tiles of a compressed image, each with a step that is given and an offset from its smallest value."""
    from astropy.io.fits.hdu.compressed._quantization import Quantize

    scale = np.full(len(x), np.float64(np.float32(1e-4)))
    systems = [Quantize(row=0, dither_method=-1, quantize_level=-step, bitpix=-32) for step in scale.tolist()]

    def ours() -> Any:
        offset = np.trunc(fastq.minmax(x, axis=0)[0] / scale + 0.5) * scale
        return fastq.quantize_linear(x, scale, offset, "int32", axis=0, convention="fits"), offset

    def parts(found: Any, of_ours: Any) -> Iterable[tuple[Array, Array]]:
        yield np.stack([codes for codes, *_ in found]), of_ours[0]
        yield np.array([offset for *_, offset in found]), of_ours[1]

    return Pair(lambda: [system.encode_quantized(tile) for system, tile in zip(systems, x, strict=True)], ours, parts)


def mlx(bits: int) -> Callable[[Array], Pair]:
    """A matrix in groups, on the CPU."""

    def pair(x: Array) -> Pair:
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        w = mx.array(x)

        def theirs() -> Any:
            found = mx.quantize(w, group_size=GROUP, bits=bits)
            mx.eval(found)
            return found

        def parts(found: Any, q: Any) -> Iterable[tuple[Array, Array]]:
            words, scales, biases = map(np.array, found)
            return (words.view(np.uint8), q.codes), (scales, q.scale), (biases, q.zero_point)

        return Pair(theirs, lambda: fastq.quantize(x, f"uint{bits}", **_groups("mlx")), parts)

    return pair


def _groups(convention: str) -> dict[str, Any]:
    return {"axis": 1, "block_size": GROUP, "convention": convention}


def nncf(mode: str, dtype: str, **options: Any) -> Callable[[Array], Pair]:
    """A weight in NumPy, in groups or by rows; its codes are one in a byte."""

    def pair(x: Array) -> Pair:
        from nncf import CompressWeightsMode
        from nncf.quantization.algorithms.weight_compression.config import WeightCompressionConfig
        from nncf.quantization.algorithms.weight_compression.weight_lowering import do_integer_quantization
        from nncf.tensor import Tensor

        group = options.get("block_size", -1)
        config = WeightCompressionConfig(mode=getattr(CompressWeightsMode, mode), group_size=group)
        weight = Tensor(x)

        def parts(found: Any, q: Any) -> Iterable[tuple[Array, Array]]:
            yield found.tensor.data.reshape(x.shape), q.unpacked()
            yield found.scale.data.astype(np.float16).reshape(q.scale.shape), q.scale
            if found.zero_point is not None:
                yield found.zero_point.data.reshape(q.scale.shape), q.zero_point

        return Pair(
            lambda: do_integer_quantization(weight, config, reduction_axes=(1,)),
            lambda: fastq.quantize(x, dtype, convention="nncf", **options),
            parts,
        )

    return pair


def hqq(bits: int) -> Callable[[Array], Pair]:
    """A weight in groups, packed."""

    def pair(x: Array) -> Pair:
        import torch
        from hqq.core.quantize import Quantizer

        torch.set_num_threads(fastq.get_num_threads())
        weight = torch.from_numpy(x)
        options = {"nbits": bits, "group_size": GROUP, "axis": 1, "optimize": False, "device": "cpu"}

        def parts(found: Any, q: Any) -> Iterable[tuple[Array, Array]]:
            words, meta = found
            codes = Quantizer.unpack[meta["packing"]](words, dtype=torch.uint8)
            yield codes.numpy().reshape(x.shape), q.unpacked()
            for name, parameter in (("scale", q.scale), ("zero", q.zero_point)):
                yield meta[name].numpy().reshape(parameter.shape), parameter.astype(np.float32)

        return Pair(
            lambda: Quantizer.quantize(weight, **options),
            lambda: fastq.quantize(x, f"uint{bits}", **_groups("hqq")),
            parts,
        )

    return pair


def usearch(measure: Callable[[Array], Callable[[], Array]]) -> Callable[[Array], Pair]:
    """Vectors of an index of floats, copied from it as int8: what an index of int8 does to those that are added."""

    def pair(x: Array) -> Pair:
        from usearch.index import Index

        keys = np.arange(len(x))
        index = Index(ndim=x.shape[1], metric="ip", dtype="f32", connectivity=2, expansion_add=1)
        index.add(keys, x)
        lengths = measure(x)
        return Pair(
            lambda: index.get(keys, "i8"),
            lambda: fastq.quantize_linear(x, lengths() / 127, dtype="int8", axis=0, convention="usearch"),
            lambda found, codes: [(np.asarray(found), codes)],
        )

    return pair


def _given(x: Array) -> Callable[[], Array]:
    """Return lengths that are known before."""
    known = _lengths(x)
    return lambda: known


def _by_numba(x: Array) -> Callable[[], Array]:
    """Add up squares in any order on one thread, as docs/howto/embeddings.md does."""
    import numba

    @numba.njit(fastmath={"reassoc"})  # type: ignore[untyped-decorator]
    def lengths_of(x: Array) -> Array:
        lengths = np.empty(len(x))
        for i in range(len(x)):
            total = 0.0
            for j in range(x.shape[1]):
                total += np.float64(x[i, j]) ** 2
            lengths[i] = np.sqrt(total)
        return lengths

    return lambda: lengths_of(x)


def _lengths(x: Array) -> Array:
    """Lengths of rows in float64, of as many at a time as stay in the cache: half of the time of einsum."""
    block, squares = np.empty((64, x.shape[1])), np.empty(len(x))
    for first in range(0, len(x), len(block)):
        part = slice(first, first + len(block))
        np.copyto(block, x[part])
        np.vecdot(block, block, out=squares[part])
    return np.sqrt(squares)


_ROWS = {"axis": 0}
_IN_GROUPS = {"axis": 1, "block_size": GROUP}
_SYMMETRIC = {"symmetric": True}
_OF_NNCF = (
    ("INT8_ASYM", "uint8", _ROWS),
    ("INT8_SYM", "int8", _ROWS | _SYMMETRIC),
    ("INT4_ASYM", "uint4", _IN_GROUPS),
    ("INT4_SYM", "int4", _IN_GROUPS | _SYMMETRIC),
)
SYSTEMS = (
    System("nibabel", "SlopeInterArrayWriter.to_fileobj, int16", "nibabel", nibabel),
    System("grib", "codes_set_values, 16 bits, into a message", "eccodes", grib),
    System("fits", "Quantize.encode_quantized, tiles of a row", "astropy", fits, "minmax, quantize_linear"),
    System("mlx", "quantize, 4 bits, groups", "mlx", mlx(4)),
    System("mlx", "quantize, 8 bits, groups", "mlx", mlx(8)),
    *(
        System("nncf", f"do_integer_quantization, {mode}", "nncf", nncf(mode, dtype, **options))
        for mode, dtype, options in _OF_NNCF
    ),
    System("hqq", "Quantizer.quantize, 8 bits, groups", "hqq", hqq(8)),
    System("hqq", "Quantizer.quantize, 4 bits, groups", "hqq", hqq(4)),
    *(
        System("usearch", "Index.get, floats as int8", "usearch", usearch(measure), f"quantize_linear, {lengths}")
        for measure, lengths in (
            (lambda x: lambda: _lengths(x), "lengths by NumPy"),
            (_by_numba, "lengths by Numba"),
            (_given, "lengths given"),
        )
    ),
)


def measured(threads: int, say: Callable[[str], None]) -> Row:
    """A row for each system that is installed; ValueError where a result differs from fastq's."""
    installed = [system for system in SYSTEMS if importlib.util.find_spec(system.distribution)]
    for system in SYSTEMS:
        if system not in installed:
            say(f"{system.convention}: {system.distribution} is not installed")
    before = machine.cpu_time([])
    x = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    fastq.set_num_threads(threads)
    seconds: dict[System, list[tuple[float, float]]] = {system: [] for system in installed}
    for _ in range(RUNS):
        for system in installed:
            theirs, ours = in_turns(system.pair(x), f"{system.convention}, {system.call}")
            seconds[system].append((theirs, ours))
            say(f"{system.convention}, {system.call}: {theirs / ours:.1f}")
    rows = [row_of(system, *middle(runs)) for system, runs in seconds.items()]
    others = machine.cores_used_by_others(before, machine.cpu_time([]))
    named = machine.cpu_name(machine.cpu())
    return {"cpu": named, "threads": threads, "values": x.size, "others": round(others, 1), "rows": rows}


def middle(runs: list[tuple[float, float]]) -> tuple[float, float]:
    """The seconds of the run whose quotient is the middle one."""
    return sorted(runs, key=lambda seconds: seconds[0] / seconds[1])[len(runs) // 2]


def in_turns(pair: Pair, name: str) -> tuple[float, float]:
    """Medians of seconds of both, the two beginning by turns, after both gave the same."""
    for theirs, ours in pair.parts(pair.theirs(), pair.ours()):
        if not np.array_equal(theirs, ours):
            raise ValueError(f"{name}: {np.count_nonzero(theirs != ours)} of {np.size(ours)} numbers differ")
    found: tuple[list[float], list[float]] = [], []
    for turn in range(TURNS):
        for k in (0, 1) if turn % 2 else (1, 0):
            settle()
            begun = time.perf_counter()
            pair[k]()
            found[k].append(time.perf_counter() - begun)
    return statistics.median(found[0]), statistics.median(found[1])


def row_of(system: System, theirs: float, ours: float) -> Row:
    """A row of the table."""
    version = f"{system.distribution} {metadata.version(system.distribution)}"
    about = {"convention": system.convention, "version": version, "call": system.call, "ours": system.ours}
    return about | rounded({"theirs": theirs, "fastq": ours, "times": theirs / ours})


COLUMNS: dict[str, Cell] = {
    "system": itemgetter("version"),
    "its call": lambda row: "`{}`{}{}".format(*row["call"].partition(",")),
    "fastq's": itemgetter("ours"),
    "ms": number("theirs", 1, 1e3),
    "fastq, ms": number("fastq", 1, 1e3),
    "times": number("times", 1),
}


def table() -> str:
    """The table of what is stored."""
    found = compressed.read(STORED)
    said = f"{found['values']:,} values of float32, {SIDE} rows, groups of {GROUP}; {found['threads']} threads of"
    said += f" {found['cpu']}, of which other processes used {found['others']:g}."
    said += f" Medians of {TURNS} turns, in the middle one of {RUNS} runs:"
    return f"{textwrap.fill(said, 120)}\n\n{listed(COLUMNS, found['rows'])}"
