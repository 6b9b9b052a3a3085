"""How a quantized model directory is loaded: the call for it, or why transformers does not load it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fastq.formats.compressed_tensors import E4M3, E8M0, WORDS
from fastq.io.checkpoints.folder import HALVES, ModelFolder, modules_of
from fastq.io.checkpoints.names import EXPERT, NOT_AS_FLOATS, NOT_BY_ROWS, SPLIT_BY_READERS
from fastq.io.checkpoints.rules import Matrix, model_types

READER = "transformers 5.24"
AS_FLOATS = "CompressedTensorsConfig(dequantize=True)"
INT8, FP8 = "int-quantized", "float-quantized"  # formats whose codes lie where the weight was: all models load them so


def loading(out: Path, source: ModelFolder, quantized: Iterable[Matrix]) -> list[str]:
    """Return lines with the call that loads a directory, given its source and the matrices that are quantized.

    transformers decodes all weights by one scheme where it is asked for floats, and others when they are used first.
    Models that look at a weight before that, and sentence-transformers, need floats, which are the same numbers.
    """
    matrices = list(quantized)
    schemes = {matrix.scheme for matrix in matrices}
    lines = [*_not_loaded(matrices, source)]
    if lines:
        return lines
    floats = len(schemes) == 1 and not all(scheme.format in (INT8, FP8) for scheme in schemes)
    floats = floats and not model_types(source.config) & NOT_AS_FLOATS
    sentences = bool(modules_of(out))
    options = []
    if source.dtype != "BF16" and any(scheme.weights.scale_dtype in (E4M3, E8M0) for scheme in schemes):
        told = ", ".join(sorted({scheme.name for scheme in schemes}))
        lines.append(f"readers have the values of {told} in bfloat16, and the model is {HALVES[source.dtype]}")
        options += ["dtype=torch.bfloat16"] * (not floats)
    if floats or (sentences and len(schemes) == 1):
        options.append(f"quantization_config={AS_FLOATS}")
    call = _call(out, source, options, sentences)
    reader = call.partition("(")[0].partition(".")[0]
    of_sentences = reader == "SentenceTransformer"
    statements = ["from sentence_transformers import SentenceTransformer"] * of_sentences
    names = [reader] * (not of_sentences) + ["CompressedTensorsConfig"] * (AS_FLOATS in call)
    statements += [f"from transformers import {', '.join(sorted(names))}"] * bool(names)
    statements += ["import torch"] * ("torch.bfloat16" in call)
    return [*lines, f"to import: {'; '.join(statements)}", f"to load it: {call}"]


def _not_loaded(matrices: list[Matrix], source: ModelFolder) -> Iterable[str]:
    """Yield why transformers does not load some matrices."""
    schemes = {matrix.scheme for matrix in matrices}
    experts = {matrix.scheme for matrix in matrices if EXPERT.fullmatch(matrix.module)}
    if len(schemes) > 1 and not all(scheme.weights.symmetric for scheme in schemes):
        yield f"{READER} reads zero points with {AS_FLOATS} only, and several schemes without it only"
    ways, formats = ("group", "channel"), (WORDS, FP8, "mxfp4-pack-quantized")  # in which it reads experts
    read = [each for each in experts if each.format in formats and each.weights.strategy in ways]
    if len(experts) > 1 or len(read) < len(experts) or not all(each.weights.symmetric for each in read):
        yield f"{READER} does not load experts in {', '.join(sorted(scheme.name for scheme in experts))}"
    by_rows = all(scheme.weights.strategy == "channel" for scheme in schemes)
    for kind in sorted(model_types(source.config) & (NOT_BY_ROWS if by_rows else SPLIT_BY_READERS)):
        advice = "" if kind in NOT_BY_ROWS else "; it does with FP8_DYNAMIC or W8A8"
        yield f"{READER} does not load such a model of type {kind}, whose matrices it splits or joins{advice}"


def _call(out: Path, source: ModelFolder, options: list[str], sentences: bool) -> str:
    if sentences:
        inner = ", ".join(f'"{key}": {value}' for key, _, value in (option.partition("=") for option in options))
        return f"SentenceTransformer({str(out)!r}" + (f", model_kwargs={{{inner}}})" if inner else ")")
    names = source.config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    reader = name if isinstance(name, str) and name.isidentifier() else "AutoModel"  # the line is there to be pasted
    if isinstance(source.config.get("auto_map"), dict):
        reader, options = "AutoModel", [*options, "trust_remote_code=True"]
    return f"{reader}.from_pretrained({', '.join([repr(str(out)), *options])})"
