/* Collectives of one communicator, on host memory; they run in the calling thread, over its connections. */
#ifndef ASCEND_ADAPT_COLLECTIVES_H
#define ASCEND_ADAPT_COLLECTIVES_H

#include "connection.h"
#include "emulated.h"

enum { ALL_REDUCE = 1, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SCATTER, ALL_TO_ALL, SEND_RECV };

/* A piece of a buffer, for one rank or for one item of a batch of sends and receives. */
typedef struct Piece {
    char *at;
    size_t bytes;
    int peer;
    int is_recv;
    int type; /* element type of an item of a batch */
} Piece;

typedef struct Task {
    Call call;
    const char *send;
    char *recv;
    size_t count; /* elements; in a reduction, those of all ranks together */
    Piece *out; /* [size] for a collective whose pieces differ, or [pieces] for a batch */
    Piece *in;
    size_t pieces;
    struct Communicator *comm;
    Stream *stream;
    uint64_t number;
    struct Task *next;
} Task;

const char *collective_name(int what);

/* Run a collective together with the other ranks. Return whether it succeeded; if not, the mesh holds the failure. */
int collective_run(Mesh *mesh, Task *task);

#endif
