"""Docstrings: their examples run and print what they say, and names in backticks are those of the code."""

import ast
import doctest
import importlib
import inspect
import re
import tokenize
from pathlib import Path

import pytest

import fastq

ROOT = Path(fastq.__file__).parent
MODULES = sorted(
    ".".join(["fastq", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
NEEDED = {"plot": "matplotlib", "dask": "dask", "xarray": "xarray", "zarr": "zarr"}  # by adapters and tools


@pytest.mark.slow("compiles 35 kernels", quick=lambda name: name != "fastq.ops.warmup")
@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name):
    for library in {NEEDED[part] for part in name.split(".") if part in NEEDED}:
        pytest.importorskip(library, reason=f"no {library}")
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert (failed, tried > 0) == (0, True)


def test_every_public_function_has_an_example():
    functions = [getattr(fastq, name) for name in fastq.__all__ if inspect.isfunction(getattr(fastq, name))]
    functions = [f for f in functions if not f.__name__.startswith("get_")]  # their examples are those of set_
    functions += [
        fastq.gguf.quantize,
        fastq.gguf.dequantize,
        *(getattr(fastq.plot, name) for name in fastq.plot.__all__),
    ]
    functions += [fastq.testing.assert_same_codes]
    assert [f.__qualname__ for f in functions if ">>>" not in (f.__doc__ or "")] == []


# --- names ------------------------------------------------------------------------------------------------------------

NAME = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`(?!`)")
# names of other libraries, of CPython's C code, of tensors and of fields in files, and of a formula that is shown
OF_OTHERS = {
    *("numpy.ndarray.resize", "np.seterr", "fastmath", "mlx.core.quantize"),
    *("nvfp4_quantize", "per_tensor_amax_to_scale"),
    *("PyObject.ob_type", "PyFloatObject.ob_fval", "PyFloatScalarObject.obval", "PyArrayObject_fields.data"),
    *("logit_scale", "general.file_type", "decided"),
}


def names_in(tree):
    """Return the names that code has: of functions, classes, variables, attributes, arguments, imports; and strings."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                names.add(name)
            case ast.keyword(arg=str(name)):
                names.add(name)
            case ast.alias(name=name, asname=other):
                names |= {*name.split("."), other}
            case ast.Constant(value=str(text)) if text.isidentifier():
                names.add(text)
    return names


def named_in_texts(path, tree):
    """Yield the names in backticks of a file's docstrings and comments, each with its line or its owner."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            for name in NAME.findall(ast.get_docstring(node) or ""):
                yield getattr(node, "name", "the module"), name
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                for name in NAME.findall(token.string):
                    yield f"line {token.start[0]}", name


def stale_names(root):
    """List the names in texts of a package that its code does not have: most were renamed there."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.py"))}
    known = set().union(*map(names_in, trees.values()), *(path.with_suffix("").parts for path in trees))
    return [
        f"{path.relative_to(root)}, {owner}: {name}"
        for path, tree in trees.items()
        for owner, name in named_in_texts(path, tree)
        if name not in OF_OTHERS and not set(name.split(".")) <= known
    ]


def test_names_in_texts_are_in_the_code():
    assert stale_names(ROOT) == []


def test_a_stale_name_is_found(tmp_path):
    code = '"""See `f` and `g`."""\n\n\ndef f(x):\n    """Double `x`."""\n    return 2 * x  # as `h.x` does\n'
    (tmp_path / "m.py").write_text(code)
    assert stale_names(tmp_path) == ["m.py, the module: g", "m.py, line 6: h.x"]
