"""Files that are opened: regular ones, also under a lease, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ascend_adapt import regular_files

# SIGIO ends a process in which any thread does not block it, so another process than that of the tests holds the lease.
FILE_SERVER = """
import fcntl, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
with open(sys.argv[1], "r+") as held:
    fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("held", flush=True)
    signal.sigwait({signal.SIGIO})
    fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
"""


@pytest.mark.timeout(30)
def test_a_file_under_the_lease_of_a_file_server_is_read(tmp_path):
    """Samba and the kernel's NFS server hold leases, and give one back when the kernel sends SIGIO."""
    file = tmp_path / "config.json"
    file.write_text("{}")
    with subprocess.Popen([sys.executable, "-c", FILE_SERVER, file], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout.readline() == "held\n"
            assert regular_files.read_text(file) == "{}"
            assert server.wait(20) == 0
        finally:
            server.kill()


@pytest.mark.timeout(30)
def test_a_pipe_of_a_shell_is_read_and_one_with_a_name_is_not_waited_for(tmp_path):
    with subprocess.Popen(["echo", "hé"], stdout=subprocess.PIPE) as echo:
        assert regular_files.read_text(f"/dev/fd/{echo.stdout.fileno()}") == "hé\n"
    assert regular_files.read_bytes("/dev/null") == b""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a named pipe, not a regular file"):
        regular_files.open_binary(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a device, not a regular file"):
        regular_files.open_text("/dev/zero")
    with pytest.raises(IsADirectoryError):
        regular_files.open_binary(tmp_path)
