"""The codecs, as classes of zarr."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import zarr
from packaging.version import Version
from zarr.abc.codec import ArrayArrayCodec, Codec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer
from zarr.core.common import parse_named_configuration
from zarr.core.dtype import get_data_type_from_json

from fastq.adapters.zarr.casting import ROUNDINGS, cast_value
from fastq.ops.bitround import bitround
from fastq.system.arguments import as_choice, as_int, native, shown
from fastq.system.dtypes import Array

# before, zarr took the byte order of stored data from the dtype of the array: none for bytes
STORES_BYTES_AS_WIDER = Version(zarr.__version__) >= Version("3.2.1")


def _number(written: Any, dtype: Any, name: str) -> Any:
    """Return the number of a data type that is written like a fill value; floats are rounded."""
    try:
        with np.errstate(over="ignore"):
            number = dtype.from_json_scalar(written, zarr_format=3)
        if not (np.isinf(number) and not isinstance(written, str) and math.isfinite(written)):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{name} must be a number of {dtype.to_native_dtype()}, not {shown(written)}")


class _Codec(ArrayArrayCodec):
    """The common base: one function of arrays for each direction, and the data types of arrays."""

    is_fixed_size = True
    name: ClassVar[str]
    is_configured: ClassVar[bool] = True  # whether its metadata must have a configuration
    takes: ClassVar[str] = "integers and floats of up to 64 bits"
    own: ClassVar[type[Codec] | None] = None  # zarr's class of this name

    @abstractmethod
    def encode_array(self, x: Array, spec: ArraySpec) -> Array:
        """Encode an array of the spec's dtype."""

    @abstractmethod
    def decode_array(self, codes: Array, spec: ArraySpec) -> Array:
        """Decode to an array of the spec's dtype."""

    def is_for(self, dtype: Any) -> bool:
        """Return whether a data type of arrays is an integer or float of up to 64 bits."""
        as_numpy = dtype.to_native_dtype()
        return as_numpy.kind in "iuf" and as_numpy.itemsize <= 8

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Any:
        """Return this codec, or zarr's own for other data types."""
        return self if self.own is None or self.is_for(array_spec.dtype) else self.own.from_dict(self.to_dict())

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse arrays of other data types."""
        if not self.is_for(dtype):
            raise ValueError(f"{self.name} is for {self.takes}, not {dtype}")

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        return type(chunk_array).from_ndarray_like(
            self.encode_array(np.asarray(chunk_array.as_ndarray_like()), chunk_spec)
        )

    def _decode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        return type(chunk_array).from_ndarray_like(
            self.decode_array(np.asarray(chunk_array.as_ndarray_like()), chunk_spec)
        )

    async def _encode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        return self._encode_sync(chunk_array, chunk_spec)

    async def _decode_single(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        return self._decode_sync(chunk_array, chunk_spec)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Read the metadata."""
        return cls(**(parse_named_configuration(data, cls.name, require_configuration=cls.is_configured)[1] or {}))

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Return the bytes of a chunk that is stored."""
        return input_byte_length

    def _fill_value(self, spec: ArraySpec) -> Any:
        try:
            return self.encode_array(np.array([spec.fill_value], spec.dtype.to_native_dtype()), spec)[0]
        except ValueError as error:
            raise ValueError(f"the fill_value is {spec.fill_value} here, which can't be stored: {error}") from error


@dataclass(frozen=True)
class CastValue(_Codec):
    """Casts values to another data type; see `fastq.zarr.cast_value`."""

    name: ClassVar[str] = "cast_value"
    data_type: Any  # that of the stored values, of zarr or by its name
    rounding: str = "nearest-even"
    out_of_range: str | None = None  # "wrap" applies to stored integers, and has no effect on floats that are read
    # values and replacements, written like fill values, under "encode" and "decode": lists of pairs, or mappings
    scalar_map: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.data_type, str):
            object.__setattr__(self, "data_type", get_data_type_from_json(self.data_type, zarr_format=3))
        as_choice(self.rounding, "rounding", ROUNDINGS)
        if self.out_of_range not in (None, "clamp", "wrap"):
            raise ValueError(f"out_of_range must be None, 'clamp' or 'wrap', not {self.out_of_range!r}")
        pairs = {
            direction: tuple(map(tuple, _pairs(mapping))) for direction, mapping in (self.scalar_map or {}).items()
        }
        object.__setattr__(self, "scalar_map", pairs)

    def to_dict(self) -> dict[str, Any]:
        """Write the metadata without defaults."""
        scalars = {direction: list(mapping) for direction, mapping in self.scalar_map.items()}
        units = {"rounding": (self.rounding, "nearest-even"), "out_of_range": (self.out_of_range, None)}
        configuration = {"data_type": self.data_type.to_json(zarr_format=3)} | _options_besides_defaults(units)
        return {
            "name": self.name,
            "configuration": configuration | _options_besides_defaults({"scalar_map": (scalars, {})}),
        }

    def is_for(self, dtype: Any) -> bool:
        """Return whether both data types are known."""
        return super().is_for(dtype) and super().is_for(self.data_type)

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse what could not be stored or read."""
        super().validate(shape=shape, dtype=dtype, chunk_grid=chunk_grid)
        source = dtype.to_native_dtype()
        target = self.data_type.to_native_dtype()
        if self.out_of_range == "wrap" and target.kind == "f":
            raise ValueError(f"out_of_range must be None or 'clamp' for {target}: floats do not wrap")
        if source.itemsize == 1 < target.itemsize and not STORES_BYTES_AS_WIDER:
            raise ValueError(
                f"data_type must be of one byte for {source}, not {target}: zarr before 3.2.1 can't read it"
            )
        self._scalars("encode", dtype, self.data_type)
        self._scalars("decode", self.data_type, dtype)

    def resolve_metadata(self, chunk_spec: ArraySpec) -> ArraySpec:
        """Return the spec for the next codec: the data type, and the fill value cast to it."""
        return replace(chunk_spec, dtype=self.data_type, fill_value=self._fill_value(chunk_spec))

    def encode_array(self, x: Array, spec: ArraySpec) -> Array:
        """Cast to the data type."""
        return self._cast(x, self.data_type, self._scalars("encode", spec.dtype, self.data_type))

    def decode_array(self, codes: Array, spec: ArraySpec) -> Array:
        """Cast back."""
        return self._cast(codes, spec.dtype, self._scalars("decode", self.data_type, spec.dtype))

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> NDBuffer:
        stored = super()._encode_sync(chunk_array, chunk_spec)
        if not _has_range_of(chunk_spec.dtype.to_native_dtype(), self.data_type.to_native_dtype()):
            self._decode_sync(stored, chunk_spec)  # values that could not be read are refused
        return stored

    def _scalars(self, direction: str, source: Any, target: Any) -> dict[Any, Any]:
        known: dict[Any, Any] = {}
        for key, value in self.scalar_map.get(direction, ()):
            number = _number(key, source, f"a value of scalar_map to {direction}")
            known.setdefault(number, _number(value, target, f"the replacement of a value in scalar_map to {direction}"))
        return known

    def _cast(self, x: Array, to: Any, known: dict[Any, Any]) -> Array:
        dtype = to.to_native_dtype()
        mode = None if dtype.kind == "f" and self.out_of_range == "wrap" else self.out_of_range
        result = cast_value(x, dtype, rounding=self.rounding, out_of_range=mode, scalar_map=known)
        return result.astype(dtype, copy=False)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Return the bytes of a chunk that is stored."""
        wide, narrow = (data_type.to_native_dtype().itemsize for data_type in (chunk_spec.dtype, self.data_type))
        return int(input_byte_length // wide * narrow)


def _options_besides_defaults(units: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Return the options that are not the default."""
    return {name: value for name, (value, default) in units.items() if value != default}


def _pairs(scalars: Any) -> Iterable[Any]:
    return scalars.items() if isinstance(scalars, Mapping) else scalars or ()


def _has_range_of(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Return whether no number of another dtype is out of range of this one."""
    if dtype.kind == "f" and other.kind != "f":
        return float(np.iinfo(other).max) <= float(np.finfo(dtype).max)
    return np.can_cast(other, dtype)


@dataclass(frozen=True)
class ScaleOffset(_Codec):
    """Stores ``(x - offset) * scale`` and reads ``x / scale + offset``, in the array's dtype.

    Each float operation is rounded; integers that are out of range or not a multiple of the scale are refused. Both
    numbers are written like a fill value of the array's dtype.
    """

    name: ClassVar[str] = "scale_offset"
    is_configured: ClassVar[bool] = False
    offset: Any = 0
    scale: Any = 1

    def to_dict(self) -> dict[str, Any]:
        """Write the metadata without defaults."""
        configuration = _options_besides_defaults({"offset": (self.offset, 0), "scale": (self.scale, 1)})
        return {"name": self.name} | ({"configuration": configuration} if configuration else {})

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse what could not be stored or read."""
        super().validate(shape=shape, dtype=dtype, chunk_grid=chunk_grid)
        offset, scale = self._units(dtype)
        if not np.isfinite(offset):
            raise ValueError(f"offset must be finite, not {offset}")
        if not np.isfinite(scale) or scale == 0:
            raise ValueError(f"scale must be finite and not 0, not {scale}")

    def resolve_metadata(self, chunk_spec: ArraySpec) -> ArraySpec:
        """Return the spec for the next codec: the fill value encoded."""
        return replace(chunk_spec, fill_value=self._fill_value(chunk_spec))

    def _units(self, dtype: Any) -> tuple[Any, Any]:
        return _number(self.offset, dtype, "offset"), _number(self.scale, dtype, "scale")

    def encode_array(self, x: Array, spec: ArraySpec) -> Array:
        """Subtract the offset and multiply."""
        offset, scale = self._units(spec.dtype)
        if x.dtype.kind != "f":
            steps = [int(end) - int(offset) for end in (x.min(), x.max())]
            _refuse_outside(x.dtype, *steps, *(step * int(scale) for step in steps))
        result = np.subtract(x, offset, dtype=native(x.dtype))
        result *= scale
        return np.asarray(result, x.dtype)

    def decode_array(self, codes: Array, spec: ArraySpec) -> Array:
        """Divide and add the offset."""
        offset, scale = self._units(spec.dtype)
        divide: Any = np.divide
        if codes.dtype.kind != "f":
            if (codes % scale).any():
                raise ValueError(f"stored values must be multiples of the scale, {scale}")
            _refuse_outside(codes.dtype, *(int(end) // int(scale) + int(offset) for end in (codes.min(), codes.max())))
            divide = np.floor_divide
        # "ignore": the least integer by -1, if the sum is in range
        with np.errstate(over=None if divide is np.divide else "ignore"):
            result = divide(codes, scale, dtype=native(codes.dtype))
        result += offset
        return np.asarray(result, codes.dtype)


def _refuse_outside(dtype: np.dtype[Any], *numbers: int) -> None:
    """Raise a ValueError if any number is out of range of an integer dtype."""
    info = np.iinfo(dtype)
    if not all(info.min <= number <= info.max for number in numbers):
        raise ValueError(f"values, and the fill value, must be in range of {dtype} with and without offset and scale")


@dataclass(frozen=True)
class BitRound(_Codec):
    """Rounds floats to fewer bits of the mantissa when they are stored, as `fastq.bitround` does."""

    keepbits: int
    takes: ClassVar[str] = "floats of 16, 32 and 64 bits"
    name: ClassVar[str] = "bitround"
    least: ClassVar[int] = 1  # bits to keep

    def __post_init__(self) -> None:
        object.__setattr__(self, "keepbits", as_int(self.keepbits, "keepbits"))
        if self.keepbits < self.least:
            raise ValueError(f"keepbits must be at least {self.least}, not {self.keepbits}")

    def to_dict(self) -> dict[str, Any]:
        """Write the metadata."""
        return {"name": self.name, "configuration": {"keepbits": self.keepbits}}

    def is_for(self, dtype: Any) -> bool:
        """Return whether a data type of arrays is a float of up to 64 bits."""
        return super().is_for(dtype) and dtype.to_native_dtype().kind == "f"

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse arrays whose floats have fewer bits than `keepbits`."""
        super().validate(shape=shape, dtype=dtype, chunk_grid=chunk_grid)
        if self.keepbits > (most := np.finfo(dtype.to_native_dtype()).nmant):
            raise ValueError(f"keepbits must be at most {most} for {dtype.to_native_dtype()}, not {self.keepbits}")

    def encode_array(self, x: Array, spec: ArraySpec) -> Array:
        """Round."""
        rounded = bitround(x, keepbits=self.keepbits)
        return np.asarray(rounded, x.dtype)

    def decode_array(self, codes: Array, spec: ArraySpec) -> Array:
        """Return the stored values, which are floats."""
        return codes


class BitRoundOfNumcodecs(BitRound):
    """The same codec under its name in numcodecs, which older arrays use."""

    name = "numcodecs.bitround"
    least = 0


CODECS: dict[str, type[_Codec]] = {each.name: each for each in (CastValue, ScaleOffset, BitRound, BitRoundOfNumcodecs)}
