"""The matrices of a model quantized, some rows in memory at a time."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.io.checkpoints.config import quantized_config
from fastq.io.checkpoints.converting import Converted, Progress, in_order, read_ahead
from fastq.io.checkpoints.folder import ModelFolder
from fastq.io.checkpoints.parameters import Arithmetic, global_scale, largest_magnitude
from fastq.io.checkpoints.rules import Plan, Rules, Weight, make_plan
from fastq.io.checkpoints.tensors import constants, encode, row_chunks, stored_specs, values
from fastq.io.checkpoints.writing import GrowingShard
from fastq.io.containers import TensorSpec, shape_text
from fastq.io.errors import noise_and_signal

Array = NDArray[Any]

SAMPLE = 256  # rows of a picture
WORKERS = 4  # chunks that are encoded at a time at most: what is serial in one then goes on beside kernels of others


class Quantization:
    """A model directory quantized by rules: see `Conversion`.

    Raises
    ------
    ValueError
        If it has nothing to quantize, or something that can't be.
    """

    def __init__(self, source: ModelFolder, rules: Rules, *, upstream: bool = False, method: str = "minmax") -> None:
        self.source, self.rules, self.tensors = source, rules, source.tensors
        self.arithmetic = Arithmetic(source.dtype, upstream, method)
        self.plan: Plan = make_plan(self.tensors, source.config, rules)
        chosen = {scheme.name: asdict(scheme) for scheme in (rules.scheme, *(scheme for _, scheme in rules.schemes))}
        self.key = {"rules": repr(rules), "schemes": chosen, "arithmetic": asdict(self.arithmetic)}
        self.fused: dict[str, list[Weight]] = {}
        for weight in self.plan.all_weights:
            if weight.scheme.weights.strategy == "tensor_group":
                self.fused.setdefault(weight.fused_with, []).append(weight)
        self._factor_of = functools.cache(self._factor)

    def specs(self, shard: str) -> list[TensorSpec]:
        """Return the tensors of a shard of the result."""
        specs = []
        for spec in self.source.shards[shard].tensors.values():
            weights = self.plan.weights.get(spec.name)
            specs += [spec] if weights is None else [s for weight in weights for s in self._stored(weight)]
        return specs

    def _stored(self, weight: Weight) -> list[TensorSpec]:
        return stored_specs(weight.module, weight.shape, weight.scheme, self.arithmetic.dtype)

    def config(self) -> dict[str, Any]:
        """Return config.json of the result."""
        return quantized_config(self.source.config, self.plan, self.rules, self.tensors)

    def write(self, shard: str, out: GrowingShard, progress: Progress) -> list[Converted]:
        """Write a shard of the result."""
        rows = []
        with ThreadPoolExecutor(min(fastq.get_num_threads(), WORKERS)) as executor:
            try:
                for spec in read_ahead(self.source, shard):
                    rows += self._written(spec, out, progress, executor)
                    progress(0, 1)
            except BaseException:
                executor.shutdown(wait=False, cancel_futures=True)  # chunks that nobody waits for
                raise
        return rows

    def _written(
        self, spec: TensorSpec, out: GrowingShard, progress: Progress, executor: ThreadPoolExecutor
    ) -> list[Converted]:
        """Write what becomes of a tensor: itself, or its matrices quantized."""
        weights = self.plan.weights.get(spec.name)
        if weights is None:
            out.append(spec.name, self.source.raw(spec.name))
            progress(spec.nbytes, 0)
            reason = f"copied: {self.plan.left[spec.name]}"
            return [Converted(spec.name, shape_text(spec.shape), reason, spec.nbytes, spec.nbytes)]
        tensor = self.source.load(spec.name)
        return [self._quantized(weight, tensor, out, progress, executor) for weight in weights]

    def _quantized(
        self, weight: Weight, tensor: Array, out: GrowingShard, progress: Progress, executor: ThreadPoolExecutor
    ) -> Converted:
        """Write what is stored for a matrix, some of its chunks encoded at a time."""
        matrix, scheme, noise, signal, largest, after = weight.of(tensor), weight.scheme, 0.0, 0.0, 0.0, 0
        with _failures(weight):
            factor = self._factor_of(weight.fused_with) if scheme.weights.strategy == "tensor_group" else 1.0
        stored = constants(weight.shape, scheme.weights, scheme.format, factor)

        def encoded(rows: tuple[int, int]) -> tuple[dict[str, Array], tuple[float, float], float]:
            x = matrix[slice(*rows)]
            with _failures(weight):
                arrays, groups, q = encode(x, scheme, self.arithmetic, factor)
            errors = fastq.compare(groups.values, q)
            return arrays, noise_and_signal(errors, groups.values), errors.max_abs_error

        for (start, stop), (arrays, added, error) in in_order(executor, encoded, row_chunks(weight.shape), WORKERS):
            for name, array in (stored | arrays).items():
                after += out.append(f"{weight.module}.{name}", array)
            stored = {}
            noise, signal, largest = noise + added[0], signal + added[1], max(largest, error)
            progress(matrix[start:stop].nbytes, 0)
        name, shape, before = f"{weight.module}.weight", shape_text(weight.shape), matrix.nbytes
        return Converted(name, shape, str(scheme.weights), before, after, noise, signal, largest)

    def sample(self, name: str) -> tuple[Array, Array]:
        """Return the first rows of a matrix that was quantized, and their approximation, in float32."""
        weight = next(weight for weight in self.plan.all_weights if f"{weight.module}.weight" == name)
        factor = self._factor_of(weight.fused_with) if weight.scheme.weights.strategy == "tensor_group" else 1.0
        rows = weight.of(self.source.load(weight.tensor))[:SAMPLE]
        _, _, q = encode(rows, weight.scheme, self.arithmetic, factor)
        return rows.astype(np.float32), values(q, rows.shape, "F32")

    def _factor(self, fused_with: str) -> float:
        """Return the global scale of matrices that share one."""
        matrices = (weight.of(self.source.load(weight.tensor)) for weight in self.fused[fused_with])
        return global_scale(max(map(largest_magnitude, matrices)), self.arithmetic)


@contextmanager
def _failures(weight: Weight) -> Iterator[None]:
    """Name the matrix that can't be quantized."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{weight.module} can't be quantized: {error}; --ignore {weight.module} leaves it") from error
