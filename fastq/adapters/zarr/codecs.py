"""The codec bitround under both of its names, as classes of zarr; others are left to zarr: decision D80."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from zarr.abc.codec import ArrayArrayCodec, Codec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer
from zarr.core.common import parse_named_configuration

from fastq.ops.bitround import bitround
from fastq.system.arguments import as_int


@dataclass(frozen=True)
class BitRound(ArrayArrayCodec):
    """Rounds floats to fewer bits of the mantissa when they are stored, as `fastq.bitround` does."""

    keepbits: int
    is_fixed_size: ClassVar[bool] = True
    name: ClassVar[str] = "bitround"
    least: ClassVar[int] = 1  # bits to keep
    own: ClassVar[type[Codec] | None] = None  # zarr's class of this name

    def __post_init__(self) -> None:
        object.__setattr__(self, "keepbits", as_int(self.keepbits, "keepbits"))
        if self.keepbits < self.least:
            raise ValueError(f"keepbits must be at least {self.least}, not {self.keepbits}")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Read the metadata."""
        return cls(**parse_named_configuration(data, cls.name)[1])

    def to_dict(self) -> dict[str, Any]:
        """Write the metadata."""
        return {"name": self.name, "configuration": {"keepbits": self.keepbits}}

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Any:
        """Return this codec, or zarr's own for other data types than floats."""
        return self if self.own is None or _is_float(array_spec.dtype) else self.own.from_dict(self.to_dict())

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse arrays of other data types, and those whose floats have fewer bits than `keepbits`."""
        if not _is_float(dtype):
            raise ValueError(f"{self.name} is for floats of 16, 32 and 64 bits, not {dtype}")
        if self.keepbits > (most := np.finfo(dtype.to_native_dtype()).nmant):
            raise ValueError(f"keepbits must be at most {most} for {dtype.to_native_dtype()}, not {self.keepbits}")

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        """Return a chunk with rounded floats, in the dtype that it had."""
        x = np.asarray(chunk_array.as_ndarray_like())
        return type(chunk_array).from_ndarray_like(np.asarray(bitround(x, keepbits=self.keepbits), x.dtype))

    def _decode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        """Return a chunk as it is: rounded floats are what is read."""
        return chunk_array

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        return self._encode_sync(chunk_array, chunk_spec)

    async def _decode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        return self._decode_sync(chunk_array, chunk_spec)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Return the bytes of a chunk that is stored: as many, since a later codec compresses it."""
        return input_byte_length


class BitRoundOfNumcodecs(BitRound):
    """The same codec under its name in numcodecs, which older arrays use."""

    name = "numcodecs.bitround"
    least = 0


CODECS: dict[str, type[BitRound]] = {codec.name: codec for codec in (BitRound, BitRoundOfNumcodecs)}


def _is_float(dtype: Any) -> bool:
    """Return whether a data type of zarr is a float of up to 64 bits."""
    as_numpy = dtype.to_native_dtype()
    return bool(as_numpy.kind == "f" and as_numpy.itemsize <= 8)
