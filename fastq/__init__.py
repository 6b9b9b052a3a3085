"""Quantize NumPy arrays at the speed of the memory bus, bit for bit to a convention that you name."""

from typing import TYPE_CHECKING, Any

from fastq.system import lazy

if TYPE_CHECKING:
    from fastq import gguf, plot, reference
    from fastq.formats.conventions import CONVENTIONS, Convention
    from fastq.formats.qtypes import QType
    from fastq.operations.ops import (
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
    from fastq.operations.threads import get_num_threads, set_num_threads, warmup
    from fastq.operations.versions import show_versions
    from fastq.results import Comparison, QParams, QuantizedArray
    from fastq.runtime.result_pool import get_kept_memory, set_kept_memory

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

# names that do not come from fastq.operations.ops, which knows all types of the public functions
_ELSEWHERE = {
    "CONVENTIONS": "fastq.formats.conventions",
    "get_kept_memory": "fastq.runtime.result_pool",
    "get_num_threads": "fastq.operations.threads",
    "set_kept_memory": "fastq.runtime.result_pool",
    "set_num_threads": "fastq.operations.threads",
    "show_versions": "fastq.operations.versions",
    "warmup": "fastq.operations.threads",
}
# modules, those that the package itself imports late among them: forks wait for that
_MODULES = ("gguf", "plot", "reference")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import fastq` itself costs about a quarter of NumPy's."""
    if name in _MODULES:
        return lazy.module(f"fastq.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'fastq' has no attribute {name!r}")
    value = globals()[name] = getattr(lazy.module(_ELSEWHERE.get(name, "fastq.operations.ops")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
