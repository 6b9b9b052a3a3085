"""What long runs go on from, kept in files of JSON, and what processes report, a line of JSON each."""

import json
import os
import select


def write(path, content):
    """Write bytes as a whole file, which others may read meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class Kept:
    """Attributes with their first values, which are kept in a file if there is a path."""

    def __init__(self, path, **first):
        kept = json.loads(path.read_text()) if path and path.exists() else {}
        vars(self).update({name: kept.get(name, value) for name, value in first.items()}, path=path)

    def save(self):
        if self.path is not None:
            content = {name: value for name, value in vars(self).items() if name != "path"}
            write(self.path, json.dumps(content, indent=1).encode())


def reports_of(descriptor, silence):
    """Yield what a process reports until it ends, and None whenever it has said nothing for `silence()` seconds."""
    pending = b""
    while True:
        if not select.select([descriptor], [], [], silence())[0]:
            yield None
        elif data := os.read(descriptor, 1 << 16):
            *lines, pending = (pending + data).split(b"\n")
            yield from map(json.loads, lines)
        else:
            return
