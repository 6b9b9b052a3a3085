"""Tensors by name, of which each is read when it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from fastq.io.pipeline import count_text, nearest
from fastq.results import QuantizedArray
from fastq.system.dtypes import Array


class Sized(Protocol):
    """What is known of a tensor that was not read."""

    @property
    def is_quantized(self) -> bool:
        """Whether it is read as codes."""

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""


class ByName(Mapping[str, QuantizedArray | Array]):
    """The tensors of a file or a directory; a name that is none of theirs is told with the nearest ones."""

    _kind: str  # the name of the class that users see

    def __init__(self, path: Path, sizes: Mapping[str, Sized]) -> None:
        self._name, self._sizes = path.name or path.resolve().name, sizes

    def __getitem__(self, name: str) -> QuantizedArray | Array:
        if name not in self._sizes:
            raise KeyError(f"{self._name} has no tensor {name!r}{nearest(str(name), self._sizes)}")
        return self._read(name)

    @abstractmethod
    def _read(self, name: str) -> QuantizedArray | Array:
        """Return a tensor that is there."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a tensor, or `default` where there is none: that of a mapping looks for the nearest names first."""
        return self[name] if name in self._sizes else default

    def __contains__(self, name: object) -> bool:
        return name in self._sizes  # that of a mapping reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __repr__(self) -> str:
        sizes = self._sizes.values()
        quantized, nbytes = sum(each.is_quantized for each in sizes), sum(each.nbytes for each in sizes)
        tensors = count_text(len(self), "tensor")
        return f"{self._kind}({self._name!r}: {tensors}, {quantized} quantized, {nbytes:,} bytes)"
