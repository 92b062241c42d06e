"""Every job of every code base, on the CPU and on an emulated NPU: run where ASCEND_ADAPT_UPSTREAMS is set.

Absent means skipped, by name and with the reason. What CI judges of each patch all the same: tests/plugins.
"""

from __future__ import annotations

import json
import os
import pickle

import library_text
import numpy
import pytest
import upstream_job
from code_bases import CODE_BASES, VARIABLE, CodeBase, NotHere
from glm import jobs as glm
from upstream_job import Ended, Place, UpstreamJob

from ascend_adapt.testing.releases import Releases

ALL = [(name, job) for name in upstream_job.names() for job in upstream_job.jobs(name)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "job"), ALL, ids=[f"{name}:{job.name}" for name, job in ALL])
def test_a_job_is_the_same_on_an_emulated_npu(name: str, job: UpstreamJob, tmp_path, tmp_path_factory) -> None:
    if not os.environ.get(VARIABLE):
        pytest.skip(f"not checked: {name}:{job.name}: {VARIABLE} is not set")
    try:
        checkout = job.checkout(os.environ)
    except NotHere as error:
        pytest.skip(f"not checked: {name}:{job.name}: {error}")
    shared = tmp_path_factory.getbasetemp() / name
    shared.mkdir(exist_ok=True)
    losses = {}
    for device in [one for one in ("cpu", "npu-emulated") if one in job.devices]:
        ended = upstream_job.run(job, Place(tmp_path / device, shared, checkout or shared, device, "float32"))
        assert ended.problems == [], ended.output[-6000:]
        losses[device] = ended.losses
    first, *others = losses.values()
    assert [other for other in others if upstream_job.apart(first, other) > job.bound] == [], losses


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [((1.0, 2.0), (1.0, 2.2), 0.2 / 2.2), ((1.0,), (1.0, 2.0), float("inf")), ((), (), float("inf"))],
)
def test_how_far_losses_are_apart(one, other, far) -> None:
    assert upstream_job.apart(one, other) == pytest.approx(far)


def outcome(state: str, reason: str = "") -> dict[str, str]:
    return {"plugin": "p", "patch": state, "state": state, "reason": reason}


@pytest.mark.parametrize(
    ("code", "losses", "outcomes", "expected"),
    [
        (0, (1.0,), [outcome("applied"), outcome("skipped", "device cpu")], []),
        (3, (1.0,), [], ["exit code 3: ValueError: bad"]),
        (0, (), [], ["no loss was printed"]),
        (0, (1.0,), [outcome("lost", "reloaded")], ["p.lost lost: reloaded"]),
        (0, (1.0,), [outcome("skipped")], ["p.skipped skipped: "]),
    ],
)
def test_what_must_not_be_in_a_job(code, losses, outcomes, expected, tmp_path) -> None:
    ended = Ended(code, losses, "ValueError: bad\n", {"outcomes": outcomes, "problems": []}, tmp_path)
    assert ended.problems == expected


def test_tokens_of_glm_are_in_the_order_of_the_documents(tmp_path) -> None:
    place = Place(tmp_path, tmp_path, tmp_path, "cpu", "float32")
    corpus = glm.write_lazy_corpus(place)
    lengths = pickle.loads((tmp_path / "00.lazy/text.len.pkl").read_bytes())
    tokens = numpy.fromfile(tmp_path / "00.lazy/text", numpy.int32)
    tokenizer = library_text.tokenizer(tmp_path / ".pytorch_pretrained_bert")
    texts = [tokenizer.decode(list(part)) for part in numpy.split(tokens, numpy.cumsum(lengths)[:-1])]
    assert texts == [json.loads(line)["text"] for line in corpus.read_text().splitlines()]


def test_a_job_without_bf16_on_a_device_is_not_run_there() -> None:
    job = UpstreamJob("one", lambda place: (), float32_only=("cpu",))
    assert job.is_for("cpu", "float32")
    assert job.is_for("cuda", "bfloat16")
    assert not job.is_for("cpu", "bfloat16")


@pytest.mark.parametrize("kept", ["", "/packages"])
def test_what_is_on_a_jobs_path_hides_no_package_of_the_environment(kept, tmp_path) -> None:
    (tmp_path / "show.py").write_text("import os\nprint('loss: 1', os.environ['PYTHONPATH'].split(os.pathsep))\n")
    job = UpstreamJob("one", lambda place: ("show.py",), nproc=1, path=lambda place: "/its/own")
    place = Place(tmp_path, tmp_path, tmp_path, "cpu", "float32")
    ended = upstream_job.run(job, place, plain=True, environ={"PYTHONPATH": kept})
    assert str(["/its/own", *filter(None, [kept])]) in ended.output


TORCHRUN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
PEER = "[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:7590."


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        (["[rank1]: KeyError: 'step'", PEER, TORCHRUN], "[rank1]: KeyError: 'step'"),
        (["ascend-run: rank 0 on one failed first: q, k: are 2", "ascend-run: rehearsal: 3"], "q, k: are 2"),
        ([TORCHRUN], TORCHRUN),
        (["ERROR:megatron.core.utils:make failed", TORCHRUN], "ERROR:megatron.core.utils:make failed"),
        (["Making C++ helpers failed, exiting.", TORCHRUN], "Making C++ helpers failed, exiting."),
        (
            ["train.py: error: unrecognized", "ascend-run: rank 0 on one failed first: sys.exit(2)"],
            "train.py: error: unrecognized",
        ),
        (["one", "two"], "two"),
    ],
)
def test_the_cause_is_reported_and_not_its_echo(said, reported, tmp_path) -> None:
    assert Ended(1, (), "\n".join(said), {}, tmp_path).last_words == reported


def test_jobs_are_chosen_by_their_names_or_a_pattern() -> None:
    whole = [job.name for _, job in upstream_job.chosen(["gpt_neox"])]
    some = [job.name for _, job in upstream_job.chosen(["gpt_neox:v2.0-*", "gpt_neox:newest-one"])]
    assert some == [*(name for name in whole if name.startswith("v2.0-")), "newest-one"]
    with pytest.raises(upstream_job.NoSuchJob, match="gpt_neox:no-\\*: there is no such job"):
        upstream_job.chosen(["gpt_neox:no-*"])


def test_a_release_that_cannot_be_had_is_not_checked(monkeypatch, tmp_path) -> None:
    job = UpstreamJob("one", lambda place: (), release=("megatron-core", "0.19.2"))
    monkeypatch.setattr(upstream_job, "RELEASES", Releases(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "https://127.0.0.1:9/simple")
    with pytest.raises(NotHere, match="check the connection to the index"):
        job.checkout({})
    (tmp_path / "megatron-core-0.19.2").mkdir()
    assert job.checkout({}) == tmp_path / "megatron-core-0.19.2"


def test_an_interrupted_job_names_the_whole_one() -> None:
    names = {(name, job.name) for name, job in ALL}
    resumed = [(name, job.resumes) for name, job in ALL if job.resumes]
    assert len(resumed) >= 3
    assert set(resumed) <= names


@pytest.mark.parametrize("one", CODE_BASES, ids=lambda one: one.folder)
def test_a_code_base_that_is_not_here_says_how_to_get_it(one: CodeBase, tmp_path) -> None:
    for environ in ({}, {VARIABLE: str(tmp_path)}):
        with pytest.raises(NotHere, match=f"git clone {one.url}"):
            one.checkout(environ)


def test_a_checkout_must_be_as_published(tmp_path) -> None:
    import subprocess

    folder = tmp_path / "theirs"

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=one", "-c", "user.email=one@example.org"]
        return subprocess.run(
            ["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    folder.mkdir()
    git("init", "--quiet")
    (folder / "train.py").write_text("1\n")
    git("add", "train.py")
    git("commit", "--quiet", "--message", "one")
    environ = {VARIABLE: str(tmp_path)}
    one = CodeBase("theirs", "https://example.org/theirs", git("rev-parse", "--short", "HEAD"))
    assert one.checkout(environ) == folder
    (folder / "train.py").write_text("2\n")
    with pytest.raises(NotHere, match="is edited .train.py."):
        one.checkout(environ)
    with pytest.raises(NotHere, match="expected 123456789"):
        CodeBase("theirs", one.url, "123456789").checkout(environ)
