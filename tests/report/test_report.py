"""`ascend-adapt report` of run directories and logs, and the page that it writes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from ascend_adapt.cli import main
from ascend_adapt.report import sections
from ascend_adapt.report.chart import Line, chart
from ascend_adapt.report.curves import Curve, thinned
from ascend_adapt.report.differences import compare
from ascend_adapt.report.metrics import LOSS
from ascend_adapt.report.run import FINISHED, Run, RunReader

SCRIPT = """
import os, sys, time
print("using world size: 2, data-parallel size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 1 ")
print("------------------------ arguments ------------------------")
print("  lr .............................................. " + sys.argv[1])
print("  wandb_api_key ................................... hunter2")
print("-------------------- end of arguments ---------------------")
for step in range(4):
    print(f"iter {step}: loss {4 / (step + 1):.4f}, time 100.00ms, mfu 12.00%", flush=True)
    time.sleep(0.5)
if len(sys.argv) > 2 and os.environ["RANK"] == "1":
    raise ValueError("</script><img src=x onerror=alert(1)> \\u202e \\x00")
"""
VOID = {"meta", "path", "circle", "line", "polygon", "polyline"}


class Page(HTMLParser):
    """Parsed page: fails on an element that is not closed."""

    def __init__(self, text):
        super().__init__()
        self.text, self.elements, self.open = text, [], []
        self.content = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.content += data + "\n"

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


def report(*argv):
    assert main(["report", *map(str, argv)]) == 0
    *_, output = [str(word) for word in argv]
    with open(output) as file:
        return Page(file.read())


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Two finished jobs of two ranks, the second failed; the first was watched while it ran."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "train.py").write_text(SCRIPT)

    def start(name, *arguments):
        command = [
            sys.executable,
            "-m",
            "ascend_adapt.launch.cli",
            "--device",
            "cpu",
            "--nproc",
            "2",
            "--oversubscribe",
        ]
        return subprocess.Popen(
            [*command, "--log-dir", str(folder / name), str(folder / "train.py"), *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    first = start("first", "0.001")
    while not (folder / "first" / "job.json").exists():
        assert first.poll() is None
    watch = subprocess.Popen(
        [sys.executable, "-m", "ascend_adapt.cli", "report", "first", "--watch", "1", "-o", "live.html"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watch.stdout is not None
    assert watch.stdout.readline() == "report: live.html\n"
    (folder / "live.html").rename(folder / "early.html")
    assert first.wait(120) == 0
    (folder / "watch.txt").write_text(watch.communicate(timeout=60)[0])
    assert start("second", "0.002", "fail").wait(120) == 1
    return folder


def test_a_page_follows_a_job_until_it_ends(jobs):
    early, last = (Page((jobs / name).read_text()) for name in ("early.html", "live.html"))
    assert {"http-equiv": "refresh", "content": "1"} in early.all("meta")
    assert "running" in early.content
    assert [one for one in last.all("meta") if one.get("http-equiv") == "refresh"] == []
    assert "finished" in last.content
    assert (jobs / "watch.txt").read_text().splitlines()[-1] == "report: live.html"


def test_a_job_of_an_unmodified_program(jobs, tmp_path):
    page = report(jobs / "first", "-o", tmp_path / "page.html")
    assert [one["id"] for one in page.all("figure")] == ["loss", "seconds", "mfu"]
    loss = next(one for one in page.all("g") if one["data-x"] == "0 1 2 3")
    assert loss["data-y"] == "4 2 1.3333 1"
    # Read aloud, and without a picture.
    assert all(one["role"] == "img" and one["aria-labelledby"] for one in page.all("svg"))
    assert "from 4 at iteration 0 to 1 at 3" in page.content
    assert "1.3333" in page.content
    for expected in ("2 ranks: data 1 x pipeline 1 x tensor 2", "exit code 0", "torch", "patches: ", "evidence: cpu"):
        assert expected in page.content
    assert "hunter2" not in page.text


def test_the_page_needs_no_network(jobs, tmp_path):
    page = report(jobs / "first", "-o", tmp_path / "page.html")
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert {key for _, attrs in page.elements for key in attrs} & {"src", "onclick", "onload", "style"} == set()
    assert {one["href"][0] for one in page.all("a")} == {"#"}
    assert "url(" not in page.text
    (policy,) = (one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")


def test_an_error_is_shown_with_its_place_and_escaped(jobs, tmp_path):
    page = report(jobs / "second", "-o", tmp_path / "page.html")
    assert "failed" in page.content
    assert re.search(r"rank 1 on .* failed first: ValueError", page.content)
    assert re.search(r"^rank-1.log:\d+$", page.content, re.MULTILINE)
    assert "train.py:12" in page.content
    assert page.all("img") == []
    assert len(page.all("script")) == 1
    assert not {"\u202e", "\x00"} & set(page.text)


def test_two_runs_are_drawn_over_each_other(jobs, tmp_path):
    page = report(jobs / "first", jobs / "second", "-o", tmp_path / "page.html")
    assert {one["class"].split()[0] for one in page.all("g")} == {"run0", "run1"}
    assert "equal in every printed digit at 4 common iterations" in page.content
    assert "Settings: 2 differ, 1 are equal" in page.content  # lr, and the command that states it
    assert re.search(r"\nlr\n+0\.001\n+0\.002\n", page.content)


@pytest.mark.parametrize("values", [(4.7e-08, 2.3e-07), (0.0001, 0.00013)])
def test_the_labels_of_an_axis_fit_beside_it(values):
    drawn = str(chart(LOSS, [Line(Curve(LOSS, x=[1.0, 2.0], y=list(values)))], "x"))
    labels = re.findall(r'<text x="(\d+)" y="[\d.]+" text-anchor="end">([^<]*)</text>', drawn)
    assert len(labels) >= 3
    assert all(len(label) * 6.5 <= int(end) for end, label in labels), labels  # a digit of 11.5 px is 6.4 px wide


def test_settings_that_differ_alike_share_a_row():
    values = {"a": "1", "b": "1", "c": "2"}
    first, second = Run("a", settings=values), Run("b", settings={**dict.fromkeys(values, "3"), "c": "4"})
    drawn = str(sections.differences(compare(first, second), ["A", "B"]))
    assert re.findall(r"<td[^>]*>(.*?)</td>", drawn) == ["a, b", "1", "3", "c", "2", "4"]


def test_the_log_of_a_job_that_ran_elsewhere(jobs, tmp_path, capsys):
    shutil.copy(jobs / "first" / "rank-0.log", tmp_path / "gpu.log")
    assert main(["report", str(tmp_path / "gpu.log")]) == 0
    assert capsys.readouterr().out == f"report: {tmp_path}/gpu.log.report.html\n"
    assert 'id="loss"' in (tmp_path / "gpu.log.report.html").read_text()
    assert main(["report", str(jobs / "first"), str(tmp_path / "gpu.log"), "-o", str(tmp_path / "x.html")]) == 0


def test_patches_that_need_attention_come_first_with_why(tmp_path):
    common = {"plugin": "deepspeed", "target": "deepspeed:x", "requires": "", "found": "", "reversible": True}
    common |= {"evidence": [], "why": "its extension waits <forever>", "without": "crash", "until": ""}
    outcomes = [
        {**common, "patch": "one", "state": "applied", "reason": ""},
        {**common, "patch": "two", "state": "drifted", "reason": "x is gone"},
        {**common, "patch": "three", "state": "skipped", "reason": "for an NPU"},
    ]
    status = {"rank": 0, "host": "h", "device": "npu", "device_reason": "found", "outcomes": outcomes, "problems": []}
    status["facts"] = {"start": {"torch": "2.13.0", "kernel attention of q [2]": "npu"}}
    (tmp_path / "adapt-status.0.json").write_text(json.dumps(status))
    content = report(tmp_path, "-o", tmp_path / "page.html").content
    assert "3 patches: 1 applied, 1 NEED ATTENTION, 1 for another device" in content
    assert (
        content.index("deepspeed.two") < content.index("deepspeed.one") < content.index("for an NPU: deepspeed.three")
    )
    assert "crash without it: its extension waits <forever>" in content
    assert "This run is evidence from an NPU" in content
    assert re.search(r"\nattention\n+npu\n+1\n", content)


def test_a_job_without_ranks_has_patches_versions_and_times(tmp_path):
    outcome = {"patch": "one", "plugin": "toy", "target": "toytarget:x", "state": "applied", "reason": ""}
    outcome |= {"requires": "", "found": "", "reversible": True, "evidence": []}
    status = {"rank": None, "host": "h", "device": "npu", "device_reason": "found", "outcomes": [outcome]}
    for pid, torch, since in ((5, "2.12.0", 30.0), (9, "2.13.0", 10.0)):
        data = {**status, "since": since, "until": since + 7, "facts": {"start": {"torch": torch}}}
        (tmp_path / f"adapt-status.p{pid}.json").write_text(json.dumps(data))
    run = RunReader(tmp_path).read()
    assert [one.patch for one in run.outcomes] == ["one"]
    assert (run.versions, run.tier, run.hosts, run.seconds) == ({"torch": "2.13.0"}, "hardware", {}, 27.0)


def row(iteration, **changed):
    times = {"least": 0.001, "median": 0.002, "most": 0.004, "slowest": 1}
    values = dict.fromkeys(("learning_rate", "grad_norm", "loss_scale", "samples_per_s", "tokens_per_s", "mfu"), 0.5)
    values |= {
        "iteration": iteration,
        "lm_loss": 2.0,
        "skipped": 0,
        "nan": 0,
        "model_tflops": 9.0,
        "ranks": {"mlp": times},
    }
    return json.dumps({**values, **changed}) + "\n"


def curves(run):
    return {(one.metric.name, one.variant): one for one in run.curves}


def test_a_native_run_is_read_from_its_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(row(1) + row(2, lm_loss=None, skipped=1) + row(3, lm_loss=None, nan=1, grad_norm=None) + '{"iter')
    (tmp_path / "evaluations.jsonl").write_text('{"iteration": 3, "part": "valid", "lm_loss": 2.5}\n')
    (tmp_path / "config.yaml").write_text("parallel: {tensor: 2, pipeline: 2, data: 1}\nschedule: {lr: 0.1}\n")
    reader = RunReader(tmp_path)
    run = reader.read()
    loss = curves(run)["loss", ""]
    assert (loss.x, loss.finite, loss.spoiled) == ([1, 3], [(1, 2.0)], [3])
    assert curves(run)["grad_norm", ""].spoiled == [3]
    assert curves(run)["mfu", ""].y[0] == 50.0
    assert curves(run)["validation", ""].finite == [(3, 2.5)]
    assert curves(run)["mlp_stragglers", "slowest rank"].y[0] == 4.0
    assert run.layout is not None
    assert str(run.layout) == "data 1 x pipeline 2 x tensor 2"
    assert [run.layout.rank(stage, 0, tensor) for stage in (0, 1) for tensor in (0, 1)] == [0, 1, 2, 3]
    assert run.settings["schedule.lr"] == "0.1"
    with path.open("a") as file:
        file.write('ation": cut\n' + row(4))
    assert curves(reader.read())["loss", ""].x == [1, 3, 4]
    # A resumed run replaces the file, without the rows past its checkpoint.
    aside = tmp_path / "aside"
    aside.write_text("".join(map(row, range(1, 9))))
    aside.replace(path)
    assert curves(reader.read())["loss", ""].x == list(range(1, 9))


def test_a_large_run_stays_small(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(row(n, lm_loss=9 / n) for n in range(1, 3001)))
        settings = "".join(f"option_{number}: {name}{number}\n" for number in range(800))
        (tmp_path / name / "config.yaml").write_text(settings)
    report(tmp_path / "one", tmp_path / "two", "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 400e3


def test_a_spike_survives_thinning():
    curve = Curve(LOSS, x=list(map(float, range(1000))), y=[1.0] * 500 + [50.0] + [1.0] * 499)
    buckets = thinned(curve, 100)
    assert (len(buckets), max(one.most for one in buckets), buckets[-1].x) == (100, 50.0, 999.0)


def test_a_value_after_a_restart_replaces_the_old_ones():
    curve = Curve(LOSS)
    for x, y in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0)):
        curve.add(x, y)
    assert (curve.x, curve.y) == ([1, 2], [1.0, 20.0])


def test_the_state_of_a_finished_job(jobs):
    run = RunReader(jobs / "first").read()
    assert (run.state, run.outcome, run.tier, len(run.hosts)) == (FINISHED, "exit code 0", "cpu", 2)
    assert "train.py 0.001" in run.settings["command"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["missing"], "missing: not found, expected a run directory or a log"),
        (["."], ".: has no job.json, rank-*.log, adapt-status.*.json or metrics.jsonl, expected a run directory"),
        (["a", "b", "c"], "3 runs: expected one, or two to compare"),
        (["log", "-o", "."], "--output .: is a folder, expected a file"),
        (["log", "-o", "no/page.html"], "no/page.html: No such file or directory, expected to write the report"),
    ],
)
def test_what_cannot_be_reported(argv, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").write_text("")
    assert main(["report", *argv]) == 2
    printed = capsys.readouterr().err
    assert text in printed
    assert printed.count("\n") == 1


def test_a_log_without_metrics_says_so(tmp_path):
    (tmp_path / "log").write_text("hello\n")
    page = report(tmp_path / "log", "-o", tmp_path / "page.html")
    assert "no line in a known format has a step and its loss" in page.content


HOSTILE_ROWS = [
    {"iteration": 10**400},
    {"iteration": "x"},
    {"iteration": float("inf")},
    {"iteration": 2, "lm_loss": 1e308, "grad_norm": -1e308},
    {"iteration": 3, "lm_loss": "<b>", "ranks": [1]},
    {"iteration": 4, "lm_loss": 10**400},
    {"iteration": 5, "mfu": {}, "ranks": {"mlp": {"most": "x"}}},
]
HOSTILE_LINES = [
    "step " + "9" * 400 + " loss 1",
    "step 1 loss 1e999, lr -1e308",
    "{'loss': 1, 'epoch': 'nan'}",
    '{"step": ' + "9" * 400 + ', "loss": ' + "9" * 400 + "}",
    "  <script>alert(1)</script> ........ <img src=x>",
]


def test_a_run_directory_with_hostile_content_gives_a_page(tmp_path):
    rows = "".join(row(**{"iteration": 1, **one}) for one in HOSTILE_ROWS)
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "metrics.jsonl").write_text(rows + row(6))
    log = "\n".join(
        ["------- arguments -------", *HOSTILE_LINES[-1:], "------- end of arguments -------", *HOSTILE_LINES]
    )
    (tmp_path / "rank-0.log").write_bytes(log.encode() + b"\n\xff\xfe\x00 iter 2: loss 3.0\n")
    for folder, names in (("kernel-choices", "ab"), ("failures", "ab")):
        (tmp_path / folder).mkdir()
        for name in names:
            data = {"kernel": ["x"], "backend": "<i>", "rank": "<b>", "time_ns": name, "error": "\ud800<script>"}
            (tmp_path / folder / f"{name}.json").write_text(json.dumps(data))
    (tmp_path / "rehearsal.json").write_text('{"ranks": {"0": 1}}')
    (tmp_path / "config.yaml").write_text("a: &a [*a]\n")
    for folder in (tmp_path, tmp_path / "native"):
        page = report(folder, "-o", tmp_path / "page.html")
        assert len(page.all("script")) == 1
        assert not page.all("img")
        assert page.all("figure")
