/* HCCL between processes of one machine, called by torch_npu's ProcessGroupHCCL.
 *
* Each communicator has a thread that runs its collectives in order. A collective that has not run is pending, as on a
 * device: reading its result without synchronisation returns the old values.
 */
#include "collectives.h"
#include "reduction.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* HcclResult */
enum { E_PARAMETER = 1, E_MEMORY = 3, E_INTERNAL = 4, E_UNSUPPORTED = 5, E_SYSCALL = 8, E_REMOTE = 21 };

/* Device memory for what is sent and received. Communicators with one hccl_buffer_name share it. */
typedef struct Buffer {
    struct Buffer *next;
    int device;
    char name[128];
    int64_t bytes;
    int communicators;
} Buffer;

typedef struct Communicator {
    Mesh mesh;
    Buffer *buffer;
    char name[128];
    unsigned char secret[SECRET_BYTES];
    pthread_t worker;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Task *first, *last;
    int is_closing;
    int has_failed;
    char ranks[256]; /* the job's ranks in this communicator, such as "0,2,4" */
} Communicator;

/* As HCCL declares it; an older torch_npu has fewer of the last members, and the size says so. */
typedef struct Config {
    size_t size;
    uint32_t magic, version;
    uint64_t reserved;
    uint32_t buffer_megabytes;
    uint32_t deterministic;
    char communicator_name[128], udi[128];
    uint32_t where_collectives_run, traffic_class, service_level, world_rank;
    uint64_t job;
    uint8_t has_zero_copy;
    int32_t timeout;
    char algorithm[1600], retries[50], retry_parameters[128];
    char buffer_name[128];
} Config;

enum { IS_NOT_SET = 0xffffffff };
static Buffer *buffers;
static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;

/* A send and a receive buffer have 200 MB each unless the group's hccl_buffer_size or HCCL_BUFFSIZE is set. */
static int64_t buffer_bytes(const Config *config)
{
    const char *megabytes = getenv("HCCL_BUFFSIZE");
    if (config != NULL && config->buffer_megabytes != (uint32_t)IS_NOT_SET && config->buffer_megabytes > 0)
        return (int64_t)config->buffer_megabytes * 2 << 20;
    return 2 * (megabytes != NULL && atoll(megabytes) > 0 ? atoll(megabytes) : 200) << 20;
}

static int has_names(const Config *config) { return config != NULL && config->size >= sizeof *config; }

/* The buffer of a new communicator on this device; NULL without memory for it. */
static Buffer *take_buffer(int device, const Config *config)
{
    const char *name = has_names(config) ? config->buffer_name : "";
    pthread_mutex_lock(&buffers_lock);
    Buffer *found = buffers;
    while (found != NULL && (name[0] == '\0' || found->device != device || strcmp(found->name, name) != 0))
        found = found->next;
    if (found == NULL && (found = calloc(1, sizeof *found)) != NULL) {
        *found = (Buffer){.next = buffers, .device = device, .bytes = buffer_bytes(config)};
        snprintf(found->name, sizeof found->name, "%s", name);
        if (emulated_charge(device, found->bytes) == OK) {
            buffers = found;
        } else {
            free(found);
            found = NULL;
        }
    }
    if (found != NULL)
        found->communicators++;
    pthread_mutex_unlock(&buffers_lock);
    return found;
}

static void release_buffer(Buffer *buffer)
{
    pthread_mutex_lock(&buffers_lock);
    if (--buffer->communicators == 0) {
        Buffer **at = &buffers;
        while (*at != buffer)
            at = &(*at)->next;
        *at = buffer->next;
        emulated_charge(buffer->device, -buffer->bytes);
        free(buffer);
    }
    pthread_mutex_unlock(&buffers_lock);
}

/* ---- traffic: what this rank launched, by collective, dtype, reduction and group ---- */

typedef struct Traffic {
    char name[24];
    char type[16];
    char ranks[256];
    uint64_t calls;
    uint64_t bytes; /* of this rank's tensor, which it reduces, sends or contributes */
} Traffic;

enum { MOST_TRAFFIC = 1024 };
static Traffic traffic[MOST_TRAFFIC];
static int traffics;
static pthread_mutex_t traffic_lock = PTHREAD_MUTEX_INITIALIZER;

static void count_traffic(const char *name, int type, size_t bytes, const Communicator *comm)
{
    pthread_mutex_lock(&traffic_lock);
    Traffic *found = traffic;
    while (found < traffic + traffics && (strcmp(found->name, name) != 0 || strcmp(found->type, type_name(type)) != 0 ||
                                          strcmp(found->ranks, comm->ranks) != 0))
        found++;
    if (found == traffic + traffics && traffics < MOST_TRAFFIC) {
        traffics++;
        snprintf(found->name, sizeof found->name, "%s", name);
        snprintf(found->type, sizeof found->type, "%s", type_name(type));
        snprintf(found->ranks, sizeof found->ranks, "%s", comm->ranks);
    }
    if (found < traffic + traffics) {
        found->calls++;
        found->bytes += bytes;
    }
    pthread_mutex_unlock(&traffic_lock);
}

static void count(const Communicator *comm, const Task *task)
{
    if (task->call.what == SEND_RECV) {
        for (size_t i = 0; i < task->pieces; i++)
            count_traffic(task->out[i].is_recv ? "recv" : "send", task->out[i].type, task->out[i].bytes, comm);
        return;
    }
    size_t bytes = task->count * element_bytes(task->call.type);
    for (int peer = 0; task->out != NULL && peer < comm->mesh.size; peer++)
        bytes = (peer == 0 ? 0 : bytes) + task->out[peer].bytes;
    count_traffic(collective_name(task->call.what), task->call.type, bytes, comm);
}

/* Copy the entry ``index`` to ``out``; return whether it exists. */
API int ascend_adapt_emulated_traffic(int index, Traffic *out)
{
    pthread_mutex_lock(&traffic_lock);
    int exists = index < traffics;
    if (exists)
        *out = traffic[index];
    pthread_mutex_unlock(&traffic_lock);
    return exists;
}

/* Find the job's ranks in a communicator; a process without RANK counts by its place in the communicator. */
static int name_ranks(Communicator *comm)
{
    const char *own = getenv("RANK");
    int32_t rank = own != NULL ? atoi(own) : comm->mesh.rank;
    Parcel *parcels = calloc((size_t)comm->mesh.size, sizeof *parcels);
    int32_t *ranks = calloc((size_t)comm->mesh.size, sizeof *ranks);
    int good = parcels != NULL && ranks != NULL;
    for (int peer = 0; good && peer < comm->mesh.size; peer++)
        parcels[peer] = (Parcel){&rank, sizeof rank, &ranks[peer], sizeof rank, 1, 1};
    good = good && mesh_exchange(&comm->mesh, parcels, &(Call){.text = "creating a communicator"}, 0);
    size_t at = 0;
    for (int peer = 0; good && peer < comm->mesh.size && at < sizeof comm->ranks; peer++)
        at += (size_t)snprintf(comm->ranks + at, sizeof comm->ranks - at, "%s%d", peer == 0 ? "" : ",", ranks[peer]);
    free(parcels);
    free(ranks);
    return good;
}

static void free_task(Task *task)
{
    free(task->out);
    free(task->in);
    free(task);
}

/* Set when the job ends after its steps: a collective that would fail because another rank has ended hangs instead. */
API int ascend_adapt_emulated_is_ending;

static void *work(void *argument)
{
    Communicator *comm = argument;
    for (;;) {
        pthread_mutex_lock(&comm->lock);
        while (comm->first == NULL && !comm->is_closing)
            pthread_cond_wait(&comm->changed, &comm->lock);
        Task *task = comm->first;
        if (task != NULL)
            comm->first = task->next;
        pthread_mutex_unlock(&comm->lock);
        if (task == NULL)
            return NULL;
        emulated_task_await_turn(task->stream, task->number);
        /* After a failure, the connections are out of step and cannot be used again. */
        int good = !comm->has_failed && collective_run(&comm->mesh, task);
        while (!good && ascend_adapt_emulated_is_ending)
            pause();
        comm->has_failed = !good;
        emulated_task_done(task->stream, task->number, good ? NULL : comm->mesh.failure);
        free_task(task);
    }
}

/* ---- communicators ---- */

/* The number of members of the configuration that this CANN knows: up to the name of the buffer. */
API uint32_t HcclGetCommConfigCapability(void) { return 12; }

API int HcclGetRootInfo(unsigned char *root_info)
{
    return getrandom(root_info, SECRET_BYTES, 0) == SECRET_BYTES ? OK : E_SYSCALL;
}

/* A communicator with its buffer, not yet connected; NULL without memory for it.
 * Of the configuration names and the buffer have an effect here, not algorithms and where collectives run.
 */
static Communicator *prepared(uint32_t size, const unsigned char *root_info, uint32_t rank, int device, const Config *config)
{
    Communicator *comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return NULL;
    comm->mesh.size = (int)size;
    comm->mesh.rank = (int)rank;
    memcpy(comm->secret, root_info, sizeof comm->secret);
    if (has_names(config) && config->communicator_name[0] != '\0')
        snprintf(comm->name, sizeof comm->name, "%s", config->communicator_name);
    else
        snprintf(comm->name, sizeof comm->name, "hccl-%02x%02x%02x%02x", root_info[0], root_info[1], root_info[2], root_info[3]);
    comm->buffer = take_buffer(device, config);
    if (comm->buffer == NULL) {
        free(comm);
        return NULL;
    }
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    return comm;
}

/* Connect a communicator to its peers, which takes until all of them do so; return NULL if it failed. */
static void *connected(void *prepared)
{
    Communicator *comm = prepared;
    const char *timeout = getenv("HCCL_CONNECT_TIMEOUT");
    int good = mesh_connect(&comm->mesh, comm->secret, timeout != NULL && atoi(timeout) > 0 ? atoi(timeout) : 120) &&
               name_ranks(comm) && pthread_create(&comm->worker, NULL, work, comm) == 0;
    return good ? comm : NULL;
}

/* Free a communicator that has no worker. */
static void discard(Communicator *comm)
{
    mesh_close(&comm->mesh);
    release_buffer(comm->buffer);
    free(comm);
}

API int HcclCommInitRootInfoConfig(uint32_t size, const unsigned char *root_info, uint32_t rank, const Config *config,
                                   Communicator **out)
{
    Communicator *comm = prepared(size, root_info, rank, emulated_current_device(), config);
    if (comm == NULL)
        return E_MEMORY;
    if (connected(comm) == NULL) {
        emulated_failure(E_INTERNAL, "HCCL: %s", comm->mesh.failure);
        discard(comm);
        return E_INTERNAL;
    }
    *out = comm;
    return OK;
}

API int HcclCommInitRootInfo(uint32_t size, const unsigned char *root_info, uint32_t rank, Communicator **out)
{
    return HcclCommInitRootInfoConfig(size, root_info, rank, NULL, out);
}

API int HcclCommDestroy(Communicator *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->is_closing = 1;
    pthread_cond_signal(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    pthread_join(comm->worker, NULL);
    discard(comm);
    return OK;
}

/* Communicators of this process alone, one for each device, as torch.nn.DataParallel uses them. All are prepared
 * before the first connects, in a thread of its own, because a rank waits for all others.
 */
API int HcclCommInitAll(uint32_t size, int32_t *devices, Communicator **out)
{
    unsigned char secret[SECRET_BYTES];
    uint32_t count = (uint32_t)emulated_device_count();
    for (uint32_t rank = 0; rank < size; rank++)
        if (size > count || (uint32_t)devices[rank] >= count)
            return emulated_failure(E_PARAMETER, "HCCL: HcclCommInitAll of %u devices, also of device %d, expected devices of this machine's %u",
                                    size, devices[rank], count);
    if (HcclGetRootInfo(secret) != OK)
        return E_SYSCALL;
    for (uint32_t rank = 0; rank < size; rank++) {
        out[rank] = prepared(size, secret, rank, devices[rank], NULL);
        if (out[rank] == NULL) {
            while (rank-- > 0)
                discard(out[rank]);
            return E_MEMORY;
        }
    }
    pthread_t threads[MAX_DEVICES];
    int has_thread[MAX_DEVICES], result = OK;
    for (uint32_t rank = 0; rank < size; rank++)
        has_thread[rank] = pthread_create(&threads[rank], NULL, connected, out[rank]) == 0;
    void *ends[MAX_DEVICES] = {NULL};
    for (uint32_t rank = 0; rank < size; rank++)
        if (!has_thread[rank] || pthread_join(threads[rank], &ends[rank]) != 0 || ends[rank] == NULL)
            result = emulated_failure(E_INTERNAL, "HCCL: %s", out[rank]->mesh.failure);
    for (uint32_t rank = 0; result != OK && rank < size; rank++)
        ends[rank] != NULL ? (void)HcclCommDestroy(out[rank]) : discard(out[rank]);
    return result;
}

/* A communicator of some ranks of another one, without a new exchange of a secret: every rank derives the same from the
 * secret of the other, the identifier, and the ranks. A rank that is not among them gets none.
 */
API int HcclCreateSubCommConfig(Communicator **parent, uint32_t size, const uint32_t *ranks, uint64_t identifier,
                                uint32_t rank, const Config *config, Communicator **out)
{
    *out = NULL;
    if (ranks == NULL)
        return OK;
    if (size == 0 || rank >= size || ranks[rank] != (uint32_t)(*parent)->mesh.rank)
        return emulated_failure(E_PARAMETER, "HCCL: HcclCreateSubCommConfig of rank %u in %u ranks, expected one of them",
                                rank, size);
    unsigned char secret[SECRET_BYTES];
    memcpy(secret, (*parent)->secret, sizeof secret);
    uint64_t hash = identifier;
    for (uint32_t i = 0; i < size; i++)
        hash = (hash ^ (ranks[i] + 1)) * 1099511628211u; /* FNV-1a */
    for (size_t i = 0; i < sizeof hash; i++)
        secret[i] ^= (unsigned char)(hash >> 8 * i);
    return HcclCommInitRootInfoConfig(size, secret, rank, config, out);
}

API int HcclGetCommName(Communicator *comm, char *name)
{
    strcpy(name, comm->name);
    return OK;
}

API int HcclGetRankSize(Communicator *comm, uint32_t *size)
{
    *size = (uint32_t)comm->mesh.size;
    return OK;
}

API int HcclGetRankId(Communicator *comm, uint32_t *rank)
{
    *rank = (uint32_t)comm->mesh.rank;
    return OK;
}

/* A failure is reported with its cause when the host waits for the collective, not by a watchdog thread. */
API int HcclGetCommAsyncError(Communicator *comm, int *error)
{
    *error = OK;
    return OK;
}

API const char *HcclGetErrorString(int code) { return code == OK ? "success" : "see aclGetRecentErrMsg"; }
API int HcclSetConfig(int which, int value) { return OK; }

/* ---- collectives ---- */

/* Writes the script line that the calling thread executes, such as ``train.py:12``; the Python kernels set it. */
API void (*ascend_adapt_emulated_locate)(char *into, size_t room);

static void describe(Call *call, const Communicator *comm, const Task *task)
{
    static const char *const reductions[] = {"sum", "product", "max", "min"};
    char reduction[16] = "", root[24] = "", line[128] = "", rank[24] = "";
    if (call->what == ALL_REDUCE || call->what == REDUCE || call->what == REDUCE_SCATTER)
        snprintf(reduction, sizeof reduction, ", %s", reductions[call->operation & 3]);
    if (call->what == BROADCAST || call->what == REDUCE || call->what == SCATTER)
        snprintf(root, sizeof root, ", root %d", call->root);
    const char *of_job = getenv("RANK");
    if (of_job != NULL && atoi(of_job) != comm->mesh.rank)
        snprintf(rank, sizeof rank, " (RANK %d)", atoi(of_job));
    if (ascend_adapt_emulated_locate != NULL)
        ascend_adapt_emulated_locate(line, sizeof line);
    int at = 0;
    if (call->what == SEND_RECV && task->pieces == 1)
        at = snprintf(call->text, sizeof call->text, "%s %d of %zu %s", task->out[0].is_recv ? "recv from" : "send to",
                      task->out[0].peer, task->out[0].bytes / element_bytes(task->out[0].type),
                      type_name(task->out[0].type));
    else if (call->what == SEND_RECV)
        at = snprintf(call->text, sizeof call->text, "a batch of %zu sends and receives", task->pieces);
    else if (call->what == ALL_TO_ALL)
        at = snprintf(call->text, sizeof call->text, "all_to_all of %s", type_name(call->type));
    else
        at = snprintf(call->text, sizeof call->text, "%s of %zu %s%s%s", collective_name(call->what), task->count,
                      type_name(call->type), reduction, root);
    snprintf(call->text + at, sizeof call->text - (size_t)at, "%s%s%s", line[0] != '\0' ? " at " : "", line, rank);
}

static int launch(Communicator *comm, Task description, Stream *stream)
{
    Task *task = malloc(sizeof *task);
    if (task == NULL)
        return E_MEMORY;
    *task = description;
    int what = task->call.what;
    if (what == ALL_REDUCE || what == REDUCE || what == BROADCAST || what == SCATTER)
        task->call.count = task->count;
    describe(&task->call, comm, task);
    count(comm, task);
    task->stream = stream;
    task->comm = comm;
    task->next = NULL;
    pthread_mutex_lock(&comm->lock);
    task->number = emulated_task_issue(stream);
    if (comm->first == NULL)
        comm->first = task;
    else
        comm->last->next = task;
    comm->last = task;
    pthread_cond_signal(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    return OK;
}

static int check(int what, int type, int reduces)
{
    if (element_bytes(type) == 0)
        return emulated_failure(E_UNSUPPORTED, "HCCL: %s of data type %d, which HCCL does not support", collective_name(what), type);
    if (reduces && !can_reduce(type))
        return emulated_failure(E_UNSUPPORTED,
                                "HCCL: %s of %s, expected int8, int16, int32, int64, float16, float32 or bfloat16",
                                collective_name(what), type_name(type));
    return OK;
}

/* ``size`` pieces of a buffer; counts and offsets (in elements) are NULL if all pieces have ``count`` elements. */
static Piece *cut(const Communicator *comm, const void *buffer, const uint64_t *counts, const uint64_t *offsets,
                  uint64_t count, size_t unit)
{
    Piece *pieces = calloc((size_t)comm->mesh.size, sizeof *pieces);
    for (int peer = 0; pieces != NULL && peer < comm->mesh.size; peer++) {
        uint64_t offset = offsets != NULL ? offsets[peer] : count * (uint64_t)peer;
        pieces[peer] = (Piece){(char *)buffer + offset * unit, (counts != NULL ? counts[peer] : count) * unit, peer, 0};
    }
    return pieces;
}

API int HcclAllReduce(void *send, void *recv, uint64_t count, int type, int operation, Communicator *comm, Stream *stream)
{
    int code = check(ALL_REDUCE, type, 1);
    Task task = {.call.what = ALL_REDUCE, .send = send, .recv = recv, .count = count, .call.type = type, .call.operation = operation};
    return code != OK ? code : launch(comm, task, stream);
}

API int HcclReduce(void *send, void *recv, uint64_t count, int type, int operation, uint32_t root, Communicator *comm,
                   Stream *stream)
{
    int code = check(REDUCE, type, 1);
    Task task = {.call.what = REDUCE,         .send = send,           .recv = recv,     .count = count,
                 .call.type = type,           .call.operation = operation, .call.root = (int)root};
    return code != OK ? code : launch(comm, task, stream);
}

API int HcclBroadcast(void *buffer, uint64_t count, int type, uint32_t root, Communicator *comm, Stream *stream)
{
    int code = check(BROADCAST, type, 0);
    Task task = {.call.what = BROADCAST, .send = buffer, .recv = buffer, .count = count, .call.type = type, .call.root = (int)root};
    return code != OK ? code : launch(comm, task, stream);
}

API int HcclScatter(void *send, void *recv, uint64_t count, int type, uint32_t root, Communicator *comm, Stream *stream)
{
    int code = check(SCATTER, type, 0);
    Task task = {.call.what = SCATTER, .send = send, .recv = recv, .count = count, .call.type = type, .call.root = (int)root};
    return code != OK ? code : launch(comm, task, stream);
}

static int all_gather(const void *send, uint64_t count, void *recv, const uint64_t *counts, const uint64_t *offsets,
                      int type, Communicator *comm, Stream *stream)
{
    int code = check(ALL_GATHER, type, 0);
    if (code != OK)
        return code;
    Task task = {.call.what = ALL_GATHER, .send = send, .count = count, .call.type = type};
    task.in = cut(comm, recv, counts, offsets, count, element_bytes(type));
    return task.in == NULL ? E_MEMORY : launch(comm, task, stream);
}

API int HcclAllGather(void *send, void *recv, uint64_t count, int type, Communicator *comm, Stream *stream)
{
    return all_gather(send, count, recv, NULL, NULL, type, comm, stream);
}

API int HcclAllGatherV(void *send, uint64_t count, void *recv, const void *counts, const void *offsets, int type,
                       Communicator *comm, Stream *stream)
{
    return all_gather(send, count, recv, counts, offsets, type, comm, stream);
}

static int reduce_scatter(const void *send, const uint64_t *counts, const uint64_t *offsets, void *recv, uint64_t count,
                          int type, int operation, Communicator *comm, Stream *stream)
{
    int code = check(REDUCE_SCATTER, type, 1);
    if (code != OK)
        return code;
    Task task = {.call.what = REDUCE_SCATTER, .recv = recv, .count = count, .call.type = type, .call.operation = operation};
    task.out = cut(comm, send, counts, offsets, count, element_bytes(type));
    return task.out == NULL ? E_MEMORY : launch(comm, task, stream);
}

API int HcclReduceScatter(void *send, void *recv, uint64_t count, int type, int operation, Communicator *comm,
                          Stream *stream)
{
    return reduce_scatter(send, NULL, NULL, recv, count, type, operation, comm, stream);
}

API int HcclReduceScatterV(void *send, const void *counts, const void *offsets, void *recv, uint64_t count, int type,
                           int operation, Communicator *comm, Stream *stream)
{
    return reduce_scatter(send, counts, offsets, recv, count, type, operation, comm, stream);
}

static int all_to_all(Piece *out, Piece *in, int type, Communicator *comm, Stream *stream)
{
    Task task = {.call.what = ALL_TO_ALL, .call.type = type, .out = out, .in = in};
    if (out != NULL && in != NULL)
        return launch(comm, task, stream);
    free(out);
    free(in);
    return E_MEMORY;
}

API int HcclAlltoAllV(const void *send, const void *send_counts, const void *send_offsets, int send_type,
                      const void *recv, const void *recv_counts, const void *recv_offsets, int recv_type,
                      Communicator *comm, Stream *stream)
{
    int code = check(ALL_TO_ALL, send_type, 0);
    if (code == OK)
        code = check(ALL_TO_ALL, recv_type, 0);
    if (code != OK)
        return code;
    return all_to_all(cut(comm, send, send_counts, send_offsets, 0, element_bytes(send_type)),
                      cut(comm, recv, recv_counts, recv_offsets, 0, element_bytes(recv_type)), send_type, comm, stream);
}

API int HcclAlltoAll(const void *send, uint64_t send_count, int send_type, const void *recv, uint64_t recv_count,
                     int recv_type, Communicator *comm, Stream *stream)
{
    int code = check(ALL_TO_ALL, send_type, 0);
    if (code == OK)
        code = check(ALL_TO_ALL, recv_type, 0);
    if (code != OK)
        return code;
    return all_to_all(cut(comm, send, NULL, NULL, send_count, element_bytes(send_type)),
                      cut(comm, recv, NULL, NULL, recv_count, element_bytes(recv_type)), send_type, comm, stream);
}

/* ---- groups: operations that a thread launches between start and end begin together ----
 *
* The sends and receives of a group become one batch per communicator, which is launched at the end. The collectives of
 * a group are launched immediately, in their order, which is the same on all ranks.
 */

static __thread int group_depth;
static __thread Task *grouped;

/* The batch of this thread's group for a communicator and stream; NULL outside a group. */
static Task *grouped_task(Communicator *comm, Stream *stream)
{
    Task **at = &grouped;
    while (*at != NULL && ((*at)->comm != comm || (*at)->stream != stream))
        at = &(*at)->next;
    if (*at == NULL && group_depth > 0 && (*at = calloc(1, sizeof **at)) != NULL)
        **at = (Task){.call.what = SEND_RECV, .comm = comm, .stream = stream};
    return group_depth > 0 ? *at : NULL;
}

API int HcclGroupStart(void)
{
    group_depth++;
    return OK;
}

API int HcclGroupEnd(void)
{
    if (group_depth == 0)
        return emulated_failure(E_PARAMETER, "HCCL: HcclGroupEnd without HcclGroupStart");
    if (--group_depth > 0)
        return OK;
    int code = OK;
    while (grouped != NULL) {
        Task *task = grouped;
        grouped = task->next;
        task->next = NULL;
        int launched = launch(task->comm, *task, task->stream);
        code = code != OK ? code : launched;
        free(task);
    }
    return code;
}

/* Declared as in HCCL. */
typedef struct SendRecvItem {
    int is_recv;
    void *buffer;
    uint64_t count;
    int type;
    uint32_t peer;
} SendRecvItem;

API int HcclBatchSendRecv(SendRecvItem *items, uint32_t number, Communicator *comm, Stream *stream)
{
    for (uint32_t i = 0; i < number; i++) {
        int code = check(SEND_RECV, items[i].type, 0);
        if (code == OK && items[i].peer >= (uint32_t)comm->mesh.size)
            code = emulated_failure(E_PARAMETER, "HCCL: send/recv with rank %u of %d", items[i].peer, comm->mesh.size);
        if (code != OK)
            return code;
    }
    Task *into = grouped_task(comm, stream);
    Task alone = {.call.what = SEND_RECV};
    if (into == NULL)
        into = &alone;
    Piece *pieces = realloc(into->out, (into->pieces + number + 1) * sizeof *pieces);
    if (pieces == NULL)
        return E_MEMORY;
    into->out = pieces;
    for (uint32_t i = 0; i < number; i++)
        pieces[into->pieces++] = (Piece){items[i].buffer, items[i].count * element_bytes(items[i].type),
                                         (int)items[i].peer, items[i].is_recv, items[i].type};
    return into == &alone ? launch(comm, alone, stream) : OK;
}

API int HcclSend(void *buffer, uint64_t count, int type, uint32_t peer, Communicator *comm, Stream *stream)
{
    return HcclBatchSendRecv(&(SendRecvItem){0, buffer, count, type, peer}, 1, comm, stream);
}

API int HcclRecv(void *buffer, uint64_t count, int type, uint32_t peer, Communicator *comm, Stream *stream)
{
    return HcclBatchSendRecv(&(SendRecvItem){1, buffer, count, type, peer}, 1, comm, stream);
}
