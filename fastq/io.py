"""Quantized models: files of NumPy, safetensors and GGUF, and model directories, read and written tensor by tensor."""

from fastq.tools.gguf_files.imatrix import load_imatrix
from fastq.tools.tensors.by_name import Checkpoint, Tensors, open_checkpoint
from fastq.tools.tensors.save_checkpoint import save_checkpoint

__all__ = [
    "Checkpoint",
    "Tensors",
    "load_imatrix",
    "open_checkpoint",
    "save_checkpoint",
]
