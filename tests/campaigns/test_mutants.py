"""The oracles can fail: each refuses the wrong kernels and rules that wrong.toml has for it."""

import ast
import builtins
import importlib
import inspect
import os
import subprocess
import symtable
import sys
import tomllib
from pathlib import Path

import pytest
from edited import copy_of_package, edit, environment_of

import fastq

PACKAGE, HERE = Path(fastq.__file__).parent, Path(__file__).parent
WRONG = tomllib.loads((HERE / "wrong.toml").read_text())
# of many slow cases, two that take no kernels
QUICK = "sums in pairs", "the far one of a tie"


def run_oracle(package, oracle, arguments):
    """Run an oracle on a copy of the package, with the cache of all tests: what an edit does not change is in there."""
    command = [sys.executable, HERE / "oracles.py", package, oracle, *arguments]
    done = subprocess.run(
        command, cwd=package, env=environment_of(package), capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.slow("compiles 30 kernels each", quick=lambda oracle: oracle == "errors")
@pytest.mark.parametrize("oracle", WRONG)
def test_an_oracle_accepts_what_is_right(oracle, tmp_path):
    arguments = {argument for row in WRONG[oracle].values() for argument in row[0]}
    code, errors = run_oracle(copy_of_package(tmp_path), oracle, sorted(arguments))
    assert code == 0, errors


@pytest.mark.slow("compiles again what the edit changes", quick=lambda oracle, name: name in QUICK)
@pytest.mark.parametrize(("oracle", "name"), [(oracle, name) for oracle, rows in WRONG.items() for name in rows])
def test_an_oracle_refuses_what_is_wrong(oracle, name, tmp_path):
    (arguments, *changes), package = WRONG[oracle][name], copy_of_package(tmp_path)
    for file, right, wrong in changes:
        edit(package / "fastq" / file, right, wrong)
    code, errors = run_oracle(package, oracle, arguments)
    assert code == 1, errors
    assert "AssertionError: different" in errors


def test_what_is_changed_is_in_the_package():
    """Of slow tests CI takes a part: what a change left of these would be seen late."""
    changes = [change for rows in WRONG.values() for row in rows.values() for change in row[1:]]
    assert len(changes) > 80
    assert [change for change in changes if change[1] not in (PACKAGE / change[0]).read_text()] == []


def undefined(source, imported):
    """Return the names that code reads and neither its module nor Python defines, and those that modules lack."""
    module = symtable.symtable(source, "", "exec")
    tables = [module]
    for table in tables:
        tables += table.get_children()
    read = {each.get_name() for table in tables for each in table.get_symbols() if each.is_global()}
    attributes = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Attribute)]
    owners = [(each, imported.get(getattr(each.value, "id", None))) for each in attributes]
    lacking = {ast.unparse(each) for each, of in owners if inspect.ismodule(of) and not hasattr(of, each.attr)}
    return lacking | read - {*module.get_identifiers(), *dir(builtins), "__file__"}


@pytest.mark.parametrize(("oracle", "name"), [(oracle, name) for oracle, rows in WRONG.items() for name in rows])
def test_what_is_wrong_can_be_run(oracle, name):
    """An oracle that fails by a name that is not defined says nothing of its kernels."""
    sources = {}
    for file, right, wrong in WRONG[oracle][name][1:]:
        sources[file] = sources.get(file, (PACKAGE / file).read_text()).replace(right, wrong)
    for file, source in sources.items():
        module = importlib.import_module(
            f"fastq.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        )
        assert undefined(source, vars(module)) == set(), file


def test_a_name_that_is_not_defined_is_found():
    source = "import os\n\ndef f(x):\n    y = len(x)\n    return os.sep, os.LINE, y\n    return LINE\n"
    assert undefined(source, {"os": os}) == {"LINE", "os.LINE"}
