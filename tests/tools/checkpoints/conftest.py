"""A model directory, and the output of the command for it."""

import shutil

import pytest
from commands import run
from model_folders import tensors, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "model", tensors())


@pytest.fixture(scope="module")
def quantized(model):
    out = model.parent / "W4A16"
    return out, run("convert", model, out, "--scheme", "W4A16", "--group-size", "32")


@pytest.fixture
def own(tmp_path, model):
    """A model of its own, to damage."""
    return shutil.copytree(model, tmp_path / "own")
