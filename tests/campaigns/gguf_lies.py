"""GGUF files that lie: headers that promise what is not there, or that nobody should write."""

import struct

import numpy as np

F32, F16, Q4_0 = 0, 1, 2
UINT8, UINT32, STRING, ARRAY, UINT64 = 0, 4, 8, 9, 10
UNKNOWN = (4, 5, 31, 36, 99, 2**31, 2**32 - 1)  # types that ggml had, or may have one day
HUGE = (2**31, 2**40, 2**60, 2**61, 2**63 - 1, 2**63, 2**64 - 1)


def text(content, length=None):
    raw = content if isinstance(content, bytes) else content.encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def field(key, number, value):
    return text(key) + struct.pack("<I", number) + value


def uint32(key, value):
    return field(key, UINT32, struct.pack("<I", value))


def array(key, number, count, value=b""):
    return field(key, ARRAY, struct.pack("<IQ", number, count) + value)


def tensor(name="a.weight", lengths=(32, 2), number=F32, offset=0, dimensions=None):
    count = len(lengths) if dimensions is None else dimensions
    return text(name) + struct.pack(f"<I{len(lengths)}QIQ", count, *lengths, number, offset)


def gguf(fields=(), tensors=None, data=bytes(256), *, counts=None, magic=b"GGUF", version=3, alignment=32):
    """The bytes of a file; without tensors, of one tensor of 256 bytes."""
    tensors = [tensor()] if tensors is None else tensors
    fields = [field("general.architecture", STRING, text("llama")), *fields]
    n_tensors, n_fields = counts or (len(tensors), len(fields))
    head = magic + struct.pack("<IQQ", version, n_tensors, n_fields) + b"".join(fields) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def lies():
    """Names and contents of files, none of which holds what it promises."""
    yield "nothing", b""
    yield "magic alone", b"GGUF"
    yield "another magic", gguf(magic=b"GGML")
    for version in (0, 1, 4, 0x03000000, 2**32 - 1):
        yield f"version {version}", gguf(version=version)
    for count in (2, 5, *HUGE):
        yield f"{count} tensors", gguf(counts=(count, 1))
        yield f"{count} fields", gguf(counts=(1, count))
    yield "no count of fields", gguf(counts=(1, 0))
    yield from _lies_of_fields()
    yield from _lies_of_tensors()
    whole = gguf()
    for length in range(0, len(whole), 5):
        yield f"cut off after {length} bytes", whole[:length]


def _lies_of_fields():
    for length in (1000, *HUGE):
        yield f"key of {length}", gguf([text("key", length) + struct.pack("<IB", UINT8, 1)])
        yield f"string of {length}", gguf([field("key", STRING, text("value", length))])
        yield f"array of {length} numbers", gguf([array("key", UINT64, length)])
        yield f"array of {length} strings", gguf([array("key", STRING, length)])
        yield f"array with a string of {length}", gguf([array("key", STRING, 3, text("a") + text("b", length))])
    for number in (13, 99, 2**32 - 1):
        yield f"value of type {number}", gguf([field("key", number, bytes(8))])
        yield f"elements of type {number}", gguf([array("key", number, 1, bytes(8))])
    yield "arrays in arrays without end", gguf([array("key", ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 99)])
    yield "array of arrays that are not there", gguf([array("key", ARRAY, 2**40, struct.pack("<IQ", UINT8, 0))])
    yield "no key", gguf([field("", UINT8, b"\1")])
    yield "key not UTF-8", gguf([field(b"\xff\xfe", UINT8, b"\1")])
    yield "key with a zero", gguf([field("a\0b", UINT8, b"\1")])
    yield "key twice", gguf([uint32("a", 1), uint32("a", 2)])
    for alignment in (0, 3, 33, 2**32 - 1):
        yield f"alignment {alignment}", gguf([uint32("general.alignment", alignment)])
    yield "alignment in 64 bits", gguf([field("general.alignment", UINT64, struct.pack("<Q", 32))])
    yield "alignment as text", gguf([field("general.alignment", STRING, text("32"))])
    yield "alignment beyond the file", gguf([uint32("general.alignment", 2**31)])
    yield "alignment beyond the file, no tensors", gguf([uint32("general.alignment", 2**31)], tensors=[])


def _lies_of_tensors():
    for name in ("", "a\0b", b"\xff"):
        yield f"name {name!r}", gguf(tensors=[tensor(name)])
    yield "name twice", gguf(tensors=[tensor(), tensor(offset=256)], data=bytes(512))
    yield "name of 2**60", gguf(tensors=[text("a", 2**60) + tensor()[16:]])
    for dimensions in (
        3,
        64,
        2**31,
        2**32 - 1,
    ):  # of 5 and 6 the file has the lengths: an empty tensor, also to gguf-py
        yield f"{dimensions} dimensions", gguf(tensors=[tensor(dimensions=dimensions, offset=32)])
    for lengths in ((3, 32), (2**60, 2**60), (2**32, 2**32), (2**33, 2**33, 2**33)):
        yield f"lengths {lengths}", gguf(tensors=[tensor(lengths=lengths, number=Q4_0)])
    for length in HUGE:
        yield f"rows of {length}", gguf(tensors=[tensor(lengths=(length,))])
        yield f"{length} rows", gguf(tensors=[tensor(lengths=(32, length))])
        yield f"offset {length}", gguf(tensors=[tensor(offset=length // 32 * 32)])
    for number in UNKNOWN:
        yield f"type {number}, and no bytes", gguf(tensors=[tensor(number=number)], data=b"")
        yield f"type {number}, and one byte for two", gguf(tensors=[tensor(number=number), tensor("b")])
    yield "rows that are not blocks", gguf(tensors=[tensor(lengths=(33, 2), number=Q4_0)])
    for offset in (1, 16, 32, 256, 257, 2**40):
        yield f"offset {offset} of the only tensor", gguf(tensors=[tensor(offset=offset)])
    for offset in (0, 32, 224):
        tensors = [tensor("b.weight", offset=0), tensor(offset=offset)]
        yield f"tensors that share bytes from {offset}", gguf(tensors=tensors, data=bytes(512))
    inside = [tensor("b.weight", (32, 4), offset=0), tensor(lengths=(8,), offset=64)]
    yield "a tensor in another", gguf(tensors=inside, data=bytes(512))
    yield "the end one byte early", gguf(data=bytes(255))


# those of the truths without a tensor that is quantized: without tensors, a vector, names that do not end in .weight
NOT_QUANTIZED = (
    "no tensors",
    "alignment beyond the file, no tensors",
    "rows of one",
    "a name of 63 bytes",
    "a name of 64 bytes",
    "a name of 1000 bytes",
)


def truths():
    """Names and contents of files that are right, though unusual; all tensors are F32 or without values."""
    yield "plain", gguf()
    yield "version 2", gguf(version=2)
    yield "more than it needs", gguf(data=bytes(999))
    yield "a space between tensors", gguf(tensors=[tensor(), tensor("b.weight", offset=320)], data=bytes(600))
    swapped = [tensor(offset=256), tensor("b.weight", offset=0)]
    yield "not in the order of the names", gguf(tensors=swapped, data=bytes(512))
    yield "alignment 1", gguf([uint32("general.alignment", 1)], data=bytes(256), alignment=1)
    yield "alignment 4096", gguf([uint32("general.alignment", 4096)], data=bytes(4096), alignment=4096)
    yield "a scalar", gguf(tensors=[tensor(lengths=()), tensor("b.weight", offset=32)], data=bytes(512))
    yield "rows of one", gguf(tensors=[tensor(lengths=(1, 1, 1, 1))])
    yield "four dimensions", gguf(tensors=[tensor(lengths=(32, 1, 1, 2))])
    for name in ("x" * 63, "x" * 64, "ä" * 32, "x" * 1000):
        yield f"a name of {len(name.encode())} bytes", gguf(tensors=[tensor(name)])
    for lengths in ((0,), (32, 0), (0, 32), (0, 2**40), (32, 0, 2)):
        yield f"lengths {lengths}", gguf(tensors=[tensor("b.weight", lengths, Q4_0), tensor(), tensor("c", lengths)])
    nested = struct.pack("<IQ", UINT8, 2) + b"\1\2" + struct.pack("<IQ", STRING, 1) + text("a")
    yield "array of arrays", gguf([array("key", ARRAY, 2, nested)])
    yield "alignment beyond the file, no tensors", gguf([uint32("general.alignment", 4096)], tensors=[], data=b"")
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor()
    yield "no metadata", head + bytes(-len(head) & 31) + bytes(256)
    yield "arrays of all types", gguf([array(f"k{n}", n, 0) for n in range(13) if n != ARRAY])
    yield "bools of other bytes", gguf([array("key", 7, 3, b"\0\1\2"), field("b", 7, b"\xff")])
    yield "strings of any length", gguf([array("key", STRING, 3, text("") + text("a" * 999) + text("b"))])
    yield "text that is not UTF-8", gguf([field("key", STRING, text(b"\xff"))])
    yield "no tensors", gguf(tensors=[], data=b"")


def unknown():
    """Names and contents of files that have tensors of unknown types, first, last or alone."""
    for number in UNKNOWN:
        yield f"type {number}", gguf(tensors=[tensor(number=number)])
        yield f"type {number}, first", gguf(tensors=[tensor("b", number=number), tensor(offset=32)], data=bytes(288))
        yield f"type {number}, last", gguf(tensors=[tensor(), tensor("b", (7,), number, 256)], data=bytes(257))


def not_finite():
    """Files with a NaN or an infinity in a tensor that is quantized, and in one that is copied."""
    for value in (np.nan, np.inf, -np.inf):
        data = np.zeros(64, np.float32)
        data[40] = value
        yield f"{value} in blocks", gguf(data=data.tobytes())
        yield f"{value} in a copy", gguf(tensors=[tensor("a_norm.weight", (64,))], data=data.tobytes())
