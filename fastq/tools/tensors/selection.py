"""Which tensors of a file are quantized, and why the others are left alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fastq.formats.qtypes import as_qtype
from fastq.tools.files.patterns import check_patterns, matches_tensor, nearest
from fastq.tools.files.records import FLOATS, Scheme
from fastq.tools.files.tensor_specs import TensorSpec


@dataclass(frozen=True)
class Selection:
    """The floating-point tensors to quantize."""

    include: tuple[str, ...] = ("*",)  # patterns, one of which a name must match
    exclude: tuple[str, ...] = ()  # patterns, none of which it may match
    # whether tensors of fewer than two dimensions are quantized too: biases and weights of norms, whose errors count
    # far more than their bytes
    vectors: bool = True
    like: Mapping[str, Scheme] | None = None  # schemes by name, instead of one for all: other tensors are left alone
    # the name of the codes for each tensor of weights that another program quantized
    parts: Mapping[str, str] = field(default_factory=dict)

    def scheme_for(self, name: str, scheme: Scheme) -> Scheme:
        """Return the scheme of a tensor; `scheme` is the one for all."""
        return scheme if self.like is None else self.like.get(name, scheme)

    def includes(self, name: str) -> bool:
        """Return whether a name is not left out by the patterns."""
        is_included = any(matches_tensor(name, pattern) for pattern in self.include)
        return is_included and not any(matches_tensor(name, pattern) for pattern in self.exclude)

    def reason_against(self, spec: TensorSpec, scheme: Scheme) -> str:
        """Return why a tensor is left alone, or an empty text if it is not."""
        if spec.name in self.parts:
            is_code = self.parts[spec.name] == spec.name
            return "quantized already" if is_code else f"of {self.parts[spec.name]}, which is quantized already"
        if spec.dtype not in FLOATS:
            return spec.dtype
        if not spec.size:
            return "no elements"
        if not self.includes(spec.name):
            return "by name"
        if self.like is not None and spec.name not in self.like:
            return "not suggested"
        if len(spec.shape) < 2 and not self.vectors:
            return "a vector" if spec.shape else "a scalar"
        # the blocks of such a format need an axis
        has_own_blocks = as_qtype(self.scheme_for(spec.name, scheme).dtype).block_size
        return "a scalar" if not spec.shape and has_own_blocks else ""

    def check_names(self, names: Collection[str]) -> None:
        """Raise ValueError if a pattern matches no tensor."""
        if names:
            check_patterns("--include", self.include, names, "tensor to quantize")
            check_patterns("--exclude", self.exclude, names, "tensor")
        for name in self.like or ():
            if name not in names:
                raise ValueError(f"it has no tensor {name!r}, which has a scheme{nearest(name, names)}")

    def check_effect(self, tensors: Mapping[str, TensorSpec], scheme: Scheme) -> None:
        """Raise ValueError if all tensors that a pattern includes are left alone."""
        for pattern in self.include:
            matching = [spec for name, spec in tensors.items() if matches_tensor(name, pattern)]
            reasons = [self.reason_against(spec, scheme) for spec in matching]
            if all(reasons):
                reason = "excluded" if reasons[0] == "by name" else reasons[0]
                raise ValueError(f"nothing that matches {pattern!r} is quantized: {matching[0].name!r} is {reason}")
