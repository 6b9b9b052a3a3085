"""The quantized weights of a model directory, found by the names of what is stored for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastq.formats.compressed_tensors import E8M0, WORDS, LayerScheme
from fastq.formats.floats import FLOAT_FORMATS
from fastq.io.checkpoints.config import StoredSchemes
from fastq.io.checkpoints.folder import ModelFolder
from fastq.io.containers import TensorSpec, spec_of
from fastq.layouts.compressed_tensors import StoredForm, array_of, form_of
from fastq.results import QuantizedArray
from fastq.system.dtypes import Array

SUFFIXES = ("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_global_scale", "weight_shape")
ORDER = "weight_g_idx"  # order of columns, stored by other tools; not read
NAN_E8M0 = FLOAT_FORMATS["float8_e8m0fnu"].nan
SCALES = {"F32", "F16", "BF16"}  # dtypes of scales that are no part of a scheme


@dataclass(frozen=True)
class StoredWeight:
    """A quantized weight of a model."""

    module: str
    shape: tuple[int, int]
    scheme: LayerScheme  # how it is stored
    specs: dict[str, TensorSpec]  # the stored tensors, by the end of their names
    load: Callable[[str], Array]  # from the name of a tensor to it

    def part(self, suffix: str) -> Array:
        """Return a stored tensor, in the shape that it should have."""
        spec = self.specs[suffix]
        return self.load(spec.name).reshape(spec.shape)

    @property
    def codes(self) -> TensorSpec:
        """The tensor of codes."""
        return self.specs[self.form.codes]

    @property
    def form(self) -> StoredForm:
        """How codes and parameters lie in the tensors."""
        return form_of(self.scheme, self.shape, "F32")

    def rows(self, start: int, stop: int) -> QuantizedArray:
        """Return some rows, `start` a multiple of 128; in blocks that zeros fill, where blocks have several rows.

        ValueError if they have a scale that no matrix has, or the global scale is none that can be divided by.
        """
        self._check(start, stop)
        form, load = self.form.rows(self.part, start, stop)
        factor = float(self.part("weight_global_scale")[0]) if form.has_global_scale else 1.0
        return array_of(*form.read(load), form, self.scheme.weights, factor)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored."""
        return sum(spec.nbytes for spec in self.specs.values())

    def _check(self, start: int, stop: int) -> None:
        scale = self.part("weight_scale")
        scale = scale if len(scale) < self.shape[0] else scale[start:stop]
        if scale.dtype != np.uint8 and not np.isfinite(scale.astype(np.float32)).all():
            raise ValueError(f"{self.module} has a scale that is not finite")
        if self.scheme.weights.scale_dtype == E8M0 and (scale == NAN_E8M0).any():
            raise ValueError(f"{self.module} has a scale that is NaN, the byte {NAN_E8M0} of a power of two")
        factor = self.part("weight_global_scale")[0] if "weight_global_scale" in self.specs else 1
        if not 0 < factor < np.inf:
            raise ValueError(f"{self.module} has a global scale of {factor}, which must be positive and finite")


def stored_weights(source: ModelFolder) -> dict[str, StoredWeight]:
    """Return the quantized weights of a model, by the name of the module.

    ValueError if config.json does not say how they are stored, or they are not stored so.
    """
    schemes, tensors = StoredSchemes(source.config), source.tensors
    modules = [name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")]
    found = {module: _stored_weight(source, tensors, module, schemes.scheme_of(module)) for module in modules}
    if not found:
        raise ValueError("nothing in it is quantized: no tensor is named weight_scale")
    return found


def _stored_weight(
    source: ModelFolder, tensors: dict[str, TensorSpec], module: str, scheme: LayerScheme
) -> StoredWeight:
    specs = {end: tensors[f"{module}.{end}"] for end in SUFFIXES if f"{module}.{end}" in tensors}
    codes = form_of(scheme, (1, 1), "").codes
    if codes not in specs:
        raise ValueError(f"{module} has no {codes}, which {scheme.format} stores")
    if f"{module}.{ORDER}" in tensors:
        raise ValueError(f"{module} has its columns in the order of activations ({ORDER}), which is not read")
    shape, dtype = _shape(source, specs, module, scheme, specs[codes]), specs["weight_scale"].dtype
    wanted = form_of(scheme, shape, dtype if dtype in SCALES else "F32").specs()
    expected = {end: spec_of(f"{module}.{end}", *each) for end, each in wanted.items()}
    for end, spec in expected.items():
        found = specs.get(end)
        if found is None or not _alike(found, spec):
            held = "nothing" if found is None else f"{found.dtype} of shape {found.shape}"
            raise ValueError(f"{spec.name!r} should be {spec.dtype} of shape {spec.shape}, not {held}")
    more = [end for end in specs if end not in expected]
    if more:
        raise ValueError(f"{module} has a {more[0]}, which {scheme.weights} in {scheme.format} does not store")
    return StoredWeight(module, shape, scheme, expected, source.load)


def _alike(spec: TensorSpec, wanted: TensorSpec) -> bool:
    """Whether a tensor is as it should be; one number for a matrix may have any shape."""
    return spec.dtype == wanted.dtype and (spec.shape == wanted.shape or wanted.size == spec.size == 1)


def _shape(
    source: ModelFolder, specs: dict[str, TensorSpec], module: str, scheme: LayerScheme, codes: TensorSpec
) -> tuple[int, int]:
    """Return the shape of a weight; a file can say anything."""
    if scheme.format == WORDS:
        if "weight_shape" not in specs or specs["weight_shape"].dtype not in ("I64", "I32"):
            raise ValueError(f"{module} has no weight_shape of integers")
        shape = tuple(map(int, source.load(specs["weight_shape"].name).reshape(-1)))
    elif len(codes.shape) == 2 and codes.name.endswith("_packed"):
        shape = codes.shape[0], codes.shape[1] * 8 // scheme.weights.bits
    else:
        shape = codes.shape
    if len(shape) != 2 or min(shape) < 1 or len(codes.shape) != 2:
        raise ValueError(f"{module} has shape {shape}, which is not that of a matrix")
    return shape[0], shape[1]
