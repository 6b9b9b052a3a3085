"""QuantizedArray and QParams with dask arrays: collections of dask, which become those in memory."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import dask.array as da
from dask.base import DaskMethodsMixin
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from fastq import results
from fastq.adapters.dask.chunks import refuse_masked_meta
from fastq.formats.qtypes import check_stored_codes
from fastq.results import without_checks
from fastq.system.arguments import as_shape, shown
from fastq.system.arrays_of_callers import as_array, is_lazy

NUMBERS = "scale", "zero_point", "tensor_scale"


class _Collection(DaskMethodsMixin):  # type: ignore[misc]
    """A collection of dask that consists of others, by name."""

    __dask_scheduler__ = staticmethod(da.Array.__dask_scheduler__)
    __dask_optimize__ = staticmethod(da.Array.__dask_optimize__)

    @property
    @abstractmethod
    def _parts(self) -> dict[str, Any]:
        """Arrays that are collections of dask, by name."""

    @abstractmethod
    def _with_parts(self, parts: dict[str, Any]) -> Any:
        """Return the object with other arrays instead of the parts."""

    def __dask_graph__(self) -> HighLevelGraph:
        """Return the graph of all parts; dask calls this and the next ones of its collections."""
        return HighLevelGraph.merge(*(part.__dask_graph__() for part in self._parts.values()))

    def __dask_layers__(self) -> tuple[str, ...]:
        return tuple(layer for part in self._parts.values() for layer in part.__dask_layers__())

    def __dask_keys__(self) -> list[Any]:
        return [part.__dask_keys__() for part in self._parts.values()]

    def __dask_tokenize__(self) -> Any:
        """Return what dask makes a name of: equal objects have equal names."""
        return type(self).__name__, self._identity, self._parts

    @property
    @abstractmethod
    def _identity(self) -> Any:
        """The other data that distinguishes it."""

    def __dask_postcompute__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function that makes the object in memory of computed keys, and its other arguments."""
        return self._from_computed, ()

    def _from_computed(self, computed: list[Any]) -> Any:
        """Return the object in memory, given the results of `__dask_keys__`, which each part makes an array of."""
        finished = {}
        for (name, part), result in zip(self._parts.items(), computed, strict=True):
            finalize, extra = part.__dask_postcompute__()
            finished[name] = finalize(result, *extra)
        return self._with_parts(finished)

    def __dask_postpersist__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function that makes the object of a graph of results, and its other arguments."""
        return self._from_persisted, ()

    def _from_persisted(self, graph: Any, *, rename: dict[str, str] | None = None) -> Any:
        """Return the object with a graph whose results are in memory; dask may have renamed its layers."""
        rebuilt = {}
        for name, part in self._parts.items():
            rebuild, extra = part.__dask_postpersist__()
            rebuilt[name] = rebuild(graph, *extra, **({"rename": rename} if rename else {}))
        return self._with_parts(rebuilt)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class QParams(_Collection, results.QParams):
    """Scale and zero point as dask arrays, and the elements that share them; ``compute()`` returns `fastq.QParams`.

    The attributes are those of `fastq.QParams`. Arrays of NumPy are accepted, too.

    Examples
    --------
    >>> import dask.array, fastq.dask
    >>> x = dask.array.linspace(-1, 1.55, 256, chunks=64, dtype="float32")
    >>> p = fastq.dask.choose_qparams(x, "uint8")
    >>> p.scale
    dask.array<scale, shape=(), dtype=float32, chunksize=(), chunktype=numpy.ndarray>
    >>> p.compute().zero_point
    array(100, dtype=uint8)
    """

    def __post_init__(self) -> None:
        """Check everything except the numbers, which are not known yet."""
        lazy = {name: number for name in NUMBERS if isinstance(number := getattr(self, name), da.Array)}
        # the checks see empty arrays of NumPy instead of lazy numbers, and make arrays of others
        self.__dict__.update({name: number._meta for name, number in lazy.items()})
        super().__post_init__()
        self.__dict__.update({name: lazy.get(name, _in_one_chunk(getattr(self, name))) for name in NUMBERS})

    @property
    def _parts(self) -> dict[str, Any]:
        return {name: part for name in NUMBERS if (part := getattr(self, name)) is not None}

    @property
    def _identity(self) -> Any:
        return tuple(self.key)

    def _with_parts(self, parts: dict[str, Any]) -> results.QParams:
        """Return parameters with other numbers: lazy ones, or those in memory once they are computed."""
        return with_lazy_numbers(self, **parts) if is_lazy(parts["scale"]) else in_memory(self, **parts)


def _in_one_chunk(numbers: NDArray[Any] | None) -> da.Array | None:
    """Return numbers in memory as an array of dask; None without any."""
    return None if numbers is None else da.from_array(numbers, chunks=-1)


def with_lazy_numbers(
    like: results.QParams, scale: da.Array, zero_point: da.Array, tensor_scale: da.Array | None = None
) -> QParams:
    """Return a copy of parameters with dask arrays as numbers."""
    params = object.__new__(QParams)
    params.__dict__.update(vars(like), scale=scale, zero_point=zero_point, tensor_scale=tensor_scale)
    return params


def in_memory(like: results.QParams, scale: Any, zero_point: Any, tensor_scale: Any = None) -> results.QParams:
    """Return a copy of parameters with numbers in memory."""
    params = object.__new__(results.QParams)
    tensor = None if tensor_scale is None else as_array(tensor_scale, "tensor_scale")
    numbers = {
        "scale": as_array(scale, "scale"),
        "zero_point": as_array(zero_point, "zero_point"),
        "tensor_scale": tensor,
    }
    params.__dict__.update(vars(like), **numbers)
    return params


@dataclass(frozen=True, eq=False, init=False, repr=False)
class QuantizedArray(_Collection, results.QuantizedArray):
    """Codes as a dask array, and the parameters that give them meaning; ``compute()`` returns `fastq.QuantizedArray`.

    Attributes
    ----------
    codes : dask.array.Array
        As in `fastq.QuantizedArray`.
    qparams : fastq.dask.QParams or fastq.QParams
        Parameters; they are in memory if they were given so.
    shape : tuple of int
        Shape of the array that the codes stand for.

    Examples
    --------
    >>> import dask.array, fastq
    >>> x = dask.array.linspace(-1, 1.55, 256, chunks=64, dtype="float32")
    >>> q = fastq.quantize(x, "uint8")
    >>> q.codes[:4].compute()
    array([0, 1, 2, 3], dtype=uint8)
    >>> q.compute()
    QuantizedArray([  0,   1,   2, ..., 253, 254, 255],
                   shape=(256,), uint8, scale=0.01, zero_point=100, nbytes=261)
    >>> q.dequantize()
    dask.array<dequantize, shape=(256,), dtype=float32, chunksize=(64,), chunktype=numpy.ndarray>
    """

    def __init__(self, codes: da.Array, qparams: results.QParams, shape: tuple[int, ...]) -> None:
        if not isinstance(codes, da.Array):
            raise TypeError(f"codes must be a dask array, not {shown(codes)}; see fastq.QuantizedArray for others")
        refuse_masked_meta(codes, "codes")
        if not isinstance(qparams, results.QParams):
            raise TypeError(f"qparams must be QParams, not {shown(qparams)}")
        sizes = as_shape(shape)
        if not any(map(math.isnan, codes.shape)):
            check_stored_codes(codes, qparams.dtype, sizes)
        self.__dict__.update(codes=codes, qparams=qparams, shape=sizes)

    @property
    def _parts(self) -> dict[str, Any]:
        """The codes, and the numbers of parameters that are lazy."""
        of_params = self.qparams._parts if isinstance(self.qparams, QParams) else {}
        return {"codes": self.codes, **{name: _as_leaf(part) for name, part in of_params.items()}}

    @property
    def _identity(self) -> Any:
        return tuple(self.qparams.key), self.shape

    def _with_parts(self, parts: dict[str, Any]) -> results.QuantizedArray:
        """Return an array with other codes and numbers: lazy ones, or those in memory once they are computed."""
        codes = parts["codes"]
        params = self.qparams
        if isinstance(params, QParams):
            params = params._with_parts({name: part for name, part in parts.items() if name != "codes"})
        if is_lazy(codes):
            return without_checks(QuantizedArray, codes, params, self.shape)
        # lengths of other axes may become known only now
        row = self.shape[-1:] if params.dtype.packed else codes.shape[-1:]
        return without_checks(results.QuantizedArray, codes, params, (*codes.shape[: len(self.shape) - 1], *row))

    def copy(self) -> Self:
        """Return an array with the same graphs, which nothing changes.

        Returns
        -------
        QuantizedArray
            A collection of dask.
        """
        return without_checks(type(self), self.codes, self.qparams, self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Refuse to compute the array where NumPy asks for it, as that may take long."""
        raise TypeError("a QuantizedArray of dask is not loaded implicitly: call its compute() or dequantize()")


def _as_leaf(part: da.Array) -> da.Array:
    """Return an array on which nothing depends: if others depend on a layer, dask may remove its keys."""
    return part.map_blocks(_unchanged, dtype=part.dtype, meta=part._meta)


def _unchanged(part: NDArray[Any]) -> NDArray[Any]:
    """Return a chunk as it is, in a task of its own."""
    return part
