"""The type of each tensor of a model: the rules by which llama-quantize mixes types, as tables.

src/llama-quant.cpp of llama.cpp decides by the name of a tensor, its layer, and a few numbers of the model. Its
decisions for the types here are one table of rules; the first rule that applies to a tensor counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fastq.system.arguments import did_you_mean
from fastq.tools.files.patterns import advice, matches_as_llama
from fastq.tools.gguf_files.gguf_file import GgufSource, GgufSpec
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES, TensorType


@dataclass(frozen=True)
class Mix:
    """The type of a file as a whole."""

    name: str  # its name in llama-quantize
    number: int  # `general.file_type` of the file
    default: str  # type of the tensors without a rule
    needs_imatrix: bool = False  # for some tensors of any model

    def needs_importance(self, name: str, kind: TensorType) -> bool:
        """Return whether llama-quantize gives a tensor a type with an importance matrix only.

        Heads and embeddings, the tensors of `_NAMED`, are exempt.
        """
        is_type_from_importance = kind.name in _FROM_IMPORTANCE or (self.name, kind.name) == ("Q2_K_S", "Q2_K")
        return is_type_from_importance and name not in _NAMED


# types that llama-quantize makes with an importance matrix only, except for heads and embeddings
_FROM_IMPORTANCE = "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"

# include/llama.h, enum llama_ftype
MIXES = {
    row.name: row
    for row in (
        Mix("Q4_0", 2, "Q4_0"),
        Mix("Q4_1", 3, "Q4_1"),
        Mix("Q5_0", 8, "Q5_0"),
        Mix("Q5_1", 9, "Q5_1"),
        Mix("Q8_0", 7, "Q8_0"),
        Mix("Q2_K", 10, "Q2_K"),
        Mix("Q2_K_S", 21, "Q2_K", needs_imatrix=True),
        Mix("Q3_K_S", 11, "Q3_K"),
        Mix("Q3_K_M", 12, "Q3_K"),
        Mix("Q3_K_L", 13, "Q3_K"),
        Mix("Q4_K_S", 14, "Q4_K"),
        Mix("Q4_K_M", 15, "Q4_K"),
        Mix("Q5_K_S", 16, "Q5_K"),
        Mix("Q5_K_M", 17, "Q5_K"),
        Mix("Q6_K", 18, "Q6_K"),
        Mix("IQ4_NL", 25, "IQ4_NL"),
        Mix("IQ1_S", 24, "IQ1_S", needs_imatrix=True),
        Mix("IQ1_M", 31, "IQ1_M", needs_imatrix=True),
        Mix("IQ2_XXS", 19, "IQ2_XXS", needs_imatrix=True),
        Mix("IQ2_XS", 20, "IQ2_XS", needs_imatrix=True),
        Mix("IQ2_S", 28, "IQ2_XS", needs_imatrix=True),
        Mix("IQ2_M", 29, "IQ2_S", needs_imatrix=True),
        Mix("IQ3_XXS", 23, "IQ3_XXS", needs_imatrix=True),
        Mix("IQ3_XS", 22, "IQ3_S", needs_imatrix=True),
        Mix("IQ3_S", 26, "IQ3_S"),
        Mix("IQ3_M", 27, "IQ3_S"),
        Mix("IQ4_XS", 30, "IQ4_XS"),
        Mix("TQ1_0", 36, "TQ1_0"),
        Mix("TQ2_0", 37, "TQ2_0"),
        Mix("MXFP4_MOE", 38, "MXFP4"),
        Mix("Q1_0", 40, "Q1_0"),
        Mix("Q2_0", 41, "Q2_0"),
    )
}
FLOAT_MIXES = {row.name: row for row in (Mix("F32", 0, "F32"), Mix("F16", 1, "F16"), Mix("BF16", 32, "BF16"))}
LIKE_MIX = "Q8_0"  # the mix of `fastq gguf --like` without a TYPE
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
ONLY_IN_LLAMA = ("COPY",)  # mixes of llama-quantize that fastq lacks


def mix_of(text: str, mixes: Mapping[str, Mix]) -> Mix:
    """Return the mix of a name, in upper or lower case, or of a number; raise ValueError with the valid names."""
    name = ALIASES.get(text.upper(), text.upper())
    mix = mixes.get(name) or next((mix for mix in mixes.values() if str(mix.number) == text), None)
    if mix is not None:
        return mix
    if name in ONLY_IN_LLAMA:
        hint = "; only llama-quantize makes it"
    elif name in TENSOR_TYPES and mixes is not FLOAT_MIXES:
        hint = f", but the type of single tensors: --tensor-type .={name} with one of them converts all tensors to it"
    else:
        hint = did_you_mean(name, mixes, {})
    raise ValueError(f"{text!r} is not one of {', '.join(mixes)}{hint}")


@dataclass(frozen=True)
class Model:
    """The numbers of a model that rules use; a number that the metadata lacks is 0."""

    architecture: str = ""
    layers: int = 0
    experts: int = 0
    heads: int = 0
    heads_kv: int = 0

    @property
    def group(self) -> int:
        """The number of query heads that share keys and values."""
        return self.heads // self.heads_kv if self.heads_kv else 0

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp treats it as a model of 70 billion weights, by architecture and layers."""
        if (self.architecture, self.layers) not in _70B:
            return False
        # llama.cpp has other names for such models of Llama: 65B if heads share no keys, and none for 8 experts
        return not self.architecture.startswith("llama") or (self.heads != self.heads_kv and self.experts != 8)


_70B = {("llama", 80), ("llama-embed", 80), ("qwen2", 80), ("deci", 80), ("olmo", 80), ("jais2", 68)}


def model_of(source: GgufSource) -> Model:
    """Return the numbers of a model from the metadata of its file."""
    architecture = str(source.get("general.architecture", ""))

    def number(key: str, default: int = 0) -> int:
        """Return an integer of the model's architecture, or the default if it lacks one."""
        value = source.get(f"{architecture}.{key}", default)
        if isinstance(value, list) and value:  # some models have a number for each layer
            value = value[0]
        return value if isinstance(value, int) else default

    heads = number("attention.head_count")
    return Model(
        architecture=architecture,
        layers=number("block_count"),
        experts=number("expert_count"),
        heads=heads,
        heads_kv=number("attention.head_count_kv", heads),
    )


# Tensors of two or more dimensions are quantized if their name ends in "weight", except those whose name contains or is
# one of these. They are small, or the model is sensitive to them, or llama.cpp has no code for them in blocks.
_NOT_QUANTIZED_WITHIN = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight"),
    *("time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight"),
    *("time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight"),
    *("time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight"),
    *("time_mix_decay_w2.weight", "time_mix_lerp_fused.weight", "attn_rel_b.weight"),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger"),
    *("a.rvq.codebook", "mm.a.code_embd"),
)
_NOT_QUANTIZED = ("position_embd.weight", "token_types.weight")
# by architecture, names that contain one of these
_NOT_QUANTIZED_WITHIN_OF = {
    "glm5-next": (
        *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate"),
        *("indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight"),
        *("ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight"),
    )
}
# by architecture, names that contain one of these are quantized to Q8_0 in every mix
_Q8_0_WITHIN_OF = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}


def is_quantized(spec: GgufSpec, architecture: str) -> bool:
    """Return whether llama-quantize changes the type of a tensor of a model at all."""
    name = spec.name
    # it looks for "weight" at the length of the name minus six; for five bytes that wraps around to "not found" = -1
    is_weight = name.endswith("weight") or len(name.encode()) == 5
    parts = (*_NOT_QUANTIZED_WITHIN, *_NOT_QUANTIZED_WITHIN_OF.get(architecture, ()))
    is_exception = name in _NOT_QUANTIZED or any(part in name for part in parts)
    return len(spec.shape) > 1 and is_weight and not is_exception


# The purpose of a tensor by its name: the first entry whose text is the name, or else is in the name
OUTPUT = "output"
EMBEDDING = "embedding"
VALUES = "values"
KEYS = "keys"
QUERIES = "queries"
ATTENTION = "attention"
UP = "up"
GATE = "gate"
DOWN = "down"
PER_LAYER = "per_layer_token_embd.weight"
_NAMED = {"output.weight": OUTPUT, "token_embd.weight": EMBEDDING, PER_LAYER: EMBEDDING}
_NAMED_WITHIN = {
    "attn_qkv.weight": VALUES,
    "attn_kv_b.weight": VALUES,
    "attn_v.weight": VALUES,
    "attn_k.weight": KEYS,
    "attn_q.weight": QUERIES,
    "attn_output.weight": ATTENTION,
    "ffn_up": UP,
    "ffn_gate": GATE,
    "ffn_down": DOWN,
}


def purpose_of(name: str) -> str | None:
    """Return the purpose of a tensor, which selects its rules; None without one."""
    return _NAMED.get(name) or next((purpose for part, purpose in _NAMED_WITHIN.items() if part in name), None)


# The rules


@dataclass(frozen=True)
class TensorRole:
    """A tensor among those of its purpose: what the conditions of rules look at."""

    model: Model
    layer: int  # for some purposes the number of such tensors before it
    layers: int  # for some purposes the number of such tensors
    has_imatrix: bool


@dataclass(frozen=True)
class TypeRule:
    """A type for the tensors of a purpose."""

    purpose: str
    kind: str | None  # None: that of the mix
    mixes: str = ""  # names of mixes; all mixes if empty
    when: Callable[[TensorRole], bool] = field(default=lambda role: True)

    def applies(self, purpose: str, mix: Mix, role: TensorRole) -> bool:
        """Return whether the rule is for a tensor of a purpose in a mix."""
        is_for_mix = not self.mixes or mix.name in self.mixes.split()
        return purpose == self.purpose and is_for_mix and self.when(role)


# names of mixes that share rules
_IQ1 = "IQ1_S IQ1_M"
_UP_TO_IQ2_XS = f"{_IQ1} IQ2_XXS IQ2_XS"
_IQ2_S_AND_M = "IQ2_S IQ2_M"
_IQ1_IQ2 = f"{_UP_TO_IQ2_XS} {_IQ2_S_AND_M}"
_IQ3 = "IQ3_XXS IQ3_XS IQ3_S IQ3_M"
MOE = "MXFP4_MOE"  # experts in MXFP4, everything else in Q8_0
# by architecture, in which names tensors of three axes are experts, if it has stacks of other matrices, too
_EXPERTS_OF = {"bailingmoe3": ("ffn_up", "ffn_gate", "ffn_down")}


def _gets_more_bits(role: TensorRole) -> bool:
    """Return whether a layer is in the first or last eighth, or is every third one between."""
    return not _is_between(role) or (role.layer - role.layers // 8) % 3 == 2


def _is_in_first(role: TensorRole, parts: int) -> bool:
    """Return whether a layer is in the first of some equal parts: in the first eighth, if `parts` is 8."""
    return role.layer < role.layers // parts


def _is_falcon(role: TensorRole) -> bool:
    return role.model.architecture == "falcon"


def _has_eight_experts(role: TensorRole) -> bool:
    return role.model.experts == 8


def _shares_keys(role: TensorRole) -> bool:
    """Return whether four query heads or more share keys and values."""
    return role.model.group >= 4


def _is_between(role: TensorRole) -> bool:
    """Return whether a layer is neither in the first nor in the last eighth."""
    return role.layers // 8 <= role.layer < 7 * role.layers // 8


RULES = (
    TypeRule(VALUES, "Q4_K", _IQ1_IQ2, lambda role: _shares_keys(role) or role.model.experts >= 4),
    TypeRule(VALUES, "Q2_K", _UP_TO_IQ2_XS),
    TypeRule(VALUES, "IQ3_S", _IQ2_S_AND_M),
    TypeRule(KEYS, "Q4_K", _IQ1_IQ2, _has_eight_experts),
    TypeRule(DOWN, "Q2_K", _UP_TO_IQ2_XS, lambda role: _is_in_first(role, 8)),
    TypeRule(DOWN, "IQ3_S", _IQ2_S_AND_M, lambda role: _is_in_first(role, 8)),
    TypeRule(ATTENTION, "Q5_K", _IQ1_IQ2, _has_eight_experts),
    TypeRule(ATTENTION, "IQ2_XXS", _IQ1),
    TypeRule(ATTENTION, "IQ3_S", _IQ2_S_AND_M),
    TypeRule(VALUES, "Q8_0", when=_has_eight_experts),
    TypeRule(VALUES, "Q4_K", "Q2_K Q2_K_S IQ3_XXS IQ3_XS IQ3_S", _shares_keys),
    TypeRule(VALUES, "Q4_K", "IQ3_M"),
    TypeRule(VALUES, "Q3_K", "Q2_K"),
    TypeRule(VALUES, "Q5_K", "Q3_K_M", lambda role: role.layer < 2),
    TypeRule(VALUES, "Q4_K", "Q3_K_M"),
    TypeRule(VALUES, "Q5_K", "Q3_K_L"),
    TypeRule(VALUES, "Q5_K", "IQ4_NL IQ4_XS", _shares_keys),
    TypeRule(VALUES, "Q6_K", "Q4_K_M Q5_K_M", _gets_more_bits),
    TypeRule(VALUES, "Q5_K", "Q4_K_S", lambda role: role.layer < 4),
    TypeRule(KEYS, "Q8_0", when=_has_eight_experts),
    *(TypeRule(of, kind, mix) for of in (KEYS, QUERIES) for mix, kind in (("IQ3_XXS", "IQ2_S"), ("IQ3_XS", "IQ3_XXS"))),
    *(TypeRule(of, "IQ3_XXS", "IQ3_XS", _is_between) for of in (UP, GATE)),
    TypeRule(DOWN, "Q3_K", "Q2_K"),
    TypeRule(DOWN, "Q4_K", "Q2_K_S", lambda role: _is_in_first(role, 8)),
    TypeRule(DOWN, "Q5_K", "Q3_K_M", lambda role: _is_in_first(role, 16)),
    TypeRule(DOWN, "Q4_K", "Q3_K_M", lambda role: not _is_falcon(role) or _gets_more_bits(role)),
    TypeRule(
        DOWN,
        "Q4_K",
        "IQ3_M",
        lambda role: _is_in_first(role, 8) or (_has_eight_experts(role) and _gets_more_bits(role)),
    ),
    TypeRule(DOWN, "Q4_K", "Q3_K_L", _is_falcon),
    TypeRule(DOWN, "Q5_K", "Q3_K_L"),
    TypeRule(DOWN, "Q6_K", "Q4_K_M", lambda role: _is_falcon(role) and _is_in_first(role, 16)),
    TypeRule(DOWN, "Q5_K", "Q4_K_M", lambda role: _is_falcon(role) and _gets_more_bits(role)),
    TypeRule(DOWN, "Q6_K", "Q4_K_M Q5_K_M", _gets_more_bits),
    TypeRule(DOWN, "Q5_K", "IQ4_NL IQ4_XS", lambda role: _is_in_first(role, 8) and not role.has_imatrix),
    TypeRule(DOWN, "Q5_K", "Q4_K_S", lambda role: _is_in_first(role, 8) and not _is_falcon(role)),
    TypeRule(DOWN, "Q4_1", "Q4_0", lambda role: _is_in_first(role, 8) and role.has_imatrix),
    TypeRule(DOWN, "Q5_1", "Q5_0", lambda role: _is_in_first(role, 8) and role.has_imatrix),
    TypeRule(ATTENTION, "Q4_K", "Q3_K_L", _is_falcon),
    TypeRule(ATTENTION, None, when=_is_falcon),
    TypeRule(ATTENTION, "Q5_K", f"Q2_K Q3_K_S Q3_K_M Q4_K_S Q4_K_M IQ4_NL IQ4_XS {_IQ3}", _has_eight_experts),
    TypeRule(ATTENTION, None, when=_has_eight_experts),
    TypeRule(ATTENTION, "Q3_K", "Q2_K"),
    TypeRule(ATTENTION, "IQ3_S", "IQ3_XXS"),
    TypeRule(ATTENTION, "Q4_K", "Q3_K_M IQ3_M"),
    TypeRule(ATTENTION, "Q5_K", "Q3_K_L"),
    TypeRule(EMBEDDING, "Q4_K", "TQ1_0 TQ2_0 Q2_0"),
    TypeRule(EMBEDDING, "Q2_K", _UP_TO_IQ2_XS),
    TypeRule(EMBEDDING, "IQ3_S", f"{_IQ2_S_AND_M} IQ3_XXS"),
)
_Q5_K_HEADS = *_IQ1_IQ2.split(), "IQ3_XXS"  # mixes in which output.weight is Q5_K; it is Q6_K in others
_RAISED_OF_70B = {"Q3_K": "Q5_K", "Q4_K": "Q5_K"}  # values of a model of 70B, which are an eighth of the queries

# Types for rows that are not whole blocks; F16 if they do not fit either
FALLBACKS = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    "Q2_0": "Q4_0",
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "TQ1_0": "Q4_0",
    "TQ2_0": "Q4_0",
}


# The choice


@dataclass(frozen=True)
class TypeOverrides:
    """The options of llama-quantize that override rules, under the same names."""

    pure: bool = False  # no rules: all tensors get the default type
    tensor_types: Sequence[tuple[str, str]] = ()  # for tensors in whose names a pattern is found; the first counts
    output_type: str | None = None  # for output.weight, and for the token embeddings
    embedding_type: str | None = None


def idle_options(architecture: str, specs: Sequence[GgufSpec], overrides: TypeOverrides) -> list[str]:
    """Return the options that match no tensor to quantize; raise ValueError if a pattern matches no tensor at all.

    A pattern that matches only tensors which earlier ones match is idle, too.
    """
    quantized = [spec.name for spec in specs if is_quantized(spec, architecture)]
    purposes = {purpose_of(name) for name in quantized}
    idle = []
    for pattern, kind in overrides.tensor_types:
        option = f"--tensor-type {pattern}={kind}"
        if not any(matches_as_llama(spec.name, pattern) for spec in specs):
            hint = advice("a pattern", pattern, [spec.name for spec in specs], matches_as_llama)
            raise ValueError(f"{option} matches no tensor: none has a name in which {pattern!r} is found{hint}")
        without_option = [name for name in quantized if not matches_as_llama(name, pattern)]
        if without_option == quantized:
            idle.append(option)
        quantized = without_option
    if overrides.output_type and not purposes & {OUTPUT, EMBEDDING}:
        idle.append(f"--output-tensor-type {overrides.output_type}")
    if overrides.embedding_type and EMBEDDING not in purposes:
        idle.append(f"--token-embedding-type {overrides.embedding_type}")
    return idle


def in_order(specs: Iterable[GgufSpec]) -> list[GgufSpec]:
    """Return tensors in the order in which llama.cpp writes them: by layer, then by name."""
    return sorted(specs, key=lambda spec: (_layer(spec.name), spec.name.encode()))


def choose_types(
    model: Model, specs: Sequence[GgufSpec], mix: Mix, overrides: TypeOverrides, *, has_imatrix: bool = False
) -> dict[str, TensorType]:
    """Return the type of each tensor that llama-quantize gives it; `specs` are in the order of `in_order`."""
    chooser = _TypeChooser(model, specs, mix, overrides, has_imatrix)
    return {spec.name: chooser.type_of(spec) for spec in specs}


class _TypeChooser:
    """Chooses the types of the tensors of a model, one after the other.

    It counts the tensors of a purpose, because llama-quantize uses their number as the layer.
    """

    def __init__(
        self, model: Model, specs: Sequence[GgufSpec], mix: Mix, overrides: TypeOverrides, has_imatrix: bool
    ) -> None:
        self._model = model
        self._mix = mix
        self._overrides = overrides
        self._has_imatrix = has_imatrix
        purposes = [purpose_of(spec.name) for spec in specs]
        self._is_tied = OUTPUT not in purposes  # the embedding is the output head, too
        self._layers_of = {VALUES: purposes.count(VALUES), **dict.fromkeys((UP, GATE, DOWN), model.layers)}
        self._seen = dict.fromkeys(self._layers_of, 0)  # number of tensors of the purpose so far

    def type_of(self, spec: GgufSpec) -> TensorType:
        """Return the type of the next tensor, to be called for all in their order: F16 if no block divides its rows."""
        if not is_quantized(spec, self._model.architecture):
            return spec.kind
        intended = self._intended_type(spec)
        for kind in (TENSOR_TYPES[intended], TENSOR_TYPES[FALLBACKS.get(intended, "F16")]):
            if spec.shape[-1] % kind.block == 0:
                return kind
        return TENSOR_TYPES["F16"]

    def _intended_type(self, spec: GgufSpec) -> str:
        """Return the type of a tensor, if its rows are whole blocks: by an option, else by a rule."""
        if by_option := self._type_by_option(spec):
            return by_option
        purpose = purpose_of(spec.name)
        architecture = self._model.architecture
        if self._overrides.pure or self._mix.name in FLOAT_MIXES:
            return self._mix.default
        if any(part in spec.name for part in _Q8_0_WITHIN_OF.get(architecture, ())):
            return "Q8_0"
        if purpose == OUTPUT or (purpose == EMBEDDING and self._is_tied):
            return self._overrides.output_type or self._type_of_head(spec)
        if self._mix.name == MOE:
            is_stack = len(spec.shape) > 2 and spec.shape[-3] > 1
            parts = _EXPERTS_OF.get(architecture, ("",))
            return "MXFP4" if is_stack and any(part in spec.name for part in parts) else "Q8_0"
        return self._type_by_rule(spec.name, purpose) if purpose else self._mix.default

    def _type_by_option(self, spec: GgufSpec) -> str | None:
        """Return the type that an option names for a tensor: that for its purpose before patterns, as in llama.cpp.

        Only per_layer_token_embd.weight has the type of a pattern before that of embeddings.
        """
        overrides = self._overrides
        by_pattern = next(
            (kind for pattern, kind in overrides.tensor_types if matches_as_llama(spec.name, pattern)), None
        )
        if by_pattern and spec.name == PER_LAYER:
            return by_pattern
        by_purpose = {EMBEDDING: overrides.embedding_type, OUTPUT: overrides.output_type}
        return by_purpose.get(purpose_of(spec.name) or "") or by_pattern

    def _type_of_head(self, spec: GgufSpec) -> str:
        """Return the type of an output head, whose errors are those of every word."""
        is_default_possible = spec.shape[-1] % TENSOR_TYPES[self._mix.default].block == 0
        if self._model.architecture == "falcon" or not is_default_possible or self._mix.name in ("Q8_0", MOE):
            return "Q8_0"
        return "Q5_K" if self._mix.name in _Q5_K_HEADS else "Q6_K"

    def _type_by_rule(self, name: str, purpose: str) -> str:
        """Return the type of a tensor by the first rule that applies, and count the tensor as one of its purpose."""
        layer = self._seen.get(purpose, 0)
        layers = self._layers_of.get(purpose, 0)
        if purpose in self._seen:
            self._seen[purpose] += 1
        if purpose in (UP, GATE, DOWN) and self._model.experts > 1:  # experts of a layer may be separate tensors
            layer = _layer(name)
            if not 0 <= layer < layers:
                raise ValueError(f"tensor {name!r} is in none of the {layers} layers of {self._model.architecture!r}")
        role = TensorRole(model=self._model, layer=layer, layers=layers, has_imatrix=self._has_imatrix)
        rule = next((rule for rule in RULES if rule.applies(purpose, self._mix, role)), None)
        kind = (rule.kind if rule else None) or self._mix.default
        is_raised = purpose == VALUES and self._model.is_70b and self._mix.name not in _IQ1_IQ2.split()
        return _RAISED_OF_70B.get(kind, kind) if is_raised else kind


def _layer(name: str) -> int:
    """Return the layer at the start of a name; -1 without one."""
    start = re.match(r"blk\.\s*([-+]?[0-9]+)", name)
    return int(start[1]) if start else -1
