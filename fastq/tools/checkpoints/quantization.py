"""A model directory whose matrices are quantized, some rows in memory at a time."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.results import QuantizedArray
from fastq.system.dtypes import Array
from fastq.tools.checkpoints.dequantization import as_floats
from fastq.tools.checkpoints.encoding import (
    ScaleArithmetic,
    count_rough_scales,
    encode,
    global_scale,
    largest_magnitude,
)
from fastq.tools.checkpoints.experts import Stack, metadata_of_stacks
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.fused_modules import fused_with, read_as_one
from fastq.tools.checkpoints.own_code import read_own_code
from fastq.tools.checkpoints.plan_notes import MOST_OPTIONS
from fastq.tools.checkpoints.quant_methods import check_floats
from fastq.tools.checkpoints.quantization_config import quantized_config
from fastq.tools.checkpoints.row_chunks import row_chunks
from fastq.tools.checkpoints.rules import Matrix, Plan, Rules, make_plan
from fastq.tools.files.measured_errors import errors_of
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.pipeline import Piece, Task, copy_task
from fastq.tools.files.tensor_specs import TensorSpec, spec_of
from fastq.tools.files.texts import some_of
from fastq.tools.gguf_files.imatrix import Imatrix, MatrixToWeigh, weigh
from fastq.tools.gguf_files.llama_names import imatrix_names
from fastq.tools.layouts.compressed_tensors import StoredForm, form_of

SAMPLE = 256  # most rows of a matrix that a picture shows


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
            source = as_floats(source)
        else:
            check_floats(source)
        self.source = source
        self.rules = rules
        self.tensors = source.tensors
        self.arithmetic = ScaleArithmetic(dtype=source.dtype, bit_exact=bit_exact, method=method)
        code = read_own_code(source.path, source.config)
        self.plan: Plan = make_plan(self.tensors, source.config, rules, code)
        schemes = [rules.scheme, *(scheme for _, scheme in rules.schemes)]
        self.notes: list[str] = []
        self.rough_scales: Counter[str] = Counter()  # of each matrix: those that have few digits or none
        self.importance = self._importance_in(imatrix) if imatrix else {}
        digests = {name: hashlib.sha256(rows.tobytes()).hexdigest() for name, rows in self.importance.items()}
        self.key = {
            "rules": repr(rules),
            "schemes": {scheme.name: asdict(scheme) for scheme in schemes},
            "arithmetic": asdict(self.arithmetic),
            "imatrix": digests,
        }
        # the matrices that share a global scale, by the name of the fused one: see `fused_with`
        self.fused: dict[str, list[Matrix]] = {}
        for matrix in self.plan.matrices:
            if matrix.scheme.weights.strategy == "tensor_group":
                self.fused.setdefault(fused_with(matrix.module), []).append(matrix)
        self._global_scale = functools.cache(self._compute_global_scale)  # by the name of fused matrices
        self._magnitudes = functools.cache(self._compute_magnitudes)  # by tensor

    def _importance_in(self, imatrix: Imatrix) -> dict[str, NDArray[np.float32]]:
        """Return the importance of the columns of matrices, by module; `notes` lists missing and unused entries."""
        to_weigh = {}
        for matrix in self.plan.matrices:
            # the tensor of experts, too, with the index of the matrix in it
            in_stack = () if matrix.expert is None else ((matrix.tensor, matrix.expert),)
            to_weigh[matrix.module] = MatrixToWeigh(
                names=imatrix_names(matrix.module, *in_stack),
                shape=matrix.shape,
                group=matrix.scheme.weights.group_size or matrix.shape[1],
            )
        # matrices that stay as floats, whose entries are not used, but not unknown either
        known = {name for tensor in self.plan.copied for name, _ in imatrix_names(tensor.removesuffix(".weight"))}
        return weigh(imatrix, to_weigh, known, self.notes.append)

    def _form(self, matrix: Matrix) -> StoredForm:
        """Return the stored form of a matrix."""
        return form_of(matrix.scheme, matrix.shape, self.arithmetic.dtype)

    def lines_on_rough_scales(self) -> list[str]:
        """Return lines on scales that have few digits, once matrices were encoded."""
        modules = [f"{module} ({count:,})" for module, count in sorted(self.rough_scales.items()) if count]
        if not modules:
            return []
        return [
            "scales below the normal numbers of float16, the dtype of the model, whose weights lose digits or become "
            f"0: {some_of(modules)}; --ignore leaves a matrix as it is"
        ]

    def config(self) -> dict[str, Any]:
        """Return config.json of the result."""
        return quantized_config(self.source.config, self.plan, self.rules, self.tensors)

    def metadata(self, shard: str) -> dict[str, str]:
        """Return the metadata of a shard of the result: those of the source, and the tensors that are split."""
        stored = self.source.shards[shard]
        stacks = []
        for name, spec in stored.tensors.items():
            if any(matrix.expert is not None for matrix in self.plan.quantized.get(name, ())):
                experts, rows, columns = spec.shape
                stacks.append(Stack(name, (experts, rows, columns)))
        return stored.metadata | metadata_of_stacks(stacks)

    def tasks(self, shard: str) -> Iterator[list[Task]]:
        """Yield the tasks of each tensor of a shard: one that copies it, or one for each matrix to quantize."""
        for spec in self.source.shards[shard].tensors.values():
            if spec.name in self.plan.quantized:
                yield self.tasks_of(spec.name)
            else:
                yield [copy_task(spec, self.source.raw, f"copied: {self.plan.copied[spec.name]}")]

    def tasks_of(self, tensor: str) -> list[Task]:
        """Return the tasks that quantize the matrices of a tensor."""
        load = functools.cache(functools.partial(self.source.load, tensor))  # once for its matrices
        return [self._task(matrix, self.tensors[tensor], load) for matrix in self.plan.quantized[tensor]]

    def _task(self, matrix: Matrix, tensor: TensorSpec, load: Callable[[], Array]) -> Task:
        """Return the task that quantizes a matrix of a tensor."""
        stored = self._form(matrix).specs()
        return Task(
            name=f"{matrix.module}.weight",
            shape=matrix.shape,
            before=tensor.nbytes // tensor.size * math.prod(matrix.shape),
            target=str(matrix.scheme.weights),
            pieces=self._pieces(matrix, load),
            specs=[spec_of(f"{matrix.module}.{end}", dtype, shape) for end, (dtype, shape) in stored.items()],
            weighted=matrix.module in self.importance,
        )

    def _pieces(self, matrix: Matrix, load: Callable[[], Array]) -> Iterator[Callable[[], Piece]]:
        """Yield a function for each chunk of rows that encodes it; the first also stores constants of the matrix.

        Nothing is loaded before the first one is asked for, so a task that only names its tensors costs nothing.
        """
        values = matrix.in_tensor(load())
        with naming(lambda error: self._failure_text(matrix, error)):
            factor = self._factor(matrix)
        for start, stop in row_chunks(matrix.shape):
            constants = self._form(matrix).constants(factor) if start == 0 else {}
            yield functools.partial(self._encoded_piece, matrix, values[start:stop], factor, constants)

    def _encoded_piece(self, matrix: Matrix, rows: Array, factor: float, constants: dict[str, Array]) -> Piece:
        """Return the data to store for some rows, and constants of the matrix that are stored with them."""
        with naming(lambda error: self._failure_text(matrix, error)):
            arrays, x, q = self._encode(matrix, rows, factor)
        if self.arithmetic.dtype == "F16" and not matrix.scheme.weights.scale_dtype:
            self.rough_scales[matrix.module] += count_rough_scales(x, q)
        stored = {f"{matrix.module}.{end}": array for end, array in (constants | arrays).items()}
        return Piece(stored=stored, nbytes=rows.nbytes, errors=errors_of(x, q))

    def _encode(self, matrix: Matrix, rows: Array, factor: float) -> tuple[dict[str, Array], Array, QuantizedArray]:
        """Return the stored tensors of some rows, their values, and their codes and parameters: see `encode`."""
        return encode(rows, matrix.scheme, self.arithmetic, factor, self.importance.get(matrix.module))

    def sample(self, name: str) -> tuple[Array, Array]:
        """Return the first rows of a matrix that was quantized, and their approximation, in float32."""
        matrix = next(matrix for matrix in self.plan.matrices if f"{matrix.module}.weight" == name)
        rows = matrix.in_tensor(self.source.load(matrix.tensor))[:SAMPLE]
        _, _, q = self._encode(matrix, rows, self._factor(matrix))
        form = form_of(matrix.scheme, rows.shape, self.arithmetic.dtype)
        return rows.astype(np.float32), form.from_blocks(np.asarray(q.dequantize(), np.float32))

    def _factor(self, matrix: Matrix) -> float:
        """Return the global scale of a matrix; 1 if its scheme has none."""
        has_global_scale = matrix.scheme.weights.strategy == "tensor_group"
        return self._global_scale(fused_with(matrix.module)) if has_global_scale else 1.0

    def _compute_global_scale(self, key: str) -> float:
        """Return the global scale that fused matrices share; `key` is their name from `fused_with`."""
        largest = max(self._magnitudes(matrix.tensor)[matrix.module] for matrix in self.fused[key])
        return global_scale(largest, self.arithmetic)

    def _compute_magnitudes(self, tensor: str) -> dict[str, float]:
        """Return the largest magnitude of each matrix of a tensor, which is read or decoded once for all of them."""
        values = self.source.load(tensor)
        return {matrix.module: largest_magnitude(matrix.in_tensor(values)) for matrix in self.plan.quantized[tensor]}

    def _failure_text(self, matrix: Matrix, error: Exception) -> str:
        """Return why a matrix can't be quantized, and how to leave it: with all that readers have in one matrix."""
        group = read_as_one(matrix.module, matrix.shape[1])
        matrices = list(self.plan.matrices)
        modules = [other.module for other in matrices if read_as_one(other.module, other.shape[1]) == group]
        if len(modules) == len(matrices):  # without these nothing would be left to quantize
            return f"{matrix.module} can't be quantized: {error}"
        patterns = [f"'re:{re.escape(group[0])}'"] if len(modules) > MOST_OPTIONS else modules
        options = " ".join(f"--ignore {pattern}" for pattern in patterns)
        return f"{matrix.module} can't be quantized: {error}; {options} leaves {'it' if len(modules) == 1 else 'them'}"
