"""What the pages name is there: files, what is defined in them, links, commands; and their code is run somewhere."""

import importlib.util
import re
import shlex
import struct
import tomllib
from pathlib import Path

import click
import figures
import pytest

from fastq.tools.cli.app import cli as command

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:fastq|bench|tests|docs)/[\w/.*]+)`", CONTRIBUTING))))
def test_paths_are_there(path):
    assert list(ROOT.glob(path)), path


WHERE = [row.split("|")[2:4] for row in CONTRIBUTING.splitlines() if row.startswith("| Where ")]


@pytest.mark.parametrize(("files", "names"), WHERE, ids=[re.findall(r"`(.*?)`", row[0])[0] for row in WHERE])
def test_names_are_defined_where_the_table_says(files, names):
    sources = "\n".join((ROOT / path).read_text() for path in re.findall(r"`([\w/]+\.py)`", files))
    for name in re.findall(r"`(\w+)`", names.replace("`rounding`", "")):
        assert re.search(rf"^(def|class) {name}\b|^{name}\b.*=", sources, re.MULTILINE), name


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_merge_was_left_unfinished(page):
    assert re.findall(r"^(?:<{7}|={7}|>{7})(?: .*)?$", page.read_text(encoding="utf-8"), re.MULTILINE) == []


@pytest.mark.parametrize("folder", ["docs", "bench/results"])
def test_no_file_is_large(folder):
    assert {path.name for path in (ROOT / folder).rglob("*") if path.stat().st_size > 100_000} == set()


def test_tables_of_long_runs_are_those_of_what_is_stored():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert figures.page(page) == page, "run python -m tests.campaigns.figures"
    assert set(re.findall(r"begin: (\S+)", page)) == set(figures.stored())


def test_tests_that_the_page_on_reliability_names_are_there():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page)
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


# Code of pages: cells are run when the site is built, examples by doctest

FENCE = re.compile(r"^ *```(\S*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
EXAMPLES = {  # by which test
    "README.md": "test_doctests.py",
    "docs/index.md": "test_doctests.py",
    "docs/start/tutorial.md": "test_doctests.py",
    "docs/howto/calibration.md": "test_doctests.py",
    "docs/howto/compiled.md": "test_doctests.py",
    "docs/howto/embeddings.md": "test_doctests.py",
    "docs/howto/images.md": "test_doctests.py",
    "docs/howto/sound.md": "test_doctests.py",
    "docs/howto/requantize.md": "test_doctests.py",
    "docs/reference/engine.md": "test_doctests.py",
    "docs/howto/frameworks.md": "test_frameworks_page.py",
}
NAMES = [str(page.relative_to(ROOT)) for page in PAGES if "api" not in page.parts]


@pytest.mark.parametrize("name", NAMES)
def test_all_code_is_run(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    kinds = {kind for kind, _ in FENCE.findall(text)}
    assert "python" not in kinds or Path(name).name in Path(__file__).with_name(EXAMPLES[name]).read_text("utf-8")
    assert [code for kind, code in FENCE.findall(text) if kind == "python" and ">>> " not in code] == []
    assert ("{code-cell}" in kinds) == text.startswith("---\nfile_format: mystnb\n")


def commands(text):
    """Commands of fastq in blocks for a shell and in cells that begin with %%sh, without comments."""
    for kind, code in FENCE.findall(text):
        if kind in ("sh", "{code-cell}"):
            for line in code.splitlines():
                words = shlex.split(line, comments=True) if re.match(r"(pip install .* && )?fastq ", line) else []
                yield from [words[words.index("fastq") + 1 :]] if words else []


COMMANDS = {" ".join(words): words for name in NAMES for words in commands((ROOT / name).read_text(encoding="utf-8"))}


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_have_these_arguments(line, tmp_path, monkeypatch):
    name, *arguments = COMMANDS[line]
    monkeypatch.chdir(tmp_path)
    for word in arguments:
        if word.endswith(".zarr"):
            (tmp_path / word).mkdir()
            (tmp_path / word / "zarr.json").touch()
        elif re.fullmatch(r"\w[\w-]*\.[a-z]+", word):
            (tmp_path / word).touch()
        elif re.fullmatch(r"\w[\w/-]*", word):
            (tmp_path / word).mkdir(parents=True, exist_ok=True)
    with (
        click.Context(command) as context,
        command.commands[name].make_context(name, arguments, parent=context) as made,
    ):
        assert made.args == []


def test_links_of_the_readme_lead_into_the_repository_elsewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    for rule in hook["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)]+)\)|src(?:set)?=\"([^\"]+)\"", text)
    assert [link for pair in targets for link in pair if link and not link.startswith("https://")] == []


def program_of_docs(name):
    """Import a program of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def test_the_pictures_of_the_readme_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="no matplotlib, which draws them")
    pictures = program_of_docs("pictures")
    names = {path.name for path in pictures.draw(tmp_path) if path.stat().st_size < 100_000}
    shown = set(re.findall(r'docs/_static/([\w.-]+)"', (ROOT / "README.md").read_text(encoding="utf-8")))
    assert shown == names == {path.name for path in pictures.FOLDER.glob("*.png")}


def test_the_pictures_of_the_design_are_those_of_their_boxes():
    drawings = program_of_docs("drawings")
    for name, text in drawings.drawings().items():
        assert (drawings.FOLDER / name).read_text(encoding="utf-8") == text, "run python docs/drawings.py"
        assert 'class="drawing"' in text
    for left, _, width, name, _, _ in drawings.ROOMS + drawings.STEPS:
        assert 0 <= left <= left + width <= drawings.WIDTH, name
    rooms = {room for *_, name, _, _ in drawings.ROOMS for room in name.split(", ")}
    assert rooms == {path.parent.name for path in (ROOT / "fastq").glob("*/__init__.py")} - {"_bench"}


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.png")), ids=lambda path: path.name)
def test_pictures_are_no_wider_than_a_page(path):
    width, _ = struct.unpack(">II", path.read_bytes()[16:24])
    assert width <= 820, "wider ones are made smaller, and their text with them"


def test_pictures_of_cells_have_text_of_nine_pixels():
    pytest.importorskip("matplotlib", reason="no matplotlib, which draws them")
    pictures = ROOT / "docs" / "_ipython" / "profile_default" / "startup" / "pictures.py"
    source = pictures.read_text(encoding="utf-8").split("\nos.environ.pop")[0]
    made = {}
    exec(compile(source, pictures.name, "exec"), made)
    from matplotlib.figure import Figure

    for inches in (4, 8, 12):
        figure = Figure(figsize=(inches, 3))
        figure.subplots().set_title("title", fontsize="small")
        text = made["_svg"](figure)
        width, least = map(float, re.search(r'style="width: ([\d.]+)pt; min-width: (\d+)px"', text).groups())
        assert 8.33 * least / width >= 8.95
