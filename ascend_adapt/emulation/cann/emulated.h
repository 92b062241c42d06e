/* Declarations shared by the parts of the emulated CANN.
 *
 * Device kernels run on the host, in the launching thread, as soon as no task is pending on their stream. Only
 * collectives are ever pending, until the worker of their communicator has run them. So a stream is two counters, and an
 * event is a value of the first.
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
    int64_t done_ns; /* when the last of them was done */
    char *failure;   /* why the first failed task failed, else NULL */
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

/* Whether the device saturates, and its flag: set when a result overflows, until it is cleared. */
extern int ascend_adapt_emulated_saturates;
extern int ascend_adapt_emulated_overflow;

/* At full size (ASCEND_ADAPT_EMULATED_FULL_SIZE) device memory is reserved, and only small tensors hold values: those of
 * at most FLOAT_BYTES of floating numbers, or OTHER_BYTES of others, such as token ids and masks. */
enum { FLOAT_BYTES = 64 << 10, OTHER_BYTES = 4 << 20 };
int emulated_is_full_size(void);

/* Store a message for aclGetRecentErrMsg of this thread; returns code. */
int emulated_failure(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t emulated_now_ns(void);
int emulated_device_count(void);
int emulated_current_device(void);

/* Reserve bytes of a device; OUT_OF_MEMORY if it does not have them. Negative numbers release them. */
int emulated_charge(int device, int64_t bytes);

/* Begin a task; returns its number on the stream. It may run when all earlier ones are done, and ends, failed or not. */
uint64_t emulated_task_issue(Stream *stream);
void emulated_task_await_turn(Stream *stream, uint64_t task);
void emulated_task_done(Stream *stream, uint64_t task, const char *failure);

/* Wait until no task is pending on a stream; STREAM_FAILED if one has failed. */
int emulated_settle(Stream *stream);

#endif
