"""Statements that run-time values steer become branches and loops of LLVM."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from types import FunctionType
from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine.jit import emission
from fastq.engine.jit.emission import Body, Function, Retry, Value, emit, kind_of, leaves, rebuilt
from fastq.engine.jit.scalars import UntraceableError, llvm_of, unified

_COMPARISONS = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}


def run_statements(function: FunctionType) -> Body:
    """Return what emits a function statement by statement."""
    if function.__code__.co_name == "<lambda>":  # one expression, whose source cannot be told from others of its line
        return emission.run_in_python(function)
    source = _Source(function)
    return lambda inner, arguments, hints: _Run(inner, source, arguments, hints).result()


class _Expressions(ast.NodeTransformer):
    """Puts calls of `Function` for the expressions that choose."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return _call("all_of" if isinstance(node.op, ast.And) else "any_of", [], map(self.visit, node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _call("none_of", [node.operand], ()) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return _call("choose", [self.visit(node.test)], map(self.visit, (node.body, node.orelse)))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        symbols = ast.Tuple([ast.Constant(_COMPARISONS[type(each)]) for each in node.ops], ast.Load())
        return _call("chain", [symbols], (node.left, *node.comparators))


def _call(name: str, first: list[ast.expr], thunks: Any) -> ast.expr:
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.Attribute(ast.Name("__emission__", ast.Load()), name, ast.Load())
    return ast.Call(function, [*first, *(ast.Lambda(none, each) for each in thunks)], [])


class _Source:
    """The statements of a function."""

    def __init__(self, function: FunctionType) -> None:
        code = function.__code__
        self.name = function.__qualname__
        self.count = code.co_argcount
        self.arguments = code.co_varnames[: code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)]
        self.names = emission.globals_of(function) | emission.cells_of(function)
        last = max(line for _, _, line in code.co_lines() if line)
        lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
        if not lines:
            raise UntraceableError("its source is in no file")
        text = "".join(lines[: last - code.co_firstlineno + 1])
        for more in range(20):  # what comes after the last line that has code: closing brackets
            try:
                tree = ast.parse(textwrap.dedent(text))
                ast.increment_lineno(tree, code.co_firstlineno - 1)
                break
            except SyntaxError:
                text = "".join(lines[: last - code.co_firstlineno + 2 + more])
        self.file = code.co_filename
        self.locals = {*code.co_varnames, *code.co_cellvars}
        self.body = self._statements(tree.body[0].body)  # type: ignore[attr-defined]

    def _compiled(self, node: Any, mode: str) -> Any:
        return compile(ast.fix_missing_locations(node), self.file, mode)

    def _value(self, node: ast.expr) -> Any:
        return self._compiled(ast.Expression(_Expressions().visit(node)), "eval")

    def _statements(self, nodes: list[ast.stmt]) -> list[Any]:
        found: list[Any] = []
        plain: list[ast.stmt] = []
        for node in nodes:
            if isinstance(node, ast.If | ast.While | ast.For | ast.Return | ast.Break | ast.Continue):
                self._plain(plain, found)
                plain = []
                found.append(self._statement(node))
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                plain.append(node)
        self._plain(plain, found)
        return found

    def _plain(self, nodes: list[ast.stmt], found: list[Any]) -> None:
        if nodes:
            tree = ast.Module([_Expressions().visit(each) for each in nodes], [])
            found.append(("plain", self._compiled(tree, "exec")))

    def _statement(self, node: Any) -> Any:
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
                return "while", self._value(node.test), self._statements(node.body), _assigned(node.body)
        target = self._compiled(ast.Module([ast.Assign([node.target], ast.Name("__item__", ast.Load()))], []), "exec")
        body = self._statements(node.body)
        assigned = _assigned([*node.body]) | _assigned([ast.Expr(node.target)])
        is_range = (
            isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name) and node.iter.func.id == "range"
        )
        items = ast.Tuple(node.iter.args, ast.Load()) if is_range else node.iter
        return "range" if is_range else "each", target, self._value(items), body, assigned


def _assigned(nodes: list[Any]) -> set[str]:
    return {
        each.id
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


class _Loop:
    def __init__(self) -> None:
        self.breaks: list[tuple[Any, dict[str, Any]]] = []
        self.continues: list[tuple[Any, dict[str, Any]]] = []


class _Run:
    """One emission of a function's statements."""

    def __init__(self, inner: Function, source: _Source, arguments: tuple[Any, ...], hints: dict[Any, Any]) -> None:
        self.inner = inner
        self.source = source
        self.hints = hints
        if len(source.arguments) > source.count:  # the last one has all that are left
            arguments = *arguments[: source.count], arguments[source.count :]
        self.env = dict(source.names) | dict(zip(source.arguments, arguments, strict=True))
        self.env["__emission__"] = inner
        self.loops: list[_Loop] = []
        self.returns: list[tuple[Any, Any]] = []

    @property
    def builder(self) -> Any:
        return self.inner.builder

    def result(self) -> Any:
        """Emit all; return the result."""
        if self._block(self.source.body):
            self.returns.append((self.builder.block, None))
        if len(self.returns) == 1:
            block, item = self.returns[0]
            self.builder.position_at_end(block)
            return item
        return self.inner.join(self.builder.append_basic_block(), self.returns)

    def _snapshot(self) -> dict[str, Any]:
        return {name: self.env[name] for name in self.source.locals if name in self.env}

    def _restore(self, values: dict[str, Any]) -> None:
        for name in self.source.locals:
            self.env.pop(name, None)
        self.env |= values

    def _block(self, statements: list[Any]) -> bool:
        """Emit statements; return whether what follows is reached."""
        return all(getattr(self, f"_{statement[0]}")(*statement[1:]) for statement in statements)

    def _plain(self, code: Any) -> bool:
        exec(code, self.env)
        return True

    def _return(self, code: Any) -> bool:
        item = eval(code, self.env) if code else None
        self.returns.append((self.builder.block, item))
        return False

    def _break(self) -> bool:
        self.loops[-1].breaks.append((self.builder.block, self._snapshot()))
        return False

    def _continue(self) -> bool:
        self.loops[-1].continues.append((self.builder.block, self._snapshot()))
        return False

    def _if(self, test: Any, body: list[Any], other: list[Any]) -> bool:
        condition = self.inner.truth(eval(test, self.env))
        if isinstance(condition, bool):
            return self._block(body if condition else other)
        self.inner.branches = True
        blocks = [self.builder.append_basic_block() for _ in range(2)]
        self.builder.cbranch(condition, *blocks)
        before = self._snapshot()
        ends = []
        for block, statements in zip(blocks, (body, other), strict=True):
            self.builder.position_at_end(block)
            self._restore(before)
            if self._block(statements):
                ends.append((self.builder.block, self._snapshot()))
        return self._join(ends)

    def _join(self, ends: list[tuple[Any, dict[str, Any]]], block: Any = None) -> bool:
        """Go on where blocks end that do."""
        if not ends:
            return False
        block = block or self.builder.append_basic_block()
        names = sorted(set.intersection(*(set(values) for _, values in ends)))
        joined = self.inner.join(block, [(end, tuple(values[name] for name in names)) for end, values in ends])
        self._restore(dict(zip(names, joined, strict=True)))
        return True

    def _each(self, target: Any, items: Any, body: list[Any], assigned: set[str]) -> bool:
        return self._unrolled(target, eval(items, self.env), body)

    def _unrolled(self, target: Any, items: Any, body: list[Any]) -> bool:
        loop = _Loop()
        reached = True
        self.loops.append(loop)
        for item in items:
            self.env["__item__"] = item
            exec(target, self.env)
            reached = self._block(body)
            if loop.continues:
                ends = [*loop.continues, *([(self.builder.block, self._snapshot())] if reached else [])]
                reached = self._join(ends)
                loop.continues = []
            if not reached:
                break
        self.loops.pop()
        if not loop.breaks:
            return reached
        return self._join([*loop.breaks, *([(self.builder.block, self._snapshot())] if reached else [])])

    def _while(self, test: Any, body: list[Any], assigned: set[str]) -> bool:
        return self._loop(lambda: eval(test, self.env), None, body, assigned, key=id(test))

    def _range(self, target: Any, items: Any, body: list[Any], assigned: set[str]) -> bool:
        given = eval(items, self.env)
        start, stop, *step = given if len(given) > 1 else (0, *given)
        (step,) = step or (1,)
        if isinstance(step, Value):
            raise UntraceableError("a step that is no constant")
        for each in (start, stop):
            if kind_of(each) not in (
                types.int64,
                types.int32,
                types.uint32,
                types.int16,
                types.uint16,
                types.int8,
                types.uint8,
            ):
                raise UntraceableError(f"a range of {kind_of(each)}")
        limit = Value(types.int64, emit(self.builder, stop, types.int64))
        first = Value(types.int64, emit(self.builder, start, types.int64))
        name = f"__next_{id(target)}__"  # loops may be within loops
        self.env[name] = first
        self.source.locals.add(name)

        def tested() -> Any:
            k = self.env[name]
            return k < limit if step > 0 else k > limit

        def begun() -> None:
            self.env["__item__"] = self.env[name]
            exec(target, self.env)

        def ended() -> None:
            k = self.env[name]._ir
            self.env[name] = Value(types.int64, self.builder.add(k, ir.Constant(k.type, step), flags=("nsw",)))

        reached = self._loop(tested, begun, body, assigned | {name}, key=id(target), ended=ended)
        self.env.pop(name, None)
        return reached

    def _loop(
        self, tested: Any, begun: Any, body: list[Any], assigned: set[str], *, key: int, ended: Any = None
    ) -> bool:
        inner = self.inner
        builder = self.builder
        inner.branches = True
        carried = sorted(name for name in assigned if name in self.env and name in self.source.locals)
        forms = {name: list(leaves(self.env[name])) for name in carried}
        wanted = self.hints.setdefault(key, {})
        values = []  # of leaves: constants, or kinds with what they are at first
        for name in carried:
            for k, leaf in enumerate(forms[name]):
                if isinstance(leaf, Value) or emission.is_number(leaf):
                    kind = wanted.get((name, k)) or kind_of(leaf)
                    values.append((name, k, kind, emit(builder, leaf, kind)))
        before = builder.block
        header = builder.append_basic_block()
        builder.branch(header)
        builder.position_at_end(header)
        phis = {}
        for name, k, kind, value in values:
            phi = builder.phi(llvm_of(kind))
            phi.add_incoming(value, before)
            phis[name, k] = kind, phi
        for name in carried:
            parts = [Value(*phis[name, k]) if (name, k) in phis else leaf for k, leaf in enumerate(forms[name])]
            self.env[name] = rebuilt(self.env[name], iter(parts))
        condition = inner.truth(tested())
        exits = []
        if isinstance(condition, bool):
            if not condition:
                return True
        else:
            exits.append((builder.block, self._snapshot()))
            inside = builder.append_basic_block()
            outside = builder.append_basic_block()
            builder.cbranch(condition, inside, outside)
            exits = [(outside, self._snapshot())]
            builder.position_at_end(inside)
        loop = _Loop()
        self.loops.append(loop)
        if begun:
            begun()
        if self._block(body):
            loop.continues.append((builder.block, self._snapshot()))
        self.loops.pop()
        if self._join(loop.continues):
            if ended:
                ended()
            for name in carried:
                after = list(leaves(self.env[name]))
                if len(after) != len(forms[name]):
                    raise UntraceableError(f"{name} changes its form in a loop")
                for k, leaf in enumerate(after):
                    if (name, k) not in phis:
                        if leaf is not forms[name][k] and leaf != forms[name][k]:
                            raise UntraceableError(f"{name} changes in a loop")
                        continue
                    kind, phi = phis[name, k]
                    wide = unified([kind, kind_of(leaf)])
                    if wide != kind:
                        wanted[name, k] = wide
                        raise Retry
                    phi.add_incoming(emit(builder, leaf, kind), builder.block)
            builder.branch(header)
        return self._join([*exits, *loop.breaks])
