"""Figures of long runs: rows keep their origin, and tables show it."""

import json
import subprocess

import exhaustive
import figures
import pytest

OLD = {"date": "2020-01-01", "cpu": "i386", "python": "3.1", "numpy": "1.0", "numba": "0.1"}


@pytest.fixture(autouse=True)
def page_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "STORED", tmp_path / "figures.json")
    figures.STORED.write_text(json.dumps({"a": OLD | {"rows": [{"kind": "x", "times": 1}, {"kind": "y", "times": 2}]}}))


def test_rows_of_other_kinds_keep_what_they_were_made_with():
    figures.store("a", [{"kind": "y", "times": 3000}], by=("kind",))
    assert figures.runs("a") == [
        OLD | {"rows": [{"kind": "x", "times": 1}]},
        figures.made_with() | {"rows": [{"kind": "y", "times": 3000}]},
    ]
    head, _, first, second, blank, *made = figures.table("a").splitlines()
    assert (head, first, second, blank) == ("| kind | times | run |", "| x | 1 | 1 |", "| y | 3,000 | 2 |", "")
    assert made[0] == "Run 1: 2020-01-01 before commits were stored, i386, Python 3.1, NumPy 1.0, Numba 0.1."
    assert made[1].startswith(f"Run 2: {figures.made_with()['date']} ")
    assert len(made) == 2


def test_runs_that_are_alike_are_one():
    figures.store("a", [{"kind": "x", "times": 5}], by=("kind",))
    figures.store("a", [{"kind": "y", "times": 6}], by=("kind",))
    assert len(figures.runs("a")) == 2
    head, _, first, second, _, made = figures.table("a").splitlines()
    assert (head, first, second) == ("| kind | times |", "| x | 5 |", "| y | 6 |")
    assert made.startswith("Run of ")


def test_a_whole_table_is_of_the_last_run():
    figures.store("a", [{"kind": "z", "times": 1}])
    assert [run["rows"] for run in figures.runs("a")] == [[{"kind": "z", "times": 1}]]
    assert figures.runs("b") == []


@pytest.mark.parametrize(("last", "told"), [("all", "all: times: 7,000"), ("w", "19 rows")])
def test_a_table_longer_than_a_screen_unfolds(last, told):
    figures.store("a", [{"kind": "x", "times": k} for k in range(18)] + [{"kind": last, "times": 7000}])
    first, summary, *_, end, _, made = figures.table("a").splitlines()
    assert (first, summary, end) == ("<details>", f"<summary>{told}</summary>", "</details>")
    assert made.startswith("Run of ")


def test_a_table_without_runs_is_empty():
    text = "<!-- begin: b -->\n| old |\n<!-- end: b -->\n"
    assert figures.page(text) == "<!-- begin: b -->\n<!-- end: b -->\n"
    assert figures.page(text.replace("b -->", "a -->")).splitlines()[-2].startswith("Run of 2020-01-01")


def test_the_commit_says_whether_there_are_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    assert figures.commit() == ""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    (tmp_path / "fastq").mkdir()
    (tmp_path / "fastq" / "a.py").touch()
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "a"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    (tmp_path / "figures.md").touch()
    clean = figures.commit()
    assert len(clean) == 10
    (tmp_path / "fastq" / "b.py").touch()
    assert figures.commit() == f"{clean}+"


def test_exhaustive_proofs_by_what_they_were_made_with(tmp_path, monkeypatch):
    monkeypatch.setattr(exhaustive, "jobs", lambda: [("k", name, None) for name in "abcde"])
    state = exhaustive.State(tmp_path / "state.json")
    state.done, state.wrong = {"k": {"a": 10, "b": 20, "c": 40}}, {"k": {"d": "no"}}
    state.made = {"k": {"b": OLD, "c": OLD | {"date": "2020-01-02"}, "d": OLD | {"cpu": "i486"}}}
    state.save()
    figures.store_runs("proofs", exhaustive.State(tmp_path / "state.json").runs())
    assert figures.runs("proofs") == [
        {"rows": [{"what": "k", "settings": 1, "values": 10, "wrong": 0}]},
        OLD | {"date": "2020-01-02", "rows": [{"what": "k", "settings": 2, "values": 60, "wrong": 0}]},
        OLD | {"cpu": "i486", "rows": [{"what": "k", "settings": 0, "values": 0, "wrong": 1}]},
    ]
    assert "Run 1: not known.\nRun 2: 2020-01-02 " in figures.table("proofs")
