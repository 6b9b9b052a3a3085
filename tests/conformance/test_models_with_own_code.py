"""transformers loads models with code of their own as the printed call says, whatever their tables are called."""

import importlib.util
import json

import numpy as np
import pytest
from commands import told

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers

CODE = """
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

Table = nn.Embedding


class Config(PretrainedConfig):
    model_type = "tables"

    def __init__(self, hidden_size=128, vocab_size=160, **more):
        self.hidden_size = hidden_size
        self.vocab_size = vocab_size
        super().__init__(**more)


class Turn(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, size))

    def forward(self, x):
        return x @ self.weight.T


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.mix = nn.Linear(size, size)
        self.turn = Turn(size)
        self.kinds = nn.Embedding(64, size)

    def forward(self, x):
        return x + self.mix(x) + self.turn(x) + self.kinds(torch.ones(1, dtype=torch.long))


class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        size = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, size)
        self.places = PLACES(128, size)
        self.blocks = nn.ModuleList([Block(size)])
        self.before = nn.Linear(size, size)
        self.to_words = nn.Linear(size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, **more):
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.to_words(self.before(x))
"""


CLASSES = {"PyTorch's": "nn.Embedding", "another name": "Table", "found when it runs": 'vars(nn)["Embedding"]'}


@pytest.fixture(scope="module", params=CLASSES)
def model(request, tmp_path_factory):
    """A directory with code, whose statements say what all tables are, or not of one; its logits."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "tables.py").write_text(CODE.replace("PLACES", CLASSES[request.param]))
    spec = importlib.util.spec_from_file_location(f"tables_{[*CLASSES].index(request.param)}", folder / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    network = module.Model(module.Config())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1)
    network.save_pretrained(folder)
    path = folder / "config.json"
    entries = {"AutoConfig": "tables.Config", "AutoModelForCausalLM": "tables.Model"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": entries}))
    ids = torch.arange(20)[None]
    return folder, request.param, ids, network(ids).detach().numpy()


@pytest.mark.parametrize("options", [[], ["--include", "*turn"]])
@pytest.mark.parametrize("scheme", ["FP8_DYNAMIC", "W8A8", "W8A16"])
def test_the_printed_call_loads_it(model, scheme, options, tmp_path):
    """The layer whose class is not Linear stays, or is read as floats."""
    folder, table, ids, logits = model
    said = told("convert", folder, tmp_path / "q", "--scheme", scheme, *options, exit_code=0)
    assert ("places is taken for a Linear layer" in said) == (table == "found when it runs")
    assert ("not Linear in the code of the model" in said) == (not options)
    imports, call = (line.partition(": ")[2] for line in said.splitlines()[-2:])
    names = {}
    exec(imports, names)
    loaded = eval(call, names)
    found = loaded(ids).detach().float().numpy()
    noise = np.square(found - logits).mean() / np.square(logits).mean()
    assert noise < 0.01
