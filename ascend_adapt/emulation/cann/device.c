/* Devices, contexts, options and versions. */
#include "emulated.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Marks an emulated CANN: a process looks this symbol up in the loaded libascendcl. */
API const char ascend_adapt_emulated[] = "CANN libraries of ascend_adapt on host memory";

Statistics emulated_statistics;

API void ascend_adapt_emulated_statistics(Statistics *out) { *out = emulated_statistics; }

static __thread int current_device = -1;
static char is_used[MAX_DEVICES]; /* whether a thread has set the device */
static __thread char recent_failure[1024];

int emulated_failure(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(recent_failure, sizeof recent_failure, format, arguments);
    va_end(arguments);
    return code;
}

int64_t emulated_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The devices that the job asks for, else one for each rank of this host: torchrun sets LOCAL_WORLD_SIZE, DeepSpeed
   LOCAL_SIZE. ASCEND_RT_VISIBLE_DEVICES restricts them, as on a real machine; an invalid entry ends the list. */
int emulated_device_count(void)
{
    static const char *const counts[] = {"ASCEND_ADAPT_EMULATED_DEVICES", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"};
    int devices = 1;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const char *number = getenv(counts[i]);
        if (number != NULL && atoi(number) > 0) {
            devices = atoi(number);
            break;
        }
    }
    const char *visible = getenv("ASCEND_RT_VISIBLE_DEVICES");
    if (devices > MAX_DEVICES)
        devices = MAX_DEVICES;
    if (visible == NULL)
        return devices;
    int count = 0;
    for (const char *at = visible; *at != '\0'; count++) {
        char *end;
        long id = strtol(at, &end, 10);
        if (end == at || id < 0 || id >= devices)
            break;
        at = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != '\0')
            break;
    }
    return count;
}

int emulated_is_full_size(void)
{
    static int is_on = -1;
    if (is_on < 0)
        is_on = getenv("ASCEND_ADAPT_EMULATED_FULL_SIZE") != NULL;
    return is_on;
}

/* The maximum sizes of tensors that hold values at full size, for the kernels in Python. */
API const int ascend_adapt_emulated_float_bytes = FLOAT_BYTES;
API const int ascend_adapt_emulated_other_bytes = OTHER_BYTES;

int emulated_current_device(void) { return current_device < 0 ? 0 : current_device; }

API int aclInit(const char *path) { return OK; }
API int aclFinalize(void) { return OK; }
API int aclrtGetDeviceCount(uint32_t *count)
{
    *count = (uint32_t)emulated_device_count();
    return OK;
}

/* The utilization of the cube, vector and AI CPU cores and of memory, in percent: the emulated device is never busy. */
API int aclrtGetDeviceUtilizationRate(int32_t device, int32_t *percent)
{
    for (int part = 0; part < 4; part++)
        percent[part] = 0;
    return OK;
}

API int aclrtSetDevice(int32_t device)
{
    int count = emulated_device_count();
    if (device < 0 || device >= count)
        return emulated_failure(INVALID_DEVICE, "device %d: the emulated machine has %d, ascend-run --nproc N gives it N",
                                device, count);
    current_device = device;
    is_used[device] = 1;
    return OK;
}

API int aclrtGetDevice(int32_t *device)
{
    if (current_device < 0)
        return emulated_failure(107002, "no device is set in this thread");
    *device = current_device;
    return OK;
}

API int aclrtResetDevice(int32_t device) { return OK; }

/* A context is represented by its device. */
API int aclrtGetCurrentContext(void **context)
{
    *context = (void *)(intptr_t)(emulated_current_device() + 1);
    return OK;
}

API int aclrtSetCurrentContext(void *context)
{
    if (context != NULL)
        current_device = (int)(intptr_t)context - 1;
    return OK;
}

/* Autograd's thread ignores a device without a context; torch_npu has created no stream there. */
API int aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active)
{
    if (flags != NULL)
        *flags = 0;
    *active = device >= 0 && device < MAX_DEVICES && is_used[device];
    return OK;
}

API const char *aclrtGetSocName(void)
{
    const char *name = getenv("ASCEND_ADAPT_EMULATED_SOC");
    return name != NULL && *name != '\0' ? name : "Ascend910B2";
}

/* 0: AI cores, 1: vector cores, 2: bytes of the L2 cache; the values are those of an Ascend 910B2. */
API int aclGetDeviceCapability(uint32_t device, int which, int64_t *value)
{
    *value = which == 0 ? 24 : which == 1 ? 48 : which == 2 ? (192ll << 20) : 0;
    return OK;
}

API int aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer)
{
    *can = 1;
    return OK;
}

API int aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) { return OK; }
API int aclrtDeviceGetBareTgid(int32_t *pid)
{
    *pid = 1;
    return OK;
}

API const char *aclGetRecentErrMsg(void) { return recent_failure; }
API void aclAppLog(int level, const char *function, const char *file, uint32_t line, const char *format, ...) {}
API int aclrtPeekAtLastError(int level) { return OK; }
API int aclrtGetLastError(int level) { return OK; }

static int64_t options[64];

API int aclrtGetSysParamOpt(int option, int64_t *value)
{
    *value = options[option & 63];
    return OK;
}

API int aclrtSetSysParamOpt(int option, int64_t value)
{
    options[option & 63] = value;
    return OK;
}

API int aclrtCtxGetSysParamOpt(int option, int64_t *value) { return aclrtGetSysParamOpt(option, value); }
API int aclrtCtxSetSysParamOpt(int option, int64_t value) { return aclrtSetSysParamOpt(option, value); }

/* torch_npu chooses the mode by the chip, INF_NAN_MODE_ENABLE and INF_NAN_MODE_FORCE_DISABLE. */
API int ascend_adapt_emulated_saturates;

/* Mode 0 saturates, mode 1 keeps Inf and NaN. */
API int aclrtSetDeviceSatMode(int mode)
{
    ascend_adapt_emulated_saturates = mode == 0;
    return OK;
}

API int aclrtGetDeviceSatMode(int *mode)
{
    *mode = !ascend_adapt_emulated_saturates;
    return OK;
}

/* Whether overflow is detected on a stream, which is always the case here. */
API int aclrtSetStreamOverflowSwitch(Stream *stream, uint32_t flag) { return OK; }
API int aclrtGetStreamOverflowSwitch(Stream *stream, uint32_t *flag)
{
    *flag = 1;
    return OK;
}

API int aclSetCompileopt(int option, const char *value) { return OK; }
API size_t aclGetCompileoptSize(int option) { return 256; }
API int aclGetCompileopt(int option, char *value, size_t size)
{
    if (size > 0)
        value[0] = '\0';
    return OK;
}

API int aclopSetCompileFlag(int flag) { return OK; }
API int aclrtSetOpWaitTimeout(uint32_t seconds) { return OK; }
API int aclrtSetOpExecuteTimeOut(uint32_t seconds) { return OK; }
API int aclrtSetOpExecuteTimeOutWithMs(uint32_t milliseconds) { return OK; }
API int aclrtSetOpExecuteTimeOutV2(uint64_t microseconds, uint64_t *actual)
{
    if (actual != NULL)
        *actual = microseconds;
    return OK;
}

API int aclrtGetOpTimeOutInterval(uint64_t *interval)
{
    *interval = 1;
    return OK;
}

API int aclrtSetExceptionInfoCallback(void *callback) { return OK; }
API int aclrtProcessReport(int timeout) { return OK; }
API int aclmdlInitDump(void) { return OK; }
API int aclmdlSetDump(const char *path) { return OK; }
API int aclmdlFinalizeDump(void) { return OK; }

/* torch_npu compares versions before it uses newer functions. The launcher checks ASCEND_ADAPT_EMULATED_CANN. */
static void write_version(char *version)
{
    const char *wanted = getenv("ASCEND_ADAPT_EMULATED_CANN");
    snprintf(version, 32, "%s", wanted != NULL && *wanted != '\0' ? wanted : "8.5.0");
}

API int aclsysGetVersionStr(char *package, char *version)
{
    write_version(version);
    return OK;
}

/* aclCANNPackageVersion begins with the version text, in 128 characters. */
API int aclsysGetCANNVersion(int package, char *version)
{
    if (version == NULL)
        return emulated_failure(INVALID_PARAMETER, "aclsysGetCANNVersion: the buffer for the version is NULL");
    write_version(version);
    return OK;
}

/* Profiler interface: nothing is profiled. */
API int MsprofRegisterCallback(uint32_t module, void *callback) { return OK; }
API int MsprofReportApi(uint32_t aging, const void *record) { return OK; }
API int MsprofReportCompactInfo(uint32_t aging, const void *record, uint32_t length) { return OK; }
API int MsprofReportAdditionalInfo(uint32_t aging, const void *record, uint32_t length) { return OK; }
API uint64_t MsprofSysCycleTime(void) { return (uint64_t)emulated_now_ns(); }
API uint64_t MsprofGetHashId(const char *text, size_t length) { return 1; }

/* Called by every function that a torch_npu wheel needs and the emulation lacks; see symbols.py. */
int emulated_missing(const char *name)
{
    return emulated_failure(UNSUPPORTED, "%s: the emulated CANN does not have it", name);
}
