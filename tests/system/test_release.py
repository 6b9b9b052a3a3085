"""What a release needs next to the code: a conda-forge recipe, pages of all versions, a name that two projects have."""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def spaced(requirement):
    """A requirement of pip as one of conda: "numpy >=2.0,<2.6"."""
    return re.sub(r"(?<=\w)(?=[<>=])", " ", requirement, count=1)


def test_the_recipe_has_the_version_and_the_requirements_of_the_project():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    listed = set(re.findall(r"^ +- (.+)$", recipe.partition("  run:\n")[2].partition("\ntests:")[0], re.MULTILINE))
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cli"]]
    assert listed == {f"python {PROJECT['requires-python']}", *map(spaced, wanted)}
    assert f'version: "{PROJECT["version"]}"' in recipe
    assert f"version: {PROJECT['version']}" in (ROOT / "CITATION.cff").read_text()
    for name, entry in PROJECT["scripts"].items():
        assert f"- {name} = {entry}\n" in recipe


def test_versions_of_the_pages_stand_next_to_each_other(tmp_path):
    pages, site = tmp_path / "pages", tmp_path / "site"
    published = runpy.run_path(str(ROOT / "docs" / "versions.py"))["published"]
    for folder in (pages, site):
        folder.mkdir()
    for version, newest in [("main", "main"), ("v0.9.0", "v0.9.0"), ("v0.10.0", "v0.10.0"), ("main", "v0.10.0")]:
        (site / "index.html").write_text(version)
        published(pages, site, version, "https://pages.test/fastq/")
        assert f"url={newest}/" in (pages / "index.html").read_text()
    menu = json.loads((pages / "versions.json").read_text())
    assert [each["version"] for each in menu] == ["v0.10.0", "v0.9.0", "main"]
    assert menu[0]["url"] == "https://pages.test/fastq/v0.10.0/"
    assert (pages / "v0.9.0" / "index.html").read_text() == "v0.9.0"


def python(code, path):
    environment = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True)


def test_files_of_the_other_fastq_are_noticed_at_import(tmp_path):
    (tmp_path / "fastq").mkdir()
    for entry in (ROOT / "fastq").iterdir():
        (tmp_path / "fastq" / entry.name).symlink_to(entry)
    assert python("import fastq", tmp_path).stderr == ""
    (tmp_path / "fastq" / "_fastq.py").touch()
    told = python("import fastq", tmp_path).stderr
    assert "UserWarning: the files of another project lie in the folder of fastq-kernels: PyPI's fastq, which" in told


@pytest.mark.parametrize("arguments", [[], ["--help"], ["info"]])
def test_the_command_says_that_the_other_fastq_is_in_its_place(tmp_path, arguments):
    (tmp_path / "fastq").mkdir()
    (tmp_path / "fastq" / "__init__.py").touch()
    (tmp_path / "fastq" / "tools").symlink_to(ROOT / "fastq" / "tools")
    code = f"import sys, fastq.tools.cli.command; sys.argv[1:] = {arguments}; fastq.tools.cli.command.main()"
    done = python(code, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("fastq: PyPI's fastq, which reads FASTQ sequences, is installed in the place of ")
