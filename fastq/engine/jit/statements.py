"""Functions that are read from their source: what run-time values decide becomes branches and loops of LLVM.

Loops of `while` and over ``range(...)`` are loops of LLVM; a loop over a tuple is unrolled.
"""

from __future__ import annotations

import ast
import dis
import linecache
import textwrap
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine.jit.names import cells_of, globals_of
from fastq.engine.jit.scalars import UntraceableError, joint_type, llvm_of
from fastq.engine.jit.value import Value, is_number, kind_of, leaves, llvm_value, with_leaves

Hints = dict[Any, Any]  # types of variables of loops that have to be wider than they are at first


def has_loops(function: FunctionType) -> bool:
    """Return whether a function has statements that are loops, which may have to be loops of LLVM.

    Only loops jump backward. A lambda has none, and its source cannot be told from that of others in its line.
    """
    if function.__name__ == "<lambda>":
        return False
    jumps = (each for each in dis.get_instructions(function) if each.opcode in dis.hasjrel)
    return any(jump.argval < jump.offset for jump in jumps)  # backward, as only loops do


class WiderTypeError(Exception):
    """Raised where a variable of a loop gets a wider type, with which the function is emitted again."""


# --- the source -------------------------------------------------------------------------------------------------------

_COMPARISONS = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}


class _Expressions(ast.NodeTransformer):
    """Replaces the expressions that choose by calls of methods of `Function`: ``a and b`` by ``all_of(a, b)``.

    Operands that Python evaluates only if need be are functions without parameters.
    """

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Replace ``a and b``, ``a or b``."""
        return _call("all_of" if isinstance(node.op, ast.And) else "any_of", [], map(self.visit, node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Replace ``not a``; other operators stay, and their operands are visited."""
        self.generic_visit(node)
        return _call("none_of", [node.operand], ()) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Replace ``a if test else b``."""
        return _call("choose", [self.visit(node.test)], map(self.visit, (node.body, node.orelse)))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Replace ``a < b < c``; a single comparison is an operator of values, and stays."""
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        symbols = ast.Tuple([ast.Constant(_COMPARISONS[type(each)]) for each in node.ops], ast.Load())
        return _call("chain", [symbols], (node.left, *node.comparators))


def _call(name: str, first: list[ast.expr], thunks: Any) -> ast.expr:
    """Return ``__emission__.name(*first, lambda: thunk, ...)``, a call of a method of `Function`."""
    no_parameters = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.Attribute(ast.Name("__emission__", ast.Load()), name, ast.Load())
    return ast.Call(function, [*first, *(ast.Lambda(no_parameters, thunk) for thunk in thunks)], [])


class _Snippet:
    """A part of a function, as a function of Python whose global names are the variables."""

    def __init__(self, node: ast.Module | ast.Expression, file: str) -> None:
        mode = "eval" if isinstance(node, ast.Expression) else "exec"
        self._code: CodeType = compile(ast.fix_missing_locations(node), file, mode)

    def run(self, variables: dict[str, Any]) -> Any:
        """Run it; return its value if it is an expression."""
        return FunctionType(self._code, variables)()


class FunctionSource:
    """The body of a function, read from its source.

    Attributes
    ----------
    count : int
        The number of its parameters, without one such as ``*args``.
    arguments : tuple[str, ...]
        The names of its parameters; if there is one more than `count`, the last one takes all arguments that are left.
    names : dict[str, Any]
        What stands for the names that it uses.
    locals : set[str]
        The names of its variables.
    body : list[Any]
        Its statements, each a tuple of the name of a method of `_Run`, without the underscore, and its arguments.
    """

    def __init__(self, function: FunctionType) -> None:
        code = function.__code__
        definition = _definition(code)
        parameters = [*definition.args.posonlyargs, *definition.args.args]
        self.count = len(parameters)
        if definition.args.vararg:
            parameters.append(definition.args.vararg)
        self.arguments = tuple(parameter.arg for parameter in parameters)
        self.names = globals_of(function) | cells_of(function)
        self.locals = {*code.co_varnames, *code.co_cellvars}
        self._file = code.co_filename
        self.body = self._statements(definition.body)

    def emit(self, inner: Any, arguments: tuple[Any, ...], hints: Hints) -> Any:
        """Emit it into a function that is being emitted; return the result."""
        return _Run(inner, self, arguments, hints).result()

    def _value(self, node: ast.expr) -> _Snippet:
        """Compile an expression; the snippet returns its value."""
        return _Snippet(ast.Expression(_Expressions().visit(node)), self._file)

    def _statements(self, nodes: list[ast.stmt]) -> list[Any]:
        """Return statements as tuples for `_Run`; those that do not branch are run by Python, as one part.

        Docstrings and other constants are left out.
        """
        statements: list[Any] = []
        plain: list[ast.stmt] = []
        for node in nodes:
            if isinstance(node, ast.If | ast.While | ast.For | ast.Return | ast.Break | ast.Continue):
                statements += self._plain(plain)
                plain = []
                statements.append(self._statement(node))
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                plain.append(node)
        return statements + self._plain(plain)

    def _plain(self, nodes: list[ast.stmt]) -> list[Any]:
        """Return the tuple of statements that Python runs as they are, in a list; an empty list without any."""
        if not nodes:
            return []
        return [("plain", _Snippet(ast.Module([_Expressions().visit(node) for node in nodes], []), self._file))]

    def _statement(self, node: Any) -> Any:
        """Return the tuple of a statement that branches: the name of a method of `_Run`, and its arguments.

        The rest after `match` is of ``for``: over a range, or over a tuple.
        """
        match node:
            case ast.Return():
                return "return", self._value(node.value) if node.value else None
            case ast.Break():
                return ("break",)
            case ast.Continue():
                return ("continue",)
            case ast.If():
                return "if", self._value(node.test), self._statements(node.body), self._statements(node.orelse)
            case ast.While():
                return "while", self._value(node.test), self._statements(node.body), _variables_set_by(node.body)
        target = _Snippet(ast.Module([ast.Assign([node.target], ast.Name("__item__", ast.Load()))], []), self._file)
        body = self._statements(node.body)
        items = node.iter
        is_range = isinstance(items, ast.Call) and isinstance(items.func, ast.Name) and items.func.id == "range"
        if not is_range:
            return "each", target, self._value(items), body
        assigned = _variables_set_by([*node.body]) | _variables_set_by([ast.Expr(node.target)])
        return "range", target, self._value(ast.Tuple(items.args, ast.Load())), body, assigned


def _definition(code: CodeType) -> ast.FunctionDef:
    """Return the definition of a function from its file.

    Its code tells the first line and the last one that has instructions; closing brackets may follow, so lines are
    added until it can be read.
    """
    last = max(line for _, _, line in code.co_lines() if line)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    if not lines:
        raise UntraceableError("its source is in no file")
    count = last - code.co_firstlineno + 1
    while True:
        try:
            tree = ast.parse(textwrap.dedent("".join(lines[:count])))
            break
        except SyntaxError:  # the last line that has code is followed by closing brackets
            count += 1
            if count > len(lines):
                raise
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    (definition,) = tree.body
    return definition  # type: ignore[return-value]


def _variables_set_by(nodes: list[Any]) -> set[str]:
    """Return the names of the variables that statements set."""
    names = [part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


# --- emission ---------------------------------------------------------------------------------------------------------


End = tuple[Any, dict[str, Any]]  # a block of LLVM, and the variables at its end


class _Loop:
    """A loop that is being emitted: where its body leaves it, and where it goes on with the next turn."""

    def __init__(self) -> None:
        self.breaks: list[End] = []
        self.continues: list[End] = []


class _Run:
    """One emission of a function's statements.

    Attributes
    ----------
    inner : Function
        The function of LLVM that the statements go into, a `Function` of `fastq.engine.jit.emission`. It is also the
        variable ``__emission__``: the source had ``a and b`` replaced by ``__emission__.all_of(...)``, and so on, by
        `_Expressions`.
    builder : ir.IRBuilder
        LLVM's builder of `inner`: instructions go where it is.
    source : FunctionSource
        The statements. Its `count` says how many parameters take one argument each; a parameter after them, ``*args``,
        takes the rest.
    hints : Hints
        The wider types that variables of loops were found to need, by loop. They are kept between emissions: one that
        finds another ends with `WiderTypeError`, and the next one begins with the wider type.
    variables : dict[str, Any]
        What stands for each name where LLVM's builder is: for a global name of the function, or for a variable.
    locals : set[str]
        Those names that are variables: `source.locals`, and the counters of loops over a range. They may differ at the
        ends of branches, where they are joined; other names do not change.
    loops : list[_Loop]
        The loops around the statement, the innermost one last.
    returns : list[tuple[Any, Any]]
        The blocks of LLVM that end with a return, and what each returns.
    """

    def __init__(self, inner: Any, source: FunctionSource, arguments: tuple[Any, ...], hints: Hints) -> None:
        self.inner = inner
        self.builder = inner.builder
        self.source = source
        self.hints = hints
        if len(source.arguments) > source.count:  # the last one has all that are left
            arguments = *arguments[: source.count], arguments[source.count :]
        self.variables = dict(source.names) | dict(zip(source.arguments, arguments, strict=True))
        self.variables["__emission__"] = inner
        self.locals = {*source.locals}
        self.loops: list[_Loop] = []
        self.returns: list[tuple[Any, Any]] = []

    def result(self) -> Any:
        """Emit all statements; return the result, which is that of several returns joined."""
        if self._block(self.source.body):
            self.returns.append((self.builder.block, None))
        if len(self.returns) == 1:
            block, item = self.returns[0]
            self.builder.position_at_end(block)
            return item
        return self.inner.join(self.builder.append_basic_block(), self.returns)

    def _end(self) -> End:
        """Return the block that LLVM's builder is in, and the variables there."""
        names = self.locals & self.variables.keys()
        return self.builder.block, {name: self.variables[name] for name in names}

    def _restore(self, values: dict[str, Any]) -> None:
        """Make variables those of another place (`_end`): what is not among them was not set there."""
        for name in self.locals:
            self.variables.pop(name, None)
        self.variables |= values

    # Each method from here on emits a statement, one of the tuples of `FunctionSource.body`, and returns whether what
    # follows is reached.

    def _block(self, statements: list[Any]) -> bool:
        """Emit statements up to one after which nothing is reached."""
        return all(getattr(self, f"_{name}")(*arguments) for name, *arguments in statements)

    def _plain(self, statements: _Snippet) -> bool:
        statements.run(self.variables)
        return True

    def _return(self, value: _Snippet | None) -> bool:
        item = value.run(self.variables) if value else None
        self.returns.append((self.builder.block, item))
        return False

    def _break(self) -> bool:
        self.loops[-1].breaks.append(self._end())
        return False

    def _continue(self) -> bool:
        self.loops[-1].continues.append(self._end())
        return False

    def _if(self, test: _Snippet, body: list[Any], other: list[Any]) -> bool:
        """Emit both branches of an ``if``, or the one that a constant condition chooses."""
        condition = self.inner.truth(test.run(self.variables))
        if isinstance(condition, bool):
            return self._block(body if condition else other)
        self.inner.branches = True
        blocks = [self.builder.append_basic_block() for _ in range(2)]
        self.builder.cbranch(condition, *blocks)
        _, before = self._end()  # the variables with which both branches begin
        ends = []
        for block, statements in zip(blocks, (body, other), strict=True):
            self.builder.position_at_end(block)
            self._restore(before)
            if self._block(statements):
                ends.append(self._end())
        return self._join(ends)

    def _join(self, ends: list[End]) -> bool:
        """Go on where blocks end, with the variables that are set at all their ends; False where none does."""
        if not ends:
            return False
        block = self.builder.append_basic_block()
        names = sorted(set.intersection(*(set(values) for _, values in ends)))
        joined = self.inner.join(block, [(end, tuple(values[name] for name in names)) for end, values in ends])
        self._restore(dict(zip(names, joined, strict=True)))
        return True

    def _each(self, target: _Snippet, items: _Snippet, body: list[Any]) -> bool:
        """Emit the body for each item of a tuple, one after the other."""
        loop = _Loop()
        reached = True
        self.loops.append(loop)
        for item in items.run(self.variables):
            self.variables["__item__"] = item
            target.run(self.variables)
            reached = self._block(body)
            if loop.continues:
                reached = self._join([*loop.continues, *self._ends_if(reached)])
                loop.continues = []
            if not reached:
                break
        self.loops.pop()
        return self._join([*loop.breaks, *self._ends_if(reached)]) if loop.breaks else reached

    def _ends_if(self, reached: bool) -> list[End]:
        """Return the end of this block in a list, if it is reached."""
        return [self._end()] if reached else []

    def _while(self, test: _Snippet, body: list[Any], assigned: set[str]) -> bool:
        def condition() -> Any:
            """Emit the condition, once, where the loop begins each turn."""
            return test.run(self.variables)

        return self._loop(id(test), assigned, condition, lambda: self._block(body), lambda: None)

    def _range(self, target: _Snippet, bounds: _Snippet, body: list[Any], assigned: set[str]) -> bool:
        """Emit a loop over a range, as one that counts a hidden variable, which a body cannot change."""
        start, stop, step = _start_stop_step(*bounds.run(self.variables))
        limit = Value(types.int64, llvm_value(self.builder, stop, types.int64))
        counter = f"__next_{id(target)}__"  # loops may be within loops
        self.variables[counter] = Value(types.int64, llvm_value(self.builder, start, types.int64))
        self.locals.add(counter)

        def condition() -> Any:
            """Emit whether the counter has not reached the end, which lies below the start if the step is negative."""
            k = self.variables[counter]
            return k < limit if step > 0 else k > limit

        def turn() -> bool:
            """Set the variable of the loop to the counter, and emit the body."""
            self.variables["__item__"] = self.variables[counter]
            target.run(self.variables)
            return self._block(body)

        def count() -> None:
            """Add the step to the counter; it does not overflow, so LLVM knows how often the loop runs."""
            k = self.variables[counter]._ir
            self.variables[counter] = Value(types.int64, self.builder.add(k, ir.Constant(k.type, step), flags=("nsw",)))

        reached = self._loop(id(target), assigned | {counter}, condition, turn, count)
        self.variables.pop(counter, None)
        return reached

    def _loop(
        self,
        key: int,
        assigned: Iterable[str],
        condition: Callable[[], Any],
        turn: Callable[[], bool],
        count: Callable[[], None],
    ) -> bool:
        """Emit a loop: its turn while a condition is true, and after each turn what counts.

        `key` names the loop among `hints`, and `assigned` are the names that its body sets, which it carries from turn
        to turn. A condition that is constant has no exit: where it is false, nothing is emitted but a block.
        """
        builder = self.builder
        self.inner.branches = True
        carried = _Carried(self, key, sorted({*assigned} & self.locals & self.variables.keys()))
        header = carried.begin()
        bit = self.inner.truth(condition())
        exits: list[End] = []
        if isinstance(bit, bool):
            if not bit:
                return True  # what follows goes on in the header, to which nothing returns
        else:
            _, variables = self._end()
            inside = builder.append_basic_block()
            outside = builder.append_basic_block()
            builder.cbranch(bit, inside, outside)
            exits = [(outside, variables)]
            builder.position_at_end(inside)
        loop = _Loop()
        self.loops.append(loop)
        if turn():
            loop.continues.append(self._end())
        self.loops.pop()
        if self._join(loop.continues):
            count()
            carried.add_turn()
            builder.branch(header)
        return self._join([*exits, *loop.breaks])


def _start_stop_step(*bounds: Any) -> tuple[Any, Any, int]:
    """Return start, stop and step of a range; the step must be a constant, whose sign decides how the loop ends."""
    start, stop, *steps = bounds if len(bounds) > 1 else (0, *bounds)
    (step,) = steps or (1,)
    if isinstance(step, Value):
        raise UntraceableError("a step that is no constant")
    for bound in (start, stop):
        kind = kind_of(bound)
        if not isinstance(kind, types.Integer) or kind == types.uint64:
            raise UntraceableError(f"a range of {kind}")
    return start, stop, step


class _Carried:
    """The variables that a loop carries from turn to turn: their leaves that may become values are values of LLVM."""

    def __init__(self, run: _Run, key: int, names: list[str]) -> None:
        self._run = run
        self._names = names
        # leaves before the loop, by name: what the variable is a tuple of, or itself
        self._forms = {name: list(leaves(run.variables[name])) for name in names}
        self._wider = run.hints.setdefault(key, {})  # types, by name and number of the leaf
        self._phis: dict[tuple[str, int], Any] = {}  # values of LLVM, likewise, with their types

    def begin(self) -> Any:
        """Begin the block to which each turn returns, and return it; the variables stand for what they are there."""
        builder = self._run.builder
        firsts = []
        for name in self._names:
            for k, leaf in enumerate(self._forms[name]):
                if isinstance(leaf, Value) or is_number(leaf):
                    kind = self._wider.get((name, k)) or kind_of(leaf)
                    firsts.append((name, k, kind, llvm_value(builder, leaf, kind)))
        before = builder.block
        header = builder.append_basic_block()
        builder.branch(header)
        builder.position_at_end(header)
        for name, k, kind, value in firsts:
            phi = builder.phi(llvm_of(kind))
            phi.add_incoming(value, before)
            self._phis[name, k] = kind, phi
        for name in self._names:
            parts = []
            for k, leaf in enumerate(self._forms[name]):
                parts.append(Value(*self._phis[name, k]) if (name, k) in self._phis else leaf)
            self._run.variables[name] = with_leaves(self._run.variables[name], iter(parts))
        return header

    def add_turn(self) -> None:
        """Have the next turn begin with the variables as they are; what was a constant must be the same one."""
        for name in self._names:
            after = list(leaves(self._run.variables[name]))
            if len(after) != len(self._forms[name]):
                raise UntraceableError(f"{name} changes its form in a loop")
            for k, (leaf, first) in enumerate(zip(after, self._forms[name], strict=True)):
                if (name, k) in self._phis:
                    self._add_leaf(name, k, leaf)
                elif leaf is not first and leaf != first:
                    raise UntraceableError(f"{name} changes in a loop")

    def _add_leaf(self, name: str, k: int, leaf: Any) -> None:
        """Have the next turn begin with a leaf as it is; raise WiderTypeError if the type so far does not hold it."""
        kind, phi = self._phis[name, k]
        wider = joint_type([kind, kind_of(leaf)])
        if wider != kind:
            self._wider[name, k] = wider
            raise WiderTypeError
        phi.add_incoming(llvm_value(self._run.builder, leaf, kind), self._run.builder.block)
