"""Files of Debian's packages in a folder, by the mirror that apt uses: none is installed, no script of one is run."""

import lzma
import re
import subprocess
import urllib.request
from pathlib import Path

SOURCES = Path("/etc/apt")


def mirror():
    """Return the address that apt takes Debian's packages from.

    Raises
    ------
    FileNotFoundError
        If apt has no source of Debian's.
    """
    for path in sorted([*SOURCES.glob("sources.list"), *SOURCES.glob("sources.list.d/*")]):
        for address in re.findall(r"https?://\S+/debian(?=/?\s)", path.read_text(encoding="utf-8") + "\n"):
            return address.rstrip("/")
    raise FileNotFoundError("apt has no source of Debian's packages here, of which other Pythons are made")


def _read(address):
    with urllib.request.urlopen(address, timeout=120) as response:
        return response.read()


def _names(field):
    """Names of packages: of each entry its alternatives."""
    return [[re.split(r"[\s(:]", each.strip())[0] for each in entry.split("|")] for entry in field.split(",") if entry]


class Index:
    """The packages of a suite for one architecture."""

    def __init__(self, suite, architecture):
        self.address = mirror()
        text = lzma.decompress(_read(f"{self.address}/dists/{suite}/main/binary-{architecture}/Packages.xz")).decode()
        entries = [dict(re.findall(r"^([\w-]+): (.*)$", each, re.MULTILINE)) for each in text.split("\n\n")]
        self.packages = {each["Package"]: each for each in entries if "Package" in each}
        self.of_provided = {
            name: package for package, each in self.packages.items() for (name, *_) in _names(each.get("Provides", ""))
        }

    def closure(self, wanted):
        """Return packages with all that they depend on, by the first alternative that there is."""
        found, todo = {}, list(wanted)
        while todo:
            name = todo.pop()
            package = name if name in self.packages else self.of_provided[name]
            if package in found:
                continue
            entry = found[package] = self.packages[package]
            for field in ("Pre-Depends", "Depends"):
                for names in _names(entry.get(field, "")):
                    todo.append(next(n for n in names if n in self.packages or n in self.of_provided))
        return found


def unpack(folder, suite, architecture, *wanted, dependencies=True):
    """Unpack packages into a folder, once."""
    done = folder / "unpacked"
    if done.exists():
        return
    index = Index(suite, architecture)
    packages = index.closure(wanted) if dependencies else {name: index.packages[name] for name in wanted}
    folder.mkdir(parents=True, exist_ok=True)
    for entry in packages.values():
        archive = folder / "package.deb"
        archive.write_bytes(_read(f"{index.address}/{entry['Filename']}"))
        subprocess.run(["dpkg", "-x", archive, folder], check=True)
        archive.unlink()
    if not (folder / "lib").exists():
        (folder / "lib").symlink_to("usr/lib")
    done.touch()
