"""Conversions of a model directory: its matrices are quantized or restored, some rows in memory at a time."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.results import QuantizedArray
from fastq.system.dtypes import Array, numpy_dtype
from fastq.tools.checkpoints import encoding, stacks
from fastq.tools.checkpoints.config import plain_config, quantized_config
from fastq.tools.checkpoints.encoding import ScaleArithmetic, StoredWeight, encode, row_chunks
from fastq.tools.checkpoints.finding import check_floats, stored_weights
from fastq.tools.checkpoints.folder import HALVES, ModelFolder
from fastq.tools.checkpoints.names import fused_with
from fastq.tools.checkpoints.rules import Matrix, Plan, Rules, make_plan
from fastq.tools.checkpoints.stacks import Stack
from fastq.tools.files.containers import SafetensorsSource, TensorSpec, bytes_of, spec_of
from fastq.tools.files.pipeline import Piece, Task, copied, errors_of, naming, some_of
from fastq.tools.gguf_files.imatrix import Imatrix, Wanted, weigh
from fastq.tools.gguf_files.names import imatrix_names
from fastq.tools.layouts.compressed_tensors import StoredForm, form_of

# tensors stored for activations, keys and values: next to a layer, or to its attention
OF_ACTIVATIONS = re.compile(  # next to the weight of a layer, or after the name of a tensor of experts
    "(input|output)_(scale|zero_point|global_scale)|(activation|act|input|k|v)_scale|input_scale_ub|qscale_act"
)
OF_ATTENTION = re.compile("([qkv]|kv|kv_cache)_(scale|zero_point|global_scale)")  # next to the layers of q, k and v
SAMPLE = 256  # rows of a picture


class Dequantization:
    """A model directory of plain floats, in a given dtype or in that of the model: see `Conversion`."""

    def __init__(self, source: ModelFolder, dtype: str | None = None) -> None:
        self.source = source
        self.dtype = dtype or source.dtype
        self.weights = stored_weights(source)
        caches = bool(source.quantization.get("kv_cache_scheme"))  # they may belong to layers that are not quantized
        modules = {name.rpartition(".")[0] for name in source.tensors} if caches else self.weights
        self._parents = {module.rpartition(".")[0] for module in modules}
        self.dropped = set(filter(self._is_of_activations, source.tensors))
        self.stacks = {name: self._stacks(shard) for name, shard in source.shards.items()}
        self.key: dict[str, Any] = {"dtype": self.dtype}

    def _is_of_activations(self, name: str) -> bool:
        """Return whether a tensor is a scale or zero point for activations, keys or values."""
        module, _, end = name.rpartition(".")
        if OF_ATTENTION.fullmatch(end) and module.removesuffix(".attn") in self._parents:
            return True
        return any(
            OF_ACTIVATIONS.fullmatch(name.removeprefix(weight)[1:])
            for weight in (module, name[: -len("_activation_scale")], name[: -len("_input_scale")])
            if weight in self.weights
        )

    def _stacks(self, shard: SafetensorsSource) -> dict[str, Stack]:
        """Return the tensors of experts that were split in a shard, by the codes of their matrices."""
        found: dict[str, Stack] = {}
        for stack in stacks.from_metadata(shard.metadata):
            if stack.shape[0] * len(stack.parts) > len(self.weights):  # metadata can say anything
                continue
            weights = [self.weights.get(module) for module, *_ in stack.modules()]
            shape = stack.rows, stack.shape[2]
            if all(each and each.codes.name in shard.tensors and each.shape == shape for each in weights):
                found |= {each.codes.name: stack for each in weights if each}
        return found

    def metadata(self, shard: str) -> dict[str, str]:
        """Return the metadata of a shard of the result."""
        return {key: each for key, each in self.source.shards[shard].metadata.items() if key != stacks.SPLIT}

    def config(self) -> dict[str, Any]:
        """Return config.json of the result."""
        return plain_config(self.source.config, HALVES[self.dtype])

    def tasks(self, shard: str) -> Iterator[list[Task]]:
        """Yield the task for each tensor of a shard: weights replace their codes, and are read with them."""
        begun = set()
        for spec in self.source.shards[shard].tensors.values():
            about = (spec.name, spec.shape, spec.nbytes)
            weight = self.weights.by_codes.get(spec.name)
            stack = self.stacks[shard].get(spec.name)
            if stack is not None:
                yield [self._stacked(stack)] if stack not in begun else []
                begun.add(stack)
            elif weight is not None:
                work = [partial(self._values, weight, start, stop) for start, stop in weight.chunks()]
                made = spec_of(weight.name, self.dtype, weight.shape)
                yield [Task(weight.name, weight.shape, weight.nbytes, weight.label, work, [made])]
            elif spec.name in self.dropped:
                yield [Task(*about, "dropped: for activations", [partial(Piece, {}, spec.nbytes)])]
            elif spec.name in self.weights.parts:
                yield []
            elif spec.dtype in HALVES and spec.dtype != self.dtype:  # floats have the dtype of the model
                made = spec_of(spec.name, self.dtype, spec.shape)
                yield [Task(*about, f"{spec.dtype} to {self.dtype}", [partial(self._cast, spec)], [made])]
            else:
                yield [copied(spec, self.source.raw)]

    def _stacked(self, stack: Stack) -> Task:
        """Return the task that restores a tensor of experts from their matrices, one below the other."""
        weights = [self.weights[module] for module, *_ in stack.modules()]
        work = [
            partial(self._values, weight, start, stop, stack.name)
            for weight in weights
            for start, stop in weight.chunks()
        ]
        nbytes = sum(weight.nbytes for weight in weights)
        made = spec_of(stack.name, self.dtype, stack.shape)
        return Task(stack.name, stack.shape, nbytes, weights[0].label, work, [made])

    def _cast(self, spec: TensorSpec) -> Piece:
        values = self.source.load(spec.name)
        with np.errstate(over="ignore"):  # refused below
            converted = values.astype(numpy_dtype(self.dtype))
        self._check(spec.name, converted, values)
        return Piece({spec.name: converted}, spec.nbytes)

    def _check(self, name: str, converted: Array, values: Array | None = None) -> None:
        """Refuse infinities that `values` did not have; codes never have them."""
        if np.isfinite(converted).all():
            return
        infinite = np.isinf(converted)
        if (infinite if values is None else infinite & ~np.isinf(values)).any():
            raise ValueError(f"tensor {name!r} can't become {self.dtype}: its values are too large for {self.dtype}")

    def _values(self, weight: StoredWeight, start: int, stop: int, name: str = "") -> Piece:
        """Decode some rows of a weight, those of `name` if it is of a tensor of experts.

        Its last rows count all its stored bytes as done.
        """
        with np.errstate(over="ignore"):  # refused below
            values = weight.values(start, stop).astype(numpy_dtype(self.dtype), copy=False)
        self._check(weight.name, values)
        return Piece({name or weight.name: values}, weight.nbytes if stop == weight.matrix[0] else 0)


class _PlainShard(SafetensorsSource):
    """A shard of a quantized model with the tensors of `Dequantization`, each computed when it is asked for."""

    def __init__(self, made: Dequantization, name: str) -> None:
        self._stored = made.source.shards[name]
        self.path, self.metadata = self._stored.path, made.metadata(name)
        tasks = [task for each in made.tasks(name) for task in each if task.specs]
        self.tensors = {task.name: task.specs[0] for task in tasks}
        self._tasks = {task.name: task for task in tasks}

    def _is_stored(self, name: str) -> bool:
        return self._stored.tensors.get(name) == self.tensors[name]

    def load(self, name: str) -> Array:
        """Return a tensor; one that was quantized is in memory as a whole."""
        if self._is_stored(name):
            return self._stored.load(name)
        pieces = [work().stored[name] for work in self._tasks[name].pieces]
        return np.concatenate(pieces).reshape(self.tensors[name].shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor."""
        return self._stored.raw(name) if self._is_stored(name) else bytes_of(self.load(name))

    def read_ahead(self, name: str) -> None:
        """Do nothing: a tensor may be made from several stored ones."""


class PlainFolder(ModelFolder):
    """A quantized model directory, read as the directory of plain floats that `Dequantization` writes."""

    def __init__(self, source: ModelFolder) -> None:
        made = Dequantization(source)
        self.path, self.index, self.config = source.path, source.index, made.config()
        self.quantization = source.quantization
        self.shards = {name: _PlainShard(made, name) for name in source.shards}
        self.files = {tensor: name for name, shard in self.shards.items() for tensor in shard.tensors}
        self.notes = [*source.notes, f"its {len(made.weights)} quantized weights are read as {made.dtype}"]
        if made.dropped:
            self.notes.append(f"{len(made.dropped)} scales of activations, keys and values are left out")


class Quantization:
    """A model directory quantized by rules; an already quantized one is dequantized first: see `Conversion`."""

    def __init__(
        self,
        source: ModelFolder,
        rules: Rules,
        *,
        bit_exact: bool = False,
        method: str = "minmax",
        imatrix: Imatrix | None = None,
    ) -> None:
        if source.quantization:
            source = PlainFolder(source)
        else:
            check_floats(source)
        self.source = source
        self.rules = rules
        self.tensors = source.tensors
        self.arithmetic = ScaleArithmetic(source.dtype, bit_exact, method)
        self.plan: Plan = make_plan(self.tensors, source.config, rules)
        chosen = {scheme.name: asdict(scheme) for scheme in (rules.scheme, *(scheme for _, scheme in rules.schemes))}
        self.notes: list[str] = []
        self.rough: Counter[str] = Counter()  # scales of each matrix that have few digits or none
        self.importance = self._weighed(imatrix) if imatrix else {}
        digests = {name: hashlib.sha256(rows.tobytes()).hexdigest() for name, rows in self.importance.items()}
        self.key = {"rules": repr(rules), "schemes": chosen, "arithmetic": asdict(self.arithmetic), "imatrix": digests}
        self.fused: dict[str, list[Matrix]] = {}
        for matrix in self.plan.matrices:
            if matrix.scheme.weights.strategy == "tensor_group":
                self.fused.setdefault(fused_with(matrix.module), []).append(matrix)
        self._shared = functools.cache(self._global_scale)
        self._magnitudes = functools.cache(self._largest)

    def _weighed(self, imatrix: Imatrix) -> dict[str, NDArray[np.float32]]:
        """Return the importance of the columns of matrices, by module; `notes` lists missing and unused entries."""
        wanted = {}
        for each in self.plan.matrices:
            stack = () if each.expert is None else ((each.tensor, each.expert),)
            group = each.scheme.weights.group_size or each.shape[1]
            wanted[each.module] = Wanted(imatrix_names(each.module, *stack), each.shape, group)
        known = {name for left in self.plan.left for name, _ in imatrix_names(left.removesuffix(".weight"))}
        return weigh(imatrix, wanted, known, self.notes.append)

    def _form(self, matrix: Matrix) -> StoredForm:
        return form_of(matrix.scheme, matrix.shape, self.arithmetic.dtype)

    def rough_lines(self) -> list[str]:
        """Return what is told of scales that have few digits, once matrices were encoded."""
        found = [f"{module} ({count:,})" for module, count in sorted(self.rough.items()) if count]
        if not found:
            return []
        return [
            "scales below the normal numbers of float16, the dtype of the model, whose weights lose digits or become "
            f"0: {some_of(found)}; --ignore leaves a matrix as it is"
        ]

    def config(self) -> dict[str, Any]:
        """Return config.json of the result."""
        return quantized_config(self.source.config, self.plan, self.rules, self.tensors)

    def metadata(self, shard: str) -> dict[str, str]:
        """Return the metadata of a shard of the result: those of the source, and the tensors that are split."""
        held = self.source.shards[shard]
        split = (
            name for name in held.tensors if any(each.expert is not None for each in self.plan.quantized.get(name, ()))
        )
        shapes = ((name, held.tensors[name].shape) for name in split)
        return held.metadata | stacks.to_metadata(Stack(name, (shape[0], shape[1], shape[2])) for name, shape in shapes)

    def tasks(self, shard: str) -> Iterator[list[Task]]:
        """Yield the task for each tensor of a shard: copy it, or quantize its matrices."""
        for spec in self.source.shards[shard].tensors.values():
            if spec.name in self.plan.quantized:
                yield self.tasks_of(spec.name)
            else:
                yield [copied(spec, self.source.raw, f"copied: {self.plan.left[spec.name]}")]

    def tasks_of(self, tensor: str) -> list[Task]:
        """Return the tasks that quantize the matrices of a tensor."""
        load = functools.cache(functools.partial(self.source.load, tensor))  # once for its matrices
        return [self._task(matrix, self.tensors[tensor], load) for matrix in self.plan.quantized[tensor]]

    def _task(self, matrix: Matrix, tensor: TensorSpec, load: Callable[[], Array]) -> Task:
        stored = self._form(matrix).specs()
        specs = [spec_of(f"{matrix.module}.{end}", *each) for end, each in stored.items()]
        before = tensor.nbytes // tensor.size * math.prod(matrix.shape)
        about = f"{matrix.module}.weight", matrix.shape, before, str(matrix.scheme.weights)
        return Task(*about, self._pieces(matrix, load), specs, weighted=matrix.module in self.importance)

    def _pieces(self, matrix: Matrix, load: Callable[[], Array]) -> Iterator[Callable[[], Piece]]:
        """Yield the work of encoding chunks of rows; the first also has the tensors that are stored once per matrix."""
        values = matrix.of(load())
        with naming(lambda error: _failure(matrix, error)):
            factor = self._factor(matrix)
        once = self._form(matrix).constants(factor)
        for start, stop in row_chunks(matrix.shape):
            yield functools.partial(self._encoded, matrix, values[start:stop], factor, once)
            once = {}

    def _encoded(self, matrix: Matrix, rows: Array, factor: float, once: dict[str, Array]) -> Piece:
        with naming(lambda error: _failure(matrix, error)):
            arrays, x, q = self._encode(matrix, rows, factor)
        if self.arithmetic.dtype == "F16" and not matrix.scheme.weights.scale_dtype:
            self.rough[matrix.module] += encoding.rough_scales(x, q)
        stored = {f"{matrix.module}.{end}": array for end, array in (once | arrays).items()}
        return Piece(stored, rows.nbytes, errors_of(x, q))

    def _encode(self, matrix: Matrix, rows: Array, factor: float) -> tuple[dict[str, Array], Array, QuantizedArray]:
        return encode(rows, matrix.scheme, self.arithmetic, factor, self.importance.get(matrix.module))

    def sample(self, name: str) -> tuple[Array, Array]:
        """Return the first rows of a matrix that was quantized, and their approximation, in float32."""
        matrix = next(matrix for matrix in self.plan.matrices if f"{matrix.module}.weight" == name)
        factor = self._factor(matrix)
        rows = matrix.of(self.source.load(matrix.tensor))[:SAMPLE]
        _, _, q = self._encode(matrix, rows, factor)
        form = form_of(matrix.scheme, rows.shape, self.arithmetic.dtype)
        return rows.astype(np.float32), form.unfolded(np.asarray(q.dequantize(), np.float32))

    def _factor(self, matrix: Matrix) -> float:
        return self._shared(fused_with(matrix.module)) if matrix.scheme.weights.strategy == "tensor_group" else 1.0

    def _global_scale(self, key: str) -> float:
        largest = max(self._magnitudes(matrix.tensor)[matrix.module] for matrix in self.fused[key])
        return encoding.global_scale(largest, self.arithmetic)

    def _largest(self, tensor: str) -> dict[str, float]:
        """Return the largest magnitude of each matrix of a tensor; a quantized tensor is decoded once for this."""
        values = self.source.load(tensor)
        return {matrix.module: encoding.largest_magnitude(matrix.of(values)) for matrix in self.plan.quantized[tensor]}


def _failure(matrix: Matrix, error: Exception) -> str:
    return f"{matrix.module} can't be quantized: {error}; --ignore {matrix.module} leaves it"
