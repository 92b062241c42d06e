"""TLS connection from an agent back to its launcher, for transports without a private standard input.

The command line of the agent, which anybody on its machine may read, holds the launcher's address and the fingerprint
of a certificate made for this job. Only the launcher has the certificate's key. The agent proves its identity by a
random token that it prints first, and that only the launcher can read. TLS keeps the rest private.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ascend_adapt.errors import LaunchError

TOKEN_LABEL = "ascend-run token "
TOKEN_BYTES = 64
_AT_ONCE = 1 << 16
_HANDSHAKE_S = 20.0


def server_context() -> tuple[ssl.SSLContext, str]:
    """Return a TLS context with a new key and certificate, and the fingerprint; no file of them remains.

    Raises:
        LaunchError: openssl cannot create the certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # mode 0700
        key, certificate = Path(folder, "key"), Path(folder, "certificate")
        made = subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                *("-days", "1", "-subj", "/CN=ascend-run", "-keyout", str(key), "-out", str(certificate)),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        if made.returncode:
            said = made.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise LaunchError(f"openssl: cannot create a certificate ({said}) — use --launcher ssh")
        context.load_cert_chain(certificate, key)
        binary = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    return context, hashlib.sha256(binary).hexdigest()


def call(
    addresses: Sequence[str],
    port: int,
    fingerprint: str,
    serve: Callable[[int, int | None, Callable[[], None]], None],
) -> None:
    """Connect an agent to its launcher: print the token, connect, and ``serve`` the connection."""
    token = secrets.token_hex(TOKEN_BYTES // 2)
    print(TOKEN_LABEL + token, flush=True)
    try:
        tls = _connect(addresses, port, fingerprint)
        tls.sendall(token.encode())
    except OSError as error:
        print(
            f"ascend-run: launcher at {' or '.join(addresses)}, port {port}: {error} — use --launcher ssh",
            file=sys.stderr,
        )
        sys.exit(1)
    ours, theirs = socket.socketpair()
    relaying = threading.Thread(target=relay, args=(tls, theirs), daemon=True)
    relaying.start()

    def finish() -> None:
        with contextlib.suppress(OSError):  # The launcher may be gone.
            ours.shutdown(socket.SHUT_WR)
        relaying.join(_HANDSHAKE_S)

    serve(ours.fileno(), None, finish)


def _connect(addresses: Sequence[str], port: int, fingerprint: str) -> ssl.SSLSocket:
    """Connect to the first address that answers and has the expected certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate is self-signed and identified by its fingerprint, so checking names and dates would add nothing.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    problem = OSError("no address")
    for address in addresses:
        try:
            tls = context.wrap_socket(socket.create_connection((address, port), _HANDSHAKE_S))
        except OSError as error:
            problem = error
            continue
        found = hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()
        if secrets.compare_digest(found, fingerprint):
            return tls
        tls.close()
        problem = OSError("does not have this job's certificate")
    raise problem


def accept(connection: socket.socket, context: ssl.SSLContext) -> tuple[ssl.SSLSocket, str] | None:
    """Return a caller and its token, or None if the caller does not speak the protocol."""
    connection.settimeout(_HANDSHAKE_S)
    try:
        tls = context.wrap_socket(connection, server_side=True)
        token = b""
        while len(token) < TOKEN_BYTES and (data := tls.recv(TOKEN_BYTES - len(token))):
            token += data
        return tls, token.decode("ascii")
    except (OSError, UnicodeDecodeError):
        connection.close()
        return None


def relay(tls: ssl.SSLSocket, plain: socket.socket) -> None:
    """Copy bytes in both directions until either end closes, in one thread, because threads must not share TLS."""
    tls.setblocking(False)
    plain.setblocking(False)
    # select() cannot be used: with a few hundred hosts, descriptors exceed its limit.
    poll = select.poll()
    out, back = bytearray(), bytearray()
    plain_ended = False
    try:
        while not (plain_ended and not out):
            # A record that has already been decrypted makes no descriptor readable.
            reads = [tls] if len(back) < _AT_ONCE else []
            if len(out) < _AT_ONCE and not plain_ended:
                reads = [*reads, plain]  # type: ignore[list-item]
            writes = [*([tls] if out else []), *([plain] if back else [])]
            if not (tls.pending() and tls in reads):
                for end in (tls, plain):
                    wanted = select.POLLIN * (end in reads) | select.POLLOUT * (end in writes)
                    if wanted:
                        poll.register(end, wanted)
                    else:
                        with contextlib.suppress(KeyError):
                            poll.unregister(end)
                poll.poll()
            if plain in reads:
                with contextlib.suppress(BlockingIOError):
                    data = plain.recv(_AT_ONCE)
                    plain_ended = not data
                    out += data
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if out:
                    del out[: tls.send(out)]
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if tls in reads:
                    data = tls.recv(_AT_ONCE)
                    if not data:
                        break
                    back += data
            with contextlib.suppress(BlockingIOError):
                if back:
                    del back[: plain.send(back)]
        plain.settimeout(_HANDSHAKE_S)
        plain.sendall(back)
    except OSError:
        pass  # A broken connection has ended, whatever the reason.
    finally:
        # close() is not enough: a guardian forked from this process has copies of the descriptor.
        for end in (plain, tls):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
