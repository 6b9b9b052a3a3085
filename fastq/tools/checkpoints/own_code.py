"""The code that a model has of its own, in files next to its weights: which of its modules are tables, or not Linear.

The code is parsed and never run. A statement such as `self.places = nn.Embedding(64, 128)` tells the class of all
modules called places; so does one with a container, `self.places = nn.ModuleList([nn.Embedding(...)])`, for its items.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeGuard

from fastq.tools.checkpoints.names_in_code import (
    CONTAINERS,
    Class,
    Code,
    External,
    Instance,
    Member,
    Scope,
    Text,
    Unknown,
    assigned,
)
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, NUMBERED, OTHER_LAYER

LARGEST = 1 << 22  # most bytes of a file of code that is parsed
LINEAR = "Linear"
TRANSPOSED = "Conv1D"  # a class of transformers, whose weights are stored as (inputs, outputs)
OWN_WEIGHT = "a class with a weight of its own"  # in place of the name of one that is neither Linear nor a table
NOT_TOLD = "what the code does not tell"  # in place of the name of a class
ANY_NAME = "*"
# functions that give something a name, and the argument that is the name; the next one is what gets it
NAMING = {"setattr": 1, "add_module": 0, "register_module": 0, "register_parameter": 0}
NOTHING_KNOWN: frozenset[str] = frozenset()
# methods of containers whose arguments become items
ADDING = {"__init__", "append", "extend", "insert", "update", "add_module", "register_module"}

Classes = Mapping[str, frozenset[str]]
Body = tuple[list[ast.AST], Scope]  # the statements and expressions of a function


def has_own_code(config: Mapping[str, Any]) -> bool:
    """Return whether a model is built by code of its own, which config.json names."""
    return isinstance(config.get("auto_map"), dict)


def classes_in_code(folder: Path, config: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the classes that the code of a model gives to each attribute of its modules; empty without such code.

    A class of the code itself counts as Linear, or as a table, if it is derived from one; else as OWN_WEIGHT if it
    gives itself an attribute called weight. What can't be told is NOT_TOLD. A name may have `*` for parts that are not
    known.
    """
    files = {}
    for file in sorted(folder.glob("*.py")) if has_own_code(config) else ():
        if file.is_file() and file.stat().st_size <= LARGEST:
            try:
                files[file.stem] = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError, RecursionError, MemoryError):  # code of a newer Python, or no code at all
                continue
    code = Code(files)
    found: dict[str, set[str]] = {}
    passed: dict[str, set[str]] = {}
    bodies = [*code.bodies()]
    for nodes, scope in [*bodies, *_calls_that_name(bodies, code)]:
        for node in nodes:
            for name, value in _given_in(node, scope, code):
                classes = _classes_meant_by(value, scope, code)
                # what a caller passes, as to set_input_embeddings, tells nothing of what the code makes
                is_passed = isinstance(value, (ast.Name, ast.Attribute)) and classes == {NOT_TOLD}
                (passed if is_passed else found).setdefault(name, set()).update(classes)
    found = passed | {name: classes for name, classes in found.items() if classes}
    of_any_name = found.pop(ANY_NAME, set())
    if OWN_WEIGHT in of_any_name or any(map(_is_table, of_any_name)):
        found[ANY_NAME] = {NOT_TOLD}
    return {name: frozenset(classes) for name, classes in found.items()}


def _calls_that_name(bodies: Iterable[Body], code: Code) -> Iterator[Body]:
    """Yield the functions that give modules names which their callers pass, each with the arguments of a call."""
    naming: dict[object, list[ast.AST]] = {}
    for nodes, scope in bodies:
        if any(name == ANY_NAME for node in nodes for name, _ in _given_in(node, scope, code)):
            naming[scope.function] = nodes
    for nodes, scope in bodies if naming else ():
        for node in nodes:
            for called in code.scopes_of_call(node, scope) if isinstance(node, ast.Call) else ():
                if called.function in naming:
                    yield naming[called.function], called


def _classes_meant_by(value: ast.expr, scope: Scope, code: Code) -> set[str]:
    """Return the classes of the modules that an expression may stand for."""
    return set().union(*(_classes_of_thing(thing, code) for thing in code.meant_by(value, scope)))


def _classes_of_thing(thing: object, code: Code) -> set[str]:
    """Return the class that tells what a module is; those of its items, too, for a container."""
    match thing:
        case Instance(of=External() as of):
            return {OWN_WEIGHT if of.name == TRANSPOSED else of.name}
        case Instance(of=Class() as of):
            ancestors = code.ancestors(of)
            names = {each.name if isinstance(each, External) else each.node.name for each in ancestors}
            if known := sorted(each for each in names if each == LINEAR or _is_table(each)):
                return {known[0]}
            if TRANSPOSED in names:
                return {OWN_WEIGHT}
            if containers := names & CONTAINERS:
                return containers | _classes_of_items(of, code)
            if linear := sorted(filter(_is_linear, names)):
                return {linear[0]}
            has_weight = any(isinstance(each, Class) and _creates_weight(each.node) for each in ancestors)
            return {OWN_WEIGHT if has_weight else of.node.name}
        case Unknown() | Member():
            return {NOT_TOLD}
    return set()


def _classes_of_items(container: Class, code: Code) -> set[str]:
    """Return the classes of what a container of the code puts into itself; NOT_TOLD without any."""
    found: set[str] = set()
    for method in code.methods(container):
        nodes, scope = code.body_of(method)
        for node in nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="self") | ast.Call(func=ast.Name(id="super")), attr=called),
                    args=args,
                ) if called in ADDING:
                    found = found.union(*(_classes_meant_by(each, scope, code) for each in args))
    return found or {NOT_TOLD}


def _given_in(node: ast.AST, scope: Scope, code: Code) -> Iterator[tuple[str, ast.expr]]:
    """Yield attributes, and items of dicts and of lists of pairs, that get a value in a node, with the value."""
    for target, value in assigned(node):
        owner = target
        while isinstance(owner, ast.Subscript):  # an item, whose name may be the index
            yield from ((name, value) for name in _texts(owner.slice, scope, code))
            owner = owner.value
        if isinstance(owner, ast.Attribute):
            yield owner.attr, value
    match node:
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=args) if called in NAMING:
            named = args[NAMING[called] : NAMING[called] + 2]
            if len(named) == 2:
                names = _texts(named[0], scope, code) or [ANY_NAME]
                yield from ((name, named[1]) for name in names)
        case ast.Tuple(elts=[key, value]):
            yield from ((name, value) for name in _texts(key, scope, code))
        case ast.Dict(keys=keys, values=values):
            for named_by, item in zip(keys, values, strict=True):
                yield from ((name, item) for name in (_texts(named_by, scope, code) if named_by else ()))


def _texts(node: ast.expr, scope: Scope, code: Code) -> list[str]:
    """Return the texts that an expression may stand for."""
    return [thing.text for thing in code.meant_by(node, scope) if isinstance(thing, Text) and thing.text]


def _creates_weight(scope: ast.ClassDef) -> bool:
    """Return whether the code of a class gives `self` an attribute called weight."""
    for node in ast.walk(scope):
        match node:
            case ast.Assign() | ast.AnnAssign(value=ast.expr()) if any(
                _is_own(target) and target.attr == "weight" for target, _ in assigned(node)
            ):
                return True
            case (
                ast.Call(
                    func=ast.Attribute(value=ast.Name(id="self"), attr="register_parameter"),
                    args=[ast.Constant(value="weight"), *_],
                )
                | ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id="self"), ast.Constant(value="weight"), *_])
            ):
                return True
    return False


def _is_own(target: ast.expr) -> TypeGuard[ast.Attribute]:
    """Return whether an expression is an attribute of `self`."""
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"


def kind_in_code(module: str, classes: Classes) -> str | None:
    """Return EMBEDDING or OTHER_LAYER for a module of such a class and no Linear one, given those of attributes."""
    own = _classes_of(module, classes) - CONTAINERS
    if LINEAR in own:
        return None
    if any(map(_is_table, own)):
        return EMBEDDING
    return OTHER_LAYER if own == {OWN_WEIGHT} else None


def _classes_of(module: str, classes: Classes) -> frozenset[str]:
    """Return the classes of a module by its own name, or by that of the container of which it is an item."""
    *parents, name = module.split(".")
    if found := _classes_of_name(name, classes):
        return found
    while name.isdigit() and parents and parents[-1].isdigit():  # an item of an item
        parents.pop()
    of_container = _classes_of_name(parents[-1], classes) if parents else NOTHING_KNOWN
    return of_container if of_container & CONTAINERS else classes.get(ANY_NAME, NOTHING_KNOWN)


def _classes_of_name(name: str, classes: Classes) -> frozenset[str]:
    """Return the classes of modules of a name, which code may have given in parts."""
    if name in classes:
        return classes[name]
    patterns = (pattern for pattern in classes if ANY_NAME in pattern and pattern != ANY_NAME)
    return NOTHING_KNOWN.union(*(classes[pattern] for pattern in patterns if fnmatchcase(name, pattern)))


def _is_linear(name: str) -> bool:
    """Return whether the name of a class says that it is a Linear one, as ColumnParallelLinear does."""
    return "linear" in name.lower() or "dense" in name.lower()


def _is_table(name: str) -> bool:
    return name in ("Embedding", "EmbeddingBag") or name.endswith("ParallelEmbedding")


def taken_for_linear(modules: Iterable[str], config: Mapping[str, Any], classes: Classes) -> list[str]:
    """Return the modules that may not be Linear, where code may say so.

    Outside the layers these are all of which no name and no code tells that they are. In the layers they are those
    whose name the code gives to modules of other classes, too, to those of unknown classes only, or to what can't be
    told.
    """
    if config.get("model_type") and not has_own_code(config):  # transformers has the code
        return []
    return [module for module in modules if _may_be_another(_classes_of(module, classes), NUMBERED.search(module))]


def _may_be_another(classes: frozenset[str], in_layers: object) -> bool:
    is_other = not classes.isdisjoint((OWN_WEIGHT, NOT_TOLD)) or any(map(_is_table, classes))
    of_unknown = classes - CONTAINERS and not any(map(_is_linear, classes))
    return bool(is_other or of_unknown or not (in_layers or LINEAR in classes))
