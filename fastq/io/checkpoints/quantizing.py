"""The matrices of a model quantized, some rows in memory at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from fastq.io.checkpoints.config import quantized_config
from fastq.io.checkpoints.dequantizing import PlainFolder
from fastq.io.checkpoints.encoding import ScaleArithmetic, encode, global_scale, largest_magnitude, row_chunks
from fastq.io.checkpoints.folder import ModelFolder
from fastq.io.checkpoints.names import fused_with
from fastq.io.checkpoints.rules import Matrix, Plan, Rules, make_plan
from fastq.io.containers import TensorSpec, spec_of
from fastq.io.pipeline import Piece, Task, copied, errors_of, naming
from fastq.layouts.compressed_tensors import StoredForm, form_of
from fastq.system.dtypes import Array

SAMPLE = 256  # rows of a picture


class Quantization:
    """A model directory quantized by rules, one that is quantized by the values that it stands for: see `Conversion`.

    ValueError if it has nothing to quantize, or something that can't be.
    """

    def __init__(self, source: ModelFolder, rules: Rules, *, bit_exact: bool = False, method: str = "minmax") -> None:
        source = PlainFolder(source) if source.quantization else source
        self.source, self.rules, self.tensors = source, rules, source.tensors
        self.arithmetic = ScaleArithmetic(source.dtype, bit_exact, method)
        self.plan: Plan = make_plan(self.tensors, source.config, rules)
        chosen = {scheme.name: asdict(scheme) for scheme in (rules.scheme, *(scheme for _, scheme in rules.schemes))}
        self.key = {"rules": repr(rules), "schemes": chosen, "arithmetic": asdict(self.arithmetic)}
        self.fused: dict[str, list[Matrix]] = {}
        for matrix in self.plan.matrices:
            if matrix.scheme.weights.strategy == "tensor_group":
                self.fused.setdefault(fused_with(matrix.module), []).append(matrix)
        self._shared = functools.cache(self._global_scale)
        self._magnitudes = functools.cache(self._largest)

    def _form(self, matrix: Matrix) -> StoredForm:
        return form_of(matrix.scheme, matrix.shape, self.arithmetic.dtype)

    def config(self) -> dict[str, Any]:
        """Return config.json of the result."""
        return quantized_config(self.source.config, self.plan, self.rules, self.tensors)

    def tasks(self, shard: str) -> Iterator[list[Task]]:
        """Yield what becomes of each tensor of a shard: itself, or its matrices quantized."""
        for spec in self.source.shards[shard].tensors.values():
            if spec.name in self.plan.quantized:
                load = functools.cache(functools.partial(self.source.load, spec.name))  # once for its matrices
                yield [self._task(matrix, spec, load) for matrix in self.plan.quantized[spec.name]]
            else:
                yield [copied(spec, self.source.raw, f"copied: {self.plan.left[spec.name]}")]

    def _task(self, matrix: Matrix, tensor: TensorSpec, load: Callable[[], Array]) -> Task:
        stored = self._form(matrix).specs()
        specs = [spec_of(f"{matrix.module}.{end}", *each) for end, each in stored.items()]
        before = tensor.nbytes // tensor.size * math.prod(matrix.shape)
        about = f"{matrix.module}.weight", matrix.shape, before, str(matrix.scheme.weights)
        return Task(*about, self._pieces(matrix, load), specs)

    def _pieces(self, matrix: Matrix, load: Callable[[], Array]) -> Iterator[Callable[[], Piece]]:
        """Yield the work of encoding chunks of rows; the first has what is stored once for the matrix."""
        values = matrix.of(load())
        with naming(lambda error: _failure(matrix, error)):
            factor = self._factor(matrix)
        once = self._form(matrix).constants(factor)
        for start, stop in row_chunks(matrix.shape):
            yield functools.partial(self._encoded, matrix, values[start:stop], factor, once)
            once = {}

    def _encoded(self, matrix: Matrix, rows: Array, factor: float, once: dict[str, Array]) -> Piece:
        with naming(lambda error: _failure(matrix, error)):
            arrays, x, q = encode(rows, matrix.scheme, self.arithmetic, factor)
        stored = {f"{matrix.module}.{end}": array for end, array in (once | arrays).items()}
        return Piece(stored, rows.nbytes, errors_of(x, q))

    def sample(self, name: str) -> tuple[Array, Array]:
        """Return the first rows of a matrix that was quantized, and their approximation, in float32."""
        matrix = next(matrix for matrix in self.plan.matrices if f"{matrix.module}.weight" == name)
        factor = self._factor(matrix)
        rows = matrix.of(self.source.load(matrix.tensor))[:SAMPLE]
        _, _, q = encode(rows, matrix.scheme, self.arithmetic, factor)
        form = form_of(matrix.scheme, rows.shape, self.arithmetic.dtype)
        return rows.astype(np.float32), form.unfolded(np.asarray(q.dequantize(), np.float32))

    def _factor(self, matrix: Matrix) -> float:
        return self._shared(fused_with(matrix.module)) if matrix.scheme.weights.strategy == "tensor_group" else 1.0

    def _global_scale(self, key: str) -> float:
        """Return the global scale of matrices that share one."""
        largest = max(self._magnitudes(matrix.tensor)[matrix.module] for matrix in self.fused[key])
        return global_scale(largest, self.arithmetic)

    def _largest(self, tensor: str) -> dict[str, float]:
        """Return the largest magnitude of each matrix of a tensor, which is decoded for it once if it is quantized."""
        values = self.source.load(tensor)
        return {matrix.module: largest_magnitude(matrix.of(values)) for matrix in self.plan.quantized[tensor]}


def _failure(matrix: Matrix, error: Exception) -> str:
    return f"{matrix.module} can't be quantized: {error}; --ignore {matrix.module} leaves it"
