"""The code that a model has of its own, in files next to its weights: which of its modules are tables, or not Linear.

The code is parsed and never run. A statement such as `self.places = nn.Embedding(64, 128)` tells the class of all
modules called places; so does one with a container, `self.places = nn.ModuleList([nn.Embedding(...)])`, for its items.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

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
    is_receiver,
    named_by,
    text_of,
)
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, NUMBERED, OTHER_LAYER

LARGEST = 1 << 22  # most bytes of a file of code that is parsed
LINEAR = "Linear"
TRANSPOSED = "Conv1D"  # a class of transformers, whose weights are stored as (inputs, outputs)
OWN_WEIGHT = "a class with a weight of its own"  # in place of the name of one that is neither Linear nor a table
NOT_TOLD = "what the code does not tell"  # in place of the name of a class
ANY_NAME = "*"
NOTHING_KNOWN: frozenset[str] = frozenset()
# methods of containers whose arguments become items
ADDING = {"__init__", "append", "extend", "insert", "update", "add_module", "register_module"}
OF_ITEMS = {"dict", "OrderedDict", "update"}  # what takes items by keyword

Classes = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class OwnCode:
    """What the code of a model tells of its modules.

    `classes` has the classes of modules by their own names, which may have `*` for parts that are not known; `unread`
    has the files that are not read, each with the reason.
    """

    classes: Classes = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


NO_CODE = OwnCode()


def has_own_code(config: Mapping[str, Any]) -> bool:
    """Return whether a model is built by code of its own, which config.json names."""
    return isinstance(config.get("auto_map"), dict)


def read_own_code(folder: Path, config: Mapping[str, Any]) -> OwnCode:
    """Return what the code of a model tells of its modules; nothing without such code."""
    files: dict[str, ast.Module] = {}
    unread: dict[str, str] = {}
    for file in sorted(folder.glob("*.py")) if has_own_code(config) else ():
        if file.is_file():
            try:
                files[file.stem] = _parsed(file)
            except ValueError as error:
                unread[file.name] = str(error)
    return OwnCode(_classes_in(Code(files)), unread)


def _parsed(file: Path) -> ast.Module:
    """Return the code in a file; raise ValueError if it is not read."""
    if file.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} bytes")
    try:
        with warnings.catch_warnings(action="ignore"):  # of the code
            return ast.parse(file.read_bytes())
    except SyntaxError as error:  # code of a newer Python, or no code at all
        raise ValueError(f"{error.msg}, line {error.lineno}" if error.lineno else error.msg) from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("its expressions are nested too deeply") from error


def _classes_in(code: Code) -> dict[str, frozenset[str]]:
    """Return the classes that code gives to each attribute of its modules.

    A class of the code itself counts as Linear, or as a table, if it is derived from one; else as OWN_WEIGHT if it
    gives itself an attribute called weight. What can't be told is NOT_TOLD.
    """
    found: dict[str, set[str]] = {}
    passed: dict[str, set[str]] = {}
    for nodes, scope in code.bodies():
        makes_modules = code.makes_modules(scope)
        for node in nodes:
            for assignment in _assignments_in(node, scope, code):
                classes = _classes_meant_by(assignment.value, scope, code)
                if not (makes_modules or assignment.is_own):  # where modules are called, whose results are no modules
                    classes.discard(NOT_TOLD)
                # what a caller passes, as to set_input_embeddings, tells nothing of what the code makes
                is_passed = isinstance(assignment.value, (ast.Name, ast.Attribute)) and classes == {NOT_TOLD}
                (passed if is_passed else found).setdefault(assignment.name, set()).update(classes)
    # what was passed counts only for names to which the code itself gives nothing
    found = passed | {name: classes for name, classes in found.items() if classes}
    # modules under names that only a run could tell: if one is no Linear, any module may be it
    of_any_name = found.pop(ANY_NAME, set())
    if OWN_WEIGHT in of_any_name or any(map(_is_table, of_any_name)):
        found[ANY_NAME] = {NOT_TOLD}
    return {name: frozenset(classes) for name, classes in found.items() if classes}


def _classes_meant_by(value: ast.expr, scope: Scope, code: Code) -> set[str]:
    """Return the classes of the modules that an expression may stand for."""
    return set().union(*(_classes_of_thing(thing, code) for thing in code.meant_by(value, scope)))


def _classes_of_thing(thing: object, code: Code) -> set[str]:
    """Return the class that tells what a module is; those of its items, too, for a container.

    For a class of the code it is, in this order, Linear or a table from which it is derived; OWN_WEIGHT for a Conv1D; a
    container; a base whose name says Linear; OWN_WEIGHT if it creates a weight; its own name. What is no module, such
    as a text, has none.
    """
    match thing:
        case Instance(of=External() as of):
            return {OWN_WEIGHT if of.name == TRANSPOSED else of.name}
        case Instance(of=Class() as of):
            ancestors = code.ancestors(of)
            names = {base.name if isinstance(base, External) else base.node.name for base in ancestors}
            if known := sorted(name for name in names if name == LINEAR or _is_table(name)):
                return {known[0]}
            if TRANSPOSED in names:
                return {OWN_WEIGHT}
            if containers := names & CONTAINERS:
                return containers | _classes_of_items(of, code)
            if linear := sorted(filter(_is_linear, names)):
                return {linear[0]}
            has_weight = any(isinstance(base, Class) and _creates_weight(base.node) for base in ancestors)
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
                    keywords=keywords,
                ) if called in ADDING:
                    items = [*args, *(keyword.value for keyword in keywords)]
                    found = found.union(*(_classes_meant_by(item, scope, code) for item in items))
    return found or {NOT_TOLD}


class Assignment(NamedTuple):
    """A value that an attribute or an item gets, as an expression."""

    name: str  # of the attribute, or the index of the item if it is a text
    value: ast.expr
    is_own: bool  # whether it is one of `self`, or of what `self` has


def _assignments_in(node: ast.AST, scope: Scope, code: Code) -> Iterator[Assignment]:
    """Yield the attributes, and the items of dicts and of lists of pairs, that get a value in a node.

    All of them may become modules: `self.q = x`, `self.parts["q"] = x`, `self.add_module("q", x)`, `("q", x)`,
    `{"q": x}` and `dict(q=x)` give x to q.
    """
    for target, value in assigned(node):
        owner = target
        is_own = _is_own(target, scope)
        while isinstance(owner, ast.Subscript):  # an item, whose name may be the index
            yield from (Assignment(name, value, is_own) for name in _texts(owner.slice, scope, code))
            owner = owner.value
        if isinstance(owner, ast.Attribute):
            yield Assignment(owner.attr, value, is_own)
    if named := named_by(node):
        is_own = named.owner is not None and _is_own(named.owner, scope)
        names = _texts(named.name, scope, code) or [ANY_NAME]
        yield from (Assignment(name, named.value, is_own) for name in names)
    match node:
        case ast.Tuple(elts=[key, value]):
            yield from (Assignment(name, value, is_own=False) for name in _texts(key, scope, code))
        case ast.Dict(keys=keys, values=values):
            for named_by_key, item in zip(keys, values, strict=True):
                if named_by_key is not None:
                    yield from (Assignment(name, item, is_own=False) for name in _texts(named_by_key, scope, code))
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), keywords=keywords) if called in OF_ITEMS:
            yield from (Assignment(item.arg, item.value, is_own=False) for item in keywords if item.arg)


def _is_own(target: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is the object of a method, or part of it, as `self.layers[0].proj` is."""
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Call)):
        target = target.func if isinstance(target, ast.Call) else target.value
    return isinstance(target, ast.Name) and (target.id == "super" or is_receiver(target.id, scope))


def _texts(node: ast.expr, scope: Scope, code: Code) -> list[str]:
    """Return the texts that an expression may stand for."""
    return [thing.text for thing in code.meant_by(node, scope) if isinstance(thing, Text) and thing.text]


def _creates_weight(definition: ast.ClassDef) -> bool:
    """Return whether the code of a class gives `self` an attribute called weight."""
    for node in ast.walk(definition):
        targets = (target for target, _ in assigned(node)) if isinstance(node, (ast.Assign, ast.AnnAssign)) else ()
        for target in targets:
            if isinstance(target, ast.Attribute) and _is_self(target.value) and target.attr == "weight":
                return True
        named = named_by(node)
        if named and _is_self(named.owner) and text_of(named.name) == "weight":
            return True
    return False


def _is_self(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def kind_in_code(module: str, classes: Classes) -> str | None:
    """Return EMBEDDING or OTHER_LAYER for a module that the code makes of such a class, and never of Linear; else None.

    `classes` are those that the code gives to each attribute. A module that may have other classes, too, is not
    OTHER_LAYER: `taken_for_linear` lists it.
    """
    possible_classes = _classes_of(module, classes) - CONTAINERS
    if LINEAR in possible_classes:
        return None
    if any(map(_is_table, possible_classes)):
        return EMBEDDING
    return OTHER_LAYER if possible_classes == {OWN_WEIGHT} else None


def _classes_of(module: str, classes: Classes) -> frozenset[str]:
    """Return the classes of a module by its own name, or by that of the container of which it is an item.

    Those of "h.0.proj" are given to "proj"; those of "h.0.blocks.2.1" to "blocks", whose items may be containers.
    """
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


def taken_for_linear(modules: Iterable[str], config: Mapping[str, Any], code: OwnCode) -> list[str]:
    """Return the modules that may not be Linear, where code may say so.

    Outside the layers these are all of which no name and no code tells that they are. In the layers they are those
    whose name the code gives to modules of other classes, too, to those of unknown classes only, or to what can't be
    told; and those whose name it does not have, if a file of it is not read.
    """
    if config.get("model_type") and not has_own_code(config):  # transformers has the code
        return []
    found = []
    for module in modules:
        is_known_by_name = NUMBERED.search(module) is not None and not code.unread
        if _may_be_another(_classes_of(module, code.classes), is_known_by_name):
            found.append(module)
    return found


def _may_be_another(classes: frozenset[str], is_known_by_name: bool) -> bool:
    """Return whether a module of such classes may not be Linear, or nothing tells that it is."""
    is_other = not classes.isdisjoint((OWN_WEIGHT, NOT_TOLD)) or any(map(_is_table, classes))
    is_of_unknown_class = bool(classes - CONTAINERS) and not any(map(_is_linear, classes))
    return is_other or is_of_unknown_class or not (is_known_by_name or LINEAR in classes)
