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
    r"so many": "the number, or a noun for it",
    r"(?<!side by )beside": "next to, compared with, except",
    r"(?:come|comes|came|coming) of": "come from",
    r"(?:is|are|was|were|be) none": "is not one, there is no",
    r"(?:has|have|had) none": "has no, lacks",
    r"(?<!there )(?<!There )(?:is|are|was|were) no (?!longer|more|less|larger|worse|further|way)": "is not a",
    r"(?:one|codes?|scales?|bits?|bytes?|seconds?|lanes?|numbers?) (?:a|an) (?:row|column|element|weight|chunk|block|"
    r"channel|case|tensor|value|thread|call|bin|file|vector|array|group|side|byte|bit|machine|kernel)": "one per row",
    r"what (?:it|they) (?:has|have)": "the noun that is meant",
    r"what (?:there (?:is|are)|(?:is|was) there)": "the noun that is meant",
    r"of which there": "with",
    r"what else": "the others, the rest",
    r"(?:of|with|by|from|for|to) what": "the noun that is meant",
    r"what [^.;:,]{1,40} (?:make|makes|made) of": "the result of, from",
    r"(?<!data has shape {}, )(?<!shape {}, )but for": "except for",
    r"(?:all|each|those|anything|everything|nothing|operands) but that": "except that",
    r"in (?:its|their) turn": "too, again",
    r"as [^.;:,]{1,40} has it": "as in, as ... requires",
    r"(?:takes?|taken|took) (?:NaN |it |them |these |this |that |0 )for(?= 0| zero| NaN| an?)": "treat as",
    r"goes? (?:with|without) --": "can be combined with, needs",
    r"anew": "again",
    r"\nOf [a-z`0-9]": "a sentence with the noun of the parameter",
}


def prose(path: Path) -> list[tuple[int, str]]:
    """Return the texts of a file with the lines where they start: of Python its comments and strings."""
    source = path.read_text(encoding="utf-8")
    texts = [(1, source)] if path.suffix == ".md" else [*comments(source), *strings(ast.parse(source))]
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
