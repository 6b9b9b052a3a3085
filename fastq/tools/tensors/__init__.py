"""Quantized models: files of NumPy, safetensors and GGUF, and model directories, read and written tensor by tensor."""

from typing import TYPE_CHECKING, Any

from fastq.system import lazy

if TYPE_CHECKING:
    from fastq.tools.gguf_files.imatrix import load_imatrix
    from fastq.tools.tensors.saving import save_checkpoint
    from fastq.tools.tensors.tensors import Checkpoint, Tensors, open_checkpoint

__all__ = ["Checkpoint", "Tensors", "load_imatrix", "open_checkpoint", "save_checkpoint"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: reading files needs safetensors."""
    if name not in __all__:
        raise AttributeError(f"module 'fastq.io' has no attribute {name!r}")
    home = {"save_checkpoint": "checkpoints.saving", "load_imatrix": "imatrix"}.get(name, "tensors")
    return getattr(lazy.module(f"fastq.io.{home}"), name)
