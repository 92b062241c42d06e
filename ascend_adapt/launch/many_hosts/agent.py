"""The agent on each host of a multi-host job: it receives an order from the launcher and starts a guardian.

The agent and the launcher communicate over two descriptors (under ssh, the agent's standard input and output). The
agent ends its part of the job when this connection closes or is silent for too long. The connection also carries the
output of the ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ascend_adapt import probe, regular_files
from ascend_adapt.errors import AdaptError, LaunchError, one_line
from ascend_adapt.launch import cores
from ascend_adapt.launch.one_host import signals
from ascend_adapt.launch.one_host.guardian import Assignment, Part
from ascend_adapt.launch.one_host.processes import Identity
from ascend_adapt.launch.one_host.run_directory import RunDirectory
from ascend_adapt.launch.one_host.runner import GuardedRun
from ascend_adapt.launch.one_host.signals import NOT_WAITED_FOR, Source
from ascend_adapt.launch.one_host.termination import GRACE_S
from ascend_adapt.launch.placement import environment
from ascend_adapt.launch.placement.plan import Plan, RankCommand
from ascend_adapt.launch.placement.ports import Ports, check_free
from ascend_adapt.launch.transport.protocol import (
    BEAT_S,
    LOST_S,
    FrameDecoder,
    FrameSender,
    Kind,
    frame,
    json_frame,
    json_object,
)
from ascend_adapt.whole_numbers import whole_number

# Packages whose versions must be the same on all hosts of a job.
COMPARED = ("torch", "torch_npu", "deepspeed", "transformers", "megatron-core")
_AT_ONCE = 1 << 16
_LAST_WORDS_S = 5.0
# Before it sends the first order, the launcher waits for all hosts, which may take long.
_ORDER_WAIT_S = 300.0
# Time in which a guardian must end all of its processes.
_END_S = 2 * GRACE_S + 5


def main(source: int = 0, sink: int | None = 1, finish: Callable[[], None] | None = None) -> None:
    """Serve one launcher until one job ends; never returns.

    ``sink`` is None if ``source`` is a socket; ``finish`` is called after the last frame.
    """
    signals.restore_defaults()
    signals.outlive_passed()
    # Only frames may enter the connection, so prints are redirected to standard error.
    source, sink = os.dup(source), os.dup(source if sink is None else sink)
    # A descriptor that is inherited as non-blocking would lose the last frames.
    os.set_blocking(sink, True)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    code = 1
    try:
        with Ports() as ports:
            code = Agent(source, sink, ports).serve()
    except AdaptError as error:
        print(f"ascend-run: {error}", file=sys.stderr)
    finally:
        if finish is not None:
            finish()
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


class Agent:
    """The agent's end of the connection, for one order."""

    def __init__(self, source: int, sink: int, ports: Ports) -> None:
        self._source, self._ports = source, ports
        self._sender = FrameSender(sink, marked=True)
        self._decoder = FrameDecoder(marked=False)
        self._frames: list[tuple[Kind, bytes]] = []
        self._sent: dict[int, int] = {}
        self._is_lost = False

    def serve(self) -> int:
        """Execute one order; return this process's exit code."""
        self._sender.send(json_frame(Kind.HELLO, hello(self._ports.rendezvous)))
        try:
            order = self._order()
        except (ValueError, RecursionError) as error:
            self._sender.send(
                json_frame(Kind.ENDED, {"error": f"the launcher's order cannot be read: {one_line(error)}"})
            )
            return 1
        if order is None:
            return 1
        ordered_ns = time.monotonic_ns()
        if "look" in order:
            self._sender.send(json_frame(Kind.ENDED, seen(Path(order["look"]))))
            return 0
        try:
            run, pipes, report = self._begin(order)
        except (AdaptError, OSError) as error:
            self._sender.send(json_frame(Kind.ENDED, {"error": str(error)}))
            return 1
        self._sender.send(json_frame(Kind.BEGAN, {"ordered_ns": ordered_ns}))
        copying = [threading.Thread(target=self._copy, args=pipe, daemon=True) for pipe in pipes]
        run_dir, ranks = RunDirectory(Path(order["run_dir"])), [rank["rank"] for rank in order["ranks"]]
        for thread in (
            *copying,
            threading.Thread(target=self._listen, args=(run,), daemon=True),
            threading.Thread(target=self._beat, args=(run_dir, ranks), daemon=True),
        ):
            thread.start()
        code = run.wait()
        if self._is_lost:
            return 1  # Nobody reads the connection any more, so a write would block.
        for thread in copying:
            thread.join(_LAST_WORDS_S)
        self._send_status(run_dir, ranks)
        reported = os.read(report, _AT_ONCE)
        self._sender.send(json_frame(Kind.ENDED, {"code": code, **(json.loads(reported) if reported else {})}))
        return 0

    def _order(self) -> dict[str, Any] | None:
        """Return the launcher's order, or None if the launcher is gone or sends no order.

        Raises:
            ValueError, RecursionError: the order is not a JSON object, or is nested too deeply.
        """
        while not self._frames:
            if not select.select([self._source], [], [], _ORDER_WAIT_S)[0]:
                return None  # Without a timeout, an agent whose launcher is cut off would wait forever.
            data = os.read(self._source, _AT_ONCE)
            if not data:
                return None
            self._frames += self._decoder.feed(data)
        kind, payload = self._frames.pop(0)
        if kind is not Kind.ORDER:
            return None
        return json_object(payload)

    def _begin(self, order: Mapping[str, Any]) -> tuple[GuardedRun, list[tuple[Kind, int]], int]:
        """Start the guardian; return it, the output pipes of the ranks, and the descriptor of the guardian's report."""
        try:
            os.chdir(order["folder"])
        except OSError as error:
            raise LaunchError(
                f"{order['folder']}: {error.strerror}, expected the launcher's folder here too — create or share it"
            ) from error
        os.environ.update(order["forwarded"])
        run_dir = RunDirectory(Path(order["run_dir"]))
        run_dir.join(order["job"])
        ranks = tuple(map(RankCommand.from_json, order["ranks"]))
        self._check(order, ranks)
        own = environment.of_host(
            order["device"],
            order["towards"],
            self._ports.hccl_base,
            len(ranks),
            {**os.environ, **ranks[0].env},
        )
        ranks = tuple(rank._replace(env={**own, **rank.env}) for rank in ranks)
        plan = Plan(order["world_size"], order["master_addr"], order["master_port"], ranks)
        (out, out_end), (err, err_end), (report, report_end) = os.pipe(), os.pipe(), os.pipe()
        os.set_inheritable(report_end, False)
        part = Part(order["name"], order["attempt"], report_end)
        assignment = Assignment(plan, run_dir, 0, order["strict"], grace=order["grace"], part=part)
        run = GuardedRun(assignment, {1: out_end, 2: err_end})
        for descriptor in (out_end, err_end, report_end):
            os.close(descriptor)
        return run, [(Kind.STDOUT, out), (Kind.STDERR, err)], report

    def _check(self, order: Mapping[str, Any], ranks: tuple[RankCommand, ...]) -> None:
        """Preflight check of this host: raise the error with which a rank would fail later."""
        if not order["oversubscribe"]:
            cores.check(len(ranks), order["device"])
        home = os.environ.get("ASCEND_HOME_PATH", "")
        if order["device"] == "npu" and not os.path.isdir(home):
            raise LaunchError(
                f"ASCEND_HOME_PATH={home!r}: is not a folder here, but torch_npu loads CANN from it — "
                "source CANN's set_env.sh where ascend-run is started"
            )
        if "0" in (rank.env["LOCAL_RANK"] for rank in ranks if rank.rank == 0):
            port = order["master_port"]
            if port != self._ports.rendezvous:
                check_free(port)

    def _copy(self, kind: Kind, pipe: int) -> None:
        """Forward the output of the ranks; keep reading even if the launcher is gone, so that ranks do not block."""
        while data := os.read(pipe, _AT_ONCE):
            self._sender.send(frame(kind, data))

    def _listen(self, run: GuardedRun) -> None:
        """Forward the launcher's signals; end the job when the connection closes."""
        patience: float | None = LOST_S
        while select.select([self._source], [], [], patience)[0]:
            try:
                data = os.read(self._source, _AT_ONCE)
            except OSError:
                break
            if not data:
                break
            for kind, payload in [*self._frames, *self._decoder.feed(data)]:
                patience = None if kind is Kind.PAUSE else LOST_S
                if kind is Kind.SIGNAL:
                    run.send(payload[0], Source.LAUNCHER)
            self._frames.clear()
        self._is_lost = True
        run.send(NOT_WAITED_FOR, Source.LAUNCHER)
        # The main thread may be blocked in a write that nobody reads; only an exit ends the write.
        time.sleep(_END_S)
        os._exit(1)

    def _beat(self, run_dir: RunDirectory, ranks: list[int]) -> None:
        while True:
            self._send_status(run_dir, ranks)
            if not self._sender.send(frame(Kind.ALIVE)):
                return  # _listen also detects the end of the connection.
            time.sleep(BEAT_S)

    def _send_status(self, run_dir: RunDirectory, ranks: list[int]) -> None:
        """Send the launcher every status file that a rank has changed since the last call."""
        for rank in ranks:
            path = run_dir.rank_status(rank)
            try:
                written = path.stat().st_mtime_ns
                if self._sent.get(rank) != written:
                    self._sent[rank] = written
                    self._sender.send(json_frame(Kind.STATUS, {"rank": rank, "text": regular_files.read_text(path)}))
            except OSError:
                continue  # The rank has not written the file yet.


def hello(port: int) -> dict[str, Any]:
    """Return this host's facts, which the launcher compares before it sends an order; ``port`` is reserved here."""
    from ascend_adapt import __version__

    device, _ = probe.detect_device(os.environ)
    known = {name: version for name in COMPARED if (version := probe.distribution_version(name)) is not None}
    return {
        "versions": {"ascend_adapt": __version__, "python": platform.python_version(), **known},
        "device": device,
        "devices": {kind: len(probe.device_nodes(kind)) for kind in probe.DEVICE_NODES},
        "port": port,
        "time_ns": time.time_ns(),
        "jobs": running_jobs(),
        "machine": machine(),
    }


def machine() -> list[str]:
    """Return an identity of this machine, equal for two agents on one host or in one container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, *(os.readlink(f"/proc/self/ns/{space}") for space in ("pid", "net"))]


def seen(mark: Path) -> dict[str, Any]:
    """Return whether this host sees the launcher's marker file, and whether the marker's folder exists here."""
    return {"sees_mark": mark.exists(), "has_folder": mark.parent.is_dir(), "time_s": time.time()}


def running_jobs() -> list[dict[str, Any]]:
    """Return the run directory and the rank pids of each ascend-run job that is running on this host."""
    found: dict[str, list[int]] = {}
    for entry in os.listdir("/proc"):
        pid = whole_number(entry)
        if pid is None:
            continue
        try:
            words = Path("/proc", entry, "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        environ = dict(word.partition(b"=")[::2] for word in words)
        claimed = environ.get(b"ASCEND_ADAPT_RANK_PID", b"").partition(b" ")[0] or entry.encode()
        identity = Identity.of(pid)
        if b"ASCEND_ADAPT_JOB" in environ and b"RANK" in environ and claimed == entry.encode() and identity:
            found.setdefault(os.fsdecode(environ.get(b"ASCEND_ADAPT_RUN_DIR", b"")), []).append(identity.pid)
    return [{"run_dir": run_dir, "pids": pids} for run_dir, pids in found.items()]
