"""Virtual environments of the machines: an interpreter, packages, and for another CPU kernels compiled on this one."""

import ensurepip
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.platforms import debian

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEFAULT = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "fastq-platforms"


def _script(path, *command):
    """Write a command that is run in place of a program: with the name that it was called by, and its arguments."""
    path.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def _interpreter(machine, folder):
    """Return a Python of the machine: a script, which subprocesses can run as any other.

    Raises
    ------
    FileNotFoundError
        If Debian has no such Python, nor has PATH one that runs.
    """
    if not machine.python:
        return Path(sys.executable)
    if not machine.suite:
        found = shutil.which(f"python{machine.python}")
        if found is None or subprocess.run([found, "-c", ""], stderr=subprocess.DEVNULL, check=False).returncode:
            raise FileNotFoundError(
                f"PATH has no python{machine.python} that runs, and no suite of Debian's has a package of it"
            )
        return Path(found)
    root = folder / f"{machine.suite}-{machine.architecture}-{machine.python}"
    debian.unpack(root, machine.suite, machine.architecture, f"python{machine.python}-venv", "libstdc++6")
    python = root / "usr/bin" / f"python{machine.python}"
    name, program = '"$0"', shlex.quote(str(python))
    if machine.emulated:
        debian.unpack(folder / "qemu", "trixie", "amd64", "qemu-user", dependencies=False)
        qemu = folder / "qemu/usr/bin" / ("qemu-aarch64" if machine.architecture == "arm64" else "qemu-x86_64")
        start = [shlex.quote(str(qemu)), "-cpu", machine.emulated, "-L", shlex.quote(str(root)), "-0", name]
    else:
        libraries = root / "usr/lib/x86_64-linux-gnu"
        loader = shlex.quote(str(libraries / "ld-linux-x86-64.so.2"))
        start = [loader, "--argv0", name, "--library-path", shlex.quote(str(libraries))]
    return _script(root / "usr/bin" / f"{machine.name}-python{machine.python}", *start, program)


def _extra(name):
    """Requirements of an extra of the package."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"][
        name
    ]


def _install(python, requirements):
    """Install wheels; return the requirements for which the registries have no wheel."""
    install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    if subprocess.run([*install, *requirements], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        return []
    return [each for each in requirements if subprocess.run([*install, each], check=False).returncode]


def environment(machine, folder):
    """Make a virtual environment for a machine, once; return its Python, and what the registries have no wheel of.

    Raises
    ------
    RuntimeError
        If they have no wheel of the machine's own requirements.
    """
    home = folder / "environments" / machine.name
    python, done = home / "bin/python", home / "missing"
    if not done.exists():
        base = _interpreter(machine, folder)
        subprocess.run([base, "-m", "venv", "--clear", "--without-pip", home], check=True)
        wheels = [
            *base.parents[1].glob("share/python-wheels/pip-*.whl"),
            *Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"),
        ]
        subprocess.run([python, wheels[0] / "pip", "install", "--quiet", "pip"], check=True)
        if missing := _install(python, machine.packages):
            raise RuntimeError(f"{machine.name}: there is no wheel of {', '.join(missing)}")
        missing = _install(python, [*machine.packages, *_extra("test")]) if "suite" in machine.runs else []
        if "suite" in machine.runs:  # by its metadata Numba finds the package; its code is that of PYTHONPATH
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", ROOT], check=True)
        done.write_text("\n".join(each.replace(" ", "") for each in missing), encoding="utf-8")
    if machine.triple:
        site = next((home / "lib").glob("python*")) / "site-packages"
        (site / "compiled_elsewhere.py").write_bytes((HERE / "compiled_elsewhere.py").read_bytes())
        (site / "compiled_elsewhere.pth").write_text("import compiled_elsewhere\n", encoding="utf-8")
    return python, done.read_text(encoding="utf-8").split()
