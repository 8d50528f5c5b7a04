// What Python sees: the shapes of plain events, the body of an answer, and the sockets of a worker. Built against the
// stable ABI: one file for every Python from 3.11 on.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "answer.h"
#include "shape.h"
#include "sockets.h"

enum { MOST_SHAPES = 16, MOST_SHAPE_DEPTH = 8 };

static void *allocate(PyTypeObject *type) {
    allocfunc allocator = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return allocator(type, 0);
}

static void release(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(self);
    Py_DECREF(type);
}

// --- Shapes ---------------------------------------------------------------------------------------------------------

typedef struct {
    PyObject_HEAD Shapes shapes;
} ShapesObject;

static char *copy_of(const char *text, Py_ssize_t size) {
    char *copy = PyMem_Malloc((size_t)size + 1);
    if (!copy) {
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(copy, text, (size_t)size);
    copy[size] = 0;
    return copy;
}

static void free_shape(Shape *shape) {
    if (!shape) return;
    for (int i = 0; i < shape->count; i++) {
        PyMem_Free(shape->fields[i].key);
        PyMem_Free(shape->fields[i].text);
        free_shape(shape->fields[i].inside);
    }
    PyMem_Free(shape->fields);
    PyMem_Free(shape);
}

static Shape *shape_of(PyObject *described, int depth);

// A field is described as (key, rule, kind, value, text or None, shape or None, may be nothing, is required).
static int read_field(PyObject *described, Field *field, int depth) {
    const char *key;
    const char *text;
    Py_ssize_t key_size;
    Py_ssize_t text_size;
    int rule;
    PyObject *inside;
    if (!PyArg_ParseTuple(described, "y#iiiz#Opp", &key, &key_size, &rule, &field->kind, &field->value, &text,
                          &text_size, &inside, &field->may_be_nothing, &field->is_required)) {
        return 0;
    }
    if (rule < 0 || rule >= RULES || field->kind < 0 || field->kind >= KINDS || field->value < 0 ||
        field->value >= MOST_VALUES) {
        PyErr_SetString(PyExc_ValueError, "a field with no such rule, kind or value");
        return 0;
    }
    field->rule = (Rule)rule;
    if ((rule == INSIDE || rule == ONE_INSIDE) != (inside != Py_None) || ((rule == TEXT || rule == ROLE) && !text)) {
        PyErr_SetString(PyExc_ValueError, "a field without what its rule needs");
        return 0;
    }
    field->key = copy_of(key, key_size);
    field->key_size = (size_t)key_size;
    if (!field->key) return 0;
    if (text) {
        field->text = copy_of(text, text_size);
        field->text_size = (size_t)text_size;
        if (!field->text) return 0;
    }
    if (inside != Py_None) {
        field->inside = shape_of(inside, depth + 1);
        if (!field->inside) return 0;
    }
    return 1;
}

// A shape is described as (whether it refuses other keys, fields).
static Shape *shape_of(PyObject *described, int depth) {
    PyObject *fields;
    int refuses_others;
    if (depth > MOST_SHAPE_DEPTH) {
        PyErr_SetString(PyExc_ValueError, "shapes within shapes, too many");
        return NULL;
    }
    if (!PyTuple_Check(described) || !PyArg_ParseTuple(described, "pO!", &refuses_others, &PyTuple_Type, &fields)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a shape is a tuple");
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(fields);
    if (count > MOST_FIELDS) {
        PyErr_SetString(PyExc_ValueError, "a shape with too many fields");
        return NULL;
    }
    Shape *shape = PyMem_Calloc(1, sizeof *shape);
    if (shape) shape->fields = PyMem_Calloc((size_t)count + 1, sizeof *shape->fields);
    if (!shape || !shape->fields) {
        PyMem_Free(shape);
        PyErr_NoMemory();
        return NULL;
    }
    shape->refuses_others = refuses_others;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *field = PyTuple_GetItem(fields, i);
        shape->count = (int)i + 1;  // also of a field that is half read, so that it is freed
        if (!PyTuple_Check(field)) {
            PyErr_SetString(PyExc_TypeError, "a field is a tuple");
        } else if (read_field(field, &shape->fields[i], depth)) {
            continue;
        }
        free_shape(shape);
        return NULL;
    }
    return shape;
}

static void shapes_dealloc(ShapesObject *self) {
    Shapes *shapes = &self->shapes;
    for (int i = 0; i < shapes->count; i++) free_shape(shapes->shapes[i]);
    for (int i = 0; i < shapes->name_count; i++) PyMem_Free(shapes->names[i]);
    PyMem_Free(shapes->shapes);
    PyMem_Free(shapes->names);
    release((PyObject *)self);
}

static int read_shapes(Shapes *shapes, PyObject *described, PyObject *names) {
    Py_ssize_t count = PyTuple_Size(described);
    Py_ssize_t name_count = PyTuple_Size(names);
    if (!count || count > MOST_SHAPES || name_count > MOST_SHAPES) {
        PyErr_SetString(PyExc_ValueError, "too many shapes or names, or no shape");
        return 0;
    }
    shapes->shapes = PyMem_Calloc((size_t)count, sizeof *shapes->shapes);
    shapes->names = PyMem_Calloc((size_t)name_count + 1, sizeof *shapes->names);
    if (!shapes->shapes || !shapes->names) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        shapes->shapes[i] = shape_of(PyTuple_GetItem(described, i), 0);
        if (!shapes->shapes[i]) return 0;
        shapes->count = (int)i + 1;
    }
    for (Py_ssize_t i = 0; i < name_count; i++) {
        char *name;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(names, i), &name, &size)) return 0;
        shapes->names[i] = copy_of(name, size);
        if (!shapes->names[i]) return 0;
        shapes->name_count = (int)i + 1;
    }
    return 1;
}

static PyObject *shapes_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *described;
    PyObject *names;
    int names_are_plain;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "O!O!p", &PyTuple_Type, &described, &PyTuple_Type, &names, &names_are_plain))
        return NULL;
    ShapesObject *self = allocate(type);
    if (!self) return NULL;
    self->shapes = (Shapes){.names_are_plain = names_are_plain};
    if (!read_shapes(&self->shapes, described, names)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyType_Slot shapes_slots[] = {
    {Py_tp_new, shapes_new},
    {Py_tp_dealloc, shapes_dealloc},
    {Py_tp_doc, "Shapes(shapes, names, names_are_plain): the shapes of plain events; see protocols/shapes.py."},
    {0, NULL},
};
static PyType_Spec shapes_spec = {"tailgauge.transport._core.Shapes", sizeof(ShapesObject), 0, Py_TPFLAGS_DEFAULT,
                                  shapes_slots};
static PyTypeObject *shapes_type;

// --- Answer ---------------------------------------------------------------------------------------------------------

typedef struct {
    PyObject_HEAD Answer answer;
    PyObject *shapes;
} AnswerObject;

static PyObject *answer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *shapes;
    unsigned kept_kinds;
    int is_user_clock;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "OIp", &shapes, &kept_kinds, &is_user_clock)) return NULL;
    if (shapes != Py_None && !PyObject_TypeCheck(shapes, shapes_type)) {
        PyErr_SetString(PyExc_TypeError, "Shapes or None are needed");
        return NULL;
    }
    AnswerObject *self = allocate(type);
    if (!self) return NULL;
    answer_init(&self->answer);
    self->answer.kept_kinds = kept_kinds;
    self->answer.is_user_clock = is_user_clock;
    self->shapes = Py_NewRef(shapes);
    if (shapes != Py_None) self->answer.shapes = &((ShapesObject *)shapes)->shapes;
    return (PyObject *)self;
}

static void answer_dealloc(AnswerObject *self) {
    answer_free(&self->answer);
    Py_XDECREF(self->shapes);
    release((PyObject *)self);
}

static int is_framing(int kind, long long length) {
    if (kind >= CHUNKED && kind <= UNTIL_CLOSE && length >= 0) return 1;
    PyErr_SetString(PyExc_ValueError, "no such framing");
    return 0;
}

static PyObject *answer_object_begin(AnswerObject *self, PyObject *args) {
    int kind;
    long long length, sent_at, before;
    if (!PyArg_ParseTuple(args, "iLLL", &kind, &length, &sent_at, &before) || !is_framing(kind, length)) return NULL;
    pthread_mutex_lock(&self->answer.lock);
    answer_begin(&self->answer, (FramingKind)kind, (uint64_t)length, sent_at, before);
    pthread_mutex_unlock(&self->answer.lock);
    Py_RETURN_NONE;
}

static PyObject *answer_object_read(AnswerObject *self, PyObject *args) {
    const char *bytes;
    Py_ssize_t size;
    long long arrived, read_at, empty_at;
    if (!PyArg_ParseTuple(args, "y#LLL", &bytes, &size, &arrived, &read_at, &empty_at)) return NULL;
    pthread_mutex_lock(&self->answer.lock);
    answer_read(&self->answer, bytes, (size_t)size, (Times){arrived, read_at, empty_at});
    pthread_mutex_unlock(&self->answer.lock);
    Py_RETURN_NONE;
}

static PyObject *answer_object_allow(AnswerObject *self, PyObject *args) {
    unsigned kinds;
    if (!PyArg_ParseTuple(args, "I", &kinds)) return NULL;
    pthread_mutex_lock(&self->answer.lock);
    int allowed = answer_allow(&self->answer, kinds);
    pthread_mutex_unlock(&self->answer.lock);
    return PyBool_FromLong(allowed);
}

// A column of the chunks, as bytes of an array.
#define COLUMN(name, type, field)                                                                           \
    static PyObject *name(const News *news) {                                                               \
        PyObject *column = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(news->chunk_count * sizeof(type))); \
        if (!column) return NULL;                                                                           \
        type *values = (type *)(void *)PyBytes_AsString(column);                                            \
        for (size_t i = 0; i < news->chunk_count; i++) values[i] = news->chunks[i].field;                   \
        return column;                                                                                      \
    }
COLUMN(kinds_column, unsigned char, kind)
COLUMN(arrived_column, int64_t, arrived)
COLUMN(low_column, int64_t, low)
COLUMN(read_at_column, int64_t, read_at)
COLUMN(read_index_column, int32_t, read_index)
COLUMN(characters_column, int32_t, characters)

static PyObject *columns_of(const News *news) {
    if (!news->chunk_count) return Py_NewRef(Py_None);
    return Py_BuildValue("(NNNNNN)", kinds_column(news), arrived_column(news), low_column(news), read_at_column(news),
                         read_index_column(news), characters_column(news));
}

static PyObject *piece_of(const News *news, const Piece *piece) {
    PyObject *kept = PyTuple_New(KINDS);
    if (!kept) return NULL;
    for (int kind = 0; kind < KINDS; kind++) {
        PyObject *size = PyLong_FromSize_t(piece->kept_before[kind]);
        if (!size || PyTuple_SetItem(kept, kind, size)) {
            Py_DECREF(kept);
            return NULL;
        }
    }
    return Py_BuildValue("(nNy#LLLiN)", (Py_ssize_t)piece->chunks_before, kept, news->payload.bytes + piece->offset,
                         (Py_ssize_t)piece->size, (long long)piece->low, (long long)piece->arrived,
                         (long long)piece->read_at, (int)piece->read_index, PyBool_FromLong(piece->rests));
}

static PyObject *pieces_of(const News *news) {
    PyObject *pieces = PyList_New((Py_ssize_t)news->piece_count);
    for (size_t i = 0; pieces && i < news->piece_count; i++) {
        PyObject *piece = piece_of(news, &news->pieces[i]);
        if (!piece || PyList_SetItem(pieces, (Py_ssize_t)i, piece)) Py_CLEAR(pieces);
    }
    return pieces;
}

static PyObject *kept_of(const News *news) {
    PyObject *kept = PyTuple_New(KINDS);
    for (int kind = 0; kept && kind < KINDS; kind++) {
        const Buffer *buffer = &news->kept[kind];
        PyObject *text = PyBytes_FromStringAndSize(buffer->bytes, (Py_ssize_t)buffer->size);
        if (!text || PyTuple_SetItem(kept, kind, text)) Py_CLEAR(kept);
    }
    return kept;
}

static PyObject *facts_of(const Answer *now, size_t held) {
    const Buffer *line = &now->framing.line;
    int has_line = now->framing.error && line->bytes;
    return Py_BuildValue("(LLLLLLiNNNiy#n)", (long long)now->reads, (long long)now->body_bytes, (long long)now->lag_max,
                         (long long)now->last_arrived, (long long)now->last_read_at, (long long)now->last_low,
                         (int)now->read_index, PyBool_FromLong(now->framing.is_done),
                         PyBool_FromLong(now->framing.has_excess), PyBool_FromLong(now->has_user_stamps),
                         now->no_memory ? NO_MEMORY : (int)now->framing.error, has_line ? line->bytes : "",
                         has_line ? (Py_ssize_t)line->size : (Py_ssize_t)0, (Py_ssize_t)held);
}

// Objects are made without a lock: making some may collect garbage, whose finalizers may do anything.
static PyObject *answer_object_take(AnswerObject *self, PyObject *ignored) {
    News news;
    (void)ignored;
    pthread_mutex_lock(&self->answer.lock);
    answer_take(&self->answer, &news);
    Answer now = self->answer;  // of its bytes only the line is read, which changes no more where there is an error
    self->answer.lag_max = 0;
    pthread_mutex_unlock(&self->answer.lock);
    PyObject *kept = self->answer.kept_kinds ? kept_of(&news) : Py_NewRef(Py_None);
    PyObject *taken = Py_BuildValue("(NNNLN)", columns_of(&news), pieces_of(&news), kept, (long long)news.events,
                                    facts_of(&now, answer_held(&now)));
    news_free(&news);
    return taken;
}

static PyMethodDef answer_methods[] = {
    {"begin", (PyCFunction)answer_object_begin, METH_VARARGS,
     "begin(framing, length, sent_at, before): the body comes next."},
    {"read", (PyCFunction)answer_object_read, METH_VARARGS,
     "read(bytes, arrived, read_at, empty_at): one read of the body."},
    {"allow", (PyCFunction)answer_object_allow, METH_VARARGS,
     "allow(kinds): decode content of these kinds from now on; False: there is more to take first."},
    {"take", (PyCFunction)answer_object_take, METH_NOARGS,
     "take() -> (columns or None, pieces, kept or None, events) since the last call, and facts of all reads."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot answer_slots[] = {
    {Py_tp_new, answer_new},
    {Py_tp_dealloc, answer_dealloc},
    {Py_tp_methods, answer_methods},
    {Py_tp_doc, "Answer(shapes or None, kept_kinds, is_user_clock): the body of one answer."},
    {0, NULL},
};
static PyType_Spec answer_spec = {"tailgauge.transport._core.Answer", sizeof(AnswerObject), 0, Py_TPFLAGS_DEFAULT,
                                  answer_slots};
static PyTypeObject *answer_type;

// --- Sockets --------------------------------------------------------------------------------------------------------

typedef struct {
    PyObject_HEAD Sockets sockets;
    PyObject **answers;  // that slots hold, by their numbers
    uint32_t answer_room;
} SocketsObject;

static PyObject *sockets_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)args;
    (void)keywords;
    SocketsObject *self = allocate(type);
    if (!self) return NULL;
    self->answers = NULL;
    self->answer_room = 0;
    int error = sockets_init(&self->sockets);
    if (error) {
        Py_DECREF(self);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return (PyObject *)self;
}

static void sockets_dealloc(SocketsObject *self) {
    Sockets *sockets = &self->sockets;
    PyThreadState *state = PyEval_SaveThread();
    sockets_stop(sockets);  // before the owners go: until then it may open connections, and move the slots
    PyEval_RestoreThread(state);
    for (uint32_t i = 0; i < sockets->slot_count; i++) {
        if (sockets->slots[i].fd >= 0) Py_XDECREF((PyObject *)sockets->slots[i].owner);
    }
    sockets_free(sockets);  // closes what was opened here and not adopted
    for (uint32_t i = 0; i < self->answer_room; i++) Py_XDECREF(self->answers[i]);
    PyMem_Free(self->answers);
    release((PyObject *)self);
}

static PyObject *no_connection(unsigned number) {
    return PyErr_Format(PyExc_KeyError, "no connection %u", number);
}

// With the lock held.
static int has_answer_room(SocketsObject *self, uint32_t number) {
    if (number < self->answer_room) return 1;
    uint32_t room = self->sockets.slot_count;
    PyObject **answers = PyMem_Realloc(self->answers, room * sizeof *answers);
    if (!answers) return 0;
    for (uint32_t i = self->answer_room; i < room; i++) answers[i] = NULL;
    self->answers = answers;
    self->answer_room = room;
    return 1;
}

// With the lock held: a connection that Python has; NULL: it is free, or was opened here and is not adopted yet.
static Slot *owned_slot(SocketsObject *self, uint32_t number) {
    Slot *slot = sockets_slot(&self->sockets, number);
    return slot && slot->owner ? slot : NULL;
}

static PyObject *sockets_object_add(SocketsObject *self, PyObject *args) {
    int fd;
    int is_sealed;
    PyObject *owner;
    uint32_t number = 0;
    if (!PyArg_ParseTuple(args, "iOp", &fd, &owner, &is_sealed)) return NULL;
    int error = sockets_add(&self->sockets, fd, owner, is_sealed, &number);
    pthread_mutex_lock(&self->sockets.lock);
    if (!error && !has_answer_room(self, number)) {
        sockets_remove(&self->sockets, sockets_slot(&self->sockets, number));
        error = ENOMEM;
    }
    pthread_mutex_unlock(&self->sockets.lock);
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_INCREF(owner);
    return PyLong_FromUnsignedLong(number);
}

static PyObject *sockets_object_remove(SocketsObject *self, PyObject *args) {
    unsigned number;
    if (!PyArg_ParseTuple(args, "I", &number)) return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    Slot *slot = owned_slot(self, number);
    PyObject *owner = slot ? slot->owner : NULL;
    PyObject *answer = slot ? self->answers[number] : NULL;
    if (slot) {
        sockets_remove(&self->sockets, slot);
        self->answers[number] = NULL;
    }
    pthread_mutex_unlock(&self->sockets.lock);
    if (!owner) return no_connection(number);
    Py_XDECREF(answer);
    Py_DECREF(owner);
    Py_RETURN_NONE;
}

static PyObject *sockets_object_listen(SocketsObject *self, PyObject *args) {
    unsigned number;
    PyObject *answer;
    int is_urgent;
    if (!PyArg_ParseTuple(args, "IOp", &number, &answer, &is_urgent)) return NULL;
    if (answer != Py_None && !PyObject_TypeCheck(answer, answer_type)) {
        PyErr_SetString(PyExc_TypeError, "an Answer or None is needed");
        return NULL;
    }
    pthread_mutex_lock(&self->sockets.lock);
    Slot *slot = owned_slot(self, number);
    PyObject *before = slot ? self->answers[number] : NULL;
    if (slot) {
        self->answers[number] = answer == Py_None ? NULL : Py_NewRef(answer);
        slot->answer = answer == Py_None ? NULL : &((AnswerObject *)answer)->answer;
        slot->is_urgent = is_urgent;
        slot->is_fed &= answer == (PyObject *)before;
    }
    pthread_mutex_unlock(&self->sockets.lock);
    if (!slot) return no_connection(number);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *sockets_object_feed(SocketsObject *self, PyObject *args) {
    unsigned number;
    if (!PyArg_ParseTuple(args, "I", &number)) return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    Slot *slot = owned_slot(self, number);
    int is_fed = slot && slot->answer && !slot->is_sealed;
    if (is_fed) {
        sockets_feed(slot);
    }
    pthread_mutex_unlock(&self->sockets.lock);
    if (!is_fed) return no_connection(number);
    Py_RETURN_NONE;
}

// What the thread tells, copied while it is locked out.
typedef struct {
    PyObject **owners;  // of connections with news, then of the notices
    size_t owner_count;
    Notice *notices;
    size_t notice_count;
    int64_t since;
} Told;

static int copy_told(Sockets *sockets, Told *told) {
    Sends *sends = &sockets->sends;
    told->owners = PyMem_Malloc((sockets->ready_count + sends->notice_count + 1) * sizeof *told->owners);
    if (!told->owners) return 0;
    told->since = sockets->ready_since;
    for (size_t i = 0; i < sockets->ready_count; i++) {
        Slot *slot = &sockets->slots[sockets->ready[i]];
        slot->is_ready = 0;
        if (slot->owner) told->owners[told->owner_count++] = Py_NewRef((PyObject *)slot->owner);
    }
    for (size_t i = 0; i < sends->notice_count; i++) {
        void *owner = sends->notices[i].kind == ON_LENT ? sockets->slots[sends->notices[i].number].owner : NULL;
        told->owners[told->owner_count + i] = Py_NewRef(owner ? (PyObject *)owner : Py_None);
    }
    told->notices = sends->notices;
    told->notice_count = sends->notice_count;
    sends->notices = NULL;
    sends->notice_count = sends->notice_room = 0;
    sockets->ready_count = 0;
    sockets->ready_since = sockets->wake_at = 0;
    return 1;
}

static PyObject *list_of_owners(const Told *told) {
    PyObject *list = PyList_New((Py_ssize_t)told->owner_count);
    for (size_t i = 0; i < told->owner_count; i++) {
        if (!list || PyList_SetItem(list, (Py_ssize_t)i, told->owners[i])) Py_DECREF(told->owners[i]);
    }
    return list;
}

static PyObject *list_of_notices(const Told *told) {
    PyObject *list = PyList_New((Py_ssize_t)told->notice_count);
    for (size_t i = 0; i < told->notice_count; i++) {
        const Notice *notice = &told->notices[i];
        PyObject *item =
            Py_BuildValue("(KiINL)", (unsigned long long)notice->token, (int)notice->kind, (unsigned)notice->number,
                          told->owners[told->owner_count + i], (long long)notice->at);
        if (!list || !item || PyList_SetItem(list, (Py_ssize_t)i, item)) Py_CLEAR(list);
    }
    return list;
}

static PyObject *sockets_object_ready(SocketsObject *self, PyObject *args) {
    Sockets *sockets = &self->sockets;
    eventfd_t unused;
    long long wall_offset;
    Told told = {0};
    if (!PyArg_ParseTuple(args, "L", &wall_offset)) return NULL;
    pthread_mutex_lock(&sockets->lock);
    sockets->wall_offset = wall_offset;
    int is_copied = copy_told(sockets, &told);
    if (sockets->is_woken) eventfd_read(sockets->event, &unused);
    sockets->is_woken = 0;
    pthread_mutex_unlock(&sockets->lock);
    if (!is_copied) return PyErr_NoMemory();
    PyObject *owners = list_of_owners(&told);
    PyObject *notices = list_of_notices(&told);
    PyMem_Free(told.owners);
    free(told.notices);
    return Py_BuildValue("(NLN)", owners, (long long)told.since, notices);
}

static PyObject *list_of_reads(const Buffer *stored) {
    PyObject *reads = PyList_New(0);
    size_t at = 0;
    while (reads && at < stored->size) {
        ReadHead head;
        memcpy(&head, stored->bytes + at, sizeof head);
        at += sizeof head;
        PyObject *read =
            Py_BuildValue("(y#LLL)", stored->bytes + at, (Py_ssize_t)head.size, (long long)head.times.arrived,
                          (long long)head.times.read_at, (long long)head.times.empty_at);
        at += (size_t)head.size;
        if (!read || PyList_Append(reads, read)) Py_CLEAR(reads);
        Py_XDECREF(read);
    }
    return reads;
}

static PyObject *sockets_object_reads(SocketsObject *self, PyObject *args) {
    unsigned number;
    Slot now = {0};
    if (!PyArg_ParseTuple(args, "I", &number)) return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    Slot *slot = owned_slot(self, number);
    if (slot) {
        now = *slot;
        slot->reads = (Buffer){0};
        sockets_go_on(&self->sockets, slot);
    }
    pthread_mutex_unlock(&self->sockets.lock);
    if (!slot) return no_connection(number);
    PyObject *end = now.has_ended ? PyLong_FromLong(now.end_error) : Py_NewRef(Py_None);
    PyObject *is_sending = PyBool_FromLong(now.sending != NOT_SENDING);
    PyObject *found = Py_BuildValue("(NNLNLL)", list_of_reads(&now.reads), end, (long long)now.sent_at, is_sending,
                                    (long long)now.opened_at, (long long)now.connected_at);
    buffer_free(&now.reads);
    return found;
}

// --- requests that are made ahead -----------------------------------------------------------------------------------

static int read_address(const char *host, int port, struct sockaddr_storage *address, socklen_t *size) {
    struct sockaddr_in *ipv4 = (struct sockaddr_in *)address;
    struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)address;
    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET, host, &ipv4->sin_addr) == 1) {
        ipv4->sin_family = AF_INET;
        ipv4->sin_port = htons((uint16_t)port);
        *size = sizeof *ipv4;
    } else if (inet_pton(AF_INET6, host, &ipv6->sin6_addr) == 1) {
        ipv6->sin6_family = AF_INET6;
        ipv6->sin6_port = htons((uint16_t)port);
        *size = sizeof *ipv6;
    } else {
        PyErr_SetString(PyExc_ValueError, "no address of IP");
        return 0;
    }
    return 1;
}

static PyObject *sockets_object_add_pool(SocketsObject *self, PyObject *args) {
    const char *host;
    int port;
    uint32_t pool = 0;
    struct sockaddr_storage address = {0};
    socklen_t size = 0;
    if (!PyArg_ParseTuple(args, "zi", &host, &port) || (host && !read_address(host, port, &address, &size)))
        return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    int is_added = sends_add_pool(&self->sockets.sends, &address, size, &pool);
    pthread_mutex_unlock(&self->sockets.lock);
    return is_added ? PyLong_FromUnsignedLong(pool) : PyErr_NoMemory();
}

static PyObject *sockets_object_lend(SocketsObject *self, PyObject *args) {
    unsigned number, pool;
    long long from, until;
    if (!PyArg_ParseTuple(args, "IILL", &number, &pool, &from, &until)) return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    Sends *sends = &self->sockets.sends;
    Slot *slot = owned_slot(self, number);
    int is_lent = slot && slot->pool < 0 && pool < sends->pool_count && sends_lend(sends, pool, number);
    if (is_lent) {
        slot->pool = (int)pool;
        slot->usable_from = from;
        slot->usable_until = until;
    }
    pthread_mutex_unlock(&self->sockets.lock);
    if (!is_lent) return no_connection(number);
    Py_RETURN_NONE;
}

static PyObject *sockets_object_unlend(SocketsObject *self, PyObject *args) {
    unsigned number;
    if (!PyArg_ParseTuple(args, "I", &number)) return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    Slot *slot = sockets_slot(&self->sockets, number);
    int was_lent = slot && slot->pool >= 0;
    if (was_lent) {
        sends_unlend(&self->sockets.sends, (uint32_t)slot->pool, number);
        slot->pool = -1;
    }
    pthread_mutex_unlock(&self->sockets.lock);
    return PyBool_FromLong(was_lent);
}

static PyObject *sockets_object_is_lent(SocketsObject *self, PyObject *args) {
    unsigned number;
    if (!PyArg_ParseTuple(args, "I", &number)) return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    Slot *slot = sockets_slot(&self->sockets, number);
    int is_lent = slot && slot->pool >= 0;
    pthread_mutex_unlock(&self->sockets.lock);
    return PyBool_FromLong(is_lent);
}

static PyObject *sockets_object_prepare(SocketsObject *self, PyObject *args) {
    unsigned pool;
    long long due;
    unsigned long long token;
    const char *bytes;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "ILKy#", &pool, &due, &token, &bytes, &size)) return NULL;
    Prepared *prepared = calloc(1, sizeof *prepared);
    if (!prepared) return PyErr_NoMemory();
    *prepared = (Prepared){.due = due, .token = token, .pool = pool};
    int is_added = buffer_add(&prepared->bytes, bytes, (size_t)size);
    pthread_mutex_lock(&self->sockets.lock);
    int is_known = pool < self->sockets.sends.pool_count;
    is_added = is_added && is_known && sends_add(&self->sockets.sends, prepared);
    if (is_added) sockets_set_timer(&self->sockets);
    pthread_mutex_unlock(&self->sockets.lock);
    if (!is_added) {
        prepared_free(prepared);
        return is_known ? PyErr_NoMemory() : PyErr_Format(PyExc_KeyError, "no pool %u", pool);
    }
    Py_RETURN_NONE;
}

static PyObject *sockets_object_set_most_sent(SocketsObject *self, PyObject *args) {
    long long most;
    if (!PyArg_ParseTuple(args, "L", &most)) return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    self->sockets.sends.most_sent = most;
    pthread_mutex_unlock(&self->sockets.lock);
    Py_RETURN_NONE;
}

static PyObject *sockets_object_withdraw(SocketsObject *self, PyObject *args) {
    unsigned long long token;
    if (!PyArg_ParseTuple(args, "K", &token)) return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    Prepared *prepared = sends_withdraw(&self->sockets.sends, token);
    sockets_set_timer(&self->sockets);
    pthread_mutex_unlock(&self->sockets.lock);
    int was_there = prepared != NULL;
    prepared_free(prepared);
    return PyBool_FromLong(was_there);
}

static PyObject *sockets_object_adopt(SocketsObject *self, PyObject *args) {
    unsigned number;
    PyObject *owner;
    if (!PyArg_ParseTuple(args, "IO", &number, &owner)) return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    Slot *slot = sockets_slot(&self->sockets, number);
    int is_adopted = slot && !slot->owner && has_answer_room(self, number);
    int fd = slot ? slot->fd : -1;
    if (is_adopted) slot->owner = Py_NewRef(owner);
    pthread_mutex_unlock(&self->sockets.lock);
    return is_adopted ? PyLong_FromLong(fd) : no_connection(number);
}

static PyObject *sockets_object_waits(SocketsObject *self, PyObject *args) {
    unsigned number;
    if (!PyArg_ParseTuple(args, "I", &number)) return NULL;
    pthread_mutex_lock(&self->sockets.lock);
    Slot *slot = owned_slot(self, number);
    int waits = slot && (slot->reads.size || slot->has_ended);
    pthread_mutex_unlock(&self->sockets.lock);
    return slot ? PyBool_FromLong(waits) : no_connection(number);
}

static PyObject *sockets_object_lags(SocketsObject *self, PyObject *ignored) {
    Buffer *lags = &self->sockets.lags;
    (void)ignored;
    pthread_mutex_lock(&self->sockets.lock);
    PyObject *found = PyBytes_FromStringAndSize(lags->bytes, (Py_ssize_t)lags->size);
    if (found) lags->size = 0;
    pthread_mutex_unlock(&self->sockets.lock);
    return found;
}

static PyObject *sockets_object_fileno(SocketsObject *self, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromLong(self->sockets.event);
}

static PyMethodDef sockets_methods[] = {
    {"add", (PyCFunction)sockets_object_add, METH_VARARGS,
     "add(fd, connection, is_sealed) -> number: read a socket from now on."},
    {"remove", (PyCFunction)sockets_object_remove, METH_VARARGS, "remove(number): read it no more."},
    {"listen", (PyCFunction)sockets_object_listen, METH_VARARGS,
     "listen(number, answer or None, is_urgent): whose body comes next; urgent: somebody waits for what comes."},
    {"feed", (PyCFunction)sockets_object_feed, METH_VARARGS,
     "feed(number): what waits, and what comes, goes to the answer that listens, whose body has begun."},
    {"ready", (PyCFunction)sockets_object_ready, METH_VARARGS,
     "ready(wall minus monotonic ns) -> (connections of which there is news, when the first of it was read, notices of "
     "what "
     "was due: (token, kind, number, connection or None, at))."},
    {"reads", (PyCFunction)sockets_object_reads, METH_VARARGS,
     "reads(number) -> ([(bytes, arrived, read_at, empty_at)], end, sent_at, is_sending, opened_at, connected_at): what no "
     "answer has taken; end: None or an errno, 0 where the peer has closed."},
    {"add_pool", (PyCFunction)sockets_object_add_pool, METH_VARARGS,
     "add_pool(host or None, port) -> pool: connections to this address are opened where none is lent."},
    {"lend", (PyCFunction)sockets_object_lend, METH_VARARGS,
     "lend(number, pool, usable_from, usable_until): a request that is due may take it."},
    {"unlend", (PyCFunction)sockets_object_unlend, METH_VARARGS, "unlend(number) -> whether it was still lent."},
    {"is_lent", (PyCFunction)sockets_object_is_lent, METH_VARARGS, "is_lent(number): whether no request has taken it."},
    {"prepare", (PyCFunction)sockets_object_prepare, METH_VARARGS, "prepare(pool, due, token, bytes)."},
    {"set_most_sent", (PyCFunction)sockets_object_set_most_sent, METH_VARARGS,
     "set_most_sent(count): so many prepared requests may leave, from the first on; others come back."},
    {"withdraw", (PyCFunction)sockets_object_withdraw, METH_VARARGS, "withdraw(token) -> whether it had not left."},
    {"adopt", (PyCFunction)sockets_object_adopt, METH_VARARGS,
     "adopt(number, connection) -> fd of one that was opened for a request."},
    {"waits", (PyCFunction)sockets_object_waits, METH_VARARGS, "waits(number): whether `reads` would have something."},
    {"lags", (PyCFunction)sockets_object_lags, METH_NOARGS,
     "lags() -> bytes of int64: ns from arrival to read, of each read since the last call."},
    {"fileno", (PyCFunction)sockets_object_fileno, METH_NOARGS, "Readable when there is news that cannot wait."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot sockets_slots[] = {
    {Py_tp_new, sockets_new},
    {Py_tp_dealloc, sockets_dealloc},
    {Py_tp_methods, sockets_methods},
    {Py_tp_doc, "Reads sockets on a thread of its own."},
    {0, NULL},
};
static PyType_Spec sockets_spec = {"tailgauge.transport._core.Sockets", sizeof(SocketsObject), 0, Py_TPFLAGS_DEFAULT,
                                   sockets_slots};

// --- the module -----------------------------------------------------------------------------------------------------

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_core",
    .m_doc = "Reads sockets on a thread, and decodes what is plain.",
    .m_size = -1,
};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec, const char *name) {
    PyObject *type = PyType_FromSpec(spec);
    if (type && PyModule_AddObjectRef(module, name, type)) Py_CLEAR(type);
    return (PyTypeObject *)type;
}

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    shapes_type = add_type(module, &shapes_spec, "Shapes");
    answer_type = add_type(module, &answer_spec, "Answer");
    PyTypeObject *sockets_type = add_type(module, &sockets_spec, "Sockets");
    if (!shapes_type || !answer_type || !sockets_type) Py_CLEAR(module);
    Py_XDECREF((PyObject *)sockets_type);
    return module;
}
