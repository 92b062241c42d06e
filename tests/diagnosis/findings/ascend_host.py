"""Stand-in for a server with two Ascend 910B4: the files that driver, firmware and CANN leave, in a folder.

Contents follow version.info files and npu-smi output that users published; nothing here is Huawei's.
"""

from __future__ import annotations

import os
from pathlib import Path

DRIVER = """\
Version=24.1.rc3
ascendhal_version=7.35.23
Innerversion=V100R001C19SPC001B124
compatible_version=[V100R001C13],[V100R001C15],[V100R001C17],[V100R001C18],[V100R001C19]
compatible_version_fw=[6.4.0,6.4.99],[7.0.0,7.5.99]
package_version=24.1.rc3
"""
FIRMWARE = """\
Version=7.5.0.1.129
firmware_version=1.0
package_version=24.1.rc3
compatible_version_drv=[23.0.0,23.0.0.],[24.0,24.0.],[24.1,24.1.]
"""
NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3                 Version: 24.1.rc3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4               | OK            | 88.2        30                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          26838/ 32768         |
+===========================+===============+====================================================+
| 1     910B4               | OK            | 87.0        30                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          29356/ 32768         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 71            | python                   | 21400                   |
+===========================+===============+====================================================+
"""
DRIVER_LIBRARIES = "/usr/local/Ascend/driver/lib64/driver"
TOOLKIT = "/usr/local/Ascend/ascend-toolkit/latest"


def make(root: Path) -> dict[str, str]:
    """Lay out the host in ``root`` and return the environment that set_env.sh of its CANN makes."""

    def write(path: str, text: str = "") -> Path:
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    for node in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
        write(f"/dev/{node}").chmod(0o660)
    write("/etc/passwd", f"root:x:{os.getuid()}:0::/root:/bin/bash\n")
    write("/etc/group", f"root:x:65530:\nHwHiAiUser:x:{os.getgid()}:\n")
    write("/etc/ascend_install.info", "UserName=HwHiAiUser\nDriver_Install_Path_Param=/usr/local/Ascend\n")
    write("/usr/local/Ascend/driver/version.info", DRIVER)
    write("/usr/local/Ascend/firmware/version.info", FIRMWARE)
    write(f"{DRIVER_LIBRARIES}/libascend_hal.so")
    toolkit = "/usr/local/Ascend/ascend-toolkit/8.3.RC1"
    info = "package_name=Ascend-cann-toolkit\nversion=8.3.RC1\ninnerversion=V100R001C23SPC001B235\n"
    write(f"{toolkit}/x86_64-linux/ascend_toolkit_install.info", info)
    write(f"{toolkit}/version.cfg", "# version: 1.0\ntoolkit_running_version=[7.8.0.0.201:8.3.RC1]\n")
    write(f"{toolkit}/lib64/libascendcl.so")
    write(f"{toolkit}/opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b/add/add.o")
    (root / TOOLKIT.lstrip("/")).symlink_to("8.3.RC1")
    write("/usr/local/bin/npu-smi", f"#!/bin/sh\ncat <<'TABLE'\n{NPU_SMI}TABLE\n").chmod(0o755)
    return {
        "ASCEND_HOME_PATH": TOOLKIT,
        "ASCEND_OPP_PATH": f"{TOOLKIT}/opp",
        "LD_LIBRARY_PATH": f"{TOOLKIT}/lib64:{DRIVER_LIBRARIES}",
    }
