"""Cases: the calls of fast function and reference that a seed stands for, always the same ones."""

import math
from dataclasses import dataclass, field
from functools import cached_property, partialmethod
from random import Random

import ml_dtypes
import numpy as np
from fuzzing.arrays import KINDS, LAYOUTS, REALS, Granularity, as_dtype, place, shape_of, values
from fuzzing.combinations import CASES, ROWS, VARIANT, Combination, combination, share_streamed, streams, weighted
from fuzzing.functions import KEPT_AS

from fastq import QParams, QuantizedArray, reference
from fastq.formats.bitrounding import TIES, most_digits, of_width
from fastq.formats.conventions.convention import NEAREST
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.granularity import as_granularity
from fastq.formats.requantization import REQUANTIZATIONS
from fastq.requests.importance import axis_of_weights

# sizes, and how often they are drawn: chunks of threads begin at multiples of 2**15, tiles of strided memory at 2**18,
# stores past the cache at some 2**24, where each format must be met several times in a run of two hours
SIZES = {"0 to 8": 90, "to 60": 280, "to 600": 300, "to 5000": 220, "chunks": 80, "tiles": 4}
# one takes 4.6 s of the processor, kernels included, and 2.7 s without (a Zen 4, mean of 18): 700 s of 7200 in all
STREAMED_CASES, CASES_OF_A_RUN = 3, 165_000
_BOUNDS = {"0 to 8": (0, 8), "to 60": (1, 60), "to 600": (60, 600), "to 5000": (600, 5000)}

THREADS = (1, 1, 2, 3, 4)
WRONG = 0.03  # part of the cases that have one wrong argument
NARROWED = ("int8", "uint8", "int16", "uint16")  # formats of which fewer bits may be used
WIDTHS = (None, *range(2, 17))
GRANULARITIES = ("array", "channels", "channels", "axes", "blocks", "blocks")
# sizes of blocks in addition to those of a combination, by name
BLOCK_SIZES = {
    "1": lambda random: 1,
    "1 to 15": lambda random: random.randint(1, 15),
    "17 to 300": lambda random: random.randint(17, 300),
    "hundreds": lambda random: random.randint(1, 8) * 100,
    "beyond all": lambda random: 10**6,
}
PLACED = (*LAYOUTS, "c", "c", "c", "broadcast", "read_only", "list")
OUTPUTS = ("none",) * 6 + LAYOUTS + ("overlapping",) * 2 + ("itself",) * 2
GIVEN = ("array",) * 4 + ("list",)  # how parameters are given
GIVEN_ONE = ("scalar", "python", "one")
IMPORTANCES = ("elements", "axis")  # what has a weight: each element, or each one along an axis
AT_RANDOM = 0.15  # part of the calls that may round so
BINS = (16, 64, 256, 1024, 4096)
PICKS = ("int", "int", "all", "slice", "slice", "steps", "list", "mask")
MOST_CHANNELS, MOST_STEPS = 24, 40_000  # of calibrators, whose reference is slow
METHODS = ("minmax", "percentile", "mse", "entropy")


@dataclass
class Call:
    """Arguments of one call, and the memory that they lie in."""

    args: list
    options: dict
    memories: list = field(default_factory=list)

    @property
    def out(self):
        return self.options.get("out")


def own_size(qtype):
    """What the size of the blocks that a format prescribes is called."""
    return f"{qtype.block_size} of the format"


class Case:
    """The case of a number: a seed, and from VARIANT on a variant of a seed's case, mostly with its kernels."""

    def __init__(self, number):
        self.number = number
        self.variant, self.seed = divmod(number, VARIANT)
        self.of: Combination = combination(self.seed // CASES)
        self.streamed = Random(f"streamed {self.seed // 8}").random() < 0.25
        random = Random(f"settings {self.seed // 8} {self.variant // 8}")
        self.threads, self.small_chunks = random.choice(THREADS), random.random() < 0.4
        self.noted = {}

    @cached_property
    def size(self):
        random = Random(f"size {self.number}")
        may_stream = streams(self.of) and not self.variant  # others would take longer than all else of the kind
        if may_stream and random.random() < STREAMED_CASES / CASES_OF_A_RUN / share_streamed(self.of.format):
            return "streamed"
        return weighted(random, SIZES)

    @property
    def axes(self):
        """Where in the product the case lies, one value or several of each axis; known when a call was drawn."""
        of = self.of
        shared = {"operation": of.operation, "threads": self.threads, "size": self.size}
        shared |= {"streamed": self.streamed, "small chunks": self.small_chunks}
        if self.size == "streamed":
            shared["format of 2^24 and more"] = of.format
        found = shared | self.noted
        return {name: tuple(map(str, each)) if isinstance(each, set) else (str(each),) for name, each in found.items()}

    def call(self, repeat=0):
        """Draw the call: the same at each time, and with `repeat` one like it of other values."""
        drawing = _Drawing(self, np.random.default_rng((self.number, repeat)))
        with np.errstate(all="ignore"):
            getattr(drawing, f"_{self.of.operation}")()
        self.noted = drawing.noted
        return Call(drawing.args, drawing.options, drawing.memories)


class _Drawing:
    """Draws one call: an operation's method sets `args` and `options`.

    `random` makes what kernels depend on, the same for all variants of a seed; `sizes` the rest that a launch plan
    depends on; `rng` the elements. No more of `random` is drawn for one size than for another.
    """

    def __init__(self, case, rng):
        self.case, self.of, self.rng = case, case.of, rng
        self.random, self.sizes = Random(f"case {case.seed}"), Random(f"sizes {case.number}")
        self.qtype = ROWS.get(self.of.format)
        self.noted, self.args, self.options, self.memories = {}, [], {}, []
        # formats whose scales are given refuse "keep" already
        self.may_spoil = self.is_wrong = self.sizes.random() < WRONG and case.of.nan != "keep"
        narrow = self.of.format in NARROWED and self.random.random() < 0.2
        self.bits = self.random.randint(2, self.qtype.bits) if narrow else None

    def spoils(self, chance):
        """Whether an argument is to be wrong; one of a case is."""
        spoils = self.may_spoil and self.sizes.random() < chance
        self.may_spoil &= not spoils
        return spoils

    # shapes, granularities

    def total(self):
        size, random = self.case.size, self.sizes
        if size in _BOUNDS:
            low, high = _BOUNDS[size]
            return random.randint(low, high) if low == 0 else round(low * (high / low) ** random.random())
        border = {"chunks": 2**15, "tiles": 2**18, "streamed": 2**24}[size]
        return border * random.choice([1, 1, 2, 3] if size == "chunks" else [1]) + random.randint(-70, 70 + border // 8)

    def shape(self):
        ndim = self.random.choices(range(6), [3, 30, 35, 20, 8, 4])[0]
        if self.case.size == "streamed":
            ndim = min(ndim, 2)
        return shape_of(self.sizes, self.total(), ndim)

    def granularity(self, shape, kinds=GRANULARITIES):
        random, ndim = self.random, len(shape)
        kind = random.choice(kinds) if ndim else "array"
        if self.case.size == "streamed" and kind == "axes":
            kind = "channels"
        self.noted["granularity"] = kind
        axis = random.randrange(-ndim, ndim) if ndim else None
        if self.spoils(0.2):
            axis = random.choice([ndim, -ndim - 1, 99])
        if kind == "array":
            return Granularity()
        if kind == "channels":
            return Granularity(axis)
        if kind == "axes":
            chosen = random.sample(range(ndim), random.randint(0, ndim))
            return Granularity(tuple(k - random.choice([0, ndim]) for k in chosen))
        size = random.choice([*self.of.blocks * 2, *BLOCK_SIZES])
        self.noted["block size"] = size
        return Granularity(axis, BLOCK_SIZES[size](self.sizes) if size in BLOCK_SIZES else size)

    def prescribed(self, shape):
        """A granularity that the format may have, and options that ask for it."""
        g = self.granularity(shape)
        own = self.qtype.block_size
        if own and not (self.spoils(0.3)):
            axis = g.axis if isinstance(g.axis, int) else None
            self.noted |= {"granularity": "blocks", "block size": own_size(self.qtype)}
            g, options = Granularity(-1 if axis is None else axis, own), {}
            if axis is not None:
                options["axis"] = axis
            if self.random.random() < 0.3:
                options["block_size"] = own
            return g, options
        options = {} if g.axis is None else {"axis": g.axis}
        return g, options | ({"block_size": g.block_size} if g.block_size else {})

    # arrays

    def kinds(self):
        return self.sizes.sample(KINDS, self.sizes.choice([1, 1, 2, 3, 4]))

    def values(self, shape, dtype=None, unit=1.0, nans=None, infinities=0.03):
        random, n = self.sizes, math.prod(shape)
        kinds, policy = self.kinds(), self.of.nan
        if dtype is None:
            dtype = self.of.dtype
            self.noted["input dtype"] = dtype
        if dtype in REALS:
            self.noted.setdefault("kind of value", set()).update(kinds)
        if self.is_wrong:  # which of two faults is told first is not specified
            nans = infinities = 0
        share = nans if nans is not None else 0.02 if policy == "raise" else 0.5
        how_many = (1, 1, 2, max(1, n // 50), n)
        nans = random.choice(how_many) if random.random() < share else 0
        infinities = random.choice(how_many[:-1]) if random.random() < infinities else 0
        return values(self.rng, kinds, dtype, n, unit, nans, infinities).reshape(shape)

    def keep(self, where, array):
        """Put an array into memory of its own."""
        memory, view = where.holding(array)
        self.memories.append(memory)
        return view

    def layout(self, ndim, itemsize):
        layout = self.random.choice(PLACED)
        return layout, place(self.random, self.sizes, layout if layout in LAYOUTS else "c", ndim, itemsize)

    def placed(self, array, name="layout", lists=True, repeats=None):
        """An array laid out in some way, which is noted under a name; `repeats` is how many axes may be broadcast."""
        layout, where = self.layout(array.ndim, array.itemsize)
        repeats = array.ndim if repeats is None else repeats
        axis = self.random.randrange(repeats) if repeats else 0
        if layout == "list" and (not lists or not 0 < array.size <= 300 or array.dtype.isbuiltin != 1):
            layout = "c"
        if layout == "broadcast" and not (array.size and repeats):
            layout = "c"
        self.noted[name] = layout
        if layout == "list":
            return array.tolist()
        if layout == "broadcast":
            return np.broadcast_to(self.keep(where, array.take([0], axis)), array.shape)
        view = self.keep(where, array)
        if layout == "read_only":
            view.flags.writeable = False
        return view

    def with_out(self, shape, dtype):
        """Add an output of a shape and dtype, one of several kinds; it may lie upon the first argument."""
        random, over = self.random, getattr(self.args[0], "codes", self.args[0])
        kind = random.choice(OUTPUTS)
        where = place(random, self.sizes, kind if kind in LAYOUTS else "c", len(shape), np.dtype(dtype).itemsize)
        bad = random.choice(["shape", "dtype", "read_only"]) if self.spoils(0.5) else None
        over_bytes = self.sizes.choice([0, 0, 0, 1, 64, 100])
        if kind == "none":
            self.noted["out"] = kind
            return
        if bad == "shape":
            shape = (*shape, 1)
            where = place(random, self.sizes, "c", len(shape), 1)
        if bad == "dtype":
            dtype = np.int32
        out = None
        if kind == "itself":
            out = _as_output(over, shape, np.dtype(dtype))
            kind = "itself" if out is not None else "overlapping"
        if kind == "overlapping":
            out = _upon(self.memories, over, shape, np.dtype(dtype), over_bytes)
            kind = "overlapping" if out is not None else "c"
        if out is None:
            memory, out = where.of(shape, dtype)
            self.memories.append(memory)
        if bad == "read_only":
            out.flags.writeable = False
        self.noted["out"], self.options["out"] = kind, out

    # parameters

    def scales(self, shape, dtype):
        """Positive finite scales; some invalid ones if the case must have a wrong argument."""
        rng, random = self.rng, self.sizes
        info = np.finfo(np.float32) if dtype in ("float32", "bfloat16") else np.finfo(dtype)
        kind = random.choice(["known", "known", "any", "wide", "edge"])
        n = math.prod(shape)
        known = np.array([1, 0.1, 1 / 3, 2.0**-7, 1 / 255, 0.007843138, 3e-5, 100.7, 3, 0.5])
        if kind == "known":
            scale = rng.choice(known, n)
        elif kind == "any":
            scale = rng.random(n) + 2.0**-10
        elif kind == "wide":
            scale = np.ldexp(1 + rng.random(n), rng.integers(np.log2(info.tiny), np.log2(info.max), n).astype(int))
        else:
            edges = [info.tiny, info.smallest_subnormal, info.max, info.tiny * 3]
            scale = rng.choice([2.0**-100, 2.0**100, 2.0**-900, 2.0**900, *edges], n)
        scale = np.clip(scale, float(info.smallest_subnormal), float(info.max) * 0.99).astype(as_dtype(dtype))
        if kind == "edge":
            words = scale.view(f"i{scale.itemsize}")
            moved = words + rng.integers(-1, 2, n).astype(words.dtype)
            scale = np.maximum(moved, 1).astype(words.dtype).view(scale.dtype)
        if self.of.row.signed_scale and random.random() < 0.5:
            scale = scale * rng.choice([-1, 1], n).astype(scale.dtype)
        if n and self.spoils(0.3):
            scale[rng.integers(n)] = rng.choice([0, -1, np.nan, np.inf, -0.0])
        return scale.reshape(shape)

    def zero_points(self, shape, unit, packed_too=True):
        """Zero points of the convention's kind, in some dtype."""
        rng, random, qtype, row = self.rng, self.random, self.qtype, self.of.row
        if qtype.element:
            return np.zeros(shape, random.choice([qtype.storage, np.dtype(np.int8), np.dtype(np.int64)]))
        dtypes = [qtype.storage] * 4 + [np.dtype(name) for name in ("int64", "int32", "int16", "uint16")]
        if row.zero_point != "integer":
            dtype = as_dtype(random.choice(["float32", "float64", "float64", "int8", "float16"]))
            return (rng.standard_normal(shape) * 100 * float(unit)).clip(-6e4, 6e4).astype(dtype)
        dtype = random.choice(dtypes)
        small = ("int4", "uint4", "int2", "uint2")
        if qtype.name in small and random.random() < 0.3:
            dtype = np.dtype(getattr(ml_dtypes, qtype.name))
        first, last = qtype.qmin, qtype.qmax
        if self.bits:
            first, last = (q // 2 ** (qtype.bits - self.bits) for q in (first, last))
        wide = rng.integers(first, last, shape, np.int64, endpoint=True)
        ends = rng.choice([first, last, max(first, 0)], shape)
        found = np.asarray(np.where(rng.random(shape) < 0.5, wide, ends))
        if found.size and self.spoils(0.3):
            found.flat[0] = last + 1
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            found = found.clip(info.min, info.max)
        return found.astype(dtype)

    def as_given(self, array, name):
        """Parameters as callers may write them."""
        chosen = self.random.choice(GIVEN), self.random.choice(GIVEN + GIVEN_ONE * 2)
        kind = chosen[array.size == 1]
        _, where = self.layout(array.ndim, array.itemsize)
        self.noted[name] = kind
        if array.dtype.isbuiltin != 1 and kind in ("python", "list"):
            kind = "array"
        if kind == "list" and 0 < array.size <= 1000:
            return array.tolist()
        if kind == "scalar":
            return array.reshape(())[()]
        if kind == "python":
            return array.item()
        if kind == "one":
            return self.keep(place(self.random, self.sizes, "c", 1, array.itemsize), array.reshape(1))
        return self.keep(where, array)

    def qparams(self, shape, dtype):
        """QParams of some array of a dtype, or made by hand, and the width of a code for each element."""
        of, random = self.of, self.random
        g, options = self.prescribed(shape)
        qtype = self.qtype if self.bits is None else self.qtype.with_bits(self.bits)
        other = values(self.rng, self.kinds(), dtype, math.prod(shape)).reshape(shape)
        by_hand = random.random() < 0.5
        p = None
        if not by_hand or self.qtype.block_size:
            try:
                p = reference.choose_qparams(
                    other, of.format, **options, symmetric=of.symmetric, convention=of.convention, bits=self.bits
                )
                unit = g.each(np.asarray(p.scale, np.float64), shape)
                self.noted["scale dtype"] = p.scale.dtype.name
                return self.placed_qparams(p), unit
            except (ValueError, TypeError):
                if self.qtype.block_size:
                    scale = np.full(g.parameters(shape), 1, FLOAT_FORMATS[qtype.scale_element].dtype)
                    return QParams(scale, np.zeros(scale.shape, np.int8), qtype, g.axis, g.block_size, True), 1.0
        compute = "float64" if dtype in ("float64", "int32", "uint32", "int64", "uint64") else "float32"
        many = () if random.random() < 0.2 else g.parameters(shape)
        scale = self.scales(many, random.choice([compute, compute, "float32", "float64"]))
        self.noted["scale dtype"] = scale.dtype.name
        unit = g.each(scale.astype(np.float64), shape)
        zero = self.zero_points(many, abs(float(scale.flat[0])) if scale.size else 1.0)
        if self.spoils(0.3):
            scale, zero = (np.concatenate([a.reshape(-1), a.reshape(-1)]) for a in (scale, zero))
        symmetric = of.symmetric and not self.qtype.element
        p = QParams(scale, zero, qtype, g.axis, g.block_size, symmetric, of.convention)
        return self.placed_qparams(p), unit

    def placed_qparams(self, p):
        """QParams whose arrays lie somewhere."""
        if self.random.random() < 0.7:
            return p
        arrays = p.scale, np.asarray(p.zero_point)
        return p.with_values(*(self.keep(self.layout(each.ndim, each.itemsize)[1], each) for each in arrays))

    def dtype_argument(self):
        """The format, by name, as QType or as dtype."""
        qtype = self.qtype
        plain = not (qtype.packed or qtype.block_size or qtype.codebook)  # whose storage is that of uint8
        kinds = [qtype.name, qtype] + ([qtype.storage, qtype.storage.type] if plain else [])
        return self.random.choice(kinds)

    def ranged_options(self, shape):
        of, g_options = self.of, self.prescribed(shape)[1]
        options = g_options | {"symmetric": of.symmetric, "convention": of.convention, "nan": of.nan}
        self.note("format", "convention", "nan", "symmetric", "bits")
        if self.spoils(0.2):
            options["nan"] = "ignore"
        if self.bits is not None:
            options["bits"] = self.bits
        self.noted["range"] = str(of.range)
        if of.range != "minmax" or self.random.random() < 0.1:
            options["range"] = of.range
        return options

    def importance_in_search(self, shape, options):
        """Weights of all elements, or of those along an axis, mostly the one that they have to be of."""
        own, ndim = self.qtype.block_size, len(shape)
        try:
            where = as_granularity(options.get("axis", -1 if own else None), options.get("block_size", own), ndim)
            axis = axis_of_weights(ndim, where) if self.random.random() < 0.95 else 0
        except (ValueError, TypeError):  # what is asked for is refused
            axis = 0
        of = self.noted["importance"] = self.random.choice(IMPORTANCES)
        sizes = shape if of == "elements" else shape[axis : axis + 1]
        draws = np.random.default_rng(self.sizes.randrange(1 << 30))
        weights = draws.random(sizes) ** self.sizes.choice([0, 1, 9]) * (draws.random(sizes) < 0.9)
        return weights.astype(self.random.choice(["float64", "float32", "float16"]))

    def with_noise(self):
        """Round some codes at random."""
        allowed = self.of.row.rounding in NEAREST and not self.qtype.codebook
        if (allowed and self.random.random() < AT_RANDOM) or self.spoils(0.05):
            self.options |= {"rounding": "stochastic", "rng": self.random.getrandbits(40)}
        self.noted["rounding"] = self.options.get("rounding", "nearest")
        if self.spoils(0.05):
            self.options["rng"] = -1

    def packed(self, shape):
        """Shape and dtype of stored codes."""
        if not self.qtype.packed:
            return shape, self.qtype.storage
        return _in_bytes(shape, -1, self.qtype.bits), np.dtype(np.uint8)

    def with_result(self, out_of, shape):
        """Add an output for codes, or for fake quantized values of the first argument."""
        if out_of == "codes":
            return self.with_out(*self.packed(shape))
        x = self.args[0]
        dtype = as_dtype(self.of.dtype if isinstance(x, np.ndarray) else np.asarray(x).dtype.name)
        if dtype.kind in "iu":
            dtype = np.dtype(np.float64 if dtype.itemsize > 2 else np.float32)
        return self.with_out(shape, dtype)

    def note(self, *axes):
        """Note what the combination has on some axes."""
        known = vars(self.of) | {"convention": self.of.row.name, "bits": self.bits}
        self.noted |= {axis: known[axis] for axis in axes}

    note_given = partialmethod(note, "format", "convention", "nan", "saturate", "bits")

    # operations

    def _ranged(self, out_of):
        shape = self.shape()
        options = self.ranged_options(shape)
        if out_of is not None:
            searches = self.of.range != "minmax" and self.random.random() < 0.95  # which clips, so all has to saturate
            options["saturate"] = self.noted["saturate"] = self.of.saturate or searches
        if self.of.range != "minmax" and self.random.random() < 0.4:
            options["importance"] = self.importance_in_search(shape, options)
        self.options = options
        if out_of is not None:
            self.with_noise()
        self.args = [self.placed(self.values(shape)), self.dtype_argument()]
        if out_of is not None:
            self.with_result(out_of, shape)

    _quantize, _fake_quantize = partialmethod(_ranged, "codes"), partialmethod(_ranged, "values")
    _choose_qparams = partialmethod(_ranged, None)

    def _with_qparams(self, out_of):
        shape, of = self.shape(), self.of
        if of.nan == "keep":  # one fault is enough
            shape = shape or (1,)
        self.options = {"nan": of.nan, "saturate": of.saturate}
        self.note_given()
        self.with_noise()
        self.options["qparams"], unit = self.qparams(shape, of.dtype)
        self.args = [self.placed(self.values(shape, unit=unit, infinities=0.2))]
        self.with_result(out_of, shape)

    _quantize_given, _fake_quantize_given = (
        partialmethod(_with_qparams, "codes"),
        partialmethod(_with_qparams, "values"),
    )

    def raw(self, shape):
        """Scale and zero point as operators of ONNX take them, and the width of a code for each element."""
        random, g = self.random, self.granularity(shape)
        many = g.parameters(shape) if random.random() < 0.8 and self.noted["granularity"] != "array" else ()
        if not many:
            self.noted["granularity"] = "array"
        scale = self.scales(many, self.of.scale_dtype)
        zero = self.zero_points(many, abs(float(scale.flat[0])) if scale.size else 1.0)
        if self.spoils(0.3):
            zero = np.concatenate([zero.reshape(-1), zero.reshape(-1)])
        self.noted["scale dtype"] = self.of.scale_dtype
        options = {"convention": self.of.convention}
        if g.axis is not None or random.random() < 0.5:
            options["axis"] = g.axis
        if g.block_size:
            options["block_size"] = g.block_size
        self.options |= options
        given = None if random.random() < 0.2 else self.as_given(zero, "zero point")
        if given is None:
            self.noted["zero point"] = "none"
        return self.as_given(scale, "scale"), given, g.each(scale.astype(np.float64), shape)

    def _quantize_linear(self):
        shape, of = self.shape(), self.of
        self.options = {"nan": of.nan, "saturate": of.saturate}
        self.note_given()
        self.with_noise()
        scale, zero, unit = self.raw(shape)
        x = self.placed(self.values(shape, unit=unit, infinities=0.2))
        self.args = [x, scale, zero, self.dtype_argument()]
        self.with_out(*self.packed(shape))
        out = self.options.get("out", np.empty(0, np.uint8))
        same = getattr(out if zero is None else zero, "dtype", None)
        if same is not None and same.name == of.format and self.random.random() < 0.5:
            self.args[3] = None

    def codes(self, shape):
        """Codes of the format, one per element, in its storage dtype."""
        qtype = self.qtype if self.bits is None else self.qtype.with_bits(self.bits)
        if qtype.element:
            words = self.rng.integers(0, 1 << qtype.bits, shape, np.uint8)
            if qtype.bits < 8:
                return np.arange(1 << qtype.bits, dtype=np.uint8).view(qtype.storage)[words]
            return words.view(qtype.storage)
        return self.rng.integers(qtype.qmin, qtype.qmax, shape, qtype.storage, endpoint=True)

    def _dequantize_linear(self):
        shape = self.shape()
        self.note_given()
        scale, zero, _ = self.raw(shape)
        codes = self.codes(shape)
        if self.qtype.packed and not self.qtype.element:
            codes = codes.astype(getattr(ml_dtypes, self.qtype.name, codes.dtype))
        codes = self.placed(codes, lists=False)
        self.args = [codes, scale, zero]
        self.with_values(shape, np.asarray(scale).dtype if hasattr(scale, "dtype") else np.dtype(np.float32))

    def with_values(self, shape, default):
        """Add a dtype of decoded values, or leave it at the default, and an output."""
        dtype = self.random.choice([None, None, self.of.values_dtype])
        if dtype is not None:
            self.options["dtype"] = self.random.choice([dtype, as_dtype(dtype)])
        self.noted["output dtype"] = dtype or default.name
        self.with_out(shape, as_dtype(dtype) if dtype else default)

    def quantized(self, shape, dtype, padded=False):
        """A QuantizedArray of any codes, perhaps padded with zeros, and the width of a code for each element."""
        p, unit = self.qparams(shape, dtype)
        codes = self.codes(shape)
        if self.qtype.packed:
            codes = reference.pack(codes, self.qtype)
        # the last bits of a row belong to no other row
        repeats = len(shape) - 1 if self.qtype.packed and padded else None
        return QuantizedArray(self.placed(codes, lists=False, repeats=repeats), p, shape), unit

    def _dequantize(self):
        shape = self.shape()
        self.note_given()
        q, _ = self.quantized(shape, self.random.choice(["float32", "float32", "float64"]))
        self.args = [q]
        self.with_values(shape, q.qparams.compute_dtype)

    _dequantize_method = _dequantize

    def whole(self):
        """A QuantizedArray without a fault, of one element or more."""
        self.may_spoil = self.is_wrong = False
        self.note_given()
        shape = tuple(max(n, 1) for n in self.shape() or (1,))
        return self.quantized(shape, self.random.choice(["float32", "float32", "float64"]), padded=True)[0]

    def _part(self):
        q = self.whole()
        blocks = q.axis % len(q.shape) if q.block_size else None
        index = [self.pick(n, q.block_size if a == blocks else 0) for a, n in enumerate(q.shape)]
        lists = [a for a, item in enumerate(index) if isinstance(item, list | np.ndarray)]
        if lists:  # one, next to slices; now and then two
            kept = self.sizes.sample(lists, 2 if len(lists) > 1 and self.sizes.random() < 0.1 else 1)
            index = [item if isinstance(item, slice) or a in kept else slice(None) for a, item in enumerate(index)]
        if self.sizes.random() < 0.2:  # all of some neighbouring axes
            first = self.sizes.randrange(len(index) + 1)
            index[first : self.sizes.randint(first, len(index))] = [Ellipsis]
        self.args = [q, tuple(index)]

    def pick(self, n, block_size):
        """What is taken of an axis of n elements, in blocks of some size or without blocks."""
        random = self.sizes
        if random.random() < 0.02:
            return random.choice([n, -n - 1])
        if block_size and random.random() < 0.9:
            first = random.randrange(0, n, block_size)
            return slice(random.choice([first, first - n]), random.choice([None, random.randint(first, n)]))
        kind = random.choice(PICKS)
        self.noted.setdefault("index", set()).add(kind)
        if kind == "int":
            place = random.randrange(-n, n)
            return random.choice([place, np.int64(place)])
        if kind == "list":
            places = [random.randrange(-n, n) for _ in range(random.randint(0, 5))]
            return random.choice([places, np.array(places, np.int32)])
        if kind == "mask":
            return self.rng.random(n) < random.choice([0, 0.5, 1])
        ends = [random.choice([None, random.randint(-n - 1, n + 1)]) for _ in range(2) if kind != "all"]
        return slice(*ends or [None], random.choice([-3, -1, 2, 7])) if kind == "steps" else slice(*ends or [None])

    def _reshape(self):
        random = self.sizes
        q = self.whole()
        sizes = list(q.shape)
        for _ in range(random.randint(1, 3)):
            how, at = random.choice(["join", "part", "one"]), random.randrange(len(sizes) + 1)
            if how == "join" and at + 1 < len(sizes):
                sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
            elif how == "part" and at < len(sizes):
                divisors = [d for d in (2, 3, 4, 5, 8, q.block_size or 1) if sizes[at] % d == 0]
                divisor = random.choice(divisors or [1])
                sizes[at : at + 1] = random.choice([(sizes[at] // divisor, divisor), (divisor, sizes[at] // divisor)])
            else:
                sizes.insert(at, 1)
        self.args = [q, tuple(sizes)]

    def _explain(self):
        q = self.whole()
        self.args = [q, tuple(self.sizes.randrange(-n, n) for n in q.shape)]

    def _calibrate(self):
        random, of = self.random, self.of
        shape = self.shape()
        g = self.granularity(shape, [kind for kind in GRANULARITIES if kind != "blocks"])
        try:
            channels = math.prod(g.parameters(shape))
        except IndexError:  # of an axis that the array has not
            channels = 1
        if channels > MOST_CHANNELS:
            g, channels = Granularity(), 1
            self.noted["granularity"] = "array"
        bins = self.sizes.choice([n for n in BINS if n * channels <= BINS[-1]] or BINS[:1])
        name = random.choice(METHODS)
        of_percent = self.sizes.choice([0.0, 50.0, 99.0, 99.999, 100.0])
        how = {"minmax": {}, "percentile": {"percentile": of_percent}}.get(name)
        if name == "mse":
            how = {"grid": self.sizes.choice([1, 3, 10])}
        if name == "entropy":
            coarse = [n for n in (2, 8, 32, 128) if channels * bins * n <= MOST_STEPS]
            name, how = (name, {"quantized_bins": self.sizes.choice(coarse)}) if coarse else ("percentile", {})
        self.noted |= {"bins": bins, "method": name}
        if self.spoils(0.2):
            name, how = random.choice([("entropy", {"quantized_bins": 3}), ("mse", {"grid": 0}), ("most", {})])
        if self.spoils(0.2):
            bins = random.choice([15, 8, 1 << 21])
        kept_as = random.choice([*KEPT_AS] if isinstance(of.convention, str) else ["object", "pickle"])
        options = {"axis": g.axis, "symmetric": of.symmetric, "convention": of.convention, "nan": of.nan, "bins": bins}
        pieces = [self.placed(self.values(each)) for each in self.pieces(shape, g)]
        one = self.is_wrong or self.sizes.random() < 0.3
        parts = [0 if one else self.sizes.randrange(3) for _ in pieces]
        self.options = options | {"parts": parts, "kept_as": kept_as, "method": (name, how)}
        self.args = [pieces, self.dtype_argument()]
        self.note("format", "convention", "nan", "symmetric")
        self.noted["kept as"] = kept_as

    def pieces(self, shape, g):
        """Shapes of arrays that have the channels of one shape."""
        free = [a for a in range(len(shape)) if a not in g.kept(len(shape))] if not self.is_wrong else []
        shapes = [shape]
        for _ in range(self.random.randint(0, 3) if free else 0):
            axis = self.sizes.choice(free)
            shapes.append(tuple(self.sizes.randint(0, n) if a == axis else n for a, n in enumerate(shape)))
        if shape and self.spoils(0.3):
            shapes.append((*(n + 1 for n in shape),))
        return shapes

    def _nest_scale(self):
        random, shape = self.random, self.shape()
        dtype = "float64" if self.spoils(0.3) else "float32"
        scale = self.values(shape, dtype, nans=0.01, infinities=0.01)
        if random.random() < 0.6:  # as scales are
            scale = np.abs(scale)
        self.noted |= {"input dtype": dtype, "format": self.of.format}
        if random.random() < 0.8:
            self.options["block_size"] = 0 if self.spoils(0.3) else random.choice([*self.of.blocks, 1, 256, 10**6])
        if random.random() < 0.4:
            self.options["offset"] = random.choice([0.0, 0.1, 1e-40, -3.0, float(scale.flat[0]) if scale.size else 1.0])
        self.args = [self.placed(scale, lists=False)]

    def _unpack_array(self):
        random, stored = self.random, np.iinfo(self.of.format)
        codes = self.rng.integers(stored.min, stored.max, self.shape(), stored.dtype, endpoint=True)
        few = [stored.min, stored.max, 0, 5, 6, *codes.reshape(-1)[:2].tolist()]
        if self.sizes.random() < 0.5:  # so that there are gaps
            codes = np.where(self.rng.random(codes.shape) < 0.3, self.rng.choice(few, codes.shape), codes)
        units = [self.sizes.choice([0.1, -3e-5, 1e30, 0.0, -0.0, 1 / 3, 7]) for _ in range(2)]
        kinds = random.choice([(np.float32, np.float32), (np.float64, np.float32), (float, float), (np.float32, float)])
        self.options = {"dtype": random.choice([None, "float32", "float64"])}
        self.options["fill_value"] = self.sizes.sample(few, self.sizes.randrange(4))
        self.noted |= {"input dtype": self.of.format}
        self.args = [self.placed(codes.astype(stored.dtype), lists=False)]
        self.args += [kind(unit) for kind, unit in zip(kinds, units, strict=True)]

    def _minmax(self):
        shape = self.shape()
        g = self.granularity(shape)
        self.options = {"axis": g.axis, "block_size": g.block_size, "nan": self.of.nan}
        self.note("nan")
        self.args = [self.placed(self.values(shape, infinities=0.2))]

    def _compare(self):
        shape, random = self.shape(), self.random
        if random.random() < 0.6:
            self.note_given()
            q, unit = self.quantized(shape, random.choice(["float32", self.of.dtype]))
        else:
            unit = 1.0
            q = self.values(shape, self.of.values_dtype, nans=0.2, infinities=0.2)
            self.noted["approximation"] = self.of.values_dtype
        x = self.values(shape, unit=unit, nans=0.03, infinities=0.1)
        if not isinstance(q, QuantizedArray):
            if random.random() < 0.5:  # near
                q = np.where(np.isnan(q), q, (x * 0.99).astype(q.dtype))
            q = self.placed(np.asarray(q), "layout of q")
        self.args = [self.placed(x), q]

    def any_axis(self, shape):
        return self.random.randrange(-len(shape), len(shape)) if shape else -1

    def packing(self, axis):
        """Options of packing along an axis."""
        self.note("format")
        big = self.random.random() < (0.5 if self.qtype.bits == 1 else 0.02)
        return ({"axis": axis} if axis != -1 else {}) | ({"bitorder": "big"} if big else {})

    def _pack(self):
        shape, random, qtype = self.shape(), self.random, self.qtype
        shape = shape if random.random() < 0.9 else ()
        axis = self.any_axis(shape)
        codes = self.codes(shape)
        dtype = random.choice(["int8", "uint8", "int16", "int64", "uint32"])
        if not qtype.element:
            codes = codes.astype(np.int64)
            if codes.size and self.spoils(1):
                codes.flat[self.rng.integers(codes.size)] = random.choice([qtype.qmax + 1, qtype.qmin - 1])
            codes = codes.astype(dtype)
        self.options = self.packing(axis)
        self.args = [self.placed(codes, lists=not qtype.element), qtype.name]

    def _unpack(self):
        shape, qtype = self.shape(), self.qtype
        axis = self.any_axis(shape)
        packed = self.rng.integers(0, 256, _in_bytes(shape, axis, qtype.bits, self.spoils(0.5)), np.uint8)
        self.options = {"shape": shape} | self.packing(axis)
        self.args = [self.placed(packed, lists=False), qtype.name]

    def _binarize(self):
        shape, random = self.shape(), self.random
        axis = self.any_axis(shape)
        dtype, bitorder = random.choice(["uint8", "uint8", "int8"]), random.choice(["big", "big", "little"])
        self.options = {"axis": axis, "dtype": dtype, "bitorder": bitorder, "nan": self.of.nan}
        self.noted |= {"nan": self.of.nan, "format": dtype}
        x = self.values(shape, nans=0.1, infinities=0.2)
        if random.random() < 0.5:
            negative = [-1.0] if x.dtype.kind != "u" else []
            self.options["threshold"] = random.choice([0.0, 0.5, 1, 3.0, *negative])
            self.options["inclusive"] = random.choice([False, True])
        self.args = [self.placed(x)]
        self.with_out(_in_bytes(shape, axis, 1), dtype)

    def _bitround(self):
        shape, random, dtype = self.shape(), self.random, self.float_dtype()
        x = self.values(shape, dtype, nans=0.3, infinities=0.3)
        bits = 8 * x.dtype.itemsize
        most = {"keepbits": of_width(bits)[0], "digits": most_digits(bits)}
        way = random.choice(["keepbits", "keepbits", "digits", "max_error"])
        number = self.sizes.choice([0.0, 1e-6, 0.1, 3.0, math.inf])
        if way in most:
            number = most[way] + 1 if self.spoils(0.5) else self.sizes.randint(int(way == "digits"), most[way])
        self.options = {way: number, "convention": random.choice(list(TIES))}
        self.args = [self.placed(x, lists=False)]
        self.with_out(shape, x.dtype)

    def _bit_information(self):
        shape = self.shape()
        x = self.values(shape, self.float_dtype(), nans=0.3, infinities=0.3)
        self.options["axis"] = self.any_axis(shape)
        self.args = [self.placed(x, lists=False)]

    def float_dtype(self):
        """A dtype of IEEE floats."""
        dtype = self.of.dtype if self.of.dtype in ("float16", "float32", "float64") else "float32"
        self.noted["input dtype"] = dtype
        return dtype

    def _requantize(self):
        shape, random, rng = self.shape(), self.random, self.rng
        g, info = self.granularity(shape, ("array", "channels", "channels", "axes")), np.iinfo(self.of.format)
        convention = random.choice(tuple(REQUANTIZATIONS))
        self.noted |= {"format": self.of.format, "convention": convention}
        self.options = {"convention": convention} | ({} if g.axis is None else {"axis": g.axis})
        many, few = g.parameters(shape), ()
        unit = 2.0 ** self.sizes.randint(-34, 6)
        multiplier = self._multipliers(many if random.random() < 0.7 else few, unit)
        sums = rng.integers(-(2**31), 2**31, shape) >> rng.integers(0, 32, shape)
        between = (rng.integers(-2 * info.max, 2 * info.max, shape) / 2 / unit).clip(-(2**31), 2**31 - 1)
        acc = np.where(rng.random(shape) < 0.6, between, sums).astype(np.int32)
        zero_point = np.asarray(rng.integers(info.min, info.max, endpoint=True))
        if self.spoils(0.3):
            zero_point = zero_point + 2**17
        if random.random() < 0.6:
            of_bias = many if random.random() < 0.7 else few
            bias = rng.integers(-(2**31), 2**31, of_bias) >> rng.integers(0, 32, of_bias)
            kinds = ["int32", "int32", "int64", *(["float32", "float64"] if convention == "torch" else [])]
            bias = np.asarray(bias).astype(random.choice(kinds))
            bias = np.concatenate([bias.reshape(-1)] * 2) if self.spoils(0.3) else bias
            self.options["bias"] = self.as_given(bias, "bias")
        if random.random() < 0.3:
            first, last = sorted(self.sizes.randint(info.min, info.max) for _ in range(2))
            self.options["clamp"] = (last + 2**16, first) if self.spoils(0.3) else (first, last)
        x = self.placed(acc, lists=False)
        numbers = self.as_given(multiplier, "scale"), self.as_given(zero_point, "zero point")
        self.args = [x, *numbers, self.dtype_argument()]
        self.with_out(shape, self.of.format)

    def _multipliers(self, shape, unit):
        """Multipliers of about a size, and some at the edges; an invalid one if an argument must be wrong."""
        rng, dtype = self.rng, self.random.choice(["float64", "float64", "float32"])
        found = (0.5 + rng.random(shape)) * unit
        edges = [0.0, 1.0, 0.5, 2.0**-32, 2.0**-33, 1.0 - 2.0**-33, 1.0 + 2.0**-31, 2.0**29.5, 5e-324]
        found = np.asarray(np.where(rng.random(shape) < 0.1, rng.choice(edges, shape), found))
        if found.size and self.spoils(0.3):
            found.flat[-1] = rng.choice([-1, np.nan, np.inf, 2.0**200])
        return found.astype(dtype)

    def gguf_shape(self, width):
        ndim = self.random.choice([1, 1, 2, 3]) if self.case.size != "streamed" else 2
        rows = -(-self.total() // width)
        shape = shape_of(self.sizes, rows, ndim)
        return (*shape[:-1], shape[-1] * width + (self.spoils(0.5)))

    def _gguf_quantize(self):
        form = BLOCK_FORMATS[self.of.format]
        shape = self.gguf_shape(form.size)
        self.note("format")
        x = self.values(shape, nans=0.02, infinities=0.02)
        if self.random.random() < 0.8 or self.is_wrong:  # what float16 reaches
            x = np.where(np.abs(x.astype(np.float64)) < 6e4, x, x.dtype.type(1))
        x = self.placed(x, lists=False)
        self.args = [x, self.random.choice([form.name, form.number])]
        if self.random.random() < (0.98 if form.needs_importance else 0.2):
            self.options["importance"] = self.imatrix(shape)
        if self.random.random() < (0.4 if form.trials else 0.02):
            self.options["range"] = "mse"
        self.with_out((*shape[:-1], shape[-1] // form.size * form.nbytes), np.uint8)

    def imatrix(self, shape):
        """Importance of columns: of all rows, of each, or of each index of some axes; now and then a bad one."""
        kept = self.random.randrange(len(shape))
        rows = self.random.choice([(), (*shape[:kept], *(1,) * (len(shape) - 1 - kept))])
        weights = self.rng.random((*rows, shape[-1])).astype(np.float32)
        if self.sizes.random() < 0.1:  # of 2^90 and more some are refused
            weights *= np.float32(2.0) ** self.sizes.randint(-100, 120)
        if self.sizes.random() < 0.1 and weights.size:
            weights.flat[-1] = self.sizes.choice([-1, np.nan, np.inf])
        return weights

    def _gguf_dequantize(self):
        form = BLOCK_FORMATS[self.of.format]
        shape = self.gguf_shape(form.nbytes)
        self.note("format")
        data = self.placed(self.rng.integers(0, 256, shape, np.uint8), lists=False)
        self.args = [data, self.random.choice([form.name, form.number])]
        self.with_out((*shape[:-1], shape[-1] // form.nbytes * form.size), np.float32)


def _in_bytes(shape, axis, bits, more=0):
    """The shape of codes that are packed along an axis, or too many bytes."""
    whole = list(shape) or [1]
    whole[axis] = -(-whole[axis] * bits // 8) + more
    return tuple(whole)


def _as_output(array, shape, dtype):
    """The array itself, in any memory layout, as an output of a shape and dtype; None where it is not fit for it."""
    if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (shape, dtype):
        return None
    return array if array.flags.writeable and (0 not in array.strides or array.size <= 1) else None


def _upon(memories, array, shape, dtype, offset):
    """An array of a shape and dtype that lies upon another one, from some byte on; None where there is no room."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
        return None
    memory = next((memory for memory in memories if np.may_share_memory(memory, array)), None)
    if memory is None:
        return None
    first = array.ctypes.data - memory.ctypes.data + offset
    last = first + math.prod(shape) * dtype.itemsize
    return memory[first:last].view(dtype).reshape(shape) if last <= memory.size else None
