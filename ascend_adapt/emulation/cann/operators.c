/* Operators that torch_npu launches directly, without the dispatcher, so that no Python kernel is called.
 *
 * aclnn*: padding in ProcessGroupHCCL; NPU*FloatStatus: the overflow flag of a device that saturates;
 * Identity: copies of private formats.
 */
#include "emulated.h"

#include <stdlib.h>
#include <string.h>

API int ascend_adapt_emulated_overflow;

/* ---- aclnn: tensors with shapes and strides ---- */

enum { MAX_DIMENSIONS = 8 };

typedef struct Tensor {
    uint64_t dimensions;
    int64_t sizes[MAX_DIMENSIONS];
    int64_t strides[MAX_DIMENSIONS];
    char *data;
    size_t unit;
} Tensor;

typedef struct IntArray {
    uint64_t length;
    int64_t *values;
} IntArray;

typedef struct Scalar {
    int is_zero;
} Scalar;

/* aclDataType: float, half, int8, int32, uint8, (none), int16, uint16, uint32, int64, uint64, double, bool */
static size_t bytes_of(int type)
{
    static const size_t bytes[] = {4, 2, 1, 4, 1, 0, 2, 2, 4, 8, 8, 8, 1};
    if (type >= 0 && type < (int)sizeof bytes / (int)sizeof bytes[0])
        return bytes[type];
    return type == 16 ? 8 : type == 17 ? 16 : type == 27 ? 2 : 0; /* complex64, complex128, bfloat16 */
}

API Tensor *aclCreateTensor(const int64_t *sizes, uint64_t dimensions, int type, const int64_t *strides, int64_t offset,
                            int format, const int64_t *storage_sizes, uint64_t storage_dimensions, void *data)
{
    Tensor *tensor = calloc(1, sizeof *tensor);
    if (tensor == NULL || dimensions > MAX_DIMENSIONS || bytes_of(type) == 0) {
        emulated_failure(UNSUPPORTED, "aclCreateTensor: %llu dimensions of data type %d", (unsigned long long)dimensions,
                         type);
        free(tensor);
        return NULL;
    }
    tensor->dimensions = dimensions;
    tensor->unit = bytes_of(type);
    tensor->data = (char *)data + (size_t)offset * tensor->unit;
    memcpy(tensor->sizes, sizes, dimensions * sizeof *sizes);
    memcpy(tensor->strides, strides, dimensions * sizeof *strides);
    return tensor;
}

API int aclDestroyTensor(Tensor *tensor)
{
    free(tensor);
    return OK;
}

API IntArray *aclCreateIntArray(const int64_t *values, uint64_t length)
{
    IntArray *array = malloc(sizeof *array);
    if (array == NULL)
        return NULL;
    *array = (IntArray){length, malloc((length + 1) * sizeof *values)};
    if (array->values == NULL) {
        free(array);
        return NULL;
    }
    memcpy(array->values, values, length * sizeof *values);
    return array;
}

API int aclDestroyIntArray(IntArray *array)
{
    if (array != NULL)
        free(array->values);
    free(array);
    return OK;
}

API Scalar *aclCreateScalar(const void *value, int type)
{
    static const char zeros[16];
    Scalar *scalar = malloc(sizeof *scalar);
    if (scalar != NULL)
        scalar->is_zero = memcmp(value, zeros, bytes_of(type)) == 0;
    return scalar;
}

API int aclDestroyScalar(Scalar *scalar)
{
    free(scalar);
    return OK;
}

typedef struct Padding {
    const Tensor *from;
    const Tensor *into;
    int64_t begin[MAX_DIMENSIONS];
} Padding;

API int aclnnConstantPadNdGetWorkspaceSize(const Tensor *from, const IntArray *pads, const Scalar *value,
                                           const Tensor *into, uint64_t *workspace, Padding **executor)
{
    if (from == NULL || into == NULL || pads == NULL || value == NULL || !value->is_zero ||
        pads->length > 2 * from->dimensions)
        return emulated_failure(UNSUPPORTED, "aclnnConstantPadNd: the emulated CANN pads with zeros only");
    Padding *padding = calloc(1, sizeof *padding);
    if (padding == NULL)
        return OUT_OF_MEMORY;
    padding->from = from;
    padding->into = into;
    for (uint64_t i = 0; i < pads->length / 2; i++) /* the last dimension's pads come first */
        padding->begin[from->dimensions - 1 - i] = pads->values[2 * i];
    *workspace = 0;
    *executor = padding;
    return OK;
}

static void pad(const Padding *padding, uint64_t dimension, const char *from, char *into)
{
    const Tensor *source = padding->from, *target = padding->into;
    if (dimension == source->dimensions) {
        memcpy(into, from, source->unit);
        return;
    }
    int64_t begin = padding->begin[dimension];
    for (int64_t i = 0; i < source->sizes[dimension]; i++) {
        if (i + begin < 0 || i + begin >= target->sizes[dimension])
            continue;
        pad(padding, dimension + 1, from + i * source->strides[dimension] * (int64_t)source->unit,
            into + (i + begin) * target->strides[dimension] * (int64_t)target->unit);
    }
}

API int aclnnConstantPadNd(void *workspace, uint64_t size, Padding *padding, Stream *stream)
{
    size_t bytes = padding->into->unit;
    for (uint64_t i = 0; i < padding->into->dimensions; i++)
        bytes *= (size_t)padding->into->sizes[i];
    memset(padding->into->data, 0, bytes); /* torch_npu has just created this tensor, so it is contiguous */
    pad(padding, 0, padding->from->data, padding->into->data);
    free(padding);
    return OK;
}

enum { DEVICE_TO_DEVICE = 3 }; /* aclrtMemcpyKind */

/* ---- aclop: buffers, and tensor descriptions, which are not read ---- */

typedef struct Buffer {
    void *data;
    size_t size;
} Buffer;

API Buffer *aclCreateDataBuffer(void *data, size_t size)
{
    Buffer *buffer = malloc(sizeof *buffer);
    if (buffer != NULL)
        *buffer = (Buffer){data, size};
    return buffer;
}

API int aclDestroyDataBuffer(Buffer *buffer)
{
    free(buffer);
    return OK;
}

API void *aclCreateTensorDesc(int type, int dimensions, const int64_t *sizes, int format) { return malloc(1); }
API void aclDestroyTensorDesc(void *description) { free(description); }
API int aclSetTensorFormat(void *description, int format) { return OK; }
API int aclSetTensorShape(void *description, int dimensions, const int64_t *sizes) { return OK; }
API int aclSetTensorPlaceMent(void *description, int placement) { return OK; }
API void aclSetTensorDescName(void *description, const char *name) {}
API void *aclopCreateAttr(void) { return malloc(1); }
API void aclopDestroyAttr(void *attributes) { free(attributes); }
API int aclopSetAttrBool(void *attributes, const char *name, uint8_t value) { return OK; }
API int aclopSetAttrInt(void *attributes, const char *name, int64_t value) { return OK; }
API int aclopSetAttrFloat(void *attributes, const char *name, float value) { return OK; }
API int aclopSetAttrString(void *attributes, const char *name, const char *value) { return OK; }

static int write_flag(Buffer *const *buffers, int number, int as_float)
{
    if (number < 1 || buffers[0]->size < sizeof(int32_t))
        return emulated_failure(INVALID_PARAMETER, "float status: no buffer is given, expected one");
    int32_t flag = ascend_adapt_emulated_overflow != 0;
    float number_flag = (float)flag;
    memset(buffers[0]->data, 0, buffers[0]->size);
    memcpy(buffers[0]->data, as_float ? (void *)&number_flag : (void *)&flag, sizeof flag);
    return OK;
}

API int aclopCompileAndExecute(const char *type, int inputs, const void *const *input_descriptions,
                               Buffer *const *input_buffers, int outputs, const void *const *output_descriptions,
                               Buffer *const *output_buffers, const void *attributes, int engine, int flag,
                               const char *path, Stream *stream)
{
    if (strcmp(type, "NPUAllocFloatStatus") == 0) {
        memset(output_buffers[0]->data, 0, output_buffers[0]->size);
        return OK;
    }
    if (strcmp(type, "NPUGetFloatStatus") == 0) /* the operator writes to its input, which torch_npu returns */
        return write_flag(input_buffers, inputs, 1);
    if (strcmp(type, "NPUGetFloatStatusV2") == 0)
        return write_flag(output_buffers, outputs, 0);
    if (strcmp(type, "NPUClearFloatStatus") == 0 || strcmp(type, "NPUClearFloatStatusV2") == 0) {
        ascend_adapt_emulated_overflow = 0;
        return OK;
    }
    if (strcmp(type, "Identity") == 0) { /* a copy between tensors of a private format, such as a cast makes */
        const Buffer *from = input_buffers[0], *into = output_buffers[0];
        size_t size = from->size < into->size ? from->size : into->size;
        return aclrtMemcpyAsync(into->data, into->size, from->data, size, DEVICE_TO_DEVICE, stream);
    }
    return emulated_failure(UNSUPPORTED,
                            "operator %s: torch_npu launches it directly, and the emulated CANN does not have it", type);
}
