#include "framing.h"

#include <string.h>

enum { MOST_LINE = 65536, MOST_TRAILERS = 256, MOST_SIZE_DIGITS = 16 };

void framing_begin(Framing *framing, FramingKind kind, uint64_t length) {
    framing_free(framing);
    *framing = (Framing){.kind = kind, .left = length};
    framing->is_done = kind == COUNTED && length == 0;
}

void framing_free(Framing *framing) {
    buffer_free(&framing->line);
}

int framing_rests(const Framing *framing) {
    if (framing->kind != CHUNKED) return !framing->is_done;
    int is_between = framing->state == SIZE_LINE || framing->state == CHUNK_END;
    return is_between && !framing->line.size;
}

static int is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// The size in a line such as `1a` or `1a ;extension`.
static int read_size(const char *at, const char *end, uint64_t *size) {
    const char *begin = at;
    *size = 0;
    while (at < end && hex_digit(*at) >= 0) *size = *size * 16 + (uint64_t)hex_digit(*at++);
    if (at == begin || at - begin > MOST_SIZE_DIGITS) return 0;
    while (at < end && is_space(*at)) at++;
    return at == end || *at == ';';
}

// A whole line of chunked framing, without its line feed.
static void on_line(Framing *framing, const char *begin, const char *end) {
    while (begin < end && is_space(*begin)) begin++;
    while (end > begin && is_space(end[-1])) end--;
    if (framing->state == TRAILER) {
        framing->is_done = begin == end;
        framing->trailers++;
        if (framing->trailers > MOST_TRAILERS) framing->error = TOO_MANY_TRAILERS;
    } else if (framing->state == CHUNK_END) {
        if (begin < end) framing->error = BYTES_BEHIND_CHUNK;
        framing->state = SIZE_LINE;
    } else if (read_size(begin, end, &framing->left)) {
        framing->state = framing->left ? CHUNK : TRAILER;
    } else {
        framing->error = NO_CHUNK_SIZE;
    }
}

// A line that ends here, or goes on with what comes; returns the place behind it.
static const char *read_line(Framing *framing, const char *at, const char *end) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    const char *behind = stop ? stop + 1 : end;
    size_t size = (size_t)((stop ? stop : end) - at);
    if (framing->line.size + size > MOST_LINE) {
        framing->error = SIZE_LINE_TOO_LONG;
        return end;
    }
    if (stop && !framing->line.size) {
        on_line(framing, at, stop);
        if (framing->error && !buffer_add(&framing->line, at, size)) framing->error = NO_MEMORY;
        return behind;
    }
    if (!buffer_add(&framing->line, at, size)) {
        framing->error = NO_MEMORY;
        return end;
    }
    if (stop) {
        on_line(framing, framing->line.bytes, framing->line.bytes + framing->line.size);
        if (!framing->error) framing->line.size = 0;
    }
    return behind;
}

// Payload, as much as belongs to the chunk, or to a counted body; returns the place behind it.
static const char *read_payload(Framing *framing, const char *at, const char *end, Buffer *payload) {
    uint64_t size = (uint64_t)(end - at);
    if (framing->kind != UNTIL_CLOSE && size > framing->left) size = framing->left;
    if (!buffer_add(payload, at, (size_t)size)) framing->error = NO_MEMORY;
    if (framing->kind == UNTIL_CLOSE) return end;
    framing->left -= size;
    if (!framing->left) {
        if (framing->kind == COUNTED) framing->is_done = 1;
        else framing->state = CHUNK_END;
    }
    return at + size;
}

void framing_read(Framing *framing, const char *bytes, size_t size, Buffer *payload) {
    const char *at = bytes;
    const char *end = bytes + size;
    while (at < end && !framing->is_done && !framing->error) {
        if (framing->kind != CHUNKED || framing->state == CHUNK) at = read_payload(framing, at, end, payload);
        else at = read_line(framing, at, end);
    }
    if (at < end && framing->is_done) framing->has_excess = 1;
}
