/* Device memory: allocated on the host, up to the capacity of the device. */
#include "emulated.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int64_t bytes_per_device(void)
{
    const char *bytes = getenv("ASCEND_ADAPT_EMULATED_MEMORY");
    return bytes != NULL ? strtoll(bytes, NULL, 10) : 64ll << 30;
}

int emulated_charge(int device, int64_t bytes)
{
    pthread_mutex_lock(&lock);
    int64_t used = (int64_t)emulated_statistics.device_bytes[device] + bytes;
    int fits = bytes <= 0 || used <= bytes_per_device();
    if (fits) {
        emulated_statistics.device_bytes[device] = (uint64_t)used;
        if ((uint64_t)used > emulated_statistics.peak_device_bytes[device])
            emulated_statistics.peak_device_bytes[device] = (uint64_t)used;
    }
    pthread_mutex_unlock(&lock);
    if (fits)
        return OK;
    return emulated_failure(OUT_OF_MEMORY, "device %d has %lld bytes, %lld are used, %lld more were requested", device,
                            (long long)bytes_per_device(), (long long)(used - bytes), (long long)bytes);
}

/* Records by device address: allocations, and physical memory behind a reserved range. */
typedef struct Block {
    void *address;
    size_t size;
    int device;
    struct Block *next;
} Block;

enum { BUCKETS = 4096 };
static Block *blocks[BUCKETS];

static Block **bucket(void *address) { return &blocks[((uintptr_t)address >> 9) % BUCKETS]; }

static int remember(void *address, size_t size, int device)
{
    Block *block = malloc(sizeof *block);
    if (block == NULL)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *block = (Block){address, size, device, *bucket(address)};
    *bucket(address) = block;
    pthread_mutex_unlock(&lock);
    return OK;
}

/* Returns a record with device -1 for an unknown address. */
static Block forget(void *address)
{
    Block found = {NULL, 0, -1, NULL};
    pthread_mutex_lock(&lock);
    for (Block **at = bucket(address); *at != NULL; at = &(*at)->next) {
        if ((*at)->address == address) {
            Block *block = *at;
            found = *block;
            *at = block->next;
            free(block);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Addresses without memory: a page exists after the first write. With huge pages, one written byte would use 2 MiB. */
static void *reserve(size_t size)
{
    void *range = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
        return NULL;
    madvise(range, size, MADV_NOHUGEPAGE);
    return range;
}

static void *allocate(size_t size)
{
    void *address = NULL;
    if (emulated_is_full_size())
        return reserve(size);
    return posix_memalign(&address, 512, size) == 0 ? address : NULL;
}

API int aclrtMalloc(void **address, size_t size, int policy)
{
    int device = emulated_current_device();
    size_t whole = size != 0 ? (size + 511) / 512 * 512 : 512;
    int code = emulated_charge(device, (int64_t)whole);
    if (code != OK)
        return code;
    *address = allocate(whole);
    if (*address == NULL || remember(*address, whole, device) != OK) {
        emulated_charge(device, -(int64_t)whole);
        return emulated_failure(OUT_OF_MEMORY, "the host does not have %zu bytes for device %d", size, device);
    }
    return OK;
}

API int aclrtMallocAlign32(void **address, size_t size, int policy) { return aclrtMalloc(address, size, policy); }

API int aclrtFree(void *address)
{
    Block block = forget(address);
    if (block.device < 0)
        return emulated_failure(INVALID_PARAMETER, "%p: is not memory of a device", address);
    emulated_charge(block.device, -(int64_t)block.size);
    if (emulated_is_full_size())
        return munmap(address, block.size) == 0 ? OK : INVALID_PARAMETER;
    free(address);
    return OK;
}

API int aclrtMallocHost(void **address, size_t size)
{
    return posix_memalign(address, 4096, size != 0 ? size : 4096) == 0 ? OK : OUT_OF_MEMORY;
}

API int aclrtFreeHost(void *address)
{
    free(address);
    return OK;
}

API int aclrtGetMemInfo(int attribute, size_t *free_bytes, size_t *total)
{
    int64_t used = (int64_t)emulated_statistics.device_bytes[emulated_current_device()];
    *total = (size_t)bytes_per_device();
    *free_bytes = (size_t)(bytes_per_device() - used);
    return OK;
}

static int copy(void *to, size_t room, const void *from, size_t size)
{
    if (size > room)
        return emulated_failure(INVALID_PARAMETER, "a copy of %zu bytes into %zu", size, room);
    if (!emulated_is_full_size() || size <= OTHER_BYTES)
        memmove(to, from, size);
    return OK;
}

API int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) { return copy(to, room, from, size); }
API int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, Stream *stream)
{
    int code = emulated_settle(stream);
    return code != OK ? code : copy(to, room, from, size);
}

API int aclrtMemset(void *to, size_t room, int32_t value, size_t size)
{
    if (size > room)
        return emulated_failure(INVALID_PARAMETER, "a fill of %zu bytes in %zu", size, room);
    if (!emulated_is_full_size() || size <= OTHER_BYTES)
        memset(to, value, size);
    return OK;
}

API int aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t size, Stream *stream)
{
    int code = emulated_settle(stream);
    return code != OK ? code : aclrtMemset(to, room, value, size);
}

/* Expandable segments: an address range is reserved, and physical memory is mapped into it piece by piece. */
API int aclrtReserveMemAddress(void **address, size_t size, size_t alignment, void *wish, uint64_t flags)
{
    void *range = reserve(size);
    if (range == NULL)
        return emulated_failure(OUT_OF_MEMORY, "the host does not have a range of %zu addresses", size);
    *address = range;
    return remember(range, size, emulated_current_device());
}

API int aclrtReleaseMemAddress(void *address)
{
    Block block = forget(address);
    if (block.device < 0)
        return emulated_failure(INVALID_PARAMETER, "%p: is not a reserved range", address);
    return munmap(address, block.size) == 0 ? OK : INVALID_PARAMETER;
}

typedef struct Physical {
    size_t size;
    int device;
} Physical;

API int aclrtMallocPhysical(Physical **handle, size_t size, const void *properties, uint64_t flags)
{
    int device = emulated_current_device();
    int code = emulated_charge(device, (int64_t)size);
    if (code != OK)
        return code;
    *handle = malloc(sizeof **handle);
    if (*handle == NULL)
        return OUT_OF_MEMORY;
    **handle = (Physical){size, device};
    return OK;
}

API int aclrtFreePhysical(Physical *handle)
{
    emulated_charge(handle->device, -(int64_t)handle->size);
    free(handle);
    return OK;
}

API int aclrtMapMem(void *address, size_t size, size_t offset, Physical *handle, uint64_t flags)
{
    return remember(address, size, handle->device);
}

API int aclrtUnmapMem(void *address)
{
    Block block = forget(address);
    if (block.device < 0)
        return emulated_failure(INVALID_PARAMETER, "%p: nothing is mapped there", address);
    return madvise(address, block.size, MADV_DONTNEED) == 0 ? OK : INVALID_PARAMETER;
}
