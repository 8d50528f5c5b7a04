#define _GNU_SOURCE
#include "sockets.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 1024 };
enum { SETTLED = 2 };  // polls until a socket that was just added, or not emptied, can have been seen empty
enum {
    MOST_HELD = 65536,
    LEAST_HELD = 4096,
    ALL_HELD = 32 << 20
};  // bytes of a connection, and of all, until Python is woken
enum { MOST_UNTAKEN = 1 << 20 };  // bytes of a body, held or not: Python has bounds for it
enum { TIMES_FULL = 4 };          // times as much, and the connection is not read any more
enum { MOST_LAGS = 8 << 20 };
enum { SPARE_DESCRIPTORS = 48 };  // as in connection.py
enum { BELOW = 5 };               // of a nice value: a core that both want goes to the thread
enum { TIMER = UINT32_MAX };      // in the place of a slot's number
enum { POLL_MS = 2 };             // at least so often: the time of an empty poll bounds when a read came
static const int64_t NAP_NS = 500000;
static const int64_t MUCH_NS = 250000;  // between two arrivals: more, and a nap costs more than it saves
static const int64_t NOTICE_PATIENCE_NS = 2000000;  // an answer may come at once
static const int64_t PATIENCE_NS = 20000000;        // for which news waits that nobody waits for
static const int64_t SEALED_PATIENCE_NS = 2000000;  // it may be the end of an answer

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_until(int64_t at_ns) {
    struct timespec t = {at_ns / 1000000000, at_ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

// --- news for Python -------------------------------------------------------------------------------------------------

static uint32_t number_of(const Sockets *sockets, const Slot *slot) {
    return (uint32_t)(slot - sockets->slots);
}

static void set_ready(Sockets *sockets, Slot *slot, int64_t now) {
    if (slot->is_ready) return;
    if (!sockets->ready_since) sockets->ready_since = now;
    slot->is_ready = 1;
    sockets->ready[sockets->ready_count++] = number_of(sockets, slot);  // there is room for every slot
}

static void wake(Sockets *sockets) {
    if (sockets->is_woken) return;
    sockets->is_woken = 1;
    eventfd_write(sockets->event, 1);
}

static void wake_later(Sockets *sockets, int64_t at_ns) {
    if (!sockets->wake_at || at_ns < sockets->wake_at) sockets->wake_at = at_ns;
}

static size_t share(const Sockets *sockets) {
    size_t each = ALL_HELD / (sockets->open ? sockets->open : 1);
    if (each > MOST_HELD) return MOST_HELD;
    return each < LEAST_HELD ? LEAST_HELD : each;
}

typedef struct {
    size_t held;      // bytes
    size_t untaken;   // bytes
    int is_news;      // Python is to look at it
    int cannot_wait;  // at once
} Tidings;

static Tidings tidings_of(const Slot *slot) {
    Tidings tidings = {
        .held = slot->reads.size,
        .is_news = slot->has_ended || slot->reads.size,
        .cannot_wait = slot->has_ended || !slot->owner,  // a request of which Python does not know that it left
    };
    Answer *answer = slot->answer;
    if (!slot->is_fed) return tidings;
    pthread_mutex_lock(&answer->lock);
    tidings.held += answer_held(answer);
    tidings.untaken = answer_untaken(answer);
    tidings.is_news |= answer->news.piece_count > 0;
    tidings.cannot_wait |= answer->framing.is_done || answer->framing.error || answer->no_memory;
    pthread_mutex_unlock(&answer->lock);
    return tidings;
}

// Something has come of a connection: Python is woken now, later or not at all.
static void tell(Sockets *sockets, Slot *slot, int64_t now) {
    Tidings tidings = tidings_of(slot);
    int is_much = tidings.held > share(sockets) || tidings.untaken > MOST_UNTAKEN;
    int is_too_much = tidings.held > TIMES_FULL * share(sockets) || tidings.untaken > TIMES_FULL * MOST_UNTAKEN;
    int cannot_wait = tidings.cannot_wait || is_much || (slot->is_urgent && tidings.is_news);
    if (is_too_much && !slot->is_full && !slot->has_ended) {
        slot->is_full = 1;
        epoll_ctl(sockets->epoll, EPOLL_CTL_DEL, slot->fd, NULL);
    }
    if (!tidings.is_news && !cannot_wait) return;
    set_ready(sockets, slot, now);
    if (cannot_wait) wake(sockets);
    else wake_later(sockets, now + (slot->is_sealed ? SEALED_PATIENCE_NS : PATIENCE_NS));
}

// --- the thread -----------------------------------------------------------------------------------------------------

static int64_t kernel_stamp(struct msghdr *message) {
    struct cmsghdr *stamp = CMSG_FIRSTHDR(message);
    struct timespec t;
    if (!stamp || stamp->cmsg_level != SOL_SOCKET || stamp->cmsg_type != SCM_TIMESTAMPNS) return 0;
    memcpy(&t, CMSG_DATA(stamp), sizeof t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// It is read no more: what its socket still has would be reported again and again.
static void read_no_more(Sockets *sockets, Slot *slot, int error) {
    epoll_ctl(sockets->epoll, EPOLL_CTL_DEL, slot->fd, NULL);
    slot->has_ended = 1;
    slot->end_error = error;
}

static void store_read(Sockets *sockets, Slot *slot, size_t size, Times times) {
    ReadHead head = {(int64_t)size, times};
    if (!buffer_room(&slot->reads, sizeof head + size)) {
        read_no_more(sockets, slot, ENOMEM);
        return;
    }
    buffer_add(&slot->reads, (const char *)&head, sizeof head);
    buffer_add(&slot->reads, sockets->bytes, size);
}

static void on_bytes(Sockets *sockets, Slot *slot, size_t size, Times times) {
    int64_t lag = times.read_at - times.arrived;
    if (sockets->lags.size < MOST_LAGS) buffer_add(&sockets->lags, (const char *)&lag, sizeof lag);
    if (slot->is_fed) {
        pthread_mutex_lock(&slot->answer->lock);
        answer_read(slot->answer, sockets->bytes, size, times);
        pthread_mutex_unlock(&slot->answer->lock);
    } else {
        store_read(sockets, slot, size, times);
    }
}

// One read of one socket.
static void read_one(Sockets *sockets, Slot *slot, int64_t empty_at) {
    union {
        struct cmsghdr aligned;
        char room[CMSG_SPACE(sizeof(struct timespec))];
    } ancillary;
    struct iovec into = {sockets->bytes, READ_SIZE};
    struct msghdr message = {
        .msg_iov = &into, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary};
    ssize_t got = recvmsg(slot->fd, &message, MSG_DONTWAIT);
    int error = got < 0 ? errno : 0;
    if (error == EAGAIN || error == EINTR) return;
    Times times = {.read_at = now_ns()};
    if (got <= 0) {
        read_no_more(sockets, slot, error);
    } else {
        int64_t stamp = kernel_stamp(&message);
        times.arrived = stamp ? stamp - sockets->wall_offset : times.read_at;
        if (sockets->polls >= slot->known) times.empty_at = empty_at;
        if (got == READ_SIZE) slot->known = sockets->polls + SETTLED;
        on_bytes(sockets, slot, (size_t)got, times);
    }
    tell(sockets, slot, times.read_at);
}

// --- requests that are due ------------------------------------------------------------------------------------------

static int watch(Sockets *sockets, Slot *slot, int operation) {
    uint32_t output = slot->sending == NOT_SENDING ? 0 : EPOLLOUT;
    struct epoll_event event = {
        .events = EPOLLIN | EPOLLRDHUP | output,
        .data.u64 = (uint64_t)slot->generation << 32 | number_of(sockets, slot),
    };
    slot->known = sockets->polls + SETTLED;
    return epoll_ctl(sockets->epoll, operation, slot->fd, &event) ? errno : 0;
}

static void end(Sockets *sockets, Slot *slot, int error) {
    slot->sending = NOT_SENDING;
    read_no_more(sockets, slot, error);
    tell(sockets, slot, now_ns());
}

// Passes what is left of its request to the kernel.
static void send_some(Sockets *sockets, Slot *slot) {
    Buffer *left = &slot->to_send;
    int64_t began = now_ns();
    ssize_t sent = send(slot->fd, left->bytes, left->size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        end(sockets, slot, errno);
        return;
    }
    if (sent > 0 && !slot->sent_at) slot->sent_at = began;
    if (sent > 0) buffer_drop(left, (size_t)sent);
    SendState next = left->size ? SENDING : NOT_SENDING;
    if (next != slot->sending) {
        slot->sending = next;
        watch(sockets, slot, EPOLL_CTL_MOD);
    }
    if (!left->size) buffer_free(left);
}

// The socket takes bytes: its connection is there, or its buffer has room again.
static void on_writable(Sockets *sockets, Slot *slot) {
    if (slot->sending == CONNECTING) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(slot->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) {
            end(sockets, slot, error);
            return;
        }
        slot->connected_at = now_ns();
    }
    send_some(sockets, slot);
}

static int is_idle(const Slot *slot) {
    char byte;
    if (slot->has_ended || slot->reads.size || slot->sending != NOT_SENDING) return 0;
    return recv(slot->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

// The connection that was lent last of those that may be used now.
static Slot *lent_slot(Sockets *sockets, uint32_t pool_number, int64_t now) {
    Pool *pool = &sockets->sends.pools[pool_number];
    for (size_t i = pool->lent_count; i-- > 0;) {
        Slot *slot = &sockets->slots[pool->lent[i]];
        if (slot->usable_from > now || slot->usable_until <= now || !is_idle(slot)) continue;
        sends_unlend(&sockets->sends, pool_number, pool->lent[i]);
        slot->pool = -1;
        return slot;
    }
    return NULL;
}

static Slot *free_slot(Sockets *sockets);

// Others are left for files, name look-ups and the master.
static int most_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > INT32_MAX) return INT32_MAX;
    return (int)limit.rlim_cur - SPARE_DESCRIPTORS;
}

static Slot *opened_slot(Sockets *sockets, uint32_t pool_number) {
    Pool *pool = &sockets->sends.pools[pool_number];
    if (!pool->address_size) return NULL;
    int64_t began = now_ns();
    int fd = socket(pool->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return NULL;
    if (fd >= most_descriptors()) {  // Python says so
        close(fd);
        return NULL;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    int failed = connect(fd, (struct sockaddr *)&pool->address, pool->address_size) && errno != EINPROGRESS;
    Slot *slot = failed ? NULL : free_slot(sockets);
    if (!slot) {
        close(fd);
        return NULL;
    }
    uint32_t generation = slot->generation + 1;
    *slot = (Slot){.fd = fd, .generation = generation, .pool = -1, .sending = CONNECTING, .opened_at = began};
    sockets->open++;
    if (watch(sockets, slot, EPOLL_CTL_ADD)) {
        close(fd);
        sockets_remove(sockets, slot);
        return NULL;
    }
    return slot;
}

static void note(Sockets *sockets, const Prepared *prepared, const Slot *slot, NoticeKind kind, int64_t now) {
    Notice notice = {prepared->token, slot ? number_of(sockets, slot) : 0, kind, now};
    if (!sends_note(&sockets->sends, notice)) return;  // the request is lost: Python's deadline finds it
    if (kind == BACK) wake(sockets);
    else wake_later(sockets, now + NOTICE_PATIENCE_NS);
}

static void send_prepared(Sockets *sockets, Prepared *prepared, int64_t now) {
    NoticeKind kind = ON_LENT;
    int may_send = sockets->sends.sent < sockets->sends.most_sent;
    Slot *slot = may_send ? lent_slot(sockets, prepared->pool, now) : NULL;
    if (may_send && !slot) {
        kind = ON_NEW;
        slot = opened_slot(sockets, prepared->pool);
    }
    if (!slot) {
        note(sockets, prepared, NULL, BACK, now);
        return;
    }
    sockets->sends.sent++;
    slot->sent_at = 0;
    slot->to_send = prepared->bytes;
    prepared->bytes = (Buffer){0};
    if (slot->sending == NOT_SENDING) send_some(sockets, slot);
    note(sockets, prepared, slot, kind, now);
}

static void send_due(Sockets *sockets) {
    Prepared *prepared;
    while ((prepared = sends_pop(&sockets->sends, now_ns()))) {
        send_prepared(sockets, prepared, now_ns());
        prepared_free(prepared);
    }
    sockets_set_timer(sockets);
}

void sockets_set_timer(Sockets *sockets) {
    int64_t at = sends_next(&sockets->sends);
    if (at == sockets->timer_at) return;
    struct itimerspec due = {.it_value = {at / 1000000000, at % 1000000000}};  // 0: none
    timerfd_settime(sockets->timer, TFD_TIMER_ABSTIME, &due, NULL);
    sockets->timer_at = at;
}

// --- the loop -------------------------------------------------------------------------------------------------------

static void on_event(Sockets *sockets, const struct epoll_event *event, int64_t empty_at) {
    uint32_t number = (uint32_t)event->data.u64;
    Slot *slot = sockets_slot(sockets, number);
    if (number == TIMER) {
        send_due(sockets);
    } else if (slot && slot->generation == (uint32_t)(event->data.u64 >> 32) && !slot->is_full) {
        if (slot->sending != NOT_SENDING && event->events & ~(uint32_t)EPOLLIN) on_writable(sockets, slot);
        if (slot->sending != CONNECTING && !slot->has_ended) read_one(sockets, slot, empty_at);
    }
}

static void *run(void *of) {
    Sockets *sockets = of;
    struct epoll_event events[EVENTS];
    int64_t busy_at = 0;
    for (;;) {
        int64_t began = now_ns();
        int64_t empty_at = sockets->polled_at;
        int count = epoll_wait(sockets->epoll, events, EVENTS, 0);
        if (count == 0) {
            empty_at = began;  // all sockets were empty
            count = epoll_wait(sockets->epoll, events, EVENTS, POLL_MS);
        }
        if (count < EVENTS) sockets->polled_at = began;  // what was not reported was empty, the rest is read below
        for (int i = 0; i < count; i++) {
            pthread_mutex_lock(&sockets->lock);
            on_event(sockets, &events[i], empty_at);
            pthread_mutex_unlock(&sockets->lock);
        }
        pthread_mutex_lock(&sockets->lock);
        sockets->polls += count < EVENTS;  // a poll that may not have seen all of them settles nothing
        int stop = sockets->stop;
        send_due(sockets);
        if (sockets->wake_at && now_ns() >= sockets->wake_at) {
            sockets->wake_at = 0;
            wake(sockets);
        }
        int64_t due = sends_next(&sockets->sends);
        pthread_mutex_unlock(&sockets->lock);
        if (stop) return NULL;
        if (count > 0) {
            int64_t until = due && due < began + NAP_NS ? due : began + NAP_NS;
            if (began - busy_at < count * MUCH_NS) sleep_until(until);
            busy_at = began;
        }
    }
}

// --- for Python -----------------------------------------------------------------------------------------------------

// What is read late has lost its time, and what is sent late was late. Where it is allowed the thread goes before all
// others of its core; it naps, so that they have their turn. Else the event loop, which calls this, gives way: all may
// do that.
static void prefer(pthread_t thread) {
    struct sched_param first = {.sched_priority = sched_get_priority_min(SCHED_FIFO)};
    if (!pthread_setschedparam(thread, SCHED_FIFO, &first)) return;
    int nice = getpriority(PRIO_PROCESS, 0);
    setpriority(PRIO_PROCESS, 0, nice + BELOW);
}

static int start(Sockets *sockets) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are Python's
    int error = pthread_create(&sockets->thread, NULL, run, sockets);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sockets->is_running = !error;
    if (!error) prefer(sockets->thread);
    return error;
}

int sockets_init(Sockets *sockets) {
    *sockets = (Sockets){.epoll = -1, .event = -1, .timer = -1};
    pthread_mutex_init(&sockets->lock, NULL);
    sockets->epoll = epoll_create1(EPOLL_CLOEXEC);
    sockets->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sockets->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (sockets->epoll < 0 || sockets->event < 0 || sockets->timer < 0) return errno;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = TIMER};
    if (epoll_ctl(sockets->epoll, EPOLL_CTL_ADD, sockets->timer, &event)) return errno;
    return start(sockets);
}

void sockets_stop(Sockets *sockets) {
    if (!sockets->is_running) return;
    pthread_mutex_lock(&sockets->lock);
    sockets->stop = 1;
    pthread_mutex_unlock(&sockets->lock);
    pthread_join(sockets->thread, NULL);
    sockets->is_running = 0;
}

void sockets_free(Sockets *sockets) {
    sockets_stop(sockets);
    for (uint32_t i = 0; i < sockets->slot_count; i++) {
        Slot *slot = &sockets->slots[i];
        if (slot->fd >= 0 && !slot->owner) close(slot->fd);
        buffer_free(&slot->reads);
        buffer_free(&slot->to_send);
    }
    free(sockets->slots);
    free(sockets->ready);
    buffer_free(&sockets->lags);
    sends_free(&sockets->sends);
    if (sockets->timer >= 0) close(sockets->timer);
    if (sockets->epoll >= 0) close(sockets->epoll);
    if (sockets->event >= 0) close(sockets->event);
    pthread_mutex_destroy(&sockets->lock);
}

Slot *sockets_slot(Sockets *sockets, uint32_t number) {
    if (number >= sockets->slot_count || sockets->slots[number].fd < 0) return NULL;
    return &sockets->slots[number];
}

static Slot *free_slot(Sockets *sockets) {
    for (uint32_t i = 0; i < sockets->slot_count; i++) {
        if (sockets->slots[i].fd < 0) return &sockets->slots[i];
    }
    uint32_t count = sockets->slot_count ? 2 * sockets->slot_count : 64;
    Slot *slots = realloc(sockets->slots, count * sizeof *slots);
    if (!slots) return NULL;
    sockets->slots = slots;
    uint32_t *ready = realloc(sockets->ready, count * sizeof *ready);
    if (!ready) return NULL;
    sockets->ready = ready;
    for (uint32_t i = sockets->slot_count; i < count; i++) slots[i] = (Slot){.fd = -1};
    Slot *found = &slots[sockets->slot_count];
    sockets->slot_count = count;
    return found;
}

int sockets_add(Sockets *sockets, int fd, void *owner, int is_sealed, uint32_t *number) {
    pthread_mutex_lock(&sockets->lock);
    Slot *slot = free_slot(sockets);
    int error = slot ? 0 : ENOMEM;
    if (slot) {
        uint32_t generation = slot->generation + 1;
        *slot = (Slot){.fd = fd, .generation = generation, .owner = owner, .is_sealed = is_sealed, .pool = -1};
        error = watch(sockets, slot, EPOLL_CTL_ADD);
        if (error) slot->fd = -1;
        else sockets->open++;
        *number = number_of(sockets, slot);
    }
    pthread_mutex_unlock(&sockets->lock);
    return error;
}

void sockets_remove(Sockets *sockets, Slot *slot) {
    epoll_ctl(sockets->epoll, EPOLL_CTL_DEL, slot->fd, NULL);  // fails after an end, which has done it
    buffer_free(&slot->reads);
    buffer_free(&slot->to_send);
    if (slot->pool >= 0) sends_unlend(&sockets->sends, (uint32_t)slot->pool, number_of(sockets, slot));
    for (size_t i = 0; slot->is_ready && i < sockets->ready_count; i++) {
        if (sockets->ready[i] != number_of(sockets, slot)) continue;
        sockets->ready[i] = sockets->ready[--sockets->ready_count];
        break;
    }
    *slot = (Slot){.fd = -1, .generation = slot->generation};
    sockets->open--;
}

void sockets_go_on(Sockets *sockets, Slot *slot) {
    if (!slot->is_full) return;
    slot->is_full = 0;
    if (!slot->has_ended) watch(sockets, slot, EPOLL_CTL_ADD);
}

void sockets_feed(Slot *slot) {
    size_t at = 0;
    pthread_mutex_lock(&slot->answer->lock);
    while (at < slot->reads.size) {
        ReadHead head;
        memcpy(&head, slot->reads.bytes + at, sizeof head);
        at += sizeof head;
        answer_read(slot->answer, slot->reads.bytes + at, (size_t)head.size, head.times);
        at += (size_t)head.size;
    }
    pthread_mutex_unlock(&slot->answer->lock);
    slot->reads.size = 0;
    slot->is_fed = 1;
}
