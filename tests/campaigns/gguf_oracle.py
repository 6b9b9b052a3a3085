"""llama_model_quantize on the small models: `python -m tests.campaigns.gguf_oracle` writes gguf_file_digests.json.

What is kept is, for each model and file type, the type of each tensor and the digest of the whole file, so that every
machine can compare; the conformance tests compare with the library that is installed. Needs llama-cpp-python and gguf,
and nothing of fastq.
"""

import ctypes
import hashlib
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import gguf
import gguf_models
from gguf_models import MODELS

STORED = Path(__file__).with_name("gguf_file_digests.json")
MIXES = ("Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q2_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M")
MIXES += (
    "Q5_K_S",
    "Q5_K_M",
    "Q6_K",
    "IQ4_NL",
    "IQ1_S",
    "IQ1_M",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ2_M",
    "IQ3_XXS",
    "IQ3_XS",
    "IQ3_S",
    "IQ3_M",
    "IQ4_XS",
    "TQ1_0",
    "TQ2_0",
)
MIXES += ("MXFP4_MOE", "Q1_0")
NEWER = {"Q2_0": (41, 42, 64, 18)}  # of llama.cpp; gguf 0.19 lacks it
FILE_TYPES = {name: int(gguf.LlamaFileType[f"MOSTLY_{name}"]) for name in MIXES}
FILE_TYPES |= {name: file_type for name, (file_type, *_) in NEWER.items()}
# mixes that are refused without one
OF_IMATRIX = "Q2_K_S", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS"
FLOATS = {"F32": 0, "F16": 1, "BF16": 32}


def quantize(source, out, number, *, weights=None, **options):
    """Call llama_model_quantize; whether it worked."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = number, 1
    for name, value in options.items():
        setattr(params, name, value)
    kept = []
    if weights is not None:
        entries = (llama_cpp.llama_model_imatrix_data * (len(weights) + 1))()
        for entry, (name, values) in zip(entries, weights.items(), strict=False):
            kept += [values, name.encode()]
            entry.name, entry.size = kept[-1], values.size
            entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params.imatrix = ctypes.cast(entries, ctypes.POINTER(llama_cpp.llama_model_imatrix_data))
    return llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)) == 0


def quiet():
    """Keep llama.cpp from printing."""
    import llama_cpp

    callback = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    return callback


def cases():
    """Names of models, mixes, and with or without an importance matrix.

    Those of `OF_IMATRIX` are refused without one, and of the model of odd names, as one of its tensors has no entry;
    Q1_0 is refused for rows that are not whole blocks of it.
    """
    every = [(name, mix, weighted) for name in MODELS for mix in FILE_TYPES for weighted in (False, True)]
    every = [case for case in every if case[1] not in OF_IMATRIX or (case[0] != "odd" and case[2])]
    return [case for case in every if case[1] != "Q1_0" or case[0] not in ("odd", "narrow")]


def add_newer_types():
    """Make the reader of the gguf package know types that its version lacks; it would refuse the file."""
    kinds = gguf.GGMLQuantizationType
    for name, (_, number, values, nbytes) in NEWER.items():
        if name not in kinds.__members__:
            kind = int.__new__(kinds, number)
            kind._name_, kind._value_ = name, number
            kinds._member_map_[name] = kinds._value2member_map_[number] = kind
            kinds._member_names_.append(name)
            gguf.GGML_QUANT_SIZES[kind] = values, nbytes


def content(path):
    """Metadata and tensors of a file in its order, without the fields that only the program writes, not the library."""
    add_newer_types()
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "quantize.imatrix.")):
            yield key.encode() + b"".join(part.tobytes() for part in field.parts)
    for each in reader.tensors:
        yield f"{each.name} {each.tensor_type.name} {each.shape} {each.data_offset - reader.data_offset}".encode()
        yield each.data.tobytes()


def digest(path):
    """Digest of the contents of a file."""
    whole = hashlib.sha256()
    for part in content(path):
        whole.update(part)
    return whole.hexdigest()[:16]


def types_of(path):
    """Names of the types of a file's tensors, in its order."""
    add_newer_types()
    return [each.tensor_type.name for each in gguf.GGUFReader(path).tensors]


def main():
    """Write what llama.cpp makes of every case."""
    callback = quiet()
    add_newer_types()
    letters = [kind.name for kind in gguf.GGMLQuantizationType]
    stored = {"llama-cpp-python": version("llama-cpp-python"), "gguf": version("gguf"), "letters": letters, "cases": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model, mix, weighted in cases():
            source, out = gguf_models.write(folder / "in.gguf", MODELS[model]), folder / "out.gguf"
            weights = gguf_models.means(MODELS[model]) if weighted else None
            if not quantize(source, out, FILE_TYPES[mix], weights=weights):
                sys.exit(f"llama_model_quantize failed: {model}, {mix}")
            types = "".join(chr(ord("0") + letters.index(kind)) for kind in types_of(out))
            case = {"in": digest(source), "out": digest(out), "types": types}
            stored["cases"][f"{model} {mix}{' weighted' * weighted}"] = case
    STORED.write_text(json.dumps(stored, indent=0) + "\n")
    del callback


if __name__ == "__main__":
    main()
