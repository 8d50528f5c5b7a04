// Ground-truth server of event streams: one thread, epoll, HTTP/1.1 keep-alive and chunked.
// POST /v1/messages (Anthropic), /v1/chat/completions (OpenAI); the answer begins TTFT after the request arrived
// (the kernel's stamp) and has N chunks, or max_tokens where that is less; every chunk leaves by its own send() at its due
// time. At SIGTERM the log of what was sent, and when, goes to --log, and one line of JSON about itself to standard output.
//   --batch     as an engine with continuous batching: the steps of all streams fall on one grid of GAP ms, in the order
//               in which the requests came, and a request joins at the first step after its TTFT
//   --seed N    every chunk has a text of its own, of 2 to 14 characters, some with escapes or non-ASCII; 0: " the"
//   --changing  OpenAI: usage, log probabilities, `created` and an `obfuscation` of varying length in every event
#define _GNU_SOURCE
#include "clock.h"
#include "tls.h"
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST = 65536, REQUEST = 8192, EVENTS = 64, TEXTS = 4096, OBFUSCATION = 16 };
enum { BIN_NS = 5000, BINS = 200000 };  // lateness, in bins of 5 us up to 1 s

typedef enum { ANTHROPIC, OPENAI } Protocol;

typedef struct {
    int fd, place, writable;  // place in the heap, -1: idle
    SSL *tls;
    Protocol protocol;
    int usage, tokens_in, chunks;
    int64_t due, arrived;  // of the next chunk; of the newest bytes
    uint64_t joined;       // number of its request
    Record *record;
    char *in, *out;  // what is not yet a whole request; what the socket did not take
    size_t used, in_room, waiting, room;
} Connection;

static struct {
    int port, chunks, batch, changing;
    double ttft_ms, gap_ms;
    const char *log, *tls;
    uint64_t seed;
} options = {.chunks = 200, .ttft_ms = 200, .gap_ms = 20};

static Log truth;
static Connection *heap[MOST];
static int heaped, epoll, running, most_running;
static int64_t wall_offset, wall_read_at, sent, stuffed, first_at, last_at;
static double cpu_began;
static uint32_t late[BINS + 1];
static volatile sig_atomic_t quit;

// --- what is due next: a heap by time ---------------------------------------------------------------------------

static int before(const Connection *a, const Connection *b) {
    return a->due < b->due || (a->due == b->due && a->joined < b->joined);
}

static void put_at(int place, Connection *c) {
    heap[place] = c;
    c->place = place;
}

static void sift_up(int place) {
    Connection *c = heap[place];
    for (; place && before(c, heap[(place - 1) / 2]); place = (place - 1) / 2) put_at(place, heap[(place - 1) / 2]);
    put_at(place, c);
}

static void sift_down(int place) {
    Connection *c = heap[place];
    for (;;) {
        int child = 2 * place + 1;
        if (child >= heaped) break;
        if (child + 1 < heaped && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], c)) break;
        put_at(place, heap[child]);
        place = child;
    }
    put_at(place, c);
}

static void schedule(Connection *c) {
    put_at(heaped, c);
    sift_up(heaped++);
}

static void unschedule(Connection *c) {
    int place = c->place;
    if (place < 0) return;
    c->place = -1;
    if (place < --heaped) {
        put_at(place, heap[heaped]);
        sift_down(place);
        sift_up(heap[place]->place);
    }
}

// --- bytes out --------------------------------------------------------------------------------------------------

static void watch(Connection *c, int writable) {
    if (c->writable == writable) return;
    c->writable = writable;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | (writable ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
}

static ssize_t out(Connection *c, const char *bytes, size_t size) {
    if (!c->tls) return send(c->fd, bytes, size, MSG_NOSIGNAL);
    tls.ERR_clear_error();
    return tls.SSL_write(c->tls, bytes, (int)size);
}

static void put(Connection *c, const char *bytes, size_t size) {
    if (!c->waiting) {
        ssize_t taken = out(c, bytes, size);
        if (taken == (ssize_t)size) return;
        if (taken > 0) bytes += taken, size -= (size_t)taken;
        stuffed++;
    }
    if (c->waiting + size > c->room) {
        c->room = 2 * (c->waiting + size);
        c->out = realloc(c->out, c->room);
    }
    memcpy(c->out + c->waiting, bytes, size);
    c->waiting += size;
    watch(c, 1);
}

static void flush(Connection *c) {
    if (c->waiting) {
        ssize_t taken = out(c, c->out, c->waiting);
        if (taken > 0) memmove(c->out, c->out + taken, c->waiting -= (size_t)taken);
    }
    if (!c->waiting) watch(c, 0);
}

// --- the protocols' events; each is one HTTP chunk ----------------------------------------------------------------

static char wire[65536], event[4096];
static size_t wired;
static struct {
    char json[96], bytes[96];  // as a JSON string; its bytes, as JSON numbers
} texts[TEXTS];
static char letters[2 * OBFUSCATION];

static uint64_t mixed(uint64_t value) {  // splitmix64
    value = (value + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

static void make_texts(void) {
    static const char *rare[] = {"\n", "\"", "\\", "\xc3\xa9", "\xe2\x80\x94", "\xe6\xb5\xb7"};
    for (size_t i = 0; i < sizeof letters; i++) letters[i] = (char)('a' + mixed(options.seed + i) % 26);
    for (uint64_t i = 0; i < TEXTS; i++) {
        uint64_t drawn = mixed(options.seed * TEXTS + i);
        char plain[32] = " the";
        if (options.seed) {
            size_t size = (size_t)snprintf(plain, sizeof plain, "%s", drawn % 8 ? " " : rare[drawn / 8 % 6]);
            for (uint64_t left = 1 + drawn / 64 % 12; left; left--) plain[size++] = (char)('a' + (drawn = mixed(drawn)) % 26);
            plain[size] = 0;
        }
        char *json = texts[i].json, *bytes = texts[i].bytes;
        for (const char *at = plain; *at; at++) {
            if (*at == '\n' || *at == '"' || *at == '\\') *json++ = '\\';
            *json++ = *at == '\n' ? 'n' : *at;
            bytes += sprintf(bytes, "%s%d", at == plain ? "" : ",", (unsigned char)*at);
        }
    }
}

#define EVENT(...)                                                                      \
    do {                                                                                \
        int size_ = snprintf(event, sizeof event, __VA_ARGS__);                         \
        wired += (size_t)sprintf(wire + wired, "%x\r\n%s\r\n", (unsigned)size_, event); \
    } while (0)
#define CHAT "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":%lld,\"model\":\"tiny\","
#define USAGE "\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d}"

static long long created(void) { return options.changing ? (now_ns() + wall_offset) / 1000000000 : 1763660000; }

static void head(Connection *c) {
    wired = (size_t)sprintf(wire, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n");
    if (c->protocol == ANTHROPIC) {
        EVENT("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"tiny\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":1}}}\n\n", c->tokens_in);
        EVENT("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n");
    } else {
        EVENT(CHAT "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n", created());
    }
    put(c, wire, wired);
}

static void finish(Connection *c) {
    wired = 0;
    if (c->protocol == ANTHROPIC) {
        EVENT("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n");
        EVENT("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":%d}}\n\n", c->chunks);
        EVENT("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    } else {
        EVENT(CHAT "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n", created());
        if (c->usage) EVENT(CHAT "\"choices\":[]," USAGE "}\n\n", created(), c->tokens_in, c->tokens_in + c->chunks, c->chunks);
        EVENT("data: [DONE]\n\n");
    }
    wired += (size_t)sprintf(wire + wired, "0\r\n\r\n");
    put(c, wire, wired);
    c->record->entry.ended_ns = last_at = now_ns();
    c->record = NULL;
    running--;
}

static void chunk(Connection *c) {
    Entry *entry = &c->record->entry;
    if (!entry->chunks) head(c);
    wired = 0;
    uint64_t drawn = mixed(c->joined) + 2654435761 * (uint64_t)entry->chunks;  // no text twice in TEXTS chunks
    const char *text = texts[drawn % TEXTS].json;
    int64_t at = now_ns();
    if (c->protocol == ANTHROPIC)
        EVENT("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"%s\"}}\n\n", text);
    else if (!options.changing)
        EVENT(CHAT "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n", created(), text);
    else
        EVENT(CHAT "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":{\"content\":[{\"token\":\"%s\",\"logprob\":-0.%06d,\"bytes\":[%s],\"top_logprobs\":[]}],\"refusal\":null},\"finish_reason\":null}]," USAGE ",\"obfuscation\":\"%.*s\"}\n\n",
              created(), text, text, (int)(mixed(drawn) % 1000000), texts[drawn % TEXTS].bytes, c->tokens_in, c->tokens_in + entry->chunks + 1, entry->chunks + 1,
              1 + (int)(mixed(drawn) % OBFUSCATION), letters + drawn / TEXTS % OBFUSCATION);
    put(c, wire, wired);
    int64_t bin = (at - c->due) / BIN_NS;
    late[bin > BINS ? BINS : bin]++;
    c->record->at_ns[entry->chunks++] = at;
    sent++;
    if (entry->chunks >= c->chunks) {
        unschedule(c);
        finish(c);
    } else {
        c->due += (int64_t)(options.gap_ms * 1e6);
        sift_down(0);
    }
}

// --- requests -----------------------------------------------------------------------------------------------------

static const char *header(const char *head, const char *name) {
    const char *found = strcasestr(head, name);
    return found ? found + strlen(name) : NULL;
}

// The three numbers at the end of `.../request/leg/attempt`.
static void identify(const char *head, Entry *entry) {
    const char *id = header(head, "\r\nx-client-request-id:");
    long long request = 0;
    int leg = 0, attempt = 0;
    if (id) {
        const char *at = id + strcspn(id, "\r\n");
        for (int slashes = 0; at > id && slashes < 3; at--) slashes += at[-1] == '/';
        sscanf(at + 1, "%lld/%d/%d", &request, &leg, &attempt);
    }
    entry->request = request, entry->leg = leg, entry->attempt = attempt;
}

static void plain(Connection *c, const char *status, const char *body) {
    char answer[1024];
    put(c, answer, (size_t)snprintf(answer, sizeof answer, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status, strlen(body), body));
}

// Takes one request out of `in`; 0: it is not whole yet.
static size_t request(Connection *c) {
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end) return 0;
    *end = 0;
    const char *length = header(c->in, "\r\ncontent-length:");
    size_t size = (size_t)(end - c->in) + 4 + (length ? strtoul(length, NULL, 10) : 0);
    if (c->used < size) {
        *end = '\r';
        return 0;
    }
    if (strncmp(c->in, "POST", 4)) {
        plain(c, "200 OK", "{}");
        return size;
    }
    char after = c->in[size];
    c->in[size] = 0;
    const char *said = end + 4;
    c->protocol = strncmp(c->in + 5, "/v1/messages", 12) ? OPENAI : ANTHROPIC;
    const char *most = strstr(said, "\"max_tokens\"");
    if (!most) most = strstr(said, "\"max_completion_tokens\"");
    c->chunks = most && atoi(strchr(most, ':') + 1) < options.chunks ? atoi(strchr(most, ':') + 1) : options.chunks;
    if (c->chunks < 1) c->chunks = 1;
    c->usage = strstr(said, "include_usage") != NULL;
    c->tokens_in = 8;
    for (const char *at = said; *at; at++) c->tokens_in += *at == ' ';
    c->record = log_begin(&truth, (size_t)c->chunks);
    Entry *entry = &c->record->entry;
    identify(c->in, entry);
    entry->status = 200;
    entry->began_ns = c->arrived;
    if (!first_at) first_at = c->arrived, cpu_began = cpu_s();
    c->joined = truth.count;
    c->due = c->arrived + (int64_t)(options.ttft_ms * 1e6);
    int64_t step = options.batch ? (int64_t)(options.gap_ms * 1e6) : 1;
    c->due = (c->due + step - 1) / step * step;
    c->in[size] = after;
    if (++running > most_running) most_running = running;
    schedule(c);
    return size;
}

static void drop(Connection *c) {
    if (c->record) {
        unschedule(c);
        c->record->entry.status = 499;  // the client left before the end
        c->record->entry.ended_ns = last_at = now_ns();
        running--;
    }
    close(c->fd);
    if (c->tls) tls.SSL_free(c->tls);
    free(c->in);
    free(c->out);
    free(c);
}

static ssize_t in(Connection *c, char *bytes, size_t room) {
    if (c->tls) {
        tls.ERR_clear_error();
        int got = tls.SSL_read(c->tls, bytes, (int)room);
        c->arrived = now_ns();
        if (got > 0) return got;
        int why = tls.SSL_get_error(c->tls, got);
        errno = EAGAIN;
        return why == TLS_WANT_READ || why == TLS_WANT_WRITE ? -1 : 0;
    }
    union { struct cmsghdr aligned; char room[CMSG_SPACE(sizeof(struct timespec))]; } ancillary;
    struct iovec into = {bytes, room};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = &ancillary, .msg_controllen = sizeof ancillary};
    ssize_t got = recvmsg(c->fd, &message, 0);
    c->arrived = now_ns();
    struct cmsghdr *stamp = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (stamp && stamp->cmsg_type == SO_TIMESTAMPNS) {
        struct timespec t;
        memcpy(&t, CMSG_DATA(stamp), sizeof t);
        c->arrived = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - wall_offset;
    }
    return got;
}

// Reads all there is; returns 0 where the connection is over.
static int readable(Connection *c) {
    for (;;) {
        if (c->in_room < c->used + REQUEST + 1) c->in = realloc(c->in, c->in_room = 2 * c->used + REQUEST + 1);
        ssize_t got = in(c, c->in + c->used, c->in_room - c->used - 1);
        if (got <= 0) return got < 0 && errno == EAGAIN;
        c->used += (size_t)got;
        c->in[c->used] = 0;
        while (!c->record && c->used) {
            size_t taken = request(c);
            if (!taken) break;
            memmove(c->in, c->in + taken, (c->used -= taken) + 1);
        }
    }
}

static void accept_all(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        Connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->place = -1;
        if (options.tls) {
            c->tls = tls.SSL_new(tls.context);
            tls.SSL_set_fd(c->tls, fd);
            tls.SSL_set_accept_state(c->tls);
        }
        struct epoll_event watched = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &watched);
    }
}

// --- the process ----------------------------------------------------------------------------------------------------

static double late_ms(double quantile) {
    uint64_t seen = 0, wanted = (uint64_t)(quantile * (double)sent);
    for (int bin = 0; bin <= BINS; bin++)
        if ((seen += late[bin]) > wanted) return (bin + 0.5) * BIN_NS / 1e6;
    return 0;
}

static void on_signal(int number) {
    (void)number;
    quit = 1;
}

static int listen_on(void) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    // Its connections inherit it. Asked for with the first of them, it would come too late for a herd's first requests.
    setsockopt(listener, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096)) {
        perror("server: bind");
        exit(1);
    }
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static void serve(int listener) {
    epoll = epoll_create1(0);
    struct epoll_event watched = {.events = EPOLLIN, .data.ptr = NULL}, events[EVENTS];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &watched);
    while (!quit) {
        int64_t now = now_ns(), left = heaped ? heap[0]->due - now : 1000000000;
        if (now - wall_read_at > 1000000000) wall_offset = wall_minus_monotonic(), wall_read_at = now;
        struct timespec wait = {left > 0 ? left / 1000000000 : 0, left > 0 ? left % 1000000000 : 0};
        int count = epoll_pwait2(epoll, events, EVENTS, &wait, NULL);
        for (int i = 0; i < count; i++) {
            Connection *c = events[i].data.ptr;
            if (!c) {
                accept_all(listener);
                continue;
            }
            if (events[i].events & EPOLLOUT) flush(c);
            if (events[i].events & ~(uint32_t)EPOLLOUT && !readable(c)) drop(c);
        }
        for (int i = 0; heaped && i < 256 && heap[0]->due <= now_ns(); i++) chunk(heap[0]);
    }
}

static void options_of(int count, char **words) {
    static const struct option known[] = {{"port", 1, 0, 'p'}, {"ttft", 1, 0, 't'}, {"gap", 1, 0, 'g'}, {"chunks", 1, 0, 'c'}, {"log", 1, 0, 'l'}, {"tls", 1, 0, 's'}, {"seed", 1, 0, 'x'}, {"batch", 0, 0, 'b'}, {"changing", 0, 0, 'v'}, {0}};
    for (int found; (found = getopt_long(count, words, "", known, NULL)) != -1;) switch (found) {
            case 'p': options.port = atoi(optarg); break;
            case 't': options.ttft_ms = atof(optarg); break;
            case 'g': options.gap_ms = atof(optarg); break;
            case 'c': options.chunks = atoi(optarg); break;
            case 'l': options.log = optarg; break;
            case 's': options.tls = optarg; break;
            case 'x': options.seed = strtoull(optarg, NULL, 10); break;
            case 'b': options.batch = 1; break;
            case 'v': options.changing = 1; break;
            default:
                fprintf(stderr, "server [--port N] [--ttft MS] [--gap MS] [--chunks N] [--batch] [--seed N] [--changing] [--tls PEM] [--log FILE]\n");
                exit(2);
        }
}

int main(int count, char **words) {
    options_of(count, words);
    if (options.tls) tls_open(options.tls);
    make_texts();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    prctl(PR_SET_TIMERSLACK, 1);
    many_files();
    serve(listen_on());
    double wall_s = (double)(last_at - first_at) / 1e9, used_s = cpu_s() - cpu_began;
    printf("{\"requests\": %zu, \"chunks\": %lld, \"most_running\": %d, \"stuffed\": %lld, \"wall_s\": %.3f, \"cpu_share\": %.4f, \"late_p50_ms\": %.4f, \"late_p99_ms\": %.4f}\n",
           truth.count, (long long)sent, most_running, (long long)stuffed, wall_s, wall_s > 0 ? used_s / wall_s : 0, late_ms(0.5), late_ms(0.99));
    if (options.log && log_write(&truth, options.log)) {
        perror(options.log);
        return 1;
    }
    return 0;
}
