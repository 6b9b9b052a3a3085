"""A quantized model directory back into one of plain floats, some rows in memory at a time."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.io.checkpoints.config import plain_config
from fastq.io.checkpoints.converting import Converted, Progress, read_ahead
from fastq.io.checkpoints.folder import HALVES, ModelFolder
from fastq.io.checkpoints.stored import StoredWeight, stored_weights
from fastq.io.checkpoints.tensors import decode, row_chunks, values
from fastq.io.checkpoints.writing import GrowingShard
from fastq.io.containers import TensorSpec, numpy_dtype, shape_text, spec_of

Array = NDArray[Any]

# what llm-compressor stores for activations, keys and values: of a layer, or of the attention that has it
OF_ACTIVATIONS = re.compile("(input|output)_(scale|zero_point|global_scale)")  # beside the weight of a layer
OF_ATTENTION = re.compile("[qkv]_(scale|zero_point|global_scale)")  # beside the layers of q, k and v


class Dequantization:
    """A model directory of plain floats: see `Conversion`.

    Parameters
    ----------
    source : ModelFolder
        A quantized model.
    dtype : str, optional
        What quantized weights become: F32, F16 or BF16; by default the dtype of the model.

    Raises
    ------
    ValueError
        If it is not quantized, or in a way that is not known here.
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

    def write(self, shard: str, out: GrowingShard, progress: Progress) -> list[Converted]:
        """Write a shard of the result."""
        rows = []
        for spec in read_ahead(self.source, shard):
            weight = self.by_codes.get(spec.name)
            if weight is not None:
                rows.append(self._dequantized(weight, out))
            elif spec.name in self.dropped:
                reason = "dropped: of activations"
                rows.append(Converted(spec.name, shape_text(spec.shape), reason, spec.nbytes, 0))
            elif spec.name not in self.parts:
                rows.append(self._copied(spec, out))
            progress(spec.nbytes, 1)
        return rows

    def _copied(self, spec: TensorSpec, out: GrowingShard) -> Converted:
        target = self._plain(spec)
        if target == spec:
            out.append(spec.name, self.source.raw(spec.name))
        else:
            values = self.source.load(spec.name)
            with np.errstate(over="ignore"):  # refused below
                converted = values.astype(numpy_dtype(self.dtype))
            self._check(spec.name, converted, values)
            out.append(spec.name, converted)
        reason = "copied" if target == spec else f"{spec.dtype} to {target.dtype}"
        return Converted(spec.name, shape_text(spec.shape), reason, spec.nbytes, target.nbytes)

    def _check(self, name: str, converted: Array, values: Array | None = None) -> None:
        """Refuse infinities that were none in `values`, or in codes, which have none."""
        if np.isfinite(converted).all():
            return
        infinite = np.isinf(converted)
        if (infinite if values is None else infinite & ~np.isinf(values)).any():
            raise ValueError(f"tensor {name!r} can't become {self.dtype}: its values are too large for {self.dtype}")

    def _dequantized(self, weight: StoredWeight, out: GrowingShard) -> Converted:
        """Write the values of a weight."""
        name, after = f"{weight.module}.weight", 0
        for start, stop in row_chunks(weight.shape):
            weight.check(start, stop)
            q = decode(weight.part, weight.shape, weight.scheme, start, stop)
            decoded = values(q, (stop - start, weight.shape[1]), self.dtype)
            self._check(name, decoded)
            after += out.append(name, decoded)
        return Converted(name, shape_text(weight.shape), f"{weight.scheme.weights}", weight.nbytes, after)
