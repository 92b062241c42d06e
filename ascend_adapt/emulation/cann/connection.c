/* Sockets in Linux's abstract namespace, which leave no file and use no port. Only this user may connect. */
#define _GNU_SOURCE
#include "connection.h"

#include "emulated.h"
#include "reduction.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef struct Header {
    Call call;
    uint64_t bytes;
    int64_t type;
} Header;

static int fail(Mesh *mesh, const char *what, int peer)
{
    snprintf(mesh->failure, sizeof mesh->failure, "rank %d of %d: %s (rank %d)", mesh->rank, mesh->size, what, peer);
    return 0;
}

/* ---- the collective in which each rank waits, for error messages of ranks that wait in another one ---- */

static int path_of_wait(char *path, size_t room, pid_t process)
{
    const char *folder = getenv("ASCEND_ADAPT_RUN_DIR");
    return folder != NULL && (size_t)snprintf(path, room, "%s/.waits.%d", folder, (int)process) < room;
}

static void write_wait(const Mesh *mesh, const Call *call)
{
    char path[4096];
    FILE *file = path_of_wait(path, sizeof path, getpid()) ? fopen(path, "w") : NULL;
    if (file == NULL)
        return;
    fprintf(file, "%s of another group, of %d ranks", call->text, mesh->size);
    fclose(file);
}

static void remove_wait(void)
{
    char path[4096];
    if (path_of_wait(path, sizeof path, getpid()))
        unlink(path);
}

static void read_wait(int socket, char *text, int room)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    char path[4096];
    FILE *file = NULL;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && path_of_wait(path, sizeof path, peer.pid))
        file = fopen(path, "r");
    if (file == NULL || fgets(text, room, file) == NULL)
        snprintf(text, (size_t)room, "in no collective");
    if (file != NULL)
        fclose(file);
}

static int fail_late(Mesh *mesh, const Call *call, int peer)
{
    char other[400];
    read_wait(mesh->sockets[peer], other, sizeof other);
    snprintf(mesh->failure, sizeof mesh->failure,
             "rank %d of %d: is in %s, and rank %d has not joined it within HCCL_EXEC_TIMEOUT: that rank is %s%s — all ranks of a "
             "group must call the same collectives",
             mesh->rank, mesh->size, call->text, peer, strncmp(other, "in ", 3) == 0 ? "" : "in ", other);
    return 0;
}

static int is_same_call(const Call *one, const Call *other)
{
    return one->what == other->what && one->type == other->type && one->operation == other->operation &&
           one->root == other->root && one->count == other->count;
}

static int fail_apart(Mesh *mesh, const Call *call, const Parcel *parcel, int peer, const Header *came)
{
    char sizes[96] = "";
    if (is_same_call(&came->call, call) && came->bytes != parcel->in_bytes)
        snprintf(sizes, sizeof sizes, " and sends %llu bytes where %zu are expected", (unsigned long long)came->bytes,
                 parcel->in_bytes);
    snprintf(mesh->failure, sizeof mesh->failure,
             "rank %d of %d: is in %s; rank %d is in %s%s — all ranks of a group must call the same collectives, in the same "
             "order, with the same dtype, reduction, root and matching shapes",
             mesh->rank, mesh->size, call->text, peer, came->call.text, sizes);
    return 0;
}

static socklen_t address_of(struct sockaddr_un *address, const unsigned char secret[SECRET_BYTES], int rank)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    char *name = address->sun_path + 1;
    int length = sprintf(name, "ascend-hccl-");
    for (int i = 0; i < SECRET_BYTES; i++)
        length += sprintf(name + length, "%02x", secret[i]);
    length += sprintf(name + length, "-%d", rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int is_this_user(int fd)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == getuid();
}

static void sleep_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

static int connect_to(Mesh *mesh, const unsigned char *secret, int peer, int64_t deadline_ns)
{
    struct sockaddr_un address;
    socklen_t length = address_of(&address, secret, peer);
    int32_t rank = mesh->rank;
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return fail(mesh, strerror(errno), peer);
        if (connect(fd, (struct sockaddr *)&address, length) == 0) {
            if (!is_this_user(fd) || write(fd, &rank, sizeof rank) != sizeof rank) {
                close(fd);
                return fail(mesh, "an unexpected process listens", peer);
            }
            mesh->sockets[peer] = fd;
            return 1;
        }
        close(fd);
        if (emulated_now_ns() > deadline_ns)
            return fail(mesh, "did not connect within HCCL_CONNECT_TIMEOUT", peer);
        sleep_ms(2);
    }
}

static int accept_one(Mesh *mesh, int listener, int64_t deadline_ns)
{
    int64_t left_ms = (deadline_ns - emulated_now_ns()) / 1000000;
    struct pollfd ready = {listener, POLLIN, 0};
    if (poll(&ready, 1, left_ms > 0 ? (int)left_ms : 0) <= 0)
        return fail(mesh, "a rank did not connect within HCCL_CONNECT_TIMEOUT", mesh->size - 1);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    int32_t peer = -1;
    if (fd < 0 || !is_this_user(fd) || read(fd, &peer, sizeof peer) != sizeof peer || peer <= mesh->rank ||
        peer >= mesh->size || mesh->sockets[peer] >= 0) {
        if (fd >= 0)
            close(fd);
        return fail(mesh, "an unexpected process connected", peer);
    }
    mesh->sockets[peer] = fd;
    return 1;
}

int mesh_connect(Mesh *mesh, const unsigned char secret[SECRET_BYTES], int timeout_s)
{
    int64_t deadline_ns = emulated_now_ns() + (int64_t)timeout_s * 1000000000;
    mesh->sockets = malloc(sizeof(int) * (size_t)mesh->size);
    if (mesh->sockets == NULL)
        return fail(mesh, "no memory", mesh->rank);
    for (int peer = 0; peer < mesh->size; peer++)
        mesh->sockets[peer] = -1;
    struct sockaddr_un address;
    socklen_t length = address_of(&address, secret, mesh->rank);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, mesh->size) != 0) {
        if (listener >= 0)
            close(listener);
        return fail(mesh, strerror(errno), mesh->rank);
    }
    int good = 1;
    for (int peer = 0; good && peer < mesh->rank; peer++)
        good = connect_to(mesh, secret, peer, deadline_ns);
    for (int missing = mesh->size - 1 - mesh->rank; good && missing > 0; missing--)
        good = accept_one(mesh, listener, deadline_ns);
    close(listener);
    for (int peer = 0; good && peer < mesh->size; peer++) {
        if (peer != mesh->rank)
            fcntl(mesh->sockets[peer], F_SETFL, O_NONBLOCK);
    }
    return good;
}

void mesh_close(Mesh *mesh)
{
    for (int peer = 0; mesh->sockets != NULL && peer < mesh->size; peer++) {
        if (mesh->sockets[peer] >= 0)
            close(mesh->sockets[peer]);
    }
    free(mesh->sockets);
    mesh->sockets = NULL;
}

/* Progress of the exchange with one rank: bytes of header and payload sent and received. */
typedef struct Progress {
    Header out_header;
    Header in_header;
    size_t out;
    size_t in;
} Progress;

static size_t out_total(const Parcel *parcel) { return parcel->has_out ? sizeof(Header) + parcel->out_sent : 0; }
static size_t in_total(const Parcel *parcel) { return parcel->has_in ? sizeof(Header) + parcel->in_sent : 0; }

size_t mesh_sent(size_t bytes, int type)
{
    return !emulated_is_full_size() || bytes <= (is_float(type) ? FLOAT_BYTES : OTHER_BYTES) ? bytes : 0;
}

static int push(Mesh *mesh, int peer, const Parcel *parcel, Progress *at)
{
    while (at->out < out_total(parcel)) {
        int is_header = at->out < sizeof(Header);
        const char *from = is_header ? (const char *)&at->out_header + at->out
                                     : (const char *)parcel->out + (at->out - sizeof(Header));
        size_t size = is_header ? sizeof(Header) - at->out : out_total(parcel) - at->out;
        ssize_t sent = send(mesh->sockets[peer], from, size, MSG_NOSIGNAL);
        if (sent < 0)
            return errno == EAGAIN || errno == EINTR ? 1 : fail(mesh, "is gone", peer);
        at->out += (size_t)sent;
    }
    return 1;
}

static int is_same(const Header *came, const Call *call, const Parcel *parcel)
{
    return is_same_call(&came->call, call) && came->bytes == parcel->in_bytes && came->type == parcel->in_type;
}

static int pull(Mesh *mesh, int peer, const Parcel *parcel, Progress *at, const Call *call)
{
    while (at->in < in_total(parcel)) {
        int is_header = at->in < sizeof(Header);
        char *to = is_header ? (char *)&at->in_header + at->in : (char *)parcel->in + (at->in - sizeof(Header));
        size_t size = is_header ? sizeof(Header) - at->in : in_total(parcel) - at->in;
        ssize_t got = recv(mesh->sockets[peer], to, size, 0);
        if (got < 0)
            return errno == EAGAIN || errno == EINTR ? 1 : fail(mesh, "is gone", peer);
        if (got == 0)
            return fail(mesh, "is gone: it ended, failed, or destroyed this communicator", peer);
        at->in += (size_t)got;
        if (at->in == sizeof(Header) && is_header && !is_same(&at->in_header, call, parcel))
            return fail_apart(mesh, call, parcel, peer, &at->in_header);
    }
    return 1;
}

/* Let the other ranks see the call from which theirs differ, and then that this rank is out of step. */
static void give_up(Mesh *mesh, const Parcel *parcels, Progress *progress)
{
    for (int peer = 0; peer < mesh->size; peer++) {
        if (peer == mesh->rank)
            continue;
        Parcel only_header = {.has_out = parcels[peer].has_out};
        if (progress[peer].out < sizeof(Header))
            push(mesh, peer, &only_header, &progress[peer]);
        shutdown(mesh->sockets[peer], SHUT_WR);
    }
}

/* The time in seconds for which a collective waits for other ranks, as in HCCL. */
static int64_t execution_timeout_ns(void)
{
    const char *seconds = getenv("HCCL_EXEC_TIMEOUT");
    return (seconds != NULL && atoll(seconds) > 0 ? atoll(seconds) : 1836) * 1000000000ll;
}

int mesh_exchange(Mesh *mesh, Parcel *parcels, const Call *call, int one_sided)
{
    Progress *progress = calloc((size_t)mesh->size, sizeof *progress);
    struct pollfd *ready = calloc((size_t)mesh->size, sizeof *ready);
    int allocated = progress != NULL && ready != NULL, good = allocated, has_waited = 0;
    for (int peer = 0; good && peer < mesh->size; peer++) {
        if (!one_sided) {
            parcels[peer].out_bytes = parcels[peer].has_out ? parcels[peer].out_bytes : 0;
            parcels[peer].in_bytes = parcels[peer].has_in ? parcels[peer].in_bytes : 0;
            parcels[peer].has_out = parcels[peer].has_in = 1;
            parcels[peer].out_type = parcels[peer].in_type = call->type;
        }
        parcels[peer].out_sent = mesh_sent(parcels[peer].out_bytes, parcels[peer].out_type);
        parcels[peer].in_sent = mesh_sent(parcels[peer].in_bytes, parcels[peer].in_type);
        progress[peer].out_header = (Header){*call, parcels[peer].out_bytes, parcels[peer].out_type};
    }
    const Parcel *own = &parcels[mesh->rank];
    if (good && own->has_out && own->has_in && own->in != own->out)
        memmove(own->in, own->out, own->in_sent < own->out_sent ? own->in_sent : own->out_sent);
    int64_t deadline_ns = emulated_now_ns() + execution_timeout_ns();
    while (good) {
        nfds_t waiting = 0;
        int last = mesh->rank;
        for (int peer = 0; good && peer < mesh->size; peer++) {
            if (peer == mesh->rank)
                continue;
            good = push(mesh, peer, &parcels[peer], &progress[peer]) &&
                   pull(mesh, peer, &parcels[peer], &progress[peer], call);
            int wants_out = progress[peer].out < out_total(&parcels[peer]);
            int wants_in = progress[peer].in < in_total(&parcels[peer]);
            if (wants_out || wants_in) {
                last = peer;
                ready[waiting++] = (struct pollfd){mesh->sockets[peer],
                                                   (short)((wants_out ? POLLOUT : 0) | (wants_in ? POLLIN : 0)), 0};
            }
        }
        if (!good || waiting == 0)
            break;
        if (emulated_now_ns() > deadline_ns) {
            good = fail_late(mesh, call, last);
        } else if (poll(ready, waiting, 1000) == 0 && !has_waited) {
            has_waited = 1;
            write_wait(mesh, call);
        }
    }
    if (good && has_waited)
        remove_wait();
    if (!good && allocated)
        give_up(mesh, parcels, progress);
    free(progress);
    free(ready);
    return good;
}
