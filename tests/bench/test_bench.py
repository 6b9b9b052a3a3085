"""The machinery of the benchmark: its table, its checks of results, one small run, and what is made from it."""

import dataclasses
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from benchmark import PACKAGE, invoke, part

from fastq import reference

ROOT = Path(__file__).parents[2]


cases, command, data, gate, machine, moves = map(
    part, ["cases", "command", "data", "gate", "machine", "peers.roofline"]
)
peers, report, results, rounds, show = map(part, ["peers", "report", "results", "rounds", "show"])
calls, checkout, scaling_page, verify, worker = map(part, ["calls", "checkout", "scaling_page", "verify", "worker"])
LINEAR = cases.Case(cases.Work("quantize_linear"), 12)
RUN = ["--sizes", "10,12", "-o", "quantize_linear/float32/int8/*,minmax,quantize/*/rows", "--rounds", "1"]


# The table


def test_names_are_unique_and_name_their_case():
    assert len({work.name for work in cases.EVERY_WORK}) == len(cases.EVERY_WORK)
    assert len({work.title for work in cases.EVERY_WORK}) == len(cases.EVERY_WORK)
    for case in cases.cases(cases.WORKS, cases.LOG2_SIZES):
        assert cases.case_of(case.name) == case
        assert np.prod(case.shape) == case.elements == 2**case.log2
        assert all(size % 32 == 0 for size in case.shape[1:])


@pytest.mark.parametrize("name", ["minmax", "minmax/float32/int8/tensor", "minmax/float32/int8/tensor/2^x", "a/2^10"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="case must be a name such as 'minmax/float32/int8/tensor/2\\^18', not "):
        cases.case_of(name)


def arrays_of(case):
    """The input of the case, and the results of the reference."""
    work = case.work
    x = np.zeros(case.shape, calls.dtype_of(work.dtype))
    if work.operation == "minmax":
        return [x], []
    if work.operation == "bitround":
        return [x], [reference.bitround(x, keepbits=calls.KEEPBITS)]
    scales = [given.scale] if work.symmetric and (given := data.operands(case).qparams) else []
    if work.operation in ("quantize_linear", "fake_quantize", "fake_quantize_range"):
        return [x, *scales], [x if "fake" in work.operation else reference.quantize_linear(x, 1.0, None, work.code)]
    if work.operation == "dequantize_linear":
        return [x.astype(work.code), *scales], [x]
    if work.operation == "dequantize":
        return [data.operands(case).first, *scales], [x]
    q = reference.quantize(x, work.code, **data.granularity(case)) if "pack" not in work.operation else None
    if work.operation == "quantize":
        return [x], [q.codes, q.scale, q.zero_point]
    if work.operation == "compare":
        return [x, q.codes], []
    packed = reference.pack(x, work.code)
    return ([x], [packed]) if work.operation == "pack" else ([packed], [x])


# the codes of floats are one or half a byte each, which the format's table says
PLAIN = [w for w in cases.WORKS if w.dtype in ("float32", "int8") and not w.prescribed and "float" not in w.code]


@pytest.mark.parametrize("work", PLAIN, ids=str)
def test_bytes_are_those_of_the_arrays(work):
    case = cases.Case(work, 13)
    read, written = (sum(array.nbytes for array in arrays) for arrays in arrays_of(case))
    assert case.passes[-1] == (read, written)
    twice = work.operation in ("quantize", "fake_quantize_range") and work.granularity in ("tensor", "columns")
    assert case.passes[:-1] == (((case.elements * 4, 0),) if twice else ())
    assert case.bytes_moved == read + written + twice * case.elements * 4


@pytest.mark.parametrize(
    ("work", "written"),
    [
        (cases.Work("gguf_quantize", code="Q8_0", granularity="blocks32"), 32 * (2 + 32)),
        (cases.Work("gguf_quantize", code="Q4_0", granularity="blocks32"), 32 * (2 + 16)),
        (cases.Work("requantize", "int32"), 1024),
        (cases.Work("quantize", code="mxfp4", granularity="blocks32"), 512 + 32),
    ],
    ids=str,
)
def test_bytes_of_blocks_and_accumulators(work, written):
    assert cases.Case(work, 10).passes == ((4096, written),)


@pytest.mark.parametrize("work", cases.WORKS, ids=str)
def test_every_work_has_us_and_the_roofline(work):
    names = [row.name for row in peers.contenders(cases.Case(work, 12), tuple(peers.PEERS))]
    assert len(set(names)) == len(names)
    assert {"fastq", "roofline store"} <= set(names)


@pytest.mark.slow("a process each")
@pytest.mark.parametrize("peer", peers.PEERS)
def test_every_contender_is_built_by_its_module(peer):
    code = f"import json; from {PACKAGE}.worker import builders; print(json.dumps(list(builders({peer!r}))))"
    command_line, environment = [*worker.PYTHON, "-c", code], worker.child_environment(1)
    done = subprocess.run(command_line, env=environment, capture_output=True, text=True, check=False)
    last_words = done.stderr.strip().splitlines()[-1:]
    if last_words and last_words[0].startswith("ModuleNotFoundError"):
        pytest.skip(f"{peer}: {last_words[0]}")
    assert done.returncode == 0, done.stderr
    every = cases.cases(cases.WORKS, [12])
    wanted = {(case.work.operation, row.variant) for case in every for row in peers.contenders(case, (peer,))}
    assert wanted <= set(map(tuple, json.loads(done.stdout)))


def test_patterns_choose_works():
    assert cases.chosen([]) == list(cases.WORKS)
    assert [w.name for w in cases.chosen(["pack", "*/columns"])] == [
        "quantize/float32/int8/columns",
        "dequantize_linear/float32/int8/columns",
        "pack/int8/int4/tensor",
    ]


# Results are checked


def flipped(codes, count=1, by=1):
    codes = codes.copy()
    codes.reshape(-1)[:count] += codes.dtype.type(by)
    return codes


@pytest.mark.parametrize(
    ("change", "within", "wrong"),
    [
        (lambda c: c, verify.EXACT, ""),
        (lambda c: flipped(c), verify.EXACT, "codes: not the reference's, bit for bit"),
        (lambda c: flipped(c), verify.TIES, ""),
        (lambda c: flipped(c, by=2), verify.TIES, "codes: 1 of 4096 differ, by 2 steps at most"),
        (lambda c: flipped(c, count=40), verify.TIES, "codes: 40 of 4096 differ, by 1 steps at most"),
        (lambda c: flipped(c, count=40, by=2), 2.0, ""),
        (lambda c: c[:-1], verify.TIES, "codes: shape (15, 256), where repetitions of (16, 256) are right"),
    ],
)
def test_differences_from_the_reference(change, within, wrong):
    codes = reference.quantize_linear(data.operands(LINEAR).first, data.scale("int8"), data.zero_point("int8"), "int8")
    assert verify.differences(LINEAR, {"codes": change(codes)}, within) == wrong


def test_results_that_name_nothing_are_wrong():
    assert verify.differences(LINEAR, {"other": 1}, verify.TIES) == "no result among codes"


def test_a_large_array_is_compared_to_its_end():
    case = cases.Case(cases.Work("quantize_linear"), data.PERIOD + 1)
    codes = reference.quantize_linear(data.operands(case).first, data.scale("int8"), data.zero_point("int8"), "int8")
    assert codes.shape == case.shape
    assert verify.differences(case, {"codes": codes}, verify.EXACT) == ""
    codes[-1, -1] ^= 1
    assert verify.differences(case, {"codes": codes}, verify.EXACT) != ""


@pytest.mark.parametrize(
    "operation", ["minmax", "quantize", "dequantize_linear", "dequantize", "fake_quantize", "compare", "pack"]
)
def test_a_peer_that_is_wrong_is_not_timed(operation, monkeypatch):
    case = cases.Case(cases.chosen([operation])[0], 10)
    build = worker.builders("numpy")[operation, ""]

    def wrong(case):
        runner = build(case)

        def off():
            return {
                name: np.asarray(value) + np.asarray(value).dtype.type(3) for name, value in runner.results().items()
            }

        return runner._replace(results=off)

    worker.checked("numpy", case, "")
    monkeypatch.setitem(worker.builders("numpy"), (operation, ""), wrong)
    with pytest.raises(ValueError, match="WRONG"):
        worker.checked("numpy", case, "")
    answer = worker.reply(worker.Child("numpy"), {"do": "prepare", "case": case.name, "variant": ""})
    assert answer["absent"].startswith("ValueError: WRONG")


WITH_SCALES = (
    *(cases.Work("dequantize_linear", granularity=name) for name in ("rows", "columns", "blocks32")),
    *(cases.Work("dequantize", code=code, granularity="blocks32") for code in ("int4", "mxfp4")),
    cases.Work("fake_quantize", granularity="blocks32"),
)
SCALES_GIVEN = [cases.Case(work, data.PERIOD + 1) for work in WITH_SCALES]


@pytest.mark.slow("compiles kernels for each", quick=lambda case, peer: peer != "fastq" or case in SCALES_GIVEN[:1])
@pytest.mark.parametrize("case", SCALES_GIVEN, ids=lambda case: case.work.name)
@pytest.mark.parametrize("peer", ["fastq", "numpy", "naive_numba", "gguf_py", "ggml"])
def test_given_scales_are_those_of_the_reference(case, peer):
    rows = peers.contenders(case, (peer,))
    if rows and peer in ("gguf_py", "ggml"):
        pytest.importorskip(worker.PEERS[peer].module)
    for row in rows:
        worker.checked(peer, case, row.variant)
    data.forget()


@pytest.mark.parametrize("case", SCALES_GIVEN, ids=lambda case: case.work.name)
def test_given_scales_differ_and_fit_float16(case):
    o = data.operands(case)
    scale = o.qparams.scale
    assert len(np.unique(scale.astype(np.float32))) > 1
    assert scale.dtype != np.float32 or (scale == scale.astype(np.float16)).all()
    assert np.broadcast_shapes(o.beside[0].shape, o.grouped_shape) == o.grouped_shape
    data.forget()


def test_what_fastq_does_not_do_is_absent(monkeypatch):
    def build(case):
        raise TypeError("x must be float32")

    monkeypatch.setitem(worker.builders("fastq"), ("quantize_linear", ""), build)
    answer = worker.reply(worker.Child("fastq"), {"do": "prepare", "case": LINEAR.name, "variant": ""})
    assert answer == {"absent": "does not do this: TypeError: x must be float32"}


def test_lines_of_the_roofline_are_the_bytes_of_the_case():
    for case in cases.cases(cases.WORKS, (12, 18)):
        for bytes_of in case.passes:
            reads, writes, steps = moves.lines(bytes_of)
            moved = np.array([reads, writes]) * steps * 64
            assert moved == pytest.approx(bytes_of, rel=0.05, abs=64 * (reads + writes))
            assert reads + writes <= 41


@pytest.mark.slow("compiles loops of its own")
@pytest.mark.parametrize("variant", ["store", "stream"])
def test_roofline_moves_what_it_says(variant, monkeypatch):
    monkeypatch.setattr(moves.numba, "get_num_threads", lambda: 1)
    case = LINEAR._replace(log2=18)
    runner = worker.builders("roofline")["quantize_linear", variant](case)
    assert runner.check() == "lines were not moved"
    runner.call()
    assert runner.check() == ""
    with worker.Workers(2) as workers:  # which raises what the check says
        workers["roofline"].ask(do="prepare", case=case.name, variant=variant)


# Peers that are not there


def test_absent_peer_is_named(monkeypatch):
    missing = peers.Peer("numpy", "no_such_module", "")
    monkeypatch.setitem(worker.PEERS, "numpy", missing)
    assert worker.reply(worker.Child("numpy"), {"do": "version"}) == {"absent": "not installed"}


class Refusing(dict):
    """Workers of which each refuses all."""

    alive = True

    def __missing__(self, peer):
        return self

    def ask(self, **request):
        raise worker.Absent("not installed")


class Crashing(Refusing):
    """Workers of which each ends when it has to prepare something."""

    alive, asked = False, 0

    def ask(self, **request):
        self.asked += 1
        if request["do"] == "version":
            return "1.0"
        raise worker.Absent("its process ended")


def test_a_peer_that_ends_again_and_again_is_given_up():
    bench = rounds.Bench(rounds.Settings(1, ("numpy",)), Crashing())
    bench.workers.of = {}
    bench.start()
    reasons = [bench.measure(LINEAR, 1.0).absent["numpy"] for _ in range(5)]
    assert reasons == ["its process ended"] * 3 + ["given up after 3 times: its process ended"] * 2
    assert bench.workers.asked == 4


def test_absent_peers_are_in_the_results_and_the_remarks():
    bench = rounds.Bench(rounds.Settings(1, ("fastq", "numpy")), Refusing())
    bench.workers.of = {}
    bench.start()
    measurement = bench.measure(LINEAR, 1.0)
    assert measurement.absent == dict.fromkeys(["fastq", "fastq allocating", "numpy"], "not installed")
    made = results.Results({}, {}, {}, "now", [measurement])
    assert list(show.absences(made)) == ["fastq, numpy: not installed"]  # and no word on how busy the machine is


def test_a_process_that_dies_is_absent_and_started_again():
    with worker.Workers(1) as workers:
        workers["numpy"].ask(do="version")
        os.kill(workers["numpy"].process.pid, signal.SIGKILL)
        first = workers.of["numpy"]
        with pytest.raises(worker.Absent, match="its process ended with code -9"):
            first.ask(do="version")
        assert workers["numpy"].ask(do="version") == np.__version__


def test_a_process_that_hangs_is_absent():
    hanging = worker.Worker("numpy", 1)
    try:
        hanging.ask(do="prepare", case=LINEAR.name, variant="")
        hanging.within = 0.2
        with pytest.raises(worker.Absent, match=r"no answer within 0\.2 s"):
            hanging.ask(do="time", variant="", seconds=3600)
        assert not hanging.alive
    finally:
        hanging.close()


# A run, and what is made from it


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "results.json"
    output = invoke(command.run, *RUN, "-t", "1", "-c", "numpy,naive_numba,roofline", "--keep", path)
    return path, output


def test_run(measured):
    path, output = measured
    made = results.read(path)
    assert [m.case for m in made.measurements] == [
        f"{name}/2^{log2}"
        for name in ("minmax/float32/int8/tensor", "quantize_linear/float32/int8/tensor", "quantize/float32/int8/rows")
        for log2 in (10, 12)
    ]
    for m in made.measurements:
        assert m.absent == {}
        assert {"fastq", "numpy"} <= set(m.exact) <= set(m.timings)
        assert {"fastq", "numpy", "naive_numba", "roofline store"} <= set(m.timings)
        assert all(0 < t.best <= t.median and t.samples > 0 for t in m.timings.values())
        assert m.best_peer().best == min(m.timings[name].best for name in ("numpy", "naive_numba"))
        assert m.ratio(m.numpy()) == m.timings["numpy"].best / m.timings["fastq"].best
    assert made.versions["numpy"] == np.__version__
    assert made.machine["cores"] == machine.cores()
    assert made.settings["threads"] == 1
    for word in ("quantize int8 rows", "x peer", "x NumPy", "of roofline", "2^10", "2^12"):
        assert word in output


def test_time_that_is_up_is_said(tmp_path):
    path = tmp_path / "results.json"
    output = invoke(command.run, *RUN, "-c", "numpy", "--seconds", "0", "--keep", path)
    assert all(m.absent == {"fastq": "out of time: the run had 0 s"} for m in results.read(path).measurements)
    assert "out of time" in output


def test_plot(measured, tmp_path):
    pytest.importorskip("matplotlib", reason="no matplotlib")
    invoke(checkout.main, "plot", measured[0], "--plot", tmp_path / "speed.png")
    assert part("plot").COLORS.keys() == peers.PEERS.keys()
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_pages_hold_the_figures(measured, tmp_path):
    made = results.read(measured[0])
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    stored = {Path("results.json"): made}
    assert report.write(stored, tmp_path) == [report.PAGE, report.README]
    assert report.write(stored, tmp_path) == []
    page, readme = (tmp_path / report.PAGE).read_text(), (tmp_path / report.README).read_text()
    assert machine.cpu_name(made.machine) in page
    m = made.get("minmax/float32/int8/tensor/2^12")
    (figures,) = report.figures(stored).values()
    row = next(line for line in figures.split("<summary>minmax</summary>")[1].splitlines() if line.startswith("| 2^12"))
    cells = row.strip("| ").split(" | ")
    assert cells[1:3] == [show.gelems(m, m.ours().best), show.gelems(m, m.ours().median)]
    assert cells[4] == m.best_peer().name
    assert readme.startswith("before\n<!-- begin")
    assert readme.endswith("<!-- end -->\nafter\n")
    assert "old" not in readme


def test_each_machine_has_a_page_of_figures(measured):
    made = results.read(measured[0])
    other = dataclasses.replace(made, machine=made.machine | {"cpu": "Another"})
    stored = {Path("results.json"): made, Path("other.json.gz"): other}
    pages = report.figures(stored)
    assert list(pages) == [Path("docs/performance-results.md"), Path("docs/performance-other.md")]
    assert [f"- CPU: {cpu};" in text for cpu in (made.machine["cpu"], "Another") for text in pages.values()] == [
        True,
        False,
        False,
        True,
    ]
    name = made.machine["features"].split()[0]  # what compilers call the CPU
    assert f"[Another, {name}](performance-other.md)" in report.links(stored)
    for text in pages.values():
        assert text.count("<details>") == text.count("</details>") > 0
        assert not re.search(r"\{\w+\}", text)


@pytest.mark.parametrize(
    ("factor", "rows"), [(1e-3, []), (1e3, ["minmax", "quantize_linear int8", "quantize int8 rows"])]
)
def test_works_in_which_a_peer_is_faster_are_listed_with_their_sizes(measured, factor, rows):
    made = results.read(measured[0])
    made = slower(made, factor, *(m.case for m in made.measurements))
    shown = [line.strip("| ").split(" | ") for line in report.slower(made).splitlines()[2:]]
    assert [cells[0] for cells in shown] == rows
    for cells in shown:
        (m,) = [m for m in made.measurements if m.of.work.title == cells[0] and m.of.log2 == 12]  # 2^10 is left out
        assert cells[1:3] == [m.best_peer().name, f"2^12: {m.ratio(m.best_peer()):.2f}"]
    assert rows or report.slower(made) == "Nowhere."


@pytest.mark.parametrize(
    ("cpu", "features", "expected"),
    [("A", "znver4 (avx)", "old"), ("B", "znver5 (avx)", "new"), ("A", "znver5 (avx)", "kin"), ("C", "", "new")],
)
def test_results_of_such_a_cpu_are_the_default(measured, tmp_path, monkeypatch, cpu, features, expected):
    made = results.read(measured[0])
    for name, year, model, llvm in [("old", 1, "A", "znver4"), ("kin", 2, "A", "znver5"), ("new", 3, "B", "znver5")]:
        described = {"cpu": model, "features": llvm}
        stored = dataclasses.replace(made, machine=made.machine | described, started=f"200{year}-01-01 00:00:00")
        stored.write(tmp_path / f"{name}.json")
    monkeypatch.setattr(results, "STORED", tmp_path)
    monkeypatch.setattr(machine, "cpu", lambda: {"cpu": cpu, "features": features})
    assert checkout.results_of(None, None, None) == tmp_path / f"{expected}.json"


def test_generated_text_is_that_of_the_stored_results():
    stored = results.stored()
    assert stored
    for name, text in report.texts(stored, ROOT).items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name}: run python -m bench report"


def test_the_page_is_one_screen():
    page = (ROOT / report.PAGE).read_text(encoding="utf-8")
    first, rest = page.split("## What is measured\n")
    rows = [line for line in first.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(cases.HEADLINES)
    assert "of the *roofline*" in first
    assert "fastq bench" in rest
    assert len(page.splitlines()) <= 90


@pytest.mark.parametrize("section", [{}, {"startup": [{"what": "import numpy", "best": 1.0}]}])
def test_sentences_of_what_was_not_measured_are_left_out(section):
    assert report.words(results.Results({}, {}, {}, "", sections=section)) == ""


def slower(made, factor, *cases_):
    """The results with our times as many times as long in these cases."""

    def changed(m):
        takes = {name: factor if name.startswith("fastq") else 1.0 for name in m.timings}
        timings = {name: t._replace(best=t.best * takes[name]) for name, t in m.timings.items()}
        ratios = {(a, b): ratio * takes[a] / takes[b] for (a, b), ratio in m.ratios.items()}
        return dataclasses.replace(m, timings=timings, ratios=ratios)

    return dataclasses.replace(made, measurements=[changed(m) if m.case in cases_ else m for m in made.measurements])


@pytest.mark.parametrize(("factor", "fell"), [(1.0, False), (1.1, False), (1.3, True), (0.5, False)])
def test_gate(measured, factor, fell):
    made = results.read(measured[0])
    case = made.measurements[0].case
    falls = list(gate.fallen(made, slower(made, factor, case)))
    assert [fall.case for fall in falls] == ([case] if fell else [])
    if fell:
        assert falls[0].now / falls[0].before == pytest.approx(1 / factor)
        assert f"({100 * (1 - 1 / factor):.0f} % less)" in str(falls[0])


@pytest.mark.slow("measures in processes of its own")
def test_gate_command_measures_the_cases_that_are_stored(measured):
    made = results.read(measured[0])
    easy = slower(made, 1e6, *(m.case for m in made.measurements))
    path = measured[0].with_name("easy.json")
    easy.write(path)
    options = ["--no-cliffs", "--sizes", "10", "-o", "minmax", "-t", "1", "-c", "numpy", "--rounds", "1"]
    assert "1 cases compared with easy.json, 0 fell" in invoke(checkout.main, "gate", "--against", path, *options)
    wrong = invoke(checkout.main, "gate", "--against", path, *options, "-t", "3", exit_code=2)
    assert "easy.json was measured with --threads 1, not 3" in wrong
    hard = slower(made, 1e-6, *(m.case for m in made.measurements))
    hard.write(path)
    assert "1 fell" in invoke(checkout.main, "gate", "--against", path, *options, exit_code=1)


def guarded(seconds, *, roofline=1e-3, absent=""):
    """Results of a work of `GATE` at 2^20 and 2^22 elements, where its roofline takes so many seconds for both."""
    work = next(iter(cases.GATE))
    made = []
    for log2, takes in zip((20, 22), seconds, strict=True):
        timings = {"fastq": takes, "roofline store": roofline}
        timings = {name: results.Timing(each, each, 1) for name, each in timings.items()}
        made.append(results.Measurement(cases.Case(work, log2).name, 2, timings))
    last = dataclasses.replace(made[-1], timings={}, absent={"fastq": absent}) if absent else made[-1]
    return results.Results({}, {}, {}, "", [made[0], last])


@pytest.mark.parametrize(
    ("seconds", "absent", "wrong"),
    [
        ((0.25e-3, 1e-3), "", []),
        ((0.25e-3, 3e-3), "", []),
        ((0.5e-3, 4.1e-3), "", ["0.24 of the roofline's speed, was 0.63 at least"]),
        ((0.25e-3, 8e-3), "", ["an element takes 8.0 times as long as in 1048576 elements", "0.12 of the roofline's"]),
        ((0.25e-3, 1e-3), "ValueError: WRONG codes", ["fastq: ValueError: WRONG codes"]),
    ],
)
def test_gate_finds_cliffs_and_lost_shares_of_the_roofline(seconds, absent, wrong):
    lines = list(gate.slow(guarded(seconds, absent=absent)))
    assert len(lines) == len(wrong)
    assert all(line.startswith("dequantize/float32/int8/blocks32/2^22: ") for line in lines)
    assert all(words in line for words, line in zip(wrong, lines, strict=True))


@pytest.mark.slow("measures in processes of its own")
def test_gate_command_measures_works_that_were_slow_once(measured):
    options = ["--sizes", "11", "-t", "1", "--rounds", "1"]  # of which the results have no case
    output = invoke(checkout.main, "gate", "--against", measured[0], *options)
    assert f"{len(cases.GATE)} cases of works that were slow once, 0 are slow or failed" in output


@pytest.mark.slow("compiles kernels for each", quick=lambda work: work.layout == "gaps")
@pytest.mark.parametrize("work", cases.GATE, ids=lambda work: work.name)
def test_works_of_the_gate_are_computed_right(work):
    case = cases.Case(work, data.PERIOD + 1)
    assert np.prod(case.shape) == case.elements
    for row in peers.contenders(case, ("fastq",)):
        worker.checked("fastq", case, row.variant)
    data.forget()


@pytest.mark.parametrize("layout", data.LAYOUTS)
def test_layouts_keep_values(layout):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    laid = data.LAYOUTS[layout](x)
    assert (laid == x).all()
    assert (laid.flags.c_contiguous and laid.dtype.isnative) == (layout == cases.C_ORDER)


def test_ratios_are_between_turns_of_one_round():
    """A rival whose best turn was in the second in which memory was fast is not faster for that."""
    case = cases.Case(cases.Work("minmax"), 26).name
    rounds = {"fastq": (4.0, 4.0, 4.0), "numpy": (5.0, 5.0, 2.5), "jax_jit": (4.8, 4.8, 4.8)}
    timings = {name: results.Timing(min(each), np.median(each), 3) for name, each in rounds.items()}
    measured = results.Measurement(case, 2, timings)
    made = measured.with_ratios(rounds)
    rival = made.best_peer()
    assert rival.name == "jax_jit"
    assert made.ratio(rival) == pytest.approx(1.2)
    assert made.ratio(made.numpy()) == 1.25
    assert measured.over("numpy", "fastq") == 2.5 / 4  # of results without rounds


def test_what_is_stored_is_read_again(tmp_path):
    """Seconds and ratios come back with five digits, those over ours and the two others that pages print."""
    names = ["fastq", "fastq allocating", "numpy", "jax_jit", "roofline store"]
    rounds = {name: [1e-4 / (k + 3), 1e-3 / (k + 7)] for k, name in enumerate(names)}
    timings = {name: results.Timing(min(each), max(each), 2) for name, each in rounds.items()}
    case = cases.Case(cases.Work("quantize_linear"), 12).name
    first = results.Measurement(case, 2, timings, {"faiss": "not installed"}, ["fastq", "numpy"], 0.25).with_ratios(
        rounds
    )
    second = results.Measurement(case[:-1] + "4", 2, {"fastq": timings["fastq"], "numexpr": timings["numpy"]})
    made = results.Results(
        {"cpu": "A"}, {}, {}, "now", [first, second], {"memory": [{"what": "it", "mib": 1 / 3}]}, ["!"]
    )
    assert {pair for pair in first.ratios if pair[1] != "fastq"} == {
        ("jax_jit", "fastq allocating"),
        ("roofline store", "jax_jit"),
    }
    made.write(path := tmp_path / "results.json")
    assert path.read_text().count("\n") < 40
    found = results.read(path)
    for m, again in zip(made.measurements, found.measurements, strict=True):
        assert dataclasses.replace(m, timings={}, ratios={}) == dataclasses.replace(again, timings={}, ratios={})
        assert {name: tuple(t) for name, t in again.timings.items()} == {
            name: pytest.approx(tuple(t), rel=1e-4) for name, t in m.timings.items()
        }
        assert again.ratios == pytest.approx(m.ratios, rel=1e-4)
    assert found.sections == {"memory": [{"what": "it", "mib": 0.33333}]}
    assert dataclasses.replace(found, measurements=[], sections={}) == dataclasses.replace(
        made, measurements=[], sections={}
    )


@pytest.mark.parametrize(
    ("log2", "seconds", "roofline", "limit"),
    [
        (26, 1e-2, {"roofline store": 0.9e-2}, "memory"),
        (26, 2e-2, {"roofline store": 1.8e-2, "roofline stream": 0.5e-2}, "stores into the cache"),
        (26, 1e-2, {"roofline store": 0.5e-2}, "instructions"),
        (26, 2e-2, {"roofline store": 0.5e-2}, "memory and instructions"),
        (20, 2e-4, {"roofline store": 0.5e-4}, "instructions"),
        (12, 1e-6, {"roofline store": 0.5e-6}, "the cost of a call"),
    ],
)
def test_limit_of_what_is_slower(log2, seconds, roofline, limit):
    work = cases.Work("minmax")
    times = {"fastq": seconds, "numpy": seconds / 2} | roofline
    timings = {name: results.Timing(each, each, 1) for name, each in times.items()}
    in_cache = {"fastq": results.Timing(1e-2 / 2**10, 1e-2 / 2**10, 1)}  # as fast as 2**26 elements in 10 ms
    measured = [(cases.Case(work, log2), timings), (cases.Case(work, 16), in_cache)]
    made = results.Results({}, {}, {}, "", [results.Measurement(case.name, 2, each) for case, each in measured])
    (row,) = [line for line in report.limits(made).splitlines() if f"2^{log2} |" in line]
    assert row.endswith(f"| {limit} |")


@pytest.mark.parametrize(("one", "two", "roofline"), [(3.0, 2.0, 1.0), (3.0, 2.5, 2.0), (3.0, 2.0, None)])
def test_a_second_thread_is_shown_with_what_memory_allows(one, two, roofline):
    case = cases.Case(cases.Work("minmax"), 20).name
    rows = [{"case": case, "threads": n, "best": best} for n, best in ((1, one), (2, two))]
    rows[1] |= {"roofline": roofline} if roofline else {}
    made = results.Results({}, {}, {}, "", sections={"scaling": rows})
    shown = f"{one / roofline:.2f}" if roofline else "-"
    assert report.PARTS["scaling"](made).endswith(f"| {one / two:.2f} | {shown} |")


def test_the_roofline_is_shown_beside_its_own_time_with_one_thread():
    case = cases.Case(cases.Work("minmax"), 20).name
    seconds = {1: (4.0, 3.0), 2: (2.5, 1.5), 4: (2.0, 1.0)}
    rows = [{"case": case, "threads": n, "best": ours, "roofline": copy} for n, (ours, copy) in seconds.items()]
    shown = report.PARTS["scaling"](results.Results({}, {}, {}, "", sections={"scaling": rows}))
    assert shown.endswith(" | 1.60 | 2.67 | 2.00 | 2.00 | 4.00 | 3.00 |")


def test_a_page_of_scaling_is_written_with_its_pictures(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="no matplotlib")
    names = [cases.Case(work, log2).name for work in cases.WORKS[:3] for log2 in (18, 22, 26)]
    rows = [
        {"case": name, "threads": n, "best": 1 / n, "roofline": 0.5 / n**0.5} for name in names for n in (1, 2, 4, 8)
    ]
    described = {"cpu": "A", "features": "znver5", "cores": 8, "python": "3.12.1"}
    monkeypatch.setattr(scaling_page, "STORED", tmp_path / "stored")
    assert scaling_page.write(tmp_path) == []
    (tmp_path / "docs").mkdir()
    (tmp_path / "stored").mkdir()
    made = results.Results(described, {}, {}, "2026-01-01 00:00:00", sections={"scaling": rows})
    made.write(tmp_path / "stored" / "many.json.gz")
    picture = Path("docs/performance-scaling-many.png")
    assert scaling_page.write(tmp_path) == [scaling_page.PAGE, picture]
    assert scaling_page.write(tmp_path) == []
    text = (tmp_path / scaling_page.PAGE).read_text()
    assert "## A, znver5" in text
    assert "(performance-scaling-many.png)" in text
    assert text.count(" | 8.00 | 5.66 | 2.83 |") == 9
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert scaling_page.PAGE.name in scaling_page.link()


@pytest.mark.slow("measures in processes of its own")
@pytest.mark.parametrize(("seconds", "sweeps"), [(60, 2), (0, 0)])
def test_scaling_measures_each_case_in_every_sweep_that_there_is_time_for(tmp_path, monkeypatch, seconds, sweeps):
    monkeypatch.setattr(part("scaling"), "TURN", 0.001)
    path = tmp_path / "scaling.json"
    options = ("-t", 3, "-o", "minmax,unpack", "--sizes", 10, "--sweeps", 2, "--seconds", seconds, "--keep", path)
    output = invoke(checkout.main, "scaling", *options)
    assert output.count("minmax/float32/int8/tensor/2^10\n") == sweeps
    rows = results.read(path).sections["scaling"] if sweeps else []
    assert [row["threads"] for row in rows] == sweeps * [1, 2, 3]
    assert all(0 < row["best"] <= row["median"] and row["roofline"] > 0 for row in rows)


@pytest.mark.slow("compiles in a process of its own")
def test_small_calls_have_three_parts():
    rows = list(part("startup").small_calls(16))
    assert [row["what"].split(",")[0] for row in rows] == ["quantize_linear", "dequantize_linear", "quantize", "minmax"]
    assert all(0 < row["best"] <= row["median"] and row["dispatch"] > 0 for row in rows)
    assert all(row["python"] >= 0 and row["kernel"] >= 0 for row in rows)


def test_a_section_alone_measures_no_other(monkeypatch):
    monkeypatch.setattr(part("scaling"), "rows", None)
    monkeypatch.setattr(part("memory"), "rows", lambda: iter([{"what": "it", "mib": 1.5}]))
    assert invoke(checkout.main, "memory", "-t", 1) == "what it  mib 1.5\n"


@pytest.mark.parametrize("content", ["", "[]", '{"format": 0}', '{"format": 1}', '{"format": 2}'])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(ValueError, match=r"^other\.json holds no results of this benchmark: "):
        results.read(tmp_path / "other.json")


def test_compressed_results_that_are_damaged_are_refused(measured, tmp_path):
    """Cut anywhere, or with a byte that is another one: never half of the stored content."""
    made = results.read(measured[0])
    made.write(path := tmp_path / "results.json.gz")
    assert results.read(path) == made
    whole = path.read_bytes()
    for damaged in (b"", whole[:5], whole[: len(whole) // 2], whole[:-1], whole[:40] + b"\xff\xff" + whole[42:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"^results\.json\.gz holds no results of this benchmark: "):
            results.read(path)


@pytest.mark.parametrize(("text", "sizes"), [("18", (18,)), ("12,18", (12, 18)), ("10-16:2,20", (10, 12, 14, 16, 20))])
def test_sizes(text, sizes):
    assert part("options").Sizes().convert(text, None, None) == sizes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sizes", "9"], "'9' is not within 10 to 28"),
        (["--sizes", "big"], "'big' is not like 18 or 12,18 or 10-26:2"),
        (["-o", "nothing"], "no work fits nothing; --list prints them"),
        (["-c", "numpi"], "numpi: choose from fastq, numpy"),
        (["-t", "0"], "0 is not in the range"),
    ],
)
def test_options_that_are_refused(options, message):
    assert message in " ".join(invoke(command.run, *options, exit_code=2).split())


def test_list():
    output = invoke(command.run, "--list")
    assert all(work.name in output for work in cases.WORKS)
    assert all(peer in output for peer in peers.PEERS)
