"""The launcher of a multi-host job: it starts an agent on each host, sends the orders, and ends all hosts together."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.errors import LaunchError, one_line
from ascend_adapt.launch.one_host import signals
from ascend_adapt.launch.one_host.console import Console, say
from ascend_adapt.launch.one_host.guardian import ends_by
from ascend_adapt.launch.one_host.processes import Identity, code_name
from ascend_adapt.launch.one_host.restarts import run_with_restarts
from ascend_adapt.launch.one_host.run_directory import Job, RunDirectory, write_whole
from ascend_adapt.launch.one_host.signals import NOT_WAITED_FOR, Requests
from ascend_adapt.launch.one_host.termination import GRACE_S
from ascend_adapt.launch.placement.plan import Plan
from ascend_adapt.launch.transport.connection import Connection
from ascend_adapt.launch.transport.protocol import BEAT_S, LOST_S, Kind, json_object
from ascend_adapt.launch.transport.transport import Transport
from ascend_adapt.runtime import agreement

_LOOK_S = 0.2
_BEGIN_S = 60.0
_OTHERS_S = 2.0
# Time after the grace period in which a guardian must end all of its processes, including network delays.
_END_S = GRACE_S + 5
_REST_S = 2.0
# Descriptors per host. pdsh: a socket pair, a copy and the connection; ssh: three. A common soft limit is 1024.
_DESCRIPTORS, _DESCRIPTORS_A_HOST = 256, 5


@dataclass(frozen=True)
class HostsAssignment:
    """The assignment of processes to all hosts, and the transport that reaches the hosts.

    ``plan_for`` is given if the hosts determine the kind of device, which must be the same on all of them.
    """

    plan: Plan
    run_dir: RunDirectory
    device: str
    forwarded: Mapping[str, str]
    transport: Transport
    chooses_port: bool
    plan_for: Callable[[str], Plan] | None = None
    max_restarts: int = 0
    strict: bool = False
    grace: float = GRACE_S
    oversubscribe: bool = False


class HostsLauncher:
    """The agents of one job."""

    def __init__(self, assignment: HostsAssignment) -> None:
        self._assignment, self._plan = assignment, assignment.plan
        self._parts = assignment.plan.by_host()
        self._device = assignment.device
        self._job = Job.here(Identity.own(), Identity.own())
        self._name = f"{self._job.boot[:8]}-{self._job.launcher.pid}-{self._job.launcher.start}"
        self._attempts = 0
        self._links: list[Connection] = []
        self._stop: int | None = None
        self._requests = Requests()
        self._ending_since: float | None = None
        self._is_over = threading.Event()
        self._facts: dict[int, dict[str, dict[str, str]]] = {}
        self._differ, self._status_failed = "", False
        self._unreached: list[str] = []
        self._failure: list[str] = []
        self._signals: int | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run the job until it ends, and return its exit code."""
        self._signals = self._listen()
        allow_descriptors(len(self._parts))
        threading.Thread(target=self._beat, name="beats", daemon=True).start()
        self._write_job()
        code, restarts = run_with_restarts(
            self._attempt, at_most=self._assignment.max_restarts, is_stopped=lambda: self._stop is not None
        )
        self._is_over.set()
        self._write_job(exit_code=code, restarts=restarts, unreached=self._unreached, failure=self._failure)
        return code

    def _write_job(self, **more: Any) -> None:
        command = list(self._plan.ranks[0].argv)
        of_job = {"grace": self._assignment.grace, "hosts": list(self._parts), "command": command}
        self._job.write_if_possible(self._assignment.run_dir, **of_job, **more)

    def _attempt(self, attempt: int) -> int:
        console = Console(whole_lines=True, signals=self._signals)
        self._ending_since, self._differ, self._facts = None, "", {}
        self._links, self._attempts = [], attempt
        try:
            self._links = self._assignment.transport.links(list(self._parts))
            for link in self._links:
                self._selector.register(link.source, selectors.EVENT_READ, link)
            self._meet(console)
            self._order(attempt)
            while not all(link.is_over for link in self._links):
                self._wait(console)
                self._judge()
            self._read_rest(console)
            console.close()
            return self._outcome()
        finally:
            for link in self._links:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(link.source)
                link.close()
            self._assignment.transport.close()

    def _meet(self, console: Console) -> None:
        """Wait for every host's hello message, and compare the hosts' facts.

        Raises:
            LaunchError: hosts cannot be reached, or differ.
        """
        deadline, is_shortened = time.monotonic() + _BEGIN_S, False
        while (missing := [link for link in self._links if link.hello is None]) and self._stop is None:
            lost = [link for link in missing if link.lost]
            if lost and not is_shortened:
                # Other hosts often fail for the same reason, and are named as well.
                deadline, is_shortened = min(deadline, time.monotonic() + _OTHERS_S), True
            if len(lost) == len(missing) or time.monotonic() > deadline:
                transport = self._assignment.transport
                raise LaunchError("; ".join(transport.why_not(link, _BEGIN_S) for link in lost or missing))
            self._wait(console)
        if self._stop is None:
            self._decide_device()
            compare(self._links, self._parts, self._device)

    def _decide_device(self) -> None:
        """If the user chose no device, make the plan for the kind of device that the hosts have.

        Raises:
            LaunchError: the hosts have different kinds of device.
        """
        if self._assignment.plan_for is None:
            return
        found = {link.name: str((link.hello or {})["device"]) for link in self._links}
        first, *_ = kinds = sorted(set(found.values()))
        if len(kinds) > 1:
            by_kind = ", ".join(f"{kind} on {' '.join(n for n, k in found.items() if k == kind)}" for kind in kinds)
            raise LaunchError(f"device: {by_kind}, expected one kind on all hosts — pass --device")
        if first != self._device:
            say(f"device {first}: found on the hosts of the job; this host has {self._device}")
            self._device = first
            self._plan = self._assignment.plan_for(first)
            self._parts = self._plan.by_host()

    def _order(self, attempt: int) -> None:
        """Send an order to every host."""
        if self._stop is not None:
            for link in self._links:
                link.lost = link.lost or "not started"
            return
        first = self._links[0].hello
        if self._assignment.chooses_port and first is not None:
            # The agent reserved this port before it reported it.
            self._plan = self._plan.at_port(first["port"])
            self._parts = self._plan.by_host()
        for index, link in enumerate(self._links):
            peer = self._links[0 if index else min(1, len(self._links) - 1)].name
            link.order(
                {
                    "folder": os.getcwd(),
                    "run_dir": str(self._assignment.run_dir.path),
                    "job": {**asdict(self._job), "hosts": list(self._parts)},
                    "name": self._name,
                    "attempt": attempt,
                    "forwarded": dict(self._assignment.forwarded),
                    "device": self._device,
                    "towards": peer,
                    "strict": self._assignment.strict,
                    "grace": self._assignment.grace,
                    "oversubscribe": self._assignment.oversubscribe,
                    "world_size": self._plan.world_size,
                    "master_addr": self._plan.master_addr,
                    "master_port": self._plan.master_port,
                    "ranks": [rank._asdict() for rank in self._parts[link.address].ranks],
                }
            )

    def _wait(self, console: Console) -> None:
        """Read from all hosts; treat hosts that are silent for too long as lost."""
        before = time.monotonic()
        for key, _ in self._selector.select(_LOOK_S):
            if key.data is None:
                for number in os.read(key.fd, 64):
                    self._asked(number, console)
                continue
            link: Connection = key.data
            for status in link.read(console):
                self._keep_status(status)
            if link.is_closed:
                self._selector.unregister(link.source)
        now = time.monotonic()
        if now - before > LOST_S / 2:
            # A blocked console (e.g. after Ctrl-S) kept the launcher from reading, so the hosts were not silent.
            for link in self._links:
                link.heard = now
        for link in self._links:
            link.flush()
            # An agent may have to create folders on a slow disk before it starts the ranks.
            patience_s = LOST_S if link.has_begun else _BEGIN_S
            if link.hello is not None and not link.is_over and now - link.heard > patience_s:
                self._selector.unregister(link.source)
                link.is_closed = True
                link.lost = f"no response for {patience_s:.0f} s"

    def _read_rest(self, console: Console) -> None:
        """Print output that is still in transit, until each agent closes its connection."""
        deadline = time.monotonic() + _REST_S
        while time.monotonic() < deadline and not all(link.is_closed for link in self._links):
            self._wait(console)

    def _judge(self) -> None:
        """End the job on all hosts when one host has failed."""
        if (self._differ or any(link.has_failed for link in self._links)) and self._ending_since is None:
            self._end(NOT_WAITED_FOR)
        patience_s = self._grace + _END_S
        if self._ending_since is not None and time.monotonic() - self._ending_since > patience_s:
            for link in self._links:
                if not link.is_over:
                    link.lost = f"not ended after {patience_s:.0f} s"

    def _end(self, number: int) -> None:
        if self._ending_since is None:
            self._ending_since = time.monotonic()
        for link in self._links:
            if not link.is_over:
                link.signal(number)

    def _outcome(self) -> int:
        """Print the first failure, and return the exit code."""
        self._failure = []
        for link in self._links:
            for line in (link.ended or {}).get("unreached", ()):
                self._unreached.append(f"{link.name}: {line}")
        if self._differ:
            self._fail(f"{self._differ} — give all ranks the same packages and settings")
            return 1
        refused = [link for link in self._links if (link.ended or {}).get("error")]
        if refused:
            for link in refused:
                self._fail(f"host {link.name}: {(link.ended or {})['error']}")
            return 1
        if self._stop is not None:
            return 128 + self._stop
        failures = [failure for link in self._links if (failure := link.failure()) is not None]
        lost = [link for link in self._links if link.lost and link.ended is None]
        for link in lost:
            self._fail(f"host {link.name}: lost, {link.lost} — check that host, and the network to it")
        if failures:
            first = min(failures, key=lambda one: one.at.monotonic_ns)
            for line in first.report(self._assignment.run_dir):
                self._fail(line)
            return first.code
        if lost:
            return 1
        wrong = [link for link in self._links if (link.ended or {})["code"]]
        if not wrong:
            return 0
        # No rank failed on this host, so its guardian was killed. Later exit codes are due to the launcher's signal.
        first_ended = min(wrong, key=lambda link: link.ended_at)
        code = int((first_ended.ended or {})["code"])
        self._fail(f"host {first_ended.name}: ended with {code_name(code)}")
        return code

    def _fail(self, line: str) -> None:
        """Print one line about the failure, and keep the line for the job's file."""
        say(line)
        self._failure.append(line)

    def _keep_status(self, status: Mapping[str, Any]) -> None:
        """Write a rank's status file for `ascend-adapt status`, and compare this rank with the others."""
        try:
            data = json_object(status["text"])
            job, rank, facts = data["job"], int(status["rank"]), data["facts"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if not self._status_failed:
                say(f"a rank's status cannot be read ({one_line(error)}); the job continues without it")
            self._status_failed = True
            return
        if job != f"{self._name}.{self._attempts}":
            return  # The status file is from an earlier attempt.
        path = self._assignment.run_dir.rank_status(rank)
        try:
            if not path.exists() or regular_files.read_text(path) != status["text"]:
                write_whole(path, data)
        except OSError as error:
            if not self._status_failed:
                say(f"{path}: {error.strerror}; the job continues, `ascend-adapt status` will miss ranks — free space")
            self._status_failed = True
        self._facts[rank] = facts
        differences = agreement.differences(self._facts)
        if differences and not self._differ:
            self._differ = str(differences[0])

    def _listen(self) -> int:
        """Handle signals from now on; return a descriptor that becomes readable when a signal arrives."""
        reader = signals.listen([signal.SIGTSTP])
        self._selector.register(reader, selectors.EVENT_READ, None)
        return reader

    def _asked(self, number: int, console: Console) -> None:
        if number == signal.SIGTSTP:
            self._pause()
        elif number in signals.PASSED and self._requests.is_new(number):
            for link in self._links:
                if link.has_begun and not link.is_over:
                    link.signal(number)
        elif number in signals.END:
            console.wait_at_most(_REST_S)  # The thread that writes also reads from all hosts.
            self._end(number)
            if self._stop is None:
                self._stop = number
                say(ends_by(number, self._grace))

    @property
    def _grace(self) -> float:
        return self._assignment.grace if self._stop in signals.TIME_TO_SAVE else GRACE_S

    def _pause(self) -> None:
        """Suspend this launcher at Ctrl-Z; the ranks continue."""
        for link in self._links:
            link.say(Kind.PAUSE)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_S):
            for link in self._links:
                if link.has_begun:
                    link.say(Kind.ALIVE)


def compare(links: Sequence[Connection], parts: Mapping[str, Plan], device: str) -> None:
    """Compare the facts in the hello messages of all hosts.

    Raises:
        LaunchError: versions differ, two names refer to one host, or a host has fewer devices than its slots need.
    """
    reported = {link.name: dict((link.hello or {})["versions"]) for link in links}
    first = links[0].name
    for name, versions in reported.items():
        for what in sorted(versions.keys() | reported[first].keys()):
            ours, theirs = reported[first].get(what, "none"), versions.get(what, "none")
            if ours != theirs:
                raise LaunchError(f"{what}: {ours} on {first}, {theirs} on {name} — install the same on all hosts")
    seen: dict[tuple[str, ...], str] = {}
    for link in links:
        hello = link.hello or {}
        other = seen.setdefault(tuple(hello["machine"]), link.name)
        if other != link.name and device != "cpu":
            raise LaunchError(
                f"hosts {other} and {link.name}: are the same machine, expected one line for each machine — remove one"
            )
        found, needed = hello["devices"].get(device, 0), len(parts[link.address].ranks)
        if device in hello["devices"] and needed > found:
            raise LaunchError(f"host {link.name}: has {found} {device} devices, its slots need {needed} — lower them")
        ahead_s = (hello["time_ns"] - time.time_ns()) / 1e9
        if abs(ahead_s) > _BEGIN_S:
            say(f"host {link.name}: its clock is {ahead_s:+.0f} s off, and so are the times in its logs")
        for job in hello["jobs"] if device != "cpu" else ():
            say(f"host {link.name}: another job is running there, {described(job)}")


def allow_descriptors(hosts: int) -> None:
    """Raise the soft limit of open descriptors for this number of hosts, up to the hard limit."""
    needed = _DESCRIPTORS + _DESCRIPTORS_A_HOST * hosts
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def described(job: Mapping[str, Any]) -> str:
    """Describe another job that an agent found running on its host."""
    return f"pids {', '.join(map(str, job['pids']))}, run directory {job['run_dir']}"


def run(assignment: HostsAssignment) -> int:
    """Run a job on several hosts until it ends, and return its exit code."""
    sys.stdout.flush()
    return HostsLauncher(assignment).run()
