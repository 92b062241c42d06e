"""Checks of Ascend NPUs: driver, firmware, device nodes, CANN and its environment, and a matching torch_npu.

Source: Huawei's installation guides of CANN 8.0 and 8.5, and version.info files published by users.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ascend_adapt.diagnosis.findings import cann_versions
from ascend_adapt.diagnosis.findings.machine import Finding, Machine, settings_of
from ascend_adapt.diagnosis.findings.versions import release
from ascend_adapt.whole_numbers import whole_number

_ASCEND = "/usr/local/Ascend"
# Device nodes that every process opens to use an NPU, in addition to davinci<N>.
_SHARED_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
# CANN 8.5 and later use cann, earlier releases ascend-toolkit. nnae and nnrt are packages without compilers.
_CANN_FOLDERS = ("cann", "ascend-toolkit/latest", "nnae/latest", "nnrt/latest")
_HAL = "libascend_hal.so"
_IN_A_CONTAINER = "in a container, start it with"
# Source: vllm-ascend required numpy<2 until CANN 9.0.0 (its issue 2210, and its commit of 2026-05-13).
_NUMPY_2_SINCE = "9.0.0"
# Source: installation guides of CANN 8.0 to 8.5, and issue 7 of Ascend/pytorch.
_PYTHON_OF_CANN = ("attrs", "cffi", "decorator", "numpy", "protobuf", "psutil", "pyyaml", "scipy", "sympy")


def stack(machine: Machine) -> Mapping[str, str]:
    """Return the versions of the software between the NPUs and torch_npu, by name."""
    cann = _cann_folder(machine)
    return {
        "NPU driver": _version(_component(machine, "driver")) or "not found",
        "NPU firmware": _version(_component(machine, "firmware")) or "not found",
        "CANN": f"{_cann_version(machine, cann) or 'of unknown version'} in {cann}" if cann else "not found",
    }


def driver(machine: Machine) -> Iterator[Finding]:
    """Check the driver's files, and the driver library that CANN loads."""
    folder = _component(machine, "driver")
    if not _version(folder):
        yield Finding(
            f"no NPU driver: {_inside(machine, folder)}/version.info does not exist",
            "no process can use an NPU",
            f"install the driver and firmware of this server (Ascend-hdk-*.run); {_IN_A_CONTAINER} "
            f"-v {_ASCEND}/driver:{_ASCEND}/driver:ro",
            True,
        )
        return
    searched = [
        *machine.environ.get("LD_LIBRARY_PATH", "").split(":"),
        *(line for conf in sorted(machine.at("/etc/ld.so.conf.d").glob("*.conf")) for line in _lines(conf)),
    ]
    if not any(path.startswith("/") and (machine.at(path) / _HAL).exists() for path in searched):
        libraries = f"{_inside(machine, folder)}/lib64"
        yield Finding(
            f"the driver's {_HAL} is not on the library path",
            f"torch_npu cannot load CANN: {_HAL}: cannot open shared object file",
            f"export LD_LIBRARY_PATH={libraries}/driver:{libraries}/common:$LD_LIBRARY_PATH",
            True,
        )


def firmware(machine: Machine) -> Iterator[Finding]:
    """Check the device firmware, which must match the driver. A container does not see its folder."""
    folder = _component(machine, "firmware")
    info = settings_of(folder / "version.info")
    if not info and _version(_component(machine, "driver")):
        yield Finding(
            f"NPU firmware of unknown version: {_inside(machine, folder)}/version.info does not exist",
            "the firmware must match the driver",
            "in a container, nothing needs to be done; on a host, install the firmware (Ascend-hdk-*.run)",
            False,
        )
    ranges = settings_of(_component(machine, "driver") / "version.info").get("compatible_version_fw", "")
    version = _numbers(info.get("Version", ""))
    accepted = [tuple(map(_numbers, pair)) for pair in re.findall(r"\[([\d.]+),([\d.]+)\]", ranges)]
    # Only the first three numbers are compared: 7.5.0.1.129 is between 7.0.0 and 7.5.99.
    if version and accepted and not any(low <= version[:3] <= high for low, high in accepted):
        yield Finding(
            f"firmware is {info['Version']}, the driver supports {ranges}",
            "driver and firmware are from different releases: NPUs do not start, or fail under load",
            "install firmware and driver from the same release (Ascend-hdk-*.run), then reboot",
            True,
        )


def npu_smi(machine: Machine) -> Iterator[Finding]:
    """Check with npu-smi whether the driver responds, and the health of each NPU."""
    tool = machine.tools.get("npu-smi")
    if tool is None:
        yield Finding(
            "npu-smi is not on PATH",
            "health and utilization of the NPUs cannot be inspected",
            f"add its folder (/usr/local/bin or /usr/local/sbin) to PATH; {_IN_A_CONTAINER} "
            "-v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi -v /usr/local/dcmi:/usr/local/dcmi",
            False,
        )
        return
    if tool.exit_code or "Health" not in tool.output:
        last = (tool.output.strip().splitlines() or ["no output"])[-1]
        yield Finding(
            f"npu-smi info failed with exit code {tool.exit_code}: {last}",
            "the driver does not respond; -8005 also means that another container uses the NPU, or that this user "
            "may not open its device node",
            "fix the other findings first; else check `dmesg`, reload the driver, or reboot",
            True,
        )
        return
    devices = tool.output.partition("Process id")[0]
    sick = [
        f"NPU {number} is {health}"
        for number, _, health in re.findall(r"(?m)^\|\s*(\d+)\s+(\S+)\s*\|\s*([A-Za-z]\w*)\s*\|", devices)
        if health != "OK"
    ]
    if sick:
        yield Finding(
            f"npu-smi: {', '.join(sick)}",
            "jobs on this NPU fail or hang",
            "`npu-smi info -t health -i <NPU>` shows the fault; exclude the NPU with ASCEND_RT_VISIBLE_DEVICES",
            True,
        )


def nodes(machine: Machine) -> Iterator[Finding]:
    """Check the device nodes and their permissions."""
    npus = machine.nodes.get("npu", ())
    shared = [machine.at(f"/dev/{name}") for name in _SHARED_NODES]
    missing = [] if npus else ["/dev/davinci<N>"]
    missing += [_inside(machine, node) for node in shared if not node.exists()]
    if missing:
        options = " ".join(f"--device={name.replace('<N>', '0')}" for name in missing)
        yield Finding(
            f"{', '.join(missing)}: not found",
            "no process can use an NPU",
            f"load the driver (`lsmod | grep drv_`, `npu-smi info`); {_IN_A_CONTAINER} {options}",
            True,
        )
    closed = [node for node in (*npus, *shared) if node.exists() and not machine.may_open(node)]
    if closed:
        names = ", ".join(_inside(machine, node) for node in closed)
        group = machine.owner(closed[0]).split()[-1]
        yield Finding(
            f"{names}: {machine.owner(closed[0])}, this user may not open {'it' if len(closed) == 1 else 'them'}",
            "every rank fails when it creates its first tensor",
            f"usermod -aG {group} <user> and log in again; {_IN_A_CONTAINER} --group-add {closed[0].stat().st_gid}",
            True,
        )


def cann(machine: Machine) -> Iterator[Finding]:
    """Check CANN, and the environment variables that its set_env.sh sets."""
    home, opp = (machine.environ.get(name, "") for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH"))
    installed = _installed_cann(machine)
    for name, value in (("ASCEND_HOME_PATH", home), ("ASCEND_OPP_PATH", opp)):
        if value and not machine.at(value).is_dir():
            yield Finding(
                f"{name}={value} is not a folder",
                "CANN's libraries are loaded from this folder",
                f"{_source(installed)}, or unset it",
                True,
            )
    if not home and not installed:
        yield Finding(
            f"CANN not found: ASCEND_HOME_PATH is not set, and CANN is not in {_ASCEND}/{{{','.join(_CANN_FOLDERS)}}}",
            "torch_npu loads CANN's libraries when it is imported",
            "install the CANN toolkit and the kernels of your NPU (Ascend-cann-toolkit, Ascend-cann-kernels), then "
            "source its set_env.sh",
            True,
        )
    elif not home:
        yield Finding(
            f"CANN is in {installed}, but its set_env.sh was not sourced: ASCEND_HOME_PATH is not set",
            "without CANN's libraries `import torch_npu` raises an error, and so does `import torch`, "
            "which loads torch_npu",
            _source(installed),
            True,
        )
    elif not opp:
        yield Finding(
            "ASCEND_HOME_PATH is set, but ASCEND_OPP_PATH is not",
            "`import torch_npu` raises an error",
            f"{_source(home)} instead of setting variables one by one",
            True,
        )
    elif machine.at(home).is_dir():
        paths = machine.environ.get("LD_LIBRARY_PATH", "").split(":")
        if not any(path.startswith("/") and (machine.at(path) / "libascendcl.so").exists() for path in paths):
            yield Finding(
                "CANN's libascendcl.so is not on LD_LIBRARY_PATH",
                "torch_npu cannot load CANN: libascendcl.so: cannot open shared object file",
                f"{_source(home)} in the shell that starts the job",
                True,
            )
        kernels = machine.at(opp) / "built-in" / "op_impl" / "ai_core" / "tbe" / "kernel"
        if machine.at(opp).is_dir() and not any(kernels.glob("ascend*")):
            yield Finding(
                f"no precompiled operators in {_inside(machine, kernels)}",
                "operators are compiled at run time, or are missing",
                "install the kernels of your NPU (such as Ascend-cann-kernels-910b) for this CANN",
                False,
            )


def torch_npu(machine: Machine) -> Iterator[Finding]:
    """Check that torch_npu matches torch and CANN. Each release supports one version of each."""
    torch, its = machine.versions.get("torch", ""), machine.versions.get("torch_npu", "")
    found = _cann_version(machine, _cann_folder(machine))
    if torch and not its:
        numbers = release(torch)
        fitting = cann_versions.torch_npus_for(found, numbers)
        wanted = fitting[0] if fitting else f"{'.'.join(map(str, numbers))}.*"
        yield Finding(
            "torch_npu is not installed",
            "torch cannot use NPUs without it",
            f"pip install 'torch_npu=={wanted}'" + ("" if fitting else ", the release for your CANN"),
            True,
        )
    paired = cann_versions.CANN_OF.get(its)
    if paired is None or not found or found == paired:
        return
    older = cann_versions.is_older(found, paired)
    undefined = ", and an older CANN may lack functions (undefined symbol at import)" if older else ""
    fitting = [f"torch_npu=={one}" for one in cann_versions.torch_npus_for(found, release(torch))]
    yield Finding(
        f"torch_npu {its} with CANN {found}",
        f"this torch_npu was released for CANN {paired}{undefined}",
        f"install CANN {paired}, or {' or '.join(fitting) or 'another torch_npu'}",
        bool(older),
    )


def python_of_cann(machine: Machine) -> Iterator[Finding]:
    """Check for the Python packages that CANN's operator compiler imports in the job's Python."""
    if not _cann_folder(machine) or not machine.distributions:
        return
    missing = [name for name in _PYTHON_OF_CANN if name not in machine.distributions]
    if missing:
        names = ", ".join(missing)
        yield Finding(
            f"{names}: not installed in this Python",
            f"CANN's operator compiler needs {'it' if len(missing) == 1 else 'them'}: initialization fails with "
            "EH9999 or error code 500001 at the first operator that it compiles",
            f"pip install {' '.join(missing)}",
            True,
        )
    numpy, cann = machine.versions.get("numpy", ""), _cann_version(machine, _cann_folder(machine))
    if release(numpy) >= (2,) and cann_versions.is_older(cann, _NUMPY_2_SINCE):
        yield Finding(
            f"numpy {numpy} with CANN {cann}",
            "the operator compiler of this CANN was built for numpy 1: initialization can fail with error code 500001",
            "pip install 'numpy<2'",
            False,
        )


def _component(machine: Machine, name: str) -> Path:
    """Return the folder of the driver or firmware, from /etc/ascend_install.info."""
    parameter = f"{name.capitalize()}_Install_Path_Param"
    home = settings_of(machine.at("/etc/ascend_install.info")).get(parameter) or _ASCEND
    return machine.at(f"{home}/{name}")


def _version(folder: Path) -> str:
    info = settings_of(folder / "version.info")
    return info.get("package_version") or info.get("Version", "")


def _cann_folder(machine: Machine) -> str:
    home = machine.environ.get("ASCEND_HOME_PATH", "")
    return home if home and machine.at(home).is_dir() else _installed_cann(machine)


def _installed_cann(machine: Machine) -> str:
    """Return the path of a CANN that is installed for all users or for this user, or ""."""
    homes = [_ASCEND, *(f"{home}/Ascend" for home in (machine.environ.get("HOME", ""),) if home)]
    paths = [f"{home}/{name}" for home in homes for name in _CANN_FOLDERS]
    return next((path for path in paths if machine.at(path).is_dir()), "")


def _cann_version(machine: Machine, folder: str) -> str:
    """Return the release of the CANN in ``folder``, such as 8.3.RC1, or "" if unknown."""
    if not folder:
        return ""
    home = machine.at(folder)
    for info in sorted([*home.glob("ascend_*_install.info"), *home.glob("*-linux/ascend_*_install.info")]):
        if version := settings_of(info).get("version"):
            return version
    version = settings_of(home / "version.cfg").get("toolkit_running_version") or settings_of(home / "version.cfg").get(
        "runtime_running_version", ""
    )
    return version.strip("[]").rpartition(":")[2]


def _source(folder: str) -> str:
    home = folder.removesuffix("/latest") if folder else f"{_ASCEND}/ascend-toolkit"
    return f"source {home}/set_env.sh"


def _inside(machine: Machine, path: Path) -> str:
    """Return a path without ``root``, as processes of the host see it."""
    return f"/{path.relative_to(machine.root)}"


def _lines(file: Path) -> list[str]:
    return [line.strip() for line in file.read_text(errors="replace").splitlines()]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(number for number in map(whole_number, version.split(".")) if number is not None)


CHECKS = (driver, firmware, npu_smi, nodes, cann, python_of_cann, torch_npu)
