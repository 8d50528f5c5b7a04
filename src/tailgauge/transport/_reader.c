// Reads the sockets of one worker on a thread of its own, which never needs the interpreter: whatever Python does, each
// segment is read, with the kernel's timestamp, before the next one of its stream arrives.
//
// The thread appends reads to a batch; `drain` takes the batch and makes Python objects of it. The thread wakes the event
// loop (an eventfd) for what cannot wait: a read that may end an answer, a read of a connection of which each read counts,
// an end, a batch that has grown. Where nobody acts on an answer, its reads wait for a few others. TLS hides the ends of
// answers (`look`): what may be one waits for 2 ms at most, so that one wake-up serves many connections, and what is none is
// decrypted later, much at once. While much arrives the thread rests between two polls: gaps longer than a rest lose nothing,
// because the kernel stamps each segment. Built against the stable ABI: one file for every Python from 3.11 on.
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "../_json.h"

enum { READ_SIZE = 65536, EVENTS = 1024 };
enum { MANY = 2048, MUCH = 1 << 20 };       // reads, bytes of a batch that wake the loop
enum { MOST = 16 << 20, MOST_READS = 1 << 17 };  // bytes, reads that wait for Python, before reading pauses
enum { MOST_OF_ONE = 1 << 18 };             // bytes of them from one socket
enum { USUAL = 4 << 20, USUAL_READS = 1 << 16 };  // room for so much is not given back
enum { MOST_KEPT = 65536, LEAST_KEPT = 4096 };  // bytes of one connection that are kept undecoded, if there are few or many
enum { ALL_KEPT = 32 << 20, READ_BYTES = 200 };  // of all connections; what a kept read takes beside its bytes
enum { RECORD_HEAD = 5, RECORD_SIZES = RECORD_HEAD + (1 << 14) + 512 };  // bytes of a TLS record, at most
enum { WITHIN = 1, ENDING = 2 };  // where in an answer records of a size were seen
enum { TEXTS = 64 };  // of a read that is decoded here
enum { ABOVE = 10, BELOW = 5 };  // of a nice value: a core that both want goes to the thread
enum { SETTLED = 2 };  // polls until a socket that was just added, or not emptied, can have been seen empty
static const int64_t REST_NS = 500000, FULL_NS = 1000000;
static const int64_t PATIENCE_NS = 30000000;  // for which a read waits that nobody acts on: a loop that wakes for a dozen saves most
static const int64_t LOOK_NS = 2000000;  // so long waits for the loop what may be the end of an answer under TLS
static const int64_t QUIET_NS = 50000000, QUIET_EVERY_NS = 10000000;  // after so long without a read it may have been one
static const int POLL_MS = 2, LOOK_POLL_MS = 1;  // at least so often: the time of an empty poll bounds when a read came

typedef struct {
    uint32_t slot, generation;
    int32_t size, error;  // size 0: the end, with an errno or 0; -1: none, but it has been quiet
    int look;  // under TLS: it may end an answer
    size_t offset;
    int64_t stamp, read_at, empty_at;  // wall clock, 0: none; monotonic; monotonic, 0: unknown
} Read;

typedef struct {
    Read *reads;
    size_t count, room;
    char *bytes;
    size_t used, size;
} Batch;

typedef struct {
    int fd;  // -1: free
    uint32_t generation;
    int waiting;    // reads in the batch that is being filled
    size_t bytes;   // in them
    int full;       // not watched until the batch is taken: one that floods us leaves room for others
    int may_wait;   // nobody acts on its reads
    int64_t known;  // the number of the first poll that counts for it
    PyObject *owner, *kept;  // `kept`: the list that takes its reads; NULL: each read counts
    size_t kept_bytes;  // in `kept`
    int sealed;         // by TLS: `kept` is a bytearray of what was read,
    PyObject *times;    // and this one of a `Sealed` for each read
    int record;         // size of the last read, if it was one record; 0: it was not
    int64_t unseen_at;  // when the last read came that was not looked at; 0: there is none
    PyObject *texts, *kinds, *parts;  // a bytearray of `Text`, for plain reads: a part, a value of a kind of `_json.h`, ..., a part; NULL: there are none
    int counts;  // what comes last is to be decoded in full
    char *last;  // the read that came last, where that is to be
    Read last_read;  // with its arrival as its stamp; size 0: there is none
    Py_ssize_t last_texts;  // bytes of it in `texts`
} Slot;

typedef struct {
    int64_t at, read_at, empty_at, chars, size;  // `size` is that of the read, 0 where another of its texts comes behind this one
} Text;

typedef struct {
    int64_t size, at, read_at, empty_at;
} Sealed;

typedef struct {
    PyObject_HEAD
    pthread_mutex_t lock;
    pthread_t thread;
    int running, stop, epoll, event, woken, draining;
    Slot *slots;
    uint32_t slot_count, open;
    Batch batch, taken;
    int64_t polls, polled_at;
    int64_t wake_at, quiet_at;  // when the loop is woken for what waits, 0: nothing does; when all were last checked
    uint8_t records[RECORD_SIZES];  // by their size
} Reader;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_until(int64_t at_ns) {
    struct timespec t = {at_ns / 1000000000, at_ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

// --- the thread ---------------------------------------------------------------------------------------------------

static int make_room(Batch *batch) {
    if (batch->count == batch->room) {
        size_t room = batch->room ? 2 * batch->room : 256;
        Read *reads = room <= MOST_READS ? realloc(batch->reads, room * sizeof *reads) : NULL;
        if (!reads) return 0;
        batch->reads = reads, batch->room = room;
    }
    if (batch->size - batch->used < READ_SIZE) {
        size_t size = batch->size ? 2 * batch->size : 4 * READ_SIZE;
        char *bytes = size <= MOST ? realloc(batch->bytes, size) : NULL;
        if (!bytes) return 0;
        batch->bytes = bytes, batch->size = size;
    }
    return 1;
}

// Whether the last bytes of an answer may be among these: a chunked body ends with an empty line, of which a short read
// may be a part.
static int may_be_last(const char *bytes, ssize_t size) {
    return size < 4 || !memcmp(bytes + size - 4, "\r\n\r\n", 4);
}

// Whether the last bytes of an answer may be in this read of a connection under TLS. They may, unless it is one record of a
// size that was only seen within answers: followed by another, and never last.
static int look(Reader *self, Slot *slot, const char *bytes, ssize_t size) {
    const unsigned char *head = (const unsigned char *)bytes;
    if (slot->record) self->records[slot->record] |= WITHIN;
    int is_one = size >= RECORD_HEAD && size < RECORD_SIZES && size == RECORD_HEAD + (head[3] << 8 | head[4]);
    slot->record = is_one ? (int)size : 0;
    return !is_one || self->records[size] != WITHIN;
}

// The answer is over: what came last was its end.
static void learn_end(Reader *self, Slot *slot) {
    if (slot->sealed && slot->record) self->records[slot->record] |= ENDING;
    slot->record = 0, slot->unseen_at = 0;
}

// What looked like no end is looked at where nothing came for a while; returns whether there is some. With the lock held.
static int look_at_quiet(Reader *self, int64_t now) {
    int found = 0;
    if (now - self->quiet_at < QUIET_EVERY_NS) return 0;
    self->quiet_at = now;
    for (uint32_t i = 0; i < self->slot_count; i++) {
        Slot *slot = &self->slots[i];
        if (slot->fd < 0 || !slot->unseen_at || now - slot->unseen_at < QUIET_NS || !make_room(&self->batch)) continue;
        self->batch.reads[self->batch.count++] = (Read){.slot = i, .generation = slot->generation, .size = -1, .read_at = now};
        slot->unseen_at = 0;
        found = 1;
    }
    return found;
}

// One read of one socket, with the lock held; returns whether the loop must be woken, -1 if there was no room.
static int read_one(Reader *self, uint32_t number, uint32_t generation, int64_t empty_at) {
    Slot *slot = number < self->slot_count ? &self->slots[number] : NULL;
    if (!slot || slot->fd < 0 || slot->generation != generation) return 0;  // closed since it was reported
    Batch *batch = &self->batch;
    if (!make_room(batch)) {
        slot->known = self->polls + SETTLED;
        return -1;
    }
    union { struct cmsghdr aligned; char room[CMSG_SPACE(sizeof(struct timespec))]; } ancillary;
    char *bytes = batch->bytes + batch->used;
    struct iovec into = {bytes, READ_SIZE};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary};
    ssize_t got = recvmsg(slot->fd, &message, MSG_DONTWAIT);
    int error = got < 0 ? errno : 0;
    if (error == EAGAIN || error == EINTR) return 0;
    Read *read = &batch->reads[batch->count++];
    *read = (Read){.slot = number, .generation = generation, .size = got > 0 ? (int32_t)got : 0, .error = error, .offset = batch->used, .read_at = now_ns()};
    slot->waiting++;
    if (got <= 0) {
        slot->record = 0;
        epoll_ctl(self->epoll, EPOLL_CTL_DEL, slot->fd, NULL);
        return 1;
    }
    if (self->polls >= slot->known) read->empty_at = empty_at;
    if (got == READ_SIZE) slot->known = self->polls + SETTLED;
    batch->used += (size_t)got;
    slot->bytes += (size_t)got;
    if (slot->bytes > MOST_OF_ONE) {
        slot->full = 1;
        epoll_ctl(self->epoll, EPOLL_CTL_DEL, slot->fd, NULL);
    }
    struct cmsghdr *stamp = CMSG_FIRSTHDR(&message);
    if (stamp && stamp->cmsg_level == SOL_SOCKET && stamp->cmsg_type == SCM_TIMESTAMPNS) {
        struct timespec t;
        memcpy(&t, CMSG_DATA(stamp), sizeof t);
        read->stamp = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    read->look = !slot->sealed || look(self, slot, bytes, got);  // one that is kept before it is handed over is looked at
    slot->unseen_at = read->look ? 0 : read->read_at;
    if (slot->full || batch->count >= MANY || batch->used >= MUCH) return 1;
    if (slot->kept && !(slot->sealed ? read->look : may_be_last(bytes, got))) return 0;
    int64_t patience = slot->may_wait ? PATIENCE_NS : slot->sealed ? LOOK_NS : 0, at = read->read_at + patience;
    if (patience && (!self->wake_at || at < self->wake_at)) self->wake_at = at;
    return !patience;
}

static int watch(Reader *self, Slot *slot) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = (uint64_t)slot->generation << 32 | (uint32_t)(slot - self->slots)};
    slot->known = self->polls + SETTLED;
    return epoll_ctl(self->epoll, EPOLL_CTL_ADD, slot->fd, &event) ? errno : 0;
}

static void *run(void *of) {
    Reader *self = of;
    struct epoll_event events[EVENTS];
    int64_t busy_at = 0, wake_at = 0;
    for (;;) {
        int64_t began = now_ns(), empty_at = self->polled_at;
        int count = epoll_wait(self->epoll, events, EVENTS, 0);
        if (count == 0) {
            empty_at = began;  // all of them were
            count = epoll_wait(self->epoll, events, EVENTS, wake_at && wake_at - began < LOOK_NS ? LOOK_POLL_MS : POLL_MS);
        }
        if (count < EVENTS) self->polled_at = began;  // what was not reported was empty, the rest is read below
        int wake = 0, full = 0;
        for (int i = 0; i < count; i++) {
            pthread_mutex_lock(&self->lock);
            int found = read_one(self, (uint32_t)events[i].data.u64, (uint32_t)(events[i].data.u64 >> 32), empty_at);
            pthread_mutex_unlock(&self->lock);
            wake |= found != 0;
            full |= found < 0;
        }
        pthread_mutex_lock(&self->lock);
        self->polls += count < EVENTS;  // one that may not have seen all of them settles nothing
        int stop = self->stop;
        int64_t now = now_ns();
        wake_at = self->wake_at;
        wake |= (wake_at && now >= wake_at) | look_at_quiet(self, now);
        if (wake && !self->woken) {
            self->woken = 1;
            eventfd_write(self->event, 1);
        }
        pthread_mutex_unlock(&self->lock);
        if (stop) break;
        if (full) {
            sleep_until(now_ns() + FULL_NS);  // the kernel keeps what Python has no room for
        } else if (count > 0) {
            if (began - busy_at < 2 * REST_NS) sleep_until(began + REST_NS);
            busy_at = began;
        }
    }
    return NULL;
}

// --- for Python, with the interpreter's lock held -----------------------------------------------------------------

static int start(Reader *self) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are Python's
    // What is read late has lost its time; what is sent late is seen. Few may raise their priority, all may lower it: then
    // the event loop, which calls this, is the one that gives way.
    int nice = getpriority(PRIO_PROCESS, 0), may = !setpriority(PRIO_PROCESS, 0, nice - ABOVE);
    int failed = pthread_create(&self->thread, NULL, run, self);  // with the priority of its maker
    setpriority(PRIO_PROCESS, 0, may ? nice : nice + BELOW);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        errno = failed;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    self->running = 1;
    return 0;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)args, (void)keywords;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Reader *self = (Reader *)allocate(type, 0);
    if (!self) return NULL;
    pthread_mutex_init(&self->lock, NULL);
    self->epoll = epoll_create1(EPOLL_CLOEXEC);
    self->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->epoll < 0 || self->event < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    if (start(self)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void end_thread(Reader *self) {
    if (!self->running) return;
    pthread_mutex_lock(&self->lock);
    self->stop = 1;
    pthread_mutex_unlock(&self->lock);
    Py_BEGIN_ALLOW_THREADS pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS self->running = 0;
}

static void free_batch(Batch *batch) {
    free(batch->reads);
    free(batch->bytes);
    *batch = (Batch){0};
}

static void forget_texts(Slot *slot) {
    Py_CLEAR(slot->texts);
    Py_CLEAR(slot->kinds);
    Py_CLEAR(slot->parts);
    free(slot->last);
    slot->last = NULL, slot->last_read.size = 0;
}

static void reader_dealloc(Reader *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    end_thread(self);
    for (uint32_t i = 0; i < self->slot_count; i++) {
        Py_CLEAR(self->slots[i].owner);
        Py_CLEAR(self->slots[i].kept);
        Py_CLEAR(self->slots[i].times);
        forget_texts(&self->slots[i]);
    }
    free(self->slots);
    free_batch(&self->batch);
    free_batch(&self->taken);
    close(self->epoll);
    close(self->event);
    pthread_mutex_destroy(&self->lock);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static Slot *slot_of(Reader *self, PyObject *number) {
    unsigned long index = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred()) return NULL;
    if (index < self->slot_count && self->slots[index].fd >= 0) return &self->slots[index];
    PyErr_Format(PyExc_KeyError, "no connection %lu", index);
    return NULL;
}

static Slot *free_slot(Reader *self) {
    for (uint32_t i = 0; i < self->slot_count; i++)
        if (self->slots[i].fd < 0) return &self->slots[i];
    uint32_t count = self->slot_count ? 2 * self->slot_count : 64;
    Slot *slots = realloc(self->slots, count * sizeof *slots);
    if (!slots) return NULL;
    for (uint32_t i = self->slot_count; i < count; i++) slots[i] = (Slot){.fd = -1};
    Slot *found = &slots[self->slot_count];
    self->slots = slots, self->slot_count = count;
    return found;
}

static PyObject *reader_add(Reader *self, PyObject *args) {
    int fd;
    PyObject *owner;
    if (!PyArg_ParseTuple(args, "iO", &fd, &owner)) return NULL;
    pthread_mutex_lock(&self->lock);
    Slot *slot = free_slot(self);
    int error = slot ? 0 : ENOMEM;
    uint32_t number = slot ? (uint32_t)(slot - self->slots) : 0;
    if (slot) {
        *slot = (Slot){.fd = fd, .generation = slot->generation + 1, .owner = Py_NewRef(owner)};
        error = watch(self, slot);
        if (error) slot->fd = -1;
        else self->open++;
    }
    pthread_mutex_unlock(&self->lock);
    if (!error) return PyLong_FromUnsignedLong(number);
    if (slot) Py_CLEAR(slot->owner);
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *reader_remove(Reader *self, PyObject *number) {
    Slot *slot = slot_of(self, number);
    if (!slot) return NULL;
    pthread_mutex_lock(&self->lock);
    epoll_ctl(self->epoll, EPOLL_CTL_DEL, slot->fd, NULL);  // fails after an end, which has done it
    slot->fd = -1;
    self->open--;
    PyObject *owner = slot->owner, *kept = slot->kept, *times = slot->times;
    slot->owner = slot->kept = slot->times = NULL;
    pthread_mutex_unlock(&self->lock);
    forget_texts(slot);
    Py_XDECREF(kept);
    Py_XDECREF(times);
    Py_XDECREF(owner);
    Py_RETURN_NONE;
}

static int append_bytes(PyObject *array, const void *bytes, Py_ssize_t more) {
    Py_ssize_t held = PyByteArray_Size(array);
    if (PyByteArray_Resize(array, held + more)) return -1;
    memcpy(PyByteArray_AsString(array) + held, bytes, (size_t)more);
    return 0;
}

// `item` is stolen.
static int append(PyObject *list, PyObject *item) {
    int failed = !item || PyList_Append(list, item);
    Py_XDECREF(item);
    return failed;
}

// No more texts; what comes last and is to be decoded in full goes into the list of reads. Returns whether it failed. The slot
// is let go first: objects that are made may collect garbage, whose finalizers may do anything with it.
static int end_texts(Slot *slot) {
    PyObject *texts = slot->texts, *kinds = slot->kinds, *parts = slot->parts, *kept = slot->kept;
    char *bytes = slot->last;
    Read last = slot->last_read;
    Py_ssize_t held = texts && kept && last.size ? PyByteArray_Size(texts) - slot->last_texts : -1;
    slot->texts = slot->kinds = slot->parts = NULL, slot->last = NULL, slot->last_read.size = 0;
    int failed = 0;
    if (held >= 0) {
        Py_INCREF(kept);
        slot->kept_bytes = (size_t)last.size + READ_BYTES;
        failed = PyByteArray_Resize(texts, held) ||
                 append(kept, Py_BuildValue("(y#LLL)", bytes, (Py_ssize_t)last.size, (long long)last.stamp, (long long)last.read_at, (long long)last.empty_at));
        Py_DECREF(kept);
    }
    free(bytes);
    Py_XDECREF(texts);
    Py_XDECREF(kinds);
    Py_XDECREF(parts);
    return failed;
}

static PyObject *reader_keep(Reader *self, PyObject *args) {
    PyObject *number, *list, *times = NULL;
    if (!PyArg_ParseTuple(args, "OO|O!", &number, &list, &PyByteArray_Type, &times)) return NULL;
    Slot *slot = slot_of(self, number);
    if (!slot) return NULL;
    if (list != Py_None && !(times ? PyByteArray_Check(list) : PyList_Check(list))) {
        PyErr_SetString(PyExc_TypeError, "a list, two bytearrays or None are needed");
        return NULL;
    }
    if (end_texts(slot) || !(slot = slot_of(self, number))) return NULL;
    pthread_mutex_lock(&self->lock);
    PyObject *before = slot->kept, *times_before = slot->times;
    slot->kept = list == Py_None ? NULL : Py_NewRef(list);
    slot->times = times ? Py_NewRef(times) : NULL;
    learn_end(self, slot);
    slot->sealed = slot->kept && times;
    pthread_mutex_unlock(&self->lock);
    Py_XDECREF(before);
    Py_XDECREF(times_before);
    Py_RETURN_NONE;
}

static int are_parts(PyObject *kinds, PyObject *parts) {
    Py_ssize_t count = PyBytes_Size(kinds) + 1;
    for (Py_ssize_t i = 0; i < count; i++)
        if (count != PyTuple_Size(parts) || !PyBytes_Check(PyTuple_GetItem(parts, i))) {
            PyErr_SetString(PyExc_TypeError, "parts of bytes are needed, with a kind between two");
            return 0;
        }
    return 1;
}

static PyObject *reader_keep_texts(Reader *self, PyObject *args) {
    PyObject *number, *texts, *kinds, *parts;
    int counts;
    if (!PyArg_ParseTuple(args, "OO!SO!p", &number, &PyByteArray_Type, &texts, &kinds, &PyTuple_Type, &parts, &counts)) return NULL;
    Slot *slot = slot_of(self, number);
    if (!slot || (PyTuple_Size(parts) && !are_parts(kinds, parts)) || end_texts(slot) || !(slot = slot_of(self, number))) return NULL;
    if (!PyTuple_Size(parts)) Py_RETURN_NONE;
    if (slot->kept && !slot->sealed && !PyList_Size(slot->kept)) {  // else something comes first that is to be decoded
        slot->texts = Py_NewRef(texts), slot->kinds = Py_NewRef(kinds), slot->parts = Py_NewRef(parts), slot->counts = counts;
    }
    Py_RETURN_NONE;
}

static PyObject *reader_may_wait(Reader *self, PyObject *args) {
    PyObject *number;
    int may_wait;
    if (!PyArg_ParseTuple(args, "Op", &number, &may_wait)) return NULL;
    Slot *slot = slot_of(self, number);
    if (!slot) return NULL;
    pthread_mutex_lock(&self->lock);
    slot->may_wait = may_wait;
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *reader_waits(Reader *self, PyObject *number) {
    Slot *slot = slot_of(self, number);
    if (!slot) return NULL;
    pthread_mutex_lock(&self->lock);
    int waiting = slot->waiting;
    pthread_mutex_unlock(&self->lock);
    return PyBool_FromLong(waiting);
}

// What a connection may keep undecoded.
static size_t share_of(const Reader *self) {
    size_t share = ALL_KEPT / (self->open ? self->open : 1);
    return share > MOST_KEPT ? MOST_KEPT : share < LEAST_KEPT ? LEAST_KEPT : share;
}

// The size of the chunk of HTTP/1.1 whose size line begins at `at`, and where its bytes begin; NULL: it is not such a line.
static const char *chunk_size(const char *at, const char *end, Py_ssize_t *size) {
    const char *digit = at;
    for (*size = 0; digit < end && digit - at < 7 && hex(*digit) >= 0; digit++) *size = *size * 16 + hex(*digit);
    return digit > at && end - digit >= 2 && digit[0] == '\r' && digit[1] == '\n' ? digit + 2 : NULL;
}

// The characters of the text in a chunk that is plain, and where the next one begins; 0: it is another chunk, or has no text.
static Py_ssize_t text_of(const Slot *slot, const char **at, const char *end) {
    Py_ssize_t size, characters = 0;
    const char *begin = chunk_size(*at, end, &size), *place = begin, *kind = PyBytes_AsString(slot->kinds);
    if (!begin || end - begin < size + 2 || begin[size] != '\r' || begin[size + 1] != '\n') return 0;
    *at = begin + size + 2;
    int high = 0;
    for (Py_ssize_t i = 0;; i++) {
        PyObject *part = PyTuple_GetItem(slot->parts, i);
        Py_ssize_t length = PyBytes_Size(part);
        if (*at - place < length || memcmp(place, PyBytes_AsString(part), (size_t)length)) return 0;
        place += length;
        if (!kind[i]) break;
        if (!(place = value(kind[i], place, &high, &characters))) return 0;
    }
    return place == *at && (!high || is_utf8(begin, size)) ? characters : 0;
}

// Append the texts of a read that brings nothing else; the bytes they take, 0: it is another, -1: no memory.
static Py_ssize_t add_texts(const Slot *slot, const Read *read, const char *data, int64_t arrived_at) {
    Text texts[TEXTS];
    int count = 0;
    const char *at = data, *end = data + read->size;
    while (read->stamp && at < end && count < TEXTS && (texts[count].chars = text_of(slot, &at, end))) {
        texts[count].at = arrived_at, texts[count].read_at = read->read_at, texts[count].empty_at = read->empty_at;
        texts[count++].size = at == end ? read->size : 0;
    }
    if (!count || at < end || !texts[count - 1].size) return 0;
    Py_ssize_t more = count * (Py_ssize_t)sizeof *texts;
    return append_bytes(slot->texts, texts, more) ? -1 : more;
}

// Decode a plain read: 1; 0: it is another, which Python decodes first, as all behind it; -1: no memory.
static int keep_text(Slot *slot, const Read *read, const char *data, int64_t arrived_at) {
    char *last = slot->counts && read->size > slot->last_read.size ? realloc(slot->last, (size_t)read->size) : slot->last;
    if (slot->counts && !last) {
        PyErr_NoMemory();
        return -1;
    }
    slot->last = last;
    Py_ssize_t more = add_texts(slot, read, data, arrived_at);
    if (more <= 0) return more < 0 || end_texts(slot) ? -1 : 0;
    if (slot->counts) {
        memcpy(last, data, (size_t)read->size);
        slot->last_texts = more, slot->last_read = *read, slot->last_read.stamp = arrived_at;
    }
    return 1;
}

// One read: into its connection's list, or to `out`; an end, or a list that must be decoded now, to `out` too.
static int hand_over(Reader *self, const Read *read, const char *bytes, long long wall_offset, PyObject *out) {
    Slot *slot = &self->slots[read->slot];
    if (slot->fd < 0 || slot->generation != read->generation) return 0;
    if (read->size < 0) return slot->sealed ? append(out, Py_BuildValue("(NOLLL)", Py_NewRef(slot->owner), Py_None, 0LL, (long long)read->read_at, 0LL)) : 0;
    const char *data = bytes + read->offset;
    Py_ssize_t size = read->size;
    long long at = !size ? read->error : read->stamp ? read->stamp - wall_offset : read->read_at;
    PyObject *owner = Py_NewRef(slot->owner), *kept = size ? slot->kept : NULL;
    Py_XINCREF(kept);  // whoever is called while objects are made may change the slot
    int decode = 0, failed, texts = kept && slot->texts ? keep_text(slot, read, data, at) : 0;
    slot = &self->slots[read->slot];
    if (slot->fd < 0 || slot->generation != read->generation) {
        failed = texts < 0;
    } else if (texts) {
        failed = texts < 0;
        decode = !failed && (size_t)PyByteArray_Size(slot->texts) > share_of(self);
    } else if (kept && slot->sealed) {
        Sealed one = {size, at, read->read_at, read->empty_at};
        failed = append_bytes(kept, data, size) || append_bytes(slot->times, &one, sizeof one);
        decode = read->look || (size_t)(PyByteArray_Size(kept) + PyByteArray_Size(slot->times)) > share_of(self);
    } else if (kept) {
        slot->kept_bytes = (PyList_Size(kept) ? slot->kept_bytes : 0) + (size_t)size + READ_BYTES;
        decode = slot->kept_bytes > share_of(self) || may_be_last(data, size);
        failed = append(kept, Py_BuildValue("(y#LLL)", data, size, at, (long long)read->read_at, (long long)read->empty_at));
    } else {
        failed = append(out, Py_BuildValue("(Oy#LLL)", owner, data, size, at, (long long)read->read_at, (long long)read->empty_at));
    }
    if (decode && !failed) failed = append(out, Py_BuildValue("(OOLLL)", owner, Py_None, 0LL, (long long)read->read_at, 0LL));
    Py_XDECREF(kept);
    Py_DECREF(owner);
    return failed;
}

// Nothing of the connection waits any more; with the lock held.
static void is_taken(Reader *self, Slot *slot) {
    if (slot->full) watch(self, slot);
    slot->waiting = slot->full = 0, slot->bytes = 0;
}

static PyObject *hand_over_all(Reader *self, const Batch *taken, long long wall_offset) {
    PyObject *out = PyList_New(0);
    int failed = !out;
    self->draining = 1;
    for (size_t i = 0; i < taken->count && !failed; i++) failed = hand_over(self, &taken->reads[i], taken->bytes, wall_offset, out);
    self->draining = 0;
    if (failed) Py_CLEAR(out);
    return out;
}

static PyObject *reader_drain(Reader *self, PyObject *wall_offset) {
    long long offset = PyLong_AsLongLong(wall_offset);
    if (PyErr_Occurred()) return NULL;
    if (self->draining) return PyList_New(0);  // a finalizer has called us
    pthread_mutex_lock(&self->lock);
    Batch taken = self->batch;
    self->batch = self->taken, self->taken = (Batch){0};
    self->batch.count = self->batch.used = 0;
    for (size_t i = 0; i < taken.count; i++) {
        Slot *slot = &self->slots[taken.reads[i].slot];
        if (slot->fd >= 0 && slot->generation == taken.reads[i].generation) is_taken(self, slot);
    }
    eventfd_t ignored;
    if (self->woken) eventfd_read(self->event, &ignored);
    self->woken = 0, self->wake_at = 0;
    pthread_mutex_unlock(&self->lock);
    PyObject *out = hand_over_all(self, &taken, offset);
    if (taken.size > USUAL || taken.room > USUAL_READS) free_batch(&taken);  // it had grown in a long stall
    self->taken = taken;
    return out;
}

static PyObject *reader_drain_one(Reader *self, PyObject *args) {
    PyObject *number;
    long long offset;
    if (!PyArg_ParseTuple(args, "OL", &number, &offset)) return NULL;
    Slot *slot = slot_of(self, number);
    if (!slot) return NULL;
    if (self->draining) return PyList_New(0);  // what is handed over comes first
    Batch taken = {0};
    int room = 1;
    pthread_mutex_lock(&self->lock);
    for (size_t i = 0; i < self->batch.count && slot->waiting && room; i++) {
        Read *read = &self->batch.reads[i];
        if (read->slot != (uint32_t)(slot - self->slots) || read->generation != slot->generation || !(room = make_room(&taken))) continue;
        if (read->size > 0) memcpy(taken.bytes + taken.used, self->batch.bytes + read->offset, (size_t)read->size);
        taken.reads[taken.count] = *read;
        taken.reads[taken.count++].offset = taken.used;
        taken.used += read->size > 0 ? (size_t)read->size : 0;
        read->generation = 0;  // of no connection
    }
    is_taken(self, slot);
    pthread_mutex_unlock(&self->lock);
    PyObject *out = room ? hand_over_all(self, &taken, offset) : PyErr_NoMemory();
    free_batch(&taken);
    return out;
}

static PyObject *reader_fileno(Reader *self, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromLong(self->event);
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)reader_add, METH_VARARGS, "add(fd, connection) -> number: read a socket from now on."},
    {"remove", (PyCFunction)reader_remove, METH_O, "remove(number): read it no more, and forget what was not drained."},
    {"keep", (PyCFunction)reader_keep, METH_VARARGS, "keep(number, list): append its reads there; None: report each.\n"
     "keep(number, bytearray, bytearray): under TLS, append its bytes, and of each read its size, when it arrived, was read and had not come yet (int64)."},
    {"keep_texts", (PyCFunction)reader_keep_texts, METH_VARARGS,
     "keep_texts(number, bytearray, kinds, parts, counts): instead of reads of chunks that have these parts and between two of them a value of a kind, one of "
     "which is a text, append to the bytearray for each text when it arrived, was read and had not come yet, its characters and the bytes of a read that "
     "ends with it (int64), until another read comes. Only where its list is empty. With counts, the last is kept as well, and put into the list instead "
     "when this ends: by another read, another `keep`, or this without parts."},
    {"may_wait", (PyCFunction)reader_may_wait, METH_VARARGS, "may_wait(number, yes): wake the loop for its reads up to 30 ms later; an end still cannot wait."},
    {"waits", (PyCFunction)reader_waits, METH_O, "waits(number): whether a read of it was not drained yet."},
    {"drain", (PyCFunction)reader_drain, METH_O, "drain(wall minus monotonic ns) -> [(connection, bytes, arrived, read, empty at)]; b\"\": the end, with an errno; None: its list is to be decoded."},
    {"drain_one", (PyCFunction)reader_drain_one, METH_VARARGS, "drain_one(number, wall minus monotonic ns): the same of one connection, before its turn."},
    {"fileno", (PyCFunction)reader_fileno, METH_NOARGS, "Readable when something cannot wait."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, reader_new}, {Py_tp_dealloc, reader_dealloc}, {Py_tp_methods, methods},
    {Py_tp_doc, "Reads sockets on a thread of its own."}, {0, NULL},
};
static PyType_Spec spec = {"tailgauge.transport._reader.Reader", sizeof(Reader), 0, Py_TPFLAGS_DEFAULT, slots};

// One read of a list: with its times, or only its bytes, which have theirs beside them.
static int one_of(PyObject *reads, PyObject *times, Py_ssize_t number, Read *read, const char **data, long long *at) {
    PyObject *item = PyList_GetItem(reads, number);
    Py_ssize_t size;
    if (times) {
        Sealed one;
        if (PyBytes_Size(times) < (number + 1) * (Py_ssize_t)sizeof one) PyErr_SetString(PyExc_ValueError, "times of each read are needed");
        if (PyErr_Occurred() || PyBytes_AsStringAndSize(item, (char **)data, &size)) return -1;
        memcpy(&one, PyBytes_AsString(times) + number * (Py_ssize_t)sizeof one, sizeof one);
        *at = one.at, read->read_at = one.read_at, read->empty_at = one.empty_at;
    } else {
        long long read_at, empty_at;
        if (!PyArg_ParseTuple(item, "y#LLL", data, &size, at, &read_at, &empty_at)) return -1;
        read->read_at = read_at, read->empty_at = empty_at;
    }
    read->size = (int32_t)size, read->stamp = *at != read->read_at;
    return 0;
}

static PyObject *take_texts(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *reads, *times = NULL;
    Slot slot = {0};
    Py_ssize_t taken = 0, more = 1, last = 0;
    if (!PyArg_ParseTuple(args, "O!O!SO!p|S", &PyList_Type, &reads, &PyByteArray_Type, &slot.texts, &slot.kinds, &PyTuple_Type, &slot.parts, &slot.counts, &times)) return NULL;
    if (!are_parts(slot.kinds, slot.parts)) return NULL;
    while (taken < PyList_Size(reads)) {
        const char *data;
        long long at;
        Read read = {0};
        if (one_of(reads, times, taken, &read, &data, &at)) return NULL;
        if ((more = add_texts(&slot, &read, data, at)) <= 0) break;
        taken++, last = more;
    }
    if (more < 0) return NULL;
    if (slot.counts && taken && taken-- && PyByteArray_Resize(slot.texts, PyByteArray_Size(slot.texts) - last)) return NULL;
    if (taken > 0 && PyList_SetSlice(reads, 0, taken, NULL)) return NULL;
    return PyLong_FromSsize_t(taken);
}

static PyObject *whole_chunks(PyObject *module, PyObject *data) {
    (void)module;
    char *begin;
    Py_ssize_t length, size, total = 0;
    if (PyBytes_AsStringAndSize(data, &begin, &length)) return NULL;
    char *out = PyMem_Malloc((size_t)length);
    if (!out) return PyErr_NoMemory();
    const char *at = begin, *end = begin + length;
    int done = 0;
    while (at < end && !done) {
        const char *from = chunk_size(at, end, &size);
        if (!from || end - from < size + 2 || from[size] != '\r' || from[size + 1] != '\n') break;
        done = !size;
        if (done && (end - from != 2 || from - at != 3)) break;  // trailers, or what is behind the body
        memcpy(out + total, from, (size_t)size);
        total += size;
        at = from + size + 2;
    }
    PyObject *found = at == end ? Py_BuildValue("(y#N)", out, total, PyBool_FromLong(done)) : Py_NewRef(Py_None);
    PyMem_Free(out);
    return found;
}

static PyMethodDef functions[] = {
    {"take_texts", (PyCFunction)take_texts, METH_VARARGS,
     "take_texts(list, bytearray, kinds, parts, counts[, times]): the same with the plain reads that a list begins with; returns how many. With times, as `keep` appends "
     "them, the list is of bytes."},
    {"whole_chunks", (PyCFunction)whole_chunks, METH_O,
     "whole_chunks(bytes) -> (payload, whether the body has ended); None: these are not whole chunks of a body and maybe its end."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_reader", "Reads sockets on a thread of its own.", -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reader(void) {
    PyObject *module = PyModule_Create(&definition), *type = module ? PyType_FromSpec(&spec) : NULL;
    if (!type || PyModule_AddObjectRef(module, "Reader", type)) Py_CLEAR(module);
    Py_XDECREF(type);
    return module;
}
