"""The search of `fastq suggest`: which schemes are tried, in which order, measured on whole tensors."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fastq
from fastq import reference
from fastq.formats.gguf import BLOCK_FORMATS, BlockFormat
from fastq.formats.qtypes import as_qtype
from fastq.results.squares import squares_of
from fastq.system.dtypes import Array, numpy_dtype
from fastq.tools.checkpoints.config_json import CONFIG
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.fused_modules import read_as_one
from fastq.tools.checkpoints.own_code import read_own_code
from fastq.tools.checkpoints.quant_methods import check_floats
from fastq.tools.checkpoints.quantization import Quantization
from fastq.tools.checkpoints.rules import Matrix, Plan, Rules, make_plan
from fastq.tools.files.measured_errors import NO_ERRORS
from fastq.tools.files.pipeline import Task
from fastq.tools.files.records import Record, Scheme, stored_specs
from fastq.tools.gguf_files.gguf_file import LLAMA_DIMENSIONS, open_gguf
from fastq.tools.gguf_files.mixes import LIKE_MIX, MIXES, is_quantized, model_of
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES
from fastq.tools.layouts.schemes import E8M0, MICROSCALING, PRESETS, LayerScheme
from fastq.tools.plot.schemes import INTEGERS, Trial, sample_of
from fastq.tools.tensors.tensor import Tensor

FLOATS = "float8_e4m3fn", "float8_e5m2"
BLOCKS = "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "nvfp4"
BLOCK = 32  # elements that share a scale, for formats without blocks of their own
LEAST_GROUP = min(row.weights.group_size for row in PRESETS.values() if row.weights.group_size)
PART = 1 << 16  # about the elements that are quantized together: few enough for the cache of a core
GGUF_PART = 1 << 20  # the same for rows of GGUF
MANY = 64  # parts that are enough to stop early
COMPILED_FROM = 1 << 19  # elements from which compiling a kernel takes less time than the reference
NEAR = 1.0  # decibels by which a sample may miss a ratio that all rows reach; samples of rows differ by less
LIKE = "suggest --json > FILE writes them"


class NotFiniteError(Exception):
    """A tensor has values that no scheme holds. It is no error of the file, whose other tensors can be tried."""


class Candidate(NamedTuple):
    """A scheme that may be chosen for a tensor."""

    scheme: Scheme | str
    nbytes: int  # bytes that the command stores for the tensor
    # returns the SQNR of the whole tensor in decibels, or None if it is below these decibels: most are soon known to be
    sqnr_db: Callable[[float], float | None]


class Trials(NamedTuple):
    """How schemes are tried for a file or folder."""

    candidates: Callable[[Tensor], list[Candidate]]  # returns the schemes of a tensor
    reason_against: Callable[[Tensor], str] = lambda tensor: ""  # returns why a tensor is left out
    group_of: Callable[[Tensor], Any] = lambda tensor: tensor.name  # tensors of one group have one scheme
    vectors: bool = False  # whether tensors of one axis are quantized


class Suggestion(NamedTuple):
    """The scheme for some tensors."""

    scheme: Scheme | str
    nbytes: tuple[int, ...]  # of each tensor
    sqnr_db: tuple[float, ...]


def trials_for(source: Path) -> Trials:
    """Return how schemes are tried for a file or a folder: those of the command that would quantize it."""
    if source.suffix == ".gguf":
        return _trials_for_gguf(source)
    if not (source / CONFIG).is_file():
        return Trials(candidates=_file_candidates, vectors=source.suffix == ".npy")
    try:
        model = ModelFolder.open(source)
        plan = None if model.quantization else _plan_of(model)
    except ValueError:  # fastq convert refuses it, fastq quantize accepts its files
        return Trials(candidates=_file_candidates)
    return _trials_for_model(model, plan)


def _trials_for_gguf(source: Path) -> Trials:
    """Return how types are tried for a GGUF file."""
    file = open_gguf(source)
    architecture = model_of(file).architecture
    read_by_llama = {name: spec for name, spec in file.tensors.items() if len(spec.shape) <= LLAMA_DIMENSIONS}
    quantized = {name for name, spec in read_by_llama.items() if is_quantized(spec, architecture)}
    return Trials(
        candidates=_gguf_candidates,
        reason_against=lambda tensor: "" if tensor.name in quantized else "not quantized by fastq gguf",
    )


def _trials_for_model(model: ModelFolder, plan: Plan | None) -> Trials:
    """Return how presets are tried for a model directory; it has no plan if it is quantized already."""

    def reason_against(tensor: Tensor) -> str:
        """Return why the command leaves a tensor as it is; empty if it quantizes it."""
        if plan is None or tensor.name not in plan.quantized:
            reason = plan and plan.copied.get(tensor.name)
            return f"copied by fastq convert: {reason}" if reason else "not quantized by fastq convert"
        return "rows shorter than a group" if tensor.shape[-1] % LEAST_GROUP else ""

    matrices = [*plan.matrices] if plan else []
    conversion_to = functools.cache(partial(_conversion_to_preset, model, matrices))
    return Trials(
        candidates=partial(_model_candidates, conversion_to),
        reason_against=reason_against,
        group_of=lambda tensor: read_as_one(tensor.name.removesuffix(".weight"), tensor.shape[-1]),
    )


def _plan_of(model: ModelFolder) -> Plan:
    """Return what `fastq convert` would do with a model of floats, whatever the scheme; raise ValueError for others."""
    check_floats(model)
    rules = Rules(PRESETS["W8A8"])  # which takes rows of any length, so that all matrices are in the plan
    return make_plan(model.tensors, model.config, rules, read_own_code(model.path, model.config))


def command_line(source: Path, schemes: Counter[str], left_alone: Sequence[str]) -> str:
    """Return the command that quantizes with the chosen schemes; `schemes` counts the tensors of each.

    `left_alone` are the names of tensors that it would try to quantize, and that have values that no scheme holds.
    """
    ((most, _),) = schemes.most_common(1)
    if source.suffix == ".gguf":
        if left_alone:
            return "fastq gguf takes no file that has them"
        return f"fastq gguf {source} OUT.gguf --like FILE takes them; {LIKE}"
    if most not in PRESETS:
        return f"fastq quantize --like FILE takes them{', a file at a time' * source.is_dir()}; {LIKE}"
    ignored = "".join(f" --ignore {name.removesuffix('.weight')}" for name in left_alone)
    if len(schemes) > 1:
        return f"fastq convert {source} OUT --like FILE{ignored} takes them; {LIKE}"
    return f"fastq convert {source} OUT --scheme {most}{ignored} takes them"


# The search


def cheapest(tensors: Sequence[Sequence[Candidate]], least: float) -> Suggestion | None:
    """Return the scheme with the fewest bytes that reaches an SQNR for each tensor, given the candidates of each.

    Of several with as few bytes, it is the one whose worst tensor is best; so it is if none reaches the SQNR. None if
    no scheme can hold the values.
    """
    by_scheme = [{candidate.scheme: candidate for candidate in candidates} for candidates in tensors]
    common = [scheme for scheme in by_scheme[0] if all(scheme in candidates for candidates in by_scheme)]
    trials = [[candidates[scheme] for candidates in by_scheme] for scheme in common]
    trials.sort(key=_bytes_of)
    for _, trials_of_equal_bytes in itertools.groupby(trials, _bytes_of):
        if suggestion := _best_of(trials_of_equal_bytes, least):
            return suggestion
    best = None
    for candidates in reversed(trials):  # after the scheme with the most bytes, most are soon known to fall short
        ratio_to_beat = -math.inf if best is None else min(best.sqnr_db)
        best = _suggestion_if_reached(candidates, ratio_to_beat) or best
    return best


def _bytes_of(candidates: Sequence[Candidate]) -> int:
    """Return the bytes of one scheme, given the candidate of each tensor."""
    return sum(candidate.nbytes for candidate in candidates)


def _best_of(trials: Iterable[Sequence[Candidate]], least: float) -> Suggestion | None:
    """Return the suggestion of the scheme whose worst tensor is best, if all tensors reach an SQNR by it.

    Of equally good ones it is the first.
    """
    best = None
    for candidates in trials:
        ratio_to_reach = least if best is None else min(best.sqnr_db)
        suggestion = _suggestion_if_reached(candidates, ratio_to_reach)
        if suggestion and (best is None or min(suggestion.sqnr_db) > min(best.sqnr_db)):
            best = suggestion
    return best


def _suggestion_if_reached(candidates: Sequence[Candidate], least: float) -> Suggestion | None:
    """Return the suggestion of one scheme, if all tensors reach an SQNR by it, given the candidate of each."""
    ratios = []
    for candidate in candidates:
        ratio = candidate.sqnr_db(least)
        if ratio is None:
            return None
        ratios.append(ratio)
    return Suggestion(
        scheme=candidates[0].scheme,
        nbytes=tuple(candidate.nbytes for candidate in candidates),
        sqnr_db=tuple(ratios),
    )


class _Budget:
    """The noise that an array may have and still reach an SQNR; the noise of parts is taken from it."""

    def __init__(self, signal: float, least: float) -> None:
        # a ratio of r dB is a noise of 10**(-r / 10) of the signal
        with np.errstate(over="ignore"):  # of decibels far below 0
            share = float(np.power(10.0, -least / 10))
        self._left = signal * share * (1 + 1e-9)  # sums differ in their last digits

    def is_spent_on(self, noise: float) -> bool:
        """Add the noise of a part, and return whether there is too much."""
        self._left -= noise
        return self._left < 0


class _Squares:
    """The squares of an array and of its errors, in units of a power of four in which float64 holds the former."""

    def __init__(self, x: Array) -> None:
        self.signal, self._exponent = squares_of(x)

    def noise_of(self, values: Array, approximation: Array) -> float:
        """Return the sum of the squared errors of a part."""
        with np.errstate(over="ignore"):  # which is too much noise
            errors = np.subtract(values, approximation, dtype=np.float64).ravel()
            if self._exponent:
                errors = np.ldexp(errors, -self._exponent)
            return float(np.einsum("i,i", errors, errors))  # by one thread, unlike np.dot


def _spread_indices(count: int) -> Iterator[int]:
    """Yield all indices below a number in random order, so that the first ones already represent all."""
    yield from np.random.default_rng(0).permutation(count).tolist()


def _check_finite(values: Array) -> None:
    """Refuse NaN and infinite values."""
    if not np.isfinite(values).all():
        raise NotFiniteError


# Files of tensors


def _file_candidates(tensor: Tensor) -> list[Candidate]:
    """Return the schemes of `fastq quantize` with their bytes in its file; none is larger than the tensor."""
    array = _MeasuredArray(tensor.values())
    candidates = []
    for scheme in _file_schemes(len(tensor.shape)):
        nbytes = _stored_bytes(tensor, scheme)
        if nbytes < tensor.nbytes:
            candidates.append(Candidate(scheme=scheme, nbytes=nbytes, sqnr_db=partial(array.sqnr_db, scheme)))
    return candidates


def _file_schemes(ndim: int) -> Iterator[Scheme]:
    """Yield schemes: each format with one scale, with scales along each axis, and in blocks along each axis."""
    for dtype in (*INTEGERS, *FLOATS):
        for symmetric in (True, False) if dtype in INTEGERS else (True,):
            yield Scheme(dtype, symmetric=symmetric)
            for axis in range(ndim) if ndim > 1 else ():
                yield Scheme(dtype, axis, symmetric=symmetric)
            for axis in reversed(range(ndim)):
                yield Scheme(dtype, axis, BLOCK, symmetric)
    for dtype in BLOCKS:
        for axis in reversed(range(ndim)):
            yield Scheme(dtype, axis, as_qtype(dtype).block_size, symmetric=True)


def _stored_bytes(tensor: Tensor, scheme: Scheme) -> int:
    """Return the bytes of the codes, scales and other tensors that `fastq quantize` stores for a tensor."""
    arguments = scheme.arguments()
    arguments.pop("range")
    tensor_scale = 1.0 if as_qtype(scheme.dtype).has_tensor_scale else None
    record = Record(**arguments, original_dtype=tensor.scheme, shape=tensor.shape, tensor_scale=tensor_scale)
    return sum(spec.nbytes for spec in stored_specs(tensor.name, record))


class _MeasuredArray:
    """An array of a file, on which schemes are measured part by part, without a kernel for each of them."""

    def __init__(self, x: Array) -> None:
        self.x = x
        self._squares = _Squares(x)
        _check_finite(x)
        self._range = functools.cache(partial(reference.minmax, x))  # by axis and block size
        self._decoded = np.empty(x.shape, np.float64 if x.dtype == np.float64 else np.float32)

    def sqnr_db(self, scheme: Scheme, least: float) -> float | None:
        """Return the SQNR in decibels that `fastq quantize` gets by a scheme, or None if it is below others."""
        try:
            with np.errstate(all="ignore"):  # codes at the ends of float32 decode to infinity, which is too much noise
                return self._measure(scheme, least)
        except ValueError:  # no scale of the format holds the range, and quantize refuses it
            return None

    def _measure(self, scheme: Scheme, least: float) -> float | None:
        """Quantize and dequantize part by part, until the noise is too much; return the SQNR.

        Parts are in random order, so that a bad scheme is found out by the first ones.
        """
        budget = _Budget(self._squares.signal, least)
        parts = _cut_into_parts(self.x.shape, scheme)
        round_trip = self._integer_round_trip if scheme.dtype in INTEGERS else self._float_round_trip
        for k in _spread_indices(len(parts)):
            values = self.x[parts[k]].astype(self._decoded.dtype, copy=False)
            decoded = round_trip(values, parts[k], scheme)
            self._decoded[parts[k]] = decoded
            if budget.is_spent_on(self._squares.noise_of(values, decoded)):
                return None
        ratio = fastq.compare(self.x, self._decoded).sqnr_db
        return ratio if ratio >= least else None

    def _integer_round_trip(self, values: Array, part: tuple[slice, ...], scheme: Scheme) -> Array:
        """Return the values of a part after integer codes: as by the reference, which takes several times as long."""
        scale, zero_point = self._parameters(part, scheme)
        first, last = as_qtype(scheme.dtype).code_range(scheme.symmetric)
        steps = np.rint(values / scale)
        np.clip(steps, first - zero_point, last - zero_point, out=steps)
        return np.multiply(steps, scale, out=steps)

    def _parameters(self, part: tuple[slice, ...], scheme: Scheme) -> tuple[Array, Array]:
        """Return the scales and the zero points of the elements of a part, or what broadcasts to them.

        They are those of pairs of the smallest and the largest element of each channel or block, which have the same
        range: so each range is found once for all schemes.
        """
        options = scheme.arguments_for(self.x.dtype)
        axis = _axis_of(scheme)
        block_size = scheme.block_size
        if axis is None:
            params = reference.choose_qparams(np.stack(self._range()), **options)
            return params.scale, params.zero_point.astype(self._decoded.dtype)
        lo, hi = self._range(axis=axis, block_size=block_size)
        if not block_size:
            ends = np.stack([lo[part[axis]], hi[part[axis]]], axis=-1)
            shape = [-1 if k == axis else 1 for k in range(self.x.ndim)]
            return self._parameters_of_pairs(ends, options, shape)
        start, stop, _ = part[axis].indices(self.x.shape[axis])
        blocks = slice(start // block_size, -(-stop // block_size))
        indices = (*part[:axis], blocks, *part[axis + 1 :])
        ends = np.stack([lo[indices], hi[indices]], axis=-1)
        scale, zero_point = self._parameters_of_pairs(ends, options, ends.shape[:-1])
        block_of_element = np.arange(stop - start) // block_size
        return scale.take(block_of_element, axis), zero_point.take(block_of_element, axis)

    def _parameters_of_pairs(
        self, pairs: Array, options: Mapping[str, Any], shape: Sequence[int]
    ) -> tuple[Array, Array]:
        """Return a scale and a zero point for each pair of elements along the last axis, in a shape."""
        params = reference.choose_qparams(pairs.reshape(-1, 2), **{**options, "axis": 0, "block_size": 0})
        return params.scale.reshape(shape), params.zero_point.reshape(shape).astype(self._decoded.dtype)

    def _float_round_trip(self, values: Array, part: tuple[slice, ...], scheme: Scheme) -> Array:
        """Return the values of a part, which has whole blocks or channels, after float codes, by the reference."""
        arguments = scheme.arguments_for(self.x.dtype)
        original = self.x[part]
        lo, hi = self._range()
        if as_qtype(scheme.dtype).has_tensor_scale:
            return _round_trip_with_largest(np.maximum(-lo, hi), arguments, original)
        params = reference.choose_qparams(np.stack([lo, hi]) if scheme.axis is None else original, **arguments)
        decoded: Array = reference.fake_quantize(values, qparams=params)
        return decoded


def _round_trip_with_largest(largest: Array, arguments: Mapping[str, Any], part: Array) -> Array:
    """Quantize and dequantize a part of an array, all of whose scales depend on its largest magnitude.

    The part is quantized next to elements with that magnitude.
    """
    if part.ndim == 1:
        row: Array = _round_trip_with_largest(largest, {**arguments, "axis": 1}, part[np.newaxis])[0]
        return row
    across = 1 if arguments["axis"] == 0 else 0
    with_magnitude = np.full_like(part.take([0], axis=across), largest)
    q = reference.quantize(np.concatenate([part, with_magnitude], axis=across), **arguments)
    decoded: Array = reference.dequantize(q).take(range(part.shape[across]), axis=across)
    return decoded


def _cut_into_parts(shape: tuple[int, ...], scheme: Scheme) -> list[tuple[slice, ...]]:
    """Cut an array into parts that have whole blocks or channels, with about `PART` elements each.

    It is cut along one axis: the one with the most units, of which `MANY` are enough. Of shape (4096, 4096) and blocks
    of 32 along the last axis, all parts are 16 whole rows.
    """
    axis = _axis_of(scheme)
    block_size = scheme.block_size
    has_channels = axis is not None and not block_size
    has_tensor_scale = as_qtype(scheme.dtype).has_tensor_scale
    if has_tensor_scale and len(shape) == 1 and not has_channels:
        return [(slice(None),)]
    all_axes = range(len(shape))
    units = [block_size if block_size and k == axis else 1 for k in all_axes]  # elements that stay together
    if has_channels:
        axes_to_cut = [k for k in all_axes if k == axis]
    elif has_tensor_scale:  # parts are quantized next to an element across the blocks
        axes_to_cut = [k for k in all_axes if k != axis]
    else:
        axes_to_cut = [*all_axes]
    cut = max(axes_to_cut, key=lambda k: min(shape[k] // units[k], MANY))
    step = max(PART * shape[cut] // (math.prod(shape) * units[cut]), 1) * units[cut]
    before = (slice(None),) * cut
    after = (slice(None),) * (len(shape) - cut - 1)
    return [(*before, slice(start, start + step), *after) for start in range(0, shape[cut], step)]


def _axis_of(scheme: Scheme) -> int | None:
    """Return the one axis of a scheme that is tried."""
    return scheme.axis if isinstance(scheme.axis, int) else None


# Models


def _conversion_to_preset(model: ModelFolder, matrices: Sequence[Matrix], name: str) -> Quantization | None:
    """Return the conversion of a model to a preset, without matrices whose rows are not whole groups.

    Matrices that readers fuse with those are left out too. None if nothing else is left.
    """
    group_size = PRESETS[name].weights.group_size
    fused_matrix_of = {matrix.module: read_as_one(matrix.module, matrix.shape[1]) for matrix in matrices}
    cut_off = {fused_matrix_of[matrix.module] for matrix in matrices if matrix.shape[1] % group_size}
    left_alone = [module for module, fused_matrix in fused_matrix_of.items() if fused_matrix in cut_off]
    if len(left_alone) == len(fused_matrix_of):
        return None
    patterns = tuple(f"re:{re.escape(module)}$" for module in left_alone)
    return Quantization(model, Rules(PRESETS[name], ignore=patterns))


def _model_candidates(conversion_to: Callable[[str], Quantization | None], tensor: Tensor) -> list[Candidate]:
    """Return the schemes of `fastq convert` for a tensor of matrices, without those that quantize activations."""
    values = tensor.values()
    _check_finite(values)
    candidates = []
    for name, preset in PRESETS.items():
        if preset.activations or tensor.shape[-1] % preset.weights.group_size:
            continue
        conversion = conversion_to(name)
        if conversion is None or tensor.name not in conversion.plan.quantized:
            continue
        tasks = partial(conversion.tasks_of, tensor.name)
        nbytes = sum(spec.nbytes for task in tasks() for spec in task.specs)
        sqnr_db = partial(_sqnr_of_tasks, tasks, values, _options_of(preset))
        candidates.append(Candidate(scheme=name, nbytes=nbytes, sqnr_db=sqnr_db))
    return candidates


def _options_of(preset: LayerScheme) -> dict[str, Any]:
    """Return the arguments of `fastq.quantize` that are nearest to a preset, for a quick trial on a sample."""
    weights = preset.weights
    if weights.scale_dtype:
        return {"dtype": MICROSCALING[weights.bits] if weights.scale_dtype == E8M0 else "nvfp4"}
    options = {"dtype": weights.qtype.name, "axis": -1, "block_size": weights.group_size}
    return {**options, "symmetric": weights.symmetric, "convention": "compressed-tensors"}


def _sqnr_of_tasks(
    tasks: Callable[[], list[Task]], values: Array, options: Mapping[str, Any], least: float
) -> float | None:
    """Return the SQNR of running some tasks, or None if it is below `least`. They run only if a sample comes near."""
    if Trial(values).measure(options).sqnr_db < least - NEAR:
        return None
    budget = _Budget(squares_of(values).value, least)
    errors = NO_ERRORS
    for task in tasks():
        for work in task.pieces:
            errors_of_piece = work().errors or NO_ERRORS
            errors = errors.with_more(errors_of_piece)
            if budget.is_spent_on(errors_of_piece.noise):
                return None
    return errors.sqnr_db if errors.sqnr_db >= least else None


# GGUF


def _gguf_candidates(tensor: Tensor) -> list[Candidate]:
    """Return the types of GGUF for rows, without those that `fastq gguf` takes with an importance matrix only.

    Only searches take kernels, each of which may have to be compiled: for few elements the reference is as fast
    elsewhere.
    """
    values = tensor.values()
    with np.errstate(over="ignore"):  # of float64, which the types of blocks take as float32
        _check_finite(values.astype(np.float32, copy=False))
    rows = _MeasuredRows(values.reshape(-1, values.shape[-1]))
    mix = MIXES[LIKE_MIX]
    candidates = []
    for form in BLOCK_FORMATS.values():
        needs_imatrix = form.needs_importance or mix.needs_importance(tensor.name, TENSOR_TYPES[form.name])
        if values.shape[-1] % form.size == 0 and not needs_imatrix:
            nbytes = values.size // form.size * form.nbytes
            candidates.append(Candidate(scheme=form.name, nbytes=nbytes, sqnr_db=partial(rows.sqnr_db, form)))
    return [*candidates, Candidate(scheme="BF16", nbytes=2 * values.size, sqnr_db=rows.sqnr_db_of_bfloat16)]


class _MeasuredRows:
    """Rows of a GGUF file, on which types of blocks are measured."""

    def __init__(self, rows: Array) -> None:
        self.rows = rows
        self._squares = _Squares(rows)
        self._sample = sample_of(rows, {"dtype": "int8"}).astype(np.float32)

    def sqnr_db(self, form: BlockFormat, least: float) -> float | None:
        """Return the SQNR in decibels of a type, or None if it is below others, or its parameters hold no such values.

        All rows are measured if a sample comes near.
        """
        try:
            if self._sample.size < self.rows.size:
                sampled = _round_trip(form, self._sample)
                if reference.compare(self._sample, sampled).sqnr_db < least - NEAR:
                    return None
            return self._measure(partial(_round_trip, form), least)
        except ValueError:
            return None

    def sqnr_db_of_bfloat16(self, least: float) -> float | None:
        """Return the SQNR in decibels of bfloat16, or None if it is below others."""
        return self._measure(lambda rows: rows.astype(numpy_dtype("BF16")).astype(np.float32), least)

    def _measure(self, round_trip: Callable[[Array], Array], least: float) -> float | None:
        """Quantize and dequantize part by part, until the noise is too much; return the SQNR."""
        budget = _Budget(self._squares.signal, least)
        decoded = np.empty(self.rows.shape, np.float32)
        step = max(GGUF_PART // self.rows.shape[1], 1)
        starts = range(0, len(self.rows), step)
        for k in _spread_indices(len(starts)):
            part = slice(starts[k], starts[k] + step)
            decoded[part] = round_trip(self.rows[part].astype(np.float32, copy=False))
            if budget.is_spent_on(self._squares.noise_of(self.rows[part], decoded[part])):
                return None
        ratio = fastq.compare(self.rows, decoded).sqnr_db
        return ratio if ratio >= least else None


def _round_trip(form: BlockFormat, rows: Array) -> Array:
    """Return the values of rows after a type of blocks; few rows go through the reference, which compiles nothing."""
    compiled = rows.size >= COMPILED_FROM
    quantize = fastq.gguf.quantize if compiled or form.searches(weighted=False) else reference.gguf.quantize
    dequantize = fastq.gguf.dequantize if compiled else reference.gguf.dequantize
    return dequantize(quantize(rows, form.name), form.name)
