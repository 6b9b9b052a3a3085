"""The tensors of GGUF files: blocks as values, those of Q8_0 also as codes and scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import as_qtype
from fastq.results import QParams, QuantizedArray
from fastq.system.dtypes import Array
from fastq.tools.gguf_files.gguf_file import GgufSource, GgufSpec, has_values
from fastq.tools.layouts.layout import without_zero_scales
from fastq.tools.tensors.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class GgufTensor(Tensor):
    """A tensor of a GGUF file. If another tensor has scales for it, its values include them."""

    source: GgufSource
    spec: GgufSpec

    @classmethod
    def of(cls, source: GgufSource, spec: GgufSpec) -> GgufTensor:
        """Return a tensor of a file."""
        return cls(
            name=spec.name,
            shape=spec.shape,
            scheme=spec.kind.name,
            nbytes=spec.nbytes,
            original_dtype="F32",  # a file does not say what blocks were made from
            is_quantized=spec.kind.block != 1,  # floats and integers are blocks of one number
            has_numbers=has_values(spec.kind),
            source=source,
            spec=spec,
        )

    def load(self) -> Array | QuantizedArray:
        """Return codes and scales of Q8_0, the values of other types."""
        return self._q8_0() if self.spec.kind.name == "Q8_0" else self._decode()

    def codes(self) -> Array:
        """Return the values: a table compares and shows these of all types, whether codes are known or not."""
        return self.values()

    def raw(self) -> NDArray[np.uint8]:
        """Return its bytes."""
        return self.source.raw(self.name)

    def _decode(self) -> Array:
        return self.source.values(self.name)

    def _q8_0(self) -> QuantizedArray:
        """Return int8 codes in blocks of 32. Blocks of zeros have a scale of 0, which becomes 1.

        A block is 34 bytes: a float16 scale, then the codes. The file may have a scale for each matrix, too, which
        multiplies these.
        """
        form = BLOCK_FORMATS["Q8_0"]
        shape = self.shape
        blocks = self.source.load(self.name).reshape(-1, form.nbytes)
        scale = blocks[:, :2].copy().view("<f2").astype(np.float32).reshape(*shape[:-1], shape[-1] // form.size)
        scale_of_matrix = self.source.scale(self.name)
        if scale_of_matrix is not None:
            scale *= scale_of_matrix.reshape(*shape[:-2], 1, 1)
        codes = blocks[:, 2:].copy().view(np.int8).reshape(shape)
        qparams = QParams(
            scale=scale,
            zero_point=np.zeros(scale.shape, np.int8),
            dtype=as_qtype("int8"),
            axis=-1,
            block_size=form.size,
            symmetric=True,
        )
        return without_zero_scales(QuantizedArray(codes, qparams, shape), f"tensor {self.name!r}")


def gguf_tensors(source: GgufSource) -> Iterator[GgufTensor]:
    """Yield the tensors of a GGUF file that are not scales of others."""
    for spec in source.without_scales.values():
        yield GgufTensor.of(source, spec)
