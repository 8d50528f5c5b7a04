// Reference client: what one core can do where nothing is in the way. One thread, epoll, keep-alive, real-time priority
// where it is allowed; a closed loop of streams that ask again at once, or with --arrivals an open loop over as many
// connections as it needs. While much arrives it naps between two polls, so that a poll finds many sockets: the kernel
// stamps what arrives, and no read asks for the time. Chunked bodies and event streams are parsed as they come, and every
// chunk's stamp is kept. Prints one line of JSON; --log as the server's.
//   --arrivals FILE  when the requests of the open loop are due: ns since the start as int64, ascending
#define _GNU_SOURCE
#include "clock.h"
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST_SECONDS = 4000, LINE = 4096, EVENTS = 1024 };
enum { NAP_NS = 500000, APART_NS = 250000, SECOND_NS = 1000000000 };  // APART: what arrives closer together is much

typedef enum { HEAD, SIZE, DATA, AFTER_DATA, LAST } State;

typedef struct {
    int fd;
    State state;
    size_t left, line;  // of the HTTP chunk; bytes of `text` in use
    Record *record;
    size_t room;
    char text[LINE];
} Stream;

static struct {
    int port, streams;
    double seconds, spacing_ms;
    const char *log, *protocol, *arrivals;
} options = {.streams = 50, .seconds = 10, .protocol = "openai"};

static Log seen;
static int epoll, started, open_streams, connected, idles;
static Stream *streams, **idle;  // idle: connections of the open loop that wait for a request
static int64_t *arrivals;  // of the open loop
static int64_t begin_at, stop_at, wall_offset, reads, chunks;
static const char *mark, *path;
static size_t mark_size;
static struct { int64_t at_ns, chunks; double cpu_s; } seconds[MOST_SECONDS];
static int sampled;

static void fail(const char *why) {
    fprintf(stderr, "client: %s: %s\n", why, strerror(errno));
    exit(1);
}

static void sample(int64_t now) {
    wall_offset = wall_minus_monotonic();
    if (sampled < MOST_SECONDS) {
        seconds[sampled].at_ns = now;
        seconds[sampled].chunks = chunks;
        seconds[sampled++].cpu_s = cpu_s();
    }
}

static void ask(Stream *s) {
    static const char *body = "{\"model\":\"tiny\",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                              "\"messages\":[{\"role\":\"user\",\"content\":\"tell me about the sea\"}]}";
    char text[1024];
    s->record = log_begin(&seen, s->room = 256);
    s->record->entry.request = (int64_t)seen.count - 1;
    int size = snprintf(text, sizeof text, "POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nx-client-request-id: reference/%lld/0/0\r\ncontent-length: %zu\r\n\r\n%s", path,
                        (long long)seen.count - 1, strlen(body), body);
    s->state = HEAD;
    s->left = s->line = 0;
    s->record->entry.began_ns = now_ns();
    if (send(s->fd, text, (size_t)size, MSG_NOSIGNAL) != size) fail("send");
}

static Stream *connect_stream(void) {
    Stream *s = &streams[connected++];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (s->fd < 0 || connect(s->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(s->fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    struct epoll_event watched = {.events = EPOLLIN, .data.ptr = s};
    epoll_ctl(epoll, EPOLL_CTL_ADD, s->fd, &watched);
    return s;
}

static void start(void) {
    started++;
    open_streams++;
    ask(idles ? idle[--idles] : connect_stream());
}

// A whole line of the event stream.
static void on_line(Stream *s, int64_t at) {
    if (s->line < 7 || memcmp(s->text, "data: ", 6)) return;
    const char *found = memmem(s->text, s->line, mark, mark_size);
    if (!found || found[mark_size] == '"') return;  // an empty first one is no chunk
    Entry *entry = &s->record->entry;
    if ((size_t)entry->chunks == s->room) s->record->at_ns = realloc(s->record->at_ns, (s->room *= 2) * sizeof(int64_t));
    s->record->at_ns[entry->chunks++] = at;
    chunks++;
}

static void on_body(Stream *s, const char *bytes, size_t size, int64_t at) {
    for (const char *end = bytes + size; bytes < end;) {
        const char *newline = memchr(bytes, '\n', (size_t)(end - bytes));
        size_t part = (size_t)((newline ? newline : end) - bytes);
        if (s->line + part >= LINE) fail("a line too long");
        memcpy(s->text + s->line, bytes, part);
        s->line += part;
        if (!newline) return;
        s->text[s->line] = 0;
        on_line(s, at);
        s->line = 0;
        bytes = newline + 1;
    }
}

// What a read brought; returns 1 where it ends the response.
static int on_bytes(Stream *s, const char *bytes, size_t size, int64_t at) {
    size_t i = 0;
    if (s->state == HEAD) {
        const char *end = memmem(bytes, size, "\r\n\r\n", 4);
        if (!end || memcmp(bytes + 9, "200", 3)) fail("no whole head of a 200");
        s->record->entry.status = 200;
        i = (size_t)(end - bytes) + 4;
        s->state = SIZE;
    }
    while (i < size) {
        char c = bytes[i];
        if (s->state == SIZE) {
            i++;
            if (c == '\n') s->state = s->left ? DATA : LAST;
            else if (c != '\r') s->left = s->left * 16 + (size_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
        } else if (s->state == DATA) {
            size_t part = size - i < s->left ? size - i : s->left;
            on_body(s, bytes + i, part, at);
            i += part;
            if (!(s->left -= part)) s->state = AFTER_DATA;
        } else {
            i++;
            if (c == '\n' && s->state == LAST) return 1;
            if (c == '\n') s->state = SIZE;
        }
    }
    return 0;
}

static void over(Stream *s, int64_t at) {
    s->record->entry.ended_ns = at;
    if (!arrivals && at < stop_at) {
        ask(s);
        return;
    }
    open_streams--;
    if (arrivals) idle[idles++] = s;
    else close(s->fd);
}

// The kernel's stamp; the first packets after it was asked for may have none.
static int64_t arrived_at(struct msghdr *message) {
    struct cmsghdr *stamp = CMSG_FIRSTHDR(message);
    if (!stamp || stamp->cmsg_type != SO_TIMESTAMPNS) return now_ns();
    struct timespec t;
    memcpy(&t, CMSG_DATA(stamp), sizeof t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec - wall_offset;
}

static void read_one(Stream *s) {
    static char bytes[65536];
    union { struct cmsghdr aligned; char room[CMSG_SPACE(sizeof(struct timespec))]; } ancillary;
    struct iovec into = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary};
    ssize_t got = recvmsg(s->fd, &message, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) fail("the server closed a connection");
    reads++;
    int64_t at = arrived_at(&message);
    if (on_bytes(s, bytes, (size_t)got, at)) over(s, at);
}

// When the next request is due that no answer brings; INT64_MAX: none is left.
static int64_t next_due(void) {
    if (started == options.streams) return INT64_MAX;
    return begin_at + (arrivals ? arrivals[started] : started * (int64_t)(options.spacing_ms * 1e6));
}

static void sleep_until(int64_t at) {
    struct timespec t = {at / SECOND_NS, at % SECOND_NS};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void run(void) {
    struct epoll_event events[EVENTS];
    int64_t next_sample = begin_at + SECOND_NS, busy_at = 0;
    sample(begin_at);
    while (started < options.streams || open_streams) {
        int64_t began = now_ns();
        while (next_due() <= began) start();
        if (began >= next_sample) sample(began), next_sample += SECOND_NS;
        int64_t due = next_due(), until = due < next_sample ? due : next_sample, left = until - now_ns();
        struct timespec wait = {0, left > 0 ? left : 0};
        int count = epoll_pwait2(epoll, events, EVENTS, &wait, NULL);
        for (int i = 0; i < count; i++) read_one(events[i].data.ptr);
        if (count <= 0) continue;
        if (began - busy_at < count * APART_NS) sleep_until(due < began + NAP_NS ? due : began + NAP_NS);
        busy_at = began;
    }
    sample(now_ns());
}

static void read_arrivals(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(path);
    size_t size = (size_t)ftell(file);
    rewind(file);
    arrivals = malloc(size);
    if (fread(arrivals, 1, size, file) != size) fail(path);
    fclose(file);
    options.streams = (int)(size / sizeof *arrivals);
}

static void options_of(int count, char **words) {
    static const struct option known[] = {{"port", 1, 0, 'p'}, {"streams", 1, 0, 'n'}, {"seconds", 1, 0, 's'}, {"spacing", 1, 0, 'g'}, {"arrivals", 1, 0, 'a'}, {"protocol", 1, 0, 'r'}, {"log", 1, 0, 'l'}, {0}};
    for (int found; (found = getopt_long(count, words, "", known, NULL)) != -1;) switch (found) {
            case 'p': options.port = atoi(optarg); break;
            case 'n': options.streams = atoi(optarg); break;
            case 's': options.seconds = atof(optarg); break;
            case 'g': options.spacing_ms = atof(optarg); break;
            case 'a': options.arrivals = optarg; break;
            case 'r': options.protocol = optarg; break;
            case 'l': options.log = optarg; break;
            default:
                fprintf(stderr, "client --port N [--streams N [--spacing MS] [--seconds S] | --arrivals FILE] [--protocol anthropic|openai] [--log FILE]\n");
                exit(2);
        }
}

int main(int count, char **words) {
    options_of(count, words);
    int anthropic = options.protocol[0] == 'a';
    mark = anthropic ? "\"text\":\"" : "\"content\":\"";
    path = anthropic ? "/v1/messages" : "/v1/chat/completions";
    mark_size = strlen(mark);
    many_files();
    prctl(PR_SET_TIMERSLACK, 1);
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});  // where it is allowed
    epoll = epoll_create1(0);
    if (options.arrivals) read_arrivals(options.arrivals);
    streams = calloc((size_t)options.streams, sizeof *streams);
    idle = calloc((size_t)options.streams, sizeof(Stream *));
    begin_at = now_ns();
    stop_at = begin_at + (int64_t)(options.seconds * 1e9);
    run();
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"begin_ns\": %lld, \"tree_s\": %.6f, \"requests\": %zu, \"chunks\": %lld, \"reads\": %lld, \"rss_mb\": %.1f, \"seconds\": [", (long long)begin_at, cpu_s(), seen.count, (long long)chunks, (long long)reads, (double)used.ru_maxrss / 1024);
    for (int i = 0; i < sampled; i++) printf("%s[%lld, %.6f, %lld]", i ? ", " : "", (long long)seconds[i].at_ns, seconds[i].cpu_s, (long long)seconds[i].chunks);
    printf("]}\n");
    if (options.log && log_write(&seen, options.log)) fail(options.log);
    return 0;
}
