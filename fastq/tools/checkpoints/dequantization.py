"""A quantized model directory restored to floats, some rows in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.system.dtypes import Array, numpy_dtype
from fastq.tools.checkpoints.config_json import HALVES
from fastq.tools.checkpoints.experts import SPLIT, Stack, stacks_in_metadata
from fastq.tools.checkpoints.folder import ModelFolder, Shard
from fastq.tools.checkpoints.quant_methods import stored_weights
from fastq.tools.checkpoints.quantization_config import plain_config
from fastq.tools.checkpoints.stored_weights import StoredWeight
from fastq.tools.files.pipeline import Piece, Task, copy_task
from fastq.tools.files.tensor_specs import TensorSpec, bytes_of, spec_of

# ends of names of tensors for activations: next to the weight of a layer, or after the name of a tensor of experts
OF_ACTIVATIONS = re.compile(
    "(input|output)_(scale|zero_point|global_scale)|(activation|act|input|k|v)_scale|input_scale_ub|qscale_act"
)
# ends of names of tensors for keys and values: next to the layers of q, k and v
OF_ATTENTION = re.compile("([qkv]|kv|kv_cache)_(scale|zero_point|global_scale)")


class Dequantization:
    """A model directory of plain floats, in a given dtype or in that of the model: see `Conversion`."""

    def __init__(self, source: ModelFolder, dtype: str | None = None) -> None:
        self.source = source
        self.dtype = dtype or source.dtype
        self.weights = stored_weights(source)
        # scales of keys and values may be next to layers that are not quantized
        has_cache_scales = bool(source.quantization.get("kv_cache_scheme"))
        modules = {name.rpartition(".")[0] for name in source.tensors} if has_cache_scales else self.weights
        # the modules around layers: "layers.0.self_attn" of "layers.0.self_attn.q_proj"
        self._parents = {module.rpartition(".")[0] for module in modules}
        self.dropped = set(filter(self._is_of_activations, source.tensors))
        self.stacks = {name: self._stacks_in(shard) for name, shard in source.shards.items()}
        self.key: dict[str, Any] = {"dtype": self.dtype}

    def _is_of_activations(self, name: str) -> bool:
        """Return whether a tensor is a scale or zero point for activations, keys or values.

        Plain floats need none of them, so these tensors are left out.
        """
        module, _, end = name.rpartition(".")
        # vLLM has a module "attn" for the scales of "self_attn": "self_attn.attn.k_scale"
        if OF_ATTENTION.fullmatch(end) and module.removesuffix(".attn") in self._parents:
            return True
        # next to the weight of a module, or behind the name of a tensor of experts, which is no module: the owner of
        # "experts.down_proj_input_scale" is "experts.down_proj", and the rest is "input_scale"
        for owner in (module, name[: -len("_activation_scale")], name[: -len("_input_scale")]):
            rest = name.removeprefix(owner)[1:]
            if owner in self.weights and OF_ACTIVATIONS.fullmatch(rest):
                return True
        return False

    def _stacks_in(self, shard: Shard) -> dict[str, Stack]:
        """Return the tensors of experts that were split in a shard, by the codes of their matrices.

        Metadata can say anything: those count of which the shard has all matrices.
        """
        stack_of: dict[str, Stack] = {}
        for stack in stacks_in_metadata(shard.metadata):
            if stack.shape[0] * len(stack.parts) > len(self.weights):  # maybe far too many to list
                continue
            modules = [module for module, *_ in stack.modules()]
            weights = [self.weights[module] for module in modules if module in self.weights]
            shape = stack.rows, stack.shape[2]
            in_shard = [weight for weight in weights if weight.codes.name in shard.tensors and weight.shape == shape]
            if len(in_shard) == len(modules):
                stack_of |= {weight.codes.name: stack for weight in in_shard}
        return stack_of

    def metadata(self, shard: str) -> dict[str, str]:
        """Return the metadata of a shard of the result: without the list of split tensors, which are restored."""
        return {key: value for key, value in self.source.shards[shard].metadata.items() if key != SPLIT}

    def config(self) -> dict[str, Any]:
        """Return config.json of the result."""
        return plain_config(self.source.config, HALVES[self.dtype])

    def tasks(self, shard: str) -> Iterator[list[Task]]:
        """Yield the tasks for each tensor of a shard. A weight is restored in the place of its codes.

        Its other tensors have no task, and neither have the further matrices of a tensor of experts.
        """
        begun = set()
        for spec in self.source.shards[shard].tensors.values():
            weight = self.weights.by_codes.get(spec.name)
            stack = self.stacks[shard].get(spec.name)
            if stack is not None:  # all its matrices are restored in the place of the first one
                yield [self._stack_task(stack)] if stack not in begun else []
                begun.add(stack)
            elif weight is not None:
                yield [self._weight_task(weight)]
            elif spec.name in self.dropped:
                yield [self._drop_task(spec)]
            elif spec.name in self.weights.parts:
                yield []
            elif spec.dtype in HALVES and spec.dtype != self.dtype:
                yield [self._cast_task(spec)]
            else:
                yield [copy_task(spec, self.source.raw)]

    def _weight_task(self, weight: StoredWeight) -> Task:
        """Return the task that restores a weight."""
        return Task(
            name=weight.name,
            shape=weight.shape,
            before=weight.nbytes,
            target=weight.label,
            pieces=[partial(self._values, weight, start, stop) for start, stop in weight.chunks()],
            specs=[spec_of(weight.name, self.dtype, weight.shape)],
        )

    def _stack_task(self, stack: Stack) -> Task:
        """Return the task that restores a tensor of experts from their matrices, one below the other."""
        weights = [self.weights[module] for module, *_ in stack.modules()]
        return Task(
            name=stack.name,
            shape=stack.shape,
            before=sum(weight.nbytes for weight in weights),
            target=weights[0].label,
            pieces=[
                partial(self._values, weight, start, stop, stack.name)
                for weight in weights
                for start, stop in weight.chunks()
            ],
            specs=[spec_of(stack.name, self.dtype, stack.shape)],
        )

    def _cast_task(self, spec: TensorSpec) -> Task:
        """Return the task that casts floats to the dtype of the model."""
        return Task(
            name=spec.name,
            shape=spec.shape,
            before=spec.nbytes,
            target=f"{spec.dtype} to {self.dtype}",
            pieces=[partial(self._cast, spec)],
            specs=[spec_of(spec.name, self.dtype, spec.shape)],
        )

    def _drop_task(self, spec: TensorSpec) -> Task:
        """Return the task that leaves a tensor out."""
        return Task(
            name=spec.name,
            shape=spec.shape,
            before=spec.nbytes,
            target="dropped: for activations",
            pieces=[partial(Piece, {}, spec.nbytes)],
        )

    def _cast(self, spec: TensorSpec) -> Piece:
        """Return a tensor in the dtype of the model."""
        values = self.source.load(spec.name)
        with np.errstate(over="ignore"):  # refused below
            converted = values.astype(numpy_dtype(self.dtype))
        self._check(spec.name, converted, values)
        return Piece({spec.name: converted}, spec.nbytes)

    def _check(self, name: str, converted: Array, values: Array | None = None) -> None:
        """Raise ValueError if a cast made infinities.

        `values` are those before the cast, which may be infinite themselves; None for decoded codes, which never are.
        """
        if np.isfinite(converted).all():
            return
        is_new_infinity = np.isinf(converted)
        if values is not None:
            is_new_infinity &= ~np.isinf(values)
        if is_new_infinity.any():
            raise ValueError(f"tensor {name!r} can't become {self.dtype}: its values are too large for {self.dtype}")

    def _values(self, weight: StoredWeight, start: int, stop: int, name: str = "") -> Piece:
        """Decode some rows of a weight. If it belongs to a tensor of experts, `name` is the name of that tensor.

        Progress counts all bytes of the weight with its last rows.
        """
        with np.errstate(over="ignore"):  # refused below
            values = weight.values(start, stop).astype(numpy_dtype(self.dtype), copy=False)
        self._check(weight.name, values)
        return Piece({name or weight.name: values}, weight.nbytes if stop == weight.matrix[0] else 0)


class _PlainShard:
    """A shard of a quantized model with the tensors of `Dequantization`, each computed when it is asked for."""

    def __init__(self, conversion: Dequantization, name: str) -> None:
        self._stored = conversion.source.shards[name]
        self.path = self._stored.path
        self.metadata = conversion.metadata(name)
        # a dropped tensor has a task without specs; a restored or copied one has a task with its own spec
        tasks = [task for tasks_of_tensor in conversion.tasks(name) for task in tasks_of_tensor if task.specs]
        self.tensors = {task.name: task.specs[0] for task in tasks}
        self._tasks = {task.name: task for task in tasks}

    def _is_stored(self, name: str) -> bool:
        """Return whether a tensor is stored as it is: under its name, in its dtype and shape."""
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


def as_floats(source: ModelFolder) -> ModelFolder:
    """Return a quantized model as the directory of plain floats that `Dequantization` writes; nothing is written."""
    conversion = Dequantization(source)
    notes = [*source.notes, f"its {len(conversion.weights)} quantized weights are read as {conversion.dtype}"]
    if conversion.dropped:
        notes.append(f"{len(conversion.dropped)} scales of activations, keys and values are left out")
    return ModelFolder(
        path=source.path,
        config=conversion.config(),
        quantization=source.quantization,
        shards={name: _PlainShard(conversion, name) for name in source.shards},
        index=source.index,
        notes=notes,
    )
