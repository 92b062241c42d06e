/* Element types and reductions of collectives. */
#ifndef ASCEND_ADAPT_REDUCTION_H
#define ASCEND_ADAPT_REDUCTION_H

#include <stddef.h>

/* Bytes per element of a HcclDataType, or 0 if HCCL does not have the type. */
size_t element_bytes(int type);
const char *type_name(int type);

int is_float(int type);

/* Whether HCCL reduces elements of this type: int8, int16, int32, int64, float16, float32, bfloat16. */
int can_reduce(int type);

/* into[i] = into[i] (+, *, max, min) from[i], computed in float32 for float16 and bfloat16. Sums and products
* saturate, and set the overflow flag, on a device that saturates. */
void reduce(void *into, const void *from, size_t count, int type, int operation);

#endif
