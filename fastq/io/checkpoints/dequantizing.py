"""A quantized model directory back into one of plain floats, some rows in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.io.checkpoints.config import plain_config
from fastq.io.checkpoints.finding import stored_weights
from fastq.io.checkpoints.folder import HALVES, ModelFolder
from fastq.io.checkpoints.stored import StoredWeight
from fastq.io.containers import SafetensorsSource, TensorSpec, bytes_of, spec_of
from fastq.io.pipeline import Piece, Task, copied
from fastq.system.dtypes import Array, numpy_dtype

# what is stored for activations, keys and values: of a layer, or of the attention that has it
OF_ACTIVATIONS = re.compile(  # next to the weight of a layer, or after the name of a tensor of experts
    "(input|output)_(scale|zero_point|global_scale)|(activation|act|input|k|v)_scale|input_scale_ub|qscale_act"
)
OF_ATTENTION = re.compile("([qkv]|kv|kv_cache)_(scale|zero_point|global_scale)")  # next to the layers of q, k and v


class Dequantization:
    """A model directory of plain floats, in a dtype or in that of the model: see `Conversion`.

    ValueError if it is not quantized, or in a way that is not known here.
    """

    def __init__(self, source: ModelFolder, dtype: str | None = None) -> None:
        self.source, self.dtype = source, dtype or source.dtype
        self.weights = stored_weights(source)
        caches = bool(source.quantization.get("kv_cache_scheme"))  # of layers that may not be quantized
        modules = {name.rpartition(".")[0] for name in source.tensors} if caches else self.weights
        self._parents = {module.rpartition(".")[0] for module in modules}
        self.dropped = set(filter(self._is_of_activations, source.tensors))
        self.key: dict[str, Any] = {"dtype": self.dtype}

    def _is_of_activations(self, name: str) -> bool:
        """Whether a tensor is a scale or zero point by which activations, keys or values were to be quantized."""
        module, _, end = name.rpartition(".")
        if OF_ATTENTION.fullmatch(end) and module.removesuffix(".attn") in self._parents:
            return True
        return any(
            OF_ACTIVATIONS.fullmatch(name.removeprefix(weight)[1:])
            for weight in (module, name[: -len("_activation_scale")], name[: -len("_input_scale")])
            if weight in self.weights
        )

    def config(self) -> dict[str, Any]:
        """Return config.json of the result."""
        return plain_config(self.source.config, HALVES[self.dtype])

    def tasks(self, shard: str) -> Iterator[list[Task]]:
        """Yield what becomes of each tensor of a shard: weights are where their codes were, and read with them."""
        for spec in self.source.shards[shard].tensors.values():
            about, weight = (spec.name, spec.shape, spec.nbytes), self.weights.by_codes.get(spec.name)
            if weight is not None:
                work = [partial(self._values, weight, start, stop) for start, stop in weight.chunks()]
                made = spec_of(weight.name, self.dtype, weight.shape)
                yield [Task(weight.name, weight.shape, weight.nbytes, weight.label, work, [made])]
            elif spec.name in self.dropped:
                yield [Task(*about, "dropped: of activations", [partial(Piece, {}, spec.nbytes)])]
            elif spec.name in self.weights.parts:
                yield []
            elif spec.dtype in HALVES and spec.dtype != self.dtype:  # floats have the dtype of the model
                made = spec_of(spec.name, self.dtype, spec.shape)
                yield [Task(*about, f"{spec.dtype} to {self.dtype}", [partial(self._cast, spec)], [made])]
            else:
                yield [copied(spec, self.source.raw)]

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

    def _values(self, weight: StoredWeight, start: int, stop: int) -> Piece:
        """Decode some rows of a weight; with the last, all that is stored of it is done."""
        with np.errstate(over="ignore"):  # refused below
            values = weight.values(start, stop).astype(numpy_dtype(self.dtype), copy=False)
        self._check(weight.name, values)
        return Piece({weight.name: values}, weight.nbytes if stop == weight.matrix[0] else 0)


class _PlainShard(SafetensorsSource):
    """A shard of a quantized model with the tensors that `Dequantization` makes of it, each when it is asked for."""

    def __init__(self, made: Dequantization, name: str) -> None:
        self._stored = made.source.shards[name]
        self.path, self.metadata = self._stored.path, self._stored.metadata
        tasks = [task for each in made.tasks(name) for task in each if task.specs]
        self.tensors, self._tasks = {task.name: task.specs[0] for task in tasks}, {task.name: task for task in tasks}

    def _is_stored(self, name: str) -> bool:
        return self._stored.tensors.get(name) == self.tensors[name]

    def load(self, name: str) -> Array:
        """Return a tensor, all in memory where it was quantized."""
        if self._is_stored(name):
            return self._stored.load(name)
        pieces = [work().stored[name] for work in self._tasks[name].pieces]
        return np.concatenate(pieces).reshape(self.tensors[name].shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor."""
        return self._stored.raw(name) if self._is_stored(name) else bytes_of(self.load(name))

    def read_ahead(self, name: str) -> None:
        """Leave it to the system: a tensor may be of several that are stored."""


class PlainFolder(ModelFolder):
    """A quantized model directory as the one of plain floats that `Dequantization` makes of it."""

    def __init__(self, source: ModelFolder) -> None:
        made = Dequantization(source)
        self.path, self.index, self.config = source.path, source.index, made.config()
        self.quantization = source.quantization
        self.shards = {name: _PlainShard(made, name) for name in source.shards}
        self.files = {tensor: name for name, shard in self.shards.items() for tensor in shard.tensors}
        self.notes = [*source.notes, f"its {len(made.weights)} quantized weights are read as {made.dtype}"]
        if made.dropped:
            self.notes.append(f"{len(made.dropped)} scales of activations, keys and values are left out")
