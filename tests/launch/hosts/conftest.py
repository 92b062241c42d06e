"""Four hosts for the tests of this folder, where the machine allows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from namespaces import Hosts, why_not

RUN = [sys.executable, "-m", "ascend_adapt.launch.cli"]
HOSTFILE = "# four of them\r\n\r\n" + "".join(f"w-{number} slots=2  # two ranks\r\n" for number in (1, 2, 3, 4))


class Cluster(Hosts):
    """Four hosts, and ascend-run on the first."""

    def write(self, name, text):
        """Put a file into the storage of every host, as a shared folder would."""
        for host in self.names:
            (self.folder(host) / name).write_text(text)

    def ascend_run(self, *argv, launcher="ssh", timeout=120, **env):
        """Run ascend-run under the hostfile to its end."""
        given = ["--launcher", launcher, "--hostfile", "hostfile", "--device", "cpu", "--log-dir", "run"]
        return self.run("w-1", *RUN, *given, *argv, timeout=timeout, **env)

    def start(self, *argv, launcher="ssh"):
        """Start it, and return it running."""
        given = ["--launcher", launcher, "--hostfile", "hostfile", "--device", "cpu", "--log-dir", "run"]
        command = self.command("w-1", *RUN, *given, *argv)
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(scope="session")
def cluster():
    reason = why_not()
    if reason:
        pytest.skip(f"not checked: several hosts: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    try:
        with Cluster(folder / "of", 4) as hosts:
            hosts.write("hostfile", HOSTFILE)
            yield hosts
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def slow():
    """What takes half a minute is for `make hosts`."""
    if not os.environ.get("ASCEND_ADAPT_HOSTS"):
        pytest.skip("not checked: several hosts: takes long, make hosts does it")


@pytest.fixture(params=["ssh", "pdsh"])
def launcher(request):
    if request.param == "pdsh" and shutil.which("pdsh") is None:
        pytest.skip("not checked: pdsh: is not installed (Debian: pdsh)")
    return request.param
