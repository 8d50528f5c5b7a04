// Drives the core without Python: its thread, and this one as the caller, over loopback and socket pairs.
// Usage: harness SEED OPERATIONS. It is built with a sanitizer, which ends it where it finds something.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "answer.h"
#include "sockets.h"

enum { MOST = 150, POOLS = 3, PEERS = 200 };  // connections, pools, descriptors of peers
enum { TEXT_KIND = 1, EVENTS = 6 };

typedef struct {
    int fd;  // -1: there is none
    int peer;
    uint32_t number;
    Answer *answer;
} Connection;

static Sockets sockets;
static Connection connections[MOST];
static int accepted[PEERS];  // -1: it is closed; of connections that were opened by the core
static int accepted_count;
static int listener;
static uint32_t pools[POOLS];
static uint64_t tokens;
static uint64_t state;
static long counts[3];  // of notices, by kind
static long chunks;

static Field fields[] = {
    {.key = "text", .key_size = 4, .rule = CONTENT, .kind = TEXT_KIND},
    {.key = "id", .key_size = 2, .rule = SAME, .value = 1},
    {.key = "count", .key_size = 5, .rule = COUNT, .value = 2},
};
static Shape shape = {.fields = fields, .count = 3};
static Shape *all_shapes[] = {&shape};
static Shapes shapes = {.shapes = all_shapes, .count = 1};

static const char *events[EVENTS] = {
    "data: {\"text\":\"word\",\"id\":7}\n\n",
    "data: {\"text\":\"w\\u00e9\",\"id\":7,\"count\":3}\n\n",
    "event: name\ndata: {\"id\":7}\n\n",
    ": comment\n\n",
    "data: no JSON\n\n",
    "data: {\"text\":\"half",
};

static unsigned draw(unsigned below) {  // xorshift64*
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (unsigned)((state * 2685821657736338717u) >> 33) % below;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void need(int is_so, const char *what) {
    if (is_so) return;
    perror(what);
    exit(2);
}

static void lock(void) {
    pthread_mutex_lock(&sockets.lock);
}

static void unlock(void) {
    pthread_mutex_unlock(&sockets.lock);
}

// --- connections -----------------------------------------------------------------------------------------------------

static void add(Connection *connection, int is_sealed) {
    int pair[2];
    need(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), "socketpair");
    *connection = (Connection){.fd = pair[0], .peer = pair[1]};
    need(!sockets_add(&sockets, pair[0], connection, is_sealed, &connection->number), "add");
}

static void forget_answer(Connection *connection) {
    if (!connection->answer) return;
    answer_free(connection->answer);
    free(connection->answer);
    connection->answer = NULL;
}

static void drop(Connection *connection) {
    lock();
    sockets_remove(&sockets, sockets_slot(&sockets, connection->number));
    unlock();
    forget_answer(connection);
    close(connection->fd);
    if (connection->peer >= 0) close(connection->peer);
    connection->fd = -1;
}

static void adopt(uint32_t number) {
    for (int i = 0; i < MOST; i++) {
        Connection *connection = &connections[i];
        if (connection->fd >= 0) continue;
        lock();
        Slot *slot = sockets_slot(&sockets, number);
        need(slot && !slot->owner, "a connection to adopt");
        slot->owner = connection;
        *connection = (Connection){.fd = slot->fd, .peer = -1, .number = number};
        unlock();
        return;
    }
    drop(&connections[draw(MOST)]);
    adopt(number);
}

static void accept_all(void) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        int place = accepted_count < PEERS ? accepted_count++ : (int)draw(PEERS);
        if (accepted_count == PEERS && accepted[place] >= 0) close(accepted[place]);
        accepted[place] = fd;
    }
}

static void peer_acts(int *fd) {
    char bytes[4096];
    if (*fd < 0) return;
    unsigned act = draw(100);
    if (act == 0) {
        struct linger reset = {1, 0};
        setsockopt(*fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    if (act < 2) {
        close(*fd);
        *fd = -1;
    } else if (act < 20) {
        while (recv(*fd, bytes, sizeof bytes, MSG_DONTWAIT) == sizeof bytes) continue;
    } else {
        const char *event = events[draw(8) ? draw(3) : draw(EVENTS)];
        int is_chunk = draw(50) > 0;
        int size = snprintf(bytes, sizeof bytes, is_chunk ? "%zx\r\n%s\r\n" : "%zu%s", strlen(event), event);
        if (act < 24) size = snprintf(bytes, sizeof bytes, "0\r\n\r\n");
        if (send(*fd, bytes, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
    }
}

// --- answers ---------------------------------------------------------------------------------------------------------

static void listen_to(Connection *connection) {
    Answer *before = connection->answer;
    Answer *answer = malloc(sizeof *answer);
    need(answer != NULL, "malloc");
    answer_init(answer);
    answer->shapes = draw(5) ? &shapes : NULL;
    answer->kept_kinds = 1u << TEXT_KIND;
    answer_begin(answer, draw(4) ? CHUNKED : (FramingKind)draw(3), draw(9) ? 100000 : 0, 5, 0);
    answer_allow(answer, 1u << TEXT_KIND);
    lock();
    Slot *slot = sockets_slot(&sockets, connection->number);
    slot->answer = answer;
    slot->is_urgent = (int)draw(2);
    slot->is_fed = 0;
    if (!slot->is_sealed && draw(3)) sockets_feed(slot);
    unlock();
    connection->answer = answer;
    if (before) {
        answer_free(before);
        free(before);
    }
}

static void take(Connection *connection) {
    News news;
    if (!connection->answer) return;
    pthread_mutex_lock(&connection->answer->lock);
    answer_take(connection->answer, &news);
    answer_allow(connection->answer, draw(2) ? 1u << TEXT_KIND : 0);
    pthread_mutex_unlock(&connection->answer->lock);
    chunks += (long)news.chunk_count;
    news_free(&news);
}

static void take_reads(Connection *connection) {
    lock();
    Slot *slot = sockets_slot(&sockets, connection->number);
    Buffer reads = slot->reads;
    slot->reads = (Buffer){0};
    sockets_go_on(&sockets, slot);
    unlock();
    buffer_free(&reads);
}

// --- requests --------------------------------------------------------------------------------------------------------

static void lend(Connection *connection) {
    uint32_t pool = pools[draw(POOLS)];
    lock();
    Slot *slot = sockets_slot(&sockets, connection->number);
    if (slot->pool < 0 && sends_lend(&sockets.sends, pool, connection->number)) {
        slot->pool = (int)pool;
        slot->usable_from = 0;
        slot->usable_until = now_ns() + draw(100) * 1000000;
    }
    unlock();
}

static void unlend(Connection *connection) {
    lock();
    Slot *slot = sockets_slot(&sockets, connection->number);
    if (slot->pool >= 0) {
        sends_unlend(&sockets.sends, (uint32_t)slot->pool, connection->number);
        slot->pool = -1;
    }
    unlock();
}

static void prepare(void) {
    static const char large[300000];
    Prepared *prepared = calloc(1, sizeof *prepared);
    need(prepared != NULL, "calloc");
    *prepared = (Prepared){.due = now_ns() + draw(4000000), .token = ++tokens, .pool = pools[draw(POOLS)]};
    buffer_add(&prepared->bytes, large, draw(10) ? 100 : sizeof large);
    lock();
    need(sends_add(&sockets.sends, prepared), "sends_add");
    sockets.sends.most_sent = sockets.sends.sent + (draw(10) ? 100 : 0);
    sockets_set_timer(&sockets);
    unlock();
}

static void withdraw(void) {
    uint64_t token = tokens - draw(8);
    lock();
    Prepared *prepared = sends_withdraw(&sockets.sends, token);
    sockets_set_timer(&sockets);
    unlock();
    prepared_free(prepared);
}

static void take_news(void) {
    eventfd_t unused;
    lock();
    Sends *sends = &sockets.sends;
    for (size_t i = 0; i < sockets.ready_count; i++) sockets.slots[sockets.ready[i]].is_ready = 0;
    sockets.ready_count = 0;
    sockets.ready_since = sockets.wake_at = 0;
    Notice *notices = sends->notices;
    size_t notice_count = sends->notice_count;
    sends->notices = NULL;
    sends->notice_count = sends->notice_room = 0;
    sockets.lags.size = 0;
    if (sockets.is_woken) eventfd_read(sockets.event, &unused);
    sockets.is_woken = 0;
    unlock();
    for (size_t i = 0; i < notice_count; i++) {
        counts[notices[i].kind]++;
        if (notices[i].kind == ON_NEW) adopt(notices[i].number);
    }
    free(notices);
}

// --- all of it -------------------------------------------------------------------------------------------------------

static void act(void) {
    Connection *connection = &connections[draw(MOST)];
    unsigned operation = draw(26);
    if (operation < 2 && draw(5) == 0) prepare();
    else if (operation == 2) withdraw();
    else if (operation == 3) take_news();
    else if (operation == 4) accept_all();
    else if (operation < 7 && accepted_count) peer_acts(&accepted[draw((unsigned)accepted_count)]);
    else if (connection->fd < 0) add(connection, draw(8) == 0);
    else if (operation == 7 && draw(3) == 0) listen_to(connection);
    else if (operation < 10) take(connection);
    else if (operation < 11) take_reads(connection);
    else if (operation < 13) lend(connection);
    else if (operation == 13) unlend(connection);
    else if (operation == 14 && draw(4) == 0) drop(connection);
    else peer_acts(&connection->peer);
    if (draw(300) == 0) usleep(draw(3000));
}

static void begin(void) {
    struct sockaddr_storage address = {0};
    struct sockaddr_in *ipv4 = (struct sockaddr_in *)&address;
    socklen_t size = sizeof *ipv4;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    ipv4->sin_family = AF_INET;
    ipv4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    need(!bind(listener, (struct sockaddr *)ipv4, sizeof *ipv4) && !listen(listener, 1024), "listen");
    need(!getsockname(listener, (struct sockaddr *)ipv4, &size), "getsockname");
    need(!sockets_init(&sockets), "sockets_init");
    lock();
    need(sends_add_pool(&sockets.sends, &address, size, &pools[0]), "pool");
    need(sends_add_pool(&sockets.sends, &address, 0, &pools[1]), "pool");  // none is opened there
    ipv4->sin_port = htons(1);                                            // where nobody listens
    need(sends_add_pool(&sockets.sends, &address, size, &pools[2]), "pool");
    unlock();
    for (int i = 0; i < MOST; i++) connections[i].fd = -1;
    for (int i = 0; i < PEERS; i++) accepted[i] = -1;
}

static void finish(void) {
    for (int i = 0; i < MOST; i++) {
        if (connections[i].fd >= 0 && i % 2) drop(&connections[i]);
    }
    sockets_free(&sockets);  // with half of the connections, and with requests that are not due yet
    for (int i = 0; i < MOST; i++) {
        if (connections[i].fd < 0) continue;
        forget_answer(&connections[i]);
        close(connections[i].fd);
        if (connections[i].peer >= 0) close(connections[i].peer);
    }
    for (int i = 0; i < accepted_count; i++) {
        if (accepted[i] >= 0) close(accepted[i]);
    }
    close(listener);
}

int main(int count, char **arguments) {
    need(count == 3, "harness SEED OPERATIONS");
    state = strtoull(arguments[1], NULL, 10) * 2 + 1;
    long operations = strtol(arguments[2], NULL, 10);
    begin();
    for (long i = 0; i < operations; i++) act();
    take_news();
    finish();
    printf("%ld operations, %ld chunks; requests on lent connections %ld, on new ones %ld, back %ld\n", operations,
           chunks, counts[ON_LENT], counts[ON_NEW], counts[BACK]);
    int is_complete = operations < 500000 || (chunks && counts[ON_LENT] && counts[ON_NEW] && counts[BACK]);
    return is_complete ? 0 : 3;  // else it has not reached all of the core
}
