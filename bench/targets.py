"""What fastq must reach, as data, and how far it is: from results that hold the cases, sections included."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from .cases import Case, Work, case_of, cases
from .limits import ROOFLINE_SHARE, in_words, limit, of_threads, speeds_in_cache
from .results import Measurement, Results, Rival, geometric_mean

LARGE, SMALL = 26, 18


class Target(NamedTuple):
    """Ours must reach `ratio` times the fastest contender whose name fits one of `rivals`; None is not judged."""

    work: Work
    log2: int
    ratio: float | None
    rivals: tuple[str, ...]

    @property
    def case(self) -> Case:
        """The case that is measured."""
        return Case(self.work, self.log2)


class Beside(NamedTuple):
    """Ours must reach `ratio` times the elements a second of ours in another work, which has a name in words."""

    work: Work
    other: Work
    words: str
    ratio: float

    @property
    def cases(self) -> tuple[Case, Case]:
        """The cases that are measured."""
        return Case(self.work, LARGE), Case(self.other, LARGE)


class Verdict(NamedTuple):
    """A row of the table of targets: what, how much is wanted, how much there is, whether that is enough, why not."""

    what: str
    rival: str
    wanted: str
    reached: str
    met: bool | None
    limit: str = ""

    def because(self, limit: str) -> Verdict:
        """Return this row with what limits us, if it was not met."""
        return self._replace(limit=limit) if self.met is False else self


QUANTIZE_LINEAR, DEQUANTIZE_LINEAR = Work("quantize_linear"), Work("dequantize_linear")
MINMAX, RANGE, COMPARE = Work("minmax"), Work("quantize", code="uint8"), Work("compare", code="uint8")
FAKE = Work("fake_quantize")
ROWS, COLUMNS, BLOCKS = (Work("quantize", granularity=name) for name in ("rows", "columns", "blocks32"))
HALF = Work("quantize_linear", "float16")
INT4_BLOCKS = Work("quantize", code="int4", granularity="blocks32")
MXFP4 = Work("quantize", code="mxfp4", granularity="blocks32")
DECODE_ROWS, DECODE_COLUMNS, DECODE_BLOCKS = (
    Work("dequantize_linear", granularity=name) for name in ("rows", "columns", "blocks32")
)
FAKE_BLOCKS = Work("fake_quantize", granularity="blocks32")
DECODE_4_BITS = tuple(Work("dequantize", code=code, granularity="blocks32") for code in ("int4", "mxfp4"))
SCALES_GIVEN = (DECODE_ROWS, DECODE_COLUMNS, DECODE_BLOCKS, FAKE_BLOCKS, *DECODE_4_BITS)
PACK, UNPACK = Work("pack", "int8", "int4"), Work("unpack", "int8", "int4")
FLOAT8 = tuple(Work("quantize_linear", code=name) for name in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"))
GGUF = {
    (operation, code): Work(operation, code=code, granularity="blocks32")
    for operation in ("gguf_quantize", "gguf_dequantize")
    for code in ("Q8_0", "Q4_0")
}
TORCH, COMPILE, JAX, ORT = ("torch_*",), ("torch_compile*",), ("jax_jit*",), ("onnxruntime*",)
C, MOVES, GGML, GGUF_PY = ("roofline_c *",), ("roofline *",), ("ggml*",), ("gguf_py*",)
C_AS_THEN = ("roofline_c store", "roofline_c stream")

TARGETS = (
    Target(QUANTIZE_LINEAR, LARGE, 1.1, ORT),
    Target(QUANTIZE_LINEAR, LARGE, 0.85, C_AS_THEN),
    Target(QUANTIZE_LINEAR, SMALL, 1.0, TORCH),
    Target(DEQUANTIZE_LINEAR, LARGE, 3.5, (*ORT, "faiss*", *JAX)),
    Target(DEQUANTIZE_LINEAR, LARGE, 0.85, ("roofline_c stream",)),
    Target(DEQUANTIZE_LINEAR, SMALL, 1.0, TORCH),
    Target(MINMAX, LARGE, 1.2, ("torch_eager aminmax",)),
    Target(MINMAX, LARGE, None, C),
    Target(MINMAX, SMALL, 2.0, ("numpy",)),
    Target(RANGE, LARGE, 1.1, ORT),
    Target(RANGE, SMALL, 2.0, TORCH),
    Target(FAKE, LARGE, 3.0, JAX),
    Target(FAKE, LARGE, None, C),
    Target(FAKE, SMALL, 2.5, COMPILE),
    Target(ROWS, LARGE, 2.2, COMPILE),
    Target(ROWS, SMALL, 2.5, COMPILE),
    Target(COLUMNS, LARGE, 1.5, COMPILE),
    Target(COLUMNS, SMALL, 1.5, COMPILE),
    Target(BLOCKS, LARGE, 2.5, COMPILE),
    Target(BLOCKS, SMALL, 3.0, COMPILE),
    Target(COMPARE, LARGE, 10.0, ("numpy",)),
    Target(INT4_BLOCKS, LARGE, 3.0, GGML),
    Target(INT4_BLOCKS, LARGE, 12.0, GGUF_PY),
    Target(GGUF["gguf_quantize", "Q8_0"], LARGE, 5.0, GGML),
    Target(GGUF["gguf_quantize", "Q8_0"], LARGE, 25.0, GGUF_PY),
    *(Target(GGUF["gguf_dequantize", code], LARGE, 1.8, GGML) for code in ("Q8_0", "Q4_0")),
    *(Target(GGUF["gguf_dequantize", code], LARGE, 15.0, GGUF_PY) for code in ("Q8_0", "Q4_0")),
    *(Target(work, 24, 20.0, ("ml_dtypes*",)) for work in FLOAT8),
    Target(MXFP4, LARGE, 10.0, GGUF_PY),
    *(Target(work, LARGE, 0.8, MOVES) for work in (PACK, UNPACK)),
    Target(PACK, 20, 100.0, ("onnxruntime pack*",)),
    *(Target(work, LARGE, 1.5, GGML) for work in (DECODE_BLOCKS, *DECODE_4_BITS)),
)
OURS_BESIDE_OURS = (
    Beside(HALF, QUANTIZE_LINEAR, "the float32 kernel", 1.8),
    *(Beside(work, DEQUANTIZE_LINEAR, "the decoder of whole arrays", 0.9) for work in (DECODE_ROWS, DECODE_COLUMNS)),
)
OVER_PEERS, OVER_NUMPY, OVER_LOOP, TWO_THREADS = 6.0, 12.0, 1.5, 1.7
OVER_OUT = 0.9  # of the speed with out=, once memory is kept
LOOP = "naive_numba"
SECONDS = {
    "quantize_linear, out=, 1,000 elements": 4e-6,
    "quantize, 1,000 elements": 12e-6,
    "first call, 1,000 elements, cold": 2.0,
    "first call, 1,000 elements, from the cache": 0.3,
    "first call, 1,048,576 elements, cold": 2.0,
    "first call, 1,048,576 elements, from the cache": 0.3,
}
IMPORT_RATIO = 1.3
MEMORY_MIB, STRIDED_MIB = 1.0, 4.0


def needed() -> list[Case]:
    """Cases that the targets are about."""
    besides = [case for row in OURS_BESIDE_OURS for case in row.cases]
    return list(
        dict.fromkeys([*(target.case for target in TARGETS), *besides, *cases(SCALES_GIVEN, (LARGE, SMALL, 12))])
    )


def verdicts(results: Results) -> Iterator[Verdict]:
    """Every target beside what the results say of it."""
    speeds = speeds_in_cache(results)
    yield from (_ratio(target, results).because(in_words(results.get(target.case.name), speeds)) for target in TARGETS)
    yield from (
        _beside(row, results).because(in_words(results.get(row.cases[0].name), speeds)) for row in OURS_BESIDE_OURS
    )
    yield from _everywhere(results, speeds)
    yield from _scaling(results)
    yield from _waiting(results)
    yield from _memory(results)


def _ratio(target: Target, results: Results) -> Verdict:
    measurement = results.get(target.case.name)
    what = f"{target.work.title}, 2^{target.log2}"
    rival = _rival(target, measurement) if measurement else None
    reached = measurement.ratio(rival) if measurement else None
    return _at_least(what, rival.name if rival else ", ".join(target.rivals), target.ratio, reached)


def _rival(target: Target, measurement: Measurement) -> Rival | None:
    return measurement.fastest(
        name for name in measurement.timings if any(fnmatchcase(name, rival) for rival in target.rivals)
    )


def _at_least(what: str, rival: str, wanted: float | None, reached: float | None) -> Verdict:
    met = None if wanted is None or reached is None else reached >= wanted
    return Verdict(what, rival, "" if wanted is None else f">= {wanted:g} x", _times(reached), met)


def _at_most(what: str, wanted: float, reached: float | None, unit: str, scale: float = 1) -> Verdict:
    words = "not measured" if reached is None else f"{reached * scale + 0.0:.3g} {unit}"  # no -0
    return Verdict(what, "", f"<= {wanted * scale:g} {unit}", words, None if reached is None else reached <= wanted)


def _times(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"{ratio:.2f} x"


def _beside(row: Beside, results: Results) -> Verdict:
    ours, other = (m.ours() if m else None for m in (results.get(case.name) for case in row.cases))
    ratio = other.best / ours.best if ours and other else None
    return _at_least(f"{row.work.title}, 2^{LARGE}", row.words, row.ratio, ratio)


def _everywhere(results: Results, speeds: dict[Work, float]) -> Iterator[Verdict]:
    """Over all cases of 2^12 elements and more, over those with many scales given, and all of them together."""
    there = [m for m in results.measurements if m.ours() and m.of.log2 >= 12]
    given = [m for m in there if m.of.work in SCALES_GIVEN]
    for what, chosen in (("every case", there), ("scales of rows, columns, blocks given", given)):
        for allocating, how in ((False, "out="), (True, "no out=")):
            ratios = {m.case: m.ratio(m.best_peer(allocating=allocating), allocating=allocating) for m in chosen}
            yield _lowest(f"{what}, {how}", "the best peer", 1.0, ratios, results, speeds)
    ratios = {m.case: m.ratio(m.fastest([LOOP])) for m in there if limit(m, speeds) != "memory"}
    yield _lowest("every case not at the limit of memory", "a plain parallel loop", OVER_LOOP, ratios, results, speeds)
    ratios = {m.case: m.without_out() for m in there}
    yield _lowest("every case, no out=", "with out=", OVER_OUT, ratios, results, speeds)
    for name, wanted, rival in (
        ("the best peer", OVER_PEERS, Measurement.best_peer),
        ("NumPy", OVER_NUMPY, Measurement.numpy),
    ):
        known = [ratio for m in there if (ratio := m.ratio(rival(m))) is not None]
        yield _at_least(f"geometric mean of {len(known)} cases", name, wanted, geometric_mean(known))
    for m in there:
        if m.of.log2 == LARGE and (roofline := m.roofline()):
            row = _at_least(f"{m.of.work.title}, 2^{LARGE}", roofline.name, ROOFLINE_SHARE, m.ratio(roofline))
            yield row.because(limit(m, speeds))


def _lowest(
    what: str,
    rival: str,
    wanted: float,
    ratios: dict[str, float | None],
    results: Results,
    speeds: dict[Work, float],
) -> Verdict:
    """Judge all cases by the lowest ratio, and say how many are below what is wanted."""
    known = {case: ratio for case, ratio in ratios.items() if ratio is not None}
    worst = min(known, key=lambda case: known[case], default="")
    below = f"; {sum(ratio < wanted for ratio in known.values())} of {len(known)} are below, the lowest {worst}"
    row = _at_least(f"{what}{below if known else ''}", rival, wanted, known.get(worst))
    return row.because(in_words(results.get(worst), speeds))


def _scaling(results: Results) -> Iterator[Verdict]:
    """One to two threads from 2^18 on, of each work the size that is furthest from what is wanted.

    Where memory does not let two threads be so many times as fast as one of ours, the share of what it does.
    """
    threads = of_threads(results)
    furthest: dict[Work, tuple[float, float, str]] = {}
    for name, (ratio, roofline) in threads.items():
        work, log2 = case_of(name)
        if log2 >= SMALL:
            wanted = TWO_THREADS if roofline is None else round(min(TWO_THREADS, ROOFLINE_SHARE * roofline), 2)
            row = ratio / wanted, wanted, name
            furthest[work] = min(row, furthest.get(work, row))
    for work, (_, wanted, name) in furthest.items():
        ratio, roofline = threads[name]
        verdict = _at_least(f"{work.title}, 2 threads, 2^{case_of(name).log2}", "1 thread", wanted, ratio)
        if roofline is None:
            yield verdict._replace(met=None)
        else:
            yield verdict.because(f"memory allows {roofline:.2f} x")


def _waiting(results: Results) -> Iterator[Verdict]:
    rows = {row["what"]: row for row in results.sections.get("startup", [])}
    for what, wanted in SECONDS.items():
        (scale, unit), row = (1e6, "us") if wanted < 1e-3 else (1, "s"), rows.get(what, {})
        parts = {part: row[part] * scale for part in ("numba", "python", "dispatch", "kernel") if row.get(part)}
        limit = ", ".join(f"{part} {seconds:.2g} {unit}" for part, seconds in parts.items())
        yield _at_most(what, wanted, row.get("median"), unit, scale).because(limit)
    if "import numpy" in rows and "import fastq" in rows:
        ratio = rows["import fastq"]["median"] / rows["import numpy"]["median"]
        yield _at_most("import fastq, over import numpy", IMPORT_RATIO, ratio, "x")
    for row in results.sections.get("contention", []):
        what = f"{case_of(row['case']).work.title}, beside a busy process: 99th percentile, over that of one thread"
        waiting = f"waits for a worker that lost its core: {row['longest'] * 1e3:.2g} ms at most"
        yield _at_most(what, 1.0, row["p99"] / row["serial_p99"], "x").because(waiting)


def _memory(results: Results) -> Iterator[Verdict]:
    for row in results.sections.get("memory", []):
        if row["what"].startswith("NumPy"):
            continue
        wanted = STRIDED_MIB if "strided" in row["what"] else MEMORY_MIB
        yield _at_most(f"peak memory, {row['what']}", wanted, row["mib"], "MiB")
