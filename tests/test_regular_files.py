"""Files that are opened: regular ones, also under a lease, and what is refused."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import threading

import pytest

from ascend_adapt import regular_files


@pytest.mark.timeout(30)
def test_a_file_under_the_lease_of_a_file_server_is_read(tmp_path):
    """Samba and the kernel's NFS server hold leases, and give one back when the kernel sends SIGIO."""
    file = tmp_path / "config.json"
    file.write_text("{}")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
    with file.open("r+") as held:

        def give_back():
            signal.sigwait({signal.SIGIO})
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)

        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        server = threading.Thread(target=give_back, daemon=True)
        server.start()
        try:
            assert regular_files.read_text(file) == "{}"
        finally:
            server.join()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
