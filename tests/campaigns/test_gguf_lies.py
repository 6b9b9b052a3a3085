"""GGUF files that lie or end early, values that no model has: one line, the old file or the whole new one."""

import os
from pathlib import Path

import gguf_lies
import hostile
import pytest
from commands import invoke, told

from fastq.tools.gguf_files.gguf_file import open_gguf


def attempt(here, content, options, *, done=0):
    """Run the command on contents; assert that it did what it should, return whether it worked."""
    why, worked = hostile.attempt("gguf", content, here / "in.gguf", here / "out.gguf", options, done=done)
    assert not why
    return worked


def test_every_lie_is_one_line(here):
    for name, content in gguf_lies.lies():
        assert not attempt(here, content, ["--type", "Q8_0"]), name
        result = invoke("inspect", "in.gguf")
        lines = result.output.splitlines()
        assert (result.exit_code, len(lines)) == (1, 1), name
        assert lines[0].startswith("Error: in.gguf is not a readable GGUF file: ")
        assert len(lines[0]) < 300


def test_what_is_unusual_but_right_is_read_and_written(here):
    for name, content in gguf_lies.truths():
        done = 4 if name in gguf_lies.NOT_QUANTIZED else 0
        assert attempt(here, content, ["--type", "Q8_0"], done=done), name
        assert attempt(here, content, ["--dequantize"], done=4), name
        assert invoke("inspect", "in.gguf", "--json").exit_code == 0, name


def test_types_that_are_not_known_are_listed_and_copied(here):
    for name, content in gguf_lies.unknown():
        source, out = here / "in.gguf", here / "out.gguf"
        source.write_bytes(content)
        shown = invoke("inspect", str(source))
        assert (shown.exit_code, name.split(",")[0] in shown.output) == (0, True), name
        is_alone = not name.endswith((", first", ", last"))
        result = invoke("gguf", str(source), str(out), "Q8_0", "--force")
        assert result.exit_code == (4 if is_alone else 0), name
        assert ("nothing was converted" in result.stderr) == is_alone, name
        before, after = open_gguf(source), open_gguf(out)
        copied = [spec for spec in before.tensors.values() if not spec.kind.block]
        for spec in copied:
            kept = after.tensors[spec.name]
            assert (kept.kind, kept.shape, bytes(after.raw(spec.name))[: spec.nbytes]) == (
                *(spec.kind, spec.shape, bytes(before.raw(spec.name))),
            ), name
        refused = invoke("gguf", str(source), str(out), "--dequantize", "--force")
        assert refused.output == (
            f"Error: in.gguf: tensor {copied[0].name!r} is {copied[0].kind}, which fastq does not dequantize\n"
        )


def test_values_that_no_model_has(here):
    for name, content in gguf_lies.not_finite():
        assert not attempt(here, content, ["--type", "Q8_0"]), name
        assert "NaN or infinity in row " in told("gguf", "in.gguf", "new.gguf", "--type", "Q8_0")
    Path("in.gguf").write_bytes(gguf_lies.gguf(data=b"\0\0\0\x7f" * 64))
    for options, kind in ((["--dequantize", "--type", "F16"], "F16"), (["--type", "Q8_0"], "Q8_0")):
        result = invoke("gguf", "in.gguf", "new.gguf", *options)
        assert result.exit_code == 1
        assert result.output.startswith(f"Error: in.gguf: tensor 'a.weight' can't become {kind}: ")
        assert result.output.count("\n") == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(here):
    os.mkfifo("in.gguf")
    for arguments in (["gguf", "in.gguf", "out.gguf", "--type", "Q8_0"], ["inspect", "in.gguf"]):
        result = invoke(*arguments)
        assert (result.exit_code, result.output) == (1, "Error: in.gguf is not a file\n")
    Path("right.gguf").write_bytes(gguf_lies.gguf())
    arguments = ["gguf", "right.gguf", "out.gguf", "--type", "Q8_0", "--imatrix", "in.gguf"]
    assert invoke(*arguments).output == ("Error: right.gguf: importance matrix in.gguf is not a file\n")


def test_a_terminal_gets_no_commands_from_a_file(here):
    name, field = "a\x1b[2J.weight", gguf_lies.field("b\x1b]0;", gguf_lies.STRING, gguf_lies.text("c\x07\n\x9bd"))
    Path("in.gguf").write_bytes(gguf_lies.gguf([field], tensors=[gguf_lies.tensor(name)]))
    for arguments in (["inspect", "in.gguf"], ["gguf", "in.gguf", "out.gguf", "--type", "Q8_0"]):
        output = invoke(*arguments).output
        assert "a?[2J.weight" in output
        assert output.replace("\n", "").isprintable()
    assert "b?]0;" in invoke("inspect", "in.gguf").output
