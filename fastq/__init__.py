"""Quantize NumPy arrays at the speed of the memory bus, bit for bit to a convention that you name."""

from typing import TYPE_CHECKING, Any

from fastq import deferred

if TYPE_CHECKING:
    from fastq import gguf, plot, reference
    from fastq.buffers import get_kept_memory, set_kept_memory
    from fastq.comparison import Comparison
    from fastq.conventions import CONVENTIONS, Convention
    from fastq.ops import (
        choose_qparams,
        compare,
        dequantize_linear,
        fake_quantize,
        minmax,
        pack,
        quantize,
        quantize_linear,
        unpack,
    )
    from fastq.qarray import QParams, QuantizedArray
    from fastq.qtypes import QType
    from fastq.threads import get_num_threads, set_num_threads, warmup
    from fastq.versions import show_versions

__version__ = "0.1.0"

__all__ = [
    "CONVENTIONS",
    "Comparison",
    "Convention",
    "QParams",
    "QType",
    "QuantizedArray",
    "choose_qparams",
    "compare",
    "dequantize_linear",
    "fake_quantize",
    "get_kept_memory",
    "get_num_threads",
    "gguf",
    "minmax",
    "pack",
    "plot",
    "quantize",
    "quantize_linear",
    "reference",
    "set_kept_memory",
    "set_num_threads",
    "show_versions",
    "unpack",
    "warmup",
]

# names that do not come from fastq.ops, which knows all types of the public functions
_ELSEWHERE = {
    "CONVENTIONS": "fastq.conventions",
    "get_kept_memory": "fastq.buffers",
    "get_num_threads": "fastq.threads",
    "set_kept_memory": "fastq.buffers",
    "set_num_threads": "fastq.threads",
    "show_versions": "fastq.versions",
    "warmup": "fastq.threads",
}
# modules, those that the package itself imports late among them: forks wait for that
_MODULES = ("gguf", "known", "ops", "plot", "reference")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import fastq` itself costs about a quarter of NumPy's."""
    if name in _MODULES:
        return deferred.module(f"fastq.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'fastq' has no attribute {name!r}")
    value = globals()[name] = getattr(deferred.module(_ELSEWHERE.get(name, "fastq.ops")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
