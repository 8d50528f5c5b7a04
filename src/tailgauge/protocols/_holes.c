// Compares an event with a stencil whose values change; see stencil.py, whose patterns say the same for where this was not
// compiled. What is matched is JSON by its grammar. Built against the stable ABI: one file for every Python from 3.11 on.
// It also splits what is made of plain events, as sse_parser.py does with whatever comes.
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <string.h>
#include "../_json.h"

static PyObject *match(PyObject *module, PyObject *args) {
    (void)module;
    const char *data, *kinds;
    Py_ssize_t size, begin;
    PyObject *parts, *found;
    if (!PyArg_ParseTuple(args, "sO!y#n", &kinds, &PyTuple_Type, &parts, &data, &size, &begin)) return NULL;
    const char *at = data + begin, *end = data + size;
    int high = 0;
    Py_ssize_t ignored;
    if (begin < 0 || begin > size || PyTuple_Size(parts) != (Py_ssize_t)strlen(kinds) || !(found = PyList_New(0))) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    for (Py_ssize_t i = 0; kinds[i]; i++) {
        char *part;
        Py_ssize_t length;
        const char *behind = value((char)(kinds[i] | 0x20), at, &high, &ignored);
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(parts, i), &part, &length)) goto failed;
        if (!behind || end - behind < length || memcmp(behind, part, (size_t)length)) goto other;
        if (kinds[i] < 'a') {  // it is wanted
            PyObject *bytes = PyBytes_FromStringAndSize(at, behind - at);
            int is_full = !bytes || PyList_Append(found, bytes);
            Py_XDECREF(bytes);
            if (is_full) goto failed;
        }
        at = behind + length;
    }
    if (at == end && (!high || is_utf8(data, size))) return found;
other:
    Py_DECREF(found);
    Py_RETURN_NONE;
failed:
    Py_DECREF(found);
    return NULL;
}

// A field of an event's line, which ends before `end`; NULL: the line has another name, or other bytes behind it.
static const char *field(const char *at, const char *end, const char *name) {
    size_t length = strlen(name);
    return (size_t)(end - at) >= length && !memcmp(at, name, length) ? at + length : NULL;
}

static PyObject *events(PyObject *module, PyObject *payload) {
    (void)module;
    char *begin;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(payload, &begin, &size)) return NULL;
    const char *at = begin, *end = begin + size;
    if (size < 2 || end[-1] != '\n' || end[-2] != '\n' || memchr(at, '\r', (size_t)size)) Py_RETURN_NONE;
    PyObject *found = PyList_New(0);
    while (found && at < end) {
        const char *stop = memmem(at, (size_t)(end - at), "\n\n", 2);
        if (!stop) goto other;  // a third line feed
        const char *name = field(at, stop, "event: "), *behind = name ? memchr(name, '\n', (size_t)(stop - name)) : NULL;
        if (name && !behind) goto other;
        const char *data = field(name ? behind + 1 : at, stop, "data: ");
        if (!data || memchr(data, '\n', (size_t)(stop - data))) goto other;
        PyObject *event = Py_BuildValue("(y#y#)", name ? name : "", name ? behind - name : (Py_ssize_t)0, data, stop - data);
        if (!event || PyList_Append(found, event)) Py_CLEAR(found);
        Py_XDECREF(event);
        at = stop + 2;
    }
    return found;
other:
    Py_DECREF(found);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"events", (PyCFunction)events, METH_O,
     "events(payload) -> [(name, data)]; None: there is something else in it than whole events of one line of data and maybe a name before it."},
    {"match", (PyCFunction)match, METH_VARARGS,
     "match(kinds, parts, read, begin) -> [bytes]; None: it is another. From `begin` on the read has a value of each kind of `_json.h`, and its part "
     "behind it; those in capitals are returned."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_holes", "Splits events, and compares them with a stencil.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__holes(void) { return PyModule_Create(&definition); }
