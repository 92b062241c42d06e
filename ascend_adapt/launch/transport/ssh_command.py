"""The command that starts an agent on another host; it is fixed and reveals nothing about the job.

The environment and the arguments follow over the connection. docs/launcher.md explains why ClusterShell is not used.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

CONNECT_S = 20
_PACKAGES = str(Path(__file__).parents[3])


# A scheduler signals every process of a job. If ssh ended, its host would end the ranks in the middle of a save.
# ssh keeps ignoring the signals that are ignored when it starts.
OUTLIVES_SIGNALS = ("sh", "-c", "trap '' HUP INT QUIT TERM USR1 USR2; exec \"$@\"", "sh")


AGENT = "from ascend_adapt.launch.many_hosts.agent import main"


def program(start: str = f"{AGENT}; main()") -> list[str]:
    """Return the command of an agent; it uses the path of this process's interpreter.

    The current folder is removed from sys.path; the folder of this package is searched last.
    """
    return [sys.executable, "-c", f"import sys; sys.path[:1] = []; sys.path.append({ascii(_PACKAGES)}); {start}"]


def command(address: str, port: int | None) -> list[str]:
    """Return the ssh command that starts an agent on a host; it never prompts, and checks host keys as configured.

    ssh passes its last argument to the remote shell, which removes one level of quoting.
    """
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]
    return ["ssh", *options, *(["-p", str(port)] if port else []), address, shlex.join(program())]
