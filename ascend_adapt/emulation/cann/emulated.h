/* What the parts of the emulated CANN share.
 *
 * Kernels of the device run on the host, in the thread that launches them, as soon as nothing is pending on their stream;
 * only collectives are ever pending, until the worker of their communicator has done them. So a stream is two counters,
 * and an event is a value of the first.
 *
 * Names, signatures and values of the functions of CANN: Ascend/pytorch@9e73e70, third_party/{acl,hccl} and
 * torch_npu/csrc/core/npu/interface, and the names that a torch_npu wheel asks for.
 */
#ifndef ASCEND_ADAPT_EMULATED_H
#define ASCEND_ADAPT_EMULATED_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

enum {
    OK = 0,
    INVALID_DEVICE = 107001,
    INVALID_PARAMETER = 100000,
    UNSUPPORTED = 200006,
    OUT_OF_MEMORY = 207001,
    STREAM_FAILED = 507899,
};

enum { MAX_DEVICES = 64 };

typedef struct Stream {
    int device;
    uint64_t issued; /* tasks launched so far */
    uint64_t done;   /* tasks done so far, in order */
    int64_t done_ns; /* when the last of them was */
    char *failure;   /* why the first failed task did, else NULL */
    struct Stream *next;
} Stream;

/* Counted for the rehearsal report, read through ascend_adapt_emulated_statistics. */
typedef struct Statistics {
    uint64_t stream_synchronisations;
    uint64_t event_synchronisations;
    uint64_t device_synchronisations;
    uint64_t device_bytes[MAX_DEVICES];
    uint64_t peak_device_bytes[MAX_DEVICES];
} Statistics;

extern Statistics emulated_statistics;

/* Keep a text for aclGetRecentErrMsg of this thread; returns code. */
int emulated_failure(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t emulated_now_ns(void);
int emulated_device_count(void);
int emulated_current_device(void);

/* Account for bytes of a device; OUT_OF_MEMORY if it has not got them. Negative numbers give them back. */
int emulated_charge(int device, int64_t bytes);

/* A task begins: its number on the stream. It may run when those before it are done, and ends, failed or not. */
uint64_t emulated_task_issue(Stream *stream);
void emulated_task_await_turn(Stream *stream, uint64_t task);
void emulated_task_done(Stream *stream, uint64_t task, const char *failure);

/* Wait until nothing is pending on a stream; STREAM_FAILED if something on it has failed. */
int emulated_settle(Stream *stream);

#endif
