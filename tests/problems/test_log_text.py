"""Logs as they are found on hosts: encodings, terminal control sequences, progress bars, pipes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ascend_adapt.cli import main
from ascend_adapt.errors import SettingsError
from ascend_adapt.problems import explanation, known, log_text, reading
from ascend_adapt.problems.facts import Facts
from ascend_adapt.problems.log_text import LogText

LINES = "训练开始 第一步\n  File \"/job/训练.py\", line 3\nModuleNotFoundError: No module named 'flash_attn'\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16"])
def test_the_encoding_of_a_log_is_recognised(tmp_path, encoding):
    (tmp_path / "job.log").write_bytes(LINES.encode(encoding))
    assert log_text.read(tmp_path / "job.log").lines[1:] == LINES.split("\n")[1:]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_the_end_of_a_large_log_keeps_encoding_and_line_numbers(tmp_path, encoding):
    mark = "\ufeff" if encoding == "utf-16-le" else ""
    (tmp_path / "job.log").write_bytes((mark + "步骤 1\n" * 1000 + LINES).encode(encoding))
    log = log_text.read(tmp_path / "job.log", largest=400)
    assert log.number(log.lines.index(LINES.split("\n")[2])) == 1003


def test_a_utf_8_log_with_a_cut_character_stays_utf_8(tmp_path):
    (tmp_path / "job.log").write_bytes(LINES.encode()[1:])
    assert log_text.read(tmp_path / "job.log").lines[1] == LINES.split("\n")[1]


@pytest.mark.parametrize("read", [log_text.read, reading.read])
def test_a_device_that_never_ends_is_refused(read):
    with pytest.raises(SettingsError, match="/dev/zero: is a device, not a regular file"):
        read(Path("/dev/zero"))


def test_nothing_that_a_terminal_executes_is_printed():
    log = LogText("\x1b]0;title\x07\x1b[2J\x1b[?25lRuntimeError\x07: \x1b[1;31mbad\x9b31m\x00 input\x1b[0m\tend\r\n")
    assert log.lines == ["RuntimeError: bad31m input\tend", ""]


def test_the_error_is_shown_and_not_the_progress_bar_before_it():
    error = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"
    log = LogText(f"first line\n{'  3%|3 | 1/9' * 40}\r{error}\r  4%|4 | 2/9\n")
    (found,) = explanation.explain(log, known.problems({})[0], Facts())
    assert (found.line, found.shown_by) == (2, (error,))


def test_a_pipe_is_read_from_standard_input(capfd):
    reader, writer = os.pipe()
    os.write(writer, LINES.encode())
    os.close(writer)
    saved = os.dup(0)
    try:
        os.dup2(reader, 0)
        assert main(["explain", "-"]) == 0
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(reader)
    assert "/dev/stdin:3: ModuleNotFoundError" in capfd.readouterr().out


def test_an_empty_log_is_reported_as_empty(tmp_path, capsys):
    (tmp_path / "job.log").write_text("\n")
    assert main(["explain", str(tmp_path / "job.log")]) == 0
    assert f"{tmp_path / 'job.log'}: is empty" in capsys.readouterr().out


@pytest.mark.parametrize(
    "data", ["\ufeffimport flash_attn\n".encode(), "# coding: gbk\n# 训练\nimport flash_attn\n".encode("gbk")]
)
def test_scripts_are_decoded_as_python_decodes_them(tmp_path, data):
    (tmp_path / "train.py").write_bytes(data)
    assert [name for name, _ in reading.read(tmp_path / "train.py").imports] == ["flash_attn"]


def test_all_files_that_cannot_be_read_are_reported(tmp_path, capsys):
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.py").write_bytes(b"a\0b")
    with pytest.raises(SettingsError, match=r"b\.py: .*null bytes"):
        reading.read(tmp_path / "b.py")
    assert main(["doctor", str(tmp_path / "a.json"), str(tmp_path / "b.py")]) == 2
    errors = capsys.readouterr().err
    assert "a.json: " in errors
    assert "b.py: " in errors
