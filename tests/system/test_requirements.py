"""What is private to others is named in one place, and checked."""

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import requirements

import fastq
from fastq.engine.code.settings import SETTINGS

PROJECT = Path(fastq.__file__).parent.parent / "pyproject.toml"


def test_everything_named_exists_here():
    assert requirements.missing(requirements.PRIVATE) == []
    assert requirements.missing((requirements.Private("numpy", "", "", ("numpy:nothing", "no.such:thing")),)) == [
        "numpy:nothing",
        "no.such:thing",
    ]


ROOT = Path(fastq.__file__).parent
PUBLIC_MODULES = {"numba", "numba.extending", "llvmlite", "llvmlite.binding", "llvmlite.ir"}
# attributes that may be set: of llvmlite by its documentation, and of objects of our own next to it
SET_OF_LLVMLITE = {"align", "linkage", "initializer", "global_constant", "name", "triple", "data_layout"}
SET_OF_LLVMLITE |= {"loop_vectorization", "slp_vectorization"}
SET_OF_OURS = {"__name__", "__doc__", "body", "call", "continues", "SYSTEM", "MACHINE", "_load_or_compile"}


def sources():
    """Yield the files of the package, and that which builds wheels, by what requirements.py calls them."""
    yield from ((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py"))
    if PROJECT.exists():
        yield "hatch_build.py", PROJECT.with_name("hatch_build.py").read_text(encoding="utf-8")


def is_private_module(name):
    return name.split(".")[0] in ("numba", "llvmlite") and name not in PUBLIC_MODULES


def private_names(text):
    """Yield the names of others' insides that a source uses, as requirements.py writes them."""
    tree = ast.parse(text)
    of_others = any(library in text for library in ("import numba", "from numba", "llvmlite"))
    modules = {}  # private modules, by the names of variables
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in ("numba", "llvmlite"):
                for alias in node.names:
                    if is_private_module(f"{module}.{alias.name}") and is_private_module(module):
                        yield f"{module}.{alias.name}"
                        modules[alias.asname or alias.name] = f"{module}.{alias.name}"
            case ast.Import():
                yield from (alias.name for alias in node.names if is_private_module(alias.name))
            case (
                ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call(args=[ast.Constant(str(module))]))
                | ast.AnnAssign(target=ast.Name(id=variable), value=ast.Call(args=[ast.Constant(str(module))]))
            ) if is_private_module(module):
                modules[variable] = module
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=variable), attr=name) if variable in modules:
                yield f"{modules[variable]}.{name}"
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id=variable), ast.Constant(str(name)), *_]):
                if variable in modules:
                    yield f"{modules[variable]}.{name}"
            case ast.Attribute(value=ast.Attribute(attr="values"), attr=name) if of_others:
                yield f"llvmlite.ir.values.{name}"
            case ast.Attribute(attr="globals"):
                yield "llvmlite.ir.Module.globals"
            case ast.Attribute(value=ast.Call(func=ast.Call(func=ast.Attribute(attr="make_array"))), attr=name):
                yield f"BaseContext.make_array().{name}"
            case ast.Attribute(attr="make_array"):
                yield "numba.core.base.BaseContext.make_array"
            case ast.Attribute(value=ast.Name(id="functools" | "dis" | "sys" | "inspect"), attr=name):
                if re.match("_[^_]", name) or name in ("opmap", "opname"):
                    yield name
            case ast.Attribute(attr="co_code"):
                yield "CodeType.co_code"
            case ast.Attribute(value=of, attr=name, ctx=ast.Store()) if (
                of_others and name not in SET_OF_LLVMLITE | SET_OF_OURS
            ):
                words = ast.unparse(of).split(".")
                if words[0] == "binding":
                    yield ".".join(["llvmlite", *words, name])
                elif words[0] not in ("self", "cls"):
                    yield f"llvmlite.ir.Function.{name}"
            case ast.Call(func=ast.Name(id="_llvm_call"), args=[ast.Constant(str(name))]):
                yield f"llvm.{name}"
            case ast.Constant(str(name)) if re.fullmatch(r"_NRT_\w+|_?PyT\w+_\w+", name):
                if name != "PyTime_PerfCounterRaw":  # public
                    yield name
            case ast.Constant(str(name)) if re.fullmatch(r"llvm\.\w[\w.]*", name):
                yield re.sub(r"\.v?$", "", name)


def rows_of(file):
    return [row for row in requirements.PRIVATE if any(map(file.startswith, row.used_by.split(", ")))]


def words_of(name):
    """Return a name of requirements.py without its explanation."""
    return name.split(" ")[0].replace(":", ".")


def test_everything_that_is_used_is_named():
    missed = []
    for file, text in sources():
        known = [f"{words_of(name)}." for row in rows_of(file) for name in row.names]
        missed += [(file, used) for used in private_names(text) if not any(k.startswith(f"{used}.") for k in known)]
    assert missed == []


def test_settings_are_named():
    """They are read by names in a tuple."""
    names = [words_of(name) for row in requirements.PRIVATE for name in row.names]
    assert [name for name in SETTINGS if f"numba.core.config.{name}" not in names] == []


def test_everything_that_is_named_is_used():
    unused = []
    for row in requirements.PRIVATE:
        for place in row.used_by.split(", "):
            texts = [text for file, text in sources() if file.startswith(place)]
            assert texts or (place == "hatch_build.py" and not PROJECT.exists()), place
        covered = "\n".join(text for file, text in sources() if row in rows_of(file))
        for name in row.names:
            word = words_of(name)
            word = word.removeprefix("llvm.") if row.owner == "llvm" else word.rpartition(".")[2]
            if covered and not re.search(rf"\b{re.escape(word)}\b", covered):
                unused.append(name)
    assert unused == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from numba.core import config\nconfig.OPT.is_new", ["numba.core.config", "numba.core.config.OPT"]),
        ('c: Any = sys.modules.get("numba.core.config")\nc.OPT', ["numba.core.config.OPT"]),
        ('c = sys.modules.get("numba.np.x")\ngetattr(c, "_y", 1)', ["numba.np.x._y"]),
        ("import numba.core.base", ["numba.core.base"]),
        ("from llvmlite import binding\nbinding.Target.f = g", ["llvmlite.binding.Target.f"]),
        ("from llvmlite import ir\nfunction.ftype = kind", ["llvmlite.ir.Function.ftype"]),
        ("functools._lru_cache_wrapper", ["_lru_cache_wrapper"]),
        ("dis.opmap", ["opmap"]),
        ('f"llvm.ctpop.v{n}i8"', ["llvm.ctpop"]),
        ('f("PyThread_new")', ["PyThread_new"]),
        ("from numba import types\nfrom llvmlite import ir\nir.Function", []),
    ],
)
def test_uses_are_seen(source, names):
    assert [*private_names(source)] == names


@pytest.mark.parametrize("owner", ["numpy", "numba", "llvmlite"])
def test_installed_versions_are_those_that_were_checked(owner):
    assert requirements.is_checked(owner, importlib.metadata.version(owner))


def test_bounds_of_the_package_are_what_was_checked():
    if not PROJECT.exists():
        pytest.skip("the package is installed")
    project = tomllib.loads(PROJECT.read_text())["project"]
    versions = requirements.VERSIONS
    assert f"numpy>={versions['numpy'].lowest},<{versions['numpy'].below}" in project["dependencies"]
    assert f"numba>={versions['numba'].lowest}" in project["dependencies"]
    assert project["requires-python"] == f">={versions['python'].lowest}"
