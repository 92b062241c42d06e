/* Connections of a communicator: one local socket for each pair of ranks. */
#ifndef ASCEND_ADAPT_CONNECTION_H
#define ASCEND_ADAPT_CONNECTION_H

#include <stddef.h>
#include <stdint.h>

enum { SECRET_BYTES = 16 };

typedef struct Mesh {
    int size;
    int rank;
    int *sockets; /* [size], -1 at rank */
    char failure[1024];
} Mesh;

/* Data that one rank sends to, and receives from, another; NULL and 0 for nothing. */
typedef struct Parcel {
    const void *out;
    size_t out_bytes;
    void *in;
    size_t in_bytes;
    int has_out;
    int has_in;
    int out_type; /* of an item of a batch of sends and receives */
    int in_type;
    size_t out_sent; /* bytes that pass: all, or none of data without values at full size */
    size_t in_sent;
} Parcel;

/* A call of a collective, which must be the same on all ranks, except for its text. */
typedef struct Call {
    int32_t what;
    int32_t type;
    int32_t operation;
    int32_t root;
    uint64_t count; /* elements, where all ranks give the same number */
    char text[232]; /* for a person: the collective, its tensor, the line of the script, the rank in the job */
} Call;

/* The bytes of a piece of ``bytes`` elements of a type that pass between ranks: none if it holds no values. */
size_t mesh_sent(size_t bytes, int type);

/* Connect each pair of ranks; all ranks call it with the same secret. Returns whether it succeeded, else see failure. */
int mesh_connect(Mesh *mesh, const unsigned char secret[SECRET_BYTES], int timeout_s);
void mesh_close(Mesh *mesh);

/* Exchange one parcel with each rank, itself included. Every rank checks the call of every other one, so that a call that
 * differs fails even if no data would pass; only ``one_sided`` calls (sends and receives) are checked where data passes.
 */
int mesh_exchange(Mesh *mesh, Parcel *parcels, const Call *call, int one_sided);

#endif
