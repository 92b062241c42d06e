"""pdsh transport: one pdsh starts the agents on all other hosts; they connect back, because pdsh forwards no input."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from ascend_adapt.launch.one_host import processes
from ascend_adapt.launch.placement import network
from ascend_adapt.launch.transport import ssh_command, tls_callback
from ascend_adapt.launch.transport.connection import Connection
from ascend_adapt.launch.transport.ssh import SshTransport
from ascend_adapt.launch.transport.transport import Transport

_TOKEN_WAIT_S = 20.0
# A foreign client that connects must not stop the listener.
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED}
_PAUSE_S = 0.1


class PdshTransport(Transport):
    """Reaches all other hosts with one pdsh; the agent on this host is a child process."""

    programs = ("pdsh", "openssl")

    @classmethod
    def why_unusable(cls, addresses: Sequence[str]) -> str:
        """Return why pdsh cannot reach these hosts; for example, it reads the text before a colon as a module name."""
        if colon := [address for address in addresses if ":" in address]:
            return f"{colon[0]} contains a colon, pdsh accepts names and IPv4 addresses — use --launcher ssh"
        return super().why_unusable(addresses)

    def __init__(self, port: int | None) -> None:
        super().__init__(port)
        self._here = SshTransport(None)
        self._pdsh: subprocess.Popen[bytes] | None = None
        self._listener: socket.socket | None = None
        self._said: dict[str, list[str]] = {}
        self._own_words: list[str] = []
        self._tokens: dict[str, str] = {}
        self._waiting: dict[str, socket.socket] = {}
        self._names: tuple[str, ...] = ()
        self._changed = threading.Condition()

    def links(self, addresses: Sequence[str]) -> list[Connection]:
        """Start pdsh and the local agent; the other agents connect when they are ready."""
        context, fingerprint = tls_callback.server_context()
        self._listener = listener = socket.create_server(("", 0), backlog=len(addresses) + 16)
        self._said, self._own_words = {}, []
        links, others = [], []
        self._tokens, self._waiting = {}, {}
        for address, is_here in zip(addresses, network.for_each(network.is_here, addresses), strict=True):
            if is_here:
                links += self._here.links([address])
                continue
            ours, theirs = socket.socketpair()
            link = Connection(address, ours.fileno(), os.dup(ours.fileno()), None)
            ours.detach()
            links.append(link)
            others.append(address)
            self._waiting[link.name] = theirs
        self._names = tuple(self._waiting)
        towards = network.for_each(network.address_towards, self._names)
        ways = {address or socket.gethostname() for address in towards}
        arguments = f"{sorted(ways)!r}, {listener.getsockname()[1]}, {fingerprint!r}, main"
        self._start(
            others,
            ssh_command.program(f"{ssh_command.AGENT}; from {tls_callback.__name__} import call; call({arguments})"),
        )
        threading.Thread(target=self._serve, args=(listener, context), daemon=True).start()
        return links

    def _start(self, addresses: Sequence[str], program: Sequence[str]) -> None:
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={ssh_command.CONNECT_S}"]
        options += ["-p", str(self._port)] if self._port else []
        environ = dict(os.environ)
        # pdsh's variables choose its remote command; like DeepSpeed's launcher, use ssh.
        environ.setdefault("PDSH_RCMD_TYPE", "ssh")
        environ["PDSH_SSH_ARGS_APPEND"] = " ".join([environ.get("PDSH_SSH_ARGS_APPEND", ""), *options]).strip()
        # Each output line names its host, no host may wait until another ends (-f), and a signal must not prompt (-b).
        command = [
            *ssh_command.OUTLIVES_SIGNALS,
            "pdsh",
            "-b",
            "-f",
            str(len(addresses)),
            "-w",
            ",".join(addresses),
            shlex.join(program),
        ]
        self._pdsh = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        hearing = [
            threading.Thread(target=self._hear, args=(stream,), daemon=True)
            for stream in (self._pdsh.stdout, self._pdsh.stderr)
            if stream is not None
        ]
        for thread in hearing:
            thread.start()
        threading.Thread(target=self._give_up, args=(hearing, self._waiting), daemon=True).start()

    def _hear(self, stream: IO[bytes]) -> None:
        """Extract the tokens from pdsh's output, and print the rest."""
        with stream:
            for line in stream:
                self._take(line.decode(errors="replace").rstrip())

    def _take(self, text: str) -> None:
        label, _, said = text.removeprefix(f"pdsh@{socket.gethostname().partition('.')[0]}: ").partition(": ")
        name = named(label, self._names)
        with self._changed:
            if said.startswith(tls_callback.TOKEN_LABEL):
                self._tokens[said.removeprefix(tls_callback.TOKEN_LABEL)] = name
                self._changed.notify_all()
                return
            if name in self._names:
                self._said.setdefault(name, []).append(said)
            else:
                self._own_words.append(text)
            waiting = self._waiting.pop(name, None) if "exited with exit code" in said else None
        print(text, file=sys.stderr, flush=True)
        if waiting is not None:
            waiting.close()

    def _give_up(self, hearing: Sequence[threading.Thread], never_called: dict[str, socket.socket]) -> None:
        """Mark the hosts that have not called back when pdsh ends as lost; for example, pdsh may not have started."""
        for thread in hearing:
            thread.join()
        with self._changed:
            for waiting in never_called.values():
                waiting.close()
            never_called.clear()

    def _serve(self, listener: socket.socket, context: object) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    return  # The listener is closed.
                time.sleep(_PAUSE_S)
                continue
            threading.Thread(target=self._receive, args=(connection, context, listener), daemon=True).start()

    def _receive(self, connection: socket.socket, context: object, listener: socket.socket) -> None:
        """Match a caller with the host that printed the same token; the token may arrive after the call."""
        accepted = tls_callback.accept(connection, context)  # type: ignore[arg-type]
        if accepted is None:
            return
        tls, token = accepted
        with self._changed:
            self._changed.wait_for(lambda: token in self._tokens, _TOKEN_WAIT_S)
            waiting = self._waiting.pop(self._tokens.pop(token, ""), None)
            if not self._waiting:
                _stop_listening(listener)  # All hosts have connected.
        if waiting is None:
            tls.close()
        else:
            tls_callback.relay(tls, waiting)

    def why_not(self, link: Connection, waited_s: float) -> str:
        """Return pdsh's messages about a host."""
        if link.process is not None:
            return self._here.why_not(link, waited_s)
        return self.described(link, self._said.get(link.name) or self._own_words, waited_s)

    def close(self) -> None:
        """Wait a limited time until pdsh ends; then kill pdsh and its descendants."""
        if self._listener is not None:
            _stop_listening(self._listener)
        if self._pdsh is None:
            return
        try:
            self._pdsh.wait(2)
        except subprocess.TimeoutExpired:
            # pdsh's ssh to a lost host would hang for a quarter of an hour.
            below = processes.descendants(self._pdsh.pid)
            self._pdsh.kill()
            for one in below:
                one.send(signal.SIGKILL)
            self._pdsh.wait()


def _stop_listening(listener: socket.socket) -> None:
    # With close() alone, the port would stay open while accept() waits.
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def named(label: str, names: Sequence[str]) -> str:
    """Return the host that a label of pdsh refers to; the label may lack the domain, or include the user."""
    name = label.rpartition("@")[2]
    if name in names:
        return name
    short = [one for one in names if one.partition(".")[0] == name]
    return short[0] if len(short) == 1 else name
