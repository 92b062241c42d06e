/* The profiler of CANN records nothing. A trace only has what torch_npu records: operators with names, shapes and host
 * times.
 */
#include "emulated.h"

#include <stdlib.h>

API int aclprofInit(const char *folder, size_t length) { return OK; }
API int aclprofFinalize(void) { return OK; }
API void *aclprofCreateConfig(uint32_t *devices, uint32_t number, int metrics, const void *events, uint64_t types)
{
    return malloc(1);
}
API int aclprofDestroyConfig(void *config)
{
    free(config);
    return OK;
}
API int aclprofSetConfig(int which, const char *value, size_t length) { return OK; }
API int aclprofWarmup(const void *config) { return OK; }
API int aclprofStart(const void *config) { return OK; }
API int aclprofStop(const void *config) { return OK; }
API int aclprofMarkEx(const char *text, size_t length, void *stream) { return OK; }

/* mspti, for torch.profiler: no device activity is ever delivered. */
API int msptiSubscribe(void **subscriber, void *callback, void *data)
{
    *subscriber = data;
    return OK;
}
API int msptiUnsubscribe(void *subscriber) { return OK; }
API int msptiActivityRegisterCallbacks(void *request, void *complete) { return OK; }
API int msptiActivityEnable(int kind) { return OK; }
API int msptiActivityDisable(int kind) { return OK; }
API int msptiActivityFlushAll(uint32_t flag) { return OK; }
API int msptiActivityPushExternalCorrelationId(int kind, uint64_t id) { return OK; }
API int msptiActivityPopExternalCorrelationId(int kind, uint64_t *last)
{
    if (last != NULL)
        *last = 0;
    return OK;
}
