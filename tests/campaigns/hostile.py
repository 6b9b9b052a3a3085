"""Files that lie: .npy and .safetensors files with headers that promise what is not there, or that nobody should write.

`attempt` runs a command on one: it works, or it prints one line that says what is wrong, and in both cases leaves what
it should leave.
"""

import json
import os

import numpy as np
from click.testing import CliRunner
from gguf import GGUFReader
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fastq.tools.cli.app import cli
from fastq.tools.files.records import KEY

OLD = b"the old file"


def attempt(command, content, source, out, options=(), *, done=0):
    """Run a command on contents of a file and over an old one; "" if it did what it should, else what it did.

    Whether it worked comes second: it then ends with the exit code `done`.
    """
    source.write_bytes(content)
    out.write_bytes(OLD)
    folder = sorted(os.listdir(out.parent))
    result = CliRunner().invoke(cli, [command, str(source), str(out), "--force", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"{result.exception!r}", False
    if source.read_bytes() != content or sorted(os.listdir(out.parent)) != folder:
        return f"it left {sorted(os.listdir(out.parent))}", False
    if result.exit_code == done:
        why = unreadable(out)
        # a type of GGUF that fastq does not know is copied, and told; what is wrong with it was so before
        is_copied = "copied unchanged" in result.output and why == unreadable(source)
        return "" if is_copied else why, True
    lines, starts = result.output.splitlines(), (f"Error: {source.name}: ", f"Error: {source.name} is not a ")
    is_long = source.suffix == ".npy" and len(result.output) > 300
    if result.exit_code != 1 or len(lines) != 1 or not lines[0].startswith(starts) or is_long:
        return f"exit code {result.exit_code}: {result.output}", False
    return ("" if out.read_bytes() == OLD else "it changed the old file"), False


def unreadable(path):
    """Why another library cannot read a file; "" if it can."""
    try:
        if path.suffix == ".npy":
            np.load(path)
        elif path.suffix == ".gguf":
            GGUFReader(path)
        else:
            load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        return f"it wrote a file that cannot be read: {error}"
    except KeyError:  # a dtype that NumPy lacks
        pass
    return ""


# .npy


def npy(header, data=bytes(64), version=(1, 0), length=None):
    text = header.encode() if isinstance(header, str) else header
    told = (len(text) if length is None else length).to_bytes({1: 2}.get(version[0], 4), "little")
    return b"\x93NUMPY" + bytes(version) + told + text + data


def npy_header(descr="'<f4'", order="False", shape="(4, 4)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n"


def npy_files():
    """Names and contents of .npy files, none of which holds what it promises."""
    shapes = [
        "(4, True)",
        "(True,)",
        "(True, 4)",
        "(1.5,)",
        "[3]",
        "(3,) * 4",
        f"{'(' * 3000}{')' * 3000}",
        f"({2**62}, {2**62})",
        "(2**70,)",
        f"({2**70},)",
        f"({2**63},)",
        f"({2**60},)",
        f"({2**33}, {2**33})",
        "(-4, -4)",
        "(-1,)",
        f"(0, {2**70})",
        f"({2**62}, 0, 8)",
        "(4.0, 4)",
        "('4', 4)",
        "16",
        "None",
        "[4, 4]",
        f"({'1, ' * 65})",
        "(1, (4,))",
        "(17,)",
        f"({'9' * 5000},)",
        "((((4,),),),)",
        "(4, 4",
        "(4, 4))",
        "lambda: 4",
    ]
    for shape in shapes:
        yield f"shape {shape[:20]}", npy(npy_header(shape=shape))
    descrs = [
        "'|O'",
        "'<f4,<O'",
        "()",
        "[]",
        "[()]",
        "('<f4',)",
        "('<f4', -1)",
        "('<f4', (2**40,))",
        "b'<f4'",
        "4",
        "None",
        "'|V0'",
        "'|S0'",
        "'<U0'",
        "'<f3'",
        "'f'*99",
        "'<f99999999999999999999'",
        "'(1,'",
        "[('a', '<f4'), ('a', '<f4')]",
        "{'a': 1}",
        f"{'[' * 90}'<f4'{']' * 90}",
        f"{'[' * 3000}{']' * 3000}",
        "'M8[1000000000000000000000s]'",
        "'<f4\\x00'",
        "'@f4'",
        "'|T16'",
        "'c16'",
        "'?'",
    ]
    for descr in descrs:
        yield f"descr {descr[:20]}", npy(npy_header(descr=descr))
    yield "order 1", npy(npy_header(order="1"))
    yield "order None", npy(npy_header(order="None"))
    headers = {
        "nothing": "",
        "a list": "[]",
        "code": "__import__('os').system('touch executed')",
        "unclosed": "{'descr': (",
        "quotes": "'''",
        "an indent": "  {}\n {}",
        "zeros": "\0" * 100,
        "keys": "{[]: 1}",
        "more keys": npy_header()[:-2] + ", 'x': 1}",
        "fewer keys": "{'descr': '<f4'}",
        "nested": "(" * 5000,
        "negated": "-" * 5000 + "1",
        "long": " " * 20000 + npy_header(),
        "letters": "\xff\xfe",
        "f-string": "f'{1}'",
        "added": "1+" * 3000 + "1",
    }
    for name, header in headers.items():
        for version in ((1, 0), (2, 0), (3, 0)):
            yield f"header of {name} in version {version[0]}", npy(header, version=version)
    for version in ((0, 0), (1, 1), (9, 9), (255, 255)):
        yield f"version {version}", npy(npy_header(), version=version)
    for length in (0, 1, 60, 65535):
        yield f"length {length}", npy(npy_header(), length=length)
    yield "length of 4 GB", npy(npy_header(), version=(2, 0), length=2**32 - 1)
    yield "a pickle", b"\x80\x04\x95\x00\x00\x00"
    yield "an archive", b"PK\x03\x04" + bytes(50)
    yield "no data", npy(npy_header(), b"")
    yield "a byte less", npy(npy_header(), bytes(63))


# .safetensors


def safetensors(header, data=bytes(64), length=None):
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(dtype="F32", shape=(4, 4), offsets=(0, 64)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def safetensors_files():
    """Names and contents of .safetensors files that should be refused."""
    good = json.dumps(tensor())
    entries = {
        "less data": tensor(shape=(4, 5), offsets=(0, 80)),
        "more data": tensor(shape=(4, 3), offsets=(0, 48)),
        "lying offsets": tensor(offsets=(0, 60)),
        "offsets backwards": tensor(offsets=(64, 0)),
        "negative offsets": tensor(offsets=(-64, 0)),
        "huge offsets": tensor(offsets=(2**64 - 64, 2**64)),
        "shape 2**60": tensor(shape=(2**60,)),
        "shape 2**33 x 2**33": tensor(shape=(2**33, 2**33)),
        "shape 2**70": tensor(shape=(2**70,)),
        "shape 2**62 x 4": tensor(shape=(2**62, 4), offsets=(0, 0)),
        "shape of floats": tensor(shape=(4.0, 4)),
        "negative shape": tensor(shape=(-4, -4)),
        "shape of booleans": tensor(shape=(True, 16)),
        "a dtype that nobody has": tensor(dtype="F33"),
        "no shape": {"dtype": "F32", "data_offsets": [0, 64]},
        "three offsets": tensor(offsets=(0, 64, 64)),
        "a number": 1,
        "nothing": None,
    }
    for name, entry in entries.items():
        yield name, safetensors({"x": entry})
    yield "overlap", safetensors({"x": tensor(), "y": tensor(shape=(4,), offsets=(48, 64))})
    yield "the same data twice", safetensors({"x": tensor(), "y": tensor()})
    yield "a hole", safetensors({"x": tensor(shape=(4,), offsets=(0, 16)), "y": tensor(shape=(4,), offsets=(48, 64))})
    yield "two of one name", safetensors(f'{{"x": {json.dumps(tensor(shape=(2, 8)))}, "x": {good}}}')
    twice = '{"dtype": "F32", "dtype": "I32", "shape": [4, 4], "data_offsets": [0, 64]}'
    yield "two of one key", safetensors(f'{{"x": {twice}}}')
    yield "metadata twice", safetensors(f'{{"__metadata__": {{}}, "__metadata__": {{"a": "b"}}, "x": {good}}}')
    yield "a key of metadata twice", safetensors(f'{{"__metadata__": {{"a": "b", "a": "c"}}, "x": {good}}}')
    yield "metadata of numbers", safetensors({"__metadata__": {"a": 1}, "x": tensor()})
    yield "metadata that is a tensor", safetensors({"__metadata__": tensor()})
    for depth in (100, 127, 128, 129, 100_000):
        yield f"JSON {depth} deep", safetensors(f'{{"x": {"[" * depth}{"]" * depth}}}')
        yield f"metadata {depth} deep", safetensors(f'{{"__metadata__": {{"a": {"[" * depth}{"]" * depth}}}}}')
    yield "unclosed JSON", safetensors("[" * 100_000)
    yield "a lone surrogate", safetensors(f'{{"\\ud800": {good}}}')
    yield "no UTF-8", safetensors(b'{"\xff": ' + good.encode() + b"}")
    yield "NaN", safetensors('{"x": NaN}')
    yield "a long number", safetensors(f'{{"x": {"9" * 5000}}}')
    yield "a comment", safetensors(f'{{"x": {good} /* */}}')
    yield "65 dimensions", safetensors({"x": tensor(shape=[1] * 65, offsets=(0, 4))}, bytes(4))
    for length in (0, 1, 2**31, 2**63, 2**64 - 1, 100_000_001):
        yield f"length {length}", safetensors({"x": tensor()}, length=length)
    yield "half a length", b"\x40\x00\x00"
    yield "a pickle", b"\x80\x04\x95\x00\x00\x00"
    yield "no tensors", safetensors({})
    yield "an empty tensor", safetensors({"x": tensor(shape=(0, 2**40), offsets=(0, 0))}, b"")


def odd_names():
    """Contents of .safetensors files that are right, with names that could break what prints or writes them."""
    for name in (
        "",
        "\n\r\n",
        "\x1b[31m",
        "[bold]",
        "../../x",
        "/etc/passwd",
        "*",
        "\u202e",
        "\0",
        "x" * 100_000,
        "é" * 9,
    ):
        yield name[:10], safetensors({name: tensor()})
    yield "spaces before", safetensors("  " + json.dumps({"x": tensor()}) + "   ")


# what `fastq quantize` writes, changed


def record_files(quantized):
    """Names and contents of quantized files whose metadata was changed; `quantized` is one that is right."""
    content = quantized.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    right = json.loads(header["__metadata__"][KEY])
    ((tensor_name, entry),) = right["tensors"].items()

    def rewritten(text):
        return safetensors(header | {"__metadata__": {KEY: text}}, content[8 + length :])

    for name, text in {
        "nothing": "",
        "a list": "[]",
        "null": "null",
        "deep": "[" * 100_000 + "]" * 100_000,
        "unclosed": "[" * 100_000,
        "deep objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
        "NaN": "NaN",
        "a long number": "9" * 5000,
        "no tensors": '{"version": 1}',
    }.items():
        yield f"metadata of {name}", rewritten(text)
    odd = [
        None,
        True,
        -1,
        0,
        2**70,
        10**400,
        1.5,
        float("nan"),
        float("inf"),
        "",
        "x",
        [],
        [0],
        [0, 0],
        [-1],
        [2**70],
        [[0]],
        {},
        ["0"],
        [True],
        [-1, 32],
        [2**60, 0],
        [10**400, 1],
        [1] * 65,
        "int8",
        "mxfp4",
        "nvfp4",
        "uint3",
        "F64",
        "faiss",
    ]
    for key in entry:
        for value in odd:
            if value != entry[key] or type(value) is not type(entry[key]):
                changed = right | {"tensors": {tensor_name: entry | {key: value}}}
                yield f"{key} {value!r:.20}", rewritten(json.dumps(changed))
    for name in ("", "__metadata__", "y", f"{tensor_name}_scale"):
        yield f"the name {name!r}", rewritten(json.dumps(right | {"tensors": {name: entry}}))
    both = {tensor_name: entry, "__metadata__": entry}
    yield "two records of a tensor", rewritten(json.dumps(right | {"tensors": both}))
    yield "a version", rewritten(json.dumps(right | {"version": 2}))
    yield "a key too many", rewritten(json.dumps(right | {"tensors": {tensor_name: entry | {"y": 1}}}))


def damaged(content, header):
    """Contents with a byte of the header changed, a bit at a time, and cut off at every length."""
    for k in range(header):
        for bit in range(8):
            yield content[:k] + bytes([content[k] ^ 1 << bit]) + content[k + 1 :]
    for n in range(len(content)):
        yield content[:n]
