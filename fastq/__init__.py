"""Quantize NumPy arrays at the speed of the memory bus, with exactly the bits of the convention you name."""

import os
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fastq.plan import adapters
from fastq.system import imports

if TYPE_CHECKING:
    from fastq import dask, gguf, kernels, layouts, plot, reference, testing, xarray, zarr
    from fastq.config import (
        get_num_threads,
        get_result_pool_limit,
        set_num_threads,
        set_result_pool_limit,
        show_versions,
    )
    from fastq.formats.conventions.convention import Convention
    from fastq.formats.conventions.table import CONVENTIONS
    from fastq.formats.qtypes import QType
    from fastq.formats.range_methods import MSERange
    from fastq.ops.bitround import bit_information, bitround
    from fastq.ops.calibrate import Calibrator
    from fastq.ops.compare import compare
    from fastq.ops.dequantize import dequantize, dequantize_linear
    from fastq.ops.minmax import minmax
    from fastq.ops.nest_scale import NestedScale, nest_scale
    from fastq.ops.packing import binarize, pack, unpack
    from fastq.ops.quantize import choose_qparams, fake_quantize, quantize, quantize_linear
    from fastq.ops.requantize import requantize
    from fastq.ops.warmup import warmup
    from fastq.results import BitInformation, Comparison, QParams, QuantizedArray
    from fastq.tools.tensors.load import load

if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        "fastq can't run on a free-threaded build of Python: it reads fields of objects, which have other positions,"
        f" and needs the lock of the ordinary build; install Python {sys.version_info[0]}.{sys.version_info[1]} without"
        " free threading"
    )

if os.path.exists(os.path.join(__path__[0], "_fastq.py")):
    warnings.warn(
        "the files of another project lie in the folder of fastq-kernels: PyPI's fastq, which reads FASTQ sequences, is"
        " imported by the same name; run pip uninstall fastq fastq-kernels and install one of the two",
        stacklevel=2,
    )

__version__ = "0.1.0"

__all__ = [
    "CONVENTIONS",
    "BitInformation",
    "Calibrator",
    "Comparison",
    "Convention",
    "MSERange",
    "NestedScale",
    "QParams",
    "QType",
    "QuantizedArray",
    "binarize",
    "bit_information",
    "bitround",
    "choose_qparams",
    "compare",
    "dask",
    "dequantize",
    "dequantize_linear",
    "fake_quantize",
    "get_num_threads",
    "get_result_pool_limit",
    "gguf",
    "kernels",
    "layouts",
    "load",
    "minmax",
    "nest_scale",
    "pack",
    "plot",
    "quantize",
    "quantize_linear",
    "reference",
    "requantize",
    "set_num_threads",
    "set_result_pool_limit",
    "show_versions",
    "testing",
    "unpack",
    "warmup",
    "xarray",
    "zarr",
]

# the module of each public name
_HOMES = {
    "fastq.config": (
        "get_num_threads",
        "get_result_pool_limit",
        "set_num_threads",
        "set_result_pool_limit",
        "show_versions",
    ),
    "fastq.formats.conventions.convention": ("Convention",),
    "fastq.formats.conventions.table": ("CONVENTIONS",),
    "fastq.formats.qtypes": ("QType",),
    "fastq.formats.range_methods": ("MSERange",),
    "fastq.ops.calibrate": ("Calibrator",),
    "fastq.ops.dequantize": ("dequantize", "dequantize_linear"),
    "fastq.ops.compare": ("compare",),
    "fastq.ops.minmax": ("minmax",),
    "fastq.ops.nest_scale": ("NestedScale", "nest_scale"),
    "fastq.ops.packing": ("binarize", "pack", "unpack"),
    "fastq.ops.quantize": ("choose_qparams", "fake_quantize", "quantize", "quantize_linear"),
    "fastq.ops.requantize": ("requantize",),
    "fastq.ops.bitround": ("bit_information", "bitround"),
    "fastq.tools.tensors.load": ("load",),
    "fastq.ops.warmup": ("warmup",),
    "fastq.results": ("BitInformation", "Comparison", "QParams", "QuantizedArray"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
# that compiled code can call, or is told what to call in place of
_COMPILED = {"dequantize_linear", "fake_quantize", "quantize_linear", "requantize"}
_COMPILED |= {"choose_qparams", "dequantize", "quantize"}
_COMPILED |= {"binarize", "bit_information", "bitround", "compare", "minmax", "nest_scale", "pack", "unpack"}
# modules that are public names; `io` is not in `__all__`, or a star would hide Python's own
_MODULES = ("dask", "gguf", "io", "kernels", "layouts", "plot", "reference", "testing", "xarray", "zarr")


def _graphs_of_dask() -> ModuleType:
    """Import the adapter that makes graphs of calls on arrays of dask."""
    from fastq.adapters.dask import dispatch

    return dispatch


def _labels_of_xarray() -> ModuleType:
    """Import the adapter that gives results the labels of DataArrays and Variables."""
    from fastq.adapters.xarray import labelled

    return labelled


adapters.register("dask.array", "Array", _graphs_of_dask)
adapters.register("xarray", "DataArray", _labels_of_xarray)
adapters.register("xarray", "Variable", _labels_of_xarray)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import fastq` itself costs about a quarter of NumPy's."""
    if name in _MODULES:
        return imports.module(f"fastq.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fastq' has no attribute {name!r}")
    value = getattr(imports.module(_HOME_OF[name]), name)
    if name in _COMPILED:
        _register()
    globals()[name] = value
    return value


def _register() -> None:
    """Register what compiled code can call, if Numba has compiled for others and so asked before fastq was imported."""
    entry_points = sys.modules.get("numba.core.entrypoints")  # else it will ask, by `fastq.ops.init`
    if entry_points is not None and getattr(entry_points, "_already_initialized", True):
        from fastq.ops import numba_overloads

        numba_overloads.register_public_functions()


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *_MODULES})
