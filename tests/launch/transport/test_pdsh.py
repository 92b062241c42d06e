"""What pdsh prints, and the private connection back; jobs by pdsh are in tests/launch/hosts."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import resource
import select
import shutil
import socket
import ssl
import threading
import time

import pytest

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.transport import choice, tls_callback, transport
from ascend_adapt.launch.transport.pdsh import PdshTransport, named
from ascend_adapt.launch.transport.ssh import SshTransport


@pytest.mark.parametrize(
    ("label", "wanted"),
    [("w-1", "w-1.example.com"), ("w-2", "w-2"), ("u@w-2", "w-2"), ("10.0.0.1", "10.0.0.1"), ("w-9", "w-9")],
)
def test_whom_a_label_means(label, wanted):
    assert named(label, ["w-1.example.com", "w-2", "10.0.0.1"]) == wanted


@pytest.fixture
def server():
    """A launcher's end: a port, its certificate's fingerprint, and the callers it has accepted."""
    if shutil.which("openssl") is None:
        pytest.skip("not checked: openssl: is not installed")
    context, fingerprint = tls_callback.server_context()
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                accepted.append(tls_callback.accept(connection, context))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], fingerprint, accepted
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    for one in accepted:
        if one is not None:
            one[0].close()


def test_the_launcher_is_known_by_its_certificate(server):
    port, fingerprint, accepted = server
    with tls_callback._connect(["127.0.0.1"], port, fingerprint) as tls:
        tls.sendall(b"a" * tls_callback.TOKEN_BYTES)
        assert tls.version() in ("TLSv1.2", "TLSv1.3")
    another = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(OSError, match="does not have this job's certificate"):
        tls_callback._connect(["127.0.0.1"], port, another)


def test_who_does_not_speak_the_protocol_is_left(server):
    port, _, accepted = server
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) in (b"", b"\x15")  # closed, or a TLS alert
    while not accepted:
        time.sleep(0.01)
    assert accepted == [None]


def test_bytes_both_ways_and_the_end(server):
    port, fingerprint, accepted = server
    tls = tls_callback._connect(["127.0.0.1"], port, fingerprint)
    tls.sendall(b"t" * tls_callback.TOKEN_BYTES)
    while not accepted:
        time.sleep(0.01)
    there, token = accepted[0]
    assert token == "t" * tls_callback.TOKEN_BYTES
    ends = []
    for side in (tls, there):
        ours, theirs = socket.socketpair()
        threading.Thread(target=tls_callback.relay, args=(side, theirs), daemon=True).start()
        ends.append(ours)
    sent = bytes(range(256)) * 4096
    threading.Thread(target=lambda: (ends[0].sendall(sent), ends[0].shutdown(socket.SHUT_WR)), daemon=True).start()
    got = b""
    while data := ends[1].recv(1 << 16):
        got += data
    assert got == sent
    for end in ends:
        end.close()
    assert isinstance(tls, ssl.SSLSocket)


def test_a_connection_whose_descriptor_has_a_high_number(server):
    """As with some hundred hosts, and as select() does not take it."""
    port, fingerprint, accepted = server
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"not checked: many descriptors: the hard limit is {hard}")
    tls = tls_callback._connect(["127.0.0.1"], port, fingerprint)
    tls.sendall(b"t" * tls_callback.TOKEN_BYTES)
    while not accepted:
        time.sleep(0.01)
    ours, theirs = socket.socketpair()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
        high = socket.socket(fileno=fcntl.fcntl(theirs.detach(), fcntl.F_DUPFD_CLOEXEC, 2000))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    threading.Thread(target=tls_callback.relay, args=(tls, high), daemon=True).start()
    ours.sendall(b"word")
    there = accepted[0][0]
    there.settimeout(10)
    assert there.recv(4) == b"word"
    ours.close()


@pytest.fixture
def hosts_by_pdsh(tmp_path, monkeypatch):
    """Two other hosts by a stand-in for pdsh, which says something and ends."""

    def start(script):
        if shutil.which("openssl") is None:
            pytest.skip("not checked: openssl: is not installed")
        (tmp_path / "pdsh").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "pdsh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        way = PdshTransport(None)
        return way, way.links(["10.255.0.1", "10.255.0.2"])

    return start


def test_a_pdsh_that_ends_at_once_is_not_waited_for(hosts_by_pdsh):
    way, links = hosts_by_pdsh("echo 'No such rcmd module \"nonsense\"' >&2; exit 1")
    try:
        for link in links:
            assert select.select([link.source], [], [], 10)[0]
            assert os.read(link.source, 1) == b""
            assert 'No such rcmd module "nonsense"' in way.why_not(link, 60)
    finally:
        way.close()
        for link in links:
            link.close()


def test_the_port_is_closed_with_the_job(hosts_by_pdsh):
    way, links = hosts_by_pdsh("exit 0")
    port = way._listener.getsockname()[1]
    time.sleep(0.2)  # until it waits for callers
    way.close()
    for link in links:
        link.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_a_colon_is_for_ssh(hosts_by_pdsh, monkeypatch):
    monkeypatch.setattr(transport.shutil, "which", lambda name: name)
    with pytest.raises(LaunchError, match="2001:db8::1 contains a colon"):
        choice.choose("pdsh", None, ["w-2.invalid", "2001:db8::1"])
    assert isinstance(choice.choose("auto", None, ["w-2.invalid", "2001:db8::1"]), SshTransport)
