"""Weights of MLX: codes in words of uint32, with scales and biases of groups next to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import as_qtype
from fastq.results import QParams, QuantizedArray
from fastq.system.arguments import shown
from fastq.system.dtypes import Array, numpy_dtype
from fastq.tools.checkpoints.config_json import MLX_KEY
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.stored_weights import SCALES, StoredWeight
from fastq.tools.files.tensor_specs import TensorSpec

AFFINE = "affine"
AFFINE_BITS = (1, 2, 3, 4, 5, 6, 8)
LARGEST = 2688.0  # the largest value of nvfp4 under a global scale of 1: 6 * 448


class MlxMode(NamedTuple):
    """What a mode of `mlx.core.quantize` stores."""

    bits: int  # of a code, unless config.json says
    group_size: int  # codes that share a scale, unless config.json says
    codes: str = ""  # the format of codes; empty for integers, whose scales and biases are floats
    scales: str = ""  # the format of scales that are bytes


MODES = {
    AFFINE: MlxMode(bits=4, group_size=64),
    "mxfp4": MlxMode(bits=4, group_size=32, codes="mxfp4", scales="float8_e8m0fnu"),
    "mxfp8": MlxMode(bits=8, group_size=32, codes="mxfp8_e4m3", scales="float8_e8m0fnu"),
    "nvfp4": MlxMode(bits=4, group_size=16, codes="float4_e2m1fn", scales="float8_e4m3fn"),
}


class MlxForm(NamedTuple):
    """How the weight of a module is stored."""

    mode: str
    bits: int
    group_size: int

    def __str__(self) -> str:
        return f"{self.mode}, {self.bits} bits in groups of {self.group_size}"


def mlx_options(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of config.json, which has a form for all modules, and others by their names.

    Raise ValueError if one of them is no form of MLX.
    """
    for name, own_entry in {MLX_KEY: entry, **entry}.items():
        if isinstance(own_entry, dict):
            subject = f"its {MLX_KEY}" if own_entry is entry else f"its {MLX_KEY} of {name}"
            _form_of(own_entry, subject)
    return entry


def _form_of(entry: Mapping[str, Any], subject: str) -> MlxForm:
    """Return the form that an entry names; raise ValueError for one that MLX does not have, with a subject."""
    name = entry.get("mode") or AFFINE
    if name not in MODES:
        raise ValueError(f"{subject} has the mode {shown(name)}; only {', '.join(MODES)} are read")
    mode = MODES[name]
    bits = entry.get("bits") or mode.bits
    group_size = entry.get("group_size") or mode.group_size
    if name == AFFINE:
        is_known = bits in AFFINE_BITS and type(group_size) is int and group_size > 0
    else:
        is_known = (bits, group_size) == (mode.bits, mode.group_size)
    if not is_known:
        raise ValueError(
            f"{subject} has {shown(bits)} bits and a group_size of {shown(group_size)}, which {name} lacks"
        )
    return MlxForm(mode=name, bits=bits, group_size=group_size)


def mlx_weight(source: ModelFolder, module: str, spec: TensorSpec, entry: Mapping[str, Any]) -> StoredWeight | None:
    """Return a weight, given its codes: a matrix, or the matrices of experts, stacked; None for plain tensors."""
    names = {role: f"{module}.{role}" for role in ("scales", "biases", "global_scale")}
    roles = {role: source.tensors[name] for role, name in names.items() if name in source.tensors}
    if "scales" not in roles:
        return None
    own_entry = entry.get(module)
    form = _form_of(own_entry if isinstance(own_entry, dict) else entry, f"its {MLX_KEY}")
    scales = roles["scales"]
    columns = spec.shape[-1] * 32 // form.bits if spec.shape else 0  # in words of 32 bits
    if spec.dtype != "U32" or len(spec.shape) < 2 or not spec.size:
        raise ValueError(f"its weight is {spec.dtype} of shape {spec.shape}, which must be a matrix of U32")
    if scales.shape != (*spec.shape[:-1], columns // form.group_size) or columns % form.group_size:
        raise ValueError(
            f"its weight of shape {spec.shape} and scales of shape {scales.shape} are not those of {form}, which"
            f" config.json has for it: one is wrong"
        )
    _check_roles(roles, form)
    shape = (*spec.shape[:-1], columns)
    return MlxWeight(
        source=source,
        module=module,
        name=f"{module}.weight",
        shape=shape,
        roles={"weight": spec, **roles},
        matrix=(math.prod(shape[:-1]), columns),
        codes=spec,
        label=f"MLX {form}",
        form=form,
    )


def _check_roles(roles: Mapping[str, TensorSpec], form: MlxForm) -> None:
    """Raise ValueError unless scales and what is next to them have the dtypes and shapes of a form."""
    scales = roles["scales"]
    biases = roles.get("biases")
    if form.mode == AFFINE:
        requirement = "floats, with biases of the same dtype and shape"
        is_paired = biases is not None and (biases.dtype, biases.shape) == (scales.dtype, scales.shape)
        is_as_required = scales.dtype in SCALES and is_paired
    else:
        requirement = "U8, without biases"
        is_as_required = scales.dtype == "U8" and biases is None
    if not is_as_required:
        stored = "none" if biases is None else f"{biases.dtype} of shape {biases.shape}"
        raise ValueError(
            f"its scales must be {requirement}, in {form}; they are {scales.dtype} of shape {scales.shape},"
            f" biases: {stored}"
        )
    factor = roles.get("global_scale")
    count = math.prod(scales.shape[:-2])
    if factor is not None and (form.mode != "nvfp4" or factor.dtype != "F32" or factor.size != count):
        raise ValueError(
            f"its global_scale is {factor.dtype} of shape {factor.shape}; only nvfp4 has one, a float32 for each matrix"
        )


@dataclass(frozen=True, kw_only=True)
class MlxWeight(StoredWeight):
    """A weight of MLX. Its last axis is cut into groups."""

    form: MlxForm

    def _part(self, role: str, start: int, stop: int) -> Array:
        """Return rows of a stored tensor, counted through all its matrices, one below the other."""
        array = self.source.load(self.roles[role].name)
        return np.ascontiguousarray(array.reshape(-1, array.shape[-1])[start:stop])

    def _rows(self, start: int, stop: int) -> QuantizedArray:
        """Return a chunk of rows as they are stored."""
        is_affine = self.form.mode == AFFINE
        params = self._affine_params(start, stop) if is_affine else self._float_params(start, stop)
        codes = self._part("weight", start, stop).view(np.uint8)
        shape = len(codes), self.matrix[1]
        qtype = params.dtype
        return QuantizedArray(codes if qtype.packed else codes.view(qtype.storage), params, shape)

    def _affine_params(self, start: int, stop: int) -> QParams:
        """Return the parameters of a chunk of rows of integers, which have biases instead of zero points.

        A value is code * scale + bias, as convention "mlx" takes its zero points.
        """
        return QParams(
            scale=self._part("scales", start, stop).astype(np.float32),
            zero_point=self._part("biases", start, stop).astype(np.float32),
            dtype=as_qtype(f"uint{self.form.bits}"),
            axis=1,
            block_size=self.form.group_size,
            symmetric=False,
            convention="mlx",
        )

    def _float_params(self, start: int, stop: int) -> QParams:
        """Return the parameters of a chunk of rows of floats, whose scales are bytes: powers of two or float8."""
        mode = MODES[self.form.mode]
        qtype = as_qtype(mode.codes)
        scale = self._part("scales", start, stop).view(FLOAT_FORMATS[mode.scales].dtype)
        if self.form.mode == "nvfp4":
            matrix_of_row = np.arange(start, stop) // self.shape[-2]
            scale = scale.astype(np.float32) * self._global_scales()[matrix_of_row]
        return QParams(
            scale=scale,
            zero_point=np.zeros(scale.shape, qtype.storage),
            dtype=qtype,
            axis=1,
            block_size=self.form.group_size,
            symmetric=True,
            convention="onnx",
        )

    def _global_scales(self) -> NDArray[np.float32]:
        """Return what scales of nvfp4 are multiplied by: a column with a number for each matrix; experts are several.

        The stored tensor has the largest magnitude of each matrix, which the largest code with the largest scale gives.
        """
        if "global_scale" not in self.roles:
            return np.ones((math.prod(self.shape[:-2]), 1), np.float32)
        largest = self.source.load(self.roles["global_scale"].name).reshape(-1, 1)
        return np.asarray(largest / np.float32(LARGEST))

    @property
    def is_equal_to_array(self) -> bool:
        """Whether `as_array` has the values of the tensor: those of affine codes are rounded on the way."""
        return super().is_equal_to_array and self.form.mode != AFFINE

    def values(self, start: int, stop: int) -> Array:
        """Return the values of a chunk of rows. MLX rounds the product and the sum to the dtype of the scales."""
        if self.form.mode != AFFINE:
            return super().values(start, stop)
        dtype = numpy_dtype(self.roles["scales"].dtype)
        return np.asarray(self.rows(start, stop).dequantize(dtype=dtype))
