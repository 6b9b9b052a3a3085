"""The files next to the weights of a model, and which of them a conversion copies."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from fastq.system.arguments import shown
from fastq.tools.checkpoints.config_json import CONFIG, SIDE_FILES
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.json_files import parsed_json
from fastq.tools.checkpoints.weight_files import ADAPTER
from fastq.tools.files.links import check_link
from fastq.tools.files.texts import some_of

# ends of names of files of weights: of fastq, PyTorch, GGUF, ONNX and its data, TensorFlow, Flax, Rust, Core ML,
# Paddle, NeMo, MLX, TensorRT, LiteRT, ExecuTorch, MNN, RKNN, OpenVINO, MXNet, Caffe, Darknet, RTen, IREE, of chips of
# Qualcomm, Hailo, Axera, Sophgo, Huawei, AMD and Mobilint, distributed checkpoints, and parts of files, unfinished
# downloads and copies under other names
WEIGHTS = re.compile(
    r".*\.(safetensors|bin|pt|pt2|pth|ptl|ckpt|pkl|pickle|ggml|gguf(-split-\w+)?|llamafile|onnx([._]data)?([._]\d+)?|"
    r"ort|h5|hdf5|keras|pb|tflite|litertlm|task|msgpack|flax|ot|mlmodel|mlpackage|pdparams|pdiparams|pdmodel|nb|nemo|"
    r"npz|engine|plan|trt|uff|pte|mnn|rknn|rkllm|mar|params|caffemodel|dlc|qnn|hef|axmodel|cvimodel|bmodel|om|xmodel|"
    r"mxq|weights|rten|vmfb|joblib|distcp|safetensors\.index\.json|data-\d+-of-\d+|part[-\w]*|incomplete|"
    r"(safetensors|bin|pt|pth|gguf|onnx)\.(bak|backup|old|orig|tmp|temp|aria2|crdownload|download))",
    re.IGNORECASE,
)
# ends of names of graphs, in text, whose weights are in a file of the same name: OpenVINO, ncnn, Caffe, TensorFlow
GRAPHS = ".xml", ".param", ".prototxt", ".pbtxt"
# ends of names of files that readers need, or people: texts and settings; code; vocabularies, of SentencePiece,
# MeCab and FunASR, too, and grammars and rules of texts; pictures, sounds, fonts; signatures
_ENDS = (
    r"txt|md|rst|tex|html?|css|csv|tsv|srt|log|pdf|docx?|bib|cff|json|jsonl|ya?ml|toml|ini|cfg|conf|lock|xml|xsd|proto|"
    r"py|pyi|ipynb|js|ts|lua|c|cc|cpp|cu|cuh|h|hpp|sh|bat|ps1|patch|diff|jinja2?|j2|tmpl|template|prompt|"
    r"model|spm|tiktoken|bpe|codes|vocab|voc|dict?|def|utf8|lexicon|phn|lst|units|tok|mvn|arpa|gbnf|fst|far|"
    r"png|jpe?g|gif|bmp|tiff?|avif|svg|webp|ico|wav|mp3|m4a|aac|opus|flac|ogg|mp4|mov|webm|ttf|otf|woff2?|"
    r"sha(1|256|512)|md5|asc|sig"
)
# such files may have a version, as in tokenizer.model.v3 and v7m1, be compressed, or be an older copy or an example
_AFTER_ENDS = r"v\d+(m\d+)?|gz|bz2|xz|zst|zip|bak|backup|old|orig|example|sample|dist"
KNOWN = re.compile(
    rf"[^.]*|(license|notice|readme)\b.*|events\.out\.tfevents\..*|.*\.({_ENDS})(\.({_AFTER_ENDS}))*",
    re.IGNORECASE,
)
UNFINISHED = ".part", ".incomplete"
MODULES = "modules.json"  # of sentence-transformers: the folders with the parts of a model
OTHER_FORMS = {"original", "onnx", "openvino", "coreml", "gguf", "metal"}  # folders with the model in another form
LARGEST = 1 << 26  # most bytes of a folder without weights that is copied


def modules_of(path: Path) -> list[str]:
    """Return the folders with files that the modules.json of a model names; empty if it can't be read.

    A module of the type Normalize has a folder in that list, but no files in it.
    """
    try:
        entries = parsed_json(path / MODULES)
        folders = [entry["path"] for entry in entries if not str(entry["type"]).endswith("Normalize")]
        return [folder for folder in folders if isinstance(folder, str) and folder]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_of_weights(file: Path) -> bool:
    """Return whether a file of a model depends on its weights: their file, index or graph, or any large file."""
    is_named_so = WEIGHTS.fullmatch(file.name) or file.name.endswith(".index.json") or _is_graph(file)
    return bool(is_named_so) or _size(file) > LARGEST


def _is_graph(file: Path) -> bool:
    """Return whether a file is a graph in text, next to its weights."""
    names_of_same_stem = (other.name for other in file.parent.glob(f"{glob.escape(file.stem)}.*"))
    return file.suffix.lower() in GRAPHS and any(map(WEIGHTS.fullmatch, names_of_same_stem))


def _size(file: Path) -> int:
    """Return the bytes of a file; raise ValueError if it is a link to nothing."""
    check_link(file, str(file))
    return file.stat().st_size


def other_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a model to copy, those in no folder: tokenizer, code, licence.

    They do not depend on its weights, except those of an adapter, which readers add to the weights of any dtype.
    """
    for path in sorted(file for file in folder.iterdir() if not file.is_dir() and file.name[0] != "."):
        is_written_anew = path.name in (CONFIG, *SIDE_FILES)
        is_copied = path.stem == ADAPTER or not (is_written_anew or _is_of_weights(path))
        if is_copied and path.is_file():  # and no pipe
            yield path


def companions(model: ModelFolder, out: Path) -> tuple[list[Path], list[str]]:
    """Return the files to copy, relative to the folder of the model, and lines about files that are not copied.

    Raise ValueError if a file is a link to nothing, as in a cache of the hub that lacks a blob.
    """
    path = model.path
    modules = modules_of(path)
    visible = [file for file in sorted(path.iterdir()) if file.name[0] != "."]
    files_of_model = [*other_files(path)]
    copied = [file.relative_to(path) for file in files_of_model]
    not_copied = _names_of_other_weights(model, [file for file in visible if file not in files_of_model])
    for folder in filter(Path.is_dir, visible):
        if not folder.is_symlink() and out.resolve().is_relative_to(folder.resolve()):  # a copy would have no end
            continue
        files = _files_within(folder, _most_bytes_of(folder, modules))
        if files is None:
            not_copied.append(f"{folder.name}/")
            continue
        copied += [file.relative_to(path) for file in files if not file.is_dir()]
        not_copied += [f"{link.relative_to(path).as_posix()}/ (a link)" for link in files if link.is_dir()]
    return copied, _lines_on_files(path, copied, not_copied, modules)


def _names_of_other_weights(model: ModelFolder, files: list[Path]) -> list[str]:
    """Return the names of files of weights that the result lacks: not those of shards, which are written anew."""
    written_anew = {CONFIG, *SIDE_FILES, *model.shards}
    names = []
    for file in files:
        is_of_result = file.name in written_anew or file.name.endswith((".index.json", *UNFINISHED))
        if not is_of_result and not file.is_dir() and _is_of_weights(file):
            names.append(file.name)
    return names


def _most_bytes_of(folder: Path, modules: list[str]) -> float:
    """Return the most bytes that a folder of a model may have to be copied: any number if readers need it.

    It is -1, less than any file has, for a folder with the model in another form, which would be outdated.
    """
    if any(Path(name).parts[:1] == (folder.name,) for name in modules):
        return math.inf
    return -1 if folder.name in OTHER_FORMS else LARGEST


def _lines_on_files(path: Path, copied: list[Path], not_copied: list[str], modules: list[str]) -> list[str]:
    """Return lines on files that are not copied, or of unknown kinds, and on folders of readers that are missing."""
    lines = [f"not copied: {', '.join(not_copied)}"] if not_copied else []
    unknown = [file.as_posix() for file in copied if not (KNOWN.fullmatch(file.name) or WEIGHTS.fullmatch(file.name))]
    if unknown:
        lines.append(f"copied, of kinds that fastq does not know: {some_of(unknown)}")
    for name in modules:
        if Path(name).is_absolute() or ".." in Path(name).parts or not os.path.isdir(path / name):
            fault = "which is not a folder in it: sentence-transformers does not load it"
            lines.append(f"{MODULES} names {shown(name)}, {fault}")
    return lines


def _files_within(folder: Path, most_bytes: float) -> list[Path] | None:
    """Return the files of a folder, in order, and its links to folders, which are not followed.

    Return None if the files have more than `most_bytes`. If there is such a limit, also if they include weights: then
    the folder is not one that readers need.
    """
    if folder.is_symlink():
        return [folder]
    files = []
    total = 0.0
    for parent, folders, names in os.walk(folder):
        # in place: `os.walk` goes on with these
        folders[:] = sorted(name for name in folders if name[0] != ".")
        files += [link for name in folders if (link := Path(parent, name)).is_symlink()]
        for file in (Path(parent, name) for name in sorted(names) if name[0] != "."):
            if WEIGHTS.fullmatch(file.name) and most_bytes < math.inf:
                return None
            total += _size(file)
            if total > most_bytes:
                return None
            if file.is_file():
                files.append(file)
    return files
