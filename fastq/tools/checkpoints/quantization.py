"""A model directory whose matrices are quantized, some rows in memory at a time."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.results import QuantizedArray
from fastq.system.dtypes import Array
from fastq.tools.checkpoints.dequantization import PlainFolder
from fastq.tools.checkpoints.encoding import ScaleArithmetic, encode, global_scale, largest_magnitude
from fastq.tools.checkpoints.experts import Stack, to_metadata
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.fused_modules import fused_with, read_as_one
from fastq.tools.checkpoints.own_code import classes_in_code
from fastq.tools.checkpoints.plan_notes import MOST_NAMED
from fastq.tools.checkpoints.quant_methods import check_floats
from fastq.tools.checkpoints.quantization_config import quantized_config
from fastq.tools.checkpoints.row_chunks import row_chunks
from fastq.tools.checkpoints.rules import Matrix, Plan, Rules, make_plan
from fastq.tools.files.measured_errors import errors_of
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.pipeline import Piece, Task, copied
from fastq.tools.files.tensor_specs import TensorSpec, spec_of
from fastq.tools.gguf_files.imatrix import Imatrix, Wanted, weigh
from fastq.tools.gguf_files.llama_names import imatrix_names
from fastq.tools.layouts.compressed_tensors import StoredForm, form_of

SAMPLE = 256  # rows of a picture


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
        classes = classes_in_code(source.path, source.config)
        self.plan: Plan = make_plan(self.tensors, source.config, rules, classes)
        chosen = {scheme.name: asdict(scheme) for scheme in (rules.scheme, *(scheme for _, scheme in rules.schemes))}
        self.notes: list[str] = []
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
        return held.metadata | to_metadata(Stack(name, (shape[0], shape[1], shape[2])) for name, shape in shapes)

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
        with naming(lambda error: self._failure(matrix, error)):
            factor = self._factor(matrix)
        once = self._form(matrix).constants(factor)
        for start, stop in row_chunks(matrix.shape):
            yield functools.partial(self._encoded, matrix, values[start:stop], factor, once)
            once = {}

    def _encoded(self, matrix: Matrix, rows: Array, factor: float, once: dict[str, Array]) -> Piece:
        with naming(lambda error: self._failure(matrix, error)):
            arrays, x, q = self._encode(matrix, rows, factor)
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
        return global_scale(largest, self.arithmetic)

    def _largest(self, tensor: str) -> dict[str, float]:
        """Return the largest magnitude of each matrix of a tensor; a quantized tensor is decoded once for this."""
        values = self.source.load(tensor)
        return {matrix.module: largest_magnitude(matrix.of(values)) for matrix in self.plan.quantized[tensor]}

    def _failure(self, matrix: Matrix, error: Exception) -> str:
        """Return why a matrix can't be quantized, and how to leave it: with all that readers have in one matrix."""
        group = read_as_one(matrix.module, matrix.shape[1])
        matrices = list(self.plan.matrices)
        modules = [each.module for each in matrices if read_as_one(each.module, each.shape[1]) == group]
        patterns = [f"'re:{re.escape(group[0])}'"] if len(modules) > MOST_NAMED else modules
        way = f"; {' '.join(f'--ignore {each}' for each in patterns)} leaves {'it' if len(modules) == 1 else 'them'}"
        return f"{matrix.module} can't be quantized: {error}{way if len(modules) < len(matrices) else ''}"
