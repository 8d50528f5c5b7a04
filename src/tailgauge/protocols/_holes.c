// Compares an event with a stencil whose values change; see stencil.py, whose patterns say the same for where this was not
// compiled. What is matched is JSON by its grammar. Built against the stable ABI: one file for every Python from 3.11 on.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <string.h>

enum { COUNT_DIGITS = 11, WHOLE_DIGITS = 18, FRACTION_DIGITS = 30, EXPONENT_DIGITS = 3 };

// Each takes the bytes from `at` on and returns the end of the value, NULL: there is none. A read ends with '\0', as all
// bytes of Python's do.
static const char *digits(const char *at, int most) {
    const char *end = at;
    while (end - at < most && *end >= '0' && *end <= '9') end++;
    return end > at ? end : NULL;
}

static const char *whole(const char *at, int most) {
    return at[0] == '0' && at[1] >= '0' && at[1] <= '9' ? NULL : digits(at, most);
}

static const char *number(const char *at) {
    const char *end = whole(at + (*at == '-'), WHOLE_DIGITS), *next;
    if (end && *end == '.' && (next = digits(end + 1, FRACTION_DIGITS))) end = next;
    if (end && (*end == 'e' || *end == 'E')) {
        next = digits(end + 1 + (end[1] == '+' || end[1] == '-'), EXPONENT_DIGITS);
        if (next) end = next;
    }
    return end;
}

static const char *numbers(const char *at) {
    if (*at++ != '[') return NULL;
    while (*at != ']') {
        if (!(at = number(at))) return NULL;
        if (*at == ',') at += 1 + (at[1] == ' ');
        else if (*at != ']') return NULL;
        else break;
        if (*at == ']') return NULL;
    }
    return at + 1;
}

// Up to the quotation mark; `high` is set where it has bytes beyond ASCII.
static const char *string(const char *at, int *high) {
    for (;; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '"') return at;
        if (c < 0x20) return NULL;
        *high |= c & 0x80;
        if (c != '\\') continue;
        c = (unsigned char)*++at;
        if (c == 'u') {
            for (int i = 0; i < 4; i++)
                if (!memchr("0123456789abcdefABCDEF", *++at, 22)) return NULL;
        } else if (!c || !strchr("\"\\/bfnrt", c)) {
            return NULL;
        }
    }
}

static const char *value(char kind, const char *at, int *high) {
    if (kind == 't') return string(at, high);
    if (kind == 's') return *at == '"' && (at = string(at + 1, high)) ? at + 1 : NULL;
    if (kind == 'c') return whole(at, COUNT_DIGITS);
    return kind == 'l' ? numbers(at) : number(at);
}

static int is_utf8(const char *data, Py_ssize_t size) {
    PyObject *text = PyUnicode_DecodeUTF8(data, size, NULL);
    if (!text) PyErr_Clear();
    Py_XDECREF(text);
    return text != NULL;
}

static PyObject *match(PyObject *module, PyObject *args) {
    (void)module;
    const char *data, *kinds;
    Py_ssize_t size, begin;
    PyObject *parts, *found;
    if (!PyArg_ParseTuple(args, "sO!y#n", &kinds, &PyTuple_Type, &parts, &data, &size, &begin)) return NULL;
    const char *at = data + begin, *end = data + size;
    int high = 0;
    if (begin < 0 || begin > size || PyTuple_Size(parts) != (Py_ssize_t)strlen(kinds) || !(found = PyList_New(0))) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    for (Py_ssize_t i = 0; kinds[i]; i++) {
        char *part;
        Py_ssize_t length;
        const char *behind = value((char)(kinds[i] | 0x20), at, &high);
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

static PyMethodDef methods[] = {
    {"match", (PyCFunction)match, METH_VARARGS,
     "match(kinds, parts, read, begin) -> [bytes]; None: it is another. From `begin` on the read has a value of each kind, and its part behind it: "
     "t a text up to its end, s a string, n a number, c a count, l a list of numbers; those in capitals are returned."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_holes", "Compares events with a stencil.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__holes(void) { return PyModule_Create(&definition); }
