"""The words of docstrings, comments, messages, help and pages: no phrase that has to be read twice."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest  # noqa

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(p for d in ("fastq", "tests", "bench", "docs") for p in (ROOT / d).rglob("*"))]
    if path.suffix in (".py", ".md") and path.resolve() != Path(__file__).resolve()
)

# What is found, case included but for the first letter, across line breaks; and what to write instead

PHRASES = {
    r"so many": "a number, or the noun that is counted",
    r"(?<!side by )beside": "next to, compared with, besides",
    r"(?:come|comes|came|coming) of": "come from",
    r"(?:is|are|was|were|be) none": "is not one, is None, there is no ...",
    r"(?:has|have|had) none": "has no ...",
    r"(?:is|are|there's) none such": "there is no ...",
    r"(?<!there )(?<!There )(?:is|are|was|were) no (?!longer|more|less|larger|better|way)": "is not a ...",
    r"(?:one|two|bits?|bytes?|codes?|scales?|points?|seconds?|numbers?|times?|parameters?|MB|KB|KiB|MiB|GB) an? "
    r"(?:row|column|element|weight|chunk|block|channel|case|tensor|value|thread|call|byte|bin|line|file|parameter|"
    r"vector|array|group|word|register|kernel|convention|code|side|machine)s?": "one per row, one for each row",
    r"what (?:it|they) (?:has|have)": "the noun that is meant",
    r"what (?:is|was) there": "the noun that is meant",
    r"what there is": "the noun that is meant",
    r"of which there": "two sentences",
    r"(?:of|from|by|with|in|for|to|beyond) what(?!ever| is| was|'s)": "the noun that is meant",
    r"what else": "everything else, the rest",
    r"but for": "except for",
    r"but that": "except that",
    r"all of what": "the noun that is meant",
    r"in (?:its|their) turn": "again",
    r"as [^.;:]{1,40} has it": "as ... requires, as ... does",
    r"(?:is|are) to be": "must be, is",
    r"taken? (?:NaN |it |them |0 |-0.0 )?for(?= 0| zero| NaN| an?)": "treat as",
    r"(?:make|makes|made|making) of": "make from, do with",
    r"goe?s? without": "cannot be combined with",
    r"goes with": "needs, belongs to",
    r"anew": "again",
    r"(?:is|are|was) told": "is reported",
    r"(?:is|are) said": "is reported, is printed",
    r"(?:of|where there (?:is|are)) such(?! as| an?)": "the noun that is meant",
    r"none of them is": "...",
    r"\nOf ": "a sentence with its noun",
}


def prose(path: Path) -> list[tuple[int, str]]:
    """Return the texts of a file with the lines where they start: of Python its comments and strings."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        texts = [(1, source)]
    else:
        texts = [*comments(source), *strings(ast.parse(source))]
    return [(line, re.sub(r"[ \t]*\n[ \t]*", "\n", text)) for line, text in texts]


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


def pattern(phrase: str) -> re.Pattern[str]:
    """Return the expression that finds a phrase, across line breaks too."""
    return re.compile(phrase if phrase.startswith("\\n") else rf"\b(?:{phrase})\b".replace(" ", "[ \\n]"))
