"""A digest of the sources that a kernel is made from, which is part of the name of its machine code on disk.

These are the module of the function, those of its argument types, all that they import within the package, and the
compiler and the vector type, without comments, docstrings and assertions. Python compiles them in a tenth of a second,
so what that gives is kept beside the machine code, under a checksum of all sources.

Sources are read when this module is imported, before nearly all of them are: an edit while a process runs must not save
old code under the digest of the new source, nor new code under that of the old one.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from fastq.engine.jit.cache import CachedFile
from fastq.system import lazy

_ROOMS = ("formats", "engine", "kernels", "system")  # of the package; kernels import from no other
_ALWAYS = ("engine.jit", "engine.simd")  # these compile types and operators, also for modules that do not import them


class Source(NamedTuple):
    """A source as it was when it was first read."""

    path: Path
    modified: tuple[int, ...]
    checksum: str


class Code(NamedTuple):
    """What parsing a source gives: a digest of its code, and the names that it may import from the package."""

    digest: str
    imports: list[str]


def _modified(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _edited_since_imported(name: str, path: Path) -> bool:
    loaded = getattr(sys.modules.get(name), "__file__", None)
    return loaded == str(path) and path.stat().st_ctime_ns > lazy.STARTED


class Sources:
    """The sources of a package as they are now.

    Parameters
    ----------
    package : Path
        Its folder, named as the package is.
    """

    def __init__(self, package: Path) -> None:
        self.package, self.codes = package, dict[str, Code]()
        self.read = dict(self._read())

    def _read(self) -> Iterator[tuple[str, Source]]:
        for path in sorted(path for room in _ROOMS for path in (self.package / room).rglob("*.py")):
            parts = path.relative_to(self.package.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modified = () if _edited_since_imported(name, path) else _modified(path)
            yield name, Source(path, modified, hashlib.sha256(path.read_bytes()).hexdigest())

    def digest(self, modules: Iterable[str], folder: Path) -> bytes | None:
        """Return the digest of these modules and all that they import from the package.

        Parameters
        ----------
        modules : iterable of str
            Names; those of other packages do not count.
        folder : Path
            Where what parsing gives is kept.

        Returns
        -------
        bytes or None
            None where a source is missing, or was edited since it was read or imported.
        """
        inside = f"{self.package.name}."
        always = tuple(f"{inside}{each}" for each in _ALWAYS)
        roots = {each for each in self.read if f"{each}.".startswith(tuple(f"{each}." for each in always))}
        roots |= {each for each in modules if each.startswith(inside)}
        if not self.read or not roots <= self.read.keys():
            return None
        try:
            self.codes = self.codes or self._load(folder)
            names = sorted(self._reached(roots))
            if any(_modified(self.read[name].path) != self.read[name].modified for name in names):
                return None
        except (OSError, SyntaxError):
            return None
        return hashlib.sha256(repr([(name, self.codes[name].digest) for name in names]).encode()).digest()

    def _reached(self, roots: set[str]) -> set[str]:
        """Return modules and all that they import, with the packages that they are in."""
        reached, ahead = set[str](), _with_packages(roots)
        while ahead := (ahead & self.read.keys()) - reached:
            reached |= ahead
            ahead = _with_packages(imported for each in ahead for imported in self.codes[each].imports)
        return reached

    def _load(self, folder: Path) -> dict[str, Code]:
        """Return what parsing the sources gives, which is kept in a file."""
        read = [(name, source.checksum) for name, source in self.read.items()]
        key = hashlib.sha256(repr((sys.implementation.cache_tag, read)).encode()).digest()
        file = CachedFile(folder, "sources", key)
        if (content := file.load()) is not None:
            return {name: Code(*row) for name, row in json.loads(content).items()}
        codes = {name: _parse(source, self.package.name) for name, source in self.read.items()}
        file.save(json.dumps(codes).encode())
        return codes


def _with_packages(names: Iterable[str]) -> set[str]:
    """Return names of modules and those of the packages that they are in."""
    return {name.rsplit(".", n)[0] for name in names for n in range(name.count("."))}


def _parse(source: Source, package: str) -> Code:
    content = source.path.read_bytes()
    if hashlib.sha256(content).hexdigest() != source.checksum:
        raise OSError(f"{source.path} was edited")
    # the names of a docstring may be among the imports, which then costs a compilation too many
    imports = re.findall(rf"\b(?:from ({package}[\w.]*) )?import ([\w., ]+|\([^)]*\))", content.decode())
    named = {f"{module}.{name}" if module else name for module, names in imports for name in _NAME.findall(names)}
    digest = hashlib.sha256(repr(code_parts(compile(content, "", "exec", dont_inherit=True, optimize=2))).encode())
    return Code(digest.hexdigest(), sorted(each for each in named if each.startswith(f"{package}.")))


_NAME = re.compile(r"[\w.]+")


def code_parts(code: CodeType) -> tuple[object, ...]:
    """Return what tells apart compiled code, without its lines."""
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_flags
    table = getattr(code, "co_exceptiontable", b"")  # from Python 3.11 on
    return code.co_code, *names, table, [_constant(each) for each in code.co_consts]


def _constant(value: object) -> object:
    """Return a constant as one whose representation is the same in all processes."""
    if isinstance(value, CodeType):
        return value.co_name, *code_parts(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


SOURCES = Sources(Path(__file__).parents[2])
