"""GGUF files: the header is checked before it is used, tensors are mapped one at a time.

The gguf package reads such files too. It trusts the header, and makes an object from every string: a vocabulary of
128,000 tokens takes 10 s and 700 MB.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq import gguf
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.system.arguments import reason
from fastq.system.dtypes import Array
from fastq.tools.files.containers import check_pointer
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.texts import some_of
from fastq.tools.gguf_files.tensor_types import TensorType, type_of_number

MAGIC = b"GGUF"
VERSION = 3  # version 2 has the same layout; llama.cpp does not read version 1
ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
LARGEST_ALIGNMENT = 1 << 16  # or the bytes of the file, if these are more
MOST_DIMENSIONS = 64  # of an array of NumPy
LLAMA_DIMENSIONS = 4  # which llama.cpp reads; convolutions over time and space, of video models, have more
LARGEST = 2**63 - 1  # the largest number of bytes of a tensor, as in llama.cpp
# numbers of types of values
STRING = 8
ARRAY = 9
DEEPEST = 8  # most levels of arrays in arrays
OF_PARTS = ("split.no", "split.count", "split.tensors.count")  # keys of a part of a model, as llama-gguf-split writes
MOST_PARTS = 0xFFFF  # llama.cpp counts them in 16 bits

# gguf/constants.py, GGUFValueType: names by their numbers, and the struct format of each number
VALUE_TYPES = (
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool"),
    *("string", "array", "uint64", "int64", "float64"),
)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
NUMPY = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


def numpy_dtype(kind: TensorType) -> np.dtype[Any]:
    """Return the NumPy dtype of a type of plain numbers; uint8 for the bytes of other types."""
    return FLOAT_FORMATS["bfloat16"].dtype if kind.name == "BF16" else np.dtype(NUMPY.get(kind.name, "u1"))


def has_values(kind: TensorType) -> bool:
    """Return whether fastq can decode a type: plain numbers, and blocks that it knows."""
    return kind.block == 1 or kind.name in BLOCK_FORMATS


@dataclass(frozen=True)
class MetadataField:
    """A field of the metadata, with its value as bytes of the file, which are copied unchanged."""

    key: str  # unique in its file
    number: int  # number of the type of the value
    raw: bytes  # the value; an array begins with the type and number of its elements

    @property
    def type_name(self) -> str:
        """The type; for an array that of its elements and their count: string[32000]."""
        if self.number != ARRAY:
            return VALUE_TYPES[self.number]
        number, count = struct.unpack_from("<IQ", self.raw)
        return f"{VALUE_TYPES[number]}[{count}]"

    def value(self) -> Any:
        """Return the value: a number, a string, or a list of them."""
        (value,), _ = _decode_values(self.raw, at=0, number=self.number, count=1)
        return value


def uint32(key: str, value: int) -> MetadataField:
    """Return a field with a number of type uint32."""
    return MetadataField(key, 4, struct.pack("<I", value))


def string(key: str, value: str) -> MetadataField:
    """Return a field with text."""
    return MetadataField(key, STRING, _text_bytes(value))


@dataclass(frozen=True)
class GgufSpec:
    """A tensor as the header of a GGUF file describes it."""

    name: str  # unique in its file
    kind: TensorType
    shape: tuple[int, ...]  # elements on each axis, rows last: the header has the reverse order
    nbytes_of_unknown: int = 0  # bytes up to the next tensor, if its type is unknown

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return self.kind.size_of(self.shape) or self.nbytes_of_unknown


# Reading


Places = dict[str, tuple[GgufSpec, int]]  # tensors by name, with the positions of their data


class _File(NamedTuple):
    """A file as its header describes it: metadata, tensors and their positions."""

    path: Path
    fields: dict[str, MetadataField]
    alignment: int
    places: Places  # positions in the file


def parts_of(path: Path, count: Any) -> list[Path]:
    """Return the paths of all `count` parts of a model, given one of them; they need not exist."""
    if type(count) is not int or not 0 < count <= MOST_PARTS:
        raise ValueError(f"split.count must be a number from 1 to {MOST_PARTS:,}, not {count!r}")
    name = re.fullmatch(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", path.name, re.DOTALL)
    if name is None or int(name[3]) != count or not 0 < int(name[2]) <= count:
        end = f"-00001-of-{count:05}.gguf"
        raise ValueError(f"it is one of {count} parts of a model, but its name does not end as in {end}")
    return [path.with_name(f"{name[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


class GgufSource:
    """The `fields` of metadata and the `tensors` of a GGUF model, in its order, each at a multiple of `alignment`.

    A model in several files has the metadata of the first one; `missing` has the names of missing files.
    """

    def __init__(self, path: Path) -> None:
        file = _read_header(path)
        self.path = path
        self.parts = [path]
        files = [file]
        count = _value_of(file.fields, "split.count", 1)
        if count not in (0, 1):
            self.parts = parts_of(path, count)
            files = [_read_part(part, k, count) for k, part in enumerate(self.parts) if part.is_file()]
        self.missing = [part.name for part in self.parts if not part.is_file()]
        self.fields = files[0].fields
        self.alignment = files[0].alignment
        self.tensors: dict[str, GgufSpec] = {}
        self._places: dict[str, tuple[Path, int]] = {}
        for file in files:
            self._add_tensors_of(file)
        promised = self.get("split.tensors.count")
        number = len(self.tensors)
        if len(files) == count and promised not in (None, number):
            raise ValueError(f"its parts have {number:,} tensors, not {promised:,}")
        # by the tensors that they multiply; they are tensors themselves
        self.scales = {name: scale for name in self.tensors if (scale := self._scale_of(name))}

    def _add_tensors_of(self, file: _File) -> None:
        """Add the tensors of a file; raise ValueError if a file before has one of the same name."""
        for name, (spec, start) in file.places.items():
            if name in self.tensors:
                raise ValueError(f"tensor {name!r} is in {self._places[name][0].name}, too")
            self.tensors[name] = spec
            self._places[name] = (file.path, start)

    @property
    def without_scales(self) -> dict[str, GgufSpec]:
        """The tensors except those that are scales of others."""
        scales = set(self.scales.values())
        return {name: spec for name, spec in self.tensors.items() if name not in scales}

    def _scale_of(self, name: str) -> str | None:
        """Return the name of the tensor with the scale of a matrix, or with one for each of its matrices, else None.

        llama.cpp multiplies m.weight by m.scale. Only the numbers of NVFP4 mean nothing without it: next to another
        type, a tensor of that name with other numbers is a tensor of its own.
        """
        module = name.removesuffix(".weight")
        spec = self.tensors[name]
        scale = self.tensors.get(f"{module}.scale")
        if module == name or scale is None or len(spec.shape) < 2 or not spec.size:
            return None
        matrices = math.prod(spec.shape[:-2])
        if scale.kind.is_float and scale.size in (1, matrices):
            return scale.name
        if spec.kind.name == "NVFP4":
            raise ValueError(f"{scale.name!r} has {scale.size:,} numbers of {scale.kind} for {matrices:,} matrices")
        return None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a field, or the default for a missing one."""
        return _value_of(self.fields, key, default)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, mapped."""
        path, start = self._places[name]
        nbytes = self.tensors[name].nbytes
        return np.asarray(np.memmap(path, np.uint8, "r", start, (nbytes,))) if nbytes else np.empty(0, np.uint8)

    def load(self, name: str) -> Array:
        """Return the rows of a tensor, mapped; plain numbers in their dtype, other types as the bytes of each row.

        The result has two axes, with the rows of all matrices. A tensor of unknown type is a single row of bytes.
        """
        spec = self.tensors[name]
        raw = self.raw(name)
        # the bytes of a row; if it has no values, of a block, and of an unknown type, all; at least 1, since reshape
        # divides by it
        nbytes_of_row = spec.kind.size_of(spec.shape[-1:]) or spec.kind.nbytes or raw.size or 1
        return raw.reshape(-1, nbytes_of_row).view(numpy_dtype(spec.kind))

    def scale(self, name: str) -> NDArray[np.float32] | None:
        """Return the scales of a tensor's values, a number for each matrix; None without scales."""
        if name not in self.scales:
            return None
        numbers = self.load(self.scales[name]).astype(np.float32).reshape(-1)
        return np.broadcast_to(numbers, (math.prod(self.tensors[name].shape[:-2]),))

    def values(self, name: str) -> Array:
        """Return the scaled values of a tensor in its shape: plain numbers are mapped, blocks decoded to float32."""
        spec = self.tensors[name]
        rows = self.load(name)
        scale = self.scale(name)
        if not has_values(spec.kind):
            raise ValueError(f"{name!r} is {spec.kind}, which fastq does not read")
        values: Array = rows if spec.kind.block == 1 else gguf.dequantize(rows, spec.kind.name)
        if scale is not None:
            values = values.astype(np.float32).reshape(scale.size, -1) * scale[:, None]
        return values.reshape(spec.shape)


def open_gguf(path: Path, *, needs_all_parts: bool = True) -> GgufSource:
    """Return the GGUF model of a file or a part; raise ValueError if it is invalid, or lacks parts that it needs."""
    if not path.is_file():
        raise ValueError(f"{path.name} is not a file")
    check_pointer(path)
    with naming(lambda error: f"{path.name} is not a readable GGUF file: {reason(error)}", ValueError):
        source = GgufSource(path)
    if source.missing and needs_all_parts:
        raise ValueError(f"parts of the model are missing: {some_of(source.missing)}")
    return source


def _value_of(fields: Mapping[str, MetadataField], key: str, default: Any = None) -> Any:
    """Return the value of a field, or the default for a missing one."""
    return fields[key].value() if key in fields else default


def _read_header(path: Path) -> _File:
    """Read the header of a file; raise ValueError if it is invalid."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            raise ValueError("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data)
            end = len(data)
            tensor_count, field_count = _read_counts(cursor)
            fields = _read_fields(cursor, field_count)
            alignment = _alignment_in(fields, end)
            offsets = _read_tensor_infos(cursor, tensor_count)
            start = _align(cursor.at, alignment)
    places = _places_in_file(offsets, start, end, alignment)
    return _File(path=path, fields=fields, alignment=alignment, places=places)


def _read_part(path: Path, number: int, count: int) -> _File:
    """Read the header of a part of a model; raise ValueError if it says to be another part."""
    with naming(lambda error: f"{path.name}: {error}", ValueError):
        part = _read_header(path)
        stored = [_value_of(part.fields, key) for key in OF_PARTS[:2]]
        if stored != [number, count]:
            raise ValueError(f"split.no and split.count are {stored[0]} and {stored[1]}, not {number} and {count}")
    return part


def _alignment_in(fields: Mapping[str, MetadataField], end: int) -> int:
    """Return the alignment that metadata name, else the default; `end` is the number of bytes of the file."""
    field = fields.get(ALIGNMENT_KEY)
    if field is None:
        return ALIGNMENT
    alignment = int(field.value()) if VALUE_TYPES[field.number] == "uint32" else 0  # 0, as of other types, is refused
    largest = max(end, LARGEST_ALIGNMENT)
    is_power_of_two = alignment & (alignment - 1) == 0
    if not (0 < alignment <= largest and is_power_of_two):
        raise ValueError(f"{ALIGNMENT_KEY} must be a power of two up to {largest:,}, not {field.value()!r}")
    return alignment


class _Cursor:
    """A position in the bytes of a header, which may end anywhere."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)

    def skip(self, count: int) -> int:
        """Skip a number of bytes, and return their position; raise ValueError if there are fewer."""
        if count > self.end - self.at:
            raise ValueError(f"its header is longer than its {self.end:,} bytes")
        self.at += count
        return self.at - count

    def read_integer(self, style: str) -> int:
        """Read a little-endian integer of a style of `struct`."""
        at = self.skip(struct.calcsize(style))
        value: int = struct.unpack_from(f"<{style}", self.data, at)[0]
        return value

    def read_name(self, what: str) -> str:
        """Read a key or the name of a tensor, which an error calls `what`; raise ValueError if it can't be one."""
        length = self.read_integer("Q")
        start = self.skip(length)
        raw = self.data[start : self.at]
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{what} is not UTF-8: {raw[:40]!r}") from None
        if not text:
            raise ValueError(f"{what} is empty")
        if "\0" in text:  # where llama.cpp would end it
            raise ValueError(f"{what} has a NUL: {text[:40]!r}")
        return text

    def skip_strings(self, count: int) -> None:
        """Skip strings, without making objects of them, by local names: a vocabulary has 100,000 and more.

        Each has its length in 8 bytes before it.
        """
        if count > (self.end - self.at) // 8:
            raise ValueError(f"its header is longer than its {self.end:,} bytes")
        data = self.data
        at = self.at
        last_start = self.end - 8
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at > last_start:  # the end is refused below
                break
            at += 8 + unpack(data, at)[0]
        self.skip(at - self.at)


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """Read the start of a header: return the numbers of tensors and of fields."""
    magic = cursor.data[:4]
    if magic != MAGIC:
        raise ValueError(f"it begins with {magic!r}, not with {MAGIC!r}")
    cursor.skip(len(MAGIC))
    version = cursor.read_integer("I")
    if version and version % 2**16 == 0:  # a small number whose bytes are in the reverse order
        raise ValueError("it is big-endian; gguf-convert-endian of the gguf package turns it into little-endian")
    if version not in (2, VERSION):
        raise ValueError(f"its version is {version}, not 2 or {VERSION}")
    tensor_count = cursor.read_integer("Q")
    field_count = cursor.read_integer("Q")
    return tensor_count, field_count


def _read_fields(cursor: _Cursor, count: int) -> dict[str, MetadataField]:
    """Read the metadata; their values stay bytes."""
    fields: dict[str, MetadataField] = {}
    for index in range(count):
        key = cursor.read_name(f"key {index + 1} of {count:,}")
        if key in fields:
            raise ValueError(f"key {key!r} occurs twice")
        number = cursor.read_integer("I")
        start = cursor.at
        _skip_value(cursor, key, number)
        fields[key] = MetadataField(key, number, cursor.data[start : cursor.at])
    return fields


def _skip_value(cursor: _Cursor, key: str, number: int, depth: int = 0) -> None:
    """Move the cursor behind a value of the type with a number; `depth` is that of arrays around it."""
    count = 1
    if number == ARRAY:
        number = cursor.read_integer("I")
        count = cursor.read_integer("Q")
        depth = depth + 1
    if number == STRING:
        cursor.skip_strings(count)
    elif number in SCALARS:
        cursor.skip(count * struct.calcsize(SCALARS[number]))
    elif number != ARRAY:
        raise ValueError(f"key {key!r} has a value of type {number}, which GGUF does not define")
    elif depth > DEEPEST:
        raise ValueError(f"key {key!r} has arrays in arrays more than {DEEPEST} deep")
    else:
        for _ in range(count):
            _skip_value(cursor, key, ARRAY, depth)


def _read_tensor_infos(cursor: _Cursor, count: int) -> Places:
    """Read the tensors that a header lists; their positions count from the start of the data."""
    offsets: Places = {}
    for index in range(count):
        name = cursor.read_name(f"name {index + 1} of {count:,} tensors")
        if name in offsets:
            raise ValueError(f"tensor {name!r} occurs twice")
        spec = _read_type_and_shape(cursor, name)
        offsets[name] = spec, cursor.read_integer("Q")
    return offsets


def _read_type_and_shape(cursor: _Cursor, name: str) -> GgufSpec:
    """Read the type and the shape of a tensor; raise ValueError for a shape that it can't have."""
    dimensions = cursor.read_integer("I")
    if dimensions > MOST_DIMENSIONS:
        raise ValueError(f"tensor {name!r} has {dimensions:,} dimensions, more than {MOST_DIMENSIONS}")
    lengths = [cursor.read_integer("Q") for _ in range(dimensions)]
    kind = type_of_number(cursor.read_integer("I"))
    size = 1
    for length in lengths:
        size *= max(length, 1)
        if size > LARGEST // 8:
            raise ValueError(f"tensor {name!r} can't have the shape {lengths}")
    while 1 < len(lengths) <= LLAMA_DIMENSIONS and lengths[-1] == 1:  # llama.cpp counts and writes dimensions like this
        lengths.pop()
    lengths = lengths or [1]
    if kind.block and lengths[0] % kind.block:
        fault = f"row length {lengths[0]:,} is not a multiple of the {kind} block size {kind.block}"
        raise ValueError(f"tensor {name!r}: {fault}")
    return GgufSpec(name=name, kind=kind, shape=tuple(reversed(lengths)))


def _places_in_file(offsets: Places, start: int, end: int, alignment: int) -> Places:
    """Return tensors and their positions in the file; raise ValueError if they overlap or lie outside it.

    `start` is the position of the data, behind the header, and `end` that of the end of the file. How long a tensor of
    an unknown type is only the next one tells.
    """
    places = dict(offsets)  # in the order of the header
    by_offset = sorted(offsets.values(), key=lambda place: (place[1], place[0].nbytes))
    next_offsets = [*(offset for _, offset in by_offset), end - start][1:]
    name_before = ""
    end_before = 0
    for (spec, offset), next_offset in zip(by_offset, next_offsets, strict=True):
        if offset % alignment:
            raise ValueError(f"tensor {spec.name!r} is at {offset:,}, which is not a multiple of {alignment}")
        if offset < end_before:
            raise ValueError(f"tensors {name_before!r} and {spec.name!r} share bytes")
        if not spec.kind.block and spec.size:
            spec = replace(spec, nbytes_of_unknown=max(next_offset - offset, 1))
        name_before = spec.name
        end_before = offset + spec.nbytes
        if start + end_before > end:
            raise ValueError(f"tensor {spec.name!r} ends at byte {start + end_before:,} of {end:,}")
        places[spec.name] = spec, start + offset
    return places


def _decode_values(raw: bytes, at: int, number: int, count: int) -> tuple[list[Any], int]:
    """Return as many values, of the type with a number, from a position on, and the position of their end.

    `raw` was checked by `_skip_value`. A string has its length before it, an array the type and number of its elements.
    """
    if number in SCALARS:
        style = f"<{count}{SCALARS[number]}"
        return list(struct.unpack_from(style, raw, at)), at + struct.calcsize(style)
    values: list[Any] = []
    for _ in range(count):
        value: Any
        if number == ARRAY:
            number_of_elements, count_of_elements = struct.unpack_from("<IQ", raw, at)
            at += struct.calcsize("<IQ")
            value, at = _decode_values(raw, at, number_of_elements, count_of_elements)
        else:
            (length,) = struct.unpack_from("<Q", raw, at)
            start = at + struct.calcsize("<Q")
            at = start + length
            value = raw[start:at].decode("utf-8", "replace")
        values.append(value)
    return values, at


# Writing


@dataclass(frozen=True)
class GgufHeader:
    """The start of a GGUF file: tensors follow in their order, each padded to a multiple of the alignment."""

    fields: tuple[MetadataField, ...]
    tensors: tuple[GgufSpec, ...]
    alignment: int

    def padding(self, nbytes: int) -> bytes:
        """Return the zeros that follow a number of bytes."""
        return bytes(-nbytes % self.alignment)

    def to_bytes(self) -> bytes:
        """Return the bytes before the first tensor."""
        parts = [MAGIC, struct.pack("<IQQ", VERSION, len(self.tensors), len(self.fields))]
        for field in self.fields:
            parts += [_text_bytes(field.key), struct.pack("<I", field.number), field.raw]
        offset = 0
        for spec in self.tensors:
            lengths = tuple(reversed(spec.shape))
            style = f"<I{len(lengths)}QIQ"
            parts += [_text_bytes(spec.name), struct.pack(style, len(lengths), *lengths, spec.kind.number, offset)]
            offset = _align(offset + spec.nbytes, self.alignment)
        header = b"".join(parts)
        return header + self.padding(len(header))


class GgufWriter:
    """Writes the tensors of a `GgufHeader` to a file in their order, row by row."""

    def __init__(self, file: BinaryIO, header: GgufHeader) -> None:
        self._file = file
        self._header = header
        self._left = {spec.name: spec.nbytes for spec in header.tensors}
        file.write(header.to_bytes())

    def append(self, name: str, rows: Array) -> int:
        """Write the next rows of a tensor, and return their bytes; zeros follow the last ones up to the next tensor."""
        self._file.write(np.ascontiguousarray(rows).view(np.uint8).data)
        self._left[name] -= rows.nbytes
        if not self._left[name]:
            self._file.write(self._header.padding(self._file.tell()))
        return rows.nbytes


def _text_bytes(text: str) -> bytes:
    """Return a text as GGUF stores it, after its length."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _align(offset: int, alignment: int) -> int:
    """Return the next multiple of an alignment, or the offset itself if it is one: 40 becomes 64 for 32."""
    return offset + -offset % alignment
