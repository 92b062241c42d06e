/* Connections of a communicator: one local socket per pair of ranks. */
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

/* Data that one rank sends to and receives from another rank; NULL and 0 for no data. */
typedef struct Parcel {
    const void *out;
    size_t out_bytes;
    void *in;
    size_t in_bytes;
    int has_out;
    int has_in;
    int out_type; /* of an item of a batch of sends and receives */
    int in_type;
    size_t out_sent; /* transferred bytes: all, or 0 for data without values at full size */
    size_t in_sent;
} Parcel;

/* A call of a collective. All members except text must be the same on all ranks. */
typedef struct Call {
    int32_t what;
    int32_t type;
    int32_t operation;
    int32_t root;
    uint64_t count; /* elements, if all ranks give the same number */
    char text[232]; /* for error messages: the collective, its tensor, the script line, the rank in the job */
} Call;

/* The number of bytes of a piece that pass between ranks: 0 if the piece holds no values. */
size_t mesh_sent(size_t bytes, int type);

/* Connect each pair of ranks; all ranks use the same secret. Return whether it succeeded; else see failure. */
int mesh_connect(Mesh *mesh, const unsigned char secret[SECRET_BYTES], int timeout_s);
void mesh_close(Mesh *mesh);

/* Exchange one parcel with each rank, including this rank. Every rank checks the call of every other rank, so that a
 * differing call fails even if no data is sent. ``one_sided`` calls (sends, receives) are only checked with data.
 */
int mesh_exchange(Mesh *mesh, Parcel *parcels, const Call *call, int one_sided);

#endif
