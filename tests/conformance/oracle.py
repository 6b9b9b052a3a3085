"""What a system is to these tests: cases that it has, and a function that quantizes as it does."""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import NamedTuple

import numpy as np

import fastq


class Quantized(NamedTuple):
    """A system's results for an array; None for results that it does not return."""

    codes: np.ndarray | None = None
    scale: np.ndarray | None = None
    zero_point: np.ndarray | None = None
    values: np.ndarray | None = None


@dataclass(frozen=True)
class Case:
    """One way to quantize a matrix.

    Attributes
    ----------
    dtype : str
        Name of the code format.
    symmetric : bool
        The scheme.
    per : {"array", "channel", "block"}
        What has parameters of its own: the array, each row, or each `block_size` elements of a row.
    block_size : int
        Elements in a block.
    ragged : bool
        Whether the last block of each row is shorter.
    option : str
        Which of several functions of the system.
    changes : tuple of (str, object)
        Fields of the convention that differ from its row.
    values : str
        Name of the dtype of the matrix.
    parameters : callable or None
        From a matrix to scale and zero point, where the system takes them from no range.
    unit : bool
        Whether the system is for numbers of -1 to 1 only.
    """

    dtype: str
    symmetric: bool = False
    per: str = "array"
    block_size: int = 0
    ragged: bool = False
    option: str = ""
    changes: tuple[tuple[str, object], ...] = ()
    values: str = "float32"
    parameters: Callable[..., tuple[np.ndarray, float]] | None = None
    unit: bool = False

    def granularity(self):
        """Return the arguments of fastq's functions that say what has parameters of its own."""
        return {"axis": {"array": None, "channel": 0, "block": 1}[self.per], "block_size": self.block_size}

    def __str__(self):
        words = [self.dtype, "symmetric" if self.symmetric else "asymmetric", self.per, self.option]
        words += [self.values] * (self.values != "float32")
        words += [str(self.block_size)] * bool(self.block_size) + ["ragged"] * self.ragged
        return "-".join(word for word in (*words, *(name for name, _ in self.changes)) if word)


def grid(formats, per=("array", "channel", "block"), **fields):
    """Return a Case for each format, scheme and granularity."""
    return tuple(
        Case(dtype, symmetric, part, 64 if part == "block" else 0, **fields)
        for dtype in formats
        for symmetric in (False, True)
        for part in per
    )


@dataclass(frozen=True)
class Installed:
    """What a convention is named after.

    Attributes
    ----------
    convention : str
        Name of the convention.
    distributions : tuple of str
        What has to be installed by pip.
    programs : tuple of str
        Programs that have to be there, as by apt.
    """

    convention: str
    distributions: tuple[str, ...]
    programs: tuple[str, ...] = field(default=(), kw_only=True)

    def missing(self):
        """Return what it needs that is not here."""
        programs = [name for name in self.programs if shutil.which(name) is None]
        return [name for name in self.distributions if not version_of(name)] + programs

    def version(self):
        """Return what is installed, with versions."""
        versions = [f"{name} {version_of(name)}" for name in self.distributions]
        return ", ".join([*map(version_of_program, self.programs), *versions])


@dataclass(frozen=True)
class System(Installed):
    """A system whose bytes fastq's convention has to give.

    Attributes
    ----------
    quantize : callable
        From a matrix and a Case to Quantized; from these and parameters if `given`.
    cases : tuple of Case
        What it has.
    neighbour : str
        The convention closest to it, whose codes must be seen to differ.
    given : bool
        Whether scale and zero point are fastq's, because the system computes none.
    leads : bool
        Whether fastq takes the scale and the zero point of the system, which chooses others than those given.
    tie : float
        Where the border between two codes lies, in steps from the value that a code decodes to.
    except_for : tuple of str
        Special arrays (`hard.SPECIAL`) for which its result is undefined.
    undefined : str
        What it does where it is undefined, and what fastq does instead.
    """

    quantize: Callable[..., Quantized]
    cases: tuple[Case, ...]
    neighbour: str = "onnx"
    given: bool = False
    leads: bool = False
    tie: float = 0.5
    except_for: tuple[str, ...] = ()
    undefined: str = ""


def version_of_program(name):
    """Return the name and the version of NCO or CDO, as the program itself says."""
    told = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
    number = re.search(r"version (\d[\d.]*)", told.stdout + told.stderr)[1]
    called = {"ncpdq": "NCO", "cdo": "CDO"}[name]
    return f"{called} {number}"


def version_of(distribution):
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def by_fastq(x, case, convention):
    """Return fastq's results for a matrix under a convention."""
    row = replace(fastq.CONVENTIONS[convention], **dict(case.changes))
    options = {"symmetric": case.symmetric, "convention": row, **case.granularity()}
    if case.parameters is None:
        q = fastq.quantize(x, case.dtype, **options)
    else:
        q = fastq.quantize(x, qparams=fastq.QParams(*case.parameters(x), case.dtype, **options))
    return _parts(q, case)


def by_parameters(x, case, convention, found):
    """Return fastq's results for a matrix under a convention by the parameters of a system."""
    row = replace(fastq.CONVENTIONS[convention], **dict(case.changes))
    parts = case.granularity()
    p = fastq.QParams(found.scale, found.zero_point, case.dtype, **parts, symmetric=case.symmetric, convention=row)
    return _parts(fastq.quantize(x, qparams=p), case)


def _parts(q, case):
    codes = fastq.unpack(q.codes, case.dtype, shape=q.shape) if q.codes.shape != q.shape else q.codes
    if q.dtype.block_size:  # the bytes of codes, where zeros have signs, and of scales
        return Quantized(codes.view(np.uint8), q.scale.view(np.uint8), values=q.dequantize())
    return Quantized(codes, q.scale, q.zero_point, q.dequantize())


def by_system(system, x, case, ours):
    """Return the system's results for a matrix; it gets fastq's parameters if it computes no parameters."""
    return system.quantize(x, case, ours.scale, ours.zero_point) if system.given else system.quantize(x, case)


def _bits(a):
    """Return the bits of numbers as float64, which holds every code and float32; -0.0 counts as 0.0."""
    return (np.asarray(a).astype(np.float64) + 0.0).view(np.uint64)


def differences(ours, theirs):
    """Return, for each part that the system gives away, how many elements differ.

    A scale that fastq keeps in float64 for a system that keeps it in float32 is compared in float32. NaN stands for a
    parameter that the system has not got.
    """
    counts = {}
    for part, a, b in zip(Quantized._fields, ours, theirs, strict=True):
        if b is None:
            continue
        assert a.shape == b.shape, f"{part} has shape {a.shape}, the system's {b.shape}"
        a = a.astype(b.dtype) if a.dtype.kind == b.dtype.kind == "f" else a
        counts[part] = int(np.count_nonzero((_bits(a) != _bits(b)) & ~np.isnan(b.astype(np.float64))))
    return counts
