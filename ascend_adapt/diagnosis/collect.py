#!/usr/bin/env python3
"""Collects a host's facts for `ascend-adapt doctor --report`. Standalone: needs only Python 3.8.

    python3 collect.py FILE

Values of variables whose names look like secrets, and passwords in URLs, are left out.
"""

# Must run on Python 3.8 alone, because this file is copied to hosts without other software.
from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

FORMAT = 1
ASCEND = "/usr/local/Ascend"
# Small files that `doctor` reads in full.
FILES = (
    "/etc/ascend_install.info",
    "/etc/os-release",
    "/etc/hccn.conf",
    ASCEND + "/driver/version.info",
    ASCEND + "/firmware/version.info",
    "/etc/ld.so.conf.d/*.conf",
)
IN_CANN = (
    "version.cfg",
    "ascend_*_install.info",
    "*-linux/ascend_*_install.info",
    "opp/built-in/op_impl/ai_core/tbe/kernel/*",
)
CANN_HOMES = ("cann", "ascend-toolkit/latest", "nnae/latest", "nnrt/latest")
# Files whose existence alone matters.
PRESENT = ("libascend_hal.so", "libascendcl.so", "libhccl.so")
NODES = ("davinci[0-9]*", "davinci_manager", "devmm_svm", "hisi_hdc", "nvidia[0-9]*")
TOOLS = (("npu-smi", "info"), ("nvidia-smi",))
LOGS = ("~/ascend/log/debug/plog/*.log", "~/ascend/log/debug/device-*/*.log", "~/ascend/log/plog/*.log")
SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|SIGNATURE|LICENSE|PRIVATE|SESSION|_AK$|_SK$|^AK$|^SK$|WEBHOOK|DSN",
    re.I,
)
IN_ADDRESS = re.compile(r"(\w+://)[^/@\s]+@")
# "token" is also a word of language models: an id, a special token, a missing value or an expression is not a secret.
NO_SECRET = (
    r"(?!(?:\d{1,6}|None|True|False|null)(?!\w|[-.]\w)|</?\|?\w+\|?>|\[[A-Z]+\]|[^\w\s]{1,2}(?!\S)|[a-z_][\w.]*[(\[])"
)
TOKEN_IN_TEXT = re.compile(
    r"(?i)\b(hf_\w{20,}|gh[pousr]_\w{20,}|sk-[\w-]{16,}|AKIA\w{12,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]+)"
    r"|((?:password|passwd|secret|api[_-]?key|authorization)[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?"
    r"|--[\w-]*(?:password|passwd|secret|api[_-]?key)\s+(?!-)[\"']?"
    rf"|(?:token[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic)\s+)?|--[\w-]*token\s+(?!-)[\"']?){NO_SECRET})[^\s,;\"']+"
)
ERROR = re.compile(r"\[ERROR\]|\bE[A-Z0-9]\d{4}\b")
HIDDEN = "<hidden>"
LARGEST, LAST_ERRORS, TIMEOUT_S = 64 * 1024, 40, 20
LIMITS = {"n": ("RLIMIT_NOFILE", 1), "u": ("RLIMIT_NPROC", 1), "l": ("RLIMIT_MEMLOCK", 1024)}


def without_secrets(text: str) -> str:
    """Return a text with passwords in URLs and strings that look like tokens removed."""
    text = IN_ADDRESS.sub(r"\1" + HIDDEN + "@", text)
    return TOKEN_IN_TEXT.sub(lambda match: (match.group(2) or "") + HIDDEN, text)


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables, with the values of secrets removed."""
    return {
        name: HIDDEN if SECRET.search(name) and name != "PWD" and name != "OLDPWD" else without_secrets(value)
        for name, value in environ.items()
    }


def small_file(path: str) -> str | None:
    """Return the text of a file, or None if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return without_secrets(file.read(LARGEST))
    except OSError:
        return None


def files(environ: Mapping[str, str], root: str = "") -> tuple[dict[str, str | None], list[str]]:
    """Return small files by path, "" for files whose existence alone matters, None for folders; also CANN's folders."""
    homes = [environ.get("ASCEND_HOME_PATH", "")]
    homes += [
        os.path.join(root, name)
        for root in (ASCEND, os.path.join(environ.get("HOME", ""), "Ascend"))
        for name in CANN_HOMES
    ]
    homes = [home for home in homes if home and os.path.isdir(root + home)]
    found: dict[str, str | None] = {}
    for pattern in FILES:
        for path in glob.glob(root + pattern):
            found[path[len(root) :]] = small_file(path)
    for home in homes:
        for pattern in IN_CANN:
            for path in glob.glob(os.path.join(root + home, pattern)):
                found[path[len(root) :]] = small_file(path) if os.path.isfile(path) else None
    folders = environ.get("LD_LIBRARY_PATH", "").split(":") + [os.path.join(home, "lib64") for home in homes]
    folders += [ASCEND + "/driver/lib64", ASCEND + "/driver/lib64/driver", ASCEND + "/driver/lib64/common"]
    for folder in folders:
        for name in PRESENT:
            if folder.startswith("/") and os.path.exists(os.path.join(root + folder, name)):
                found[os.path.join(folder, name)] = ""
    return found, homes


def nodes(root: str = "") -> dict[str, dict[str, Any]]:
    """Return the device nodes: whether this user may open each, and its mode, owner and group as in `ls -l`."""
    found = {}
    for pattern in NODES:
        for path in glob.glob(root + "/dev/" + pattern):
            status = os.stat(path)
            owner = f"{stat.filemode(status.st_mode)} {_user(status.st_uid)} {_group(status.st_gid)}"
            found[path[len(root) :]] = {"open": os.access(path, os.R_OK | os.W_OK), "owner": owner}
    return found


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def tools(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the exit code and output of each driver tool, or None for a tool that is not on PATH."""
    found: dict[str, Any] = {}
    for command in TOOLS:
        if shutil.which(command[0], path=environ.get("PATH", os.defpath)) is None:
            found[command[0]] = None
            continue
        try:
            ran = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
            )
            found[command[0]] = [ran.returncode, ran.stdout.decode(errors="replace")[:LARGEST]]
        except subprocess.TimeoutExpired:
            found[command[0]] = [124, f"no response in {TIMEOUT_S} s"]
        except OSError as error:
            found[command[0]] = [126, str(error)]
    return found


def distributions() -> dict[str, str]:
    """Return the versions of all installed distributions of this Python."""
    from importlib.metadata import distributions as installed

    return {str(one.metadata["Name"]): one.version for one in installed() if one.metadata["Name"]}


def last_errors() -> dict[str, list[str]]:
    """Return the last error lines of CANN's newest logs, by file."""
    paths = [path for pattern in LOGS for path in glob.glob(os.path.expanduser(pattern))]
    paths = sorted(paths, key=os.path.getmtime)[-8:]
    found = {}
    for path in paths:
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.path.getsize(path) - 8 * LARGEST))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            continue
        errors = [without_secrets(line)[:400] for line in lines if ERROR.search(line)]
        if errors:
            found[path] = errors[-LAST_ERRORS:]
    return found


def limits() -> dict[str, int | None]:
    """Return the soft limits by letter of ulimit; None means unlimited."""
    found = {}
    for letter, (name, unit) in LIMITS.items():
        soft = resource.getrlimit(getattr(resource, name))[0]
        found[letter] = None if soft == resource.RLIM_INFINITY else soft // unit
    return found


def shared_memory() -> int:
    """Return the size of /dev/shm in bytes."""
    try:
        filesystem = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return filesystem.f_frsize * filesystem.f_blocks


def collect(environ: Mapping[str, str], root: str = "") -> dict[str, Any]:
    """Return the facts about this host as JSON data. ``root`` is the root of the file system, "" for /."""
    texts, homes = files(environ, root)
    return {
        "format": FORMAT,
        "host": socket.gethostname(),
        "time_s": time.time(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "kernel": platform.release(),
        "processor": platform.machine(),
        "environ": environment(environ),
        "versions": distributions(),
        "files": texts,
        "cann_homes": homes,
        "nodes": nodes(root),
        "tools": tools(environ),
        "limits": limits(),
        "shm_bytes": shared_memory(),
        "gomp": sorted(
            glob.glob(sys.prefix + "/lib/libgomp*")
            + glob.glob(sys.prefix + "/lib/python3*/site-packages/*.libs/libgomp*")
            + glob.glob("/usr/lib/*/libgomp.so.1")
        ),
        "last_errors": last_errors(),
    }


def write(file: str, environ: Mapping[str, str]) -> None:
    """Write the facts to a file that only this user may read.

    Raises:
        OSError: the file cannot be written.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        json.dump(collect(environ), opened, indent=1)
        opened.write("\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a program and return its exit code."""
    parser = argparse.ArgumentParser(description="Collect facts about this host for `ascend-adapt doctor --report`.")
    parser.add_argument("file", help="the JSON file to write")
    file = parser.parse_args(arguments).file
    try:
        write(file, os.environ)
    except OSError as error:
        print(f"collect: {file}: {error.strerror}, expected a writable file — choose another", file=sys.stderr)
        return 1
    print(
        f"{file}: review this file before you share it; `ascend-adapt doctor --report {file}` evaluates it on any host"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
