/* Attention by the kernel for NEON, for tests/attention/kernels/test_neon.py: cases from standard input, results to
 * standard output. A case is 10 int64 (batch, heads, q_len, d, kv_heads, n, d_v, dtypes of q and of k and v, whether
 * positions follow), the scale as float32, then q, k and v, then low and high [q_len] and positions [n] as int64. A
 * result is out, then lse, in float32. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"
#include "vectors.h"

static void *take(size_t bytes) {
    void *memory = malloc(bytes + 1);
    if (memory == NULL || fread(memory, 1, bytes, stdin) != bytes)
        exit(3);
    return memory;
}

static Tensor take_tensor(int64_t batch, int64_t heads, int64_t rows, int64_t width, int dtype) {
    Tensor tensor = {NULL, {batch, heads, rows, width}, {heads * rows * width, rows * width, width, 1}, dtype};
    tensor.data = take((size_t)(batch * heads * rows * width * item_bytes(dtype)));
    return tensor;
}

static Tensor take_table(int64_t columns) {
    return (Tensor){take((size_t)columns * 8), {1, columns}, {columns, 1}, INT64};
}

int main(void) {
    int64_t sizes[10];
    while (fread(sizes, sizeof sizes, 1, stdin) == 1) {
        int64_t batch = sizes[0], heads = sizes[1], q_len = sizes[2], d = sizes[3], kv_heads = sizes[4], n = sizes[5];
        int64_t d_v = sizes[6], whole[2] = {0, n};
        _Atomic int fault = 0;
        Attention call = {.fault = &fault, .n = n, .bounds = {(const char *)whole, {1, 2}, {2, 1}, INT64}};
        call.scale = *(float *)take(sizeof(float));
        call.q = take_tensor(batch, heads, q_len, d, (int)sizes[7]);
        call.k = take_tensor(batch, kv_heads, n, d, (int)sizes[8]);
        call.v = take_tensor(batch, kv_heads, n, d_v, (int)sizes[8]);
        if (sizes[9])
            call.low = take_table(q_len), call.high = take_table(q_len), call.positions = take_table(n);
        call.queries = call.high;
        call.rows = heads / kv_heads * q_len, call.tiles = (call.rows + TILE_ROWS - 1) / TILE_ROWS;
        int64_t rows = batch * heads * q_len;
        call.out = malloc((size_t)(rows * d_v) * sizeof(float)), call.lse = malloc((size_t)rows * sizeof(float));
        float *memory = aligned_alloc(64, ((size_t)item_floats(&call) * sizeof(float) + 63) / 64 * 64);
        for (int64_t item = 0; item < batch * kv_heads * call.tiles; item++)
            attend_item_baseline(&call, item, memory);
        fwrite(call.out, sizeof(float), (size_t)(rows * d_v), stdout);
        fwrite(call.lse, sizeof(float), (size_t)rows, stdout);
    }
    return 0;
}
