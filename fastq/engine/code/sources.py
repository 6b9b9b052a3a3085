"""Digests of sources, by which machine code is found: an edit never runs old code.

A part of a kernel's key is a digest of the sources that it is made from: the module of the function, those of its
argument types, all that they import within the package, and the compiler and the vector type. A digest is that of the
bytes, so an edit of a comment compiles a kernel again, too.

Sources are read when this module is imported, before nearly all of them are: an edit while a process runs must not save
old code under the digest of the new source, nor new code under that of the old one.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fastq.engine.code.file import CachedFile
from fastq.engine.code.folder import code_folder
from fastq.system import imports

_ROOMS = ("formats", "engine", "kernels", "system")  # of the package; kernels import from no other
_ALWAYS = ("engine.jit", "engine.simd")  # these compile types and operators, also for modules that do not import them


class SourceFile(NamedTuple):
    """A source as it was when it was first read."""

    path: Path
    modified: tuple[int, ...]
    checksum: str


_modified = operator.attrgetter("st_mtime_ns", "st_size", "st_ino")  # what an edit changes of the status of a file


def _edited_since_imported(name: str, path: Path) -> bool:
    """Return whether a module that is imported already may have other code than its file has now.

    Such a file changed after this process began (`imports.STARTED`): the module may have been imported before or after
    that.
    """
    loaded = getattr(sys.modules.get(name), "__file__", None)
    return loaded == str(path) and path.stat().st_ctime_ns > imports.STARTED


class Sources:
    """The sources of a package, given its folder, as they are now."""

    def __init__(self, package: Path) -> None:
        """Read all sources of the rooms that kernels are made of."""
        self.package = package
        self.imports: dict[str, list[str]] = {}  # names that a module imports, found when they are first needed
        self.read = dict(self._read())
        checksums = sorted((name, source.checksum) for name, source in self.read.items())
        self.checksum = hashlib.sha256(repr(checksums).encode()).hexdigest()  # of all of them

    def _read(self) -> Iterator[tuple[str, SourceFile]]:
        """Yield the names of modules and their sources, as they are now.

        A source that may differ from the module in memory has () as its status, which no file has: it counts as edited
        for good.
        """
        for path in sorted(path for room in _ROOMS for path in (self.package / room).rglob("*.py")):
            parts = path.relative_to(self.package.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modified = () if _edited_since_imported(name, path) else _modified(os.stat(path))
            yield name, SourceFile(path, modified, hashlib.sha256(path.read_bytes()).hexdigest())

    def digest(self, modules: Iterable[str]) -> bytes | None:
        """Return the digest of these modules and all that they import from the package; others do not count.

        None where a source is missing, or was edited since it was read or imported.
        """
        inside = f"{self.package.name}."
        always = tuple(f"{inside}{room}." for room in _ALWAYS)
        roots = {module for module in self.read if f"{module}.".startswith(always)}
        roots |= {module for module in modules if module.startswith(inside)}
        if not self.read or not roots <= self.read.keys():
            return None
        try:
            names = sorted(self._with_imports(roots))
        except OSError:
            return None
        if not self.are_unchanged(names):
            return None
        return hashlib.sha256(repr([(name, self.read[name].checksum) for name in names]).encode()).digest()

    def are_unchanged(self, names: Iterable[str]) -> bool:
        """Whether none of these sources was edited since it was read, or imported."""
        with contextlib.suppress(OSError):
            sources = map(self.read.__getitem__, names)
            return all(_modified(os.stat(source.path)) == source.modified for source in sources)
        return False

    def _with_imports(self, roots: set[str]) -> set[str]:
        """Return modules and all that they import, directly or not, with the packages that they are in.

        A name that is no module, such as that of a function that is imported, is in no source, and drops out.
        """
        reached = set[str]()
        ahead = _with_packages(roots)
        while ahead := (ahead & self.read.keys()) - reached:
            reached |= ahead
            new = ahead - self.imports.keys()
            self.imports |= {each: _imports_of(self.read[each], self.package.name) for each in new}
            ahead = _with_packages(imported for each in ahead for imported in self.imports[each])
        return reached


def _with_packages(names: Iterable[str]) -> set[str]:
    """Return names of modules and those of the packages that they are in: of "fastq.a.b" also "fastq.a".

    The outermost package is left out: its own file is in no room, and so not among the sources.
    """
    return {name.rsplit(".", n)[0] for name in names for n in range(name.count("."))}


def _imports_of(source: SourceFile, package: str) -> list[str]:
    """Return the full names of what a source imports from the package at the beginning of a line.

    ``from fastq.a import b`` gives "fastq.a.b", whether b is a module or not: names of no module drop out later. What a
    function imports, in lines that are indented, is not among them: the types of a kernel name that. Raise OSError if
    the file was edited.
    """
    content = source.path.read_bytes()
    if hashlib.sha256(content).hexdigest() != source.checksum:
        raise OSError(f"{source.path} was edited")
    imports = re.findall(rf"^(?:from ({package}[\w.]*) )?import ([\w., ]+|\([^)]*\))", content.decode(), re.MULTILINE)
    named = {f"{module}.{name}" if module else name for module, names in imports for name in _NAME.findall(names)}
    return sorted(full_name for full_name in named if full_name.startswith(f"{package}."))


_NAME = re.compile(r"[\w.]+")

SOURCES = Sources(Path(__file__).parents[2])


def file_of(modules: Iterable[str], name: str, *parts: object) -> CachedFile | None:
    """Return the file for machine code of these modules and all else that decides it.

    None where there is no folder, or code is not known to be that of the sources.
    """
    folder = code_folder()
    sources = folder and SOURCES.digest(modules)
    if folder is None or sources is None:
        return None
    return CachedFile(folder, name, hashlib.sha256(repr((sources, *parts)).encode()).digest())
