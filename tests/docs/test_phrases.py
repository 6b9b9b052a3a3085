"""The words of docstrings, comments, messages, help and pages: no phrase that has to be read twice."""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bench.checkout import main
from fastq.cli.app import cli

ROOT = Path(__file__).parents[2]
PACKAGES = ("fastq", "bench", "tests", "docs")
PATHS = [*ROOT.glob("*.md"), *(path for name in PACKAGES for path in (ROOT / name).rglob("*"))]
FILES = sorted(path for path in PATHS if path.suffix in (".py", ".md") and path.resolve() != Path(__file__).resolve())

# regular expressions of phrases, of which a space is found as the end of a line too, and what to write instead
PHRASES = {
    r"so many": "the number, or a noun for it",
    r"(?<!side by )beside": "next to, compared with, except",
    r"(?:come|comes|came|coming) of": "come from",
    r"(?:is|are|was|were|be) none": "is not one, there is no",
    r"(?<!there )(?<!There )(?:is|are|was|were) no (?!longer|more|less|larger|worse|further|way)": "is not a",
    r"(?:one|codes?|scales?|bits?|bytes?|seconds?|lanes?|numbers?) (?:a|an) (?:row|column|element|weight|chunk|block|"
    r"channel|case|tensor|value|thread|call|bin|file|vector|array|group|side|byte|bit|machine|kernel)": "one per row",
    r"what (?:it|they) (?:has|have)": "the noun that is meant",
    r"what (?:there (?:is|are)|(?:is|was) there)": "the noun that is meant",
    r"of which there": "with",
    r"what else": "the others, the rest",
    r"(?:of|with|by|from|for|to) what": "the noun that is meant",
    r"what [^.;:,]{1,40} (?:make|makes|made) of": "the result of, from",
    r"but for": "except for",
    r"(?:all|each|those|anything|everything|nothing|operands) but that": "except that",
    r"in (?:its|their) turn": "too, again",
    r"as [^.;:,]{1,40} has it": "as in, as ... requires",
    r"(?:takes?|taken|took) (?:NaN |it |them |these |this |that |0 )for(?= 0| zero| NaN| an?)": "treat as",
    r"goes? (?:with|without) --": "can be combined with, needs",
    r"anew": "again",
    r"\nOf (?=[a-z`0-9])": "a sentence with the noun of the parameter",
}
# places of these phrases that read well: the file, the text around the phrase, and why
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("docs/start/tutorial.md", "That is exact, but for an array of zeros"): "but, and then for",
    ("fastq/dispatch/gguf.py", "but for qtype"): "but, and then for",
    ("fastq/requests/importance.py", "but for x of shape"): "but, and then for",
    ("fastq/system/arguments.py", "but for data of shape"): "but, and then for",
    ("tests/kernels/body/test_range_search.py", "but for x of shape"): "but, and then for",
    ("bench/startup.py", "for what, call in CALLS.items()"): "a loop in a program",
}
assert len(EXCEPTIONS) <= 20


@functools.cache
def texts(path: Path) -> list[tuple[int, str]]:
    """Return the texts of a file with the lines where they start: of a module its comments and strings."""
    source = path.read_text(encoding="utf-8")
    found = [(1, source)] if path.suffix == ".md" else [*comments(source), *strings(ast.parse(source))]
    return [(line, re.sub(r"[ \t]*\n[ \t]*", "\n", text)) for line, text in found]


def comments(source: str) -> list[tuple[int, str]]:
    """Return the comments of a module; comments on consecutive lines are one text."""
    found: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("# ")
            if found and found[-1][0] + found[-1][1].count("\n") == line - 1:
                line, text = found[-1][0], f"{found.pop()[1]}\n{text}"
            found.append((line, text))
    return found


def strings(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the strings of a module; the values in an f-string are {}."""
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in formatted for part in node.values}
    plain = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in parts]
    return [(node.lineno, node.value) for node in plain if isinstance(node.value, str)] + [
        (node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values))
        for node in formatted
    ]


def found_in(path: Path, phrase: str) -> list[str]:
    """Return the places of a phrase in a file, with what is around them; exceptions are left out."""
    name, places = path.relative_to(ROOT).as_posix(), []
    allowed = [text for file, text in EXCEPTIONS if file == name]
    words = phrase if phrase.startswith(r"\n") else rf"\b(?:{phrase})\b".replace(" ", "[ \\n]")
    for line, text in texts(path):
        for match in re.finditer(words, text):
            around = text[max(0, match.start() - 40) : match.end() + 40].replace("\n", " ")
            if not any(each in around for each in allowed):
                places.append(f"{name}:{line + text.count(chr(10), 0, match.start() + 1)}: ...{around}...")
    return places


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_text_has_a_phrase_of_the_list(phrase):
    places = [place for path in FILES for place in found_in(path, phrase)]
    assert places == [], f"write {PHRASES[phrase]}"


def test_exceptions_are_in_their_files():
    for file, around in EXCEPTIONS:
        assert any(around in text.replace("\n", " ") for _, text in texts(ROOT / file)), (file, around)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('"""Return one scale\n    a row."""\n', 1),
        ("x = 1\n# Which of these is\n# none\n", 2),
        ('def f(x):\n    raise ValueError(f"x has {len(x)}, of which there"\n        " is one")\n', 2),
        ('def f(x):\n    """Do.\n\n    Parameters\n    ----------\n    x : int\n        Of the array.\n    """\n', 7),
    ],
)
def test_planted_phrases_are_found(content, line, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "planted.py"
    path.write_text(content, encoding="utf-8")
    (place,) = [place for phrase in PHRASES for place in found_in(path, phrase)]
    assert place.startswith(f"planted.py:{line}: ")


def options_of(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a command and of its subcommands with their help."""
    for option in command.params:
        if isinstance(option, click.Option):
            yield f"{name} {option.opts[-1]}", re.sub(r" +\[.*\]$", "", option.help or "")
    for sub in command.commands.values() if isinstance(command, click.Group) else ():
        yield from options_of(sub, f"{name} {sub.name}")


FRAGMENT = re.compile(r"(?:Of|Or|At|Who|What|How|Which|Where|Whether|As|Such|Along|Default)\b")


def test_help_of_options_reads_without_their_names():
    helps = [*options_of(cli, "fastq"), *options_of(main, "bench")]
    assert len(helps) > 80
    assert [one for one in helps if FRAGMENT.match(one[1]) or len(one[1].split()) < 2 or one[1][-1] != "."] == []
