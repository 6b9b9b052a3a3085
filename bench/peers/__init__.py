"""Who is measured: a row for each way in which a library does a work, and a module for each library.

A module has functions of `Operands` that make a `Runner`: one of the name of an operation, `prepared` for all others,
and `BUILDERS[operation, variant]` for a variant that differs; or it has `of_case`, a function of a case and a variant.
It is imported in a process of its own. The peers get memory aligned to 64 bytes, as their own allocators give it, and
preallocated outputs wherever they take them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from ..cases import LOG2_SIZES, Case

OURS = "fastq"
NUMPY = "numpy"
ROOFLINES = ("roofline", "roofline_c")


class Runner(NamedTuple):
    """One work made ready: `call` does it once, `results` has what it made, named as in verify.py.

    `within` is how many steps the results may be from the reference's; `check` says what is wrong where there is
    nothing to compare with. `keep` holds memory that a call reaches by address only.
    """

    call: Callable[[], Any]
    results: Callable[[], dict[str, Any]]
    within: float = 1.0
    check: Callable[[], str] | None = None
    keep: Any = None


Builders = dict[tuple[str, str], Callable[..., Runner | None]]


class Contender(NamedTuple):
    """A way in which a peer does some works; `works` are shell patterns of their names.

    One that `allocates` returns fresh memory at each call; one that would take minutes, or more memory than there is,
    has a `largest` size, as log2.
    """

    peer: str
    variant: str
    works: tuple[str, ...]
    allocates: bool = False
    largest: int = LOG2_SIZES[-1]

    @property
    def name(self) -> str:
        """Name in tables and results."""
        return f"{self.peer} {self.variant}".rstrip()


class Peer(NamedTuple):
    """A library: which module tells that it is there, whose version, and what is known of its arithmetic."""

    name: str
    module: str
    distribution: str
    convention: str = ""


_HERE = {path.stem for path in Path(__file__).parent.glob("*.py")}  # fewer in a wheel than in a checkout
PEERS = {
    row.name: row
    for row in (
        Peer("fastq", "fastq", "fastq-kernels"),
        Peer("numpy", "numpy", "numpy"),
        Peer("naive_numba", "numba", "numba"),
        Peer("numexpr", "numexpr", "numexpr"),
        Peer("torch_eager", "torch", "torch", "quantizes with the reciprocal of the scale: another code at some ties"),
        Peer("torch_compile", "torch", "torch"),
        Peer("jax_jit", "jax", "jax"),
        Peer("onnxruntime", "onnxruntime", "onnxruntime"),
        Peer("faiss", "faiss", "faiss-cpu", "decodes with a multiply and an add: values to a hundredth of a step"),
        Peer(
            "gguf_py",
            "gguf",
            "gguf",
            "Q4_0 and MXFP4 choose other scales: values within two steps of ours; MXFP4 decodes -0 as 0",
        ),
        Peer("ml_dtypes", "ml_dtypes", "ml_dtypes", "does not saturate; the values here are in range"),
        Peer("ggml", "llama_cpp", "llama-cpp-python", "as gguf_py"),
        Peer("piquant", "piquant", "pypiquant", "multiplies by the reciprocal of the scale: another code at some ties"),
        Peer("litert", "ai_edge_litert", "ai-edge-litert"),
        Peer("numcodecs", "numcodecs", "numcodecs"),
        Peer("xbitinfo", "xbitinfo", "xbitinfo"),
        Peer("numkong", "numkong", "numkong", "one thread; casts saturate"),
        Peer("roofline", "numba", "numba", "moves the bytes of the case and computes nothing"),
        Peer(
            "roofline_c", "ctypes", "", "C with AVX-512: moves the bytes, or multiplies by the reciprocal of the scale"
        ),
    )
    if row.name in _HERE
}

_QUANTIZED = ("quantize_linear/float32/int8/tensor",)
_DEQUANTIZED = ("dequantize_linear/float32/int8/tensor",)
_TO_VALUES = (*_DEQUANTIZED, "fake_quantize/float32/int8/tensor")
_GIVEN = (*_QUANTIZED, *_TO_VALUES)
_COLUMNS, _BLOCKS = (("dequantize_linear/float32/int8/columns",), ("dequantize_linear/float32/int8/blocks32",))
_DECODED = ("dequantize_linear/float32/int8/rows", *_COLUMNS, *_BLOCKS)
_FAKED_BLOCKS = ("fake_quantize/float32/int8/blocks32",)
_PACKED_INT4 = ("dequantize/float32/int4/blocks32",)
_PACKED = (*_PACKED_INT4, "dequantize/float32/mxfp4/blocks32")
_DYNAMIC = ("quantize/float32/uint8/tensor",)
_RANGE = (*_DYNAMIC, "fake_quantize_range/*")
_SYMMETRIC = ("quantize/float32/int8/*",)
_BLOCKS_OF_4_BITS = ("quantize/float32/int4/blocks32",)
_FLOAT8 = ("quantize_linear/float32/float8*",)

_GIVEN_TO_NUMPY = ("minmax/*", *_GIVEN, *_DECODED, *_FAKED_BLOCKS, *_PACKED, *_RANGE, *_SYMMETRIC)
_HALVES = ("quantize_linear/*float16/int8/*",)
_TO_GGML = (*_BLOCKS_OF_4_BITS, *_BLOCKS, *_PACKED)
_BY_GGUF_PY = ("gguf_dequantize/*", "gguf_quantize/*/Q?_0/*", "quantize/float32/mxfp4/*", *_TO_GGML)
_STREAMED = ("*quantize*", "*pack/*", "bitround/*")

CONTENDERS = (
    Contender("fastq", "", ("*",)),
    Contender("fastq", "allocating", ("*quantize*",), True),
    Contender("numpy", "", (*_GIVEN_TO_NUMPY, *_HALVES, "*pack/*", "requantize/*")),
    Contender("numpy", "", ("compare/*",), True, 26),
    Contender("naive_numba", "", (*_GIVEN_TO_NUMPY, "pack/*", "unpack/*")),
    Contender("numexpr", "", (*_GIVEN, *_DECODED, *_FAKED_BLOCKS, *_PACKED_INT4)),
    Contender("torch_eager", "quantize_per_tensor", _QUANTIZED, True),
    Contender("torch_eager", "dequantize", ("dequantize_linear/*",), True),
    Contender("torch_eager", "decomposed", ("dequantize_linear/*",), True),
    Contender("torch_eager", "mul", _DECODED, True),
    Contender("torch_eager", "aminmax", ("minmax/*",), True),
    Contender("torch_eager", "aminmax + quantize_per_tensor", _DYNAMIC, True),
    Contender("torch_eager", "quantize_per_tensor_dynamic", _DYNAMIC, True),
    Contender("torch_eager", "fake_quantize", ("fake_quantize/*",), True),
    Contender("torch_compile", "", (*_QUANTIZED, *_DEQUANTIZED, "fake_*", *_DECODED, *_PACKED, *_SYMMETRIC, *_HALVES)),
    Contender("jax_jit", "", (*_GIVEN, "fake_*", *_DECODED, *_PACKED, "minmax/*"), True),
    Contender("jax_jit", "donated", ("dequantize_linear/*", "fake_*", *_PACKED)),
    Contender("onnxruntime", "QuantizeLinear", _QUANTIZED),
    Contender("onnxruntime", "DequantizeLinear", ("dequantize_linear/*", *_PACKED_INT4)),
    Contender("onnxruntime", "DynamicQuantizeLinear", _DYNAMIC),
    Contender("onnxruntime", "pack_bytes_to_4bit", ("pack/int8/int4/*",), True, 20),
    Contender("faiss", "QT_8bit_uniform", _DEQUANTIZED),
    Contender("faiss", "QT_8bit", (*_DEQUANTIZED, *_COLUMNS)),
    Contender("gguf_py", "", _BY_GGUF_PY, True, 26),
    Contender("ml_dtypes", "astype", ("quantize_linear/float32/float*",), True),
    Contender("ggml", "", ("gguf_*", *_TO_GGML)),
    Contender("torch_eager", "to(float8)", _FLOAT8, True),
    Contender("onnxruntime", "QuantizeLinear to float8", _FLOAT8),
    Contender("piquant", "", (*_QUANTIZED, *_DEQUANTIZED)),
    Contender("numkong", "minmax", ("minmax/*",)),
    Contender("numkong", "astype", _FLOAT8, True),
    Contender("litert", "Quantize", ("requantize/*",)),
    Contender("numcodecs", "BitRound", ("bitround/*",), True),
    Contender("xbitinfo", "xr_bitround", ("bitround/*",), True, 26),
    Contender("roofline", "store", ("*",)),
    Contender("roofline", "stream", _STREAMED),
    Contender("roofline_c", "move", ("*",)),
    Contender("roofline_c", "move, stream", _STREAMED),
    *(Contender("roofline_c", variant, _QUANTIZED) for variant in ("store", "stream", "store, prefetch")),
    *(Contender("roofline_c", variant, _TO_VALUES) for variant in ("store", "stream", "stream, prefetch")),
    *(Contender("roofline_c", variant, ("minmax/*",)) for variant in ("read", "read, prefetch")),
)


def contenders(case: Case, peers: tuple[str, ...]) -> list[Contender]:
    """Return the rows of these peers that do a case, in the order of the table."""
    return [
        row
        for row in CONTENDERS
        if row.peer in peers
        and row.peer in PEERS
        and case.log2 <= row.largest
        and any(fnmatchcase(case.work.name, p) for p in row.works)
    ]


def own_threads() -> int:
    """Threads that this process, a child, has been given."""
    return int(os.environ["NUMBA_NUM_THREADS"])
