"""The search of `fastq suggest`: which schemes are tried, in which order, measured on whole tensors."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fastq
from fastq import reference
from fastq.formats.gguf import WRITTEN, BlockFormat
from fastq.formats.qtypes import as_qtype
from fastq.system.dtypes import Array, numpy_dtype
from fastq.tools.checkpoints.config_json import CONFIG
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.fused_modules import read_as_one
from fastq.tools.checkpoints.own_code import classes_in_code
from fastq.tools.checkpoints.quant_methods import check_floats
from fastq.tools.checkpoints.quantization import Quantization
from fastq.tools.checkpoints.rules import Matrix, Plan, Rules, make_plan
from fastq.tools.files.measured_errors import NO_ERRORS, signal_of
from fastq.tools.files.pipeline import Task
from fastq.tools.files.records import Record, Scheme, stored_specs
from fastq.tools.gguf_files.gguf_file import open_gguf
from fastq.tools.gguf_files.mixes import MIXES, is_quantized, model_of
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES
from fastq.tools.layouts.schemes import E8M0, MICROSCALING, PRESETS, LayerScheme
from fastq.tools.plot.schemes import INTEGERS, Trial, sample_of
from fastq.tools.tensors.tensor import Tensor

FLOATS = "float8_e4m3fn", "float8_e5m2"
BLOCKS = "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "nvfp4"
BLOCK = 32  # elements that share a scale, for formats without blocks of their own
LEAST_GROUP = min(row.weights.group_size for row in PRESETS.values() if row.weights.group_size)
PART = 1 << 16  # about the elements that are quantized together: few enough for the cache of a core
GGUF_PART = 1 << 20
MANY = 64  # parts that are enough to stop early
COMPILED_FROM = 1 << 19  # elements from which compiling a kernel takes less time than the reference
NEAR = 1.0  # decibels by which a sample may miss a ratio that the whole reaches; samples of rows differ by less
TAKES_LIKE = MIXES["Q8_0"]  # the mix of `fastq gguf --like` without a type
LIKE = "suggest --json > FILE writes them"


class Way(NamedTuple):
    """A scheme for a tensor."""

    scheme: Scheme | str
    nbytes: int  # bytes that the command stores for the tensor
    # returns the SQNR of the whole tensor in decibels, or None if it is below these decibels: most are soon known to be
    sqnr_db: Callable[[float], float | None]


class Trials(NamedTuple):
    """How schemes are tried for a file or folder."""

    ways: Callable[[Tensor], list[Way]]  # returns the schemes of a tensor
    stays: Callable[[Tensor], str] = lambda tensor: ""  # why a tensor is left out
    group: Callable[[Tensor], Any] = lambda tensor: tensor.name  # tensors of one group have one scheme
    vectors: bool = False  # whether tensors of one axis are quantized


class Suggestion(NamedTuple):
    """The scheme for some tensors."""

    scheme: Scheme | str
    nbytes: tuple[int, ...]  # of each tensor
    sqnr_db: tuple[float, ...]


def schemes_for(source: Path) -> Trials:
    """Return how schemes are tried for a file or folder."""
    if source.suffix == ".gguf":
        file = open_gguf(source)
        architecture = model_of(file).architecture
        quantized = {name for name, spec in file.tensors.items() if is_quantized(spec, architecture)}
        return Trials(_ways_of_gguf, lambda tensor: "" if tensor.name in quantized else "not quantized by fastq gguf")
    if not (source / CONFIG).is_file():
        return Trials(_ways_of_file, vectors=source.suffix == ".npy")
    try:
        model = ModelFolder(source)
        rules = Rules(PRESETS["W8A8"])
        if not model.quantization:
            check_floats(model)
        plan = None if model.quantization else _plan_of(model, rules)
    except ValueError:  # fastq convert refuses it, fastq quantize accepts its files
        return Trials(_ways_of_file)

    def stays(tensor: Tensor) -> str:
        if plan is None or tensor.name not in plan.quantized:
            why = plan and plan.left.get(tensor.name)
            return f"copied by fastq convert: {why}" if why else "not quantized by fastq convert"
        return "rows shorter than a group" if tensor.shape[-1] % LEAST_GROUP else ""

    return Trials(
        partial(_ways_of_model, functools.cache(partial(_as_preset, model, [*plan.matrices] if plan else []))),
        stays,
        lambda tensor: read_as_one(tensor.name.removesuffix(".weight"), tensor.shape[-1]),
    )


def _plan_of(model: ModelFolder, rules: Rules) -> Plan:
    """Return what `fastq convert` would do with a model."""
    return make_plan(model.tensors, model.config, rules, classes_in_code(model.path, model.config))


def command(source: Path, schemes: Counter[str]) -> str:
    """Return the command for the schemes, given with the number of tensors of each."""
    ((most, _),) = schemes.most_common(1)
    if source.suffix == ".gguf":
        return f"fastq gguf {source} OUT.gguf --like FILE takes them; {LIKE}"
    if most not in PRESETS:
        return f"fastq quantize --like FILE takes them{', a file at a time' * source.is_dir()}; {LIKE}"
    if len(schemes) > 1:
        return f"fastq convert {source} OUT --like FILE takes them; {LIKE}"
    return f"fastq convert {source} OUT --scheme {most} takes them"


# The search


def cheapest(tensors: Sequence[Sequence[Way]], least: float) -> Suggestion | None:
    """Return the scheme of the fewest bytes by which each of some tensors reaches an SQNR, given their ways.

    If none does, it is the one whose worst tensor is best. None if no scheme can hold the values.
    """
    ways = [{way.scheme: way for way in of_tensor} for of_tensor in tensors]
    common = [[each[scheme] for each in ways] for scheme in ways[0] if all(scheme in each for each in ways)]
    common.sort(key=lambda row: sum(way.nbytes for way in row))
    for row in common:
        if found := _reaching(row, least):
            return found
    best = None
    for row in reversed(common):  # the most bytes first, of which most others are soon known to fall short
        best = _reaching(row, -math.inf if best is None else min(best.sqnr_db)) or best
    return best


def _reaching(ways: Sequence[Way], least: float) -> Suggestion | None:
    """Return the suggestion of one scheme, if all tensors reach an SQNR by it."""
    ratios = []
    for way in ways:
        ratio = way.sqnr_db(least)
        if ratio is None:
            return None
        ratios.append(ratio)
    return Suggestion(ways[0].scheme, tuple(way.nbytes for way in ways), tuple(ratios))


class _Budget:
    """The noise by which an array reaches an SQNR; parts are added until it is exceeded."""

    def __init__(self, signal: float, least: float) -> None:
        with np.errstate(over="ignore"):  # of decibels far below 0
            share = float(np.power(10.0, -least / 10))
        self._left = signal * share * (1 + 1e-9)  # sums differ in their last digits

    def is_spent_by(self, values: Array, approximation: Array) -> bool:
        """Add the errors of a part, and return whether there is too much noise."""
        errors = np.subtract(values, approximation, dtype=np.float64).ravel()
        return self.is_spent_on(float(np.einsum("i,i", errors, errors)))  # by one thread, unlike np.dot

    def is_spent_on(self, noise: float) -> bool:
        """Add the noise of a part, and return whether there is too much."""
        self._left -= noise
        return self._left < 0


def _spread(count: int) -> Iterator[int]:
    """Yield the indices below a number so that the first ones are spread over all."""
    yield from np.random.default_rng(0).permutation(count).tolist()


def _check_finite(ends: tuple[Array, Array]) -> None:
    """Refuse infinite values, given the smallest and the largest one."""
    if not np.isfinite(ends).all():
        raise ValueError("it has infinite values, whose range has no scale")


# Files of tensors


def _ways_of_file(tensor: Tensor) -> list[Way]:
    """Return the schemes of `fastq quantize` with their bytes in its file; none is larger than the tensor."""
    whole = _Whole(tensor.values())
    found = []
    for scheme in _schemes_for(len(tensor.shape)):
        nbytes = _stored_bytes(tensor, scheme)
        if nbytes < tensor.nbytes:
            found.append(Way(scheme, nbytes, partial(whole.sqnr_db, scheme)))
    return found


def _schemes_for(ndim: int) -> Iterator[Scheme]:
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


class _Whole:
    """An array of a file, on which schemes are measured part by part, without a kernel for each of them."""

    def __init__(self, x: Array) -> None:
        self.x, self.signal = x, signal_of(x)
        self._range = functools.cache(partial(reference.minmax, x))  # by axis and block size
        _check_finite(self._range())
        self._decoded = np.empty(x.shape, np.float64 if x.dtype == np.float64 else np.float32)

    def sqnr_db(self, scheme: Scheme, least: float) -> float | None:
        """Return the SQNR in decibels that `fastq quantize` gets by a scheme, or None if it is below others."""
        try:
            with np.errstate(all="ignore"):  # codes at the ends of float32 decode to infinity, which is too much noise
                return self._measured(scheme, least)
        except ValueError:  # no scale of the format holds the range, and quantize refuses it
            return None

    def _measured(self, scheme: Scheme, least: float) -> float | None:
        budget = _Budget(self.signal, least)
        parts = _parts(self.x.shape, scheme)
        decode = self._integers if scheme.dtype in INTEGERS else self._floats
        for k in _spread(len(parts)):
            given = self.x[parts[k]].astype(self._decoded.dtype, copy=False)
            values = decode(given, parts[k], scheme)
            self._decoded[parts[k]] = values
            if budget.is_spent_by(given, values):
                return None
        ratio = fastq.compare(self.x, self._decoded).sqnr_db
        return ratio if ratio >= least else None

    def _integers(self, given: Array, part: tuple[slice, ...], scheme: Scheme) -> Array:
        """Return what is left of a part in integer codes: as by the reference, which takes several times as long."""
        scale, zero_point = self._parameters(part, scheme)
        first, last = as_qtype(scheme.dtype).code_range(scheme.symmetric)
        steps = np.rint(given / scale)
        np.clip(steps, first - zero_point, last - zero_point, out=steps)
        return np.multiply(steps, scale, out=steps)

    def _parameters(self, part: tuple[slice, ...], scheme: Scheme) -> tuple[Array, Array]:
        """Return the scales and the zero points of the elements of a part, or what broadcasts to them."""
        options = scheme.arguments_for(self.x.dtype)
        axis = _axis_of(scheme)
        size = scheme.block_size
        if axis is None:
            params = reference.choose_qparams(np.stack(self._range()), **options)
            return params.scale, params.zero_point.astype(self._decoded.dtype)
        where, (start, stop, _) = list(part), part[axis].indices(self.x.shape[axis])
        if size:
            where[axis] = slice(start // size, -(-stop // size))
        else:
            where = [part[axis]]
        ends = np.stack([each[tuple(where)] for each in self._range(axis=axis, block_size=size)], axis=-1)
        params = reference.choose_qparams(ends.reshape(-1, 2), **{**options, "axis": 0, "block_size": 0})
        shape = ends.shape[:-1] if size else [-1 if k == axis else 1 for k in range(self.x.ndim)]
        scale = params.scale.reshape(shape)
        zero_point = params.zero_point.reshape(shape).astype(self._decoded.dtype)
        if not size:
            return scale, zero_point
        of_elements = np.arange(stop - start) // size
        return scale.take(of_elements, axis), zero_point.take(of_elements, axis)

    def _floats(self, given: Array, part: tuple[slice, ...], scheme: Scheme) -> Array:
        """Return what is left of a part, which has whole blocks or channels, by the reference."""
        arguments, lo, hi = scheme.arguments_for(self.x.dtype), *self._range()
        held = self.x[part]
        if as_qtype(scheme.dtype).has_tensor_scale:
            return _beside_the_largest(np.maximum(-lo, hi), arguments, held)
        ranged = np.stack([lo, hi]) if scheme.axis is None else held
        values: Array = reference.fake_quantize(given, qparams=reference.choose_qparams(ranged, **arguments))
        return values


def _beside_the_largest(largest: Array, arguments: Mapping[str, Any], given: Array) -> Array:
    """Quantize and dequantize a part of an array, all of whose scales depend on its largest magnitude."""
    along = arguments["axis"]
    if given.ndim == 1:
        row: Array = _beside_the_largest(largest, {**arguments, "axis": 1}, given[np.newaxis])[0]
        return row
    across = 1 if along == 0 else 0
    once = np.full_like(given.take([0], axis=across), largest)
    q = reference.quantize(np.concatenate([given, once], axis=across), **arguments)
    values: Array = reference.dequantize(q).take(range(given.shape[across]), axis=across)
    return values


def _parts(shape: tuple[int, ...], scheme: Scheme) -> list[tuple[slice, ...]]:
    """Cut an array into parts that have whole blocks or channels, with about `PART` elements each."""
    axis = _axis_of(scheme)
    size = scheme.block_size
    axes = [*range(len(shape))]
    units = [size if size and k == axis else 1 for k in axes]
    if axis is not None and not size:
        axes = [axis]
    elif as_qtype(scheme.dtype).has_tensor_scale:  # parts are quantized next to an element across the blocks
        if len(shape) == 1:
            return [(slice(None),)]
        axes = [k for k in axes if k != axis]
    along = max(axes, key=lambda k: min(shape[k] // units[k], MANY))
    step = max(PART * shape[along] // (math.prod(shape) * units[along]), 1) * units[along]
    before, after = (slice(None),) * along, (slice(None),) * (len(shape) - along - 1)
    return [(*before, slice(start, start + step), *after) for start in range(0, shape[along], step)]


def _axis_of(scheme: Scheme) -> int | None:
    """Return the one axis of a scheme that is tried."""
    return scheme.axis if isinstance(scheme.axis, int) else None


# Models


def _as_preset(model: ModelFolder, matrices: Sequence[Matrix], name: str) -> Quantization | None:
    """Return the conversion of a model to one scheme, without the matrices that readers fuse with unfit ones.

    These are matrices whose rows are not whole groups. None if no others are left.
    """
    group = PRESETS[name].weights.group_size
    fused = {each.module: read_as_one(each.module, each.shape[1]) for each in matrices}
    unfit = {fused[each.module] for each in matrices if each.shape[1] % group}
    stay = [module for module, each in fused.items() if each in unfit]
    if len(stay) == len(fused):
        return None
    return Quantization(model, Rules(PRESETS[name], ignore=tuple(f"re:{re.escape(module)}$" for module in stay)))


def _ways_of_model(converted: Callable[[str], Quantization | None], tensor: Tensor) -> list[Way]:
    """Return the schemes of `fastq convert` for a tensor of matrices, without those that quantize activations."""
    values = tensor.values()
    found = []
    _check_finite(reference.minmax(values))
    for name, preset in PRESETS.items():
        if preset.activations or tensor.shape[-1] % preset.weights.group_size:
            continue
        conversion = converted(name)
        if conversion is None or tensor.name not in conversion.plan.quantized:
            continue
        tasks = partial(conversion.tasks_of, tensor.name)
        nbytes = sum(spec.nbytes for task in tasks() for spec in task.specs)
        found.append(Way(name, nbytes, partial(_of_tasks, tasks, values, _options_of(preset))))
    return found


def _options_of(preset: LayerScheme) -> dict[str, Any]:
    """Return the arguments of `fastq.quantize` that are nearest to a scheme."""
    weights = preset.weights
    if weights.scale_dtype:
        return {"dtype": MICROSCALING[weights.bits] if weights.scale_dtype == E8M0 else "nvfp4"}
    options = {"dtype": weights.qtype.name, "axis": -1, "block_size": weights.group_size}
    return {**options, "symmetric": weights.symmetric, "convention": "compressed-tensors"}


def _of_tasks(tasks: Callable[[], list[Task]], values: Array, options: Mapping[str, Any], least: float) -> float | None:
    """Return the SQNR that tasks get, or None if it is below others; the tasks are run if a sample comes near."""
    if Trial(values).measured(options).sqnr_db < least - NEAR:
        return None
    budget = _Budget(signal_of(values), least)
    errors = NO_ERRORS
    for task in tasks():
        for work in task.pieces:
            of_piece = work().errors or NO_ERRORS
            errors = errors.with_more(of_piece)
            if budget.is_spent_on(of_piece.noise):
                return None
    return errors.sqnr_db if errors.sqnr_db >= least else None


# GGUF


def _ways_of_gguf(tensor: Tensor) -> list[Way]:
    """Return the types of GGUF for rows, without those that `fastq gguf` takes with an importance matrix only.

    Only searches take kernels, each of which may have to be compiled: for few elements the reference is as fast
    elsewhere.
    """
    values = tensor.values()
    if not np.isfinite(values.astype(np.float32, copy=False)).all():
        raise ValueError("it has NaN or infinite values")
    rows = values.reshape(-1, values.shape[-1])
    whole = _Rows(rows)
    fitting = [
        form
        for form in WRITTEN.values()
        if values.shape[-1] % form.size == 0 and not TAKES_LIKE.needs(tensor.name, TENSOR_TYPES[form.name])
    ]
    found = [Way(form.name, rows.size // form.size * form.nbytes, partial(whole.sqnr_db, form)) for form in fitting]
    return [*found, Way("BF16", 2 * rows.size, whole.sqnr_db_of_bfloat16)]


class _Rows:
    """Rows of a GGUF file, on which types of blocks are measured."""

    def __init__(self, rows: Array) -> None:
        self.rows, self.signal = rows, signal_of(rows)
        self._sample = sample_of(rows, {"dtype": "int8"}).astype(np.float32)

    def sqnr_db(self, form: BlockFormat, least: float) -> float | None:
        """Return the SQNR in decibels of a type, or None if it is below others, or its parameters hold no such values.

        All rows are measured if a sample comes near.
        """
        try:
            if self._sample.size < self.rows.size:
                sampled = _through(form, self._sample)
                if reference.compare(self._sample, sampled).sqnr_db < least - NEAR:
                    return None
            return self._measured(partial(_through, form), least)
        except ValueError:
            return None

    def sqnr_db_of_bfloat16(self, least: float) -> float | None:
        """Return the SQNR in decibels of bfloat16, or None if it is below others."""
        return self._measured(lambda rows: rows.astype(numpy_dtype("BF16")).astype(np.float32), least)

    def _measured(self, decoded: Callable[[Array], Array], least: float) -> float | None:
        budget = _Budget(self.signal, least)
        found = np.empty(self.rows.shape, np.float32)
        step = max(GGUF_PART // self.rows.shape[1], 1)
        starts = range(0, len(self.rows), step)
        for k in _spread(len(starts)):
            part = slice(starts[k], starts[k] + step)
            found[part] = decoded(self.rows[part].astype(np.float32, copy=False))
            if budget.is_spent_by(self.rows[part], found[part]):
                return None
        ratio = fastq.compare(self.rows, found).sqnr_db
        return ratio if ratio >= least else None


def _through(form: BlockFormat, rows: Array) -> Array:
    """Return what is left of rows in a type of blocks."""
    compiled = rows.size >= COMPILED_FROM
    quantize = fastq.gguf.quantize if compiled or form.searches(weighted=False) else reference.gguf.quantize
    dequantize = fastq.gguf.dequantize if compiled else reference.gguf.dequantize
    return dequantize(quantize(rows, form.name), form.name)
