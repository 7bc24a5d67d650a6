/* Partials as one SUM relative to a reference: what a rank adds, and what the sums give; limited API of Python 3.11.
 * attention/merge/logsumexp.py and topocomm/operators/sum_lowering.py have the same steps for arrays.
 *
 * Arrays are contiguous buffers: out [rows, dim], lse and the columns [rows] of float32, the reference [rows] of
 * float64. Lengths are checked against the reference's. */
#include "sum_shares.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* As in sum_lowering.py: half the largest float, what vanishes beside no other share, and the classes of shares. */
static const double TOP = 0x1p127, LEAST = 0x1p-96;
static const float NEGLIGIBLE = 1, SIGNIFICANT = 4096;

enum { SENT_OUT, SENT_LSE, SENT_REFERENCE, SUM_OUT, WEIGHT, LOST, PRESENT, PRODUCT, SENT };
enum { HELD_OUT, HELD_WEIGHT, HELD_REFERENCE, RESULT_OUT, RESULT_LSE, HELD };

static float *floats(const Py_buffer *buffer) { return buffer->buf; }

/* Whether arrays fit a reference of `rows`: two have rows of `dim`, the others one float32 a row. */
static int fit(const Py_buffer *buffers, int count, int reference, int out, int other_out) {
    Py_ssize_t rows = buffers[reference].len / (Py_ssize_t)sizeof(double);
    for (int i = 0; i < count; i++) {
        int is_out = i == out || i == other_out;
        Py_ssize_t expected = is_out ? buffers[out].len : rows * (Py_ssize_t)sizeof(float);
        int whole = !is_out || (rows ? buffers[i].len % (rows * (Py_ssize_t)sizeof(float)) == 0 : buffers[i].len == 0);
        if (i != reference && (buffers[i].len != expected || !whole)) {
            PyErr_Format(PyExc_ValueError, "array %d has %zd bytes, expected %zd for %zd rows", i, buffers[i].len,
                         expected, rows);
            return 0;
        }
    }
    return 1;
}

static void release(Py_buffer *buffers, int count) {
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&buffers[i]);
}

/* The largest magnitude of a row, NaN where it has one: magnitudes are ordered as their bits are. */
static double largest_of(const float *row, Py_ssize_t dim) {
    uint32_t largest = 0;
    float magnitude;
    for (Py_ssize_t j = 0; j < dim; j++) {
        uint32_t bits;
        memcpy(&bits, row + j, sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    memcpy(&magnitude, &largest, sizeof magnitude);
    return magnitude;
}

static void share_row(const Py_buffer *b, Py_ssize_t row, Py_ssize_t dim, double top) {
    const float *out = floats(&b[SENT_OUT]) + row * dim;
    float lse = floats(&b[SENT_LSE])[row], *sum = floats(&b[SUM_OUT]) + row * dim;
    int empty = lse == -INFINITY;
    double weight = exp((double)lse - ((const double *)b[SENT_REFERENCE].buf)[row]), largest = largest_of(out, dim);
    double product = weight * largest;
    int lost = !((weight <= top && product <= top) || empty);
    if (lost || empty)
        weight = product = 0;
    int vanishes = product < LEAST && !lost && !empty && largest != 0;
    floats(&b[WEIGHT])[row] = (float)weight;
    floats(&b[LOST])[row] = (float)lost;
    floats(&b[PRESENT])[row] = empty ? 0 : weight >= LEAST ? SIGNIFICANT : NEGLIGIBLE;
    floats(&b[PRODUCT])[row] = vanishes ? NEGLIGIBLE : product > 0 ? SIGNIFICANT : 0;
    if (weight == 0)
        memset(sum, 0, (size_t)dim * sizeof *sum);
    else
        for (Py_ssize_t j = 0; j < dim; j++)
            sum[j] = (float)(weight * out[j]);
}

PyObject *encode_shares(PyObject *self, PyObject *args) {
    Py_buffer b[SENT];
    Py_ssize_t ranks;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*w*w*w*n:encode_shares", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &b[6],
                          &b[7], &ranks))
        return NULL;
    int done = fit(b, SENT, SENT_REFERENCE, SENT_OUT, SUM_OUT);
    Py_ssize_t rows = b[SENT_REFERENCE].len / (Py_ssize_t)sizeof(double);
    Py_ssize_t dim = rows ? b[SENT_OUT].len / (Py_ssize_t)sizeof(float) / rows : 0;
    for (Py_ssize_t row = 0; done && row < rows; row++)
        share_row(b, row, dim, TOP / (double)ranks);
    release(b, SENT);
    return done ? Py_NewRef(Py_None) : NULL;
}

PyObject *shares_exact(PyObject *self, PyObject *args) {
    Py_buffer b[3];
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*:shares_exact", &b[0], &b[1], &b[2]))
        return NULL;
    int fits = b[0].len == b[1].len && b[0].len == b[2].len, bad = 0;
    Py_ssize_t rows = b[0].len / (Py_ssize_t)sizeof(float);
    for (Py_ssize_t row = 0; fits && row < rows; row++) {
        float lost = floats(&b[0])[row], present = floats(&b[1])[row], product = floats(&b[2])[row];
        bad |= (lost > 0) | ((present > 0) & (present < SIGNIFICANT)) | ((product > 0) & (product < SIGNIFICANT));
    }
    release(b, 3);
    return fits ? PyBool_FromLong(!bad) : PyErr_Format(PyExc_ValueError, "shares_exact: arrays of unequal lengths");
}

PyObject *decode_shares(PyObject *self, PyObject *args) {
    Py_buffer b[HELD];
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*:decode_shares", &b[0], &b[1], &b[2], &b[3], &b[4]))
        return NULL;
    int done = fit(b, HELD, HELD_REFERENCE, HELD_OUT, RESULT_OUT);
    Py_ssize_t rows = b[HELD_REFERENCE].len / (Py_ssize_t)sizeof(double);
    Py_ssize_t dim = rows ? b[HELD_OUT].len / (Py_ssize_t)sizeof(float) / rows : 0;
    for (Py_ssize_t row = 0; done && row < rows; row++) {
        const float *sum = floats(&b[HELD_OUT]) + row * dim;
        float total = floats(&b[HELD_WEIGHT])[row], *out = floats(&b[RESULT_OUT]) + row * dim;
        double base = ((const double *)b[HELD_REFERENCE].buf)[row];
        float divisor = total == 0 ? 1 : total;
        for (Py_ssize_t j = 0; j < dim; j++)
            out[j] = sum[j] / divisor;
        floats(&b[RESULT_LSE])[row] = total == 0 ? -INFINITY : (float)(base + log((double)total));
    }
    release(b, HELD);
    return done ? Py_NewRef(Py_None) : NULL;
}
