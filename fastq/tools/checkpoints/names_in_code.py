"""What names and expressions in Python code stand for, looked up where Python would, without running the code.

A name is looked up in its function, in the functions around that, in its module, and in the modules next to it from
which it is imported. An attribute of `self` is looked up in the class of the object and in its bases, one of a class
there alone. A call of a function of the code stands for what that returns for such arguments. Of several assignments to
a name all count, since code that is not run does not tell which is the last. A parameter stands for what the calls in
the code pass, or for its default if a call passes nothing; if the code has no such call, it may be anything, too. What
can't be told is UNKNOWN.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastq.tools.checkpoints.lookups import Lookups

CONTAINERS = {"ModuleList", "ModuleDict", "Sequential"}
# functions and classes that collect items, or return those that are given
COLLECTIONS = {"OrderedDict", "dict", "list", "tuple", "set", "zip", "enumerate", "reversed", "sorted", "iter", "next"}
NUMBERS = {"abs", "bool", "float", "hasattr", "int", "isinstance", "len", "max", "min", "range", "round", "str", "sum"}
GROWING = {"append", "add", "extend", "insert", "update", "setdefault"}  # methods that collect their arguments
ITEMS = {"get", "items", "values", "pop", "popitem", "copy", "setdefault"}  # methods that return what was collected
# methods of PyTorch that return the module itself
FLUENT = {"to", "to_empty", "type", "half", "float", "double", "bfloat16", "cuda", "cpu", "eval", "train", "apply"}
FLUENT |= {"requires_grad_", "share_memory", "append", "extend", "insert"}
# functions that give an object something under a name, and the parameters for that name and that thing
NAMING = {"setattr": (), "__setattr__": (), "register_parameter": ("name", "param")}
NAMING |= dict.fromkeys(("add_module", "register_module"), ("name", "module"))
CONSTRUCTORS = {"__init__", "__new__", "__post_init__"}
MOST_CALLS = 64  # of one function, with different arguments

Things = tuple["Thing", ...]  # in the order of the code, each once
NOTHING: Things = ()
# what is given to each name, in all places; "*" has the modules of which all names are imported
Bindings = dict[str, list["ast.AST | Imported"]]


@dataclass(eq=False)
class Scope:
    """The names of a module, of a class body, or of a function that is called with some arguments."""

    module: str
    bindings: Bindings
    outer: Scope | None = None  # the scope around it; None for a module
    arguments: Mapping[str, Things] = field(default_factory=dict)  # what parameters stand for
    is_class: bool = False  # whether it is that of a class body, whose names methods do not see
    function: Function | None = None  # the function whose scope it is
    is_of_all_calls: bool = False  # whether parameters stand for what any of its calls gives to them
    filled: frozenset[str] = frozenset()  # names of a module whose collections get items in functions


@dataclass(eq=False)
class Class:
    """A class of the code."""

    node: ast.ClassDef
    around: Scope  # where it is defined
    body: Scope


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Function:
    """A function of the code; a method has an owner, and a receiver if it is called for an object or a class."""

    node: Definition
    around: Scope
    owner: Class | None = None
    receiver: Thing | None = None


@dataclass(frozen=True)
class External:
    """A class, a function or a module of another package, by its own name."""

    name: str

    @property
    def is_class(self) -> bool:
        """Whether it is a class, as far as its name tells."""
        return self.name[:1].isupper()


@dataclass(frozen=True)
class File:
    """A module of the code."""

    name: str


@dataclass(frozen=True)
class Instance:
    """An object of a class."""

    of: Class | External


@dataclass(frozen=True)
class Member:
    """An attribute that the code does not define, of a class or of an object, such as a method of a base elsewhere."""

    of: Thing
    name: str


@dataclass(frozen=True)
class Super:
    """What `super()` stands for in a method."""

    owner: Class
    receiver: Thing


@dataclass(frozen=True)
class Text:
    """A text, in which `*` stands for parts that are not known."""

    text: str


@dataclass(frozen=True)
class Unknown:
    """What can't be told."""


Thing = Class | Function | External | File | Instance | Member | Super | Text | Unknown
UNKNOWN = Unknown()
CANT_TELL: Things = (UNKNOWN,)


@dataclass(frozen=True)
class Imported:
    """What an import gives a name to: something in a module, or a module if there is no name of something."""

    module: str  # its last word; empty for a module that is no file of the code, and in `from . import name`
    name: str
    is_relative: bool


@dataclass(frozen=True)
class CallSite:
    """A call in the code that runs a function of the code, or that gives it to a function which may run it."""

    call: ast.Call
    scope: Scope  # in which the call is
    function: Function
    is_direct: bool  # whether the call itself runs it, so that its arguments are those of the function


Body = tuple[list[ast.AST], Scope]  # the statements and expressions of a module, a class or a function


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call."""

    by_place: tuple[Things, ...] = ()
    by_name: tuple[tuple[str, Things], ...] = ()
    others: Things = NOTHING  # what any other parameter may get

    @property
    def all(self) -> Things:
        """What all arguments may stand for."""
        return _union(*self.by_place, *(things for _, things in self.by_name), self.others)


def _union(*collections: Iterable[Thing]) -> Things:
    """Return the things of several collections in their order, each once."""
    return tuple(dict.fromkeys(itertools.chain(*collections)))


ANY_ARGUMENTS = Arguments(others=CANT_TELL)


class Code:
    """The files of a program."""

    def __init__(self, files: Mapping[str, ast.Module]) -> None:
        """Take the files by the names of their modules, and find what calls what in them, once for all lookups."""
        self._files = files
        self._modules = {
            name: Scope(name, _bindings_of(tree.body), filled=_filled_in_functions(tree))
            for name, tree in files.items()
        }
        # classes and scopes are made once: they are equal only to themselves, and things that were found are compared
        self._classes: dict[tuple[ast.ClassDef, Scope], Class] = {}
        self._scopes: dict[tuple[Function, Arguments | None], Scope] = {}  # None: the one of all calls
        self._ancestors: dict[Class, list[Class | External]] = {}
        self._contexts: dict[Definition, set[tuple[Function, Arguments]]] = {}  # calls that were looked up: MOST_CALLS
        self._given: dict[Class, dict[str, list[tuple[ast.expr, Function]]]] = {}  # see `_given_to_self`
        self._call_sites: dict[Function | Definition, list[CallSite]] = {}  # by what they run, for whatever object, too
        self._lookups: Lookups[Thing] = Lookups(UNKNOWN)
        self._bodies = [*self._bodies_of_all()]  # of a method, one for each class that has it
        self._functions = {scope.function for _, scope in self._bodies if scope.function is not None}
        self._find_call_sites()
        # functions that run while modules are made
        constructors = set(filter(_is_constructor, self._functions))
        uncalled = {function for function in self._functions if function.receiver is None and not self._calls(function)}
        self._making = self._run_by(constructors | uncalled)

    # the parts of the code

    def _bodies_of_all(self) -> Iterator[Body]:
        """Yield the body of each module, class and function, in the scope that stands for all calls of a function."""
        classes: dict[ast.ClassDef, Class] = {}
        for name, tree in self._files.items():
            self._add_classes(tree.body, self._modules[name], classes)
            nodes = [*nodes_of(tree.body)]
            yield nodes, self._modules[name]
            yield from self._bodies_of_functions(nodes, self._modules[name])
        for of in classes.values():
            nodes = [*nodes_of(of.node.body)]
            yield nodes, of.body
            yield from self._bodies_of_functions((node for node in nodes if isinstance(node, ast.Lambda)), of.body)
            for method in self.methods(of):
                nodes, scope = self.body_of(method)
                yield nodes, scope
                yield from self._bodies_of_functions(nodes, scope)

    def body_of(self, function: Function) -> Body:
        """Return the statements and expressions of a function, and their scope for all of its calls."""
        return [*nodes_of(_statements_of(function.node))], self._scope_of(function)

    def _bodies_of_functions(self, nodes: Iterable[ast.AST], scope: Scope) -> Iterator[Body]:
        """Yield the bodies of the functions among some nodes, and of those in them."""
        for node in nodes:
            if isinstance(node, Definition):
                inner_nodes, inner = self.body_of(Function(node, scope))
                yield inner_nodes, inner
                yield from self._bodies_of_functions(inner_nodes, inner)

    def _add_classes(self, body: Iterable[ast.AST], scope: Scope, classes: dict[ast.ClassDef, Class]) -> None:
        """Add the classes in a body, and in the functions and classes in it, to `classes`."""
        for node in nodes_of(body):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._add_classes(node.body, self._scope_of(Function(node, scope)), classes)
            elif isinstance(node, ast.ClassDef):
                classes[node] = self._class(node, scope)
                self._add_classes(node.body, classes[node].body, classes)

    # who calls whom

    def _find_call_sites(self) -> None:
        """Find the calls of each function of the code, for which parameters may still be anything.

        What lookups found before that is forgotten, since with the calls known parameters stand for less. Functions
        that only call each other count as if nothing did: their parameters would stand for nothing at all.
        """
        found: dict[Function | Definition, list[CallSite]] = {}
        for nodes, scope in self._bodies:
            for node in nodes:
                for site in self._sites_of(node, scope) if isinstance(node, ast.Call) else ():
                    found.setdefault(site.function, []).append(site)
                    found.setdefault(site.function.node, []).append(site)
        self._lookups = Lookups(UNKNOWN)
        self._ancestors = {}
        self._contexts = {}
        self._call_sites = found
        uncalled = {function for function in self._functions if not self._calls(function)}
        for unreached in self._functions - self._run_by(uncalled):
            found.pop(unreached, None)
            found.pop(unreached.node, None)

    def _sites_of(self, call: ast.Call, scope: Scope) -> Iterator[CallSite]:
        """Yield the functions that a call runs; of a class that is `__init__`.

        A function of another package, such as `partial`, may run the functions that it is passed.
        """
        callees = self.meant_by(call.func, scope)
        for function in self._functions_of(callees):
            yield CallSite(call, scope, function, is_direct=True)
        if any(isinstance(callee, External) for callee in callees):
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                for function in self._functions_of(self.meant_by(argument, scope)):
                    yield CallSite(call, scope, function, is_direct=False)

    def _functions_of(self, things: Things) -> Iterator[Function]:
        """Yield the functions of the code that calling things runs."""
        for thing in things:
            called = self._attribute(Instance(thing), "__init__") if isinstance(thing, Class) else (thing,)
            yield from (function for function in called if isinstance(function, Function))

    def _calls(self, function: Function) -> list[CallSite]:
        """Return the calls of a function; of a method those for the same class, or for others if there are none."""
        return self._call_sites.get(function) or self._call_sites.get(function.node) or []

    def _run_by(self, functions: set[Function]) -> set[Function]:
        """Return some functions with all that they, or code outside of functions, run by any number of calls."""
        found = functions
        newly_found = found
        while newly_found:
            newly_found = {
                function
                for function in self._functions - found
                if any(_is_in(found, site) for site in self._calls(function))
            }
            found = found | newly_found
        return found

    def bodies(self) -> Iterator[Body]:
        """Yield the body of each module and function; of a function once for each of its calls in the code."""
        for nodes, scope in self._bodies:
            if scope.is_class:  # of which objects have no items of their own
                continue
            scopes_of_calls = [] if scope.function is None else self._scopes_of_calls(scope.function)
            for scope_of_call in scopes_of_calls or [scope]:
                yield nodes, scope_of_call

    def _scopes_of_calls(self, function: Function) -> list[Scope]:
        """Return the scopes of a function by its calls, each once."""
        arguments = (self._arguments_at(site, function) for site in self._calls(function))
        return [self._scope_of(function, arguments_of_call) for arguments_of_call in dict.fromkeys(arguments)]

    def makes_modules(self, scope: Scope) -> bool:
        """Return whether a scope is that of code which runs while modules are made, not when these are called."""
        return scope.function is None or scope.function in self._making

    def methods(self, of: Class) -> Iterator[Function]:
        """Yield the functions that a class and its bases in the code define, as they are called for its objects."""
        for owner in self.ancestors(of):
            if isinstance(owner, Class):
                for node in nodes_of(owner.node.body):
                    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        yield self._method(node, owner, Instance(of))

    def ancestors(self, of: Class) -> list[Class | External]:
        """Return a class and its bases, in the order in which Python looks for their attributes."""
        if of not in self._ancestors:
            self._ancestors[of] = [of]  # for a class that would be its own base
            found: list[Class | External] = [of]
            for base in of.node.bases:
                for thing in self.meant_by(base, of.around):
                    if isinstance(thing, Class):
                        found += self.ancestors(thing)
                    elif isinstance(thing, External):
                        found.append(thing)
            last = {base: k for k, base in enumerate(found)}  # a base of several classes comes after these
            self._ancestors[of] = [base for k, base in enumerate(found) if last[base] == k]
        return self._ancestors[of]

    # lookups

    def meant_by(self, node: ast.AST | Imported, scope: Scope) -> Things:
        """Return all that an expression, a definition or an import may stand for; numbers and arrays are nothing."""
        return self._lookups.find((node, scope), lambda: self._meaning(node, scope))

    def _all(self, nodes: Iterable[ast.AST | Imported | None], scope: Scope) -> Things:
        """Return all that several expressions may stand for."""
        return _union(*(self.meant_by(node, scope) for node in nodes if node is not None))

    def _meaning(self, node: ast.AST | Imported, scope: Scope) -> Things:
        """Look up an expression, a definition or an import: `meant_by` without the memory of what was found.

        A collection stands for all of its items, and an expression that makes numbers for nothing.
        """
        if isinstance(node, ast.expr) and (text := text_of(node)) is not None:
            return (Text(text),)
        match node:
            case ast.Name():
                return self._named(node.id, scope)
            case ast.Attribute():
                things = self.meant_by(node.value, scope)
                return _union(*(self._attribute(thing, node.attr) for thing in things))
            case ast.Call():
                return self._returned_by(node, scope)
            case ast.Lambda() | ast.FunctionDef() | ast.AsyncFunctionDef():
                return (Function(node, scope),)
            case ast.ClassDef():
                return (self._class(node, scope),)
            case Imported():
                return self._imported(node)
            case ast.IfExp():
                return self._all([node.body, node.orelse], scope)
            case ast.BoolOp():
                return self._all(node.values, scope)
            case ast.BinOp():  # of lists; numbers stand for nothing
                return tuple(thing for thing in self._all([node.left, node.right], scope) if thing != UNKNOWN)
            case ast.Dict():
                return self._all(node.values, scope)
            case ast.List() | ast.Tuple() | ast.Set():
                return self._all(node.elts, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self.meant_by(node.elt, scope)
            case ast.Subscript() | ast.DictComp() | ast.NamedExpr() | ast.Starred() | ast.Await() | ast.YieldFrom():
                return self._all([node.value], scope)  # of an index, all items
            case ast.Yield():
                return self._all([node.value], scope)
        return NOTHING

    def _named(self, name: str, scope: Scope) -> Things:
        """Look up a name in a scope and in those around it; a name in none of them is one of Python's own."""
        around: Scope | None = scope
        while around is not None:
            is_visible = around is scope or not around.is_class
            if is_visible and (name in around.arguments or name in around.bindings):
                items = CANT_TELL if name in around.filled else NOTHING
                return _union(self._given_to(name, around), self._all(around.bindings.get(name, ()), around), items)
            around = around.outer
        return self._named_by_star(name, scope.module) or (External(name),)

    def _given_to(self, name: str, scope: Scope) -> Things:
        """Look up what calls of a function give to a parameter; nothing if it has none of this name.

        The scope of one call has that itself. In the scope of all calls it is what any call in the code gives, or if
        there is none, what the scope has for any arguments.
        """
        function = scope.function
        if function is None or not (scope.is_of_all_calls and name in scope.arguments):
            return scope.arguments.get(name, NOTHING)
        if not self._calls(function):
            return scope.arguments[name]
        return self._lookups.find((name, scope), lambda: self._given_by_calls(name, function))

    def _given_by_calls(self, name: str, function: Function) -> Things:
        """Look up what the calls of a function in the code give to a parameter."""
        arguments = (self._arguments_at(site, function) for site in self._calls(function))
        return _union(*(self._parameters(function, of_call).get(name, NOTHING) for of_call in arguments))

    def _named_by_star(self, name: str, module: str) -> Things:
        """Look up a name in the modules of the code of which a module imports all names."""
        found = NOTHING
        for star in self._modules[module].bindings.get("*", ()):
            other = self._modules.get(star.module) if isinstance(star, Imported) else None
            if other is not None and other.module != module:
                key = name, other
                look = functools.partial(self._of_module, name, other)
                found = _union(found, self._lookups.find(key, look))
        return found

    def _of_module(self, name: str, scope: Scope) -> Things:
        """Look up a name in a module of the code; nothing if it has no such name."""
        if name in scope.bindings:
            return self._all(scope.bindings[name], scope)
        return self._named_by_star(name, scope.module)

    def _imported(self, node: Imported) -> Things:
        """Look up what is imported, in a module of the code if there is one."""
        if node.module in self._modules and node.name:
            return self._of_module(node.name, self._modules[node.module]) or (External(node.name),)
        name = node.name or node.module
        is_of_code = name in self._modules and (not node.name or (node.is_relative and not node.module))
        return (File(name) if is_of_code else External(name),)

    def _attribute(self, thing: Thing, name: str) -> Things:
        """Look up an attribute of what an expression may stand for.

        Of other packages only names are known: "nn.Linear" is a class, "nn.functional" a module or a function, and
        "Linear.forward" a member of the class.
        """
        match thing:
            case External() if thing.is_class and not name[:1].isupper():
                return (Member(thing, name),)
            case External():
                return (External(name),)
            case File():
                return self._of_module(name, self._modules[thing.name])
            case Class():
                return self._attribute_of_class(thing, name, self.ancestors(thing), thing)
            case Instance(of=Class() as of):
                return self._attribute_of_class(of, name, self.ancestors(of), thing)
            case Super(receiver=(Class() as of) as receiver) | Super(receiver=Instance(of=Class() as of) as receiver):
                order = self.ancestors(of)
                after = order[order.index(thing.owner) + 1 :] if thing.owner in order else []
                return self._attribute_of_class(of, name, after, receiver)
            case Instance():
                return (Member(thing, name),)
            case Text():
                return NOTHING
        return CANT_TELL

    def _attribute_of_class(
        self, of: Class, name: str, order: Sequence[Class | External], receiver: Class | Instance
    ) -> Things:
        """Look up an attribute of a class or of its object, in some of its bases.

        `of` is the class, `order` has it and its bases, or only the later ones for `super()`; `receiver` is the object
        or the class for which a method is then called.
        """
        defined = [base for base in order if isinstance(base, Class) and name in base.body.bindings]
        found = NOTHING
        for node in defined[0].body.bindings[name] if defined else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                method = self._method(node, defined[0], receiver)
                is_value = _decorators(node) & {"property", "cached_property"} and isinstance(receiver, Instance)
                found = _union(found, self._call(method, Arguments()) if is_value else (method,))
            else:
                found = _union(found, self.meant_by(node, defined[0].body))
        if isinstance(receiver, Instance):
            for value, method in self._given_to_self(of).get(name, ()):
                found = _union(found, self.meant_by(value, self._scope_of(method)))
        return found or (Member(receiver, name),)

    def _method(self, node: Definition, owner: Class, receiver: Class | Instance) -> Function:
        """Return a function of a class as it is called for an object or for the class.

        Its receiver is what its first parameter gets: the class for a classmethod, nothing for a staticmethod, or for a
        method that is called as `Base.method(self)`.
        """
        decorators = _decorators(node)
        called_for: Thing | None = receiver
        if "classmethod" in decorators or getattr(node, "name", "") == "__new__":
            called_for = receiver.of if isinstance(receiver, Instance) else receiver
        elif "staticmethod" in decorators or isinstance(receiver, Class):
            called_for = None
        return Function(node, owner.body, owner, called_for)

    def _given_to_self(self, of: Class) -> dict[str, list[tuple[ast.expr, Function]]]:
        """Return what the methods of a class give to each attribute of its objects, with the methods."""
        if of in self._given:
            return self._given[of]
        found = self._given[of] = {}
        for method in self.methods(of):
            parameters = [*method.node.args.posonlyargs, *method.node.args.args]
            for node in () if isinstance(method.node, ast.Lambda) else nodes_of(method.node.body):
                attributes = [
                    (target.value, target.attr, value)
                    for target, value in assigned(node)
                    if isinstance(target, ast.Attribute)
                ]
                if (named := named_by(node)) and named.owner is not None:
                    attributes.append((named.owner, text_of(named.name) or "", named.value))
                for owner, attribute, value in attributes:
                    if isinstance(owner, ast.Name) and parameters and owner.id == parameters[0].arg:
                        found.setdefault(attribute, []).append((value, method))
        return found

    def _class(self, node: ast.ClassDef, scope: Scope) -> Class:
        """Return the class of a definition."""
        if (node, scope) not in self._classes:
            body = Scope(scope.module, _bindings_of(node.body), scope, is_class=True)
            self._classes[node, scope] = Class(node, scope, body)
        return self._classes[node, scope]

    # calls

    def _returned_by(self, call: ast.Call, scope: Scope) -> Things:
        """Look up what a call returns.

        `super()`, `getattr(thing, "name")` and `map(function, things)` are looked up as what they do; other functions
        by `_call`.
        """
        called = _last_name(call.func) if isinstance(call.func, ast.Name) else ""
        if called == "super":
            method = method_around(scope)
            if method is None or method.owner is None or method.receiver is None:
                return CANT_TELL
            return (Super(method.owner, method.receiver),)
        callees = self.meant_by(call.func, scope)
        if not callees and isinstance(call.func, (ast.Subscript, ast.Call)):  # an item of a collection without any
            return CANT_TELL
        if all(map(_is_only_made, callees)):  # most calls, whose arguments need not be looked up
            return tuple(Instance(callee) for callee in callees if isinstance(callee, External))
        arguments = self._arguments_of(call, scope)
        by_place = arguments.by_place
        if called == "getattr" and len(by_place) > 1:
            names = [text.text for text in by_place[1] if isinstance(text, Text) and "*" not in text.text]
            found = [self._attribute(thing, name) for thing in by_place[0] for name in names]
            return _union(*found, *by_place[2:]) if names else CANT_TELL
        if called == "map" and by_place:
            arguments = Arguments(by_place[1:])
            return _union(*(self._call(thing, arguments) for thing in by_place[0]))
        return _union(*(self._call(thing, arguments) for thing in callees))

    def _arguments_of(self, call: ast.Call, scope: Scope) -> Arguments:
        """Look up the arguments of a call."""
        by_place = tuple(self.meant_by(node, scope) for node in call.args if not isinstance(node, ast.Starred))
        by_name = tuple((item.arg, self.meant_by(item.value, scope)) for item in call.keywords if item.arg)
        # what stands after * and ** may be for any parameter
        unpacked = [node.value for node in call.args if isinstance(node, ast.Starred)]
        unpacked += [item.value for item in call.keywords if not item.arg]
        others = (self._all(unpacked, scope) or CANT_TELL) if unpacked else NOTHING
        return Arguments(by_place, by_name, others)

    def _arguments_at(self, site: CallSite, function: Function) -> Arguments:
        """Look up the arguments that a function gets by a call of it, which may be for an object of another class."""
        arguments = self._arguments_of(site.call, site.scope)
        if not site.is_direct:  # the function that runs it may pass things of its own
            return replace(arguments, by_place=(), others=CANT_TELL)
        if function.receiver is not None and site.function.receiver is None:  # as `Base.__init__(self)` passes it
            return replace(arguments, by_place=arguments.by_place[1:])
        return arguments

    def _call(self, thing: Thing, arguments: Arguments) -> Things:
        """Look up what calling something returns.

        A class makes an object, unless its `__new__` returns something else; an object runs its `__call__`. A member of
        an object elsewhere may return the object, as `to` does, or an item of it, as `get` does.
        """
        match thing:
            case Class():
                made = self._attribute(thing, "__new__")
                functions = [function for function in made if isinstance(function, Function)]
                return _union(*(self._call(function, arguments) for function in functions)) or (Instance(thing),)
            case External():
                return _returned_elsewhere(thing, arguments)
            case Function():
                contexts = self._contexts.setdefault(thing.node, set())
                if len(contexts) >= MOST_CALLS and (thing, arguments) not in contexts:
                    return CANT_TELL
                contexts.add((thing, arguments))
                return self._lookups.find((thing, arguments), lambda: self._results(thing, arguments))
            case Member(of=of, name=name):
                if name in ITEMS:  # such as a class of a dict of classes
                    return _union((of,), arguments.all)
                if name.lstrip("_").startswith("from_") or name in FLUENT or name == "__new__":
                    return (Instance(of) if isinstance(of, (Class, External)) else of,)
            case Instance(of=Class()):
                called = self._attribute(thing, "__call__")
                functions = [function for function in called if isinstance(function, Function)]
                return _union(*(self._call(function, arguments) for function in functions))
            case Instance() | File() | Text() | Super():  # a module that is called returns arrays
                return NOTHING
        return CANT_TELL

    def _results(self, function: Function, arguments: Arguments) -> Things:
        """Look up what a function returns or yields."""
        scope = self._scope_of(function, arguments)
        node = function.node
        if isinstance(node, ast.Lambda):
            return self.meant_by(node.body, scope)
        results = (part for part in nodes_of(node.body) if isinstance(part, (ast.Return, ast.Yield, ast.YieldFrom)))
        return self._all([result.value for result in results], scope)

    def _scope_of(self, function: Function, arguments: Arguments | None = None) -> Scope:
        """Return the scope of a call of a function with some arguments; without arguments the one of all its calls."""
        key = function, arguments
        if key not in self._scopes:
            self._scopes[key] = Scope(
                function.around.module,
                _bindings_of(_statements_of(function.node)),
                function.around,
                self._parameters(function, ANY_ARGUMENTS if arguments is None else arguments),
                function=function,
                is_of_all_calls=arguments is None,
            )
        return self._scopes[key]

    def _parameters(self, function: Function, arguments: Arguments) -> dict[str, Things]:
        """Return what the parameters of a function stand for in a call, by their names.

        As in Python, a receiver comes first, then arguments by place, then those by name, then defaults; what is left
        goes to *args and **kwargs. Arguments that were unpacked may be for any parameter without one of its own.
        """
        declared = function.node.args
        names = [parameter.arg for parameter in (*declared.posonlyargs, *declared.args)]
        # the defaults are those of the last parameters
        defaults = dict(zip(reversed(names), reversed(declared.defaults), strict=False))
        keyword_defaults = zip(declared.kwonlyargs, declared.kw_defaults, strict=True)
        defaults |= {parameter.arg: value for parameter, value in keyword_defaults if value}
        found: dict[str, Things] = {}
        by_place = [*arguments.by_place]
        if function.receiver is not None and names:
            by_place.insert(0, (function.receiver,))
        by_name = dict(arguments.by_name)
        for name in (*names, *(parameter.arg for parameter in declared.kwonlyargs)):
            if name in names and by_place:
                found[name] = by_place.pop(0)
            elif name in by_name:
                found[name] = by_name.pop(name)
            else:
                found[name] = _union(self._all([defaults.get(name)], function.around), arguments.others)
        if declared.vararg:
            found[declared.vararg.arg] = _union(*by_place, arguments.others)
        if declared.kwarg:
            found[declared.kwarg.arg] = _union(*by_name.values(), arguments.others)
        return found


def _is_constructor(function: Function) -> bool:
    """Return whether a function makes an object of its class."""
    return not isinstance(function.node, ast.Lambda) and function.node.name in CONSTRUCTORS


def _is_in(functions: set[Function], site: CallSite) -> bool:
    """Return whether a call is in one of some functions, or in none."""
    return site.scope.function is None or site.scope.function in functions


def method_around(scope: Scope) -> Function | None:
    """Return the method whose scope this is, or in whose scope this is; None if there is none."""
    around: Scope | None = scope
    while around is not None:
        if around.function is not None and around.function.owner is not None:
            return around.function
        around = around.outer
    return None


def is_receiver(name: str, scope: Scope) -> bool:
    """Return whether a name is that of the object for which a method is called, as `self` is."""
    method = method_around(scope)
    if method is None or method.receiver is None:
        return False
    parameters = [*method.node.args.posonlyargs, *method.node.args.args]
    return name in [parameter.arg for parameter in parameters[:1]]


def _is_only_made(called: Thing) -> bool:
    """Return whether calling something makes an object of another package, or gives arrays, whatever the arguments."""
    if isinstance(called, External):
        return called.is_class and called.name not in CONTAINERS | COLLECTIONS
    return isinstance(called, Instance) and isinstance(called.of, External)


def _returned_elsewhere(called: External, arguments: Arguments) -> Things:
    """Return what calling a class or a function of another package returns, as far as names tell."""
    name = called.name
    if name in NUMBERS:
        return NOTHING
    if name in COLLECTIONS:
        return arguments.all
    if name in CONTAINERS:
        return _union((Instance(called),), arguments.all)
    if called.is_class:
        return (Instance(called),)
    # a function that wraps a module, or makes one of a class, as skip_init and partial do
    things = [thing for thing in arguments.all if not isinstance(thing, (Text, File, Unknown))]
    classes = [
        thing for thing in things if isinstance(thing, Class) or (isinstance(thing, External) and thing.is_class)
    ]
    modules = [thing for thing in things if not (isinstance(thing, External) and not thing.is_class)]
    return _union(modules, map(Instance, classes)) or CANT_TELL


# statements and expressions


def nodes_of(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and expressions in the order of the code, with definitions but not what is in them.

    Decorators, bases and defaults are outside of the definition, so they are yielded. A stack has the nodes that
    follow, the next one last.
    """
    stack = [*body][::-1]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.ClassDef):
            stack += [*node.decorator_list, *node.bases][::-1]
        elif isinstance(node, Definition):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            defaults = (value for value in (*node.args.defaults, *node.args.kw_defaults) if value is not None)
            stack += [*decorators, *defaults][::-1]
        else:
            stack += [*ast.iter_child_nodes(node)][::-1]


def _statements_of(node: Definition) -> list[ast.stmt] | list[ast.expr]:
    """Return the statements of a function; of a lambda, its expression."""
    return [node.body] if isinstance(node, ast.Lambda) else node.body


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what gets a value in a node, each with the value, or with a collection that has the value.

    `a = x`, `for a in x`, `with x as a` and `a.append(x)` give (a, x), and `a, b = x, y` gives (a, x) and (b, y).
    """
    match node:
        case ast.Assign(targets=targets, value=value):
            pairs = [(target, value) for target in targets]
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            pairs = [(target, value)]
        case ast.AugAssign(target=target, value=value):
            pairs = [(target, value)]
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            pairs = [(target, value)]
        case ast.comprehension(target=target, iter=value):
            pairs = [(target, value)]
        case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
            pairs = [(target, value)]
        case ast.Call(func=ast.Attribute(value=target, attr=method), args=args, keywords=keywords) if method in GROWING:
            pairs = [(target, value) for value in (*args, *(keyword.value for keyword in keywords))]
        case _:
            return
    for target, value in pairs:
        yield from _unpacked(target, value)


@dataclass(frozen=True)
class Named:
    """What a call gives an object under a name, all three as expressions."""

    owner: ast.expr | None
    name: ast.expr
    value: ast.expr


def named_by(node: ast.AST) -> Named | None:
    """Return what a call of `setattr` or `add_module` and their like gives an object; None for other nodes."""
    match node:
        case ast.Call(func=(ast.Name(id=called) | ast.Attribute(attr=called)) as func, args=args) if called in NAMING:
            by_name = {keyword.arg: keyword.value for keyword in node.keywords}
            arguments = [*args, *(by_name[parameter] for parameter in NAMING[called] if parameter in by_name)]
            if len(arguments) < 2:
                return None
            # the owner comes first in `setattr(owner, name, value)`, else before the dot in `owner.add_module(..)`
            *before, name, value = arguments
            owner = before[0] if before else getattr(func, "value", None)
            return Named(owner, name, value)
    return None


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield targets that are no tuples, with their values, or with a value of which each may be an item."""
    if isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        is_even = len(values) == len(target.elts) and not any(isinstance(item, ast.Starred) for item in target.elts)
        for k, item in enumerate(target.elts):
            yield from _unpacked(item, values[k] if is_even else value)
    elif isinstance(target, ast.Starred):
        yield from _unpacked(target.value, value)
    else:
        yield target, value


def _bindings_of(body: Iterable[ast.AST]) -> Bindings:
    """Return what is given to each name in a module, a class body or a function, and to the items of its collections.

    A module counts as a file of the code if it is imported relatively, or by a name without dots.
    """
    found: Bindings = {}
    items: list[tuple[str, ast.expr]] = []  # of collections, by the names of these
    for node in nodes_of(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").rpartition(".")[2]
            is_near = node.level > 0 or "." not in (node.module or "")
            for item in node.names:
                imported = Imported(module if is_near else "", item.name, node.level > 0)
                found.setdefault("*" if item.name == "*" else item.asname or item.name, []).append(imported)
        elif isinstance(node, ast.Import):
            for item in node.names:
                package, dot, _ = item.name.partition(".")
                # `import a.b as c` gives c the module b, and `import a.b` gives a the package
                name = item.name.rpartition(".")[2] if item.asname else package
                # a module of a package is no file of the code, whatever its name
                imported = Imported("", name, is_relative=False) if dot else Imported(name, "", is_relative=False)
                found.setdefault(item.asname or package, []).append(imported)
        else:
            for target, value in assigned(node):
                if name := _name_of_collection(target):
                    items.append((name, value))
                elif isinstance(target, ast.Name):
                    values = found.setdefault(target.id, [])
                    if isinstance(node, ast.Call):  # an item of a collection that grows
                        items.append((target.id, value))
                    else:
                        values.append(value)
    for name, value in items:
        if name in found:  # else the collection is one of a scope around
            found[name].append(value)
    return found


def _name_of_collection(target: ast.AST) -> str:
    """Return the name of a collection of which a target is an item; empty for others."""
    is_item = isinstance(target, ast.Subscript)
    while isinstance(target, ast.Subscript):
        target = target.value
    return target.id if is_item and isinstance(target, ast.Name) else ""


def _filled_in_functions(tree: ast.Module) -> frozenset[str]:
    """Return the names of collections to which functions of a module add items, and which they do not define.

    What the items are depends on calls, so such a collection may have anything.
    """
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = set()
    for function in functions:
        own = _bindings_of(function.body)
        for node in nodes_of(function.body):
            for target, _ in assigned(node):
                grown = target.id if isinstance(target, ast.Name) and isinstance(node, ast.Call) else ""
                found |= {_name_of_collection(target) or grown} - own.keys()
    return frozenset(found)


def _decorators(node: Definition) -> set[str]:
    """Return the last words of the names of decorators."""
    return set() if isinstance(node, ast.Lambda) else {_last_name(decorator) for decorator in node.decorator_list}


def _last_name(node: ast.AST) -> str:
    """Return the last word of a name; empty if a node is none."""
    name: str = getattr(node, "attr", getattr(node, "id", ""))
    return name


def text_of(node: ast.AST) -> str | None:
    """Return the text that an expression makes, with `*` for parts that are not known; None if it makes none.

    It is "layer_*" for `f"layer_{k}"`, `"layer_" + str(k)`, `"layer_%d" % k` and `"layer_{}".format(k)`.
    """
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) or "*" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            before, after = text_of(left), text_of(right)
            return None if before is None and after is None else f"{before or '*'}{after or '*'}"
        case ast.BinOp(left=left, op=ast.Mod()):
            template = text_of(left)
            return template and re.sub(r"%[^a-zA-Z]*[a-zA-Z]", "*", template)
        case ast.Call(func=ast.Attribute(value=left, attr="format")):
            template = text_of(left)
            return template and re.sub(r"\{[^}]*\}", "*", template)
    return None
