"""A quantized model directory back into one of plain floats, some rows in memory at a time."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from fastq.io.checkpoints.config import plain_config
from fastq.io.checkpoints.converting import read_ahead
from fastq.io.checkpoints.encoding import row_chunks
from fastq.io.checkpoints.folder import HALVES, ModelFolder
from fastq.io.checkpoints.stored import StoredWeight, stored_weights
from fastq.io.containers import TensorSpec, spec_of
from fastq.io.pipeline import Piece, Task, copied
from fastq.layouts.compressed_tensors import form_of
from fastq.system.dtypes import Array, numpy_dtype

# what llm-compressor stores for activations, keys and values: of a layer, or of the attention that has it
OF_ACTIVATIONS = re.compile("(input|output)_(scale|zero_point|global_scale)")  # next to the weight of a layer
OF_ATTENTION = re.compile("[qkv]_(scale|zero_point|global_scale)")  # next to the layers of q, k and v


class Dequantization:
    """A model directory of plain floats, in a dtype or in that of the model: see `Conversion`.

    ValueError if it is not quantized, or in a way that is not known here.
    """

    def __init__(self, source: ModelFolder, dtype: str | None = None) -> None:
        self.source, self.dtype = source, dtype or source.dtype
        self.weights = stored_weights(source)
        self.by_codes = {weight.codes.name: weight for weight in self.weights.values()}
        self.parts = {spec.name for weight in self.weights.values() for spec in weight.specs.values()}
        self._parents = {module.rpartition(".")[0] for module in self.weights}
        self.dropped = set(filter(self._is_of_activations, source.tensors))
        self.key: dict[str, Any] = {"dtype": self.dtype}

    def _is_of_activations(self, name: str) -> bool:
        """Whether a tensor is a scale or zero point by which activations, keys or values were to be quantized."""
        module, _, end = name.rpartition(".")
        of_attention = OF_ATTENTION.fullmatch(end) is not None and module in self._parents
        return of_attention or (OF_ACTIVATIONS.fullmatch(end) is not None and module in self.weights)

    def specs(self, shard: str) -> list[TensorSpec]:
        """Return the tensors of a shard of the result: weights are where their codes were."""
        specs = []
        for spec in self.source.shards[shard].tensors.values():
            weight = self.by_codes.get(spec.name)
            if weight is not None:
                specs.append(spec_of(f"{weight.module}.weight", self.dtype, weight.shape))
            elif spec.name not in self.parts | self.dropped:
                specs.append(self._plain(spec))
        return specs

    def _plain(self, spec: TensorSpec) -> TensorSpec:
        """Return what a tensor that is not quantized becomes: floats have the dtype of the model."""
        return spec_of(spec.name, self.dtype, spec.shape) if spec.dtype in HALVES else spec

    def config(self) -> dict[str, Any]:
        """Return config.json of the result."""
        return plain_config(self.source.config, HALVES[self.dtype])

    def tasks(self, shard: str) -> Iterator[list[Task]]:
        """Yield what becomes of each tensor of a shard; parts of a weight are read with its codes."""
        for spec in read_ahead(self.source, shard):
            weight = self.by_codes.get(spec.name)
            if weight is not None:
                yield [self._dequantized(weight)]
            elif spec.name in self.dropped:
                work = functools.partial(Piece, {}, spec.nbytes)
                yield [Task(spec.name, spec.shape, spec.nbytes, "dropped: of activations", [work])]
            else:
                yield [] if spec.name in self.parts else [self._copied(spec)]

    def _copied(self, spec: TensorSpec) -> Task:
        target = self._plain(spec)
        if target == spec:
            return copied(spec, self.source.raw)
        work = [functools.partial(self._cast, spec)]
        return Task(spec.name, spec.shape, spec.nbytes, f"{spec.dtype} to {target.dtype}", work)

    def _cast(self, spec: TensorSpec) -> Piece:
        values = self.source.load(spec.name)
        with np.errstate(over="ignore"):  # refused below
            converted = values.astype(numpy_dtype(self.dtype))
        self._check(spec.name, converted, values)
        return Piece({spec.name: converted}, spec.nbytes)

    def _check(self, name: str, converted: Array, values: Array | None = None) -> None:
        """Refuse infinities that were none in `values`, or in codes, which have none."""
        if np.isfinite(converted).all():
            return
        infinite = np.isinf(converted)
        if (infinite if values is None else infinite & ~np.isinf(values)).any():
            raise ValueError(f"tensor {name!r} can't become {self.dtype}: its values are too large for {self.dtype}")

    def _dequantized(self, weight: StoredWeight) -> Task:
        chunks = row_chunks(weight.shape)
        work = [functools.partial(self._values, weight, start, stop) for start, stop in chunks]
        return Task(f"{weight.module}.weight", weight.shape, weight.nbytes, f"{weight.scheme.weights}", work)

    def _values(self, weight: StoredWeight, start: int, stop: int) -> Piece:
        """Decode some rows of a weight; with the last, all that is stored of it is done."""
        form, name = form_of(weight.scheme, (stop - start, weight.shape[1]), ""), f"{weight.module}.weight"
        decoded = form.unfolded(np.asarray(weight.rows(start, stop).dequantize()))
        with np.errstate(over="ignore"):  # refused below
            values = np.ascontiguousarray(decoded.astype(numpy_dtype(self.dtype), copy=False))
        self._check(name, values)
        return Piece({name: values}, weight.nbytes if stop == weight.shape[0] else 0)
