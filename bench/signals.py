"""The error of real weights for each way to choose scales, compared with llm-compressor's observers: docs/choose.md.

Weights are the matrices of Linear layers of a model, all together. The error of outputs is that of made-up activations:
columns of unlike sizes, a few of them of outliers, as layers of large models have them. The importance of the columns
is measured by a `Calibrator` on half of the activations, and the error on the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from timeit import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import fastq

from . import gguf_types, machine
from .markdown import Cell, Row, listed, number, with_part
from .show import NOT_THERE

Array = NDArray[Any]

ROOT = Path(__file__).parents[1]
STORED = ROOT / "bench" / "results" / "signal" / "minilm.json"
PAGE = ROOT / "docs" / "choose.md"

TOKENS, OUTLIERS, SIZE = 512, 64, 20.0  # one column in this many has outliers, larger by this factor
TURNS = 3


class Scheme(NamedTuple):
    """A row: the arguments of `fastq.quantize`, and a preset of compressed-tensors with its group, where it has it."""

    title: str
    options: dict[str, Any]
    preset: str = ""
    group: int | None = None
    observers: tuple[str, ...] = ("memoryless_mse", "imatrix_mse")


def _blocks(dtype: str, size: int, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "axis": 1, "block_size": size, "symmetric": True, **more}


def _rows(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "axis": 0} | ({"symmetric": True} if dtype.startswith("int") else {})


_EXPANDED = "nvfp4_expanded_mse", "nvfp4_expanded_imatrix"
SCHEMES = (
    Scheme("int4, blocks of 32, codes -7..7", _blocks("int4", 32)),
    Scheme("int4, blocks of 32, -8..7", _blocks("int4", 32, convention="compressed-tensors"), "W4A16", 32),
    Scheme("uint4, blocks of 32, scales of either sign", _blocks("uint4", 32, convention="matmul-nbits")),
    Scheme("int4, blocks of 128, -8..7", _blocks("int4", 128, convention="compressed-tensors"), "W4A16", 128),
    Scheme("uint4, blocks of 128, scales of either sign", _blocks("uint4", 128, convention="matmul-nbits")),
    Scheme("uint4, blocks of 32, zero point", {"dtype": "uint4", "axis": 1, "block_size": 32}),
    Scheme("mxfp4", {"dtype": "mxfp4"}, "MXFP4A16"),
    Scheme("nvfp4", {"dtype": "nvfp4"}, "NVFP4A16", None, _EXPANDED),
    Scheme("nf4, blocks of 64", {"dtype": "nf4", "axis": 1, "block_size": 64}),
    Scheme("int3, blocks of 32", _blocks("int3", 32)),
    Scheme("int2, blocks of 32", _blocks("int2", 32)),
    Scheme("float8_e4m3fn, rows", _rows("float8_e4m3fn"), "FP8_DYNAMIC"),
    Scheme("mxfp8_e4m3", {"dtype": "mxfp8_e4m3"}, "MXFP8A16"),
    Scheme("int8, rows", _rows("int8"), "W8A8"),
)


def matrices(path: Path | None = None) -> tuple[str, dict[str, Array]]:
    """Matrices of Linear layers of a .safetensors file, or of all-MiniLM-L6-v2, in float32, and what they are of."""
    title, found = gguf_types.weights(path)
    return title, {
        name: np.asarray(x, np.float32)
        for name, x in found.items()
        if name.endswith(".weight") and "embed" not in name and not any(n % 128 for n in x.shape)
    }


def activations(columns: int, seed: int) -> Array:
    """Rows of activations with the same outliers for every seed."""
    sizes = np.random.default_rng(columns).lognormal(0, 0.5, columns)
    sizes[np.random.default_rng(columns + 1).choice(columns, columns // OUTLIERS, replace=False)] *= SIZE
    return (np.random.default_rng(seed).standard_normal((TOKENS, columns)) * sizes).astype(np.float32)


def importance_of(columns: int) -> Array:
    """The importance of the columns of activations, as a user measures it."""
    calibrator = fastq.Calibrator("int8", axis=-1)
    calibrator.update(activations(columns, 1))
    return calibrator.importance()


class Sums:
    """Squares of values and of errors, of weights and of outputs, of all matrices together."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self._weights = weights
        self._inputs = {n: activations(n, 2).astype(np.float64) for n in {x.shape[1] for x in weights.values()}}

    def decibels(self, values_of: Callable[[str, Array], Array]) -> tuple[float, float]:
        """SQNR of weights and of outputs, for the results of each matrix."""
        sums = np.zeros(4)
        for name, x in self._weights.items():
            error, inputs = values_of(name, x).astype(np.float64) - x, self._inputs[x.shape[1]]
            parts = (x.astype(np.float64), error, inputs @ x.T.astype(np.float64), inputs @ error.T)
            sums += [np.square(part).sum() for part in parts]
        return 10 * np.log10(sums[0] / sums[1]), 10 * np.log10(sums[2] / sums[3])


def ours(scheme: Scheme, weights: dict[str, Array], sums: Sums) -> Row:
    """What fastq leaves by each method, and how long it takes to choose scales."""
    importance = {n: importance_of(n) for n in {x.shape[1] for x in weights.values()}}
    row: Row = {}
    for name, more in (
        ("minmax", lambda x: {}),
        ("mse", lambda x: {"range": "mse"}),
        ("weighed", lambda x: {"range": "mse", "importance": importance[x.shape[1]]}),
    ):
        row[name], row[f"{name}_outputs"] = sums.decibels(
            lambda _, x, more=more: np.asarray(fastq.quantize(x, **scheme.options, **more(x)).dequantize())
        )
    row["seconds"] = _least(lambda: [fastq.choose_qparams(x, **scheme.options, range="mse") for x in weights.values()])
    return row


def theirs(scheme: Scheme, weights: dict[str, Array], sums: Sums) -> Row:
    """What llm-compressor's observers leave, and how long they take to choose scales."""
    import torch
    from compressed_tensors.quantization import fake_quantize, preset_name_to_scheme
    from llmcompressor.observers import Observer

    torch.set_num_threads(fastq.get_num_threads())
    tensors, arguments = {name: torch.from_numpy(x) for name, x in weights.items()}, preset_name_to_scheme
    importance = {n: torch.from_numpy(importance_of(n)) for n in {x.shape[1] for x in weights.values()}}
    args = arguments(scheme.preset, ["Linear"]).weights
    args = args.model_copy(update={"group_size": scheme.group} if scheme.group else {})

    def chosen(observer: str, name: str) -> dict[str, Any]:
        made = Observer.load_from_registry(observer, base_name="weight", args=args.model_copy(deep=True))
        if "imatrix" in observer:
            made._imatrix_sum, made._imatrix_count = importance[tensors[name].shape[1]], torch.tensor(1)
        made(tensors[name])
        return dict(made.get_qparams())

    def values(observer: str, name: str) -> Array:
        found = chosen(observer, name)
        return np.asarray(fake_quantize(tensors[name], found["scale"], found["zero_point"], args,
                                        global_scale=found["global_scale"]))  # fmt: skip

    plain, weighed = scheme.observers
    row: Row = {"theirs": sums.decibels(lambda name, _: values(plain, name))[0]}
    row["theirs_outputs"] = sums.decibels(lambda name, _: values(weighed, name))[1]
    row["their_seconds"] = _least(lambda: [chosen(plain, name) for name in tensors])
    return row


def _least(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, after one that compiles."""
    return min(repeat(work, number=1, repeat=1 + TURNS)[1:])


def measured(path: Path | None = None, say: Callable[[str], None] = lambda line: None) -> Row:
    """All rows, with their subject and machine."""
    title, weights = matrices(path)
    sums, rows = Sums(weights), []
    for scheme in SCHEMES:
        row = {"title": scheme.title, **ours(scheme, weights, sums)}
        if scheme.preset:
            try:
                row |= theirs(scheme, weights, sums)
            except ModuleNotFoundError as error:
                say(f"{scheme.title}: without llm-compressor, as {error.name} is not installed")
        rows.append(rounded(row))
        say(f"{scheme.title}: " + ", ".join(f"{key} {value:.4g}" for key, value in list(rows[-1].items())[1:]))
    about = {"model": title, "matrices": len(weights), "elements": sum(x.size for x in weights.values())}
    return about | {"cpu": machine.describe()["cpu"], "threads": fastq.get_num_threads(), "rows": rows}


def rounded(row: Row) -> Row:
    """A row with six digits after the point, which is more than repeats."""
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}


# SQNR of weights by method, and how many times as fast the search is
WEIGHTS: dict[str, Cell] = {
    "format": itemgetter("title"),
    "minmax": number("minmax"),
    "mse": number("mse"),
    "llm-compressor": number("theirs"),
    "ms": number("seconds", 0, 1e3),
    "times as fast": lambda row: f"{row['their_seconds'] / row['seconds']:.0f}" if "theirs" in row else NOT_THERE,
}
# SQNR of outputs by method, and what importance takes of the squared error
OUTPUTS: dict[str, Cell] = {
    "format": itemgetter("title"),
    "minmax": number("minmax_outputs"),
    "mse": number("mse_outputs"),
    "mse, importance": number("weighed_outputs"),
    "error less": lambda row: f"{100 - 100 * 10 ** ((row['mse_outputs'] - row['weighed_outputs']) / 10):.0f} %",
    "llm-compressor, importance": number("theirs_outputs"),
}


def page(text: str, found: Row) -> str:
    """The page with both tables replaced."""
    about = f"{found['matrices']} matrices of {found['model']}, {found['elements'] / 1e6:.1f} M weights"
    where = f"{found['threads']} threads of {found['cpu']}"
    weights = f"SQNR of the weights in dB, {about}; time to choose scales by mse, {where}:"
    outputs = "SQNR of the outputs in dB, of the same matrices:"
    for name, columns, said in (("weights", WEIGHTS, weights), ("outputs", OUTPUTS, outputs)):
        begin, end = f"<!-- begin: python -m bench signal, {name} -->", f"<!-- end: {name} -->"
        text = with_part(text, begin, f"{said}\n\n{listed(columns, found['rows'])}", end)
    return text


def lines(found: Row) -> Iterable[str]:
    """Both tables, for a terminal."""
    return listed(WEIGHTS, found["rows"]), "", listed(OUTPUTS, found["rows"])
