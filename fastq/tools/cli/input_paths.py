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
WAYS_OF_STORES = "fastq pack and fastq bitround take it, fastq inspect shows it, xarray.open_dataset reads it"
OF_STORES = dict.fromkeys((*NETCDF, ZARR_STORE), WAYS_OF_STORES)
TORCH_SUFFIXES = ".bin", ".pt", ".pth", ".ckpt"
OF_TORCH = "torch.load reads it, and safetensors.torch.save_file writes a .safetensors file of its tensors"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class InputPath(click.Path):
    """An existing file or folder; for one that the command does not read, the error names the command that does."""

    def __init__(self, *accepted: str, ways: Mapping[str, str] | None = None) -> None:
        super().__init__(path_type=Path)
        # suffixes or FOLDER; for other suffixes the command to type
        self.accepted = accepted
        self.ways = ways or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        path = Path(value)
        name = str(value)
        if not os.path.exists(path):
            is_id = HUB_ID.fullmatch(name) and path.suffix not in SUFFIXES and not path.parent.exists()
            hint = f": hf download {name} --local-dir {path.name}" if is_id else ""
            hint = f"; fastq downloads nothing{hint}" if is_id or "://" in name else ""
            self.fail(f"{name!r} does not exist{hint}", param, ctx)
        kind = ZARR_STORE if path.is_dir() and is_store(path) else FOLDER if path.is_dir() else path.suffix
        if kind not in self.accepted and (way := self.ways.get(kind, OF_STORES.get(kind))):
            what = kind if kind in (FOLDER, ZARR_STORE) else f"a {kind} file"
            self.fail(f"{name!r} is {what}; {way.format(name)}", param, ctx)
        if kind not in self.accepted:
            suffixes = [each for each in self.accepted if each not in (FOLDER, ZARR_STORE)]
            reasons = [f"does not end in {alternatives(suffixes)}"] if suffixes else []
            reasons += ["is not a folder"] if FOLDER in self.accepted else []
            hint = f"; {OF_TORCH}" if path.suffix in TORCH_SUFFIXES else ""
            self.fail(f"{name_of_path(path)!r} {' and '.join(reasons)}{hint}", param, ctx)
        return path


READABLE = InputPath(FOLDER, ZARR_STORE, *SUFFIXES, *NETCDF)
