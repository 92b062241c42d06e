#include "collectives.h"

#include "reduction.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *collective_name(int what)
{
    static const char *const names[] = {"nothing",        "all_reduce", "broadcast",  "reduce",   "all_gather",
                                        "reduce_scatter", "scatter",    "all_to_all", "send/recv"};
    return what > 0 && what <= SEND_RECV ? names[what] : names[0];
}

static int exchange(Mesh *mesh, Parcel *parcels, const Task *task)
{
    return mesh_exchange(mesh, parcels, &task->call, task->call.what == SEND_RECV);
}

static int no_memory(Mesh *mesh)
{
    snprintf(mesh->failure, sizeof mesh->failure, "rank %d: the host is out of memory", mesh->rank);
    return 0;
}

/* The share of ``count`` elements that rank ``rank`` reduces. */
static size_t share_begin(const Mesh *mesh, size_t count, int rank)
{
    return count / (size_t)mesh->size * (size_t)rank + ((size_t)rank < count % (size_t)mesh->size
                                                                  ? (size_t)rank
                                                                  : count % (size_t)mesh->size);
}

/* Send each rank its piece of ``out``; reduce the received pieces, in rank order, into ``result``. */
static int reduce_pieces(Mesh *mesh, const Task *task, const Piece *out, char *result, size_t count, int root)
{
    int size = mesh->size, rank = mesh->rank;
    size_t bytes = count * element_bytes(task->call.type);
    int receives = root < 0 || root == rank;
    int has_values = mesh_sent(bytes, task->call.type) == bytes;
    char *came = receives ? malloc((has_values ? bytes * (size_t)size : 0) + 1) : NULL;
    Parcel *parcels = calloc((size_t)size, sizeof *parcels);
    int good = parcels != NULL && (!receives || came != NULL);
    if (!good)
        no_memory(mesh);
    for (int peer = 0; good && peer < size; peer++) {
        int sends = root < 0 || root == peer;
        parcels[peer] = (Parcel){sends ? out[peer].at : NULL, sends ? out[peer].bytes : 0,
                                 receives ? came + (has_values ? bytes * (size_t)peer : 0) : NULL, receives ? bytes : 0, sends, receives};
    }
    good = good && exchange(mesh, parcels, task);
    if (good && receives && has_values) {
        memcpy(result, came, bytes);
        for (int peer = 1; peer < size; peer++)
            reduce(result, came + bytes * (size_t)peer, count, task->call.type, task->call.operation);
    }
    free(came);
    free(parcels);
    return good;
}

static int gather_pieces(Mesh *mesh, const Task *task, const char *own, size_t own_bytes, const Piece *in)
{
    Parcel *parcels = calloc((size_t)mesh->size, sizeof *parcels);
    if (parcels == NULL)
        return no_memory(mesh);
    for (int peer = 0; peer < mesh->size; peer++)
        parcels[peer] = (Parcel){own, own_bytes, in[peer].at, in[peer].bytes, 1, 1};
    int good = exchange(mesh, parcels, task);
    free(parcels);
    return good;
}

static int run_all_reduce(Mesh *mesh, Task *task)
{
    int size = mesh->size, rank = mesh->rank;
    size_t unit = element_bytes(task->call.type);
    Piece *out = calloc((size_t)size * 2, sizeof *out), *in = out + size;
    if (out == NULL)
        return no_memory(mesh);
    for (int peer = 0; peer < size; peer++) {
        size_t begin = share_begin(mesh, task->count, peer), end = share_begin(mesh, task->count, peer + 1);
        out[peer] = (Piece){(char *)task->send + begin * unit, (end - begin) * unit, peer, 0};
        in[peer] = (Piece){task->recv + begin * unit, (end - begin) * unit, peer, 1};
    }
    int good = reduce_pieces(mesh, task, out, in[rank].at, in[rank].bytes / unit, -1) &&
               gather_pieces(mesh, task, in[rank].at, in[rank].bytes, in);
    free(out);
    return good;
}

static int run_reduce(Mesh *mesh, Task *task)
{
    Piece *out = calloc((size_t)mesh->size, sizeof *out);
    if (out == NULL)
        return no_memory(mesh);
    out[task->call.root] = (Piece){(char *)task->send, task->count * element_bytes(task->call.type), task->call.root, 0};
    int good = reduce_pieces(mesh, task, out, task->recv, task->count, task->call.root);
    free(out);
    return good;
}

static int run_from_root(Mesh *mesh, Task *task)
{
    int rank = mesh->rank;
    size_t bytes = task->count * element_bytes(task->call.type);
    Parcel *parcels = calloc((size_t)mesh->size, sizeof *parcels);
    if (parcels == NULL)
        return no_memory(mesh);
    for (int peer = 0; peer < mesh->size; peer++) {
        size_t offset = task->call.what == SCATTER ? bytes * (size_t)peer : 0;
        if (rank == task->call.root)
            parcels[peer] = (Parcel){task->send + offset, bytes, task->recv, bytes, 1, peer == rank};
        else if (peer == task->call.root)
            parcels[peer] = (Parcel){NULL, 0, task->recv, bytes, 0, 1};
    }
    int good = exchange(mesh, parcels, task);
    free(parcels);
    return good;
}

static int run_all_to_all(Mesh *mesh, Task *task)
{
    Parcel *parcels = calloc((size_t)mesh->size, sizeof *parcels);
    if (parcels == NULL)
        return no_memory(mesh);
    for (int peer = 0; peer < mesh->size; peer++)
        parcels[peer] = (Parcel){task->out[peer].at, task->out[peer].bytes, task->in[peer].at, task->in[peer].bytes, 1, 1};
    int good = exchange(mesh, parcels, task);
    free(parcels);
    return good;
}

/* The k-th send to a rank pairs with the k-th receive on that rank; each round does the next send and receive of every
 * rank. */
static int run_batch(Mesh *mesh, Task *task)
{
    Parcel *parcels = calloc((size_t)mesh->size, sizeof *parcels);
    int good = parcels != NULL;
    size_t left = task->pieces;
    while (good && left > 0) {
        memset(parcels, 0, sizeof *parcels * (size_t)mesh->size);
        for (size_t i = 0; i < task->pieces; i++) {
            Piece *piece = &task->out[i];
            Parcel *parcel = piece->peer >= 0 ? &parcels[piece->peer] : NULL;
            if (parcel == NULL || (piece->is_recv ? parcel->has_in : parcel->has_out))
                continue;
            if (piece->is_recv)
                parcel->in = piece->at, parcel->in_bytes = piece->bytes, parcel->in_type = piece->type, parcel->has_in = 1;
            else
                parcel->out = piece->at, parcel->out_bytes = piece->bytes, parcel->out_type = piece->type, parcel->has_out = 1;
            piece->peer = -1;
            left--;
        }
        good = exchange(mesh, parcels, task);
    }
    free(parcels);
    return good;
}

int collective_run(Mesh *mesh, Task *task)
{
    switch (task->call.what) {
    case ALL_REDUCE:
        return run_all_reduce(mesh, task);
    case REDUCE:
        return run_reduce(mesh, task);
    case BROADCAST:
    case SCATTER:
        return run_from_root(mesh, task);
    case ALL_GATHER:
        return gather_pieces(mesh, task, task->send, task->count * element_bytes(task->call.type), task->in);
    case REDUCE_SCATTER:
        return reduce_pieces(mesh, task, task->out, task->recv, task->count, -1);
    case ALL_TO_ALL:
        return run_all_to_all(mesh, task);
    default:
        return run_batch(mesh, task);
    }
}
