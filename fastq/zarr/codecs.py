"""The codecs, as classes of zarr."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import ArrayArrayCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer
from zarr.core.common import parse_named_configuration
from zarr.core.dtype import get_data_type_from_json

from fastq.system.arguments import as_choice
from fastq.zarr.casting import ROUNDINGS, cast_value

Array = NDArray[Any]


class _Codec(ArrayArrayCodec):
    """What both have in common: one function of arrays for each direction."""

    is_fixed_size = True

    @abstractmethod
    def encoded(self, x: Array, spec: ArraySpec) -> Array:
        """Encode an array of the spec's dtype."""

    @abstractmethod
    def decoded(self, codes: Array, spec: ArraySpec) -> Array:
        """Decode to an array of the spec's dtype."""

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        return type(chunk_array).from_ndarray_like(self.encoded(np.asarray(chunk_array.as_ndarray_like()), chunk_spec))

    def _decode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        return type(chunk_array).from_ndarray_like(self.decoded(np.asarray(chunk_array.as_ndarray_like()), chunk_spec))

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        return self._encode_sync(chunk_array, chunk_spec)

    async def _decode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        return self._decode_sync(chunk_array, chunk_spec)

    def _fill_value(self, spec: ArraySpec) -> Any:
        return self.encoded(np.array([spec.fill_value], spec.dtype.to_native_dtype()), spec)[0]


@dataclass(frozen=True)
class CastValue(_Codec):
    """Casts values to another data type; see `fastq.zarr.cast_value`.

    Parameters
    ----------
    data_type : str or data type of zarr
        What is stored.
    rounding, out_of_range
        As of `fastq.zarr.cast_value`.
    scalar_map : mapping, optional
        Values and what they become instead, under "encode" and "decode": lists of pairs, or mappings.
    """

    data_type: Any
    rounding: str = "nearest-even"
    out_of_range: str | None = None
    scalar_map: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.data_type, str):
            object.__setattr__(self, "data_type", get_data_type_from_json(self.data_type, zarr_format=3))
        as_choice(self.rounding, "rounding", ROUNDINGS)
        if self.out_of_range not in (None, "clamp", "wrap"):
            raise ValueError(f"out_of_range must be None, 'clamp' or 'wrap', not {self.out_of_range!r}")
        pairs = {way: tuple(map(tuple, dict(each).items())) for way, each in (self.scalar_map or {}).items()}
        object.__setattr__(self, "scalar_map", pairs)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CastValue:
        """Read the metadata."""
        return cls(**parse_named_configuration(data, "cast_value")[1])

    def to_dict(self) -> dict[str, Any]:
        """Write the metadata; what is the default is left out."""
        configuration: dict[str, Any] = {"data_type": self.data_type.to_json(zarr_format=3)}
        if self.rounding != "nearest-even":
            configuration["rounding"] = self.rounding
        if self.out_of_range is not None:
            configuration["out_of_range"] = self.out_of_range
        if self.scalar_map:
            configuration["scalar_map"] = {way: [list(pair) for pair in each] for way, each in self.scalar_map.items()}
        return {"name": "cast_value", "configuration": configuration}

    def resolve_metadata(self, chunk_spec: ArraySpec) -> ArraySpec:
        """Return what the next codec gets: the data type, and the fill value cast to it."""
        return replace(chunk_spec, dtype=self.data_type, fill_value=self._fill_value(chunk_spec))

    def encoded(self, x: Array, spec: ArraySpec) -> Array:
        """Cast to the data type."""
        return self._cast(x, self.data_type.to_native_dtype(), "encode")

    def decoded(self, codes: Array, spec: ArraySpec) -> Array:
        """Cast back."""
        return self._cast(codes, spec.dtype.to_native_dtype(), "decode")

    def _cast(self, x: Array, dtype: np.dtype[Any], way: str) -> Array:
        source, target = (float if each.kind == "f" else int for each in (x.dtype, dtype))
        known = {source(key): target(value) for key, value in self.scalar_map.get(way, ())}
        options: dict[str, Any] = {"rounding": self.rounding, "out_of_range": self.out_of_range}
        return cast_value(x, dtype, scalar_map=known, **options).astype(dtype, copy=False)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Return the bytes of a chunk that is stored."""
        wide, narrow = (each.to_native_dtype().itemsize for each in (chunk_spec.dtype, self.data_type))
        return int(input_byte_length // wide * narrow)


@dataclass(frozen=True)
class ScaleOffset(_Codec):
    """Stores ``(x - offset) * scale``, reads ``x / scale + offset``, each operation rounded in the array's dtype.

    Parameters
    ----------
    offset, scale : number or str
        As the fill value of the array's dtype is written.
    """

    offset: Any = 0
    scale: Any = 1

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ScaleOffset:
        """Read the metadata."""
        return cls(**(parse_named_configuration(data, "scale_offset", require_configuration=False)[1] or {}))

    def to_dict(self) -> dict[str, Any]:
        """Write the metadata."""
        return {"name": "scale_offset", "configuration": {"offset": self.offset, "scale": self.scale}}

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse what is no float array, and a scale of 0.

        Raises
        ------
        ValueError
            If it is.
        """
        if dtype.to_native_dtype().kind != "f":
            raise ValueError(f"scale_offset of fastq is for float arrays, not {dtype.to_native_dtype()}")
        if not dtype.from_json_scalar(self.scale, zarr_format=3):
            raise ValueError("scale must not be 0")

    def resolve_metadata(self, chunk_spec: ArraySpec) -> ArraySpec:
        """Return what the next codec gets: the fill value encoded."""
        return replace(chunk_spec, fill_value=self._fill_value(chunk_spec))

    def _units(self, spec: ArraySpec) -> tuple[Any, Any]:
        read = spec.dtype.from_json_scalar
        return read(self.offset, zarr_format=3), read(self.scale, zarr_format=3)

    def encoded(self, x: Array, spec: ArraySpec) -> Array:
        """Subtract the offset and multiply."""
        offset, scale = self._units(spec)
        result: Array = np.subtract(x, offset, dtype=x.dtype)
        result *= scale
        return result

    def decoded(self, codes: Array, spec: ArraySpec) -> Array:
        """Divide and add the offset."""
        offset, scale = self._units(spec)
        result: Array = np.divide(codes, scale, dtype=codes.dtype)
        result += offset
        return result

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Return the bytes of a chunk that is stored."""
        return input_byte_length


CODECS = {"cast_value": CastValue, "scale_offset": ScaleOffset}
