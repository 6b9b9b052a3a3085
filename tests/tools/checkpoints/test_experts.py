"""Experts in one tensor of three axes, or in three: all of them are split or none, and the way back."""

import json
import shutil

import numpy as np
import pytest
from commands import invoke, refused, run, told
from model_folders import BF16, CONFIG, all_of, config_of, write_model
from safetensors import safe_open
from safetensors.numpy import save_file

from fastq.tools.checkpoints.experts import SPLIT, stacks_in_metadata

EXPERTS, ROWS, COLUMNS = 3, 64, 32
UP, DOWN = (EXPERTS, ROWS, COLUMNS), (EXPERTS, COLUMNS, ROWS)
SIZES = CONFIG | {"hidden_size": COLUMNS}
LAYER = "model.layers.0"
# names and shapes of the tensors of experts; whether readers find a matrix of each expert
STACKS = {
    "gate and up in one": (
        {"mlp.experts.gate_up_proj": (EXPERTS, 2 * ROWS, COLUMNS), "mlp.experts.down_proj": DOWN},
        True,
    ),
    "three": ({f"mlp.experts.{name}_proj": UP for name in ("gate", "up")} | {"mlp.experts.down_proj": DOWN}, True),
    "three, named weight": (
        {f"mlp.experts.{name}_proj.weight": UP for name in ("gate", "up")} | {"mlp.experts.down_proj.weight": DOWN},
        True,
    ),
    "without a gate": ({"mixer.experts.up_proj": UP, "mixer.experts.down_proj": DOWN}, True),
    "of Step 3.5": (
        {f"moe.{name}_proj.weight": UP for name in ("gate", "up")} | {"moe.down_proj.weight": DOWN},
        False,
    ),
    "of MLX": (
        {f"mlp.switch_mlp.{name}_proj.weight": UP for name in ("gate", "up")}
        | {"mlp.switch_mlp.down_proj.weight": DOWN},
        False,
    ),
}


def written(path, name, config=SIZES):
    """A model, and its tensors of experts."""
    rng = np.random.default_rng(0)
    stacks = {f"{LAYER}.{each}": rng.standard_normal(shape).astype(BF16) for each, shape in STACKS[name][0].items()}
    linear = {f"{LAYER}.self_attn.q_proj.weight": rng.standard_normal((COLUMNS, COLUMNS)).astype(BF16)}
    return write_model(path, [linear, stacks], config), stacks


def matrices_of(stacks):
    """The matrices of each expert by their names, cut as transformers reads them."""
    found = {}
    for name, stack in stacks.items():
        parent, _, kind = name.removesuffix(".weight").rpartition(".")
        for expert, both in enumerate(stack):
            if kind == "gate_up_proj":
                found[f"{parent}.{expert}.gate_proj"], found[f"{parent}.{expert}.up_proj"] = both[:ROWS], both[ROWS:]
            else:
                found[f"{parent}.{expert}.{kind}"] = both
    return found


@pytest.mark.parametrize("name", STACKS)
def test_all_are_split_or_none(tmp_path, name):
    path, stacks = written(tmp_path / "m", name)
    said = told("convert", path, tmp_path / "q", "--scheme", "W8A16", "--group-size", "32", exit_code=0)
    found = all_of(tmp_path / "q")
    if not STACKS[name][1]:
        assert all(found[each].tobytes() == stack.tobytes() for each, stack in stacks.items())
        (line,) = [each for each in said.splitlines() if each.startswith("left as floats: experts, ")]
        assert f"{sum(stack.nbytes for stack in stacks.values()):,} bytes" in line
        assert next(iter(stacks)) in line
        return
    assert "experts" not in "".join(line for line in said.splitlines() if line.startswith("left as floats"))
    matrices = matrices_of(stacks)
    packed = {each.removesuffix(".weight_packed") for each in found if "experts" in each and each.endswith("_packed")}
    assert packed == set(matrices)
    assert not set(stacks) & set(found)


@pytest.mark.parametrize("name", STACKS)
def test_the_way_back_restores_the_tensors(tmp_path, name):
    # contract 27.10
    path, stacks = written(tmp_path / "m", name)
    run("convert", path, tmp_path / "q", "--scheme", "W8A16", "--group-size", "32")
    run("convert", tmp_path / "q", tmp_path / "back", "--dequantize")
    back = all_of(tmp_path / "back")
    assert back.keys() == all_of(path).keys()
    assert config_of(tmp_path / "back") == SIZES
    for each, stack in stacks.items():
        assert back[each].shape == stack.shape
        steps = np.abs(stack.astype(np.float32)).max(-1, keepdims=True) / 127
        assert (np.abs(back[each].astype(np.float32) - stack.astype(np.float32)) <= steps).all()
    with safe_open(tmp_path / "back" / "model-00002-of-00002.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    run("convert", tmp_path / "q", tmp_path / "twice", "--scheme", "W8A16", "--group-size", "32")
    assert all_of(tmp_path / "twice").keys() == all_of(tmp_path / "q").keys()


LIES = [
    "",
    "[]",
    "{",
    '{"a": 3}',
    '{"a": ["x", 1, 2]}',
    '{"a": [1, 2, 3]}',
    '{"a": [Infinity, 2, 3]}',
    json.dumps({f"{LAYER}.mlp.experts.gate_up_proj": [10**15, 128, 32]}),
    json.dumps({f"{LAYER}.mlp.experts.gate_up_proj": [-3, -128, 32]}),
    json.dumps({f"{LAYER}.mlp.experts.gate_up_proj": [3, 127, 32]}),
    json.dumps({f"{LAYER}.mlp.experts.gate_up_proj": [3, 128]}),
    json.dumps({f"{LAYER}.mlp.experts.gate_up_proj": [4, 128, 32]}),
    json.dumps({f"{LAYER}.mlp.experts.gate_up_proj": [3, 64, 64]}),
]


@pytest.mark.parametrize("lie", LIES)
def test_without_their_names_matrices_are_restored_one_by_one(tmp_path, lie):
    """As of other writers, and of programs that cut experts away: nothing is lost."""
    path, stacks = written(tmp_path / "m", "gate and up in one")
    run("convert", path, tmp_path / "q", "--scheme", "W8A16", "--group-size", "32")
    shutil.rmtree(path)
    folder = write_model(path, [all_of(tmp_path / "q")], config_of(tmp_path / "q"))
    save_file(all_of(folder), folder / "model-00001-of-00001.safetensors", {"format": "pt", SPLIT: lie})
    run("convert", folder, tmp_path / "back", "--dequantize")
    assert {f"{each}.weight" for each in matrices_of(stacks)} < all_of(tmp_path / "back").keys()


def test_names_are_read_back():
    assert stacks_in_metadata({}) == []
    (stack,) = stacks_in_metadata({SPLIT: '{"a.experts.gate_up_proj": [2, 4, 3]}'})
    assert [*stack.modules()] == [
        ("a.experts.0.gate_proj", 0, 0),
        ("a.experts.0.up_proj", 0, 2),
        ("a.experts.1.gate_proj", 1, 0),
        ("a.experts.1.up_proj", 1, 2),
    ]


@pytest.mark.parametrize("name", [name for name in STACKS if STACKS[name][1]])
def test_compare_has_a_row_for_each_matrix(tmp_path, name):
    path, stacks = written(tmp_path / "m", name)
    run("convert", path, tmp_path / "q", "--scheme", "W8A16", "--group-size", "32")
    run("convert", tmp_path / "q", tmp_path / "back", "--dequantize")
    matrices, back = matrices_of(stacks), matrices_of({each: all_of(tmp_path / "back")[each] for each in stacks})
    for pair in ((path, tmp_path / "q"), (tmp_path / "q", path)):
        rows = {row["name"]: row for row in json.loads(run("compare", *pair, "--json"))["tensors"]}
        assert rows.keys() == {f"{each}.weight" for each in matrices} | {f"{LAYER}.self_attn.q_proj.weight"}
        for module, x in matrices.items():
            y, row = back[module].astype(np.float64), rows[f"{module}.weight"]
            assert tuple(row["shape"]) == x.shape
            # the values of `back` are rounded to bfloat16, by at most 2 ** -9 of a value
            assert abs(row["max_abs_error"] - np.abs(x.astype(np.float64) - y).max()) <= np.abs(y).max() * 2.0**-8
    assert invoke("compare", path, path, "--json").exit_code == 0
    rows = json.loads(run("compare", path, path, "--json"))["tensors"]
    assert set(stacks) <= {row["name"] for row in rows}  # of two sides with tensors of experts they are compared


def test_compare_tells_of_an_expert_that_is_missing(tmp_path):
    path, _ = written(tmp_path / "m", "three")
    run("convert", path, tmp_path / "q", "--scheme", "W8A16", "--group-size", "32")
    tensors = {name: array for name, array in all_of(tmp_path / "q").items() if ".1.up_proj" not in name}
    folder = write_model(tmp_path / "cut", [tensors], config_of(tmp_path / "q"))
    assert f"{LAYER}.mlp.experts.up_proj: only in m" in told("compare", path, folder, exit_code=4)


WHOLE = f"{LAYER}.mlp.experts."
IGNORED = [
    (f"{WHOLE}gate_up_proj", f"{WHOLE}down_proj"),
    ("*.experts.gate_up_proj", r"re:.*experts\.down_proj"),
    ("*.experts.*",),
    (f"{WHOLE}0.up_proj", f"{WHOLE}2.down_proj"),
    (r"re:.*experts\.\d+\.",),
]


@pytest.mark.parametrize("patterns", IGNORED)
def test_options_take_the_name_of_the_tensor_and_those_of_its_matrices(tmp_path, patterns):
    path, stacks = written(tmp_path / "m", "gate and up in one")
    options = [text for pattern in patterns for text in ("--ignore", pattern)]
    run("convert", path, tmp_path / "q", "--scheme", "W8A16", "--group-size", "32", *options)
    found = all_of(tmp_path / "q")
    assert all(found[each].tobytes() == stack.tobytes() for each, stack in stacks.items())
    others = [text for pattern in patterns for text in ("--scheme-for", f"{pattern}=W4A16")]
    if len(patterns) == 1 or "0.up_proj" not in patterns[0]:
        run("convert", path, tmp_path / "w", "--scheme", "W8A16", "--group-size", "32", *others)
        words = {name: array.shape for name, array in all_of(tmp_path / "w").items() if "experts" in name}
        assert words[f"{WHOLE}0.up_proj.weight_packed"] == (ROWS, COLUMNS // 8)
        assert words[f"{WHOLE}2.down_proj.weight_packed"] == (COLUMNS, ROWS // 8)


def test_tensors_of_names_that_no_reader_splits_can_be_ignored_by_name(tmp_path):
    names = [f"{LAYER}.mlp.experts.w{number}" for number in (1, 2, 3)]
    stacks = {name: np.ones(UP).astype(BF16) for name in names}
    linear = {f"{LAYER}.self_attn.q_proj.weight": np.ones((COLUMNS, COLUMNS)).astype(BF16)}
    path = write_model(tmp_path / "m", [linear, stacks], SIZES)
    options = [text for name in names for text in ("--ignore", name)]
    run("convert", path, tmp_path / "q", "--scheme", "W8A16", "--group-size", "32", *options)
    assert set(names) <= all_of(tmp_path / "q").keys()


def test_a_model_that_is_read_from_one_tensor_is_included_by_its_name(tmp_path):
    path, stacks = written(tmp_path / "m", "gate and up in one", SIZES | {"model_type": "mistral4"})
    options = ["--scheme", "W8A16", "--group-size", "32"]
    assert "left as floats: experts, " in told("convert", path, tmp_path / "q", *options, exit_code=0)
    included = [text for name in stacks for text in ("--include", name)]
    run("convert", path, tmp_path / "p", *options, *included)
    assert not set(stacks) & all_of(tmp_path / "p").keys()


def test_experts_of_an_odd_number_of_rows_stay(tmp_path):
    path, _ = written(tmp_path / "m", "gate and up in one")
    tensors = all_of(path) | {f"{WHOLE}gate_up_proj": np.ones((EXPERTS, 2 * ROWS + 1, COLUMNS), BF16)}
    shutil.rmtree(path)
    write_model(path, [tensors], SIZES)
    line = refused("convert", path, tmp_path / "q", "--scheme", "W8A16", "--group-size", "32")
    assert "unequal schemes" in line
    assert "as it is" in line
