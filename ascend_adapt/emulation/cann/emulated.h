/* Declarations shared by the parts of the emulated CANN.
 *
* Device kernels run on the host, in the launching thread, as soon as no task is pending on their stream. Only
 * collectives are ever pending, until the worker of their communicator has run them. So a stream consists of two
 * counters (issued and done tasks), and an event is a value of the first counter.
 *
 * Names, signatures and values of the functions of CANN: Ascend/pytorch@9e73e70, third_party/{acl,hccl} and
 * torch_npu/csrc/core/npu/interface, and the symbols that a torch_npu wheel requires.
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
    int64_t done_ns; /* time at which the last of them was done */
    char *failure;   /* failure of the first failed task, else NULL */
    struct Stream *next;
} Stream;

/* Counters for the rehearsal report, which reads them through ascend_adapt_emulated_statistics. */
typedef struct Statistics {
    uint64_t stream_synchronisations;
    uint64_t event_synchronisations;
    uint64_t device_synchronisations;
    uint64_t device_bytes[MAX_DEVICES];
    uint64_t peak_device_bytes[MAX_DEVICES];
} Statistics;

extern Statistics emulated_statistics;

/* Whether the device saturates, and its overflow flag, which stays set from an overflow until it is cleared. */
extern int ascend_adapt_emulated_saturates;
extern int ascend_adapt_emulated_overflow;

/* At full size (ASCEND_ADAPT_EMULATED_FULL_SIZE), device memory is reserved, and only small tensors hold values:
 * floating-point tensors of at most FLOAT_BYTES, and others (token ids, masks) of at most OTHER_BYTES. */
enum { FLOAT_BYTES = 64 << 10, OTHER_BYTES = 4 << 20 };
int emulated_is_full_size(void);

/* Store a message for aclGetRecentErrMsg of this thread; returns code. */
int emulated_failure(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t emulated_now_ns(void);
int emulated_device_count(void);
int emulated_current_device(void);

/* Reserve bytes of a device; return OUT_OF_MEMORY if the device lacks them. Negative numbers release bytes. */
int emulated_charge(int device, int64_t bytes);

/* Begin a task; return its number on the stream. The task may run when all earlier tasks are done. */
uint64_t emulated_task_issue(Stream *stream);
void emulated_task_await_turn(Stream *stream, uint64_t task);
void emulated_task_done(Stream *stream, uint64_t task, const char *failure);

/* Wait until no task is pending on a stream; return STREAM_FAILED if a task has failed. */
int emulated_settle(Stream *stream);

/* Copy once the stream has settled; at full size only small tensors, which hold values. */
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, Stream *stream);

#endif
