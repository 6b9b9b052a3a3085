"""Machine code on disk: it is found again, it is never wrong, and no trouble with files reaches the caller.

A file for each function and signature: a checksum of all that follows, the key, an object file.

They lie in a folder that only this user can write to. Whoever can write to a file of machine code runs what he likes in
the process that loads it. So nothing is loaded from or written to where another user could have put a file: a folder or
file that another user owns or may write to, or a folder within one. Root, whom no permission stops, checks the same.

A part of the key is a digest of the sources that a kernel is made from: the module of the function, those of its
argument types, all that they import within the package, and the compiler and the vector type, without comments,
docstrings and assertions. Python parses them in two tenths of a second, so what that gives is kept next to the machine
code, under a checksum of all sources. Sources are read when this module is imported, before nearly all of them are: an
edit while a process runs must not save old code under the digest of the new source, nor new code under that of the old
one.

Only Numba knows that key, and its import takes longer than all the rest. So a second, small file leads to the first.
Its key is known without Numba: the name of the function in a library, a checksum of all sources, the CPU, and versions.
It counts only where Numba's settings are the usual ones.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import operator
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from fastq.system import cpu, lazy
from fastq.system.atomic import replacing

# --- the folder -------------------------------------------------------------------------------------------------------

_CHECKED = hasattr(os, "geteuid")  # Windows keeps the cache of a user in his profile, which is private there


@functools.cache
def code_folder() -> Path | None:
    """Return the folder of machine code, made if it does not exist; None if there is no trusted folder."""
    for folder in _candidates():
        with contextlib.suppress(OSError):
            if not refusal(folder):
                for each in reversed((folder, *folder.parents)):  # private, whatever the umask is
                    each.mkdir(0o700, exist_ok=True)
                if os.access(folder, os.W_OK) or any(folder.iterdir()):
                    return folder
    return None


def _candidates() -> Iterator[Path]:
    """Yield the folders to try in their order, which is Numba's: set by the user, next to the sources, of the user."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen).absolute() / "fastq-kernels"
    yield Path(__file__).parent / "__pycache__" / "code"
    with contextlib.suppress(RuntimeError):  # no home
        yield _user_folder() / "fastq-kernels"


def _user_folder() -> Path:
    """Return the folder that this system has for caches of the user."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def refusal(folder: Path) -> str:
    """Return why a folder, which need not exist yet, is not to be trusted; "" if it is."""
    folder = Path(os.path.realpath(folder))
    for path in (folder, *folder.parents):
        if path.exists() and (why := _distrust(os.stat(path), is_parent=path != folder)):
            return f"{path} {why}"
    return ""


def _distrust(status: os.stat_result, is_parent: bool = False) -> str:
    """Return why others could change what has this status, or move a folder out of this parent; "" if they cannot."""
    if not _CHECKED:
        return ""
    if status.st_uid != os.geteuid() and not (is_parent and status.st_uid == 0):
        return "belongs to another user"
    sticky = is_parent and status.st_mode & stat.S_ISVTX  # only the owner of an entry can move it
    others = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid))
    return "can be written to by others" if others and not sticky else ""


@functools.cache
def _is_private(group: int) -> bool:
    """Whether a group has its user as its only member, as many systems give one to each user."""
    import grp
    import pwd

    with contextlib.suppress(KeyError):
        user, row = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
        return user.pw_gid == group and row.gr_name == user.pw_name and set(row.gr_mem) <= {user.pw_name}
    return False


def read_trusted(path: Path) -> bytes:
    """Read a file of the folder; raise OSError if another user owns it or may write to it, or if it is not plain."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or _distrust(status):
            raise PermissionError(f"{path} {_distrust(status) or 'is not a plain file'}")
        return file.read()


def stored_code() -> tuple[int, int]:
    """Return how many files of machine code the folder has, and their bytes."""
    folder, files, nbytes = code_folder(), 0, 0
    with contextlib.suppress(OSError):
        for path in folder.glob("*.code") if folder else ():
            files, nbytes = files + 1, nbytes + path.stat().st_size
    return files, nbytes


def refusals() -> list[str]:
    """Return why folders before the one in use are not trusted, and which of its files are not."""
    used, reasons = code_folder(), []
    for folder in _candidates():
        with contextlib.suppress(OSError):
            if folder == used:
                reasons += [f"{path} {why}" for path in folder.iterdir() if (why := _distrust(os.lstat(path)))]
                break
            reasons += [why] if (why := refusal(folder)) else []
    return reasons


# --- a file -----------------------------------------------------------------------------------------------------------

_DIGEST = 32  # bytes


class CachedFile:
    """A file with content that belongs to a key, under which nothing else was ever saved."""

    def __init__(self, folder: Path, name: str, key: bytes) -> None:
        self.path, self._key = folder / f"{name}.{key.hex()[:16]}.code", key
        self.reference = key + name.encode()  # by which another file leads to this one

    def load(self) -> bytes | None:
        """Return what was saved; None where there is no such file, or it is damaged, another's or not trusted."""
        with contextlib.suppress(OSError):
            content = read_trusted(self.path)
            checksum, key, code = content[:_DIGEST], content[_DIGEST : 2 * _DIGEST], content[2 * _DIGEST :]
            if key == self._key and checksum == hashlib.sha256(key + code).digest():
                return code
        return None

    def save(self, code: bytes) -> None:
        """Save content, readable for this user only; a full or read-only disk does not raise."""
        content = self._key + code
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(0o700, exist_ok=True)
            with replacing(self.path, mode=0o600) as file:
                file.write(hashlib.sha256(content).digest() + content)

    def follow(self, digest: bytes) -> CachedFile | None:
        """Return the file whose reference is in this one after this digest; None where there is no such reference."""
        found = self.load() or b""
        key, name = found[_DIGEST : 2 * _DIGEST], found[2 * _DIGEST :].decode()
        return CachedFile(self.path.parent, name, key) if found[:_DIGEST] == digest else None


@functools.cache
def tell_user(*, also_in_pipes: bool = False) -> None:
    """Tell a user who waits, once, that something is compiled, which takes a second or more."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # of none, another's or one that is closed
        if also_in_pipes or sys.stderr.isatty():
            kept = "once for this machine; the code is kept on disk"
            anew = "in each process; no folder for their code is trusted, as fastq.show_versions() tells"
            sys.stderr.write(f"fastq: compiling kernels, {kept if code_folder() else anew}\n")
            sys.stderr.flush()


# what is called before something is compiled, the last one; a command with a bar shows it there
told: list[Callable[[], None]] = [tell_user]

# --- in memory --------------------------------------------------------------------------------------------------------

ENTRY = "fastq_kernel"  # the name of the function in a file
in_use: dict[bytes, int] = {}  # addresses of functions in memory, by the references of their files
_engines: list[Any] = []  # machine code lives as long as its engine


def in_memory(code: bytes) -> int:
    """Bring machine code into memory, by an engine of its own, where no name in it is that of another's."""
    with lazy.undisturbed():
        binding = lazy.module("llvmlite.binding")
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(jit=True)
        config, asked = sys.modules.get("numba.core.config"), os.environ.get("NUMBA_USE_LLVMLITE_MEMORY_MANAGER", "")
        manager = config.USE_LLVMLITE_MEMORY_MANAGER if config else {"0": False, "1": True}.get(asked)
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine, manager)
        engine.add_object_file(binding.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _engines.append(engine)
        return int(engine.get_function_address(ENTRY))


# --- found without Numba ---------------------------------------------------------------------------------------------

# settings of Numba that change machine code, by their names in its `config`; where one is set, Numba is asked
SETTINGS = (
    *("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "LLVM_REFPRUNE_PASS", "ENABLE_PROFILING", "DEBUGINFO_DEFAULT"),
    *("EXTEND_VARIABLE_LIFETIMES", "BOUNDSCHECK", "CPU_NAME", "CPU_FEATURES", "ENABLE_AVX"),
)
_VARIABLES = frozenset(f"NUMBA_{name.removesuffix('_DEFAULT')}" for name in SETTINGS)  # the same in the environment


def leading_file(symbol: str) -> CachedFile | None:
    """Return the file that leads to the code of a function of this name, once there is some; None without a folder."""
    folder = code_folder()
    cpu_of_code = [*map(cpu.facts().get, ("flags", "Features", "CPU implementer", "CPU part"))]
    key = repr((symbol, SOURCES.checksum, sys.implementation.cache_tag, cpu_of_code))
    return CachedFile(folder, symbol, hashlib.sha256(key.encode()).digest()) if folder else None


def stored_or_compiled(leading: CachedFile | None, compiled: Callable[[], int], is_native: bool) -> int:
    """Return the address of code that a file leads to, else of code that Numba finds or compiles.

    The file leads to that from now on; for native code it exists then, even if Numba has to be asked again.
    """
    global _usual
    with lazy.Held():  # what is found is known before a handler raises
        usual = _settings() == _usual and are_default() and SOURCES.are_unchanged(SOURCES.read)
        machine = _machine() if leading and usual else b""
        if leading and machine and (file := leading.follow(machine)):
            address = in_use.get(file.reference, 0)
            if not address and (code := file.load()):
                address = in_use[file.reference] = in_memory(code)
            if address:
                return address
        address = compiled()
        _usual = _settings() if machine else _usual
        reference = next((each for each, known in [*in_use.items()] if known == address), b"")
        if leading and machine and reference:
            leading.save(machine + reference)
        elif leading and is_native and leading.load() is None:
            leading.save(b"")  # later processes ask Numba
        return address


_usual: list[Any] = []  # Numba's settings when it was imported here; none before


def _settings() -> list[Any]:
    """Return the settings that Numba has, none before it is imported."""
    config = sys.modules.get("numba.core.config")
    return [*map(vars(config).get, SETTINGS)] if config else []


def are_default() -> bool:
    """Whether no setting that changes machine code is in the environment, or in the file that Numba reads."""
    given = {*os.environ}
    with contextlib.suppress(OSError):
        words = re.findall(r"\w+", Path(".numba_config.yaml").read_text(errors="replace"))
        given |= {f"NUMBA_{word.upper()}" for word in words}
    return _VARIABLES.isdisjoint(given)


@functools.cache
def _machine() -> bytes:
    """Return a digest of this CPU and of versions, which decide machine code; nothing where one is not known."""
    numba = PathFinder.find_spec("numba")
    version = features = ""
    with contextlib.suppress(OSError, ValueError):  # it is in no file
        version = Path(numba.origin).with_name("_version.py").read_text() if numba and numba.origin else ""
    if "version_json" not in version:  # else it is code that asks git
        return b""
    with lazy.undisturbed():
        binding = lazy.module("llvmlite.binding")
        with contextlib.suppress(RuntimeError):  # LLVM does not know those of every CPU
            features = binding.get_host_cpu_features().flatten()
        made_for = binding.get_host_cpu_name(), features, binding.get_process_triple()
    made_by = version, lazy.module("llvmlite").__version__, object.__basicsize__
    return hashlib.sha256(repr((made_by, made_for)).encode()).digest()


# --- the digest of sources --------------------------------------------------------------------------------------------

_ROOMS = ("formats", "engine", "kernels", "system")  # of the package; kernels import from no other
_ALWAYS = ("engine.jit", "engine.simd")  # these compile types and operators, also for modules that do not import them


class Source(NamedTuple):
    """A source as it was when it was first read."""

    path: Path
    modified: tuple[int, ...]
    checksum: str


Code = tuple[str, list[str]]  # what parsing a source gives: a digest, and names that it may import from the package


_modified = operator.attrgetter("st_mtime_ns", "st_size", "st_ino")  # what an edit changes of the status of a file


def _edited_since_imported(name: str, path: Path) -> bool:
    loaded = getattr(sys.modules.get(name), "__file__", None)
    return loaded == str(path) and path.stat().st_ctime_ns > lazy.STARTED


class Sources:
    """The sources of a package, given its folder, as they are now."""

    def __init__(self, package: Path) -> None:
        self.package, self.codes = package, dict[str, Code]()
        self.read = dict(self._read())
        checksums = sorted((name, source.checksum) for name, source in self.read.items())
        self.checksum = hashlib.sha256(repr(checksums).encode()).hexdigest()  # of all of them

    def _read(self) -> Iterator[tuple[str, Source]]:
        for path in sorted(path for room in _ROOMS for path in (self.package / room).rglob("*.py")):
            parts = path.relative_to(self.package.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modified = () if _edited_since_imported(name, path) else _modified(os.stat(path))
            yield name, Source(path, modified, hashlib.sha256(path.read_bytes()).hexdigest())

    def digest(self, modules: Iterable[str], folder: Path) -> bytes | None:
        """Return the digest of these modules and all that they import from the package; others do not count.

        What parsing gives is kept in the folder. None where a source is missing, or was edited since it was read or
        imported.
        """
        inside = f"{self.package.name}."
        always = tuple(f"{inside}{each}." for each in _ALWAYS)
        roots = {each for each in self.read if f"{each}.".startswith(always)}
        roots |= {each for each in modules if each.startswith(inside)}
        if not self.read or not roots <= self.read.keys():
            return None
        try:
            names = sorted(self._reached(roots, folder))
        except (OSError, SyntaxError):
            return None
        if not self.are_unchanged(names):
            return None
        return hashlib.sha256(repr([(name, self.codes[name][0]) for name in names]).encode()).digest()

    def are_unchanged(self, names: Iterable[str]) -> bool:
        """Whether none of these sources was edited since it was read, or imported."""
        with contextlib.suppress(OSError):
            sources = map(self.read.__getitem__, names)
            return all(_modified(os.stat(source.path)) == source.modified for source in sources)
        return False

    def _reached(self, roots: set[str], folder: Path) -> set[str]:
        """Return modules and all that they import, with the packages that they are in; those not known are parsed."""
        key = hashlib.sha256(f"{sys.implementation.cache_tag} {self.checksum}".encode()).digest()
        file = CachedFile(folder, "sources", key)
        self.codes = self.codes or json.loads(file.load() or b"{}")
        known, reached, ahead = len(self.codes), set[str](), _with_packages(roots)
        while ahead := (ahead & self.read.keys()) - reached:
            reached |= ahead
            self.codes |= {each: _parse(self.read[each], self.package.name) for each in ahead - self.codes.keys()}
            ahead = _with_packages(imported for each in ahead for imported in self.codes[each][1])
        if len(self.codes) > known:
            file.save(json.dumps(self.codes).encode())
        return reached


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
    tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not _is_idle(each)]  # type: ignore[attr-defined]
    digest = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    return digest, sorted(each for each in named if each.startswith(f"{package}."))


_NAME = re.compile(r"[\w.]+")


def _is_idle(statement: ast.stmt) -> bool:
    """Whether a statement is an assertion, or a constant as docstrings are."""
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Assert)


SOURCES = Sources(Path(__file__).parents[2])


def file_of(modules: Iterable[str], name: str, *parts: object) -> CachedFile | None:
    """Return the file for machine code of these modules and all else that decides it.

    None where there is no folder, or code is not known to be that of the sources.
    """
    folder = code_folder()
    sources = folder and SOURCES.digest(modules, folder)
    if folder is None or sources is None:
        return None
    return CachedFile(folder, name, hashlib.sha256(repr((sources, *parts)).encode()).digest())
