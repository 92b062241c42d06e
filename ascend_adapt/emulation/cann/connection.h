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
    char failure[512];
} Mesh;

/* Data that one rank sends to, and receives from, another; NULL and 0 for nothing. */
typedef struct Parcel {
    const void *out;
    size_t out_bytes;
    void *in;
    size_t in_bytes;
    int has_out;
    int has_in;
} Parcel;

/* Connect each pair of ranks; all ranks call it with the same secret. Returns whether it succeeded, else see failure. */
int mesh_connect(Mesh *mesh, const unsigned char secret[SECRET_BYTES], int timeout_s);
void mesh_close(Mesh *mesh);

/* Exchange one parcel with each rank, itself included; ``what`` names the collective and must be the same on all ranks. */
int mesh_exchange(Mesh *mesh, Parcel *parcels, int what, const char *(*name)(int what));

#endif
