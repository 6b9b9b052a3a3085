"""Arguments that name a file or a folder to read; the error for another kind names the command that reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fastq.tools.cli.errors import name_of_path
from fastq.tools.files.texts import alternatives
from fastq.tools.tensors.netcdf_zarr import NETCDF, is_store
from fastq.tools.tensors.reading import SUFFIXES

FOLDER = "a folder"
ZARR_STORE = "a zarr store"
# what to do with files and folders that a command does not read
STORE_ADVICE = "fastq pack and fastq bitround take it, fastq inspect shows it, xarray.open_dataset reads it"
ADVICE_FOR_STORES = dict.fromkeys((*NETCDF, ZARR_STORE), STORE_ADVICE)
TORCH_SUFFIXES = ".bin", ".pt", ".pth", ".ckpt"
TORCH_ADVICE = "torch.load reads it, and safetensors.torch.save_file writes a .safetensors file of its tensors"
# the name of a model on the hub
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class InputPath(click.Path):
    """An existing file or folder; for one that the command does not read, the error names the command that does."""

    def __init__(self, *accepted: str, advice: Mapping[str, str] | None = None) -> None:
        super().__init__(path_type=Path)
        self.accepted = accepted  # suffixes, FOLDER, or ZARR_STORE
        self.advice = advice or {}  # for other ones what to do, such as the command to type

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; fail for one that does not exist, or is not of an accepted kind."""
        path = Path(value)
        name = str(value)
        if not os.path.exists(path):
            self.fail(f"{name!r} does not exist{_download_hint(name)}", param, ctx)
        kind = _kind_of(path)
        if kind not in self.accepted:
            self.fail(self._error_about(name, kind), param, ctx)
        return path

    def _error_about(self, name: str, kind: str) -> str:
        """Return the error about a path of another kind: what to do with it, else what the command reads."""
        path = Path(name)
        advice = self.advice.get(kind, ADVICE_FOR_STORES.get(kind))
        if advice:
            noun = kind if kind in (FOLDER, ZARR_STORE) else f"a {kind} file"
            return f"{name!r} is {noun}; {advice.format(name)}"
        suffixes = [suffix for suffix in self.accepted if suffix not in (FOLDER, ZARR_STORE)]
        reasons = [f"does not end in {alternatives(suffixes)}"] if suffixes else []
        reasons += ["is not a folder"] if FOLDER in self.accepted else []
        hint = f"; {TORCH_ADVICE}" if path.suffix in TORCH_SUFFIXES else ""
        return f"{name_of_path(path)!r} {' and '.join(reasons)}{hint}"


def _kind_of(path: Path) -> str:
    """Return what a path is: a zarr store, another folder, or a file with a suffix."""
    if path.is_dir():
        return ZARR_STORE if is_store(path) else FOLDER
    return path.suffix


def _download_hint(name: str) -> str:
    """Return the end of an error about a path that does not exist: how to download it, if it is on the hub."""
    path = Path(name)
    if HUB_ID.fullmatch(name) and path.suffix not in SUFFIXES and not path.parent.exists():
        return f"; fastq downloads nothing: hf download {name} --local-dir {path.name}"
    return "; fastq downloads nothing" if "://" in name else ""


READABLE = InputPath(FOLDER, ZARR_STORE, *SUFFIXES, *NETCDF)
