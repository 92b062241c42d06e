"""Several hosts on one machine: namespaces with sshd, each with its own network, hostname, processes, home and storage.

The kernel, and what is installed, they have in common. Host keys are known and checked. Needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

TOOLS = ("unshare", "nsenter", "ip", "ssh", "ssh-keygen", "mount", "hostname")
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
_PATIENCE_S = 20

# What is process 1 of each host: it waits until the network is there, serves ssh, and reaps whatever it inherits.
_INIT = """
set -e
mount --make-rprivate /
hostname "$NAME"
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/sshd
mount --bind "$BASE/$NAME/home" "$BASE/home"
mount --bind "$BASE/passwd" /etc/passwd
mount --bind "$BASE/$NAME/storage" "$BASE/storage"
mount --bind "$BASE/hosts" /etc/hosts
ip link set lo up
while ! ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip address add "$ADDRESS/24" dev eth0
ip link set eth0 up
"$SSHD" -f "$BASE/$NAME/sshd_config" -E "$BASE/$NAME/sshd.log"
touch "$BASE/$NAME/ready"
while :; do sleep 1000000 & wait $!; done
"""


def why_not() -> str:
    """Return why this machine cannot have such hosts, or an empty string."""
    missing = [name for name in TOOLS if shutil.which(name) is None] + ([] if Path(SSHD).exists() else ["sshd"])
    if missing:
        return f"{', '.join(missing)}: not installed (Debian: iproute2, openssh-client, openssh-server)"
    tried = subprocess.run(
        ["unshare", "-n", "-m", "-u", "-p", "-f", "mount", "-t", "tmpfs", "t", "/run"], capture_output=True
    )
    if tried.returncode:
        return f"namespaces are not allowed here: {tried.stderr.decode().strip()}"
    tried = subprocess.run(["unshare", "-n", "ip", "link", "add", "name", "b0", "type", "bridge"], capture_output=True)
    return f"no bridges here: {tried.stderr.decode().strip()}" if tried.returncode else ""


class Hosts:
    """``count`` hosts named w-1, w-2, ... with a folder ``storage`` at the same path, of its own on each."""

    def __init__(self, base: Path, count: int) -> None:
        self.base, self.names = base, [f"w-{number}" for number in range(1, count + 1)]
        self.storage = base / "storage"
        self._inits: dict[str, subprocess.Popen[bytes]] = {}
        self._pids: dict[str, int] = {}
        self._bridge = f"asc{os.getpid()}"

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for init in self._inits.values():
            init.kill()  # unshare takes process 1 with it, and the kernel everything below
            init.wait()
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True)

    def command(self, name: str, *argv: str) -> list[str]:
        """Return ``argv`` as a command that runs on a host, in its storage."""
        inside = ["nsenter", "-t", str(self._pids[name]), "-n", "-m", "-u", "-p", "--"]
        # nsenter's own --wd would be looked up outside.
        return [*inside, "env", "-C", str(self.storage), f"HOME={self.base}/home", *argv]

    def run(self, name: str, *argv: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        return subprocess.run(
            self.command(name, *argv),
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def folder(self, name: str) -> Path:
        """Return where the storage of a host is seen from outside."""
        return self.base / name / "storage"

    def processes(self, name: str) -> list[str]:
        """Return the command lines of what runs on a host, without process 1, sleep and sshd."""
        wanted = os.readlink(f"/proc/{self._pids[name]}/ns/pid")
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == wanted:
                    words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                    text = b" ".join(words).decode(errors="replace").strip()
                    if text and not text.startswith(("sleep ", "sshd", "/usr/sbin/sshd", "sh -c")):
                        found.append(f"{entry}: {text}")
            except OSError:
                continue
        return found

    def left(self, patience_s: float = 5) -> dict[str, list[str]]:
        """Return what still runs anywhere, once ``patience_s`` are over."""
        deadline = time.monotonic() + patience_s
        while True:
            found = {name: running for name in self.names if (running := self.processes(name))}
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def link(self, name: str, state: str) -> None:
        """Take the link of a host ``up`` or ``down``: packets vanish, nobody is reported."""
        subprocess.run(["ip", "link", "set", self._outer(name), state], check=True)

    def _outer(self, name: str) -> str:
        return f"{self._bridge}{name[1:]}"

    def _make(self) -> None:
        self.storage.mkdir(parents=True)
        (self.base / "home").mkdir()
        # Root's own home may hold the interpreter, so it stays where it is, and root's home is another one.
        accounts = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
        homes = [[*one[:5], f"{self.base}/home", *one[6:]] if one[2] == "0" else one for one in accounts]
        (self.base / "passwd").write_text("".join(":".join(one) + "\n" for one in homes))
        addresses = {name: f"10.213.77.{number}" for number, name in enumerate(self.names, 1)}
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        (self.base / "hosts").write_text("\n".join(lines) + "\n")
        self._key(self.base / "id")
        shutil.copy(self.base / "id.pub", self.base / "authorized_keys")
        known = []
        for name in self.names:
            for folder in ("home/.ssh", "storage"):
                (self.base / name / folder).mkdir(parents=True)
            self._key(self.base / name / "key")
            known.append(f"{name},{addresses[name]} {(self.base / name / 'key.pub').read_text()}")
            (self.base / name / "home/.ssh/config").write_text(
                f"Host *\n  IdentityFile {self.base}/id\n  UserKnownHostsFile {self.base}/known_hosts\n"
                "  StrictHostKeyChecking yes\n"
            )
            (self.base / name / "sshd_config").write_text(
                f"HostKey {self.base}/{name}/key\nAuthorizedKeysFile {self.base}/authorized_keys\nUsePAM no\n"
                f"StrictModes no\nPermitRootLogin yes\nMaxStartups 1000\nPidFile none\nPort 22\nPort 2222\n"
            )
        (self.base / "known_hosts").write_text(
            "".join(known + [line.replace(line.split()[0], _at(line)) for line in known])
        )
        subprocess.run(["ip", "link", "add", "name", self._bridge, "type", "bridge"], check=True)
        subprocess.run(["ip", "link", "set", self._bridge, "up"], check=True)
        for name in self.names:
            self._start(name, addresses[name])
        deadline = time.monotonic() + _PATIENCE_S
        while not all((self.base / name / "ready").exists() for name in self.names):
            if time.monotonic() > deadline or any(init.poll() is not None for init in self._inits.values()):
                logs = "".join(path.read_text() for path in sorted(self.base.glob("w-*/init.log")))
                raise RuntimeError(f"hosts are not ready: {logs}")
            time.sleep(0.05)

    def _start(self, name: str, address: str) -> None:
        env = {**os.environ, "NAME": name, "BASE": str(self.base), "ADDRESS": address, "SSHD": SSHD}
        spaces = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (self.base / name / "init.log").open("wb") as log:
            init = subprocess.Popen(
                [*spaces, "sh", "-c", _INIT], env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._inits[name] = init
        children = Path(f"/proc/{init.pid}/task/{init.pid}/children")
        while not (words := children.read_text().split()):
            time.sleep(0.01)
        self._pids[name] = int(words[0])
        pair = [
            "ip",
            "link",
            "add",
            "name",
            self._outer(name),
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            words[0],
        ]
        subprocess.run(pair, check=True)
        subprocess.run(["ip", "link", "set", self._outer(name), "master", self._bridge, "up"], check=True)

    @staticmethod
    def _key(path: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)


def _at(line: str) -> str:
    """Return the names of a line of known_hosts at the second port."""
    return ",".join(f"[{name}]:2222" for name in line.split()[0].split(","))


if __name__ == "__main__":
    # A shell on the first of four hosts: python tests/launch/hosts/namespaces.py FOLDER [COMMAND ...]
    sys.exit(why_not() or 0) if why_not() else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with Hosts(Path(sys.argv[1]).resolve(), 4) as hosts:
        sys.exit(subprocess.run(hosts.command("w-1", *(sys.argv[2:] or ["bash"]))).returncode)
