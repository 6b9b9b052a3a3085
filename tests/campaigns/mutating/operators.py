"""Changes of a source that a test has to notice: one operator, constant, condition, argument or statement each.

What is left out, since no test of results can notice it, or it is not code: docstrings, annotations, the texts of
messages, assertions, decorators, imports, `repr`, prefetching, stores past the cache or not, and what
`fastq.system.tuning` decides.
"""

import ast
import copy
import itertools
import operator
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_PAIRS = [
    ("min", "max"),
    ("minimum", "maximum"),
    ("reduce_min", "reduce_max"),
    ("any", "all"),
    ("lower", "upper"),
    ("even", "odd"),
    ("floor", "trunc"),
    ("sext", "zext"),
    ("smin", "smax"),
    ("umin", "umax"),
]
_OTHER_NAMES = dict(_PAIRS) | {b: a for a, b in _PAIRS}

_SPEED = {"prefetch", "prefetch_lanes", "prefetch_distance"}
_UNSEEN = _SPEED | {"prefetch_ahead", "tuned", "tuning", "TypeVar"}
_UNSEEN_FUNCTIONS = {"__repr__", "__str__", "_Short"}  # texts
_UNSEEN_FUNCTIONS |= _SPEED | {"outgrows_cache", "store_mode", "stores_past_cache"}
# arguments that can't be taken for others: code that has them swapped does not compile
_TYPED = {"spec", "operands", "args", "kind", "context", "builder", "where", "src", "dst", "units", "vec", "typingctx"}
_COMMUTATIVE = {"min", "max"}
# and calls of which that is true of the first arguments, however these are named
_OF_SORTS = {
    "advance",
    "bitcast",
    "bounded_to_integer",
    "cast_pointer",
    "constant",
    "convert",
    "full",
    "load",
    "look_up",
}
_OF_SORTS |= {"scratch", "select", "store"}
_COMPILED = ("fastq.kernels", "fastq.engine.simd", "fastq.engine.runtime")


@dataclass(frozen=True)
class Mutant:
    """A change of one source.

    Attributes
    ----------
    module, path : str, Path
        What is changed.
    index : int
        Place in the list of `changes` of the source.
    name : str
        Names the change whatever is edited elsewhere: module, function, and a checksum of the statement and its change.
    change : str
        What becomes what.
    lines : range
        Lines of the statement, without what it contains, that are executed if the change is reached.
    function : str
        Function or class that holds the change; "" for a module.
    at_import : bool
        Whether it is executed only when the module is imported.
    row : str
        First argument of the outermost call with a string for that, which holds the change: the name of a table's row.
    """

    module: str
    path: Path
    index: int
    name: str
    change: str
    lines: range
    function: str
    at_import: bool
    row: str = ""


@dataclass
class Change:
    """A change that `apply` makes in the tree that it was found in."""

    apply: Callable[[], None]
    before: str
    after: str
    lines: range
    function: str
    statement: str
    at_import: bool
    row: str


class _Finder:
    """Finds the changes of a tree, from its root down."""

    def __init__(self, compiled: bool) -> None:
        self.compiled, self.found = compiled, list[Change]()
        self.function, self.lines, self.statement = "", range(0), ""
        self.assigned = list[set[str]]()  # of each function that holds the statement, names that have a value
        self.row = ""

    def add(self, old: ast.AST, after: str, put: Callable[[Any], None], new: Any) -> None:
        before = ast.unparse(old)
        if before != after:
            where = self.lines, self.function, self.statement, not self.assigned, self.row
            self.found.append(Change(partial(put, new), before, after, *where))

    # statements

    def body(self, owner: ast.AST, field: str) -> None:
        statements = getattr(owner, field)
        for k, statement in enumerate(statements):
            if k == 0 and field == "body" and _is_text(statement):
                continue
            self.one(statements, k, statement)

    def one(self, statements: list[Any], k: int, statement: Any) -> None:
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert | ast.Global | ast.Nonlocal | ast.Pass):
            return
        outer = self.lines, self.statement
        self.lines, self.statement = _header(statement), ast.unparse(_bare(statement))
        getattr(self, f"_{type(statement).__name__}", self._other)(statements, k, statement)
        self.lines, self.statement = outer

    def drop(self, statements: list[Any], k: int, old: Any) -> None:
        self.add(old, "pass", partial(operator.setitem, statements, k), ast.copy_location(ast.Pass(), old))

    _Raise = _Break = _Continue = drop

    def _other(self, statements: list[Any], k: int, statement: Any) -> None:
        self.inside(statement)

    def _FunctionDef(self, statements: list[Any], k: int, node: ast.FunctionDef) -> None:
        if node.name in _UNSEEN_FUNCTIONS:
            return
        outer, self.function = self.function, f"{self.function}.{node.name}".lstrip(".")
        for field in ("defaults", "kw_defaults"):
            self.expressions(node.args, field)
        self.assigned.append({each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)})
        self.body(node, "body")
        self.assigned.pop()
        self.function = outer

    def _ClassDef(self, statements: list[Any], k: int, node: ast.ClassDef) -> None:
        if node.name in _UNSEEN_FUNCTIONS or any(ast.unparse(base) == "Protocol" for base in node.bases):
            return
        outer, self.function = self.function, f"{self.function}.{node.name}".lstrip(".")
        self.body(node, "body")
        self.function = outer

    def _If(self, statements: list[Any], k: int, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self.condition(node)
        last = node.body[-1]
        if not node.orelse and isinstance(last, ast.Return | ast.Continue | ast.Break) and not _is_unseen(node.test):
            self.drop(statements, k, node)
        self.body(node, "body")
        self.body(node, "orelse")

    def _While(self, statements: list[Any], k: int, node: ast.While) -> None:
        self.condition(node)
        self.body(node, "body")

    def _Return(self, statements: list[Any], k: int, node: ast.Return) -> None:
        value = node.value
        if value is None or _is_text(value):
            return
        if not self.compiled and not (isinstance(value, ast.Constant) and value.value is None):
            nothing = ast.copy_location(ast.Constant(None), node)
            self.add(node, "return None", partial(setattr, node, "value"), nothing)
        self.expression(node, "value")

    def _Expr(self, statements: list[Any], k: int, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not _is_unseen(node.value.func):
            self.drop(statements, k, node)
        self.expression(node, "value")

    def _AugAssign(self, statements: list[Any], k: int, node: ast.AugAssign) -> None:
        if other := _ARITHMETIC.get(type(node.op)):
            after = ast.unparse(ast.AugAssign(node.target, other(), node.value))
            self.add(node, after, partial(setattr, node, "op"), other())
        self.drop(statements, k, node)
        self.expression(node, "value")

    def _Assign(self, statements: list[Any], k: int, node: ast.Assign) -> None:
        names = {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        if "__all__" in names or "__doc__" in ast.unparse(node.targets[0]):
            return
        elsewhere = not all(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
        if self.assigned and (elsewhere or names <= self.assigned[-1]) and not _is_unseen(node.value):
            self.drop(statements, k, node)
        if self.assigned:
            self.assigned[-1] |= names
        self.expression(node, "value")

    def _AnnAssign(self, statements: list[Any], k: int, node: ast.AnnAssign) -> None:
        if node.value is not None and "TypeAlias" not in ast.unparse(node.annotation):
            self.expression(node, "value")

    # expressions

    def inside(self, node: ast.AST) -> None:
        outer, first = self.row, node.args[0] if isinstance(node, ast.Call) and node.args else None
        if not self.row and isinstance(first, ast.Constant) and isinstance(first.value, str):
            self.row = first.value
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                self.expressions(node, field)
            elif isinstance(value, ast.AST):
                self.expression(node, field)
        self.row = outer

    def expressions(self, owner: ast.AST, field: str) -> None:
        values = getattr(owner, field)
        for k, value in enumerate(values):
            if isinstance(value, ast.stmt):
                self.one(values, k, value)
            elif isinstance(value, ast.AST):
                self.of(value, partial(operator.setitem, values, k))

    def expression(self, owner: ast.AST, field: str) -> None:
        value = getattr(owner, field)
        if isinstance(value, ast.AST):
            self.of(value, partial(setattr, owner, field))

    def condition(self, owner: ast.If | ast.While) -> None:
        changed_anyway = ast.Constant, ast.Compare, ast.UnaryOp
        if not isinstance(owner.test, changed_anyway) and not _is_unseen(owner.test):
            self.replace(owner.test, ast.UnaryOp(ast.Not(), owner.test), partial(setattr, owner, "test"))
        self.expression(owner, "test")

    def replace(self, old: Any, new: ast.AST, put: Callable[[ast.AST], None]) -> None:
        located = ast.fix_missing_locations(ast.copy_location(new, old))
        self.add(old, ast.unparse(located), put, located)

    def of(self, node: Any, put: Callable[[ast.AST], None]) -> None:
        """Find the changes of an expression, which `put` replaces."""
        if isinstance(node, ast.JoinedStr) or _is_unseen(node):
            return
        for new in getattr(self, f"_of_{type(node).__name__}", lambda node: ())(node):
            self.replace(node, new, put)
        if isinstance(node, ast.Lambda):
            self.within_lambda(node)
        elif isinstance(node, ast.IfExp):
            for field in ("test", "body", "orelse"):
                self.expression(node, field)
        elif not isinstance(node, ast.Attribute | ast.Name | ast.Constant):
            self.inside(node)
        elif isinstance(node, ast.Attribute):
            self.expression(node, "value")

    def within_lambda(self, node: ast.Lambda) -> None:
        outer, lines = self.function, self.lines
        if not self.assigned:  # a statement of the module is executed once, its functions by themselves
            self.lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        self.function = f"{self.function}.<lambda>".lstrip(".")
        self.assigned.append(set())
        self.expression(node, "body")
        self.assigned.pop()
        self.function, self.lines = outer, lines

    def _of_BinOp(self, node: ast.BinOp) -> Iterator[ast.AST]:
        if isinstance(node.left, ast.JoinedStr) or isinstance(node.right, ast.JoinedStr):
            return
        if other := _ARITHMETIC.get(type(node.op)):
            yield ast.BinOp(node.left, other(), node.right)

    def _of_UnaryOp(self, node: ast.UnaryOp) -> Iterator[ast.AST]:
        if not isinstance(node.op, ast.UAdd):
            yield node.operand

    def _of_BoolOp(self, node: ast.BoolOp) -> Iterator[ast.AST]:
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)

    def _of_Compare(self, node: ast.Compare) -> Iterator[ast.AST]:
        for k, op in enumerate(node.ops):
            for other in _COMPARISONS[type(op)]:
                yield ast.Compare(node.left, [*node.ops[:k], other(), *node.ops[k + 1 :]], node.comparators)

    def _of_IfExp(self, node: ast.IfExp) -> Iterator[ast.AST]:
        if not _is_unseen(node.test):
            yield ast.IfExp(node.test, node.orelse, node.body)

    def _of_Constant(self, node: ast.Constant) -> Iterator[ast.AST]:
        value = node.value
        if isinstance(value, bool):
            yield ast.Constant(not value)
        elif isinstance(value, int):
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)
        elif isinstance(value, float):
            yield ast.Constant(value * 2 if value else 1.0)

    def _of_Name(self, node: ast.Name) -> Iterator[ast.AST]:
        if node.id in _OTHER_NAMES and isinstance(node.ctx, ast.Load):
            yield ast.Name(_OTHER_NAMES[node.id], ast.Load())

    def _of_Attribute(self, node: ast.Attribute) -> Iterator[ast.AST]:
        if node.attr in _OTHER_NAMES and isinstance(node.ctx, ast.Load):
            yield ast.Attribute(node.value, _OTHER_NAMES[node.attr], ast.Load())

    def _of_Call(self, node: ast.Call) -> Iterator[ast.AST]:
        of_sorts = ast.unparse(node.func).removeprefix("v.") in _OF_SORTS
        for k, (a, b) in enumerate(itertools.pairwise(node.args)):
            starred = isinstance(a, ast.Starred) or isinstance(b, ast.Starred)
            typed = self.compiled and ({ast.unparse(a), ast.unparse(b)} & _TYPED or (k == 0 and of_sorts))
            either = ast.unparse(node.func) in _COMMUTATIVE
            if not starred and not typed and not either and ast.dump(a) != ast.dump(b):
                yield ast.Call(node.func, [*node.args[:k], b, a, *node.args[k + 2 :]], node.keywords)
        for k, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                yield ast.Call(node.func, node.args, node.keywords[:k] + node.keywords[k + 1 :])


def _is_text(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def _is_unseen(node: ast.AST) -> bool:
    """Whether a call or name affects only speed."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in _UNSEEN


def _bare(statement: ast.stmt) -> ast.stmt:
    """A statement without the statements in it."""
    if not hasattr(statement, "body"):
        return statement
    bare = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers"):
        if hasattr(bare, field):
            setattr(bare, field, [])
    return bare


def _header(statement: ast.stmt) -> range:
    """Lines of a statement without the statements in it."""
    body = getattr(statement, "body", None)
    last = statement.end_lineno or statement.lineno
    if isinstance(body, list) and body:
        last = max(statement.lineno, body[0].lineno - 1)
    return range(statement.lineno, last + 1)


def changes(tree: ast.Module, module: str) -> list[Change]:
    """All changes of the tree of a module."""
    finder = _Finder(module.startswith(_COMPILED))
    finder.body(tree, "body")
    return finder.found


def module_of(path: Path, root: Path) -> str:
    """The name of the module of a file below the folder of the package."""
    return ".".join((root.name, *path.relative_to(root).with_suffix("").parts))


def mutants(path: Path, root: Path) -> list[Mutant]:
    """All mutants of a file of the package in a folder."""
    module, seen, found = module_of(path, root), Counter[str](), []
    for index, change in enumerate(changes(ast.parse(path.read_bytes()), module)):
        what = f"{change.statement}\n{change.before}\n{change.after}"
        name = f"{module.removeprefix('fastq.')}:{change.function} {zlib.crc32(what.encode()):08x}"
        seen[name] += 1
        if seen[name] > 1:
            name += f"-{seen[name]}"
        text = f"{_short(change.before)} -> {_short(change.after)}"
        where = change.lines, change.function, change.at_import, change.row
        found.append(Mutant(module, path, index, name, text, *where))
    return found


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:60]} ... {line[-35:]}"


def mentions(mutant: Mutant, files: Iterable[Path]) -> list[tuple[Path, int]]:
    """Lines of some files that mention what the changed statement of a module gives a name."""
    tree = ast.parse(mutant.path.read_bytes())
    changed = [each for each in tree.body if each.lineno in mutant.lines]
    names = [each for statement in changed for each in ast.walk(statement) if isinstance(each, ast.Name)]
    stored = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return [(file, line) for file in files for name, line in _loaded(file) if name in stored]


@cache
def _loaded(file: Path) -> list[tuple[str, int]]:
    """Names and attributes that a file reads, and in which lines."""
    nodes = list(ast.walk(ast.parse(file.read_bytes())))
    names = [(each.id, each.lineno) for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
    return names + [(each.attr, each.lineno) for each in nodes if isinstance(each, ast.Attribute)]


def mutated(mutant: Mutant) -> ast.Module:
    """The tree of a mutant's source, changed."""
    tree = ast.parse(mutant.path.read_bytes())
    changes(tree, mutant.module)[mutant.index].apply()
    return ast.fix_missing_locations(tree)
