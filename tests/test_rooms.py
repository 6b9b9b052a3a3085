"""The order of the packages: imports point down, and no modules import each other in a circle.

All files are read, not imported, so that imports inside functions, for type checkers and by name count as well: a name
of a module in a string is what `fastq.system.imports` imports.
"""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import fastq

ROOT = Path(fastq.__file__).parent
BENCH_ROOT = Path(__file__).parents[1] / "bench"

# What each package, or file in the root, may import besides itself; the lower ones are below. There are three wings:
# the tools and the adapters are above the core, whose first room is `ops`, and the core imports neither of them.
MAY_IMPORT = {
    "__main__": "tools.cli",
    "tools.cli": "fastq config tools.tensors tools.checkpoints tools.gguf_files tools.files tools.layouts tools.plot"
    " ops reference results formats engine system",
    "io": "tools.tensors tools.gguf_files",
    "tools.tensors": "fastq tools.checkpoints tools.gguf_files tools.files tools.layouts ops results formats system",
    "tools.checkpoints": "fastq tools.gguf_files tools.files tools.layouts ops results formats system",
    "tools.gguf_files": "fastq gguf tools.files ops requests formats system",
    "tools.files": "fastq tools.layouts ops results formats system",
    "fastq": "config dask xarray zarr gguf layouts plot testing adapters.dask adapters.xarray ops plan"
    " kernels reference results formats system",
    "testing": "results formats system",
    "layouts": "tools.layouts",
    "plot": "tools.plot",
    "tools.layouts": "ops requests results formats system",
    "tools.plot": "adapters.xarray ops reference requests results formats system",
    "tools": "",
    "dask": "adapters.dask",
    "xarray": "adapters.xarray",
    "zarr": "adapters.zarr",
    "adapters.dask": "ops plan requests results formats system",
    "adapters.xarray": "ops plan requests results formats system",
    "adapters.zarr": "ops kernels system",
    "adapters": "",
    "gguf": "ops",
    "config": "engine system",
    "ops": "plan kernels engine requests results formats system",
    "plan": "kernels engine requests results formats system",
    "kernels": "engine formats system",
    "engine": "",
    "engine.runtime": "engine.simd engine.jit engine.code system",
    "engine.simd": "engine.jit system",
    "engine.jit": "engine.code system",
    "engine.code": "system",
    "reference": "requests results formats system",
    "requests": "results formats system",
    "results": "formats system",
    "formats": "system",
    "system": "",
}
# arrows that point up, each with its reason
EXCEPTIONS = {
    ("fastq", "fastq.tools.tensors.load"): "`fastq.load` is a tool, imported when it is first used",
    ("fastq.results.late", "fastq.ops"): "methods of results are public functions, imported when first called",
}


def modules(root):
    """Map the name of each module below a package's folder to its file."""
    named = {}
    for path in sorted(set(root.rglob("*.py")) - set(root.glob("_bench/**/*.py"))):  # which an installed package has
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imports(name, source, known, is_package=False):
    """Modules among `known` that a module's source names: in import statements anywhere, and in strings."""
    found = set()
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            members = {f"{base}.{each.name}" for each in node.names}
            found |= (members & known) | ({base} if members - known else set())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            found.add(node.value)
    return (found & known) - {name}


def room(module):
    """Package that a module is in: the innermost that the table names, else the outermost."""
    name = module.removeprefix("fastq.")
    around = [name.rsplit(".", n)[0] for n in range(name.count(".") + 1)]
    return next((each for each in around if each in MAY_IMPORT), around[-1])


def excepted(source, target):
    return any(source == s and f"{target}.".startswith(f"{t}.") for s, t in EXCEPTIONS)


def graph(root=ROOT):
    """Map each module to those that it imports."""
    named = modules(root)
    return {
        name: imports(name, path.read_text(), named.keys(), path.name == "__init__.py") for name, path in named.items()
    }


def forbidden(arrows):
    """List the imports that the table does not allow."""
    return [
        f"{source} imports {target}"
        for source, targets in sorted(arrows.items())
        for target in sorted(targets)
        if room(source) != room(target)
        and not {room(target), room(target).partition(".")[0]} & set(MAY_IMPORT.get(room(source), "").split())
        and not excepted(source, target)
    ]


def circle(arrows):
    """Return modules that import each other in turn, or nothing."""
    done = set()

    def search(module, path):
        if module in path:
            return [*path[path.index(module) :], module]
        if module not in done:
            for target in sorted(arrows.get(module, ())):
                if not excepted(module, target) and (found := search(target, [*path, module])):
                    return found
        done.add(module)
        return []

    return next(filter(None, (search(module, []) for module in sorted(arrows))), [])


def test_imports_point_down():
    assert "\n".join(forbidden(graph())) == ""


@pytest.mark.parametrize("root", [ROOT, BENCH_ROOT], ids=lambda path: path.name)
def test_no_circle_of_modules(root):
    assert " -> ".join(circle(graph(root))) == ""


def test_the_wheel_has_what_its_part_of_the_benchmark_imports():
    project = tomllib.loads((BENCH_ROOT.parent / "pyproject.toml").read_text("utf-8"))
    listed = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"])
    named = modules(BENCH_ROOT)
    there = {name for name, path in named.items() if path.relative_to(BENCH_ROOT.parent).as_posix() in listed}
    assert len(there) == len([name for name in listed if name.startswith("bench/")])
    arrows = graph(BENCH_ROOT)
    assert {f"{name} -> {each}" for name in there for each in arrows[name] - there} == set()


def test_every_package_is_in_the_table_and_the_table_points_down():
    assert {room(module) for module in modules(ROOT)} <= set(MAY_IMPORT)
    order = list(MAY_IMPORT)
    for upper, lower in MAY_IMPORT.items():
        assert [name for name in lower.split() if order.index(name) <= order.index(upper)] == []


def test_the_core_imports_neither_adapters_nor_tools():
    core = {"ops", "plan", "reference", "requests", "results", "kernels", "engine", "formats", "system"}
    above = [
        f"{source} imports {target}"
        for source, targets in graph().items()
        for target in targets
        if room(source).partition(".")[0] in core and room(target).partition(".")[0] not in core
    ]
    assert above == []


def test_every_exception_is_needed():
    arrows = graph()
    for source, target in EXCEPTIONS:
        assert any(f"{each}.".startswith(f"{target}.") for each in arrows[source]), (source, target)


# --- the checks can fail ----------------------------------------------------------------------------------------------

KNOWN = {
    "fastq",
    "fastq.engine.jit",
    "fastq.engine.jit.cache",
    "fastq.kernels",
    "fastq.kernels.rule",
    "fastq.ops.ops",
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import fastq.engine.jit.cache as cache", "fastq.engine.jit.cache"),
        ("from fastq.engine.jit import cache", "fastq.engine.jit.cache"),
        ("from fastq.engine.jit import OPTIONS", "fastq.engine.jit"),
        ("from fastq.engine.jit.cache import File", "fastq.engine.jit.cache"),
        ("from .rule import Rule", "fastq.kernels.rule"),
        ("from . import rule", "fastq.kernels.rule"),
        ("from ..engine.jit import cache", "fastq.engine.jit.cache"),
        ("import fastq", "fastq"),
        ("def f():\n    import fastq.engine.jit", "fastq.engine.jit"),
        ("if TYPE_CHECKING:\n    from fastq.engine.jit import cache", "fastq.engine.jit.cache"),
        ("run = partial(imports.module, 'fastq.ops.ops')", "fastq.ops.ops"),
        ("import numpy.fastq", None),
        ("x = 'fastq.engine.jit is imported here'", None),
    ],
)
def test_every_way_to_import_is_seen(source, expected):
    assert imports("fastq.kernels.formulas", source, KNOWN) == ({expected} - {None})


def test_an_import_that_points_up_is_refused():
    assert forbidden(
        {"fastq.engine.jit.cache": {"fastq.kernels.rule"}, "fastq.kernels.rule": {"fastq.engine.jit.cache"}}
    ) == ["fastq.engine.jit.cache imports fastq.kernels.rule"]
    assert forbidden({"fastq.somewhere": {"fastq.engine.jit"}}) == ["fastq.somewhere imports fastq.engine.jit"]


def test_a_circle_is_found():
    arrows = {"fastq.a": {"fastq.b"}, "fastq.b": {"fastq.c", "fastq.d"}, "fastq.c": set(), "fastq.d": {"fastq.b"}}
    assert circle(arrows) == ["fastq.b", "fastq.d", "fastq.b"]
    assert circle(arrows | {"fastq.d": {"fastq.c"}}) == []


def test_the_guide_has_all_rooms():
    guide = (Path(__file__).parents[1] / "docs" / "contributing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`fastq/[^|]*) \|", guide, re.MULTILINE)
    files = {name for row in rows for name in re.findall(r"`fastq/([\w/]+?)(?:/|\.py)`", row)}
    assert files == {name.replace(".", "/").replace("fastq", "__init__") for name in MAY_IMPORT}


OF_NO_ROOM = {"bench", "campaigns", "conformance", "docs", "platforms", "support"}


def test_tests_have_the_rooms_of_the_package():
    """The tests of fastq/ROOM/ are in tests/ROOM/, those of fastq/NAME.py in tests/test_NAME.py."""
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        *rooms, _ = path.relative_to(tests).parts
        if rooms and rooms[0] not in OF_NO_ROOM:
            assert (ROOT / Path(*rooms)).is_dir(), path
    known = {f"test_{path.stem}" for path in ROOT.glob("*.py")} | {"test_rooms", "test_docstrings"}
    assert {path.stem for path in tests.glob("test_*.py")} <= known


def test_every_folder_of_tests_is_run():
    """Those of the library by the README's command, the others by a line of their own in .ci/run."""
    root = BENCH_ROOT.parent
    paths = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]["testpaths"]
    for line in (root / ".ci" / "run").read_text("utf-8").splitlines():
        words = line.split()
        paths += [word for word in words if word.startswith("tests/")] if "pytest" in words else []
    folders = {path.relative_to(root).parts[:2] for path in (root / "tests").rglob("test_*.py")}
    assert {"/".join(folder) for folder in folders} - {*paths} == set()
