/* Kernels of the transforms as a module: checks what comes from Python, and calls them without
   the interpreter's lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#include "kernels.h"

#include <math.h>
#include <string.h>

enum { MOST_ARGUMENTS = 5 };

/* The buffers of a call, which all are given back at its end. */
typedef struct {
    Py_buffer views[MOST_ARGUMENTS];
    int num;
} Buffers;

static void give_back(Buffers *buffers) {
    while (buffers->num > 0) PyBuffer_Release(&buffers->views[--buffers->num]);
}

/* 'i', 'u' or 'f', or 0 for other types of elements. */
static char kind_of(const Py_buffer *view) {
    const char *format = view->format == NULL ? "B" : view->format;
    if (format[0] == '\0' || format[1] != '\0') return 0;
    if (strchr("bhilq", format[0])) return 'i';
    if (strchr("BHILQ", format[0])) return 'u';
    return strchr("fd", format[0]) ? 'f' : 0;
}

static bool is_aligned(const Py_buffer *view) {
    return (uintptr_t)view->buf % (uintptr_t)view->itemsize == 0;
}

/* Take an array as the argument `name`. NULL with an exception if it is not as wanted. */
static Py_buffer *take(Buffers *buffers, PyObject *object, const char *name, int ndim, int flags) {
    Py_buffer *view = &buffers->views[buffers->num];
    if (PyObject_GetBuffer(object, view, flags | PyBUF_FORMAT) < 0) return NULL;
    buffers->num++;
    if (view->ndim != ndim) {
        PyErr_Format(PyExc_ValueError, "%s must have %d axes, but has %d.", name, ndim, view->ndim);
        return NULL;
    }
    return view;
}

/* Take `count` numbers of a type. */
static const void *take_numbers(Buffers *buffers, PyObject *object, const char *name, char kind,
                                size_t itemsize, Py_ssize_t count) {
    Py_buffer *view = take(buffers, object, name, 1, PyBUF_C_CONTIGUOUS);
    if (view == NULL) return NULL;
    if (kind_of(view) != kind || (size_t)view->itemsize != itemsize || !is_aligned(view)) {
        PyErr_Format(PyExc_TypeError, "%s must be aligned numbers of kind %c and %zu bytes.", name,
                     kind, itemsize);
        return NULL;
    }
    if (view->shape[0] != count) {
        PyErr_Format(PyExc_ValueError, "%s must have %zd numbers, but has %zd.", name, count,
                     view->shape[0]);
        return NULL;
    }
    return view->buf;
}

static Images images_of(const Py_buffer *view) {
    Images images = {.data = view->buf, .itemsize = (size_t)view->itemsize};
    for (int axis = 0; axis < 4; axis++) {
        images.shape[axis] = view->shape[axis];
        images.strides[axis] = view->strides[axis];
    }
    return images;
}

static bool is_empty(const Images *images) {
    return !images->shape[0] || !images->shape[1] || !images->shape[2] || !images->shape[3];
}

/* Whether any byte belongs to both. */
static bool share_memory(const Images *one, const Images *other) {
    if (is_empty(one) || is_empty(other)) return false;
    const Images *both[] = {one, other};
    uintptr_t first[2], end[2];
    for (int i = 0; i < 2; i++) {
        first[i] = (uintptr_t)both[i]->data;
        end[i] = first[i] + both[i]->itemsize;
        for (int axis = 0; axis < 4; axis++) {
            ptrdiff_t reach = (both[i]->shape[axis] - 1) * both[i]->strides[axis];
            if (reach < 0)
                first[i] -= (uintptr_t)-reach;
            else
                end[i] += (uintptr_t)reach;
        }
    }
    return first[0] < end[1] && first[1] < end[0];
}

/* Take the images and where to write them, with the same type and number of images.
   They may only share memory if they lie at the same place and `may_be_one`. */
static bool take_images(Buffers *buffers, PyObject *out_object, PyObject *images_object,
                        int images_flags, bool may_be_one, bool have_same_shape, Images *out,
                        Images *images) {
    Py_buffer *target = take(buffers, out_object, "out", 4, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    Py_buffer *source =
        target == NULL ? NULL : take(buffers, images_object, "images", 4, images_flags);
    if (source == NULL) return false;
    *out = images_of(target);
    *images = images_of(source);
    if (out->itemsize > 8 || (out->itemsize & (out->itemsize - 1)) != 0) {
        PyErr_SetString(PyExc_TypeError, "Pixels must have 1, 2, 4 or 8 bytes.");
        return false;
    }
    if (out->itemsize != images->itemsize || kind_of(target) != kind_of(source)) {
        PyErr_SetString(PyExc_TypeError, "images and out must have the same type.");
        return false;
    }
    for (int axis = 0; axis < (have_same_shape ? 4 : 2); axis++) {
        if (out->shape[axis] != images->shape[axis]) {
            PyErr_Format(PyExc_ValueError, "images and out differ in axis %d: %zd and %zd.", axis,
                         images->shape[axis], out->shape[axis]);
            return false;
        }
    }
    bool is_one = may_be_one && out->data == images->data && PyBuffer_IsContiguous(source, 'C');
    if (!is_one && share_memory(out, images)) {
        PyErr_SetString(PyExc_ValueError, "images and out must not share memory.");
        return false;
    }
    return true;
}

/* Take contiguous images to compute with, and where to write them. NULL with an exception. */
static const PixelType *take_values(Buffers *buffers, PyObject *out_object, PyObject *images_object,
                                    bool may_be_one, Images *out, Images *images) {
    if (!take_images(buffers, out_object, images_object, PyBUF_C_CONTIGUOUS, may_be_one, true, out,
                     images))
        return NULL;
    const Py_buffer *view = &buffers->views[0];
    const PixelType *type = find_pixel_type(kind_of(view), (size_t)view->itemsize);
    if (type == NULL) {
        PyErr_Format(PyExc_TypeError, "Cannot compute with pixels of the type \"%s\".",
                     view->format == NULL ? "B" : view->format);
    }
    return type;
}

static size_t size_of(const Images *images) {
    return (size_t)images->shape[1] * (size_t)images->shape[2] * (size_t)images->shape[3];
}

static size_t value_size(const PixelType *type) {
    return type->is_wide ? sizeof(double) : sizeof(float);
}

static PyObject *none_unless(bool has_failed) {
    if (has_failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* Whether some numbers are all from `lowest` to `highest`. */
static bool check_range(const char *name, const int64_t *numbers, ptrdiff_t count, int64_t lowest,
                        int64_t highest) {
    for (ptrdiff_t i = 0; i < count; i++) {
        if (numbers[i] < lowest || numbers[i] > highest) {
            PyErr_Format(PyExc_ValueError, "%s must be from %lld to %lld, but got %lld.", name,
                         (long long)lowest, (long long)highest, (long long)numbers[i]);
            return false;
        }
    }
    return true;
}

PyDoc_STRVAR(reorient_doc,
             "reorient(out, images, ways)\n--\n\n"
             "Write images (N, C, H, W) another way round, in place if `out` is `images`.\n\n"
             "Each of `ways` (uint8) is 4 for rows in place of columns, 2 for upside down, 1 for\n"
             "mirrored, in this order, or a sum of these.");

static PyObject *py_reorient(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *out_object, *images_object, *ways_object;
    if (!PyArg_ParseTuple(arguments, "OOO", &out_object, &images_object, &ways_object)) return NULL;
    Buffers buffers = {.num = 0};
    Images out, images;
    PyObject *result = NULL;
    if (!take_images(&buffers, out_object, images_object, PyBUF_STRIDED_RO, true, true, &out,
                     &images))
        goto done;
    const uint8_t *ways = take_numbers(&buffers, ways_object, "ways", 'u', 1, out.shape[0]);
    if (ways == NULL) goto done;
    for (ptrdiff_t i = 0; i < out.shape[0]; i++) {
        if (ways[i] > 7 || (ways[i] & TRANSPOSED && out.shape[2] != out.shape[3])) {
            PyErr_SetString(PyExc_ValueError,
                            "ways must be from 0 to 7, and below 4 if images are not square.");
            goto done;
        }
    }
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = reorient(&out, &images, ways);
    Py_END_ALLOW_THREADS
    result = none_unless(!is_done);
done:
    give_back(&buffers);
    return result;
}

PyDoc_STRVAR(cut_doc,
             "cut(out, images, tops, lefts, fill)\n--\n\n"
             "Cut a window of the size of `out` from each image; `fill` lies outside of them.\n\n"
             "`tops` and `lefts` are int64, `fill` the bytes of one pixel.");

static PyObject *py_cut(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *out_object, *images_object, *tops_object, *lefts_object;
    const char *fill;
    Py_ssize_t fill_bytes;
    if (!PyArg_ParseTuple(arguments, "OOOOy#", &out_object, &images_object, &tops_object,
                          &lefts_object, &fill, &fill_bytes))
        return NULL;
    Buffers buffers = {.num = 0};
    Images out, images;
    PyObject *result = NULL;
    if (!take_images(&buffers, out_object, images_object, PyBUF_STRIDED_RO, false, false, &out,
                     &images))
        goto done;
    const Py_ssize_t count = out.shape[0];
    const int64_t *tops = take_numbers(&buffers, tops_object, "tops", 'i', 8, count);
    if (tops == NULL) goto done;
    const int64_t *lefts = take_numbers(&buffers, lefts_object, "lefts", 'i', 8, count);
    if (lefts == NULL) goto done;
    const int64_t most = INT64_MAX / 2; /* sums with sizes must not overflow */
    if (!check_range("tops", tops, count, -most, most) ||
        !check_range("lefts", lefts, count, -most, most))
        goto done;
    if ((size_t)fill_bytes != out.itemsize) {
        PyErr_Format(PyExc_ValueError, "fill must have the %zu bytes of a pixel.", out.itemsize);
        goto done;
    }
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = cut(&out, &images, tops, lefts, fill);
    Py_END_ALLOW_THREADS
    result = none_unless(!is_done);
done:
    give_back(&buffers);
    return result;
}

PyDoc_STRVAR(add_noise_doc,
             "add_noise(out, images, keys, factors, quantiles, low, high)\n--\n\n"
             "Add normal numbers times the factor of each image, and cut off at low and high.\n\n"
             "`keys` are uint64, those of the first word of each image; `quantiles` 65,536\n"
             "float32; `factors` of the type to compute with.");

static PyObject *py_add_noise(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *out_object, *images_object, *keys_object, *factors_object, *quantiles_object;
    Limits limits;
    if (!PyArg_ParseTuple(arguments, "OOOOOdd", &out_object, &images_object, &keys_object,
                          &factors_object, &quantiles_object, &limits.low, &limits.high))
        return NULL;
    Buffers buffers = {.num = 0};
    Images out, images;
    PyObject *result = NULL;
    const PixelType *type =
        take_values(&buffers, out_object, images_object, true, &out, &images);
    if (type == NULL) goto done;
    const Py_ssize_t count = out.shape[0];
    const uint64_t *keys = take_numbers(&buffers, keys_object, "keys", 'u', 8, count);
    if (keys == NULL) goto done;
    const void *factors =
        take_numbers(&buffers, factors_object, "factors", 'f', value_size(type), count);
    if (factors == NULL) goto done;
    const float *quantiles = take_numbers(&buffers, quantiles_object, "quantiles", 'f', 4, 65536);
    if (quantiles == NULL) goto done;
    Py_BEGIN_ALLOW_THREADS
    add_noise(out.data, images.data, type, (size_t)count, size_of(&out), keys, factors, quantiles,
              limits);
    Py_END_ALLOW_THREADS
    result = none_unless(false);
done:
    give_back(&buffers);
    return result;
}

/* Find the loop of a ufunc of NumPy for float or double. False with an exception: there is none. */
static bool find_loop(PyObject *object, bool is_wide, Loop *loop) {
    if (strcmp(Py_TYPE(object)->tp_name, "numpy.ufunc") != 0) {
        PyErr_SetString(PyExc_TypeError, "log2 and exp2 must be ufuncs of NumPy.");
        return false;
    }
    const PyUFuncObject *ufunc = (const PyUFuncObject *)object;
    const char type = is_wide ? NPY_DOUBLE : NPY_FLOAT;
    for (int i = 0; ufunc->nin == 1 && ufunc->nout == 1 && i < ufunc->ntypes; i++) {
        if (ufunc->types[2 * i] == type && ufunc->types[2 * i + 1] == type &&
            ufunc->functions[i] != NULL) {
            *loop = (Loop){ufunc->functions[i], ufunc->data == NULL ? NULL : ufunc->data[i]};
            return true;
        }
    }
    PyErr_Format(PyExc_TypeError, "The ufunc %s has no loop for this type.", ufunc->name);
    return false;
}

PyDoc_STRVAR(bend_doc,
             "bend(out, images, exponents, range, low, high, log2, exp2)\n--\n\n"
             "Raise places in a range to a power, and cut off at low and high.\n\n"
             "`exponents` are at least 0, of the type to compute with; `range` is a tuple of\n"
             "two numbers, or None for the least and greatest of each image; `log2` and `exp2`\n"
             "are those of NumPy.");

static PyObject *py_bend(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *out_object, *images_object, *exponents_object, *range_object, *log2, *exp2;
    Limits limits, range;
    if (!PyArg_ParseTuple(arguments, "OOOOddOO", &out_object, &images_object, &exponents_object,
                          &range_object, &limits.low, &limits.high, &log2, &exp2))
        return NULL;
    bool has_range = range_object != Py_None;
    if (has_range && !PyTuple_Check(range_object)) {
        PyErr_SetString(PyExc_TypeError, "range must be a tuple or None.");
        return NULL;
    }
    if (has_range && !PyArg_ParseTuple(range_object, "dd", &range.low, &range.high)) return NULL;
    Buffers buffers = {.num = 0};
    Images out, images;
    PyObject *result = NULL;
    const PixelType *type =
        take_values(&buffers, out_object, images_object, true, &out, &images);
    if (type == NULL) goto done;
    const Py_ssize_t count = out.shape[0];
    const void *exponents =
        take_numbers(&buffers, exponents_object, "exponents", 'f', value_size(type), count);
    if (exponents == NULL) goto done;
    Loop loops[2];
    if (!find_loop(log2, type->is_wide, &loops[0]) || !find_loop(exp2, type->is_wide, &loops[1]))
        goto done;
    Py_BEGIN_ALLOW_THREADS
    bend(out.data, images.data, type, (size_t)count, size_of(&out), exponents,
         has_range ? &range : NULL, limits, loops);
    Py_END_ALLOW_THREADS
    result = none_unless(false);
done:
    give_back(&buffers);
    return result;
}

PyDoc_STRVAR(blur_doc,
             "blur(out, images, radii, weights)\n--\n\n"
             "Sum shifted rows, then columns, by weight.\n\n"
             "`radii` are int64; `weights` (N, taps) of the type to compute with, of which the\n"
             "first 2 * radius + 1 of each image count.");

static PyObject *py_blur(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *out_object, *images_object, *radii_object, *weights_object;
    if (!PyArg_ParseTuple(arguments, "OOOO", &out_object, &images_object, &radii_object,
                          &weights_object))
        return NULL;
    Buffers buffers = {.num = 0};
    Images out, images;
    PyObject *result = NULL;
    const PixelType *type =
        take_values(&buffers, out_object, images_object, false, &out, &images);
    if (type == NULL) goto done;
    const int64_t *radii = take_numbers(&buffers, radii_object, "radii", 'i', 8, out.shape[0]);
    if (radii == NULL) goto done;
    Py_buffer *weights = take(&buffers, weights_object, "weights", 2, PyBUF_C_CONTIGUOUS);
    if (weights == NULL) goto done;
    if (kind_of(weights) != 'f' || (size_t)weights->itemsize != value_size(type) ||
        !is_aligned(weights) || weights->shape[0] != out.shape[0]) {
        PyErr_Format(PyExc_ValueError, "weights must be %zd rows of aligned floats of %zu bytes.",
                     (Py_ssize_t)out.shape[0], value_size(type));
        goto done;
    }
    const Py_ssize_t most_taps = weights->shape[1];
    if (!check_range("radii", radii, out.shape[0], 0, (int64_t)(most_taps + 1) / 2 - 1)) goto done;
    bool is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = blur(out.data, &images, type, radii, weights->buf, (size_t)most_taps);
    Py_END_ALLOW_THREADS
    result = none_unless(!is_done);
done:
    give_back(&buffers);
    return result;
}

static PyMethodDef METHODS[] = {
    {"reorient", py_reorient, METH_VARARGS, reorient_doc},
    {"cut", py_cut, METH_VARARGS, cut_doc},
    {"add_noise", py_add_noise, METH_VARARGS, add_noise_doc},
    {"bend", py_bend, METH_VARARGS, bend_doc},
    {"blur", py_blur, METH_VARARGS, blur_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* no state, and a buffer stays as long as it is held */
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_kernels",
    .m_doc = "What transforms do with pixels, compiled; see `fastloader.transforms._compiled`.",
    .m_size = 0,
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&DEFINITION); }
