"""The code of a model is looked up as Python does: the same code is run here, with stand-ins for PyTorch's classes."""

import sys
import types
import warnings

import pytest

from fastq.tools.checkpoints.own_code import kind_in_code, read_own_code, taken_for_linear

OWN = {"auto_map": {"AutoModel": "code.Model"}}


class Module:
    def __init__(self, *arguments, **options):
        pass

    def __setattr__(self, name, value):
        self.__dict__[name] = value

    def add_module(self, name, module):
        setattr(self, name, module)

    def register_module(self, name, module):
        setattr(self, name, module)

    def to(self, dtype):
        return self


class Linear(Module):
    pass


class Embedding(Module):
    @classmethod
    def from_pretrained(cls, table):
        return cls(*table)


class ModuleList(Module):
    def __init__(self, items=()):
        self.extend(items)

    def append(self, module):
        setattr(self, str(len(self.__dict__)), module)

    def extend(self, modules):
        for module in modules:
            self.append(module)


class Sequential(ModuleList):
    def __init__(self, *items):
        super().__init__(items)


class ModuleDict(Module):
    def __init__(self, items=()):
        self.__dict__.update(items)

    def __setitem__(self, name, item):
        setattr(self, name, item)


def stand_in():
    """The module `torch`, and those in it."""
    nn = types.ModuleType("torch.nn")
    for each in (Module, Linear, Embedding, ModuleList, ModuleDict, Sequential):
        setattr(nn, each.__name__, each)
    nn.skip_init = lambda made, *arguments: made(*arguments)
    nn.Parameter = lambda *size: size
    torch = types.ModuleType("torch")
    torch.nn = nn
    return {"torch": torch, "torch.nn": nn}


def modules_of(module, path=""):
    """All modules in one, by their names."""
    for name, value in vars(module).items():
        if isinstance(value, Module):
            yield f"{path}{name}", value
            yield from modules_of(value, f"{path}{name}.")


START = "from torch import nn\n"
# code by what it is about; the classes of modules are those that it makes when it runs
CODE = {
    "methods of two factories": """
class LinearFactory:
    def build(self, size): return nn.Linear(size, size)
class TableFactory:
    def build(self, size): return nn.Embedding(size, size)
class Model(nn.Module):
    def __init__(self):
        linear, tables = LinearFactory(), TableFactory()
        self.a = linear.build(4)
        self.b = tables.build(4)
        self.c = TableFactory().build(4)
        self.d = LinearFactory().build(4)
""",
    "static methods, class methods, and a function of the same name": """
class Linears:
    @staticmethod
    def build(size): return nn.Linear(size, size)
class Tables:
    kind = nn.Embedding
    @classmethod
    def build(cls, size): return cls.kind(size, size)
def build(size): return nn.Linear(size, size)
class Model(nn.Module):
    def __init__(self):
        self.a, self.b, self.c = Linears.build(4), Tables.build(4), build(4)
""",
    "methods of the class itself": """
class Attention(nn.Module):
    def __init__(self): self.mix = self.build()
    def build(self): return nn.Linear(4, 4)
class Places(nn.Module):
    def __init__(self): self.table = self.build()
    def build(self): return nn.Embedding(4, 4)
class Model(nn.Module):
    def __init__(self):
        self.attention, self.places = Attention(), Places()
""",
    "methods that a class derived from another has": """
class Base(nn.Module):
    def __init__(self): self.inner = self.build()
    def build(self): raise NotImplementedError
class Model(Base):
    def build(self): return nn.Embedding(4, 4)
""",
    "methods of the base": """
class Base(nn.Module):
    def build(self): return nn.Embedding(4, 4)
class Other(nn.Module):
    def build(self): return nn.Linear(4, 4)
class Model(Base):
    def __init__(self):
        self.a = self.build()
        self.b = super().build()
        self.c = Other().build()
        self.d = Base.build(self)
""",
    "the nearest base": """
class Top(nn.Module):
    def build(self): return nn.Linear(4, 4)
class Left(Top): pass
class Right(Top):
    def build(self): return nn.Embedding(4, 4)
class Model(Left, Right):
    def __init__(self): self.a = self.build()
""",
    "arguments": """
def make(kind, *size): return kind(*size)
def wrap(module): return module
class Model(nn.Module):
    def __init__(self):
        self.a = make(nn.Linear, 4, 4)
        self.b = make(nn.Embedding, 4, 4)
        self.c = wrap(make(kind=nn.Embedding))
        self.d = nn.skip_init(nn.Embedding, 4, 4)
        self.e = (lambda kind=nn.Linear: kind(4, 4))()
""",
    "class methods of PyTorch": """
class Words(nn.Embedding): pass
class Model(nn.Module):
    def __init__(self):
        self.a = nn.Embedding.from_pretrained([4, 4])
        self.b = Words.from_pretrained([4, 4])
        self.c = nn.Embedding(4, 4).to("float16")
        self.d = nn.Linear(4, 4).to("float16")
""",
    "names that differ by scope": """
Kind = nn.Linear
class Model(nn.Module):
    def __init__(self):
        self.a = self.other()
        self.b = Kind(4, 4)
    def other(self):
        Kind = nn.Embedding
        return Kind(4, 4)
""",
    "functions in functions": """
def outer(size):
    def build(): return nn.Embedding(size, size)
    return build()
def build(): return nn.Linear(4, 4)
class Model(nn.Module):
    def __init__(self):
        self.a, self.b = outer(4), build()
""",
    "attributes with classes": """
class Base(nn.Module):
    def __init__(self):
        self.made_of = nn.Embedding
        self.a = self.kind(4, 4)
        self.b = self.made_of(4, 4)
class Tables(Base): kind = nn.Embedding
class Model(nn.Module):
    def __init__(self):
        self.tables = Tables()
        self.c = self.tables.a
""",
    "items of containers": """
class Model(nn.Module):
    def __init__(self):
        self.lists = nn.ModuleList()
        for _ in range(2): self.lists.append(nn.Embedding(4, 4))
        items = []
        items.append(nn.Embedding(4, 4))
        self.more = nn.Sequential(*items)
        self.nested = nn.ModuleList([nn.ModuleList([nn.Embedding(4, 4)])])
        self.by_name = nn.ModuleDict({k: nn.Embedding(4, 4) for k in ("a", "b")})
        self.given = nn.ModuleDict()
        self.given["c"] = nn.Embedding(4, 4)
        self.linears = nn.ModuleList([nn.Linear(4, 4)])
""",
    "containers of the code": """
class Tables(nn.Sequential):
    def __init__(self): super().__init__(nn.Embedding(4, 4))
class Linears(nn.ModuleList):
    def __init__(self):
        super().__init__()
        self.append(nn.Linear(4, 4))
class Model(nn.Module):
    def __init__(self):
        self.tables, self.linears = Tables(), Linears()
""",
    "names that are put together": """
class Model(nn.Module):
    def __init__(self):
        for k in range(2):
            setattr(self, f"table_{k}", nn.Embedding(4, 4))
            self.add_module("place_%d" % k, nn.Embedding(4, 4))
            setattr(self, "kind_" + str(k), nn.Embedding(4, 4))
            setattr(self, "mix_{}".format(k), nn.Linear(4, 4))
        for name in ("x", "y"):
            setattr(self, name, nn.Embedding(4, 4))
""",
    "classes by name": """
KINDS = {"table": nn.Embedding}
class Model(nn.Module):
    def __init__(self):
        self.a = KINDS["table"](4, 4)
        self.b = getattr(nn, "Embedding")(4, 4)
        self.c = KINDS.get("table")(4, 4)
""",
    "classes in classes": """
class Model(nn.Module):
    class Words(nn.Embedding): pass
    class Mix(nn.Linear): pass
    def __init__(self):
        self.a, self.b = self.Words(4, 4), Model.Mix(4, 4)
""",
    "properties and __new__": """
class Disguised(nn.Module):
    def __new__(cls, *size): return nn.Embedding(*size)
class Model(nn.Module):
    def __init__(self):
        self.a = Disguised(4, 4)
        self.b = self.made
    @property
    def made(self): return nn.Embedding(4, 4)
""",
    "names that callers pass": """
def add(module, name, made): setattr(module, name, made)
class Model(nn.Module):
    def __init__(self):
        def put(name, kind): self.add_module(name, kind(4, 4))
        put("a", nn.Embedding)
        put("b", nn.Linear)
        add(self, "c", nn.Embedding(4, 4))
""",
    "names and modules by keyword": """
class Linears(nn.ModuleList):
    def __init__(self):
        super().__init__()
        self.append(module=nn.Linear(4, 4))
class Model(nn.Module):
    def __init__(self):
        self.add_module(name="a", module=nn.Embedding(4, 4))
        self.add_module("b", module=nn.Embedding(4, 4))
        self.register_module(module=nn.Linear(4, 4), name="c")
        self.register_module("d", nn.Embedding(4, 4))
        super().add_module("e", nn.Embedding(4, 4))
        nn.Module.add_module(self, "f", nn.Embedding(4, 4))
        setattr(self, "g", nn.Embedding(4, 4))
        self.__setattr__("h", nn.Embedding(4, 4))
        nn.Module.__setattr__(self, "i", nn.Linear(4, 4))
        self.j, self.k = self.a, self.c
        self.lists = nn.ModuleList()
        self.lists.append(module=nn.Embedding(4, 4))
        self.lists.extend(modules=[nn.Embedding(4, 4)])
        self.by_name = nn.ModuleDict(dict(l=nn.Embedding(4, 4), m=nn.Linear(4, 4)))
        self.linears = Linears()
""",
    "classes that callers pass instead of the default": """
class Wrap(nn.Module):
    def __init__(self, kind=nn.Embedding): self.m = kind(4, 4)
class Model(nn.Module):
    def __init__(self): self.inner = Wrap(kind=nn.Linear)
""",
    "defaults that callers leave": """
class Wrap(nn.Module):
    def __init__(self, size, kind=nn.Embedding): self.m = kind(size, size)
class Model(nn.Module):
    def __init__(self): self.inner = Wrap(4)
""",
    "classes that callers pass on": """
class Wrap(nn.Module):
    def __init__(self, kind=nn.Embedding):
        self.kind = kind
        self.m = self.build(4)
    def build(self, size): return self.kind(size, size)
class Block(nn.Module):
    def __init__(self, kind=nn.Embedding): self.wrap = Wrap(kind)
class Outer(nn.Module):
    def __init__(self, *others, kind=nn.Embedding): self.blocks = nn.ModuleList([Block(kind=kind) for _ in range(2)])
class Model(nn.Module):
    def __init__(self): self.outer = Outer(4, kind=nn.Linear)
""",
    "classes that are passed to a base": """
class Base(nn.Module):
    def __init__(self, kind=nn.Embedding): self.m = kind(4, 4)
class Other(nn.Module):
    def __init__(self, kind=nn.Embedding): self.n = kind(4, 4)
class Middle(Base): pass
class Mixed(Middle, Other):
    def __init__(self):
        super().__init__(nn.Linear)
        Other.__init__(self, nn.Linear)
class Model(nn.Module):
    def __init__(self): self.mixed = Mixed()
""",
    "classes that are passed to functions": """
from functools import partial
def fill(module, kind=nn.Embedding): module.a = kind(4, 4)
class Wrap(nn.Module):
    def __init__(self, kind=nn.Embedding): self.m = kind(4, 4)
class Model(nn.Module):
    LATER = lambda: Wrap(kind=nn.Linear)
    def __init__(self):
        fill(self, nn.Linear)
        self.put(kind=nn.Linear)
        self.inner = Model.LATER()
    def put(self, kind=nn.Embedding): self.b = kind(4, 4)
""",
    "recursion": """
def build(depth): return build(depth - 1) if depth else nn.Embedding(4, 4)
def even(n): return nn.Linear(4, 4) if n == 0 else odd(n - 1)
def odd(n): return even(n - 1)
class Model(nn.Module):
    def __init__(self):
        self.a, self.b, self.c = build(3), odd(1), even(0)
""",
}


def told_of(folder, names):
    code = read_own_code(folder, OWN)
    left = {name: kind_in_code(name, code.classes) for name in names}
    return left, taken_for_linear([name for name in names if not left[name]], OWN, code)


@pytest.mark.parametrize("about", CODE)
def test_modules_are_what_running_the_code_makes(tmp_path, monkeypatch, about):
    for name, module in stand_in().items():
        monkeypatch.setitem(sys.modules, name, module)
    (tmp_path / "code.py").write_text(START + CODE[about])
    names = {}
    exec(START + CODE[about], names)
    made = {name: module for name, module in modules_of(names["Model"]()) if isinstance(module, (Linear, Embedding))}
    assert made
    left, assumed = told_of(tmp_path, made)
    assert left == {name: "embedding" if isinstance(module, Embedding) else None for name, module in made.items()}
    assert assumed == []


def test_names_are_those_of_their_file(tmp_path):
    """Both files have a `Block` and a `build`; star imports and modules lead to them, too."""
    (tmp_path / "tables.py").write_text(
        f"{START}class Block(nn.Embedding): ...\ndef build(): return nn.Embedding(4, 4)\n"
        "class Only(nn.Embedding): ...\n"
    )
    (tmp_path / "linears.py").write_text(f"{START}class Block(nn.Linear): ...\ndef build(): return nn.Linear(4, 4)\n")
    (tmp_path / "code.py").write_text(
        f"{START}from . import tables\nfrom .linears import Block, build as make\nimport linears as other\n"
        "from .tables import *\nfrom .tables import Block as Table\n"
        "class Model(nn.Module):\n    def __init__(self):\n"
        "        self.a, self.b, self.c = Block(), make(), tables.build()\n"
        "        self.d, self.e, self.f = tables.Block(), other.Block(), Only()\n"
        "        self.g = Table()\n"
    )
    left, assumed = told_of(tmp_path, "abcdefg")
    assert [name for name in "abcdefg" if left[name]] == [*"cdfg"]
    assert assumed == []


NOT_TOLD = {
    "an argument": "    def __init__(self, make): self.layers = nn.ModuleList([make(4)])",
    "an argument with a default": "    def __init__(self, kind=nn.Linear): self.inner = kind(4, 4)",
    "a factory of another package": "    def __init__(self): self.inner = factory.build(4)",
    "a method that no class has": "    def __init__(self): self.inner = self.build(4)",
    "a method of an unknown object": "    def __init__(self, config): self.inner = config.build(4)",
    "what is found when it runs": '    def __init__(self): self.inner = vars(nn)["Embedding"](4, 4)',
    "one of two": "    def __init__(self, c): self.inner = nn.Linear(4, 4) if c else nn.Embedding(4, 4)",
    "one of a table": "    def __init__(self, c): self.inner = {1: nn.Linear, 2: nn.Embedding}[c](4, 4)",
    "one of two that callers pass": """    def __init__(self): self.a, self.b = Wrap(nn.Linear), Wrap(nn.Embedding)
class Wrap(nn.Module):
    def __init__(self, kind=nn.Embedding): self.inner = kind(4, 4)""",
    "the default, or what one caller passes": """    def __init__(self): self.a, self.b = Wrap(kind=nn.Linear), Wrap()
class Wrap(nn.Module):
    def __init__(self, kind=nn.Embedding): self.inner = kind(4, 4)""",
    "an unknown class in place of a default": """    def __init__(self, config): self.a = Wrap(config.kind)
class Wrap(nn.Module):
    def __init__(self, kind=nn.Embedding): self.inner = kind(4, 4)""",
    "a default that another package may leave": """    def __init__(self): self.a = partial(Wrap, kind=nn.Linear)()
class Wrap(nn.Module):
    def __init__(self, kind=nn.Embedding): self.inner = kind(4, 4)""",
    "what only itself calls": """    def __init__(self, n, kind=nn.Linear):
        self.inner = kind(4, 4)
        self.more = Model(n - 1, kind)""",
    "what a caller gives": "    def __init__(self, inner): self.inner = inner",
    "a class that another package has": "    def __init__(self): self.inner = Mixer(4, 4)",
    "a class that is registered": """    def __init__(self, name): self.inner = KNOWN[name](4, 4)
KNOWN = {}
def register(kind):
    KNOWN[kind.__name__] = kind
    return kind
@register
class Words(nn.Embedding): ...""",
    "under a name that is not known": "    def __init__(self, name): setattr(self, name, nn.Embedding(4, 4))",
}


@pytest.mark.parametrize("about", NOT_TOLD)
def test_what_the_code_does_not_tell_is_said(tmp_path, about):
    """Within the layers, too, where others are Linear. A `build` of another class is none of it."""
    other = "class Factory:\n    def build(self, size): return nn.Linear(size, size)\n"
    (tmp_path / "code.py").write_text(f"{START}{other}class Model(nn.Module):\n{NOT_TOLD[about]}\n")
    name = "h.3.layers.0" if "layers" in NOT_TOLD[about] else "h.3.inner"
    left, assumed = told_of(tmp_path, [name])
    assert left == {name: None}
    assert assumed == [name]


RESULTS = {
    "an item of a dict": 'out = {"logits": self.head(x)}',
    "an item that is assigned": 'outputs["logits"] = self.head(x)',
    "a pair": 'return [("logits", self.head(x))]',
    "an item by keyword": "return dict(logits=self.head(x))",
    "an attribute of an output": "out.logits = self.head(x)",
    "a function of another package": 'out = {"logits": torch.stack(x)}',
    "a function that is called": "return self.collect(x)",
    "a name that is put together": 'setattr(out, "logits", self.head(x))',
}


@pytest.mark.parametrize("about", RESULTS)
def test_results_of_modules_are_no_modules(tmp_path, about):
    """A module of the same name is Linear as far as the code tells; the head may be of any class."""
    (tmp_path / "code.py").write_text(
        f"{START}class Model(nn.Module):\n    def __init__(self, config):\n"
        "        self.head = config.build(4)\n        self.logits = nn.Linear(4, 4)\n"
        f"    def forward(self, x, out, outputs):\n        {RESULTS[about]}\n"
        "    def collect(self, x): return {'logits': self.head(x)}\n"
    )
    assert told_of(tmp_path, ["logits"]) == ({"logits": None}, [])


def test_modules_that_are_given_to_self_in_any_method_count(tmp_path):
    """So do items of dicts in constructors, and in what they call."""
    (tmp_path / "code.py").write_text(
        f"{START}class Model(nn.Module):\n    def __init__(self, config):\n        self.fill(config)\n"
        "        self.all = nn.ModuleDict({'a': config.build(4)})\n"
        "    def fill(self, config): self.more = nn.ModuleDict({'b': config.build(4)})\n"
        "    def forward(self, x):\n        self.c = build(x)\n        self.more['d'] = build(x)\n"
        "        self.add_module('e', build(x))\n        self.more['f'] = nn.Embedding(4, 4)\n"
    )
    names = [f"h.0.{name}" for name in "abcdef"]
    left, assumed = told_of(tmp_path, names)
    assert left == dict.fromkeys(names, None) | {"h.0.f": "embedding"}
    assert assumed == names[:-1]


def test_what_callers_give_later_tells_nothing_of_what_is_made(tmp_path):
    (tmp_path / "code.py").write_text(
        f"{START}class Model(nn.Module):\n    def __init__(self): self.inner = nn.Linear(4, 4)\n"
        "    def set_inner(self, inner): self.inner = inner\n"
    )
    assert told_of(tmp_path, ["inner"]) == ({"inner": None}, [])


def test_code_that_has_no_end_is_said(tmp_path):
    """Functions that call each other with ever longer lists, and a class that is its own base."""
    (tmp_path / "code.py").write_text(
        f"{START}def f(*a): return g(a, *a)\ndef g(*a): return f(lambda: f(a), *a)\n"
        "class A(A): pass\nclass B(C): pass\nclass C(B): pass\n"
        f"class Model(nn.Module):\n    def __init__(self):\n        self.inner = f(nn.Embedding)\n"
        f"        self.deep = {'(' * 80}nn.Embedding(4, 4){')' * 80}\n        self.a, self.b = A(), C()\n"
        f"        self.long = {'+'.join(['[nn.Embedding(4, 4)]'] * 300)}\n"
    )
    left, assumed = told_of(tmp_path, ["h.0.inner", "h.0.deep", "h.0.a", "h.0.b", "h.0.long"])
    assert left["h.0.deep"] == "embedding"
    assert "h.0.inner" in assumed or left["h.0.inner"]
    assert "h.0.long" in assumed or left["h.0.long"]


@pytest.mark.parametrize("base", ["", "class Mix(Conv1D): ...\n"])
def test_layers_with_transposed_weights_stay(tmp_path, base):
    """Those of transformers' Conv1D are (inputs, outputs); other classes that are called linear are Linear ones."""
    (tmp_path / "code.py").write_text(
        f"{START}from transformers.pytorch_utils import Conv1D\nfrom x import RowParallelLinear, FusedDense\n{base}"
        f"class Model(nn.Module):\n    def __init__(self):\n        self.a = {'Mix' if base else 'Conv1D'}(4, 4)\n"
        "        self.b, self.c = RowParallelLinear(4, 4), FusedDense(4, 4)\n"
    )
    left, assumed = told_of(tmp_path, ["h.0.a", "h.0.b", "h.0.c"])
    assert left == {"h.0.a": "not Linear in the code of the model", "h.0.b": None, "h.0.c": None}
    assert assumed == []


def write_code(folder, model, **files):
    for name, text in {"code": model, **files}.items():
        (folder / f"{name}.py").write_text(text)


@pytest.mark.parametrize("line", ["import torch.nn as nn", "import torch.nn\nnn = torch.nn"])
def test_modules_of_packages_are_no_files_of_the_same_name(tmp_path, line):
    model = f"{line}\nclass Model(nn.Module):\n    def __init__(self): self.a = nn.Embedding(1, 2)\n"
    write_code(tmp_path, model, nn="x = 1", torch="x = 1")
    assert told_of(tmp_path, ["a"]) == ({"a": "embedding"}, [])


@pytest.mark.parametrize("base", ["nn.Module", "nn.Sequential"])
def test_long_chains_of_calls_are_not_told(tmp_path, base):
    """They are more than what Python's own `ast` turns into text."""
    chain = f"x{'.f()' * 420}"
    init = f"        {chain}.y = 1\n        {chain}.append(nn.Linear(1, 2))\n        self.b = nn.Embedding(1, 2)\n"
    block = f"class Block({base}):\n    def __init__(self, x):\n{init}"
    model = f"class Model(nn.Module):\n    def __init__(self, x): self.a, self.c = Block(x), {chain}\n"
    write_code(tmp_path, f"{START}{block}{model}")
    left, assumed = told_of(tmp_path, ["b", "c"])
    assert left == {"b": "embedding", "c": None}
    assert assumed == ["c"]


def test_code_that_is_no_python_is_named(tmp_path):
    """What only such code could tell is assumed, in the layers, too."""
    write_code(tmp_path, f"{START}class Model(nn.Module):\n    def __init__(self): self.a = nn.Linear(1, 2)\n")
    assert told_of(tmp_path, ["a", "h.0.b"]) == ({"a": None, "h.0.b": None}, [])
    write_code(tmp_path, (tmp_path / "code.py").read_text(), broken="x = 1\ndef f(:\n", zeros="x\0", deep="(" * 400)
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    assert told_of(tmp_path, ["a", "h.0.b"]) == ({"a": None, "h.0.b": None}, ["h.0.b"])
    unread = read_own_code(tmp_path, OWN).unread
    assert [*unread] == ["broken.py", "deep.py", "latin.py", "zeros.py"]
    assert unread["broken.py"] == "invalid syntax, line 2"


def test_code_that_warns_is_read_in_silence(tmp_path):
    """As by escapes that Python does not know."""
    write_code(
        tmp_path, f"{START}PATTERN = '\\d'\nclass Model(nn.Module):\n    def __init__(self): self.a = nn.Linear(1, 2)\n"
    )
    with warnings.catch_warnings(action="error"):
        code = read_own_code(tmp_path, OWN)
    assert code.classes["a"] == {"Linear"}
    assert not code.unread
