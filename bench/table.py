"""The targets as data: which work, at which size, beside which peers, and what ratio or time it must reach."""

from __future__ import annotations

from typing import NamedTuple


class Variant(NamedTuple):
    """One way in which one system does a work."""

    system: str
    name: str = ""

    def __str__(self) -> str:
        return " ".join(self)


class Target(NamedTuple):
    """Ours must reach `ratio` times the fastest of `peers`; None is measured and not judged."""

    work: str
    size: str
    ratio: float | None
    peers: tuple[Variant, ...]


class Latency(NamedTuple):
    """A call on few elements must end within `seconds`."""

    work: str
    variant: str
    label: str
    seconds: float


class Memory(NamedTuple):
    """A call at full size may use `mib` beyond its input and output."""

    work: str
    variant: str
    mib: float


DESCRIPTIONS = {
    "quantize_linear": "quantize_linear int8",
    "dequantize_linear": "dequantize_linear int8",
    "minmax": "minmax",
    "quantize": "quantize (range + codes)",
    "fake_quantize": "fake_quantize, given parameters",
    "fake_quantize_range": "fake_quantize, range computed",
    "rows": "quantize axis=0, symmetric",
    "columns": "quantize axis=-1, symmetric (lanes)",
    "blocks": "quantize axis=-1, block_size=32, symmetric",
    "compare": "compare(x, q)",
}

ORT_QUANTIZE = Variant("onnxruntime", "QuantizeLinear")
ORT_DEQUANTIZE = Variant("onnxruntime", "DequantizeLinear")
ORT_DYNAMIC = Variant("onnxruntime", "DynamicQuantizeLinear")
FAISS = (Variant("faiss", "QT_8bit_uniform"), Variant("faiss", "QT_8bit"))
JAX = (Variant("jax", "jit"), Variant("jax", "jit donated"))
COMPILE = (Variant("torch", "compile"),)
STORE, STREAM, READ = (Variant("roofline", name) for name in ("store", "stream", "read"))
# What a prefetch adds is no target; the rows show how far the machine goes.
STORE_AHEAD, STREAM_AHEAD, READ_AHEAD = (
    Variant("roofline", f"{name}, prefetch") for name in ("store", "stream", "read")
)
TORCH_DEQUANTIZE = tuple(Variant("torch", name) for name in ("dequantize", "decomposed", "compile"))
TORCH_QUANTIZE = (Variant("torch", "aminmax + quantize_per_tensor"), Variant("torch", "quantize_per_tensor_dynamic"))

TARGETS = (
    Target("quantize_linear", "large", 1.1, (ORT_QUANTIZE,)),
    Target("quantize_linear", "large", 0.85, (STORE, STREAM)),
    Target("quantize_linear", "large", None, (STORE_AHEAD,)),
    Target("quantize_linear", "small", 1.0, (Variant("torch", "quantize_per_tensor"),)),
    Target("dequantize_linear", "large", 3.5, (ORT_DEQUANTIZE, *FAISS, *JAX)),
    Target("dequantize_linear", "large", 0.85, (STREAM,)),
    Target("dequantize_linear", "large", None, (STREAM_AHEAD,)),
    Target("dequantize_linear", "small", 1.0, TORCH_DEQUANTIZE),
    Target("minmax", "large", 1.2, (Variant("torch", "aminmax"),)),
    Target("minmax", "large", None, (READ, READ_AHEAD)),
    Target("minmax", "small", 2.0, (Variant("numpy", "min + max"),)),
    Target("quantize", "large", 1.1, (ORT_DYNAMIC,)),
    Target("quantize", "small", 2.0, TORCH_QUANTIZE),
    Target("fake_quantize", "large", 3.0, JAX),
    Target("fake_quantize", "large", None, (STORE, STREAM, STREAM_AHEAD)),
    Target("fake_quantize", "small", 2.5, COMPILE),
    Target("fake_quantize_range", "large", None, JAX),
    Target("fake_quantize_range", "small", None, COMPILE),
    Target("rows", "large", 2.2, COMPILE),
    Target("rows", "small", 2.5, COMPILE),
    Target("columns", "large", 1.5, COMPILE),
    Target("columns", "small", 1.5, COMPILE),
    Target("blocks", "large", 2.5, COMPILE),
    Target("blocks", "small", 3.0, COMPILE),
    Target("compare", "large", 10.0, (Variant("numpy", "temporaries"),)),
)

LATENCIES = (
    Latency("quantize_linear", "", "quantize_linear, out=, 1,000 elements", 4e-6),
    Latency("quantize", "allocating", "quantize(x), 1,000 elements", 12e-6),
)

FIRST_CALL_ELEMENTS = (1_000, 1 << 20)
FIRST_CALL_COLD, FIRST_CALL_WARM = 2.0, 0.3
IMPORT_RATIO = 1.3

MEMORY = (
    *(Memory(work, "", 1.0) for work in DESCRIPTIONS),
    Memory("quantize_linear", "strided", 4.0),
)
