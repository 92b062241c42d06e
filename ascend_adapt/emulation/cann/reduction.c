#include "reduction.h"

#include "emulated.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* HcclDataType and HcclReduceOp: Ascend/pytorch@9e73e70 third_party/hccl/inc/hccl/hccl_types.h */
enum { INT8, INT16, INT32, FLOAT16, FLOAT32, INT64, UINT64, UINT8, UINT16, UINT32, FLOAT64, BFLOAT16, TYPES };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM };

static const struct {
    const char *name;
    size_t bytes;
    int reducible;
} types[TYPES] = {
    [INT8] = {"int8", 1, 1},       [INT16] = {"int16", 2, 1},     [INT32] = {"int32", 4, 1},
    [FLOAT16] = {"float16", 2, 1}, [FLOAT32] = {"float32", 4, 1}, [INT64] = {"int64", 8, 1},
    [UINT64] = {"uint64", 8, 0},   [UINT8] = {"uint8", 1, 0},     [UINT16] = {"uint16", 2, 0},
    [UINT32] = {"uint32", 4, 0},   [FLOAT64] = {"float64", 8, 0}, [BFLOAT16] = {"bfloat16", 2, 1},
};

size_t element_bytes(int type) { return type >= 0 && type < TYPES ? types[type].bytes : 0; }
const char *type_name(int type) { return element_bytes(type) != 0 ? types[type].name : "an unknown type"; }
int is_float(int type) { return type == FLOAT16 || type == FLOAT32 || type == FLOAT64 || type == BFLOAT16; }
int can_reduce(int type) { return element_bytes(type) != 0 && types[type].reducible; }

static float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_bfloat16(uint16_t half) { return bits_to_float((uint32_t)half << 16); }

static uint16_t to_bfloat16(float value)
{
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fc0; /* NaN must not round to infinity */
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float from_float16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, mantissa = half & 0x3ff;
    if (exponent == 31)
        return bits_to_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent != 0)
        return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float tiny = (float)mantissa / 16777216.0f;
    return sign != 0 ? -tiny : tiny;
}

static uint16_t to_float16(float value)
{
    uint32_t bits = float_to_bits(value), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000)
        return sign | 0x7e00;
    if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
        return sign | 0x7c00;
    if (magnitude < 0x38800000) { /* below 2**-14: the addition leaves the bits of the subnormal, rounded to even */
        float shifted = bits_to_float(magnitude) + 0.5f;
        return (uint16_t)(sign | (float_to_bits(shifted) - 0x3f000000));
    }
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13);
}

/* The saturated form of a value, in a type whose largest finite value is ``largest``. */
static float saturated(float value, float largest)
{
    if (fabsf(value) <= largest)
        return value;
    ascend_adapt_emulated_overflow = 1;
    return isnan(value) ? 0 : copysignf(largest, value);
}

#define COMBINE(a, b, operation)                                                                                       \
    ((operation) == SUM ? (a) + (b) : (operation) == PRODUCT ? (a) * (b) : (operation) == MAXIMUM ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))

#define REDUCE_AS(type)                                                                                                \
    do {                                                                                                               \
        type *left = into;                                                                                             \
        const type *right = from;                                                                                      \
        for (size_t i = 0; i < count; i++)                                                                             \
            left[i] = (type)COMBINE(left[i], right[i], operation);                                                     \
    } while (0)

static const float LARGEST_FLOAT16 = 65504.0f, LARGEST_BFLOAT16 = 0x1.fep127f;

#define REDUCE_FLOATS(type, from_type, to_type, largest)                                                               \
    do {                                                                                                               \
        type *left = into;                                                                                             \
        const type *right = from;                                                                                      \
        for (size_t i = 0; i < count; i++) {                                                                           \
            float a = from_type(left[i]), b = from_type(right[i]), c = COMBINE(a, b, operation);                       \
            left[i] = to_type(saturates ? saturated(c, largest) : c);                                                  \
        }                                                                                                              \
    } while (0)

void reduce(void *into, const void *from, size_t count, int type, int operation)
{
    int saturates = ascend_adapt_emulated_saturates && (operation == SUM || operation == PRODUCT);
    switch (type) {
    case INT8:
        REDUCE_AS(int8_t);
        break;
    case INT16:
        REDUCE_AS(int16_t);
        break;
    case INT32:
        REDUCE_AS(int32_t);
        break;
    case INT64:
        REDUCE_AS(int64_t);
        break;
    case FLOAT32:
        REDUCE_FLOATS(float, , , FLT_MAX);
        break;
    case FLOAT16:
        REDUCE_FLOATS(uint16_t, from_float16, to_float16, LARGEST_FLOAT16);
        break;
    case BFLOAT16:
        REDUCE_FLOATS(uint16_t, from_bfloat16, to_bfloat16, LARGEST_BFLOAT16);
        break;
    }
}
