/* Streams and events. */
#include "emulated.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;

typedef struct Event {
    Stream *stream; /* the stream on which it was last recorded, else NULL */
    uint64_t task;  /* the last task before it */
    int64_t ns;     /* when it was reached, 0 if not queried since */
} Event;

/* Number of pending tasks of all streams; as_cpu reads it and then waits for the current stream. */
API int ascend_adapt_emulated_pending;

uint64_t emulated_task_issue(Stream *stream)
{
    pthread_mutex_lock(&lock);
    ascend_adapt_emulated_pending++;
    uint64_t task = ++stream->issued;
    pthread_mutex_unlock(&lock);
    return task;
}

void emulated_task_await_turn(Stream *stream, uint64_t task)
{
    pthread_mutex_lock(&lock);
    while (stream->done < task - 1)
        pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
}

void emulated_task_done(Stream *stream, uint64_t task, const char *failure)
{
    pthread_mutex_lock(&lock);
    ascend_adapt_emulated_pending--;
    stream->done = task;
    stream->done_ns = emulated_now_ns();
    if (failure != NULL && stream->failure == NULL)
        stream->failure = strdup(failure);
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

/* Called with the lock held. */
static int wait_until(Stream *stream, uint64_t task)
{
    while (stream->done < task)
        pthread_cond_wait(&moved, &lock);
    return stream->failure == NULL ? OK : STREAM_FAILED;
}

static int wait_for(Stream *stream, uint64_t task)
{
    pthread_mutex_lock(&lock);
    int code = wait_until(stream, task);
    pthread_mutex_unlock(&lock);
    return code == OK ? OK : emulated_failure(code, "%s", stream->failure);
}

static Stream *streams;

int emulated_settle(Stream *stream) { return stream == NULL ? OK : wait_for(stream, stream->issued); }
API int ascend_adapt_emulated_settle(Stream *stream) { return emulated_settle(stream); }

API int aclrtCreateStreamWithConfig(Stream **stream, uint32_t priority, uint32_t flags)
{
    *stream = calloc(1, sizeof **stream);
    if (*stream == NULL)
        return OUT_OF_MEMORY;
    (*stream)->device = emulated_current_device();
    pthread_mutex_lock(&lock);
    (*stream)->next = streams;
    streams = *stream;
    pthread_mutex_unlock(&lock);
    return OK;
}

API int aclrtCreateStream(Stream **stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }

API int aclrtDestroyStream(Stream *stream)
{
    /* Not freed, because events recorded on a stream may outlive it; a process creates a few dozen streams at most. */
    return emulated_settle(stream);
}

API int aclrtDestroyStreamForce(Stream *stream) { return OK; }
API int aclrtSetStreamFailureMode(Stream *stream, uint64_t mode) { return OK; }
API int aclrtGetStreamAvailableNum(uint32_t *number)
{
    *number = 64;
    return OK;
}

API int aclrtStreamGetId(Stream *stream, int32_t *id)
{
    *id = (int32_t)((uintptr_t)stream >> 4);
    return OK;
}

/* Status 0: all tasks of the stream are done, 1: not yet. */
API int aclrtStreamQuery(Stream *stream, int *status)
{
    pthread_mutex_lock(&lock);
    *status = stream->done == stream->issued ? 0 : 1;
    pthread_mutex_unlock(&lock);
    return OK;
}

API int aclrtSynchronizeStreamWithTimeout(Stream *stream, int32_t milliseconds)
{
    __atomic_add_fetch(&emulated_statistics.stream_synchronisations, 1, __ATOMIC_RELAXED);
    return emulated_settle(stream);
}

API int aclrtSynchronizeStream(Stream *stream) { return aclrtSynchronizeStreamWithTimeout(stream, -1); }

API int aclrtSynchronizeDeviceWithTimeout(int32_t milliseconds)
{
    __atomic_add_fetch(&emulated_statistics.device_synchronisations, 1, __ATOMIC_RELAXED);
    int device = emulated_current_device();
    const char *failure = NULL;
    pthread_mutex_lock(&lock);
    for (Stream *stream = streams; stream != NULL; stream = stream->next) {
        if (stream->device == device && wait_until(stream, stream->issued) != OK)
            failure = stream->failure;
    }
    pthread_mutex_unlock(&lock);
    return failure == NULL ? OK : emulated_failure(STREAM_FAILED, "%s", failure);
}

API int aclrtSynchronizeDevice(void) { return aclrtSynchronizeDeviceWithTimeout(-1); }

API int aclrtCreateEventExWithFlag(Event **event, uint32_t flag)
{
    *event = calloc(1, sizeof **event);
    return *event != NULL ? OK : OUT_OF_MEMORY;
}

API int aclrtCreateEventWithFlag(Event **event, uint32_t flag) { return aclrtCreateEventExWithFlag(event, flag); }
API int aclrtCreateEvent(Event **event) { return aclrtCreateEventExWithFlag(event, 0); }

API int aclrtDestroyEvent(Event *event)
{
    free(event);
    return OK;
}

API int aclrtRecordEvent(Event *event, Stream *stream)
{
    pthread_mutex_lock(&lock);
    event->stream = stream;
    event->task = stream != NULL ? stream->issued : 0;
    event->ns = stream == NULL || stream->done == stream->issued ? emulated_now_ns() : 0;
    pthread_mutex_unlock(&lock);
    return OK;
}

API int aclrtResetEvent(Event *event, Stream *stream)
{
    pthread_mutex_lock(&lock);
    event->stream = NULL;
    pthread_mutex_unlock(&lock);
    return OK;
}

static int is_reached(const Event *event) { return event->stream == NULL || event->stream->done >= event->task; }

static int wait_for_event(Event *event)
{
    pthread_mutex_lock(&lock);
    Stream *stream = event->stream;
    int code = stream == NULL ? OK : wait_until(stream, event->task);
    if (stream != NULL && event->ns == 0)
        event->ns = stream->done_ns;
    pthread_mutex_unlock(&lock);
    return code == OK ? OK : emulated_failure(code, "%s", stream->failure);
}

/* Kernels that are launched later on the stream run immediately, so the launching thread has to wait. */
API int aclrtStreamWaitEvent(Stream *stream, Event *event) { return wait_for_event(event); }

API int aclrtSynchronizeEvent(Event *event)
{
    __atomic_add_fetch(&emulated_statistics.event_synchronisations, 1, __ATOMIC_RELAXED);
    return wait_for_event(event);
}

/* Status 0: the event is not yet reached, 1: reached. */
API int aclrtQueryEventStatus(Event *event, int *status)
{
    pthread_mutex_lock(&lock);
    *status = is_reached(event);
    pthread_mutex_unlock(&lock);
    return OK;
}

/* The older query, with inverted results: 0 is reached, 1 is not yet. */
API int aclrtQueryEvent(Event *event, int *status)
{
    int reached;
    aclrtQueryEventStatus(event, &reached);
    *status = !reached;
    return OK;
}

API int aclrtQueryEventWaitStatus(Event *event, int *status) { return aclrtQueryEvent(event, status); }

API int aclrtEventElapsedTime(float *milliseconds, Event *start, Event *end)
{
    int code = wait_for_event(start);
    if (code == OK)
        code = wait_for_event(end);
    if (code == OK && (start->ns == 0 || end->ns == 0))
        return emulated_failure(INVALID_PARAMETER, "elapsed time: an event was never recorded");
    *milliseconds = (float)((double)(end->ns - start->ns) / 1e6);
    return code;
}

API int aclrtEventGetTimestamp(Event *event, uint64_t *microseconds)
{
    int code = wait_for_event(event);
    *microseconds = (uint64_t)(event->ns / 1000);
    return code;
}
